"""Flags beside Hydra's settings."""

from __future__ import annotations

import pytest

from experiments.cli.settings import RUN_FLAGS
from experiments.runs.flags import as_settings
from ttc import InvalidInput


def test_a_run_has_no_port() -> None:
    assert as_settings(["--model", "x"], RUN_FLAGS) == ["model.name=x"]
    for flag, way_out in {
        "--port": "the flags are --model, --search, --verifier",
        "--n": r"give search\.n=VALUE",
        "--limit": r"give dataset\.limit=VALUE",
        "--modle": r"is it --model\?",
    }.items():
        with pytest.raises(InvalidInput, match=f"{flag} is no flag; {way_out}"):
            as_settings([flag, "1"], RUN_FLAGS)
