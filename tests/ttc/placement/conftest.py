"""Models that were saved without a tokenizer."""

from __future__ import annotations

import pytest

from tests.helpers.tokenizers import Letters


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is loaded has a token for each character."""
    monkeypatch.setattr("ttc.model.loading.read_tokenizer", lambda *_: Letters())
