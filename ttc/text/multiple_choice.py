"""Which of the lettered choices a text names as its answer: what is stated before what is only
marked, and the last of its kind, as reasoning names other choices first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache

from ttc.text.boxes import after_cut, last_box
from ttc.text.statements import (
    ANSWERS,
    CHOICES,
    CLOSED_SCRIPTS,
    MARKS,
    Nouns,
    Statement,
    alternatives,
    plain,
    statements,
)
from ttc.text.tables import AROUND_WORDS, LATIN, WORDS, languages

# Quantifiers that keep what they took (++, *+) and limited ones make every pattern linear.
_MARKUP = (
    r"(?:[\s*_`~$\"'“”‘’«»「」『』【】\[({}:>-]"
    rf"|{AROUND_WORDS}|\\(?:boxed|fbox|[\[(,;:! {{])){{0,64}}+"
)
_OPENING = re.compile(_MARKUP)
_WORD = rf"[^\W{CLOSED_SCRIPTS}]"
_ARTICLE = re.compile(rf"[ \t]++(?!(?:{WORDS['behind_letter']})\b)[a-z]")
"""Follows A and I where they are English words; before these small words they may be choices."""
_CLAUSE_END = re.compile(r"[)\]}*_`$\"'”’»]*+(?:\s*+$|[.,;:!?)\]}]|\s++(?:because|since|as|for)\b)")
_LINE_END = re.compile(r"[^\w\n]*+(?:\n|$)")
_SENTENCE_END = re.compile(r"[)\]}*_`]*+(?:[.!?]|\s*$)")
_SENTENCE = re.compile(r"[.!?\n。！？]")
_IF = re.compile(rf"\b(?:{WORDS['if']})\b", re.IGNORECASE)
_SUPPOSED = re.compile(
    r"\b(?:if|suppose|assuming|unless)\b[^.,;:!?\n]{0,30}"
    r"\b(?:answer|option|choice)\b[^.,;:!?\n]{0,16}$",
    re.IGNORECASE,
)
"""A letter in the condition itself is no answer: "If the answer were A, ..." """
_CLAIMED, _ALONE, _MARKED, _SMALL, _SINGLE = range(5)
"""How a letter is named, the best way first."""

Letters = Mapping[str, str]
"""Signs of choices, each with its capital Latin letter."""


def stated_choice(text: str, letters: str | None = None) -> str | None:
    """The last choice after "answer", as in "Answer: **B**" or "答案是B", or None.

    letters: those of the problem's choices, if they are known; others are no answer.
    """
    text = _with_signs(plain(text))
    choices = [letter for _, letter in _stated(text, _signs(text, letters), ANSWERS) if letter]
    return choices[-1] if choices else None


def find_choice(text: str, letters: str | None = None) -> str | None:
    """The choice that a text names as its answer, or None. letters: as for `stated_choice`.

    What is stated or stands in a `\\boxed{}` counts before what is claimed ("option B is correct"),
    this before a letter alone on a line, one that is marked ((B), **B**), and a single one, of A to
    J where the choices are not known.
    """
    text = _with_signs(plain(after_cut(text)))
    signs = _signs(text, letters)
    stated = dict(_stated(text, signs, CHOICES))
    if (box := last_box(text)) and (letter := _first(box.content, signs)) is not None:
        stated[box.start] = letter
    last = max(stated, default=0)
    listed = letters is not None
    if stated.get(last):
        taken_back = _TAKES_BACK.search(text, last)
        other = taken_back and _mentioned(text[taken_back.end() :], signs, listed, _CLAIMED)
        return other or stated[last]
    if not stated:
        small = _SMALL_ALONE.fullmatch(text)
        return _mentioned(small[1].upper() if small else text, signs, listed)
    several = _SEVERAL.search(text, last, last + 40)
    rest = text[several.end() if several else last :]
    choice = _mentioned(_SENTENCE_GAP.sub("\n", rest), signs, listed, worst=_ALONE)
    return choice or _mentioned(_REASON.split(rest, maxsplit=1)[0], signs, listed)


_TAKES_BACK = re.compile(rf"\b(?i:{WORDS['takes_back']})\b")
_NUMBERED = re.compile(
    r"(?:정답|답|答え|正解)[\sは은는이:*(]{0,6}[1-9](?=\)?\s?[번番])|گزینه\s[1-9](?!\d)"
)


def _with_signs(text: str) -> str:
    """A text with ② for the choice 2번."""
    return _NUMBERED.sub(lambda one: one[0][:-1] + "⓪①②③④⑤⑥⑦⑧⑨"[int(one[0][-1])], text)


_SMALL_ALONE = re.compile(r"\W*+([a-j])\W*+")
_SENTENCE_GAP = re.compile(r"(?<=[.!?。！？])\s+")
_REASON = re.compile(
    rf"[.!?;\n。！？；]|:(?!\s*+[*(]*+[A-J][)*]*+\s*+(?:[.\n]|$))|{WORDS['reason']}"
)
"""Ends what is said of several or of no choice; letters behind it are mentioned for other reasons:
"none of the above, as (A) and (D) fail"."""


def _stated(text: str, signs: Letters, nouns: Nouns) -> Iterator[tuple[int, str]]:
    for statement in statements(text, nouns):
        if statement.corrects and nouns == ANSWERS:
            continue
        if (letter := _letter_of(text, statement, signs)) is not None:
            yield statement.place, letter


def _letter_of(text: str, statement: Statement, signs: Letters) -> str | None:
    """The letter right at a statement's place; "" where it names several, or says that none is
    right."""
    if _NONE.match(text, statement.place):
        return ""
    opening = _OPENING.match(text, statement.place)
    at = opening.end() if opening else statement.place
    sign = text[at : at + 1]
    letter = signs.get(sign) or signs.get(sign.upper(), "") if sign else ""
    if letter and (several := _SEVERAL.match(text, at)):
        stated = statement.linked or statement.language.bare
        return "" if stated and len(set(several[0]) & set(signs)) > 1 else None
    is_sign = bool(letter) and _ends(text, at) and not _NO_CHOICE.match(text, at - 1)
    if not is_sign or _is_wrong(text, at + 1):
        return None
    return letter if _ends_statement(text, at, statement) else None


def _ends_statement(text: str, at: int, statement: Statement) -> bool:
    """Whether what stands behind a letter lets it be the answer."""
    sign, end, english = text[at], at + 1, statement.language.is_english
    if statement.hashes or (english and not statement.linked):
        return _LINE_END.match(text, end) is not None
    if not statement.linked and not statement.language.bare:
        return _SENTENCE_END.match(text, end) is not None
    if sign in "AI" and english:
        return _ARTICLE.match(text, end) is None
    small = sign.islower() and sign.isascii()
    return not small or text.startswith(") ", end) or _CLAUSE_END.match(text, end) is not None


_NO_CHOICE = re.compile(r"(?s:.)\w[、/]|[^\W\d_][가나다라마]")
"""One of several choices; 정답이다, "is the answer"."""
_NONE = re.compile(rf"[\s*_:(】]*+(?:{WORDS['none']})", re.IGNORECASE)
_ONE_MORE = (
    r"[)\]*\s]{0,4}+(?:[,、，/]|\b(?:and|or|und|et|y|e|и)\b|和|与|與|及|或)\s?"
    r"(?:(?:and|or)\s)?[(\[*]{0,3}+"
)
_SEVERAL = re.compile(
    rf"[A-J](?:(?:{_ONE_MORE}[A-J](?![A-Za-z\d])){{1,9}}|[A-J]{{1,9}})[)\]*]*+"
    r"(?=\s*+(?:[.。<}]|都|均|\n|$))"
)
"""A, C and D; BCD."""


def _first(content: str, signs: Letters) -> str | None:
    """The letter that a box begins with: B, \\text{B}, (B) 12, "option B"."""
    inner = _BOX_WORDS.sub("", content)
    opening = _OPENING.match(inner)
    at = opening.end() if opening else 0
    sign = inner[at : at + 1]
    letter = signs.get(sign)
    if letter is None and _LINE_END.match(inner, at + 1):
        letter = signs.get(sign.upper()) if sign else None
    if letter and _SEVERAL.match(inner, at):
        return ""
    if letter is None or not _ends(inner, at):
        return None
    return None if sign in "AI" and _ARTICLE.match(inner, at + 1) else letter


_BOX_WORDS = re.compile(r"\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer|[Ll]etter)\b:?\s?")


def _mentioned(text: str, signs: Letters, listed: bool, worst: int = _SINGLE) -> str | None:
    """The last letter of the best form that any has, which is `worst` or better."""
    text = _TOGETHER.sub(lambda several: " " * len(several[0]), text)
    best: dict[int, str] = {}
    few = signs.values() if listed else LATIN[:10]
    for mention in _mention("".join(signs)).finditer(text):
        sign, at = mention.group(), mention.start()
        letter = signs.get(sign) or signs[sign.upper()]
        form = _form(text, at, sign, letter in few)
        if form is not None and form <= worst:
            best[form] = letter
    return best[min(best)] if best else None


def _form(text: str, at: int, sign: str, single: bool) -> int | None:
    """How a letter is named at a place, or None where it is not: a word's part, an article, a
    choice that is said to be wrong."""
    end = at + 1
    before = text[max(0, at - 60) : at]
    if not _stands_alone(text, at) or _is_wrong(text, end):
        return None
    if sign.isascii() and sign.islower():
        return _SMALL if _is_bracketed(text, at) else None
    named = not _is_a_word(text, at, before)
    if named and _is_claimed(text, end, before, single):
        return _CLAIMED
    others = _OTHERS.match(text, end)
    if _SUPPOSED.search(before) or (others and _is_wrong(text, others.end())):
        return None
    if marked := _marked_form(text, at, before):
        return marked
    return _SINGLE if named and single and _is_single(text, at, before) else None


def _is_a_word(text: str, at: int, before: str) -> bool:
    """Whether A is an article, I a pronoun."""
    goes_on = text[at] in "AI" and _ARTICLE.match(text, at + 1)
    return bool(goes_on) and not _option().search(before.lower())


def _is_single(text: str, at: int, before: str) -> bool:
    part = _PART_OF_A_NAME.match(text, at + 1) or _FUNCTION.search(before)
    return text[at].isascii() and not part


def _marked_form(text: str, at: int, before: str) -> int | None:
    line = before.rpartition("\n")[2]
    if _LINE_END.match(text, at + 1) and not re.search(r"\w", line):
        return _ALONE if line != before or at == len(before) else _MARKED
    marked = any(left.search(before) and right.match(text, at + 1) for left, right in _AROUND)
    return _MARKED if marked else None


def _is_bracketed(text: str, at: int) -> bool:
    """Whether (b), [b] or **b** stands alone, in a longer text at a clause's end."""
    before, after = text[max(0, at - 3) : at], text[at + 1 : at + 3]
    if not before.endswith(("(", "[", "**")) or not after.startswith((")", "]", "**")):
        return False
    if len(text) >= 40 and not _CLAUSE_END.match(text, at + 1):
        return False
    return not before[-2:-1].isalnum()


