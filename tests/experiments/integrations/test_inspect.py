"""Inspect over searches: its own eval on a local task, seeds by sample and epoch, and what is
refused."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="Inspect is not installed: pip install -e '.[inspect]'")

from inspect_ai import Task, eval
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ContentReasoning, GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

from experiments.integrations import inspect_provider
from experiments.integrations.solver import Solver
from search import Greedy, SelfConsistency, solve
from tests.experiments.integrations.test_lm_eval import tiny, tokenizer
from tests.helpers.thinking import OPENING, Thinking, thinker
from ttc import Engine, InvalidInput
from ttc.text.prompt import PromptTemplate

SAMPLES = [Sample(input=f"What is {n} + {n}?", target=str(2 * n), id=f"sum-{n}") for n in (1, 2, 3)]
TEMPLATE = PromptTemplate("{question}", raw=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def evaluated(model: str, folder: Path, epochs: int = 1, **settings: Any) -> Any:
    task = Task(
        dataset=SAMPLES, solver=generate(), scorer=includes(), config=GenerateConfig(max_tokens=8)
    )
    given = {"dtype": "float32", **settings}
    (log,) = eval(
        task,
        model=f"ttc/{model}",
        model_args=given,
        epochs=epochs,
        log_dir=str(folder),
        display="none",
    )
    assert log.status == "success", log.error
    return log


def test_greedy_answers_are_the_engine_s_own(model: str, tmp_path: Path) -> None:
    log = evaluated(model, tmp_path)
    engine = Engine(tiny(), tokenizer())
    for sample, asked in zip(log.samples, SAMPLES, strict=True):
        search = Greedy(max_tokens=8)
        result = solve(search, problem=str(asked.input), engine=engine, template=TEMPLATE)
        assert result.best is not None and sample.output.completion == result.best.text
        assert sample.output.usage.output_tokens == result.usage.generated_tokens
        assert sample.output.stop_reason == (
            "max_tokens" if result.best.finish_reason is None else "stop"
        )
    assert log.results.total_samples == 3 and "accuracy" in log.results.scores[0].metrics


def test_epochs_are_different_samples_and_the_same_in_every_run(model: str, tmp_path: Path) -> None:
    settings = {
        "search": "best_of_n",
        "search.n": 2,
        "search.temperature": 1.5,
        "verifier": "confidence",
    }
    found = []
    for name, batch in (("a", 1), ("b", 4)):
        log = evaluated(model, tmp_path / name, epochs=3, **settings, **{"run.batch": batch})
        found.append({(s.id, s.epoch): s.output.completion for s in log.samples})
        assert all(s.output.metadata["branches"] == 2 for s in log.samples)
    assert found[0] == found[1]
    assert len({found[0][f"sum-{1}", epoch] for epoch in (1, 2, 3)}) > 1


def test_what_a_search_cannot_do_is_refused(model: str, tmp_path: Path) -> None:
    task = Task(
        dataset=SAMPLES[:1],
        solver=generate(),
        scorer=includes(),
        config=GenerateConfig(num_choices=3),
    )
    (log,) = eval(task, model=f"ttc/{model}", log_dir=str(tmp_path), display="none")
    assert log.status == "error" and "num_choices=3 means nothing to a search" in log.error.message


def test_wrong_settings_are_told_by_inspect_without_a_traceback() -> None:
    wrong: dict[str, Any] = {"search.n": 3}
    with pytest.raises(InvalidInput, match=r"search\.n is no setting") as refused:
        inspect_provider.SearchModel("smollm2", **wrong)
    assert isinstance(refused.value, PrerequisiteError)


def test_a_thought_is_reasoning_and_its_answer_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["The answer is 3", "The answer is 3", "3?</think>The answer is 4."]
    backend: Any = Thinking(said, thinker(OPENING, plain=("<think>", "</think>")))
    monkeypatch.setattr(
        inspect_provider.Solver, "of", lambda settings: Solver(backend, SelfConsistency(n=3))
    )
    task = Task(dataset=[Sample(input="q", target="4", id=1)], solver=generate(), scorer=includes())
    (log,) = eval(task, model="ttc/thinker", log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    (sample,) = log.samples
    reasoning, text = sample.output.message.content
    assert isinstance(reasoning, ContentReasoning) and reasoning.reasoning == "3?"
    assert text.text == sample.output.completion == "The answer is 4."
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    api = get_model("ttc/thinker", memoize=False).api
    prompt = api.prompt(
        [ChatMessageUser(content="q"), sample.output.message, ChatMessageUser(content="and?")]
    )
    assert "3?" not in prompt and "The answer is 4." in prompt  # an earlier thought is left out


def test_inspect_finds_the_provider_by_its_entry_point(model: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["inspect_ai"]["ttc"]) is inspect_provider
    assert get_model(f"ttc/{model}").api.solver.search == Greedy()
