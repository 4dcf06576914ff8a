"""What a search loads: what is optional stays on the disk until somebody uses it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.processes import finished

ROOT = Path(__file__).parents[1]

LOADED = """
import sys
kept = {name for name in sys.modules if name.split(".")[0] in ("ttc", "search", "verifiers")}
print(*kept)
"""

SEARCH = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from search import BeamSearch, solve
from tests.helpers.tokenizers import Letters
from ttc import Engine
from verifiers import ArithmeticVerifier

sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_key_value_heads=1, **sizes)).eval()
search = BeamSearch(step_tokens=8, max_steps=3)
solve(search, problem="1+1", engine=Engine(model, Letters()), verifier=ArithmeticVerifier())
"""

OPTIONAL = (
    "ttc.approximate",
    "ttc.cost_model",
    "ttc.drawing",
    "ttc.model.compiled.fused_runner",
    "ttc.cuda.graphs",
    "ttc.model.loading.load",
    "ttc.recurrent.modules",
    "ttc.placement",
    "ttc.residency.capture",
    "ttc.residency.offloading",
    "ttc.speculation",
    "ttc.text.special_tokens",
    "ttc.text.formulas",
    "ttc.tools",
    "search.several_models",
    "search.thinking",
)
"""Some of what a plain search has no use for."""

SETTINGS = """
from experiments.runs.hydra_command import composed
from experiments.runs.problem_loop import run
composed(["search=best_of_n"])
"""

MOST = 110


def loaded(program: str) -> set[str]:
    """The project's modules that a program has loaded."""
    done = finished([sys.executable, "-c", program + LOADED], cwd=ROOT, check=True)
    return set(done.stdout.split())


def test_a_plain_search_loads_only_what_it_runs() -> None:
    modules = loaded(SEARCH)
    assert "search.beam_search" in modules and not modules.intersection(OPTIONAL)
    assert len(modules) <= MOST, sorted(modules)


@pytest.mark.slow
def test_a_search_is_written_without_an_engine() -> None:
    modules = loaded("import search.base")
    rooms = ("engine", "scheduler", "passes", "model", "residency", "memory", "attention", "remote")
    needed = {name for name in modules if name.startswith(tuple(f"ttc.{room}" for room in rooms))}
    assert not needed


RECORDS = """
import runpy
import experiments.eval.compare.show
import experiments.eval.export
import experiments.eval.merge
from verifiers import ArithmeticVerifier
runpy.run_path("examples/ask_tell.py", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "unneeded"), [(SETTINGS, "transformers.modeling_utils"), (RECORDS, "torch")]
)
def test_what_takes_seconds_to_import_is_not_where_it_is_not_used(
    program: str, unneeded: str
) -> None:
    """A refused setting need not wait for what defines models, nor records and texts of one's own
    generator for torch."""
    check = f"import sys\nsys.exit({unneeded!r} in sys.modules)"
    assert finished([sys.executable, "-c", program + check], cwd=ROOT).returncode == 0
