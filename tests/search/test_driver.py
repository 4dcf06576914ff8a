"""The driver's faults, budgets and bookkeeping in searches of several steps."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import (
    BeamSearch,
    BestFirst,
    BestOfN,
    ComputeOptimal,
    Greedy,
    ParticleFilter,
    Result,
    Search,
    SelfConsistency,
    solve,
)
from search.selection import ranked, vote
from tests.helpers.backends import FakeBackend, branch_of
from tests.helpers.scripted import Scores
from tests.helpers.tiers import examples
from ttc import InvalidInput
from ttc.branch import Branch
from ttc.protocols import Verifier
from verifiers import (
    ArithmeticVerifier,
    ConfidenceGatedVerifier,
    ConfidenceVerifier,
    EnsembleVerifier,
)

BEAM = BeamSearch(beam_size=2, beam_width=3, step_tokens=3, max_steps=4)


def lengths(branch: Branch) -> list[float]:
    """Each step scores its number of commas plus a tenth of its length."""
    return [step.count(",") + len(step) / 10 for step in branch.steps]


LENGTHS = Scores(lengths)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


def seen(result: Result) -> Any:
    """All that may not depend on what else is solved."""
    rows = [(b.text, b.score, b.step_scores, b.path, b.finish_reason) for b in result.branches]
    return result.answer, rows, result.tree, result.error


# ---------------------------------------------------------------- verifiers that fail


class FailsLater(Scores):
    """Goes wrong on the question "bad", from the second step on."""

    def __init__(self, how: Any):
        super().__init__(lengths)
        self.how = how

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        scores = super().rate(branches, questions, backend)
        bad = [i for i, q in enumerate(questions) if q == "bad" and len(branches[i].step_ends) > 1]
        if bad and isinstance(self.how, Exception):
            raise self.how
        if bad and self.how == "too few":
            return scores[:-1]
        for i in bad:
            scores[i] = self.how
        return scores


class CannotLetGo(Scores):
    """Goes wrong when it is told that branches of the question "bad" are gone."""

    def __init__(self) -> None:
        super().__init__(lengths)
        self.bad: set[Branch] = set()

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        self.bad |= {b for b, q in zip(branches, questions, strict=True) if q == "bad"}
        return super().rate(branches, questions, backend)

    def released(self, branches: Sequence[Branch]) -> None:
        if self.bad & set(branches):
            raise RuntimeError("lost its cache")


class CannotPrice(Scores):
    """Does not know what the question "bad" costs."""

    def __init__(self, price: Any) -> None:
        super().__init__(lengths)
        self.given = price

    def price(self, branches: Any, questions: Any, backend: Any) -> Any:
        if "bad" in questions and isinstance(self.given, Exception):
            raise self.given
        return self.given if "bad" in questions else 1


ONCE = BestOfN(n=3, max_tokens=4)
FAULTS: list[tuple[Search, Verifier, str]] = [
    (BEAM, FailsLater(RuntimeError("no weights")), " raised RuntimeError: no weights"),
    (BEAM, FailsLater([]), " returned . ratings for"),
    (BEAM, FailsLater("too few"), " returned . ratings for"),
    (BEAM, FailsLater([math.nan]), " returned the score .nan"),
    (BEAM, FailsLater([math.inf]), " returned the score .inf"),
    *(
        (search, CannotPrice(price), f".price {why}")
        for search in (BEAM, ONCE)
        for price, why in (
            (KeyError("bad"), "raised KeyError: 'bad'"),
            ("dear", "returned 'dear'; give the most tokens"),
            (-1, "returned -1; give the most tokens"),
        )
    ),
    (BEAM, CannotLetGo(), ".released raised RuntimeError: lost its cache"),
    (ONCE, CannotLetGo(), ".released raised RuntimeError: lost its cache"),
]


@pytest.mark.parametrize(("search", "verifier", "why"), FAULTS)
def test_a_verifier_that_fails_fails_its_problem_alone(
    search: Search, verifier: Any, why: str, backend: Any
) -> None:
    good, bad, other = solve(
        search,
        engine=backend,
        verifier=verifier,
        problem=["good", "bad", "other"],
        max_tokens=10**5,
    )
    assert re.match(f"VerifierError: {type(verifier).__name__}{why}", str(bad.error))
    assert not backend.live and (bad.branches or isinstance(verifier, CannotPrice))
    for result, question in ((good, "good"), (other, "other")):
        assert result.error is None
        alone = solve(search, engine=FakeBackend(), verifier=LENGTHS, problem=question)
        assert seen(result) == seen(alone)


def test_a_failed_search_gives_its_best_so_far(backend: Any) -> None:
    verifier = FailsLater(RuntimeError("no weights"))
    result = solve(BestOfN(n=4, max_tokens=5), engine=backend, verifier=verifier, problem="bad")
    assert result.error is None and result.best.score == max(b.score for b in result.branches)
    result = solve(BEAM, engine=backend, verifier=verifier, problem="bad")
    assert result.error is not None and result.best is result.branches[0]
    assert max(len(b.step_ends) for b in result.branches) == 2
    assert all(n.score is None for n in result.tree if n.status == "kept")


# ---------------------------------------------------------------- nothing stays live


def test_an_interrupt_while_others_are_under_way(backend: Any) -> None:
    finished: list[Result] = []

    def interrupt(result: Result) -> None:
        finished.append(result)
        raise KeyboardInterrupt

    options = {"concurrency": 2, "on_result": interrupt}
    with pytest.raises(KeyboardInterrupt):
        solve(BEAM, engine=backend, verifier=LENGTHS, problem=list("abcd"), **options)
    assert len(finished) == 1
    assert not backend.live


def test_only_what_can_still_go_on_is_live(backend: Any) -> None:
    sizes: list[int] = []

    def watching(branch: Branch) -> list[float]:
        sizes.append(len(backend.live))
        return lengths(branch)

    solve(BEAM, engine=backend, verifier=Scores(watching), problem="q")
    assert sizes[0] == 6  # the children; the root was let go before they were rated
    assert len(sizes) > 6 and max(sizes) <= 6


# ---------------------------------------------------------------- budgets


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_the_call_budget_ends_where_a_shorter_search_does(calls: int, backend: Any) -> None:
    result = solve(BEAM, engine=backend, verifier=LENGTHS, problem="q", max_calls=calls)
    short = replace(BEAM, max_steps=calls)
    assert seen(result) == seen(solve(short, engine=FakeBackend(), verifier=LENGTHS, problem="q"))
    assert result.error is None and result.stopped == "max_calls"
    assert len(backend.calls) == calls


# ---------------------------------------------------------------- beam search


@pytest.mark.parametrize("search", [BEAM, BestFirst(max_steps=4, finish=3)])
def test_what_a_gate_stopped_is_pruned(
    search: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, rated = backend.generate, list[Branch]()

    def gated(branches: Any, *args: Any, **options: Any) -> None:
        plain(branches, *args, **options)
        for branch in branches[1:]:
            branch.finish_reason = "gate"

    monkeypatch.setattr(backend, "generate", gated)
    verifier = Scores(lambda branch: rated.append(branch) or 1.0)
    result = solve(search, problem="1 + 1 = ?", engine=backend, verifier=verifier)
    assert rated and not any(branch.gated for branch in [*rated, *result.branches])
    assert not backend.live and result.best is not None
    assert {node.status for node in result.tree if node.score is None} <= {"root", "pruned"}


def test_a_product_of_negative_scores_is_refused(backend: Any) -> None:
    log = Scores(lambda branch: [-2.0, -0.1])
    for how, fine in (("product", False), ("mean", True)):
        search = BestOfN(n=2, max_tokens=4, aggregation=how)  # type: ignore[arg-type]
        result = solve(search, problem="1 + 1 = ?", engine=backend, verifier=log)
        assert (result.error is None) == fine
        assert fine or "below zero" in str(result.error)


NEGATIVE = ConfidenceVerifier(metric="logprob")
UNFIT: list[tuple[Search, Verifier, str]] = [
    (BestOfN(n=2, aggregation="product"), NEGATIVE, "use aggregation=mean, min or last"),
    (
        ComputeOptimal(strategies=(BeamSearch(aggregation="product"),)),
        EnsembleVerifier([ArithmeticVerifier(), NEGATIVE]),
        "EnsembleVerifier, whose scores go below zero",
    ),
    (ParticleFilter(), ConfidenceGatedVerifier(NEGATIVE), "gives scores from -inf to 1"),
]


@pytest.mark.parametrize(("search", "verifier", "message"), UNFIT, ids=["n", "parts", "particles"])
def test_scores_that_are_of_no_use_are_refused_before_any_work(
    backend: Any, search: Search, verifier: Verifier, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        solve(search, problem="1 + 1 = ?", engine=backend, verifier=verifier)
    assert not backend.live


def test_a_finished_beam_is_kept_in_a_tie_against_a_longer_one(backend: Any) -> None:
    """A finished branch rates 1, the others too from the second step on."""
    grading = Scores(lambda branch: float(branch.finished or len(branch.step_ends) > 1))
    search = BeamSearch(beam_size=6, beam_width=4, step_tokens=2, max_steps=2)
    result = solve(search, engine=backend, verifier=grading, problem="q")
    first = [n.path for n in result.tree if len(n.path) == 1 and n.score == 1]
    assert 0 < len(first) < 6
    paths = [list(b.path) for b in result.branches]
    assert [path for path in paths if len(path) == 1] == first and len(paths) == 6
    assert paths == sorted(paths)  # all of them rate 1 in the end


def test_a_delimiter_ends_a_step_and_an_end_string_the_branch(backend: Any) -> None:
    search = BeamSearch(beam_size=3, beam_width=2, step_tokens=50, max_steps=3, delimiter=",")
    result = solve(search, engine=backend, verifier=LENGTHS, problem="q")
    steps = [step for branch in result.branches for step in branch.steps]
    assert steps and all(step.find(",") in (-1, len(step) - 1) for step in steps)
    result = solve(Greedy(max_tokens=400), engine=backend, problem="q", end=[","])
    free = solve(Greedy(max_tokens=400), engine=backend, problem="q").best.text
    cut = min(free.index(sign) for sign in ",0" if sign in free)
    assert result.best.text == free[: cut + 1]
    assert result.best.finish_reason == {",": "end", "0": "eos"}[free[cut]]


def test_every_node_of_the_tree(backend: Any) -> None:
    result = solve(BEAM, engine=backend, verifier=LENGTHS, problem="q")
    nodes = result.tree
    assert [n.id for n in nodes] == list(range(len(nodes)))
    assert {n.status for n in nodes} <= {"root", "expanded", "pruned", "kept", "finished"}
    parents = {n.parent for n in nodes}
    for node in nodes[1:]:
        parent = nodes[node.parent]
        assert parent.id < node.id and parent.path == node.path[:-1]
        assert node.tokens == parent.tokens + len(node.text)
        assert len(node.step_scores) == len(node.path) and node.score == node.step_scores[-1]
        assert (node.status == "expanded") == (node.id in parents)
    for branch in result.branches:
        (node,) = [n for n in nodes if tuple(n.path) == branch.path]
        assert node.status == ("finished" if branch.finished else "kept")
        assert (node.score, node.text) == (branch.score, branch.steps[-1])


# ---------------------------------------------------------------- ranking and votes


@settings(max_examples=examples(30))
@given(st.lists(st.one_of(st.none(), st.integers(0, 3).map(float)), max_size=8))
def test_ranking_is_stable_with_the_unrated_last(scores: list[float | None]) -> None:
    branches = [branch_of(score=score) for score in scores]
    order = sorted(range(len(scores)), key=lambda i: (scores[i] is None, -(scores[i] or 0), i))
    assert [id(b) for b in ranked(branches)] == [id(branches[i]) for i in order]


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["3", "3.0", "$3", "4", "1,000", "1000", "x"]), st.integers(1, 4)
        ),
        max_size=9,
    )
)
def test_votes_against_a_reference(pairs: list[tuple[str, int]]) -> None:
    same = {"3.0": "3", "$3": "3", "1,000": "1000"}
    candidates = [branch_of(text, score / 4) for text, score in pairs]
    for weighted in (False, True):
        totals: dict[str, int] = {}  # in quarters
        for text, score in pairs:
            if text != "x":
                key = same.get(text, text)
                totals[key] = totals.get(key, 0) + (score if weighted else 4)
        _, answer = vote(candidates, lambda text: None if text == "x" else text, weighted)
        assert (None if answer is None else same.get(answer, answer)) == (
            max(totals, key=totals.get, default=None)
        )


# ---------------------------------------------------------------- refusals


def test_refused_before_any_work(backend: Any) -> None:
    for search in (BestOfN(), BEAM, SelfConsistency(weighted=True)):
        with pytest.raises(InvalidInput, match=f"{type(search).__name__} selects by score"):
            solve(search, engine=backend, problem="q")
    for name in ("concurrency", "max_tokens", "max_calls"):
        with pytest.raises(InvalidInput, match=f"{name}=0"):
            solve(Greedy(), engine=backend, problem=["q"], **{name: 0})
    assert not backend.calls and not backend.live


def test_unusable_problems_between_good_ones(backend: Any) -> None:
    order, questions, search = list[str](), ["a", "", "x" * 600, "b"], Greedy(max_tokens=6)
    results: Any = solve(
        search,
        engine=backend,
        problem=questions,
        on_result=lambda result: order.append(result.problem.question),
    )
    assert [r.problem.question for r in results] == questions and sorted(order) == sorted(questions)
    assert "question is empty" in results[1].error and "longer than 500" in results[2].error
    for result in (results[0], results[3]):
        assert seen(result) == seen(solve(search, engine=FakeBackend(), problem=result.problem))
    for question in questions[1:3]:
        with pytest.raises(InvalidInput):
            solve(search, engine=backend, problem=question)
    assert solve(search, engine=backend, problem=[]) == []
    assert not backend.live
