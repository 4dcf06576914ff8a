"""Which of the lettered choices a text names as its answer.

The benchmarks' readers each know some forms: MMLU-Pro (`evaluate_from_api.py`) "answer is (B)",
then "Answer: B", then the last single letter; simple-evals (GPQA, MMLU) "Answer: $B$" without
markup; lm-eval (GPQA) the last letter in brackets. This reads all of them, what is stated before
what is only marked, and the last of its kind: reasoning names other choices first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_WIDE = {ord("Ａ") + place: letter for place, letter in enumerate(LETTERS)} | {ord("："): ":"}
"""Full-width letters and colons, as in Chinese and Japanese answers."""

_SCRIPT = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_BESIDE_SCRIPT = re.compile(rf"(?<=[{_SCRIPT}])(?=[A-Z])|(?<=[A-Z])(?=[{_SCRIPT}])")
"""Between a Chinese, Japanese or Korean character and a letter, which no blank parts."""

# Quantifiers that keep what they took (++, *+) and limited ones make every pattern linear.
_MARKUP = (
    r"(?:[\s*_`~$\"'“”‘’\[({:>-]"
    r"|\\(?:text|textbf|textit|textrm|mathbf|mathrm|mathsf|boxed|fbox|bf|rm|[\[(,;:! {])){0,64}+"
)
_STATED = rf"{_MARKUP}(?:(?i:option|choice|letter)\b{_MARKUP})?+"
_OF_IT = r"(?:\s++(?:here|to\s++(?:the|this)\s++(?:question|problem)))?+"
_RIGHT, _NOUN = "(?:correct|right|best)", "(?:answer|choice|option)"
_ALMOST = r"(?:(?:also|clearly|obviously|simply|tempting|plausible|close|but)\s++){0,3}+"
_WRONG = rf"(?!\W{{0,8}}+(?:is|are|was)\s++{_ALMOST}(?:wrong|incorrect|false|untrue|not)\b)"
_ARTICLE = r"(?![ \t]++(?!(?:is|because|since|as|for|and|or|not|due)\b)[a-z])"
"""Follows A and I where they are choices; before another small word they are words."""


@dataclass(frozen=True)
class _Patterns:
    """answer: a choice stated after "answer". stated: also after "choice is", in a box or before
    "is correct". marked: in brackets, bold or alone on a line. single: any letter that stands
    alone."""

    answer: re.Pattern[str]
    stated: re.Pattern[str]
    marked: re.Pattern[str]
    single: re.Pattern[str]


def stated_choice(text: str, letters: str | None = None) -> str | None:
    """The last choice after "answer", as in "The answer is (B)" or "Answer: **B**", or None.

    letters: those of the problem's choices, if they are known; others are no answer.
    """
    return _last(_patterns(letters).answer, _plain(text))


def find_choice(text: str, letters: str | None = None) -> str | None:
    """The choice that a text names as its answer, or None. letters: as for `stated_choice`.

    1. what is stated: after "answer" or "answer is", "the correct choice is", in a `\\boxed{}`, or
       as "option B is correct", "B is the right answer";
    2. else what is marked: (B), [B], **B**, \\textbf{B}, or B alone on a line;
    3. else a single letter, of A to J where the choices are not known (MMLU-Pro's last stage).
    Of each, the last one counts. What is marked or single is no answer where it is said to be
    wrong. The words A and I are no choices, nor are small letters.
    """
    patterns, plain = _patterns(letters), _plain(text)
    by_rank = patterns.stated, patterns.marked, patterns.single
    return next(filter(None, (_last(pattern, plain) for pattern in by_rank)), None)


@lru_cache(maxsize=256)
def _patterns(letters: str | None) -> _Patterns:
    def one(of: str, ending: str = "") -> str:
        """A letter that is no word's beginning; A and I are none before a small word."""
        return rf"(?P<letter>[{of}](?!\w|['’]\w){ending})(?:(?<![AI])|{_ARTICLE})"

    known = "".join(re.escape(letter) for letter in letters or LETTERS)
    few = known if letters else "A-J"
    noun = r"(?<!\b[Ee]ach )(?<!\b[Ee]very )\b(?i:choice|option)"
    verb = r"(?:\s*+(?i:is|:|=|(?:should|would|must)\s++be)\s*+:?+)"
    said = rf"(?i:\banswer{_OF_IT})\**+{verb}?+|(?i:\banswers)\**+\s*+:"
    in_chinese = r"答案(?:应该|應該)?+\s*+[是为為:]?+"
    answer = rf"(?:{said}|{in_chinese}){_STATED}{one(known)}{_WRONG}"
    boxed = rf"\\f?box(?:ed)?+\s*+\{{{_STATED}{one(known)}"
    stated = rf"{noun}\**+{verb}{_STATED}{one(known)}{_WRONG}"
    whole = rf"(?P<letter>[{known}])(?!\w)[)\]]?+\**+\s++is\s++"
    the_answer = rf"(?<![\w'’\\-]){whole}(?i:the\s++(?:only\s++)?+{_RIGHT}\s++{_NOUN}\b)"
    right = rf"(?<!\b[Ii]f )(?<!whether ){noun}{_MARKUP}{whole}(?i:{_RIGHT}\b)"
    bracketed = rf"(?<!\b[A-Za-z])[(\[]\s?(?P<letter>[{known}])\s?[)\]](?!-\w){_WRONG}"
    bold = (
        r"(?:\*\*|\\(?:textbf|mathbf|text|mathrm)\s?\{)"
        rf"\(?(?P<letter>[{known}])\)?[.:]?(?:\*\*|\}}){_WRONG}"
    )
    alone = rf"^[^\w\n]*+(?P<letter>[{known}])[^\w\n]*+$"
    single = rf"(?<![\w'’\\-]){one(few, '(?!-[A-Za-z0-9])')}{_WRONG}"
    return _Patterns(
        answer=_any(answer),
        stated=_any(answer, stated, boxed, the_answer, right),
        marked=_any(bracketed, bold, alone),
        single=_any(single),
    )


def _plain(text: str) -> str:
    return _BESIDE_SCRIPT.sub(" ", text.translate(_WIDE))


def _any(*patterns: str) -> re.Pattern[str]:
    named = (pattern.replace("?P<letter>", f"?P<letter{i}>") for i, pattern in enumerate(patterns))
    return re.compile("|".join(named), re.MULTILINE)


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    letter = None
    for match in pattern.finditer(text):
        letter = match[match.lastgroup or 0]
    return letter
