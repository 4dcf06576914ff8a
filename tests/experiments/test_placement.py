"""A placement in the configuration of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.errors import InstantiationException

import experiments.runs.build
from experiments.runs.build import make_engine
from tests.helpers.configurations import configuration
from tests.helpers.placements import deeper
from tests.helpers.tokenizers import Letters
from ttc.placement.base import PlacedRunner
from ttc.placement.split import SplitRunner


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with a small model."""
    deeper("llama").save_pretrained(tmp_path)
    monkeypatch.setattr("ttc.model.loading.load.read_tokenizer", lambda *_: Letters())
    monkeypatch.setattr(experiments.runs.build, "last_loaded", {})
    return f"model.name={tmp_path}"


def test_a_run_places_the_weights_as_it_is_told(folder: str) -> None:
    words = (folder, "placement=streamed", "placement.link_gbps=2")
    streamed = make_engine(configuration("run", *words))
    assert isinstance(streamed.runner, PlacedRunner)
    assert streamed.memory.link.gbps == 2


@pytest.mark.slow
def test_a_split_is_given_as_a_number_or_chosen(folder: str) -> None:
    words = (folder, "placement=split", "placement.k=3", "model.dtype=float32")
    split = make_engine(configuration("run", *words))
    assert isinstance(split.runner, SplitRunner) and split.runner.k == 3
    with pytest.raises(InstantiationException, match=r"placement.k=auto needs a profile"):
        make_engine(configuration("run", folder, "placement=split"))
