"""Models that were saved without a tokenizer, and profiles with made-up figures."""

from __future__ import annotations

import pytest

from tests.helpers.tokenizers import Letters
from ttc.cost_model.profile_file import read


@pytest.fixture(autouse=True)
def as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up profile is not brought to the speed of this machine."""
    for module in ("split", "auto"):
        monkeypatch.setattr(f"ttc.placement.{module}.read_now", read)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is loaded has a token for each character."""
    monkeypatch.setattr("ttc.model.loading.load.read_tokenizer", lambda *_: Letters())
