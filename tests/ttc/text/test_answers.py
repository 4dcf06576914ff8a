"""The ways that models write answers, and what must not be taken for one."""

from __future__ import annotations

import re

import pytest

from ttc import InvalidInput
from ttc.text.answers import extract_answer
from ttc.text.boxes import boxed
from ttc.text.equality import canonical, same_answer
from ttc.text.numbers import as_number


@pytest.mark.parametrize(
    ("text", "kind", "answer"),
    [
        ("", "number", None),
        ("2 + 3 = 5\n#### 5", "number", "5"),
        ("The answer is $1,200.50.", "number", "1,200.50"),
        ("The answer is 3. Let me check: 4 + 5", "number", "3"),
        (r"So \boxed{42} in total 7", "number", "42"),
        ("first 3 then 4 apples.", "number", "4"),
        ("Answer: -7", "number", "-7"),
        ("it is 3/4 of it", "number", "3/4"),
        ("no number", "number", None),
        ("first 3 then 4", "strict", None),
        ("#### 12", "strict", "12"),
        ("The answer is (B).", "choice", "B"),
        ("A thing. The answer is C", "choice", "C"),
        ("I think (A) is wrong, so (D)", "choice", "D"),
        (r"\boxed{B}", "choice", "B"),
        ("A bird in the hand", "choice", None),
        ("The answer is B, because (A) and (C) ignore friction.", "choice", "B"),
        ("The answer is A. The (E)-alkene has no such centre.", "choice", "A"),
        ("The answer is A because it is warm", "choice", "A"),
        ("Answer: I think it is\n(C)", "choice", "C"),
        ("The answer is A good one: (B)", "choice", "B"),
        ("The answer is 12 - 2 = 10.", "number", "10"),
        ("The answer is 3 * $1.50 = $4.50 in all", "strict", "4.50"),
        ("The answer is 10.\n\n5 + 7 = 12", "number", "10"),
        (r"\boxed{\frac{1}{2}}", "math", r"\frac{1}{2}"),
        ("The answer is x + 1.", "math", "x + 1"),
        ("thinking\nThe answer is red, green", "text", "red, green"),
        ("one\ntwo\n", "text", "two"),
        ("#### 1,234", "number", "1,234"),
        ("The answer is **42**.", "number", "42"),
        ("the ANSWER IS: −8", "number", "-8"),
        ("The answer is .5", "number", ".5"),
        ("Answer: 3. No, the answer is 4.", "number", "4"),
        ("The answer is unclear, maybe 6", "number", "6"),
        (r"The answer is $\boxed{12}$.", "number", "12"),
        (r"\boxed{7} and also 9", "number", "7"),
        (r"\boxed{x} after 9", "number", "9"),
        ("range 3-5", "number", "5"),
        ("v1.5 beats v2", "number", None),
        ("in 1,23 ways", "number", "23"),
        ("Answer: 3. No, the answer is unclear.", "strict", "3"),
        ("nothing stated, 5", "strict", None),
        ("The answer is (4)", "strict", "4"),
        ("", "choice", None),
        ("Answer: C", "choice", "C"),
        ("Options: (A) 1 (B) 2. Answer: **A**", "choice", "A"),
        (r"\boxed{\text{C}}", "choice", "C"),
        ("So it is\nD.\n", "choice", "D"),
        ("the answer is b", "choice", "B"),
        (r"\boxed{a} then \boxed{\sqrt{\frac{1}{2}}}", "math", r"\sqrt{\frac{1}{2}}"),
        (r"\boxed{3} then \boxed{4", "math", "4"),  # a text that was cut has taken 3 back
        (r"\boxed{ }", "math", None),
        ("Answer: $x^2$\nbecause", "math", "x^2"),
        ("we get 8 of 9", "math", "9"),
        ("", "text", None),
        ("The answer is **red**.\nBye", "text", "red"),
        ("First line\n\nlast one.\n", "text", "last one"),
        (r"\boxed{5}, then \boxed{}", "math", "5"),  # as math-verify: an empty box states nothing
        (r"\boxed{5}, then \boxed{ }", "number", "5"),
        (r"\fbox{7} of 9", "math", "7"),
        ("The answer is 1 1/2.", "number", "1 1/2"),
        ("it is -1 1/2 cups", "number", "-1 1/2"),
        ("In 2020 1/2 of them", "number", "1/2"),
        ("The answer is 3/4.", "number", "3/4"),
        ("The answer is –3.", "number", "-3"),
        ("it is −8", "number", "-8"),
        ("pages 3–5", "number", "5"),
        (r"\boxed{\frac{3}{4}} of 8", "number", r"\frac{3}{4}"),
        (r"\boxed{12\ 000} of 8", "number", r"12\ 000"),
        (r"\boxed{12 000} of 8", "number", "12 000"),
        ("The answer is 1 million people, 3 times 4.", "number", "1 million"),
        ("That is $2.5 billion", "number", "$2.5 billion"),
        ("The answer should be 160, not 12.", "number", "160"),
        ("The answer is **Forty-two** of 50", "number", "42"),
        ("The answer is three thousand, not 5", "number", "3 thousand"),
        ("The answer is one of 5 and 6: it is 6", "number", "6"),
        ("The answer is one more than 5, so 6", "number", "6"),
        ("The answer is two and a half: 2.5", "number", "2.5"),
        ("The answer is one hundred and five (105)", "number", "105"),
        ("The answer is two hundred five (205)", "number", "205"),
        (r"\boxed{nine} of 10", "number", "9"),
    ],
)
def test_answers_are_found(text: str, kind: str, answer: str | None) -> None:
    assert extract_answer(text, kind) == answer


