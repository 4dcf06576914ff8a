"""The ways that models write answers, and what must not be taken for one."""

from __future__ import annotations

import re

import pytest

from ttc import InvalidInput
from ttc.text.answers import extract_answer
from ttc.text.boxes import boxed
from ttc.text.equality import canonical


def test_an_unknown_kind_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidInput, match="'letter' is unknown; use one of number, strict, choice, math, text"
    ):
        extract_answer("A", "letter")


def test_boxes_nest() -> None:
    assert boxed(r"\boxed{a{b}{c{d}}}") == "a{b}{c{d}}"
    assert boxed(r"\boxed {1} \boxed{2}") == "2"
    assert boxed(r"\boxed{1") is None and boxed("none") is None and boxed(r"\boxed{}") == ""


@pytest.mark.parametrize(
    ("written", "spelling"),
    [
        ("$1,200.50", "2401/2"),
        ("0012", "12"),
        ("-3.0", "-3"),
        ("−3", "-3"),
        ("6/8", "3/4"),
        ("12%", "12"),
        (r"\$5", "5"),
        ("5.", "5"),
        ("1/0", "1/0"),
        ("  two   words. ", "two words"),
        ("\t", None),
        ("1e5000", "1e5000"),
    ],
)
def test_one_spelling(written: str, spelling: str | None) -> None:
    assert canonical(written) == spelling


def strict_match(text: str) -> str | None:
    """lm-evaluation-harness's filter of this name for gsm8k: the number after the first `####`."""
    found = re.search(r"#### (\-?[0-9\.\,]+)", text)
    return found and found[1]


def flexible_extract(text: str) -> str | None:
    """The other one: the last number."""
    found = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", text)
    return next(filter(None, found[-1])) if found else None


@pytest.mark.parametrize(
    ("text", "harness", "here", "why"),
    [
        ("5 + 6 = <<5+6=11>>11\n#### 11", "11", "11", ""),
        ("He drives 1,200 km.\n#### 1,200", "1,200", "1,200", ""),
        ("A loss of 40.\n#### -40", "-40", "-40", ""),
        ("Each gets 2.5 cups\n#### 2.5", "2.5", "2.5", ""),
        ("Nine eggs are left, so 9.", None, None, ""),
        (
            "#### 7\nQuestion: what are 4 and 5?\n#### 9",
            "7",
            "9",
            "the last one counts",
        ),
        ("So it is 18.\n\n####18", None, "18", "a blank is not needed"),
        ("The price is #### $18", None, "18", "a currency may stand before the number"),
        ("The answer is 18.", None, "18", "our prompt asks for these words"),
    ],
)
def test_strict_numbers_beside_strict_match(
    text: str, harness: str | None, here: str | None, why: str
) -> None:
    assert strict_match(text) == harness
    assert extract_answer(text, "number", strict=True) == here
    assert bool(why) == (harness != here)


@pytest.mark.parametrize(
    ("text", "harness", "here", "why"),
    [
        ("5 + 6 = 11, so 11 pens are left", "11", "11", ""),
        ("Half of 90 is 45", "45", "45", ""),
        ("She saves $18", "$18", "$18", ""),
        ("It falls to -3", "-3", "-3", ""),
        ("none", None, None, ""),
        ("The answer is 18, in 3 boxes of 6.", "6.", "18", "what is stated counts first"),
        (r"\boxed{18} for 3 days", "3", "18", "so does a box"),
        ("She has eggs in 3/4", "4", "3/4", "a fraction is one number"),
        ("a field of 18 m^2", "2", "18", "an exponent is no answer"),
        ("so 18 of them...", "...", "18", "dots are no number"),
    ],
)
def test_flexible_numbers_beside_flexible_extract(
    text: str, harness: str | None, here: str | None, why: str
) -> None:
    assert flexible_extract(text) == harness
    assert extract_answer(text, "number") == here
    assert bool(why) == (harness != here)
