"""Several models in one tree: branches that are handed on, and the choice of who writes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search import ABMCTS, ABMCTSM, Case, Search, SearchSteps, ask_tell, solve
from search.ab_mcts_m import draw_scores
from search.asking import AskTell
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import GREEDY, make_engine, numbers_engine
from tests.helpers.scripted import Scores
from ttc import Branch, InvalidInput, Step
from ttc.drawing import tree_svg
from ttc.protocols import Expand, Handoff
from ttc.results import Result
from ttc.text.prompt import PromptTemplate

ended = AskTell.result
"""Waits for nothing, other than the `result` of a thread's work."""
TREES = [ABMCTS(iterations=16, feedback="Again."), ABMCTSM(iterations=16, feedback="Again.")]


@dataclass(frozen=True)
class InTurns(Search):
    """A step of each of these models, one after the other."""

    models: tuple[str, ...] = ("small", "large")
    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        branch = root
        for model in self.models:
            (branch,) = yield Handoff([branch], model)
            (branch,) = yield Expand([branch], 1, Step(4), GREEDY)
        return [branch]


def side_by_side() -> dict[str, Any]:
    return {"small": FakeBackend(longest=9999), "large": FakeBackend("12345,", longest=9999)}


def test_a_branch_that_is_handed_on_is_a_prompt_of_the_same_text() -> None:
    small, large = make_engine(context=400), numbers_engine()
    result = solve(InTurns(), problem="1", engine={"small": small, "large": large})
    assert small.kv_bytes() == large.kv_bytes() == 0 and result.best is not None
    template = PromptTemplate()
    first = small.root(template.tokens("1", small.tokenizer))
    small.generate([first], 4, sampling=GREEDY)
    said = large.encode(small.decode(first.generated))
    second = large.root([*template.tokens("1", large.tokenizer), *said])
    large.generate([second], 4, sampling=GREEDY)
    assert result.best.tokens == second.tokens
    assert result.best.text == large.decode([*said, *second.generated])
    assert [node.model for node in result.tree] == ["small", "small", "small", "large", "large"]
    used = result.usage_by_model
    assert {name: used[name].generated_tokens for name in used} == {"small": 4, "large": 4}
    assert used["large"].prompt_tokens == len(second.tokens) - 5  # the last is fed first


@pytest.mark.parametrize("search", TREES, ids=["A", "M"])
def test_a_tree_of_two_models_says_who_wrote_what_and_frees_it(search: Search) -> None:
    engines = side_by_side()
    verifier = Scores(lambda branch: 0.5 if branch.model == "small" else 0.6)
    result = solve(search, problem="q", engine=engines, verifier=verifier, seed=1)
    assert not engines["small"].live and not engines["large"].live
    assert {branch.model for branch in result.branches} == {"small", "large"}
    written = Counter[str]()
    for branch in result.branches:
        written[branch.model] += len(branch.generated)
    assert written == {n: used.generated_tokens for n, used in result.usage_by_model.items()}
    assert written.total() == result.usage.generated_tokens
    assert " by small, score 0.5" in tree_svg(result.tree)
    again = Result.from_dict(result.to_dict())
    assert again.tree == result.tree and again.usage_by_model == result.usage_by_model
    assert [branch.model for branch in again.branches] == [b.model for b in result.branches]
    company = solve(search, problem=["1", "q"], engine=side_by_side(), verifier=verifier, seed=1)
    assert company[1].tree == result.tree


@pytest.mark.few
@pytest.mark.parametrize("search", TREES, ids=["A", "M"])
@pytest.mark.parametrize("better", ["small", "large"])
def test_the_model_with_the_better_answers_is_asked_more(search: Search, better: str) -> None:
    asked = Counter[str]()
    for seed in range(6):
        verifier = Scores(lambda branch: 0.9 if branch.model == better else 0.1)
        result = solve(search, problem="q", engine=side_by_side(), verifier=verifier, seed=seed)
        asked.update(branch.model for branch in result.branches)
    assert len(asked) == 2 and asked[better] > 0.6 * sum(asked.values())


