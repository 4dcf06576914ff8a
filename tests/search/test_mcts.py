"""Monte Carlo tree search on trees with known scores, against the formulas and a plain
reference."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import MCTS, Result, solve
from search.mcts import puct, uct
from tests.helpers.scripted import RandomValues, Scores, Scripted
from tests.helpers.tiers import examples
from ttc import Branch

STEP, ROLLOUT = 2, 5


class Tree(Scripted):
    """A step is a letter for the child's place and an x, or a 0 where it ends; a rollout is `tail`.

    So a state's text says where it lies: "ax" the first child of the root, "axb0" its second child,
    which has finished.
    """

    def __init__(self, ends: Any = (), tail: str = "yyyy0", **options: Any):
        super().__init__(self.write, **options)
        self.ends, self.tail, self.forks = ends, tail, Counter[str]()

    def write(self, branch: Branch) -> str:
        if self.limit > STEP:
            return self.tail
        assert branch.parent is not None
        before = branch.parent.text
        text = before + chr(ord("a") + self.forks[before])
        self.forks[before] += 1
        return text[-1] + ("0" if text in self.ends else "x")


def states(result: Result) -> list[str]:
    """The text of every state that was continued by steps, in order."""
    texts, continued = [""], list[str]()
    for node in result.tree[1:]:
        assert node.parent is not None
        texts.append(texts[node.parent] + node.text)
        if len(node.text) == STEP and texts[node.parent] not in continued:
            continued.append(texts[node.parent])
    return continued


def run(search: MCTS, scores: Any, backend: Tree, **options: Any) -> Any:
    """Solve one problem. scores: of the letters of each state, a rollout's y among them."""

    def rate(branch: Branch) -> float:
        return float(scores.get(branch.text.replace("x", "").replace("0", ""), 0.0))

    result = solve(search, problem="q", engine=backend, verifier=Scores(rate), **options)
    assert not backend.live and result.error is None
    return result


def small(**settings: Any) -> MCTS:
    sizes = {"beam_width": 2, "step_tokens": STEP, "rollout": False, "rollout_tokens": ROLLOUT}
    return MCTS(**sizes | settings)


# ---------------------------------------------------------------- formulas


def test_uct_is_the_mean_and_a_bonus_for_what_was_seldom_tried() -> None:
    assert uct(0.5, 2, 10) == pytest.approx(0.5 + 2**0.5 * (2.302585093 / 2) ** 0.5)
    assert uct(0.5, 1, 1) == 0.5  # a parent counts once from its creation on: no logarithm of 0
    assert uct(-9.0, 0, 5) == math.inf


def test_puct_has_alphazeros_constants() -> None:
    factor = math.log(19663 / 19652) + 1.25
    assert puct(0.5, 0.3, 2, 10) == pytest.approx(0.5 + 0.3 * 3.16227766 / 3 * factor)
    assert puct(0.0, 0.8, 0, 1) > puct(0.0, 0.2, 0, 1) > 0  # priors count at the first visit


# ---------------------------------------------------------------- the search


def reference(search: MCTS, scores: Any, ends: Any, priors: Any) -> list[str]:
    """The states that are continued, with letters for names."""
    visits: Counter[str] = Counter()
    totals: dict[str, float] = defaultdict(float)
    children: dict[str, list[str]] = {}

    def best(state: str) -> str:
        parent_visits, weight = visits[state] + 1, sum(priors[c] for c in children[state])

        def number(child: str) -> float:
            n = visits[child]
            if search.rule == "uct":
                if not n:
                    return math.inf
                return totals[child] / n + 2**0.5 * (math.log(parent_visits) / n) ** 0.5
            value = totals[child] / n if n else scores[child]
            share = priors[child] / weight
            factor = math.log((parent_visits + 19653) / 19652) + 1.25
            return value + share * parent_visits**0.5 / (1 + n) * factor

        return max(children[state], key=lambda child: round(number(child), 9))

    for _ in range(search.iterations):
        state = ""
        while state in children:
            state = best(state)
        if state not in ends and len(state) < search.max_depth:
            children[state] = [state + chr(ord("a") + i) for i in range(search.beam_width)]
            state = best(state)
        value = scores[state + "yyyy"] if search.rollout and state not in ends else scores[state]
        for depth in range(len(state) + 1):
            visits[state[:depth]] += 1
            totals[state[:depth]] += value
    return list(children)


