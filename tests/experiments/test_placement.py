"""A placement in the configuration of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import experiments.build
from experiments.build import make_engine
from tests.helpers.configurations import configuration
from tests.helpers.placements import deeper
from tests.helpers.tokenizers import Letters
from ttc.placement.base import PlacedRunner


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with a small model."""
    deeper("llama").save_pretrained(tmp_path)
    monkeypatch.setattr("ttc.model.loading._tokenizer", lambda *_: Letters())
    monkeypatch.setattr(experiments.build, "_loaded", {})
    return f"model.name={tmp_path}"


def test_a_run_places_the_weights_as_it_is_told(folder: str) -> None:
    streamed = make_engine(configuration("run", folder, "placement=streamed", "placement.link_gbps=2"))
    assert isinstance(streamed.runner, PlacedRunner)
    assert streamed.memory.link.gbps == 2


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(Exception, match="budget_gb"):
        configuration("run", "placement=streamed", "placement.budget_gb=2")