def _is_claimed(text: str, end: int, before: str, single: bool) -> bool:
    if single and _chosen().search(before.lower()):
        return True
    right = _following("right").match(text, end)
    return right is not None and not _IF.search(_SENTENCE.split(before)[-1])


_TOGETHER = re.compile(
    rf"(?:\b[Bb]oth\s|\*\*|\()[(*\s]{{0,3}}[A-J](?:{_ONE_MORE}[A-J]\b){{1,9}}+"
    rf"|(?<!\w)[A-J](?:{_ONE_MORE}[A-J]\b){{1,9}}+(?<= (?:and|.or) .)(?= are both\b|\.?\s*$)"
)
_OTHERS = re.compile(rf"(?:{_ONE_MORE}[A-J](?![\w'’])){{1,9}}+")
_AROUND = (
    (re.compile(r"(?:^|[^A-Za-z]|[A-Za-z]{2})[(\[]\s?$"), re.compile(r"\s?[)\]](?!-\w)")),
    (
        re.compile(rf"(?:\*\*|__|{AROUND_WORDS}\s?\{{)\(?$"),
        re.compile(r"\)?[.:]?(?:\*\*|__|\})"),
    ),
)
"""What marks a letter: (B), **B**."""
_PART_OF_A_NAME = re.compile(r"[)\]]?-[A-Za-z0-9]")
_FUNCTION = re.compile(
    r"(?:^|[^A-Za-z])[A-Za-z][(\[]$|(?:[Vv]itamin|[Hh]epatitis|[Tt]ype|[Pp]lan)\s$"
)


