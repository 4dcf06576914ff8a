"""Choices as the official readers of the benchmarks read them: a table with where each case comes
from."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ttc.text.answers import extract_answer
from ttc.text.multiple_choice import find_choice


def mmlu_pro(text: str) -> str | None:
    """The three stages of MMLU-Pro's evaluate_from_api.py."""
    if found := re.search(r"answer is \(?([A-J])\)?", text):
        return found[1]
    if found := re.search(r".*[aA]nswer:\s*([A-J])", text):
        return found[1]
    found = re.search(r"\b[A-J]\b(?!.*\b[A-J]\b)", text, re.DOTALL)
    return found[0] if found else None


def simple_evals(text: str) -> str | None:
    """simple-evals' pattern for multiple choice, on a response whose markup is stripped as its
    common.py does."""
    for markup in ("**", "$\\boxed{", "}$", "\\$", "$\\text{", "$", "\\mathrm{", "\\{", "\\text"):
        text = text.replace(markup, "")
    for markup in ("\\(", "\\mathbf{", "{", "\\boxed"):
        text = text.replace(markup, "")
    found = re.search(r"(?i)Answer[ \t]*:[ \t]*\$?([A-D])\$?", text)
    return found[1] if found else None


def lm_eval(text: str) -> str | None:
    """lm-eval's flexible-extract of gpqa_*_cot_zeroshot: the last letter in brackets."""
    found = re.findall(r"\(([A-Z])\)", text)
    return found[-1] if found else None


OFFICIAL: list[tuple[str, str | None, Callable[[str], str | None]]] = [
    ("The answer is (B).", "B", mmlu_pro),
    ("The answer is B.", "B", mmlu_pro),
    ("the best answer is (J)", "J", mmlu_pro),
    ("So the answer is (C) because of gravity.", "C", mmlu_pro),
    ("The answer is A because it is warm.", "A", mmlu_pro),
    ("The answer is B, because (A) and (C) ignore friction.", "B", mmlu_pro),
    ("Step by step. Answer: F", "F", mmlu_pro),
    ("answer: G", "G", mmlu_pro),
    ("Answer:\n\nD", "D", mmlu_pro),
    ("I compare A with B. Only D remains", "D", mmlu_pro),
    ("It must be H", "H", mmlu_pro),
    ("B) 12 m/s", "B", mmlu_pro),
    ("So option E", "E", mmlu_pro),
    ("'B'", "B", mmlu_pro),
    ('"B"', "B", mmlu_pro),
    ("$B$", "B", mmlu_pro),
    ("**B**", "B", mmlu_pro),
    (r"\boxed{B}", "B", mmlu_pro),
    (r"\boxed{\textbf{B}}", "B", mmlu_pro),
    ("The correct choice is B.", "B", mmlu_pro),
    ("no letter here", None, mmlu_pro),
    ("Answer: B", "B", simple_evals),
    ("Answer: $B$", "B", simple_evals),
    ("**Answer:** B", "B", simple_evals),
    ("**Answer: B**", "B", simple_evals),
    ("**Answer**: B", "B", simple_evals),
    (r"Answer: $\boxed{C}$", "C", simple_evals),
    (r"Answer: $\text{C}$", "C", simple_evals),
    (r"Answer: \(\mathbf{D}\)", "D", simple_evals),
    (r"Answer : \boxed{A}", "A", simple_evals),
    ("ANSWER: A", "A", simple_evals),
    ("I think (A) is wrong, so (D)", "D", lm_eval),
    ("(B)", "B", lm_eval),
    ("(A) is too small and (C) too large; it is (B), where E is the energy.", "B", lm_eval),
    ("Let me weigh them.\n(C)", "C", lm_eval),
]


@pytest.mark.parametrize(("text", "letter", "official"), OFFICIAL)
def test_what_the_official_readers_read_is_read(
    text: str, letter: str | None, official: Callable[[str], str | None]
) -> None:
    assert official(text) == letter  # or the case would not be theirs
    assert find_choice(text) == extract_answer(text, "choice") == letter


@pytest.mark.parametrize(
    ("text", "choices", "letter"),
    [
        ("The answer is E.", "ABCD", None),
        ("(B) fits, and (E) is the field", "ABCD", "B"),
        ("So it is K", "ABCD", None),
        ("So it is K", "ABCDEFGHIJK", "K"),
        ("So it is K", None, None),  # MMLU-Pro's last stage reads A to J
        ("I would say B", "ABCD", "B"),
        ("C, though I doubt it", "ABCDEFGHIJ", "C"),
        ("The answer is C.", "ABD", None),  # a choice that was left out
    ],
)
def test_letters_beyond_the_choices_are_no_answer(
    text: str, choices: str | None, letter: str | None
) -> None:
    assert extract_answer(text, "choice", choices=choices) == letter