@pytest.mark.parametrize(
    ("text", "kind", "strict", "flexible"),
    [
        ("I have 12 apples.\n#### 15\n\nQuestion: how many of 9?", "number", "15", "15"),
        ("The answer is not 5. The answer is 6.", "number", "6", "6"),
        ("We have twelve, so 12", "number", None, "12"),
        ("The answer is twelve, not 13", "number", "12", "12"),
        (r"\boxed{12}, so the answer is \boxed{144}", "number", None, "144"),
        ("####", "number", None, None),
        ("It is 10% of 50, that is 5.", "number", None, "5"),
        ("(A) is wrong and (B) is right. The answer is (B).", "choice", "B", "B"),
        ("the answer is not (A) but (C)", "choice", None, "C"),
        ("The correct answer is: option E", "choice", "E", "E"),
        ("The answer is **J**.", "choice", "J", "J"),
        ("The answer is I.", "choice", "I", "I"),
        ("Answer: I am not sure", "choice", None, None),
        ("We drop B.\nC", "choice", None, "C"),
        (r"\boxed{\text{(B)}}", "choice", None, "B"),
        (r"\boxed{1}, no: \boxed{2}. The answer is 3", "math", "2", "2"),
        ("The answer is 12. Then 13 would be next.", "math", None, "12"),
        ("The answer is 0.5 or so.", "math", None, "0.5 or so"),
        (r"so \boxed{\frac{1}{2}", "math", None, r"\frac{1}{2}"),
        (r"\boxed{}", "math", None, None),
        (r"\boxed{033}", "math", "033", "033"),
        ("red\ngreen", "text", "green", "green"),
    ],
)
def test_strict_reads_the_form_that_was_asked_for_and_flexible_more(
    text: str, kind: str, strict: str | None, flexible: str | None
) -> None:
    assert extract_answer(text, kind, strict=True) == strict
    assert extract_answer(text, kind) == flexible


