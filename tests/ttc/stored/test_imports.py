"""Weights that stay as they are stored load nothing of families that nobody uses."""

import sys

import pytest

from tests.helpers.processes import finished


@pytest.mark.slow
def test_an_engine_can_be_imported_without_the_experts_of_any_family() -> None:
    code = (
        "import sys, ttc.engine, ttc.stored.mxfp4_loading, ttc.stored.gguf_loading; "
        "models = [m for m in sys.modules if m.startswith('transformers.models.')]; "
        "print([m for m in models if 'moe' in m or 'mixtral' in m or 'gpt_oss' in m])"
    )
    assert finished([sys.executable, "-c", code], check=True).stdout == "[]\n"
