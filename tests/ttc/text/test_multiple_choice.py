"""Choices as the official readers of the benchmarks read them: a table with where each case comes
from."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ttc.text.answers import extract_answer
from ttc.text.multiple_choice import find_choice, stated_choice


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
HERE: list[tuple[str, str | None, str]] = [
    (r"If the answer is A, it would float. Hence \boxed{C}", "C", "the last statement"),
    (r"\boxed{A}? No. The answer is (D).", "D", "the last statement"),
    ("The answer is A. Wait. The answer is B.", "B", "the last statement"),
    (r"The final answer is $\boxed{B}$. I hope it is correct.", "B", "minerva's form"),
    (r"\boxed{\text{(B)}}", "B", "markup in a box"),
    (r"\boxed{\mathrm{B}}", "B", "markup in a box"),
    (r"\boxed{B. 12\text{ m}}", "B", "a choice with its text in a box"),
    (r"\boxed{B) 12}", "B", "a choice with its text in a box"),
    (r"\boxed{A bird}", None, "the article"),
    ("A bird in the hand", None, "the article"),
    ("I think that I cannot say.", None, "the pronoun"),
    ("The answer is A good one: (B)", "B", "the article"),
    ("Answer: I am not sure", None, "the pronoun"),
    ("The answer is I.", "I", "the ninth choice"),
    ("Hence A is right", "A", "no article before a verb"),
    ("The answer is 'B'.", "B", "quotes"),
    ("The answer is “B”.", "B", "quotes"),
    ("B's mass is 3", None, "a name"),
    ("the answer is b", "B", "a small letter that ends its clause"),
    ("P(A) = 0.3, so it is C.", "C", "a function is no choice in brackets"),
    ("The (E)-alkene wins.\nB", "B", "a part of a word"),
    ("We drop B.\nC", "C", "alone on a line"),
    ("A, B or C?\n\n**D**\n", "D", "alone on a line"),
    ("so **C** (see above)", "C", "bold"),
    (r"so \textbf{C} it is", "C", "bold"),
    ("B is correct, since A is wrong", "B", "a wrong choice"),
    ("(B) fits, but (A) is not correct", "B", "a wrong choice"),
    ("**C** fits. **A** is incorrect.", "C", "a wrong choice"),
    ("A is wrong", None, "a wrong choice"),
    ("答案是B", "B", "no blank in Chinese"),
    ("正确答案为 B，因为A错了", "B", "what is stated"),
    ("选B", "B", "no blank in Chinese"),
    ("正解はBです", "B", "no blank in Japanese"),
    ("정답은 C입니다", "C", "no blank in Korean"),
    ("Answer：Ｂ", "B", "full-width, as simple-evals' multilingual mapping"),
    ("答案：(B)", "B", "brackets in any language"),
    ("The answer should be (B)", "B", "another verb"),
    ("The right option is: D", "D", "another noun"),
    ("vitamin C-rich", None, "a part of a word"),
    ("Choice (B) is correct, not choice (A).", "B", "before is correct"),
    (
        "Option A is incorrect. Option B is correct. Option C is incorrect.",
        "B",
        "before is correct",
    ),
    ("**Option B** is right, as A = F/m.", "B", "before is correct"),
    ("If option B is correct, it floats. Thus (C).", "C", "a condition states nothing"),
    ("Option B is not correct. Thus (C).", "C", "a negation states nothing"),
    ("(B) is the right answer; A and C are not.", "B", "before is the right answer"),
    ("B is the only correct option, not A.", "B", "before is the right answer"),
    ("The answer to this question is B, not C.", "B", "an answer to something"),
    ("The right answer here is (B). Note that (A) fails.", "B", "an answer to something"),
    ("The answer choices:\n\n(A) Small.\n(B) Fits.\n\nWe choose (B).", "B", "a list states none"),
    ("Each option:\n\nA) Too small.\nB) Fits.\n\nThus **B** fits best.", "B", "a list states none"),
    ("The answer is B.\n- Answer A is incorrect.\n- Answer C is not.", "B", "a wrong answer"),
    ("The answer is B. The other answers (A, C) do not apply.", "B", "other answers"),
    ("The answer is B. Answers A and C are wrong.", "B", "other answers"),
    ("The answer is B. Answer choice D is tempting but wrong.", "B", "a wrong answer"),
    ("Answers: B", "B", "a heading"),
]


@pytest.mark.parametrize(("text", "letter", "official"), OFFICIAL)
def test_what_the_official_readers_read_is_read(
    text: str, letter: str | None, official: Callable[[str], str | None]
) -> None:
    assert official(text) == letter  # or the case would not be theirs
    assert find_choice(text) == extract_answer(text, "choice") == letter


@pytest.mark.parametrize(("text", "letter", "rule"), HERE)
def test_what_they_leave_open_follows_rules(text: str, letter: str | None, rule: str) -> None:
    assert find_choice(text) == letter, rule


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (B).", "B"),
        ("**Answer:** B", "B"),
        ("Answer: $B$", "B"),
        ("The correct answer is: option E", "E"),
        (r"The answer is \boxed{\text{C}}", "C"),
        ("The answer is B. The answer is C.", "C"),
        (r"\boxed{B}", None),
        ("The correct choice is B.", None),
        ("(B)", None),
        ("It must be B", None),
        ("the answer is not (A) but (C)", None),
        ("Let's see the answer choices:\n\n(A) This is too small, since", None),  # cut off
    ],
)
def test_strict_is_a_letter_after_answer(text: str, letter: str | None) -> None:
    assert stated_choice(text) == extract_answer(text, "choice", strict=True) == letter


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


def test_there_are_cases_of_every_source() -> None:
    assert len(OFFICIAL) + len(HERE) >= 60
