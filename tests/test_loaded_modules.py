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

MODELS = """
import sys
sys.exit("transformers.modeling_utils" in sys.modules)
"""

MOST = 112


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


@pytest.mark.slow
def test_settings_are_read_without_what_defines_models() -> None:
    """It takes seconds to import, for which a refused setting need not wait."""
    assert finished([sys.executable, "-c", SETTINGS + MODELS], cwd=ROOT).returncode == 0
