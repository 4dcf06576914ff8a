"""One equality for grading and for voting: a table of pairs with where each comes from."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc.text.equality import ballots, canonical, same_answer
from ttc.text.math_worker import equal, parse_answer
from ttc.text.numbers import as_number, without_unit

MATH_VERIFY = "the verdict of math-verify itself"
MINERVA = "lm-eval minerva_math, normalize_final_answer: units and signs that it removes"
MATH = "Hendrycks MATH, is_equiv: fix_fracs, fix_sqrt, remove_right_units, strip_string"
GSM8K = "gsm8k answers, lm-eval's regexes_to_ignore: comma, dollar, full stop"
PEOPLE = "how people write numbers"

SAME = [
    # gold, predicted, kind, source
    ("1000", "1,000", "number", GSM8K),
    ("5", "$5", "number", GSM8K),
    ("5", "5.", "number", GSM8K),
    ("5", "5.00", "number", PEOPLE),
    ("5", r"\$5", "number", MINERVA),
    ("12", "12%", "number", MATH),
    ("12", r"12\%", "number", MATH),
    ("12", "12 percent", "number", PEOPLE),
    ("5", "5 dollars", "number", MINERVA),
    ("5", "€5", "number", PEOPLE),
    ("5", "£5", "number", PEOPLE),
    ("3/2", "1 1/2", "number", PEOPLE),
    ("1.5", r"1\frac{1}{2}", "number", PEOPLE),
    ("-1.5", "–1 1/2", "number", PEOPLE),
    ("-3", "−3", "number", MATH_VERIFY),  # the minus sign
    ("-3", "–3", "number", PEOPLE),  # the en dash
    ("0.5", r"\frac12", "number", MATH),
    ("12000", "12 000", "number", PEOPLE),
    ("1500000", "1.5 million", "number", PEOPLE),
    ("500", "5 hundred dollars", "number", PEOPLE),
    ("x-1", "x–1", "math", PEOPLE),
    ("1-x", "–x + 1", "math", PEOPLE),
    ("(-1,2)", "(–1, 2)", "math", PEOPLE),
    ("5", "5 cm", "number", MINERVA),
    ("5", r"5\text{ cm}", "number", MINERVA),
    ("25", r"25 \text{ cm}^2", "number", MINERVA),
    ("90", r"90^\circ", "number", MINERVA),
    ("90", "90°", "number", PEOPLE),
    ("90", "90 degrees", "number", MINERVA),
    ("(3,4)", "(3, 4)", "math", MATH),
    (r"\frac{1}{2}", r"\frac12", "math", MATH),
    (r"\frac{1}{2}", r"\dfrac{1}{2}", "math", MATH),
    (r"\frac{1}{2}", r"\tfrac12", "math", MATH),
    (r"\frac{1}{2}", "0.5", "math", MATH),
    (r"\frac{1}{2}", "1/2", "math", MATH),
    ("90", r"90^\circ", "math", MATH),
    ("90", r"90^{\circ}", "math", MATH),
    ("5", "x=5", "math", MATH),  # "x = 5" where the left side is short
    ("x=5", "5", "math", MATH_VERIFY),
    ("5", r"5\text{ inches}", "math", MATH),
    ("10", r"10\%", "math", MATH),
    (r"2\sqrt{2}", r"2\sqrt2", "math", MATH),
    (r"2\sqrt{2}", r"\sqrt{8}", "math", MATH_VERIFY),
    ("x^2+2x+1", "(x+1)^2", "math", MATH_VERIFY),
    ("1/3", "0.333333", "math", MATH_VERIFY),
    (r"\{1,2\}", "1,2", "math", MATH_VERIFY),
    ("1,2", "2,1", "math", MATH_VERIFY),
    ("(1,2)", "1,2", "math", MATH_VERIFY),
    (r"(-\infty, 2)", r"\left(-\infty,2\right)", "math", MATH),
    ("x<2", r"(-\infty,2)", "math", MATH_VERIFY),
    (r"\text{Friday}", "Friday", "math", MATH_VERIFY),
    ("9%", "0.09", "math", MATH_VERIFY),
    (r"100000", r"10^{5}", "math", MATH_VERIFY),
    (r"\pi", "3.14159265", "math", MATH_VERIFY),
    ("2x+1", "y=2x+1", "math", MATH_VERIFY),
    (r"2\sqrt{3}", "2√3", "math", PEOPLE),
    (r"2\sqrt{3}", "2*sqrt(3)", "math", PEOPLE),
    (r"\sqrt{x+1}", "√(x+1)", "math", PEOPLE),
    ("x^2+1", "x²+1", "math", PEOPLE),
    ("6", "2·3", "math", PEOPLE),
    (r"(-\infty,2)", "(-∞, 2)", "math", PEOPLE),
    ("1.5", "1½", "number", PEOPLE),
    (r"\frac{1}{2}", "½", "math", PEOPLE),
    ("300000000", r"3 \times 10^8", "number", PEOPLE),
    ("0.0012", "1.2e-3", "number", PEOPLE),
    ("1.2 \\times 10^{3}", "1200", "math", PEOPLE),
    ("12000", "12{,}000", "number", PEOPLE),
    ("12000", r"12\,000", "math", PEOPLE),
]
DIFFERENT = [
    ("5", "6", "number", GSM8K),
    ("1/3", "0.33", "number", PEOPLE),
    ("3/2", "11/2", "number", PEOPLE),
    ("5", "-5", "number", PEOPLE),
    ("5", "500 cm", "number", PEOPLE),
    ("12", "1,2", "number", PEOPLE),
    ("5", "5 hundred", "number", PEOPLE),
    ("5", "5 pi", "number", PEOPLE),
    ("B", "b", "choice", "MMLU-Pro: letters are capital"),
    ("3 hours", "3 minutes", "text", "texts are compared as texts"),
    ("red", "green", "text", "texts are compared as texts"),
    (r"\frac{3}{4}", r"\frac{4}{3}", "math", MATH),
    ("[1,2]", "(1,2)", "math", MATH_VERIFY),
    ("x+1", "x-1", "math", MATH_VERIFY),
    (r"2\sqrt{3}", "2√5", "math", PEOPLE),
    ("3e8", "3e7", "number", PEOPLE),
    (r"3 \times 10^8", "3", "number", PEOPLE),
    ("x", "y", "math", MATH_VERIFY),
    (r"\sqrt{2}", r"\sqrt{3}", "math", MATH_VERIFY),
    ("1/3", "0.33", "math", MATH_VERIFY),
    ("5", "", "math", "an empty answer is none"),
]


@pytest.mark.parametrize(("gold", "predicted", "kind", "source"), SAME)
def test_the_same_answer_is_right_and_votes_for_the_same(
    gold: str, predicted: str, kind: str, source: str
) -> None:
    assert same_answer(gold, predicted, kind), source
    for answers in ([gold, predicted], [predicted, gold]):
        votes = ballots(answers, kind)
        assert votes[0] == votes[1] is not None, source


@pytest.mark.parametrize(("gold", "predicted", "kind", "source"), DIFFERENT)
def test_another_answer_is_wrong_and_votes_for_another(
    gold: str, predicted: str, kind: str, source: str
) -> None:
    assert not same_answer(gold, predicted, kind), source
    votes = ballots([gold, predicted], kind)
    assert votes[0] != votes[1], source


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [case[:2] for case in SAME if case[3] == MATH_VERIFY and case[2] == "math"],
)
def test_the_cases_of_math_verify_are_its_own(gold: str, predicted: str) -> None:
    from math_verify import verify

    assert verify(parse_answer(gold), parse_answer(predicted), timeout_seconds=None)


FORMULAS = [gold for gold, _, kind, _ in [*SAME, *DIFFERENT] if kind == "math"]
FORMULAS += ["x y", "e", "2e", "i", r"\log 2", r"\sin x", "0", "1-x", r"\frac{x}{2}"]
FORMULAS += ["ab", r"\text{ab}", "x=7", "y=5", "x+y=1", "2x+z=1", "x=y", "x=2y", "y=5%"]


@pytest.mark.slow
def test_what_is_told_apart_without_simplifying_is_different_by_math_verify_too() -> None:
    from math_verify import verify

    for gold, predicted in product(list(dict.fromkeys(FORMULAS))[::3], repeat=2):
        verdict = verify(parse_answer(gold), parse_answer(predicted), timeout_seconds=None)
        assert equal(gold, predicted) is bool(verdict), (gold, predicted)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(st.integers(-(10**6), 10**6), st.integers(1, 1000), st.integers(0, 4))
def test_numbers_far_apart_are_told_apart_as_math_verify_does(a: int, b: int, digits: int) -> None:
    """What is answered without asking math-verify is what it says."""
    from math_verify import verify

    left, right = f"{a / b:.{digits}f}", f"{a}/{b}"
    verdict = verify(parse_answer(left), parse_answer(right), timeout_seconds=None)
    spelt = canonical(left, "math") == canonical(right, "math")
    assert same_answer(left, right, "math") is (bool(verdict) or spelt)


def test_groups_follow_the_order_of_the_index() -> None:
    """0.3333333 is 1/3 and 0.3333328 is 0.3333333, each to six digits, and 0.3333328 is not 1/3."""
    assert ballots(["x=5", None, "5", " ", "7", "5 cm"], "math") == [
        "x=5",
        None,
        "x=5",
        None,
        "7",
        "x=5",
    ]
    near = ["1/3", "0.3333333", "0.3333323", "0.3333328"]
    votes = ballots(near, "math")
    assert votes[0] == votes[1]
    for count in range(len(near)):  # later answers change nothing
        assert ballots(near[:count], "math") == votes[:count]


def test_a_grader_of_ones_own_groups() -> None:
    def same_length(gold: str, predicted: str) -> bool:
        return len(gold) == len(predicted)

    assert ballots(["red", "sun", "blue", None], same=same_length) == ["red", "red", "blue", None]
    assert ballots(["5 cm", "x=5", "5.0", "5"]) == ["5 cm", "x=5", "5", "5"]  # by spelling alone


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("5 cm", "5"),
        (r"5\text{ m}", "5"),
        ("5m", "5m"),  # may be five times m
        ("3 square units", "3"),
        ("12 km/h", "12"),
        ("7 in²", "7"),
        ("x cm", "x cm"),
        ("twelve percent", "twelve percent"),
        ("5 apples", "5 apples"),
    ],
)
def test_units_are_left_out_behind_a_number(answer: str, plain: str) -> None:
    assert without_unit(answer) == plain


def test_a_number_of_any_length_is_read_without_an_error() -> None:
    """Python refuses to convert integers of 4,301 digits."""
    long = "9" * 4301
    for answer in (
        long,
        f"1 {long}/3",
        f"0.{long}",
        f"1/{long}",
        rf"\frac{{{long}}}{{2}}",
        f"–{long}",
    ):
        assert as_number(answer) is None
        for kind in ("number", "math", "text"):
            assert same_answer("5", answer, kind) is False and same_answer(answer, answer, kind)
    assert as_number("9" * 900) == int("9" * 900)