def _stands_alone(text: str, at: int) -> bool:
    """Whether a letter is no part of a word. Letters of scripts without blanks may touch it."""
    before = text[max(0, at - 1) : at]
    if text[at] in _CIRCLED:
        return True
    if not text[at].isascii():
        return _OWN_WORD.match(before) is None and _ends(text, at)
    quoted = before in ("'", "’") and text[at + 1 : at + 2] == before
    return (quoted or _LATIN_WORD.match(before) is None) and _ends(text, at)


def _ends(text: str, at: int) -> bool:
    """Whether a word ends with the letter at a place."""
    after = text[at + 1 : at + 3]
    if text[at] in _CIRCLED:
        return True
    if not text[at].isascii():
        return _OWN_WORD.match(after) is None or _PARTICLE.match(after) is not None
    return _WORD_GOES_ON.match(after) is None or _JOINED_VERB.match(text, at + 1) is not None


_CIRCLED = "①②③④⑤⑥⑦⑧⑨⑩"
_LATIN_WORD = re.compile(rf"{_WORD}|['’\\-]")
_WORD_GOES_ON = re.compile(rf"['’]?{_WORD}")
_OWN_WORD = re.compile(rf"[\w{MARKS}]")
_PARTICLE = re.compile(WORDS["particle"])
_JOINED_VERB = re.compile(r"['’](?:[dt][iıuü]r|s\s(?:the\s)?(?:correct|right|best))\b")


