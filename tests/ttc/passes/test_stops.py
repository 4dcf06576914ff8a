"""Where a step and a branch end: delimiters and end strings are found as if the whole text were read at each token."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ttc.passes.decode import OVERLAP, DecodeStep
from ttc.sampling import SAMPLED
from ttc.tree.branch import Branch
from ttc.usage import Usage

PIECES = [" ", "\n", "\n\n", " \n", "a", "b", "ab", "Ste", "p", "Step 1", "\nSte", ".", "12 ", "", "=", "\t"]
PROMPT = [4, 5, 1]


def decode(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def step_of(branch: Branch, stop: tuple[str, ...], end: tuple[str, ...]) -> DecodeStep:
    engine: Any = SimpleNamespace(decode=decode, eos_ids=frozenset(), context_left=lambda branch: None)
    return DecodeStep(engine, [branch], [10_000], stop, end, SAMPLED)


def ends(branch: Branch, start: int, stop: tuple[str, ...], end: tuple[str, ...]) -> tuple[bool, str | None]:
    """The rule, read off the whole text."""
    text = decode(branch.tokens[max(branch.prompt_length, start - OVERLAP) :])
    if any(s in text for s in end):
        return True, "end"
    return any(s in decode(branch.tokens[start:]).lstrip() for s in stop), None


strings = st.sampled_from([(), ("\n",), ("\n\n",), ("Step",), ("\nStep 1", "."), ("12  a", "\n \n")])


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=120), st.integers(0, 20), strings, strings)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_window_finds_what_the_whole_text_holds(
    tokens: list[int], before: int, stop: tuple[str, ...], end: tuple[str, ...]
) -> None:
    branch = Branch(PROMPT, None, 0, Usage(), decode)
    branch.tokens += tokens[:before]
    start = len(branch.tokens)
    step = step_of(branch, stop, end)
    for token in tokens[before:]:
        branch.tokens.append(token)
        expected, reason = ends(branch, start, stop, end)
        assert (step._ended(branch), branch.finish_reason) == (expected, reason)
        if expected:
            return


def test_blanks_of_any_length_before_a_step_end_nothing() -> None:
    branch = Branch(PROMPT, None, 0, Usage(), decode)
    step = step_of(branch, ("\n\n",), ())
    for piece in ["\n", "\n\n"] * 40 + ["a"] + [" "] * 40 + ["\n"]:
        branch.tokens.append(PIECES.index(piece))
        assert not step._ended(branch)
    branch.tokens.append(PIECES.index("\n"))
    assert step._ended(branch)


def test_looking_at_a_token_reads_a_window_and_not_the_step() -> None:
    branch = Branch(PROMPT, None, 0, Usage(), decode)
    step, read = step_of(branch, ("\n\n",), ("Question:",)), []
    step.engine.decode = lambda tokens: read.append(len(tokens)) or decode(tokens)  # type: ignore[method-assign, func-returns-value]
    for _ in range(500):
        branch.tokens.append(PIECES.index("a"))
        assert not step._ended(branch)
    assert max(read) <= 4 * len("Question:") + OVERLAP
