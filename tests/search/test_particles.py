"""Particle filtering and particle Gibbs: weights and draws on their own, whole searches on trees
made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from search import Case, Expand, ParticleFilter, ParticleGibbs, Problem, Rate, Release, solve
from search.particle_filter import weights
from tests.helpers.backends import branch_of
from tests.helpers.scripted import Scores as ByText
from tests.helpers.scripted import Scripted
from tests.helpers.trees import HandMadeTree, Scores, searched, texts
from ttc import Branch

FILTER = ParticleFilter(n=4, max_steps=3)


def shares(
    search: ParticleFilter, scores: list[float], counts: list[int] | None = None
) -> list[float]:
    branches = [branch_of(score=score) for score in scores]
    particles = dict(zip(branches, counts or [1] * len(scores), strict=True))
    return list(map(float, weights(particles, {b: search.log_weight(b) for b in branches})))


class Rigged:
    """Random numbers that a test has chosen; `asked` counts the draws."""

    def __init__(self, *numbers: float):
        self.numbers, self.asked = list(numbers), 0

    def random(self, n: int | None = None) -> Any:
        self.asked += 1
        drawn = [self.numbers.pop(0) for _ in range(n or 1)]
        return drawn[0] if n is None else np.array(drawn)


def test_the_published_weights() -> None:
    assert shares(FILTER, [0.9, 0.5]) == pytest.approx([0.9, 0.1])
    softer = replace(FILTER, weight_temperature=2.0)
    assert shares(softer, [0.9, 0.5]) == pytest.approx([0.75, 0.25])
    assert shares(FILTER, [0.9, 0.5], [1, 3]) == pytest.approx([9 / 12, 3 / 12])


def test_rewards_are_kept_away_from_0_and_1() -> None:
    assert FILTER.log_weight(branch_of(score=1.0)) == pytest.approx(np.log((1 - 1e-7) / 1e-7))
    assert FILTER.log_weight(branch_of(score=0.0)) == pytest.approx(-np.log((1 - 1e-7) / 1e-7))
    assert shares(FILTER, [0.0, 0.0]) == [0.5, 0.5]


@pytest.mark.parametrize("score", [-0.5, 1.5])
def test_scores_that_are_no_probabilities_are_refused(score: float) -> None:
    tree = HandMadeTree({})
    result = solve(FILTER, problem="q", engine=tree, verifier=Scores({}, other=score))
    assert str(result.error).startswith(
        f"UnusableScores: ParticleFilter takes scores as probabilities, and {score}"
    )
    assert not tree.live


def drawn(search: ParticleFilter, scores: list[float], count: int, *numbers: float) -> list[int]:
    branches = [branch_of(score=score) for score in scores]
    log_weights = {branch: search.log_weight(branch) for branch in branches}
    counts = search.draw(dict.fromkeys(branches, 1), log_weights, count, Rigged(*numbers))
    return [counts.get(b, 0) for b in branches]


def test_multinomial_draws_take_a_random_number_for_each_particle() -> None:
    assert drawn(FILTER, [0.9, 0.5], 4, 0.05, 0.89, 0.91, 0.999) == [2, 2]


def test_systematic_draws_take_one_random_number_for_all() -> None:
    systematic = replace(FILTER, resampling="systematic")
    assert drawn(systematic, [0.9, 0.5], 4, 0.5) == [4, 0]  # at .125, .375, .625 and .875
    assert drawn(systematic, [0.9, 0.5], 4, 0.9) == [3, 1]  # at .225, .475, .725 and .975
    # shares .89, .099 and .011
    assert drawn(systematic, [0.9, 0.5, 0.1], 5, 0.9999999) == [4, 0, 1]
    # the last point is inside the last share
    assert sum(drawn(systematic, [0.7] * 7, 7, 1 - 2**-53)) == 7


# ---------------------------------------------------------------- the filter, answered by hand


class Answers:
    """Answers the requests of a search with steps from a hand-made tree, and keeps them."""

    def __init__(
        self, search: ParticleFilter, tree: HandMadeTree, scores: dict[str, float], *numbers: float
    ):
        self.rng, self.requests = Rigged(*numbers), list[Any]()
        root = tree.root([ord("q")])
        steps, answer = search.run(root, Case(rng=self.rng)), None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as stop:
                self.candidates = [b.text for b in stop.value]
                return
            answer = None
            if isinstance(request, Expand):
                counts = Counter(b.text for b in request.parents())
                self.requests.append(dict(counts))
                answer = [child for parent in request.parents() for child in tree.fork(parent, 1)]
                tree.generate(answer, 99, sampling=request.sampling)
            elif isinstance(request, Rate):
                for b in request.branches:
                    b.score = scores.get(b.text, 0.5)
            elif isinstance(request, Release):
                tree.release(request.branches)


def test_every_step_draws_all_particles_anew_and_the_last_one_draws_none() -> None:
    tree = HandMadeTree({"": ["a", "b"]}, other="x")
    search = ParticleFilter(n=2, max_steps=3)
    run = Answers(search, tree, {"a": 0.9, "b": 0.5}, 0.2, 0.95, 0.1, 0.2)
    assert run.requests == [{"": 2}, {"a": 1, "b": 1}, {"ax": 2}]
    assert run.rng.asked == 2 and run.candidates == ["axx", "axx"]


def test_finished_particles_are_drawn_too_with_the_score_they_have() -> None:
    tree = HandMadeTree({"": ["a.", "b"]})
    search = ParticleFilter(n=2, max_steps=4)
    run = Answers(search, tree, {"a.": 0.9, "b": 0.5}, 0.2, 0.95, 0.3, 0.95, 0.3, 0.4)
    # a. (.9) against b, then against bx, then against bxx, all .5: drawn as one each twice, then a.
    # alone
    assert run.requests == [{"": 2}, {"b": 1}, {"bx": 1}]
    assert run.candidates == ["a."]


def test_a_finished_particle_on_which_several_stand_is_one_candidate_and_weighs_as_all() -> None:
    tree = HandMadeTree({"": ["a.", "b"]})
    search = ParticleFilter(n=4, max_steps=3)
    run = Answers(search, tree, {"a.": 0.5}, 0.1, 0.2, 0.6, 0.9, 0.1, 0.2, 0.74, 0.76)
    # a., b, a., b: two particles on the first, one on the third and the last; as all rate .5, half
    # of the weight is the first one's, and .76 alone falls on bx
    assert run.requests == [{"": 4}, {"b": 1}, {"bx": 1}]
    assert run.candidates.count("a.") == 2


def test_without_draws_the_weights_of_all_steps_count() -> None:
    tree = HandMadeTree({"": ["a", "b"]})
    scores = {"a": 0.75, "b": 0.5, "ax": 0.75, "bx": 0.5}
    # sizes: (.75, .25) is worth 1.6 particles; after two steps (.9, .1) is worth 1.22, at most .65
    # of two
    search = ParticleFilter(n=2, max_steps=3, ess_threshold=0.65)
    run = Answers(search, tree, scores, 0.74, 0.89)
    assert run.requests == [{"": 2}, {"a": 1, "b": 1}, {"ax": 2}] and run.rng.asked == 1


def test_equal_weights_are_drawn_at_a_threshold_of_1() -> None:
    run = Answers(ParticleFilter(n=3, max_steps=2), HandMadeTree({"": ["a"]}), {}, 0.1, 0.5, 0.9)
    assert run.rng.asked == 1


def test_a_filter_writes_max_steps_steps_and_no_more() -> None:
    backend = HandMadeTree({})
    result = searched(ParticleFilter(n=3, max_steps=5), backend, {})
    assert backend.calls == [3] * 5 and set(texts(result)) == {"xxxxx"}


def test_the_best_rated_particle_answers() -> None:
    tree = HandMadeTree({"": ["a.", "b.", "c."]})
    result = searched(ParticleFilter(n=3, max_steps=1), tree, {"b.": 0.8})
    assert result.answer == "b." and len(result.branches) == 3


# ---------------------------------------------------------------- Gibbs


def test_one_sweep_is_plain_filtering() -> None:
    tree = {"": ["a", "b", "c."]}
    searches = ParticleFilter(n=4, max_steps=3), ParticleGibbs(n=4, max_steps=3, sweeps=1)
    for seed in range(3):
        plain, gibbs = (
            searched(search, HandMadeTree(tree), {"a": 0.7}, seed=seed) for search in searches
        )
        assert [b.path for b in plain.branches] == [b.path for b in gibbs.branches]


def test_the_reference_competes_with_the_score_it_had_at_each_step() -> None:
    tree = HandMadeTree({"": ["a", "b"], "a": ["c."], "b": ["d."]})
    # the reference is a, ac.: a rates .5 at its first step and .99 at its end
    scores = {"a": 0.5, "b": 0.9, "ac.": 0.99, "bd.": 0.5}
    search = ParticleGibbs(n=2, max_steps=2, sweeps=2)
    # sweep 1: draw a, b; then the reference: ac. has .99 of the weight. Sweep 2: one free particle,
    # on a third fork of the root, "a" again (.5), against the reference's a (.5): at .6 the free
    # particle goes on from the reference.
    run = Answers(search, tree, scores, 0.05, 0.95, 0.5, 0.6)
    assert run.requests[0] == {"": 2} and run.requests[2] == {"": 1} and run.requests[3] == {"a": 1}
    assert run.rng.asked == 3


def test_free_particles_go_on_from_the_references_beginning_and_never_replace_it() -> None:
    tree = HandMadeTree({"": ["a", "b", "b", "b"], "a": ["c.", "e."], "b": ["d."]})
    scores = {"a": 0.9, "b": 0.5, "ac.": 0.9, "bd.": 0.1, "ae.": 0.3}
    search = ParticleGibbs(n=2, max_steps=2, sweeps=2)
    run = Answers(search, tree, scores, 0.5, 0.95, 0.5, 0.2)
    # sweep 2 makes a third child of the root, b (.5) beside the reference's a (.9): particles [b,
    # a], shares .1 and .9
    assert run.requests[2] == {"": 1} and run.requests[3] == {"a": 1}
    # the free particle wrote another end; the reference stands once
    assert run.candidates == ["ac.", "bd.", "ae."]


@pytest.mark.parametrize("at", [0.49, 0.51])
def test_the_references_weight_is_not_that_of_its_end(at: float) -> None:
    tree = HandMadeTree({"": ["a", "b", "b"], "a": ["c.", "e."], "b": ["d."]})
    scores = {"a": 0.5, "b": 0.5, "ac.": 0.999, "bd.": 0.1}
    run = Answers(ParticleGibbs(n=2, max_steps=2, sweeps=2), tree, scores, 0.1, 0.9, 0.5, at)
    # free b and the reference's a have half each; with the reference's end, .999, the free one
    # would always be a
    assert run.requests[3] == ({"b": 1} if at < 0.5 else {"a": 1})


def test_a_reference_that_is_longer_than_the_free_particles_goes_on_competing() -> None:
    tree = HandMadeTree({"": ["a", "a", "z."], "a": ["b"], "ab": ["c."]})
    scores = {"abc.": 0.9, "z.": 0.5}
    search = ParticleGibbs(n=2, max_steps=5, sweeps=2)
    run = Answers(search, tree, scores, 0.1, 0.9, 0.1, 0.9, 0.1, 0.1, 0.1)
    # the free particle is finished after one step; it is still drawn against the reference's steps
    # 1 and 2
    assert run.requests[3:] == [{"": 1}] and run.rng.asked == 5
    assert run.candidates == ["abc.", "abc.", "z."]


def test_the_answer_is_over_all_sweeps_and_every_sweep_costs_its_free_particles() -> None:
    for sweeps in (1, 2, 3):
        backend = HandMadeTree({"": ["a.", "b.", "c.", "d.", "e.", "f.", "g."]})
        result = searched(ParticleGibbs(n=3, sweeps=sweeps), backend, {"b.": 0.9})
        assert backend.calls == [3] + [2] * (sweeps - 1)
        assert result.answer == "b." and len(result.branches) == 3 + 2 * (sweeps - 1)


LETTERS = {"a": 0.9, "b": 0.5, "ac.": 0.5, "ad.": 0.6, "bc.": 0.9, "bd.": 0.2}
"""A tree of two steps, whose letters are equally likely, and how its texts are rated."""


def share_of_a(steps: Sequence[int]) -> float:
    """The share of texts that begin with "a", each weighed by r / (1 - r) of these of its steps."""
    odds = {text: r / (1 - r) for text, r in LETTERS.items()}
    weights = {
        text: prod([odds[text[0]], odds[text]][step] for step in steps)
        for text in LETTERS
        if len(text) == 3
    }
    return sum(w for text, w in weights.items() if text[0] == "a") / sum(weights.values())


@pytest.mark.slow
@pytest.mark.parametrize("ess_threshold", [0.0, 0.5, 1.0])
def test_the_reference_is_drawn_from_the_target_wherever_particles_were_not_drawn_anew(
    ess_threshold: float,
) -> None:
    references: list[str] = []

    class Watched(ParticleGibbs):
        def draw(
            self, particles: Any, log_weights: Any, count: int, rng: np.random.Generator
        ) -> dict[Branch, int]:
            chosen = super().draw(particles, log_weights, count, rng)
            if count == 1:  # all others are 3 or 4
                references.extend(branch.text for branch in chosen)
            return chosen

    def step(branch: Branch) -> str:
        return ("cd" if branch.text else "ab")[branch.key % 2] + ("0" if branch.text else ",")

    search = Watched(n=4, sweeps=3, max_steps=3, ess_threshold=ess_threshold, delimiter=",")
    backend = Scripted(step)
    rates = ByText(lambda branch: LETTERS[branch.text.replace(",", "").replace("0", ".")])
    problems = [Problem("q", id=str(number)) for number in range(100)]
    solve(search, problem=problems, engine=backend, verifier=rates)
    share = sum(text[0] == "a" for text in references) / len(references)
    assert len(references) == 200 and not backend.live
    assert share == pytest.approx(share_of_a([0, 1]), abs=0.08)
    assert abs(share_of_a([1]) - share_of_a([0, 1])) > 0.2  # of the last step alone
