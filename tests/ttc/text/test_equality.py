"""One equality for grading and for voting: a table of pairs with where each comes from."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.clocks import assert_linear
from tests.helpers.tiers import examples
from ttc.text.equality import ballots, same_answer
from ttc.text.formulas import read_formula
from ttc.text.numbers import as_number
from ttc.text.units import split_unit

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
    from math_verify import parse, verify

    left, right = (parse(f"${answer}$", parsing_timeout=None) for answer in (gold, predicted))
    assert verify(left, right, timeout_seconds=None)


CORPUS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "equality.jsonl")
    .read_text("utf-8")
    .splitlines()
]
"""Pairs of answers of kind "math": equal or not, a trap for an obvious rule or not, with the kind
of pair and where it comes from."""


def test_the_corpus_has_pairs_of_all_kinds_without_one_twice() -> None:
    pairs = {(pair["gold"], pair["predicted"]) for pair in CORPUS}
    assert len(pairs) == len(CORPUS) >= 400
    assert sum(pair["trap"] for pair in CORPUS) >= 200
    assert sum(pair["equal"] for pair in CORPUS) >= 200 <= sum(not pair["equal"] for pair in CORPUS)


def test_the_corpus_is_graded_and_voted_as_it_says() -> None:
    """Whichever of the two is gold."""
    wrong = []
    for pair in CORPUS:
        gold, predicted = pair["gold"], pair["predicted"]
        verdicts = [same_answer(gold, predicted, "math"), same_answer(predicted, gold, "math")]
        votes = ballots([gold, predicted], "math")
        if {*verdicts, votes[0] == votes[1]} != {pair["equal"]}:
            wrong.append((gold, predicted, verdicts, votes))
    assert wrong == []


def test_every_answer_of_the_corpus_is_itself() -> None:
    for answer in {pair[side] for pair in CORPUS for side in ("gold", "predicted")}:
        assert same_answer(answer, answer, "math"), answer
        assert same_answer(answer, f" {answer} ", "math"), answer


EXACT = [
    *("0.5x", "x/2", r"\frac{x}{2}", r"\frac12 x", "(x+x)/4", "2x", "x+x", "x", "y", "x^2", "xx")
]
EXACT += ["x=5", "5=x", "y=5", "2x=10", r"\{1,2\}", r"\{2,1,1\}", "(1,2)", "(2,1)", "[1,2]", "x<2"]
EXACT += [
    r"(-\infty,2)",
    "2x<4",
    "x>2",
    r"\sqrt{8}",
    "2sqrt(2)",
    "8^(1/2)",
    "pi/2",
    r"\frac{\pi}{2}",
]
EXACT += [r"\text{even}", "Even", "odd", "6:30 p.m.", "18:30", "6:30 a.m.", "5 cm", "5\\text{ m}"]
EXACT += [
    "500 cm",
    "x+1",
    "1+x",
    "x-1",
    r"\emptyset",
    "no solution",
    "1,2",
    "2,1",
    "1,3",
    "abc",
    "cba",
]
UNNAMED = {"y=5", "5 cm", "x=5", "5=x", "2x=10"}
"""What equals 5 too, which has no letter and no unit, equals it in two ways."""


@settings(max_examples=examples(200))
@given(*[st.sampled_from([*EXACT, *(pair["gold"] for pair in CORPUS)])] * 2)
def test_equality_is_symmetric_and_votes_follow_it(left: str, right: str) -> None:
    same = same_answer(left, right, "math")
    assert same is same_answer(right, left, "math")
    for answers in ([left, right], [right, left]):
        votes = ballots(answers, "math")
        assert (votes[0] == votes[1]) is same


@pytest.mark.slow
def test_equality_of_exact_answers_is_transitive() -> None:
    """Where a unit, a name or brackets are left out in none, three answers agree or don't."""
    exact = [answer for answer in EXACT if answer not in UNNAMED | {"1,2", "2,1"}]
    same = {
        pair: same_answer(*pair, "math")  # type: ignore[misc]
        for pair in combinations(exact, 2)
    }
    for one, two, three in combinations(exact, 3):
        assert [same[one, two], same[two, three], same[one, three]].count(True) != 2, (
            one,
            two,
            three,
        )


