"""Algorithms and driver over a backend of plain Python: no model, every text a hash of the branch's
stream."""

from __future__ import annotations

import re
from typing import Any

import pytest

from search import BeamSearch, BestOfN, DiversePrompts, Greedy, Result, solve
from search.rating import aggregate
from tests.helpers.backends import FakeBackend
from tests.helpers.scripted import Scores
from tests.helpers.tokenizers import Letters
from ttc.branch import Branch
from ttc.sampling import random_key
from ttc.text.prompt import PromptTemplate

PLAIN = PromptTemplate("{question}")


def digits() -> FakeBackend:
    """Its texts are digits."""
    return FakeBackend("0123456789", longest=2000)


DIGIT_SUM = Scores(lambda branch: [float(sum(map(int, step))) for step in branch.steps])


def run(search: Any, problem: Any = "q", **options: Any) -> Any:
    backend, verifier = digits(), DIGIT_SUM if search.needs_verifier else None
    result = solve(search, engine=backend, verifier=verifier, problem=problem, **options)
    assert not backend.live
    return result


def prompt_of(branch: Any) -> str:
    return bytes(branch.tokens[: branch.prompt_length]).decode()


def continuation(key: int, start: int, limit: int) -> str:
    """What the fake backend writes for a stream."""
    text = ""
    while len(text) < limit and not text.endswith("0"):
        text += str(random_key(key, start + len(text)) % 10)
    return text


def root_of(result: Result, seed: int = 0) -> tuple[int, int]:
    """The key of a result's root and the length of its prompt."""
    length = len(PromptTemplate().tokens(result.problem.question, Letters()))
    return random_key(random_key(seed, result.problem.id or result.problem.question)), length


def test_greedy_is_one_branch() -> None:
    result = run(Greedy(max_tokens=12))
    key, length = root_of(result)
    assert [b.text for b in result.branches] == [continuation(random_key(key, 0), length, 12)]
    assert result.best is result.branches[0]


def test_best_of_n_takes_the_best_rated() -> None:
    result = run(BestOfN(n=6, max_tokens=9))
    key, length = root_of(result)
    texts = [continuation(random_key(key, i), length, 9) for i in range(6)]
    scores = [sum(map(int, t)) for t in texts]
    assert result.best.text == texts[scores.index(max(scores))]
    assert [b.score for b in result.branches] == sorted(map(float, scores), reverse=True)


def test_beam_search_against_a_reference() -> None:
    size, width, tokens, steps = 3, 2, 3, 4
    result = run(BeamSearch(beam_size=size, beam_width=width, step_tokens=tokens, max_steps=steps))
    key, length = root_of(result)
    beams = [(0.0, key, "")]
    for step in range(steps):
        kept = [b for b in beams if b[2].endswith("0")]
        going = [b for b in beams if not b[2].endswith("0")]
        if not going:
            break
        new = []
        for _, parent, text in going:
            for i in range(size * width if step == 0 else width):
                part = continuation(random_key(parent, i), length + len(text), tokens)
                new.append((float(sum(map(int, part))), random_key(parent, i), text + part))
        beams = sorted(kept + new, key=lambda b: -b[0])[:size]
    found = [(branch.score, branch.text) for branch in result.branches]
    assert found == [(score, text) for score, _, text in beams]


def test_diverse_prompts_go_round() -> None:
    search = DiversePrompts(
        n=5, max_tokens=9, phrasings=("Q: {question}", "Find {question}"), hints=(" a", " b", " c")
    )
    result = run(search, "one", template=PLAIN)
    starts = {tuple(b.path): prompt_of(b) for b in result.branches}
    bodies = ["Question: Q: one\nAnswer:", "Question: Find one\nAnswer:"]
    assert starts == {(i, 0): bodies[i % 2] + " " + "abc"[i % 3] for i in range(5)}
    assert result.best.score == max(b.score for b in result.branches)
    assert [node.parent for node in result.tree] == [None, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]


def test_without_phrasings_or_hints_the_prompt_is_the_templates() -> None:
    result = run(DiversePrompts(n=2, hints=()), "one", template=PLAIN)
    assert list(map(prompt_of, result.branches)) == ["Question: one\nAnswer:"] * 2


def test_a_phrasing_too_long_for_the_model_stops_its_problem_alone() -> None:
    search = DiversePrompts(n=2, phrasings=("{question}" * 300,))
    fine, failed = run(search, ["x", "a long one"], template=PLAIN)
    assert fine.error is None
    assert failed.error == "InvalidInput: the prompt is longer than 2000 tokens"


@pytest.mark.parametrize(
    ("how", "score"), [("min", 0.2), ("product", 0.05), ("last", 0.5), ("mean", 0.4)]
)
def test_aggregation(how: Any, score: float) -> None:
    assert aggregate([0.5, 0.2, 0.5], how) == pytest.approx(score)


def test_a_search_that_raises_at_once_leaks_nothing() -> None:
    class Broken(Greedy):
        def run(self, root: Branch, end: tuple[str, ...]) -> Any:
            raise ValueError("broken")
            yield

    backend = digits()
    with pytest.raises(ValueError, match="broken"):
        solve(Broken(), engine=backend, problem=["a", "b"])
    assert not backend.live


def test_a_problem_that_is_no_text_fails_alone() -> None:
    given: Any = [None, "fine", {"question": "q"}, "half \ud83d"]
    nothing, fine, keys, torn = run(Greedy(max_tokens=3), given)
    assert fine.best is not None and fine.error is None
    for failed, reason in ((nothing, "NoneType"), (keys, "dict"), (torn, "surrogate")):
        assert failed.best is None and re.match(f"InvalidInput.*{reason}", failed.error)
