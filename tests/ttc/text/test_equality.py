"""One equality for grading and for voting: a table of pairs with where each comes from."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc.text.equality import ballots, same_answer
from ttc.text.numbers import as_number
from ttc.text.units import split_unit

FILE = Path(__file__).parents[2] / "data" / "equality.jsonl"
CORPUS = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
"""Pairs of answers, of kind "math" where `answers` says no other: equal or not, a trap for an
obvious rule or not, with the kind of pair and where it comes from."""
MATHS = [pair for pair in CORPUS if "answers" not in pair]


def test_the_corpus_has_pairs_of_all_kinds_without_one_twice() -> None:
    pairs = {(pair["gold"], pair["predicted"], pair.get("answers")) for pair in CORPUS}
    assert len(pairs) == len(CORPUS) >= 400
    assert sum(pair["trap"] for pair in CORPUS) >= 200
    assert sum(pair["equal"] for pair in CORPUS) >= 200 <= sum(not pair["equal"] for pair in CORPUS)


def test_the_corpus_is_graded_and_voted_as_it_says() -> None:
    """Whichever of the two is gold."""
    wrong = []
    for pair in CORPUS:
        two, kind = [pair["gold"], pair["predicted"]], pair.get("answers", "math")
        verdicts = [same_answer(*two, kind), same_answer(*two[::-1], kind)]
        votes = ballots(two, kind)
        if {*verdicts, votes[0] == votes[1]} != {pair["equal"]}:
            wrong.append((two, kind, verdicts, votes))
    assert wrong == []


def test_every_answer_of_the_corpus_is_itself() -> None:
    for answer in {pair[side] for pair in MATHS for side in ("gold", "predicted")}:
        assert same_answer(answer, answer, "math"), answer
        assert same_answer(answer, f" {answer} ", "math"), answer


EXACT = (
    r"""
0.5x|x/2|\frac{x}{2}|\frac12 x|(x+x)/4|2x|x+x|x|y|x^2|xx|x=5|5=x|y=5|2x=10|\{1,2\}|\{2,1,1\}
(1,2)|(2,1)|[1,2]|x<2|(-\infty,2)|2x<4|x>2|\sqrt{8}|2sqrt(2)|8^(1/2)|pi/2|\frac{\pi}{2}|\text{even}
Even|odd|6:30 p.m.|18:30|6:30 a.m.|5 cm|5\text{ m}|500 cm|x+1|1+x
x-1|\emptyset|no solution|1,2|2,1|1,3|abc|cba
""".strip()
    .replace("\n", "|")
    .split("|")
)
UNNAMED = {"y=5", "5 cm", "x=5", "5=x", "2x=10"}
"""What equals 5 too, which has no letter and no unit, equals it in two ways."""


@settings(max_examples=examples(200))
@given(*[st.sampled_from([*EXACT, *(pair["gold"] for pair in MATHS)])] * 2)
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


LARGE = (
    r"""
9**9**9**9 | 9^{9^{9^{9}}} | (9^9)! | 9!!!!!! | 2^{2^{2^{2^{2^2}}}} | \exp(\exp(\exp(9)))
\binom{10^9}{10^8} | \sin(9^{99999}) | 1e9999 | x^{9^9} | \sinh(9^9) | 7**-9**9
""".strip()
    .replace("\n", " | ")
    .split(" | ")
)


@pytest.mark.parametrize("answer", LARGE)
def test_numbers_of_any_size_are_compared_at_once(answer: str) -> None:
    from ttc.text import math_equality

    before = math_equality.undecided()
    assert not same_answer("5", answer, "math") and same_answer(answer, answer, "math")
    assert math_equality.undecided() == before


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
        f"{long} 1/3",
        f"0.{long}",
        f"1/{long}",
        rf"\frac{{{long}}}{{2}}",
        f"–{long}",
    ):
        assert as_number(answer) is None
        for kind in ("number", "math", "text"):
            assert same_answer("5", answer, kind) is False and same_answer(answer, answer, kind)
    assert as_number("9" * 900) == int("9" * 900)
