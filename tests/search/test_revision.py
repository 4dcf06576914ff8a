"""Chains of revisions: what each attempt sees, which answer wins, and what ends a chain."""

from __future__ import annotations

from typing import Any

import pytest

from search import Result, Revision, solve
from tests.helpers.engines import make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.scripted import Scores, Scripted
from ttc import Branch


class Answers(Scripted):
    """The chains write the given answers, one after the other."""

    def __init__(self, *chains: str, **options: Any):
        super().__init__(lambda branch: next(self.left[self.chain(branch)]) + "0", **options)
        self.left = [iter(chain) for chain in chains]

    def chain(self, branch: Branch) -> int:
        return branch.path[0] % len(self.left)


def run(
    search: Revision, backend: Any, scores: dict[str, float] | None = None, **options: Any
) -> Any:
    def rate(branch: Branch) -> float:
        return 0.5 if scores is None else scores[branch.text.removesuffix("0")]

    options = {"extract": lambda text: text.removesuffix("0") or None} | options
    result = solve(search, problem="q", engine=backend, verifier=Scores(rate), **options)
    assert not getattr(backend, "live", None)
    return result


def attempts(result: Result) -> list[str]:
    return [node.text.removesuffix("0") for node in result.tree if node.score is not None]


def test_every_attempt_is_asked_for_and_read_alone() -> None:
    backend = Answers("123", "456")
    result = run(Revision(n=2, attempts=3, feedback="Again."), backend)
    assert attempts(result) == ["1", "4", "2", "5", "3", "6"]
    assert backend.calls == [2, 2, 2]  # all chains together
    given = [node.text for node in result.tree if node.score is None and node.parent is not None]
    assert given == ["\n\nQuestion: Again.\nAnswer:"] * 4
    assert result.usage.prompt_tokens == 4 * len(given[0])
    assert result.usage.generated_tokens == 6 * 2


def prompts_of(search: Revision, backend: Scripted) -> list[str]:
    """What stood before each attempt, after the question."""
    seen, plain = list[str](), backend.script

    def script(branch: Branch) -> str:
        seen.append(backend.decode(branch.tokens[: branch.prompt_length]).partition("\nAnswer:")[2])
        return plain(branch)

    backend.script = script
    run(search, backend)
    return seen


def test_an_attempt_sees_at_most_so_many_before_it() -> None:
    turn = "\n\nQuestion: Again.\nAnswer:"
    seen = prompts_of(Revision(n=1, attempts=5, memory=2, feedback="Again."), Answers("12345"))
    # the backend's own end of sequence, a 0, is left out where an answer is gone on from, and a
    # text when it is given
    attempts = ["", "1", "12", "23", "34"]
    expected = ["".join(answer + turn for answer in before) for before in attempts]
    assert [s.replace("0", "") for s in seen] == expected
    seen = prompts_of(Revision(n=1, attempts=6, feedback="Again."), Answers("123456"))
    assert [s.count("Again.") for s in seen] == [0, 1, 2, 3, 4, 4]


def test_the_highest_total_wins_within_a_chain_and_then_over_chains() -> None:
    scores = {"1": 0.5, "2": 0.6, "3": 0.55}
    result = run(Revision(n=1, attempts=3), Answers("121"), scores)
    assert result.answer == "1"  # twice 0.5 against once 0.6
    result = run(Revision(n=3, attempts=2), Answers("21", "31", "23"), scores)
    # the chains' winners are 2 (0.6), 3 (0.55) and 2 (0.6)
    assert sorted(b.text for b in result.branches) == ["20", "20", "30"] and result.answer == "2"
    result = run(Revision(n=2, attempts=1), Answers("1", "2"), {"1": 0.5, "2": 0.5})
    assert result.answer == "1"  # the first of equals


def test_an_earlier_answer_is_not_read_for_a_revision_that_has_none() -> None:
    def read(text: str) -> str | None:
        return "7" if "7" in text else None

    scores = {"7": 0.1, "x": 0.9}
    result = run(Revision(n=1, attempts=2), Answers("7x"), scores, extract=read)
    assert result.answer == "7" and [b.text for b in result.branches] == ["70"]
    assert "7" not in result.tree[-1].text


def test_a_chain_ends_where_the_context_has_no_room() -> None:
    class Uneven(Answers):
        def extend(self, branches: Any, tokens: Any, **options: Any) -> Any:
            self.longest = 80 if branches[0].path[0] == 0 or len(branches) > 1 else 10_000
            return super().extend(branches, tokens, **options)

    backend = Uneven("1234", "5678")
    result = run(Revision(n=2, attempts=4, feedback="Again."), backend)
    assert result.error is None and not backend.live
    assert attempts(result) == ["1", "5", "2", "6", "3", "7", "8"]


def test_a_budget_ends_it_with_the_best_so_far() -> None:
    scores = {"1": 0.9, "2": 0.1, "3": 0.2}
    result = run(Revision(n=1, attempts=3), Answers("123"), scores, max_tokens=4)
    assert (result.stopped, result.answer) == ("max_tokens", "1")
    result = run(Revision(n=2, attempts=3), Answers("123", "312"), scores, max_calls=1)
    assert (result.stopped, result.answer, len(result.branches)) == ("max_calls", "1", 2)


def test_attempts_let_go_of_their_branches() -> None:
    backend = Answers("1234", "5678")
    run(Revision(n=2, attempts=4, feedback="Again."), backend)
    # the root, those told, the new attempts
    assert [len(held) for held in backend.held] == [1 + 2] + [1 + 2 + 2] * 3


@pytest.mark.parametrize("memory", [1, 4])
def test_an_engine_writes_what_plain_generation_does(memory: int) -> None:
    engine = make_engine(context=400)
    sizes = {"n": 2, "attempts": 4, "memory": memory, "max_tokens": 7}
    search = Revision(temperature=0.0, feedback="Again.", **sizes)
    result = run(search, engine, extract=lambda text: text)
    assert len(result.branches) == 2 and engine.kv_bytes() == 0 and len(attempts(result)) == 8
    engine.model.set_attn_implementation("eager")
    for branch in result.branches:
        assert_like_plain(engine.model, branch)  # type: ignore[arg-type]
