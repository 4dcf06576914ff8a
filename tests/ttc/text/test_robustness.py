"""No text that a model could write holds up extraction or grading, or ends it with an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.clocks import assert_linear
from tests.helpers.tiers import examples
from ttc import InvalidInput
from ttc.text.answers import KINDS, check_gold, extract_answer
from ttc.text.boxes import boxed
from ttc.text.equality import ballots, canonical, same_answer
from ttc.text.numbers import as_number
from ttc.text.units import split_unit
from verifiers.arithmetic import ArithmeticVerifier, numbers_in
from verifiers.equations import find_equations, stated_operands

CHARS = 40_000

PIECES = (
    r"""
 ¦1¦1 ¦A¦A ¦(A)¦(A¦(¦{¦}¦\¦$¦*¦,¦=¦-¦–¦.¦\boxed{¦\boxed¦\boxed ¦\boxed{1}¦{\boxed{¦\frac{
\frac{1}{¦\frac1¦\text{¦answer¦answer ¦answer is¦answer is ¦answer:¦Answer: A a ¦#### ¦####=
choice is ¦choice:¦option ¦1,¦1,111,¦1/1¦1.¦1. ¦1=¦1+1=2 ¦1 1/2 ¦12 ¦1%¦9^{9^{¦<think>¦</think>
1=1+1=¦'¦“¦[B]¦\text{B}¦ cm¦^\circ¦\left¦\,¦<<¦<<1=1¦2^¦x=1¦a b c ¦é¦²¦½¦٣¦−¦Ａ¦∞¦1e5¦1_0¦_¦$$¦\(
\[¦$x¦10^¦x10^{¦ x 1¦1{,}¦\times ¦√(¦sqrt(¦option B is ¦B is the ¦answer to the 
answer is therefore ¦[¦-¦x¦\frac¦sin¦^¦2¦\{¦x=¦\text{a}¦\begin{pmatrix}¦a and ¦√¦!¦1 cm ¦\pm 1
0.1(¦+x¦x ¦1/¦9!¦\sqrt¦f(¦x_¦and ¦~¦1%¦x<¦1:
""".strip("\n")
    .replace("\n", "¦")
    .split("¦")
)
PIECES += ["\n", "\t", "A\n", "\u2028", "\r"]
READERS: dict[str, Callable[[str], object]] = {
    "number": lambda text: extract_answer(text, "number"),
    "choice": lambda text: extract_answer(text, "choice"),
    "math": lambda text: extract_answer(text, "math"),
    "text": lambda text: extract_answer(text, "text"),
    "boxed": boxed,
    "canonical": lambda text: canonical(text, "math"),
    "as_number": as_number,
    "split_unit": lambda text: split_unit(text)[0],
    "same_answer": lambda text: same_answer("5", text, "math"),
    "equations": find_equations,
    "operands": stated_operands,
    "numbers_in": numbers_in,
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_takes_time_linear_in_the_text(reader: str) -> None:
    """30,000 newlines took a quadratic pattern of a choice 7 s, and 19,000 characters of boxes 1
    s."""
    for piece in PIECES:

        def read(chars: int, piece: str = piece) -> None:
            text = "The answer is " + piece * (chars // len(piece) + 1)
            READERS[reader](text[:chars] + "\\boxed{")

        assert_linear(read, CHARS)


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["1 + 1 = 2. Then ", "12 + 3 = 15 apples and then "])
def test_rating_arithmetic_takes_time_linear_in_the_steps(piece: str) -> None:
    """Of 40,000 characters in 1,000 steps it read the whole text again at each step, for
    minutes."""

    def rate(chars: int) -> None:
        text = piece * (chars // len(piece))
        steps = [text[i : i + 40] for i in range(0, len(text), 40)]
        assert len(ArithmeticVerifier().rate_text(steps, "1 and 2", True)) == len(steps)

    assert_linear(rate, CHARS)


PARTS = st.sampled_from([*PIECES, "5", "12", "B", "cm", "%", "percent", "Wait, ", "(3,4)", "x"])
TEXTS = st.one_of(st.text(max_size=60), st.lists(PARTS, max_size=12).map("".join))


@settings(max_examples=examples(300))
@given(TEXTS, st.sampled_from(KINDS), st.booleans(), st.sampled_from([None, "ABCD", "AI"]))
def test_reading_never_raises(text: str, kind: str, strict: bool, choices: str | None) -> None:
    answer = extract_answer(text, kind, strict, choices)
    assert answer is None or isinstance(answer, str)
    if kind == "choice" and answer is not None:
        assert len(answer) == 1 and answer in (choices or "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    (vote,) = ballots([answer], kind)
    assert (vote is None) == (answer is None or not answer.strip())
    find_equations(text)
    numbers_in(text)
    stated_operands(text)


@settings(max_examples=examples(200))
@given(TEXTS, TEXTS, st.sampled_from(["number", "choice", "text"]))
def test_grading_never_raises_and_an_answer_is_itself(gold: str, predicted: str, kind: str) -> None:
    assert isinstance(same_answer(gold, predicted, kind), bool)
    assert same_answer(gold, gold, kind) == bool(gold.strip())


@settings(max_examples=examples(40))
@given(TEXTS)
def test_a_gold_answer_is_good_or_refused(gold: str) -> None:
    for kind in KINDS:
        try:
            check_gold(gold, kind)
        except InvalidInput:
            continue
        if kind == "number":
            assert same_answer(gold, gold, kind)


@pytest.mark.parametrize("gold", ["3,5", "2,50 €", "1.234,5", "1.234.567"])
def test_a_gold_number_in_another_lands_form_is_told_the_form_to_write(gold: str) -> None:
    with pytest.raises(InvalidInput, match=f"{gold}.* is not a number.*with a decimal point"):
        check_gold(gold, "number")


def test_digits_without_end_are_no_number_and_no_error() -> None:
    long = "9" * 5000
    assert numbers_in(f"3 and {long}") == [3]
    assert stated_operands(f"1 + {long} + 2") == {2: 1}
    assert find_equations(f"1 + {long} = {long}") == []
    assert extract_answer(f"The answer is {long}.") == long and not same_answer("9", long)
    with pytest.raises(InvalidInput, match="is not a number"):
        check_gold(long, "number")
