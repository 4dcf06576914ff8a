"""What commands and tests set for their process ends with them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from experiments.runs.problem_loop import run
from tests.helpers.benches import save_tiny_model
from tests.helpers.configurations import configuration
from tests.helpers.parts import installed
from tests.helpers.process_state import state

COMMANDS = [
    "run search=nope",
    "run run.dry=true dataset=sums dataset.size=1 verifier=none search=greedy",
    "-m run run.dry=true dataset=sums dataset.size=1 verifier=none search=greedy,self_consistency",
    "plan search=nope",
    "calibrate search=nope",
    *(f"{name} search=nope" for name in ("serve", "train_verifier", "processbench")),
    "ask question search=nope",
]


@pytest.mark.parametrize("typed", COMMANDS)
def test_a_command_leaves_its_process_as_it_was(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *words = typed.split()
    name = words.pop(0) if first == "-m" else first
    if name in ("serve", "train_verifier", "processbench") and not installed("command", name):
        pytest.skip("its part is deleted")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "0")
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)
    monkeypatch.setattr(sys, "argv", [name, *(["-m"] if first == "-m" else []), *words])
    before = state()
    try:
        import_module(f"experiments.{name}").main()
    except SystemExit as end:
        assert "dry" in typed or str(end.code).startswith("error: ") or end.code == 1
    after = state()
    assert {part: after[part] for part in before if after[part] != before[part]} == {}


def test_the_threads_of_a_job_of_a_sweep_are_not_the_next_ones(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    job = [f"model.name={model}", "dataset=sums", "dataset.size=1", "verifier=none"]
    job += ["search=greedy", "search.max_tokens=2", f"run.output_dir={tmp_path}"]
    threads = torch.get_num_threads()
    run(configuration("run", *job, f"run.threads={threads + 1}", "run.name=r"))
    assert torch.get_num_threads() == threads
