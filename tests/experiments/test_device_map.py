"""`model.device_map` of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.runs.build import device_of, make_engine
from experiments.standins.pretended import pretended_devices
from tests.helpers.configurations import configuration
from tests.helpers.runs import save_model
from ttc import InvalidInput


def test_a_run_puts_layers_on_several_devices(tmp_path: Path) -> None:
    first, second = pretended_devices()
    names = {"model.embed_tokens": first, "model.layers": second}
    names |= {"model.norm": second, "lm_head": first}
    device_map = ",".join(f"{name}:{place}" for name, place in names.items())
    model = ["model=hf", f"model.name={save_model(tmp_path)}", "model.dtype=float32"]
    config = configuration("run", *model, f"model.device_map={{{device_map}}}")
    engine = make_engine(config)
    assert str(engine.device) == first
    assert {str(shape.device) for shape in engine.memory.shapes} == {second}
    with pytest.raises(InvalidInput, match="names several devices; this runs on one"):
        device_of(config)
    assert device_of(configuration("run", *model, "model.device_map=cpu")) == "cpu"
