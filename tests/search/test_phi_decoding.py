"""φ-decoding: how candidates are drawn, and its parts against short references."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest

from search import PhiDecoding, solve
from search.phi_decoding import clusters, softmax, tf_idf
from tests.helpers.backends import FakeBackend
from ttc import Branch
from ttc.results import Node
from ttc.sampling import random_key


class Unsure(FakeBackend):
    """Tokens whose log-probabilities differ from branch to branch and from place to place."""

    def next_letter(self, branch: Branch, start: int) -> tuple[str, float]:
        letter, _ = super().next_letter(branch, start)
        return letter, -(random_key(branch.key, start) % 100) / 60


@pytest.mark.parametrize("seed", range(6))
def test_a_chain_of_steps_each_looked_at_one_step_ahead(seed: int) -> None:
    backend = Unsure("123456789,,,0")
    search = PhiDecoding(step_tokens=3, max_steps=4, beam_width=3, finish_tokens=5, delimiter=",")
    result = solve(search, problem="q", engine=backend, seed=seed)
    assert result.error is None and not backend.live
    children: dict[int | None, list[Node]] = {}
    for node in result.tree:
        children.setdefault(node.parent, []).append(node)
    assert result.best is not None
    (node,), before = children[None], 0
    for _ in range(search.max_steps):
        candidates = children[node.id][before:]  # after the foresight
        assert len(candidates) == 3
        for candidate in candidates:
            looked = children.get(candidate.id, [])[:1]
            assert all(len(foresight.token_ids) <= 3 for foresight in looked)
        path = list(result.best.path)
        (node,) = [
            candidate for candidate in candidates if candidate.path == path[: len(candidate.path)]
        ]
        if node.path == path:
            break
        before = 1
    else:
        (node,) = children[node.id][1:]  # the rest of the answer
        assert len(node.token_ids) <= 5
    assert node.path == list(result.best.path)


def test_a_candidate_is_drawn_by_the_mean_of_two_softmaxes() -> None:
    class Fixed:
        def __init__(self) -> None:
            self.chances: list[list[float]] = []

        def permutation(self, count: int) -> np.ndarray:
            return np.arange(count)

        def choice(self, count: int, p: np.ndarray) -> int:
            self.chances.append([float(x) for x in p])
            return 1

    texts, logprobs = ["so it is 4", "so it is 4", "no 9"], [-0.5, -1.0, -2.0]
    branches = []
    for text, logprob in zip(texts, logprobs, strict=True):
        backend = FakeBackend("1")
        (branch,) = backend.roots([[1]])
        for token in backend.encode(text):
            branch.append(token, logprob, 0.5)
        branch.end_step("length")
        branches.append(branch)
    rng = Fixed()
    search = PhiDecoding(clusters=2)
    assert search.drawn(branches, [], rng) is branches[1]  # type: ignore[arg-type]
    likely = [exp(x) / sum(map(exp, logprobs)) for x in logprobs]
    shares = [exp(x) / sum(map(exp, [2, 2, 1])) for x in [2, 2, 1]]
    wanted = [(a + b) / 2 for a, b in zip(likely, shares, strict=True)]
    assert rng.chances == [pytest.approx(wanted)]


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


def test_large_values_have_a_softmax_too() -> None:
    assert softmax([1000.0, 1000.0]).tolist() == [0.5, 0.5]
