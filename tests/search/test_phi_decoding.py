"""φ-decoding: how candidates are drawn, and its parts against short references."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt

import numpy as np
import pytest

from search import PhiDecoding, solve
from search.phi_decoding import Chain, clusters, tf_idf
from tests.helpers.backends import FakeBackend, Unsure
from ttc.results import Node


@pytest.mark.parametrize("seed", range(6))
def test_chains_of_steps_each_looked_at_to_the_end(seed: int) -> None:
    backend = Unsure("123456789,,,0")
    search = PhiDecoding(
        beam_size=2, beam_width=3, step_tokens=3, max_steps=4, finish_tokens=5, delimiter=","
    )
    result = solve(search, problem="q", engine=backend, seed=seed)
    assert result.error is None and not backend.live
    children: dict[int | None, list[Node]] = {}
    for node in result.tree:
        children.setdefault(node.parent, []).append(node)
    (root,) = children[None]
    assert len(children[root.id]) == 6  # candidates of the first step
    looked = [node for node in children[root.id] if node.id in children]
    assert 2 <= len(looked) <= 6
    chains = [node for node in looked if len(children[node.id]) > 1]
    for node in looked:
        assert len(children[node.id][0].token_ids) <= 5  # the foresight
        assert all(len(child.token_ids) <= 3 for child in children[node.id][1:])
    assert len(chains) <= 2 and all(len(children[node.id]) == 4 for node in chains)
    path = list(result.best.path)
    assert any(node.path == path for node in result.tree)
    assert len(path) <= search.max_steps + 1


class Fixed:
    """Takes the first of what it draws from, and keeps the chances."""

    def __init__(self) -> None:
        self.chances: list[list[float]] = []

    def permutation(self, count: int) -> np.ndarray:
        return np.arange(count)

    def choice(
        self, of: int | np.ndarray, size: int | None = None, replace: bool = True, *, p: np.ndarray
    ) -> int | np.ndarray:
        self.chances.append([float(x) for x in p])
        places = np.arange(of) if isinstance(of, int) else of
        return int(places[0]) if size is None else places[:size]


def candidate(text: str, logprob: float, before: float = 0.0) -> Chain:
    backend = FakeBackend("1")
    branch = backend.root([1])
    for token in backend.encode(text):
        branch.append(token, logprob, 0.5)
    branch.end_step("length")
    return Chain(branch, before)


def softly(values: Sequence[float]) -> list[float]:
    return [exp(x) / sum(map(exp, values)) for x in values]


def test_chains_are_drawn_by_the_mean_of_two_softmaxes() -> None:
    texts, logprobs = ["so it is 4", "so it is 4", "no 9", "no 8"], [-0.5, -0.45, -0.4, -0.9]
    of = [candidate(text, value, -0.6) for text, value in zip(texts, logprobs, strict=True)]
    search, rng = PhiDecoding(beam_size=2, clusters=2), Fixed()
    assert search.drawn(of, rng) == of[:2]
    likely = softly([(value + 0.6) / 0.1 for value in logprobs[:3]])  # the last has none
    shares = softly([2 / 3, 2 / 3, 1 / 3])
    wanted = [(a + b) / 2 for a, b in zip(likely, shares, strict=True)]
    assert rng.chances == [pytest.approx(wanted)]
    # where too few have an advantage, all are drawn from
    search = PhiDecoding(beam_size=4)
    assert search.drawn(of, rng) == of
    assert rng.chances[1] == pytest.approx(softly([(value + 0.6) / 0.1 for value in logprobs]))


def test_unlikely_steps_are_left_out_but_enough_are_kept() -> None:
    of = [candidate("a", value) for value in (-1.0, -1.0, -1.0, -4.0)]
    search, rng = PhiDecoding(beam_size=2), Fixed()
    assert search.likely(of, rng) == of[:3]
    assert not rng.chances
    search = PhiDecoding(beam_size=4)
    assert search.likely(of, rng) == of
    assert search.likely([], rng) == []


def test_the_answer_is_one_of_the_larger_cluster() -> None:
    of = [candidate("no 9", -0.1), candidate("so it is 4", -2.0), candidate("so it is 4", -1.0)]
    search, rng = PhiDecoding(), Fixed()
    assert search.end(of, rng) is of[1]
    assert rng.chances == [pytest.approx(softly([-20.0, -10.0]))]
    assert search.agreed(of[1:], rng)
    assert not search.agreed(of, rng)


@pytest.mark.parametrize("tokens", [1, 4, 12, 13, 14, 25, 40])
def test_a_budget_that_ends_within_a_step_leaves_an_answer(tokens: int) -> None:
    backend = Unsure("123456789,,,0")
    search = PhiDecoding(beam_size=2, beam_width=2, step_tokens=3, max_steps=4, finish_tokens=5)
    result = solve(search, problem="q", engine=backend, max_generated_tokens=tokens)
    assert result.best is not None and not backend.live
    assert result.usage.generated_tokens <= tokens


def test_words_of_few_texts_weigh_more() -> None:
    rows = tf_idf(["the cat", "the dog", ""])
    cat, the = log(4 / 2) + 1, log(4 / 3) + 1
    length = sqrt(cat**2 + the**2)
    assert rows[0].tolist() == pytest.approx([cat / length, 0, the / length])
    assert rows[1].tolist() == pytest.approx([0, cat / length, the / length])
    assert rows[2].tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_texts_that_are_alike_are_in_one_cluster(seed: int) -> None:
    texts = ["so it is 4", "then he eats two apples", "so it is 4", "then he eats five apples"]
    labels = clusters(texts, 2, np.random.default_rng(seed))
    assert labels[0] == labels[2]
    assert len(set(clusters(texts, 9, np.random.default_rng(seed)))) == 3  # no more than texts
    assert clusters(["", ""], 2, np.random.default_rng(seed)) == [0, 0]
