"""Algorithms and driver over a backend of plain Python: no model, every text a hash of the branch's
stream."""

from __future__ import annotations

from typing import Any

import pytest

from search import BeamSearch, BestOfN, DiversePrompts, Greedy, Result, SelfConsistency, solve
from search.rating import aggregate
from tests.helpers.backends import FakeBackend
from tests.helpers.tokenizers import Letters
from ttc import InvalidInput
from ttc.branch import Branch
from ttc.sampling import random_key
from ttc.text.prompt import PromptTemplate

PLAIN = PromptTemplate("{question}")


def digits() -> FakeBackend:
    """Its texts are digits."""
    return FakeBackend("0123456789", longest=2000)


class DigitSum:
    """Each step scores the sum of its digits."""

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[float(sum(map(int, step))) for step in b.steps] for b in branches]


def run(search: Any, problem: Any, **options: Any) -> Any:
    backend = options.pop("engine", None) or digits()
    result = solve(
        search,
        engine=backend,
        verifier=options.pop("verifier", DigitSum()),
        problem=problem,
        **options,
    )
    assert not backend.live
    return result


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
    result = run(Greedy(max_tokens=12), "q", verifier=None)
    key, length = root_of(result)
    assert [b.text for b in result.branches] == [continuation(random_key(key, 0), length, 12)]
    assert result.best is result.branches[0]


def test_best_of_n_takes_the_best_rated() -> None:
    result = run(BestOfN(n=6, max_tokens=9), "q")
    key, length = root_of(result)
    texts = [continuation(random_key(key, i), length, 9) for i in range(6)]
    scores = [sum(map(int, t)) for t in texts]
    assert result.best.text == texts[scores.index(max(scores))]
    assert [b.score for b in result.branches] == sorted(map(float, scores), reverse=True)


def test_beam_search_against_a_reference() -> None:
    size, width, tokens, steps = 3, 2, 3, 4
    result = run(
        BeamSearch(beam_size=size, beam_width=width, step_tokens=tokens, max_steps=steps), "q"
    )
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
    assert [(b.score, b.text) for b in result.branches] == [
        (score, text) for score, _, text in beams
    ]


def test_diverse_prompts_go_round() -> None:
    backend = digits()
    search = DiversePrompts(
        n=5, max_tokens=9, phrasings=("Q: {question}", "Find {question}"), hints=(" a", " b", " c")
    )
    result = solve(search, engine=backend, verifier=DigitSum(), problem="one", template=PLAIN)
    starts = {tuple(b.path): backend.decode(b.tokens[: b.prompt_length]) for b in result.branches}
    bodies = ["Question: Q: one\nAnswer:", "Question: Find one\nAnswer:"]
    assert starts == {(i, 0): bodies[i % 2] + " " + "abc"[i % 3] for i in range(5)}
    assert result.best is not None and result.best.score == max(
        b.score or 0 for b in result.branches
    )
    assert [node.parent for node in result.tree] == [None, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]
    assert not backend.live


def test_without_phrasings_or_hints_the_prompt_is_the_templates() -> None:
    result = solve(
        DiversePrompts(n=2, hints=()),
        engine=digits(),
        verifier=DigitSum(),
        problem="one",
        template=PLAIN,
    )
    assert [bytes(b.tokens[: b.prompt_length]).decode() for b in result.branches] == [
        "Question: one\nAnswer:"
    ] * 2


def test_a_phrasing_too_long_for_the_model_stops_its_problem_alone() -> None:
    backend = digits()
    search = DiversePrompts(n=2, phrasings=("{question}" * 300,))
    results = solve(
        search, engine=backend, verifier=DigitSum(), problem=["x", "a long one"], template=PLAIN
    )
    assert [r.error for r in results] == [
        None,
        "InvalidInput: the prompt is longer than 2000 tokens",
    ]
    with pytest.raises(InvalidInput, match=r"must hold \{question\}"):
        DiversePrompts(phrasings=("Solve it.",))
    assert not backend.live


def test_self_consistency_answers_with_the_majority() -> None:
    result = run(SelfConsistency(n=40, max_tokens=1), "q", verifier=None)
    texts = [b.text for b in sorted(result.branches, key=lambda b: b.path)]
    assert result.answer == max(texts, key=lambda t: (texts.count(t), -texts.index(t)))


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
    nothing, fine, keys, torn = run(Greedy(max_tokens=3), given, verifier=None)
    assert fine.best is not None and fine.error is None
    for failed, reason in ((nothing, "NoneType"), (keys, "dict"), (torn, "surrogate")):
        assert (
            failed.best is None
            and failed.error.startswith("InvalidInput")
            and reason in failed.error
        )
