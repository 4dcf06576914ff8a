"""Equations, the arithmetic verifier's order of preference, confidence, and the self-verifier
against plain logits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import words_engine
from tests.helpers.tiers import examples
from ttc import InvalidInput, UnsupportedModel
from ttc.branch import Branch
from ttc.text.conversation import Talk
from ttc.usage import Usage
from verifiers import (
    ArithmeticVerifier,
    ConfidenceGatedVerifier,
    ConfidenceVerifier,
    EnsembleVerifier,
    LLMJudge,
    LLMVerifier,
    QwenPRM,
    SelfVerifier,
    ThinkPRM,
    Tournament,
)
from verifiers.equations import find_equations
from verifiers.side_branches import shares

TRUE = [
    "3 * 4 = 12",
    "3 x 4 = 12",
    "3 × 4 ÷ 2 = 6",
    "20% of 50 = 10",
    "50 * 20% = 10",
    "1/2 of 10 = 5",
    "3 * (4 + 2) = 18",
    "-4 - 7 = -11",
    "$3 * 4 = $12",
    "3 boxes * 4 apples = 12 apples",
    "3 boxes × 4 apples/box = 12",
    "<<3*4=12>>12",
    r"$3 \times 4 = 12$",
    r"\frac{1}{2} * 10 = 5",
    "10 / 3 = 3.33",
    "1,200 + 300 = 1,500",
    "5 + 3 equals 8",
    "2^3 = 8",
    "So he has 12 - 2 = 10 apples left.",
    "16 - 3 - 4 = 9 duck eggs",
    "100 + 10% = 110",
    "25 / 1/3 = 75",
    "60 / 3/4 = 80",
    "1% of 50 equals 0.5",
    "32 water type / 96 Pokemon * 100% = 33.333...%",
    "1.2 x 100% = 120",
    "(7 days) for a total earnings of $30*7 = $210",
    "(which has 9 fruits) for a total of 9+3 = 12",
    "5 m * 3 = 15 m",
    "He has 5 + 6 = 11 and 3",
    "the change is -5 + 8 = 3",
    "2 + 3 = **5**",
    "**2 + 3 = 5**",
    "**2 * 3** = **6** apples",
    "2**3 = 8",
    "2 ** 3 = **8**",
    "2 ⋅ 3 = 6",
    "½ × 48 = 24",
    "48 ÷ ½ = 96",
    "６＋７＝１３",
    "٦ × ٧ = ٤٢",
    "6 ∕ 2 = 3",
    "3² + 1 = 10",
    "5 m² * 3 = 15 m²",
    "2 * 3^{2} = 18",
    r"\tfrac12 \cdot 10 = 5",
    "₹3 + ₹4 = ₹7",
    r"3{,}000 + 500 = 3{,}500",
    r"3\,000 + 500 = 3,\!500",
    "- 48 + 24 = 72",
    "* 10 + 3 = 13",
    "  • **10 - 3 = 7**",
    "2) 10 + 3 = 13",
    "a) 10 + 3 = 13",
    "2,5 × 2 = 5",
    "Preis: 2,50 € × 4 = 10 €",
    "12,5% × 40 = 5",
    "1.200 + 300 = 1.500 €",
    "1.250 × 2 = 2.500",
    "1.250 + 2 = 3.25",
    "3 Äpfel + 4 Äpfel = 7 Äpfel",
    "3 яблока × 4 = 12",
    "We have 3, 5 × 2 = 10",
]
FALSE = [
    "3 * 4 = 13",
    "10 / 3 = 3.4",
    "20% of 50 = 20",
    "$3 * 4 = $14",
    "He has 12 - 2 = 9 apples left.",
    "<<3*4=11>>11",
    "2 + 3 = 6",
    "7 / 2 = 3",
    "So 2 + 3 = **6**.",
    r"3{,}000 + 500 = 4{,}500",
    "¾ * 12 = 8",
    "６－７＝１３",
    "- 48 + 24 = 71",
    "2,5 × 2 = 6",
    "1.200 + 300 = 1.600 €",
    "2.125 + 1 = 3.225",
    "3 Äpfel + 4 Äpfel = 8 Äpfel",
    "a -5 + 8 = 13",
]
NONE = [
    "(9/2)x=2700",
    "3*x-18=48",
    "70=(3/2)x-5",
    "50 - 2 x = 10",
    "3 * 4 + 2 Y = 20",
    "3 * (x + 9) = (Y + 9)",
    "8*X + 15*(X+25) = $720",
    "Y + Y - 7 + 4 (Y - 7) = 37",
    "100-x+40-30 = 60",
    "B + B -20 + B - 10 = 45",
    "3r + 5(r + 2) = 42",
    "22 - 16 = 16 + x - 16",
    "60 - Losses - 2 Losses = -30",
    "C-1=(C+5)/2",
    "4 W^2 = 100",
    "D3 = 2 * 322",
    "2x² + 1 = 9",
    "a² + 3² = 25",
    "150 =10+4c.",
    "(1/2) 278 + 11 = 150",
    "5 - 1 - 1/2 = 3 1/2",
    "3 1/2 - 2 = 1 1/2",
    "4 / 3 = 1 and 1/3",
    "12 x 1 and 1/4 = 15",
    "$400 000 x 3/100 = $12 000",
    "600 x 30 = 18 000",
    "2/5 is equal to 12.8",
    "1% is equal to 240/40",
    "2/3 of the tank equals 16",
    "7:50 + 30 minutes = 8:20",
    "6:00+48=6:48",
    "x = 5",
    "In 2020 = 5",
    "3 * 4 =",
    "7 / 0 = 3",
    "2x + 4x = 700",
    "3x + 4 = 28",
    "12 = 12",
    "12 nickels = 12 * 5",
    "",
]


@pytest.mark.parametrize("text", TRUE)
def test_true_equations_hold(text: str) -> None:
    assert [e.holds for e in find_equations(text)] == [True]


@pytest.mark.parametrize("text", FALSE)
def test_false_equations_do_not(text: str) -> None:
    assert [e.holds for e in find_equations(text)] == [False]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_equation(text: str) -> None:
    assert find_equations(text) == []


def test_chains_are_checked_link_by_link() -> None:
    assert [e.holds for e in find_equations("3 * 4 = 12 = 6 * 2")] == [True, True]
    assert [e.holds for e in find_equations("2 + 3 = 5 + 1 = 6")] == [False, True]
    assert [e.holds for e in find_equations("He sells 2*3=6 and then 6+1=8")] == [True, False]


numbers = st.integers(-500, 500)


@given(
    st.lists(st.tuples(st.sampled_from("+-*"), numbers), min_size=1, max_size=4),
    numbers,
    st.integers(1, 50),
)
@settings(max_examples=examples(100))
def test_random_expressions(rest: list[tuple[str, int]], first: int, off: int) -> None:
    text = str(first) + "".join(f" {sign} {f'({n})' if n < 0 else n}" for sign, n in rest)
    value = eval(text)  # the reference; the text is built from digits and signs above
    (right,) = find_equations(f"{text} = {value}")
    assert right.holds and right.left == Fraction(value)
    (wrong,) = find_equations(f"{text} = {value + off}")
    assert not wrong.holds


QUESTION = "Tom has 3 boxes of 4 apples. He eats 2. How many are left?"


def rating(text: str, finished: bool = True, question: str = QUESTION) -> float:
    return ArithmeticVerifier().rate_text([text], question, finished)[-1]


def test_the_order_of_preference() -> None:
    right = rating("3 * 4 = 12\n12 - 2 = 10\nThe answer is 10.")
    assert right > rating("12 - 2 = 10\nThe answer is 10.")  # skips what the question gives
    assert right > rating("The answer is 10.")  # shows no work
    assert right > rating("3 * 4 = 12\n12 - 2 = 10\nThe answer is 12.")  # answers something else
    # brings in a number from nowhere
    assert right > rating("3 * 4 = 12\n12 + 57 = 69\nThe answer is 69.")
    # uses a number twice
    assert right > rating("3 * 4 = 12\n12 - 2 = 10\n10 - 4 = 6\nThe answer is 6.")
    wrong = rating("3 * 4 = 13\n13 - 2 = 11\nThe answer is 11.")
    assert wrong < 0.1 < right


def test_signs_that_the_question_states_are_kept() -> None:
    question = "What is 6 + 7 - 9?"
    assert rating("6 + 7 = 13\n13 - 9 = 4", question=question) > rating(
        "6 + 7 = 13\n13 + 9 = 22", question=question
    )


def test_each_step_is_rated_when_it_is_complete() -> None:
    verifier = ArithmeticVerifier()
    scores = verifier.rate_text(
        ["3 * 4 = 12\n", "12 - 2 = 1", "0\n", "12 - 2 = 9\n"], QUESTION, False
    )
    assert len(scores) == 4
    assert scores[0] > verifier.neutral
    assert scores[1] >= scores[0] * verifier.idle  # the cut-off equation isn't judged yet
    assert scores[2] > scores[0]
    assert scores[3] < scores[2] * 0.1
    assert verifier.rate_text([], QUESTION, False) == [verifier.neutral]


def test_an_annotated_equation_is_complete_when_it_is_written() -> None:
    verifier, question = ArithmeticVerifier(), "Tom has 3 boxes of 4 apples. How many?"
    (wrong,) = verifier.rate_text(["Tom has 3*4=<<3*4=99>>99 apples.\n"], question, False)
    (right,) = verifier.rate_text(["Tom has 3*4=<<3*4=12>>12 apples.\n"], question, False)
    assert wrong < 0.1 * right and right > verifier.neutral


def test_powers_of_powers_are_not_computed() -> None:
    assert find_equations("((9^64)^64)^64 = 5") == []
    assert [e.holds for e in find_equations("(2^3)^2 = 64")] == [True]


def test_numbers_of_earlier_turns_may_be_used_and_those_of_the_last_one_must() -> None:
    talk = [
        {"role": "user", "content": "What is 3 + 4?"},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": "And 2 more?"},
    ]
    asked = Talk.of(talk)
    right = rating("7 + 2 = 9\nThe answer is 9.", question=asked)
    assert right == rating("7 + 2 = 9\nThe answer is 9.", question="Add 7 and 2.")
    for wrong in ("3 + 4 = 7\nThe answer is 7.", "5 + 2 = 7\nThe answer is 7."):
        assert right > rating(wrong, question=asked)


RULES = ArithmeticVerifier()
TWO: dict[str, Any] = {"parts": [RULES, RULES]}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (ArithmeticVerifier, {"wrong": 1.5}, r"wrong=1\.5"),
    (ConfidenceVerifier, {"metric": "entropy"}, "entropy"),
    (SelfVerifier, {"question": " "}, "empty"),
    (SelfVerifier, {"question": None}, "question=None is of type NoneType; give text"),
    (SelfVerifier, {"thoughts": False}, "give fresh=True too"),
    (EnsembleVerifier, {"parts": []}, "no parts"),
    (EnsembleVerifier, {"parts": [RULES], "how": "median"}, "how='median' is unknown"),
    (EnsembleVerifier, TWO | {"accuracies": [0.9]}, "parts: 2, accuracies: 1; give one each"),
    (EnsembleVerifier, TWO | {"accuracies": [0.9, 1.0]}, "accuracies=1.0 must be more than 0 and"),
    (EnsembleVerifier, TWO | {"accuracies": "ab"}, "a list of numbers"),
    (EnsembleVerifier, TWO | {"accuracies": [0.4, 0.5]}, "none has a weight"),
    (EnsembleVerifier, TWO | {"accuracies": [0.9, 0.8], "how": "min"}, "accuracies weigh a mean"),
    (EnsembleVerifier, {"parts": RULES}, "is of type ArithmeticVerifier; give a list of veri"),
    (EnsembleVerifier, {"parts": ["self"]}, r"parts=\['self'\] is of type list; give a list of"),
    (ConfidenceGatedVerifier, {"inner": "self"}, "inner='self' is of type str; give a verifier"),
    (ConfidenceGatedVerifier, {"inner": ConfidenceGatedVerifier(RULES)}, "gate itself"),
    (LLMJudge, {"rubric": None}, "rubric=None is of type NoneType; give text"),
    (LLMJudge, {"grades": "5"}, "grades='5' is of type str; give a whole number"),
    (LLMJudge, {"grades": 10}, "grades=10"),
    (QwenPRM, {"separator": None}, "separator=None is of type NoneType; give text"),
    (ThinkPRM, {"samples": 4}, "samples=4 would all be the same"),
    (ThinkPRM, {"max_tokens": 0}, "max_tokens=0 must be at least 1"),
    (LLMVerifier, {"criteria": ()}, "criteria is empty"),
    (LLMVerifier, {"criteria": "right?"}, "criteria='right.' is of type str"),
    (LLMVerifier, {"grades": 27}, "grades=27 must be from 2 to 26"),
    (LLMVerifier, {"repeats": 4}, "repeats=4 would all be the same with max_tokens=0"),
    (Tournament, {"repeats": 2, "max_tokens": 9, "temperature": 0}, "temperature=0"),
    (Tournament, {"max_tokens": -1}, "max_tokens=-1"),
    (Tournament, {"opponents": 0}, "opponents=0"),
    (Tournament, {"criterion": " "}, "criterion is empty"),
]


@pytest.mark.parametrize(("kind", "settings", "message"), REFUSED)
def test_wrong_settings_are_refused(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        kind(**settings)


def test_confidence_is_a_mean_per_step() -> None:
    branch = Branch([1, 2], None, 0, Usage(), lambda tokens: "x" * len(tokens))
    branch.tokens += [3, 4, 5, 6]
    branch.top1, branch.logprobs, branch.step_ends = (
        [0.5, 1.0, math.nan, 0.25],
        [-1.0, -3.0, math.nan, -4.0],
        [4, 6],
    )
    empty = Branch([1], None, 0, Usage(), lambda tokens: "")
    rate = ConfidenceVerifier().rate
    assert rate([branch, empty], ["", ""], None) == [[0.75, 0.25], [0.0]]  # type: ignore[arg-type]
    assert ConfidenceVerifier("logprob").rate([branch], [""], None) == [[-2.0, -4.0]]


@pytest.mark.parametrize("metric", ["top1", "logprob"])
def test_an_answer_without_a_word_rates_worst(metric: Any) -> None:
    """One that holds nothing, and one that is nothing but an end-of-sequence token of which the
    model was sure."""
    nothing = Branch([1], None, 0, Usage(), lambda tokens: "")
    ended = Branch([1], None, 0, Usage(), lambda tokens: "")
    ended.append(2, -0.001, 0.999)
    ended.end_step("eos")
    unsure = Branch([1], None, 0, Usage(), lambda tokens: "x" * len(tokens))
    unsure.append(3, -90.0, 1e-6)
    unsure.end_step("length")
    rates = ConfidenceVerifier(metric).rate([nothing, ended, unsure], [""] * 3, None)
    assert max(rates[0], rates[1]) < rates[2] and all(math.isfinite(score) for (score,) in rates)


@pytest.mark.parametrize("chat", [False, True])
@torch.no_grad()
def test_self_verifier_equals_a_fresh_prompt(chat: bool) -> None:
    engine = words_engine()
    engine.tokenizer.chat_template = "yes" if chat else None
    branches = engine.roots([[9, 10, 11, 5, 6], [9, 10, 7, 7, 8, 11]]).result()
    before = engine.kv_bytes()
    found = SelfVerifier("is it right ?").rate(branches, ["", ""], engine)
    assert engine.kv_bytes() == before
    question = [0, 5, 6, 7, 8, 0, 9, 10] if chat else [5, 6, 7, 8, 7]
    engine.model.set_attn_implementation("sdpa")
    for branch, (score,) in zip(branches, found, strict=True):
        probs = engine.model(torch.tensor([branch.tokens + question])).logits[0, -1].softmax(-1)
        yes, no = float(probs[1] + probs[3]), float(probs[2] + probs[4])
        assert score == pytest.approx(yes / (yes + no), abs=1e-5)
    assert branches[0].usage.verifier_tokens == len(question) + 1
    assert branches[0].usage.generated_tokens == 0


def test_a_tokenizer_without_yes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = words_engine()
    monkeypatch.setattr(engine.tokenizer, "encode", lambda text, **_: [1, 2])
    with pytest.raises(UnsupportedModel, match="'yes'"):
        SelfVerifier("is it right ?").rate([engine.root([9, 10])], [""], engine)


def test_the_range_of_confidences_is_that_of_probabilities_or_of_their_logarithms() -> None:
    assert ConfidenceVerifier().score_range == (0.0, 1.0)
    assert ConfidenceVerifier("logprob").score_range == (-math.inf, 0.0)


def test_the_share_of_yes_overflows_for_no_log_probabilities() -> None:
    assert shares(list(map(math.log, (0.3, 0.1, 0.1))), [[1, 2], [3]]) == pytest.approx([0.8, 0.2])
    assert shares([-2000.0, 0.0], [[1], [2]]) == [0.0, 1.0]
    assert shares([-2000.0, -2000.0], [[1], [2]]) == [0.5, 0.5]
