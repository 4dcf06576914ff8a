"""Thoughts and answers that go in circles end soon, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from experiments.runs.build import loaded
from search import BeamSearch, BestOfN, BudgetForcing, Greedy, SelfConsistency, ask_tell, solve
from tests.helpers.parts import installed
from tests.helpers.searches import Costly, all_searches
from tests.helpers.thinking import OPENING, TURNS, Thinking, circling, thinker
from ttc import BlockCache, Engine, InvalidInput, Result
from ttc.text.prompt import PromptTemplate

TAGS = ("<think>", "</think>")
R1, PLAIN = thinker(OPENING, plain=TAGS), thinker(TURNS)
LETTERS = "abcdefghijk"
ASKED = PromptTemplate("{question}")
LIMIT = 240


def circler(tokenizer: Any = R1, answer: str = "7", words: str = LETTERS, **parts: Any) -> Engine:
    return Engine(circling(words, tokenizer, answer), tokenizer, **parts)


def solved(search: Any, engine: Any = None, problem: Any = "q", **options: Any) -> Any:
    verifier = Costly(1) if search.needs_verifier else None
    engine = circler() if engine is None else engine
    given: dict[str, Any] = {"template": ASKED, "verifier": verifier, **options}
    return solve(search, problem=problem, engine=engine, **given)


@pytest.mark.parametrize("words", [LETTERS, "ab"], ids=["eleven letters", "two letters"])
def test_best_of_8_pays_no_limit_where_all_thoughts_loop(words: str) -> None:
    search = BestOfN(n=8, thinking_tokens=LIMIT, max_tokens=20)
    result = solved(search, circler(words=words))
    assert result.answer == "7" and result.error is None
    assert result.usage.generated_tokens < 8 * 60
    for branch in result.branches:
        assert branch.thought_closed == "looped" and branch.step_reasons == ["eos"]
        assert 33 <= branch.thinking_tokens <= 36 + 15
        # looked at every 16 tokens
        assert (branch.prompt_length + branch.thinking_tokens) % 16 == 0


PARTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"max_rows": 1}),
    ({"cache": BlockCache()}, {}),
]
for lookup in installed("speculation", "prompt_lookup"):
    drafts = {"speculation": lookup(max_rows=16), "cache": BlockCache()}
    PARTS += [({"speculation": lookup()}, {}), (drafts, {"concurrency": 1})]


def seen(result: Result) -> Any:
    return [(b.tokens, b.step_ends, b.step_reasons, b.thought_closed) for b in result.branches]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "search",
    [
        SelfConsistency(n=3, thinking_tokens=LIMIT, max_tokens=20),
        BeamSearch(
            beam_size=2, beam_width=2, thinking_step=7, thinking_tokens=60, step_tokens=5,
            max_steps=12,
        ),
        BeamSearch(beam_size=2, beam_width=2, thinking_tokens=None, step_tokens=60, max_steps=2),
    ],
    ids=["self_consistency", "beam_search", "without a limit"],
)  # fmt: skip
def test_where_a_loop_ends_depends_on_nothing_else(search: Any) -> None:
    problems = ["1 + 1?", "q", "How many? 7"]
    alone = [seen(solved(search, problem=problem)) for problem in problems]
    assert any("looped" in str(branches) for branches in alone)
    for parts, options in PARTS:
        engine = circler(**parts)
        together = solved(search, engine, problems, **options)
        assert list(map(seen, together)) == alone and engine.kv_bytes() == 0


def test_outside_a_thought_a_loop_ends_the_branch() -> None:
    answer = Greedy(max_tokens=LIMIT, stop_loops=True)
    result = solved(answer, circler(PLAIN))
    assert result.best.step_reasons == ["looped"] and result.best.finish_reason == "looped"
    assert result.usage.generated_tokens <= 33 + 15
    after = solved(Greedy(thinking_tokens=LIMIT, max_tokens=LIMIT), circler(answer=""))
    assert after.best.thought_closed == "looped" and after.best.finish_reason == "looped"
    assert after.usage.generated_tokens <= 2 * (33 + 15)


def test_without_a_limit_for_thoughts_one_that_loops_is_closed_all_the_same() -> None:
    """What is left of the answer's own tokens is for the answer."""
    search = BestOfN(n=8, thinking_tokens=None, max_tokens=LIMIT)
    result = solved(search)
    assert result.answer == "7" and result.usage.generated_tokens < 8 * 60
    limited = solved(BestOfN(n=8, thinking_tokens=LIMIT, max_tokens=20))
    for branch, other in zip(result.branches, limited.branches, strict=True):
        assert (branch.text, branch.thinking_tokens) == (other.text, other.thinking_tokens)
    assert {b.thought_closed for b in result.branches} == {"looped"}
    assert {b.finish_reason for b in result.branches} == {"eos"}