def test_one_model_is_shown_what_the_other_has_answered() -> None:
    """By chats: the trials of ask/tell hold them whole."""
    pairs = set[tuple[str, str]]()
    for seed in range(6):
        asking = ask_tell(TREES[0], problem="q", models=["small", "large"], seed=seed)
        writers = dict[str, str]()
        while not asking.done:
            for trial in asking.ask():
                said = f"{trial.model} {len(writers)}"
                writers[said] = trial.model
                shown = [m["content"] for m in trial.messages if m["role"] == "assistant"]
                pairs.update((writers[answer], trial.model) for answer in shown)
                asking.tell(trial, said, score=len(writers) / 40)
        branches = ended(asking).branches
        assert [branch.model for branch in branches] == [writers[b.text] for b in branches]
    assert len(pairs) == 4


def test_a_checkpoint_of_other_models_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    asking = ask_tell(TREES[1], problem="q", models=["a", "b"], checkpoint=file)
    asking.tell(asking.ask()[0], "x", score=0.5)
    again = ask_tell(TREES[1], problem="q", models=["a", "b"], checkpoint=file)
    assert again.open == asking.open
    with pytest.raises(InvalidInput, match=r"models: \['a', 'b'\] there, \['a', 'c'\] here"):
        ask_tell(TREES[1], problem="q", models=["a", "c"], checkpoint=file)


@pytest.mark.slow
def test_the_mixed_model_draws_from_its_posterior() -> None:
    """Against draws from the prior, each weighed by its likelihood."""
    groups = [[0.9, 0.8, 1.0], [0.2], [0.5, 0.1]]
    rng, n = np.random.default_rng(0), 400_000
    mu = rng.normal(0.5, 0.2, n)
    spread, noise = abs(rng.normal(0, 0.2, n)), abs(rng.normal(0, 0.3, n))
    alpha = [rng.normal(mu, spread) for _ in range(4)]
    logs = np.zeros(n)
    for a, group in zip(alpha, groups, strict=False):
        for score in group:
            logs -= np.log(noise) + (score - a) ** 2 / (2 * noise**2)
    weights = np.exp(logs - logs.max())
    expected = [np.average(a, weights=weights) for a in alpha]
    squares = [np.average(a**2 + noise**2, weights=weights) for a in alpha]
    draws = np.array([draw_scores(groups, rng) for _ in range(4000)])
    deviations = np.sqrt(np.array(squares) - np.array(expected) ** 2)
    assert np.allclose(draws.mean(0), expected, atol=0.03)
    assert np.allclose(draws.std(0), deviations, rtol=0.12)


ONE = FakeBackend()
BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: solve(InTurns(), problem="q", engine={}), "names no model"),
    (lambda: solve(InTurns(), problem="q", engine={"a": 1}), r"engine\['a'\]=1 .* give a backend"),  # type: ignore[dict-item]
    (lambda: solve(InTurns(), problem="q", engine={"": FakeBackend()}), "a model's name=''"),
    (lambda: solve(InTurns(), problem="q", engine={"a": ONE, "b": ONE}), "under several names"),
    (lambda: ask_tell(TREES[0], problem="q", models="ab"), "models='ab' is one string"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_what_does_not_fit_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wrong()


def test_a_model_that_there_is_not_fails_the_search_with_those_that_there_are() -> None:
    engines = side_by_side()
    result = solve(InTurns(models=("large", "tiny")), problem="q", engine=engines)
    assert "Handoff.model='tiny' is unknown; use small, large" in str(result.error)
    assert not engines["small"].live and not engines["large"].live
    alone = solve(InTurns(), problem="q", engine=FakeBackend())
    assert "the backend has one model" in str(alone.error)


@pytest.mark.parametrize("engine", [side_by_side(), FakeBackend()])
def test_a_model_that_there_is_not_is_refused_where_no_branch_is_handed_on(engine: Any) -> None:
    class Nobody(InTurns):
        def run(self, root: Branch, case: Case) -> SearchSteps:
            assert (yield Handoff([], "tiny")) == []
            return (yield Expand([root], 1, Step(4), GREEDY))

    assert "Handoff.model='tiny' is unknown" in str(solve(Nobody(), problem="q", engine=engine))