def _is_wrong(text: str, end: int) -> bool:
    return _following("wrong").match(text, end) is not None


@cache
def _following(field: str) -> re.Pattern[str]:
    """What is said of the letter before: the words of a column of the table."""
    words = alternatives(getattr(language, field) for language in languages())
    return re.compile(rf"[)\]*_}}\"'”’»」』】$ \t]{{0,8}}+(?:{words})", re.MULTILINE)


@cache
def _chosen() -> re.Pattern[str]:
    words = alternatives(language.choose for language in languages())
    between = alternatives(f"{one.option}|{one.hedge}" for one in languages())
    return re.compile(
        rf"(?<![a-zà-ÿ])(?:{words})(?:\s(?:{between})){{0,2}}[\s*_(\[\"'“「:：$]{{0,8}}$"
    )


@cache
def _option() -> re.Pattern[str]:
    words = alternatives(language.option for language in languages())
    return re.compile(rf"(?:{words})[\s*_(]{{1,4}}$")


@lru_cache(maxsize=256)
def _mention(signs: str) -> re.Pattern[str]:
    small = "".join(sign.lower() for sign in signs if sign.isascii())
    return re.compile(rf"[{re.escape(signs)}]|(?<=[(\[*])[{small}](?=[)\]*])")


def _signs(text: str, letters: str | None) -> Letters:
    """The signs that name choices in a text: capitals, and letters of its script."""
    named = {letter: letter for letter in letters} if letters else _LATIN
    if not _of_a_series().search(text):
        return named
    signs_here = set(text)
    for series, signs in _series().items():
        if here := signs & signs_here:
            named = named | _own_signs(text, series, here, letters or LATIN)
    return named


_LATIN = dict(zip(LATIN, LATIN, strict=True))


@cache
def _series() -> dict[tuple[str, ...], set[str]]:
    """The scripts' series of letters, and the signs in them."""
    letters = [language.letters for language in languages() if language.letters]
    return {series: set().union(*series) - {"_"} for series in letters}


@cache
def _of_a_series() -> re.Pattern[str]:
    return re.compile(f"[{''.join(sorted(set().union(*_series().values())))}]")


def _own_signs(text: str, series: tuple[str, ...], here: set[str], letters: str) -> dict[str, str]:
    """The signs of that series which has the most of those that name choices."""
    labels = {m.group() for m in _labels("".join(sorted(here))).finditer(text)}
    best = max(series, key=lambda one: (len(labels & set(one)), len(here & set(one))))
    pairs = zip(best, LATIN, strict=False)
    return {sign: letter for sign, letter in pairs if letter in letters and sign != "_"}


@lru_cache(maxsize=256)
def _labels(signs: str) -> re.Pattern[str]:
    alone = rf"(?<![\w{MARKS}])[{signs}](?![\w{MARKS}])"
    return re.compile(rf"(?<=[(\[*:「]){alone}|(?<=[:*] ){alone}|{alone}(?=[)\].:*」]|\s*$)")