def test_the_limit_counts_what_was_thought_before_it_was_closed() -> None:
    result = solved(Greedy(thinking_tokens=None, max_tokens=60), circler(answer=""))
    assert result.best.thought_closed == "looped"
    assert result.usage.generated_tokens == 60
    off = solved(Greedy(thinking_tokens=None, max_tokens=60, stop_loops=False))
    assert off.best.thought_closed is None and off.best.thinking_tokens == 60


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "search", all_searches(thinking_tokens=LIMIT), ids=lambda search: type(search).__name__
)
def test_no_search_pays_the_limit(search: Any) -> None:
    result = solved(search)
    assert result.error is None
    widest = max(len(result.branches), 8)
    assert result.usage.thinking_tokens < LIMIT + widest * 48


def test_budget_forcing_asks_for_the_answer_where_a_thought_loops() -> None:
    result = solved(BudgetForcing(thinking_tokens=LIMIT, waits=2))
    assert result.answer == "7" and result.usage.generated_tokens < 60
    assert "looped" in result.best.step_reasons


def test_what_a_tool_or_a_prompt_repeats_is_no_loop() -> None:
    """Tokens that were given are left out."""
    said = PromptTemplate("{question}" + LETTERS * 3)
    result = solved(Greedy(thinking_tokens=LIMIT, max_tokens=20), template=said)
    assert result.best.thinking_tokens >= 33


def looped_at(tokens: Sequence[int], prompt: int) -> int | None:
    """Where a text goes in circles by the rule of docs/evaluation.md, looked at every 16 tokens."""
    for length in range(16, len(tokens) + 1, 16):
        for period in range(1, 201):
            times = 3 if period >= 4 else -(-33 // period)
            if length - prompt < times * period:
                continue
            last = tokens[length - times * period : length]
            shorter = any(last == (last[:n] * len(last))[: len(last)] for n in (1, 2, 3))
            if last == last[:period] * times and (not shorter or len(last) >= 33):
                return length
    return None


REAL = PromptTemplate("{question}", raw=True)
ASKS = ("1 2 3 1 2 3 1 2 3", "The sea, the sea,", "I am", "The dog and the cat")


@pytest.mark.slow
def test_a_real_model_that_loops_is_stopped_there_alone_and_beside_others() -> None:
    """SmolLM2 at temperature 0 often goes in circles."""
    asked: dict[str, Any] = {"template": REAL, "thinking_marks": False}
    search = Greedy(max_tokens=64, temperature=0.0, stop_loops=True)
    model, tokenizer, runner = loaded("smollm2-135m", "cpu", "float32")

    def real(**parts: Any) -> Engine:
        return Engine(model, tokenizer, runner=runner, **parts)

    engine = real()
    whole = solved(replace(search, stop_loops=False), engine, [*ASKS], **asked)
    alone = [solved(search, engine, problem, **asked) for problem in ASKS]
    ends = list[int | None]()
    for full, result in zip(whole, alone, strict=True):
        best, first = result.best, full.best.prompt_length
        at = looped_at(full.best.tokens, first)
        ends.append(at)
        assert ("looped" in best.step_reasons) == (at is not None)
        if at is not None:
            assert best.tokens[:at] == full.best.tokens[:at]
            assert len(best.tokens) == at
    assert any(ends) and None in ends
    together = solved(search, real(**PARTS[-1][0]), [*ASKS], **asked)
    assert list(map(seen, together)) == list(map(seen, alone))


def test_backends_that_cannot_look_say_so() -> None:
    search = Greedy(stop_loops=True)
    for call in (ask_tell, partial(solve, engine=Thinking(["7"], R1))):
        with pytest.raises(InvalidInput, match="stop_loops=true, and this backend"):
            call(search, problem="q")


def test_models_without_thoughts_are_left_alone_unless_it_is_asked_for() -> None:
    whole = solved(Greedy(max_tokens=LIMIT), circler(PLAIN))
    assert whole.best.finish_reason is None and whole.usage.generated_tokens == LIMIT
