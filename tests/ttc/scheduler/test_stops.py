"""Where a step and a branch end: delimiters and end strings are found as if the whole text were
read at each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc import InvalidInput
from ttc.branch import Branch
from ttc.model.limits import ModelLimits
from ttc.passes.arguments import check_step
from ttc.sampling import SAMPLED
from ttc.scheduler.stops import Stops
from ttc.step import Step, step_of
from ttc.tree.branch import StepEnd
from ttc.usage import Usage

PIECES = [
    " ",
    "\n",
    "\n\n",
    " \n",
    "a",
    "b",
    "ab",
    "Ste",
    "p",
    "Step 1",
    "\nSte",
    ".",
    "12 ",
    "",
    "=",
    "\t",
    "<|end|>",
]
SPECIAL = PIECES.index("<|end|>")
PROMPT = [4, 5, 1]
FAR = 10_000


def decode(tokens: Sequence[int], *, special: bool = False) -> str:
    return "".join(PIECES[token] for token in tokens if special or token != SPECIAL)


def stops(
    stop: tuple[str, ...] = (), end: tuple[str, ...] = (), context: int | None = None, eos: int = -1
) -> Stops:
    return Stops(stop, end, ModelLimits(len(PIECES), context, frozenset([eos])), decode)


def branch_of(*pieces: str) -> Branch:
    branch = Branch(PROMPT, None, 0, Usage(), decode)
    write(branch, *pieces)
    return branch


def write(branch: Branch, *pieces: str) -> None:
    for piece in pieces:
        branch.append(PIECES.index(piece), 0.0, 1.0)


def by_the_whole_text(
    branch: Branch, start: int, stop: tuple[str, ...], end: tuple[str, ...]
) -> StepEnd | None:
    """The rule, read off the whole text: an end string counts if it was not there before the step's
    first token."""
    text, before = (
        decode(branch.tokens[branch.given_end : n], special=True) for n in (None, start)
    )
    if any(
        text[i : i + len(s)] == s and i + len(s) > len(before)
        for s in end
        for i in range(len(text))
    ):
        return "end"
    return (
        "delimiter"
        if any(s in decode(branch.tokens[start:], special=True).lstrip() for s in stop)
        else None
    )


strings = st.sampled_from(
    [
        (),
        ("\n",),
        ("\n\n",),
        ("Step",),
        ("\nStep 1", "."),
        ("12  a", "\n \n"),
        ("a ",),
        ("<|end|>",),
    ]
)


@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=120), st.integers(0, 60), strings, strings
)
@settings(max_examples=examples(400))
def test_a_window_finds_what_the_whole_text_holds(
    tokens: list[int], before: int, stop: tuple[str, ...], end: tuple[str, ...]
) -> None:
    branch = branch_of(*(PIECES[t] for t in tokens[:before]))
    start, checker = len(branch.tokens), stops(stop, end)
    for token in tokens[before:]:
        write(branch, PIECES[token])
        expected = by_the_whole_text(branch, start, stop, end)
        assert checker.check(branch, start, FAR) == expected
        assert branch.finish_reason == ("end" if expected == "end" else None)
        if expected:
            return


def test_blanks_of_any_length_before_a_step_end_nothing() -> None:
    branch, checker = branch_of(), stops(("\n\n",))
    for piece in ["\n", "\n\n"] * 40 + ["a"] + [" "] * 40 + ["\n"]:
        write(branch, piece)
        assert checker.check(branch, len(PROMPT), FAR) is None
    write(branch, "\n")
    assert checker.check(branch, len(PROMPT), FAR) == "delimiter"


def test_a_token_that_completes_nothing_is_looked_up_and_not_read_again() -> None:
    branch, read = branch_of(), list[int]()
    checker = stops(("\n\n",), ("Question:",))
    checker.decode = lambda tokens, **kw: (read.append(len(tokens)), decode(tokens, **kw))[1]
    for _ in range(500):
        write(branch, "a")
        assert checker.check(branch, len(PROMPT), FAR) is None
    assert read == [1]


def test_an_end_string_may_span_any_number_of_steps() -> None:
    wanted = "Step 1" + "a" * 40 + "."
    branch, checker = branch_of("Step 1", *"a" * 40), stops((), (wanted,))
    start = len(branch.tokens)
    write(branch, ".")
    assert checker.check(branch, start, FAR) == "end"


def test_given_text_that_holds_an_end_string_ends_nothing() -> None:
    branch, checker = branch_of("a"), stops((), ("Step 1", "ab."))
    branch.give([PIECES.index("Step 1"), PIECES.index("a"), PIECES.index("b")])
    start = len(branch.tokens)
    write(branch, ".")  # completes what was given, which does not count
    assert checker.check(branch, start, FAR) is None
    write(branch, "Step 1")
    assert checker.check(branch, start, FAR) == "end"


def test_the_reason_says_what_ended_the_step() -> None:
    branch = branch_of("a")
    assert stops().check(branch, 3, 5) is None and stops().check(branch, 3, 4) == "length"
    assert branch.finish_reason is None
    assert stops(context=4).check(branch, 3, 4) == branch.finish_reason == "context"
    assert stops(eos=PIECES.index("a"), end=("a",)).check(branch_of("a"), 3, 9) == "eos"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5,), "step=5 is of type int; give a ttc.Step"),
        ((Step(5, delimiter=3),), "delimiter=3 is of type int; give a list of strings"),
        ((Step(5, end="abc"),), "end='abc' is one string"),  # type: ignore[arg-type]
        ((Step(5, ("",)),), "a delimiter string is empty"),
        ((Step(0),), "max_tokens=0 must be at least 1"),
        ((Step(9), SAMPLED, [0]), "max_tokens=0 must be at least 1"),
        ((Step(1), SAMPLED, [1, 1]), "branches: 1, .*: 2"),
        ((Step(1), 0.7), "sampling=0.7 is of type float"),
        ((Step(1, statistics="yes"),), "statistics='yes' is of type str; give True or False"),
        ((Step(1, statistics=1),), "statistics=1 is of type int; give True or False"),
    ],
)
def test_a_step_that_cannot_be_made_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        step, *others = arguments
        check_step(
            ModelLimits(9, None, frozenset()), [branch_of("a")], step, *(others or [SAMPLED])
        )


def test_the_options_of_generate_are_one_step() -> None:
    assert step_of(7, ["x", "y"], ["z"], True) == (Step(7, ("x", "y"), ("z",), True), None)
    assert step_of((2, 5, 3), [], [], False) == (Step(5, ()), [2, 5, 3])
    assert step_of([], [], [], False)[1] == []
    assert step_of(7, ["x", "y"], [], False)[0].delimiters == ("x", "y")


@pytest.mark.parametrize(
    ("delimiter", "strings"), [(None, ()), ("", ()), ("ab", ("ab",)), (("a", "b"), ("a", "b"))]
)
def test_a_delimiter_is_none_one_or_several(delimiter: Any, strings: tuple[str, ...]) -> None:
    assert Step(1, delimiter).delimiters == strings