TERMS = st.recursive(
    st.sampled_from(["x", "y", "2", "3", "7", r"\pi", "e^x", r"\sqrt{3}", "0.5"]),
    lambda terms: st.one_of(
        st.tuples(terms, terms).map(lambda two: f"({two[0]}+{two[1]})"),
        st.tuples(terms, terms).map(lambda two: f"({two[0]})({two[1]})"),
        st.tuples(terms, terms).map(lambda two: rf"\frac{{{two[0]}}}{{{two[1]}}}"),
        terms.map(lambda term: rf"\sin({term})"),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(60))
@given(TERMS, TERMS)
def test_what_is_written_in_another_way_is_equal_and_what_is_more_is_not(
    one: str, two: str
) -> None:
    assert same_answer(f"{one}+{two}", f"{two} + {one}", "math")
    assert same_answer(rf"{one} \cdot ({two})", f"({two})*({one})", "math")
    assert not same_answer(one, f"{one}+1", "math")
    typed = one.replace(r"\pi", "pi").replace(r"\sin", "sin").replace(r"\sqrt{3}", "sqrt(3)")
    if r"\frac" not in typed:
        assert same_answer(one, typed, "math")


@settings(max_examples=examples(100))
@given(st.integers(-(10**4), 10**4), st.integers(1, 1000), st.integers(-40, 40))
def test_plain_numbers_are_compared_by_their_size(top: int, bottom: int, exponent: int) -> None:
    written = rf"{top}.5 \times 10^{{{exponent}}}"
    assert same_answer(written, f"{top}.50e{exponent}", "math")
    assert not same_answer(written, rf"{top + 1}.5 \times 10^{{{exponent}}}", "math")
    fraction = rf"\frac{{{top}}}{{{bottom}}}"
    assert same_answer(fraction, f"{2 * top}/{2 * bottom}", "math")
    assert not same_answer(fraction, f"{top * 10**9 + 1}/{bottom * 10**9}", "math")


LARGE = [
    "9**9**9**9",
    "9^{9^{9^{9}}}",
    "(9^9)!",
    "9!!!!!!",
    "2^{2^{2^{2^{2^2}}}}",
    r"\exp(\exp(\exp(9)))",
]
LARGE += [r"\binom{10^9}{10^8}", r"\sin(9^{99999})", "1e9999", "x^{9^9}", r"\sinh(9^9)", "7**-9**9"]


@pytest.mark.parametrize("answer", LARGE)
def test_numbers_of_any_size_are_compared_at_once(answer: str) -> None:
    from ttc.text import math_equality

    before = math_equality.undecided()
    assert not same_answer("5", answer, "math") and same_answer(answer, answer, "math")
    assert math_equality.undecided() == before


PIECES = [
    "(",
    "{",
    "|",
    "[",
    "-",
    "x",
    "1,",
    "1 ",
    "\\frac",
    "\\frac{",
    "sin",
    "^",
    "2^",
    "_{",
    "\\{",
]
PIECES += [
    "x=",
    "\\text{a}",
    "\\begin{pmatrix}",
    "a and ",
    "√",
    "!",
    "1 cm ",
    "$",
    "\\pm 1",
    "0.1(",
]
PIECES += ["+x", "x ", "1/", "9!", "\\sqrt", "f(", "x_", "and ", "~", "\\,", "1%", "x<", "1:"]


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES)
def test_reading_formulas_and_units_is_linear(piece: str) -> None:
    def read(chars: int) -> None:
        text = piece * (chars // len(piece))
        read_formula(text)
        split_unit(text)

    assert_linear(read, 8000)


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
        ("5 apples", "5"),
    ],
)
def test_units_are_left_out_behind_a_number(answer: str, plain: str) -> None:
    assert split_unit(answer)[0] == plain


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