@pytest.mark.parametrize(
    ("text", "kind", "gold", "strict"),
    [
        (r"The profit is \boxed{70{,}000} in 2 years", "number", "70000", False),
        (r"The answer is $70{,}000$, not 5.", "number", "70000", True),
        (r"The answer is $10,\!080$, not 5.", "number", "10080", True),
        (r"The answer is $\dfrac{1}{2}$, not 5.", "number", "0.5", True),
        (r"The answer is $-1\frac{1}{2}$, not 5.", "number", "-1.5", True),
        ("The answer is 1½ cups, not 5.", "number", "1.5", True),
        ("The answer is ½.", "number", "0.5", True),
        ("The answer is 7e4, not 5.", "number", "70000", True),
        (r"The answer is $7 \times 10^{4}$, not 5.", "number", "70000", True),
        ("The answer is 7 x 10^-2, not 5.", "number", "0.07", True),
        (r"Answer: $3 \times 180 = 540$, not 5", "number", "540", True),
        ("The answer is 3 x 180 = 540 meters, not 5.", "number", "540", True),
        ("The answer is 2^6 = 64, not 5.", "number", "64", True),
        ("The answer is: __160__, not 5", "number", "160", True),
        ("The answer is `160`, not 5", "number", "160", True),
        ("The answer is € 160, not 5", "number", "160", True),
        (r"The answer is \[160\], not 5", "number", "160", True),
        ("**Answer**: 160 (not 5)", "number", "160", True),
        ("**The answer is**: 160 (not 5)", "number", "160", True),
        ("The answer to the question is 160. (2 hours and 40 minutes)", "number", "160", True),
        ("The answer is therefore 160, not 5", "number", "160", True),
        ("The final answer is:\n\n540\n\nCheck: 3 * 180", "number", "540", True),
        ("The answer is:\n\\[\n540\n\\]\nsince 3 * 180", "number", "540", True),
        ("#### 1. Find the sum\n16\n#### 2. Subtract\nSo 18", "number", "18", False),
        ("Answer:\n1. She has 16 eggs.\n2. She eats 3.\nSo 18", "number", "18", False),
        (r"\boxed{366\text{ downloads over 3 months}}", "number", "366", False),
        (r"so $\boxed 204$, not 5", "math", "204", True),
        (r"so $\boxed204$, not 5", "number", "204", False),
        ("The answer is:\n\\[\n\\frac{1}{2}\n\\]", "math", r"\frac{1}{2}", False),
        (r"The answer is \[\frac{1}{2}\]", "math", r"\frac{1}{2}", False),
        (r"The answer is $2\sqrt{3}$ feet, i.e. 3", "math", r"2\sqrt{3}", False),
        (r"The answer is $x=1$ or $x=2$.", "math", "1,2", False),
        ("The answer is therefore 204.", "math", "204", False),
        (r"Thus $x = \frac{1}{2}$.", "math", r"\frac{1}{2}", False),
        (r"Thus the area is $2\sqrt{3}$.", "math", r"2\sqrt{3}", False),
        (r"Thus the area is \(2\sqrt{3}\).", "math", r"2\sqrt{3}", False),
        (r"\[ A = 2\sqrt{3} \]", "math", r"2\sqrt{3}", False),
        (r"$$-\frac{3}{5}$$", "math", r"-\frac{3}{5}", False),
        ("So the point is $(1,2)$.", "math", "(1,2)", False),
        ("Thus $m + n = 204$ as wanted.", "math", "204", False),
        ("It costs $5 and then $7.", "math", "7", False),
        ("It costs 5$ and then 7$.", "math", "7", False),
        ("It is 5 for all $x$.", "math", "5", False),
        (r"So the area of the circle is $36\pi$.", "math", r"36\pi", False),
        (r"It is $8i$.", "math", "8i", False),
        ("Thus $y = x^2$.", "math", "y = x^2", False),
        ("The answer is 42, found in 3 steps.", "math", "42", False),
        ("The answer is 42 (in 3 steps)", "math", "42", False),
        (r"The answer is $\dfrac{1}{2}$ because $1+1=2$.", "math", r"\frac{1}{2}", False),
        ("The area is 18 m^2.", "number", "18", False),
        (r"The area is \boxed{18\,\text{cm}^2}", "number", "18", False),
        ("The answer is 16 eggs - 3 eggs - 4 eggs = 9 eggs.", "number", "9", True),
        ("**Answer:** 9 eggs × $2 per egg = **$18**", "number", "18", True),
        ("The answer is 50% of 36 = 18.", "number", "18", True),
        ("The answer is 3 * 6 slices = 18 slices", "number", "18", True),
        ("The answer is 15 because 3 apples x 5 = 15", "number", "15", True),
        ("The answer is 12\u202f000.", "number", "12000", True),
        ("So she earns $12\u202f000 per year.", "number", "12000", False),
        (r"\boxed{12\;000}", "number", "12000", False),
        (r"The answer is -\$20.", "number", "-20", True),
        (r"\boxed{-\$20}", "number", "-20", False),
        (r"\boxed{- 20}", "number", "-20", False),
        ("The answer is \u20115.", "number", "-5", True),
        ("The answer is negative 3.", "number", "-3", True),
    ],
)
def test_forms_that_models_write_are_read_as_their_value(
    text: str, kind: str, gold: str, strict: bool
) -> None:
    """strict: whether it is the form that the prompt asks for, too."""
    assert same_answer(gold, extract_answer(text, kind), kind)
    assert same_answer(gold, extract_answer(text, kind, strict=True), kind) is strict


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


def test_the_same_answers() -> None:
    assert canonical("$12.0") == canonical("12") == canonical(" 12 ") == "12"
    assert canonical("1,200") == "1200" and canonical("0.5") == canonical("1/2")
    assert canonical("") is None and canonical(None) is None
    assert (
        same_answer("12", "12.00") and not same_answer("12", "13") and not same_answer("12", None)
    )
    assert same_answer(r"\frac{1}{2}", "0.5", "math") and not same_answer(
        r"\frac{1}{2}", "2", "math"
    )
    assert same_answer("x+1", "1 + x", "math")


def test_numbers_are_exact() -> None:
    assert as_number("0.1") == as_number("1/10") and as_number("1/3") != as_number("0.3333333333")
    assert as_number("x") is None and as_number("") is None


@pytest.mark.parametrize(
    ("gold", "predicted", "kind", "same"),
    [
        ("0.75", "3/4", "number", True),
        ("1000", "$1,000.00", "number", True),
        ("1/3", "0.33", "number", False),
        ("B", "B", "choice", True),
        ("B", "b", "choice", False),
        (r"\frac{3}{4}", "0.75", "math", True),
        (r"\frac{3}{4}", r"\dfrac{6}{8}", "math", True),
        (r"2\sqrt{2}", r"\sqrt{8}", "math", True),
        (r"\frac{3}{4}", r"\frac{4}{3}", "math", False),
        ("(x+1)^2", "x^2+2x+1", "math", True),
        ("x", None, "math", False),
        (r"2\sqrt{2}", r"\sqrt{8}", "text", False),
        (r"\frac{3}{4}", r"\dfrac{3}{4}", "text", True),
        (r"\left(1,\ 2\right)", "(1, 2)", "text", True),
        ("1,2", "12", "number", False),
        ("1 1/2", "1.5", "number", True),
        ("-1 1/2", "-1.5", "number", True),
        ("1 1/2", "5.5", "number", False),
        ("12 000", "12,000", "number", True),
        ("- 3", "-3", "number", True),
    ],
)
def test_same_answer(gold: str, predicted: str | None, kind: str, same: bool) -> None:
    assert same_answer(gold, predicted, kind) is same


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