@settings(max_examples=examples(80))
@given(
    seed=st.integers(0, 10**6),
    rule=st.sampled_from(["uct", "puct"]),
    rollout=st.booleans(),
    width=st.integers(1, 3),
    depth=st.integers(1, 4),
    iterations=st.integers(1, 15),
)
def test_against_a_plain_reference(
    seed: int, rule: Any, rollout: bool, width: int, depth: int, iterations: int
) -> None:
    sizes = {"beam_width": width, "max_depth": depth, "iterations": iterations}
    search = small(rule=rule, rollout=rollout, **sizes)
    values, priors = RandomValues(seed), RandomValues(seed + 1)
    backend = Tree(values, logprob=lambda text: math.log(priors[text[::2]]))
    result = run(search, values, backend)
    assert [state[::2] for state in states(result)] == reference(search, values, values, priors)
    assert result.best.score == max(b.score or 0.0 for b in result.branches)


def test_one_iteration_is_one_expansion_one_rating_and_one_rollout() -> None:
    backend = Tree()
    result = run(small(iterations=1, rollout=True), {"a": 0.4, "ayyyy": 0.9}, backend)
    assert backend.calls == [2, 1]
    assert (result.best.text, result.best.score) == ("axyyyy0", 0.9)


def test_only_what_can_still_be_continued_keeps_its_keys_and_values() -> None:
    backend = Tree(ends=("axb",))
    run(small(iterations=3), {"a": 0.9, "b": 0.1, "aa": 0.9, "ab": 0.2}, backend)
    assert [len(held) for held in backend.held] == [3, 2 + 2, 1 + 2 + 2]


def test_nothing_fails_where_every_answer_is_cut_off() -> None:
    scores = {"ayyyyy": 0.3, "byyyyy": 0.6}
    result = run(small(iterations=3, rollout=True), scores, Tree(tail="yyyyy"))
    assert result.best.text == "axyyyyy"
    assert not result.best.finished and len(result.branches) == 3
    for answer in ("most_visited", "weighted_majority"):
        assert run(small(iterations=3, answer=answer), {}, Tree()).best is not None


def test_a_finished_answer_comes_before_a_better_one_that_was_cut_off() -> None:
    backend = Tree(ends=("a",), tail="yyyyy")
    result = run(small(iterations=3, rollout=True), {"a": 0.2, "byyyyy": 0.9}, backend)
    assert [b.text for b in result.branches] == ["a0"]


def test_equal_children_are_one_and_share_no_prior() -> None:
    class Twins(Tree):
        def write(self, branch: Branch) -> str:
            return ("ax", "ax", "bx", "bx")[branch.path[-1]]

    backend = Twins(logprob=lambda text: math.log(0.5))
    result = run(small(beam_width=4, iterations=1, rule="puct"), {"a": 0.5, "b": 0.5}, backend)
    assert [node.status for node in result.tree[1:]] == ["kept", "pruned", "kept", "pruned"]
    assert len(result.branches) == 2


# ---------------------------------------------------------------- answers


def test_three_ways_to_answer() -> None:
    """Values drive the visits to b, whose answers are many; the best single answer lies under a."""
    scores = {"a": 0.1, "b": 0.9, "ba": 0.6, "bb": 0.5, "aa": 0.95, "ab": 0.0}
    ends = ("axa", "axb", "bxa", "bxb")

    def answer(how: Any) -> str:
        search = small(iterations=12, answer=how, max_depth=2, exploration=0.5)
        result = run(search, scores, Tree(ends), extract=lambda text: text[0].upper())
        return f"{result.best.text} {result.answer}"

    assert answer("best_value") == "axa0 A"
    assert answer("weighted_majority") == "bxa0 B"  # 0.6 + 0.5 against 0.95
    assert answer("most_visited") == "bxa0 B"


def test_a_budget_ends_it_with_the_best_so_far() -> None:
    scores = {"ayyyy": 0.3, "bayyyy": 0.9}
    search = small(iterations=9, rollout=True)
    free = run(search, scores, Tree())
    for most in range(1, free.usage.generated_tokens):
        result = run(search, scores, Tree(), max_tokens=most)
        assert result.best is not None and result.usage.generated_tokens <= most
        # the last rollout was cut short
        assert result.stopped == "max_tokens" or result.usage.generated_tokens == most
        if most >= 4 + 5 + 4 + 5:
            assert result.best.score == 0.9
