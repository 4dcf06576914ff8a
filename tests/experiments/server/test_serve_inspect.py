"""Inspect as a client of the server, by its own provider for servers of OpenAI's protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="Inspect is not installed: pip install -e '.[inspect]'")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message

from search import SelfConsistency
from tests.helpers.own_server import SEARCHES, Asks, running, solved_here

QUESTIONS = ["12 + 3", "go on"]


@pytest.mark.parametrize("name", ["", "+best_of_n"])
def test_inspect_gets_the_answers_of_the_library(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTC_API_KEY", "unused")
    task = Task(
        dataset=[Sample(input=question, target="?") for question in QUESTIONS],
        solver=[system_message("be kind"), generate()],
        scorer=includes(),
        config=GenerateConfig(max_tokens=12, seed=7),
    )
    with running() as found:
        (log,) = eval(
            task,
            model=f"openai-api/ttc/tiny{name}",
            model_base_url=f"{found.url}/v1",
            log_dir=str(tmp_path),
            display="none",
        )
        found.wait_until_free()
    assert log.status == "success", log.error
    search = SEARCHES["best_of_n"] if name else SelfConsistency(n=1, max_tokens=12, temperature=1.0)
    for sample, question in zip(log.samples, QUESTIONS, strict=True):
        right: Any = solved_here(search, question, verifier=Asks() if name else None)
        assert sample.output.completion == right.best.text
        assert sample.output.usage.output_tokens == right.usage.generated_tokens
