"""Which number a text states as its answer."""

from __future__ import annotations

import re
from functools import cache

from ttc.text.boxes import after_cut, boxed
from ttc.text.number_words import NUMBER_WORD, last_in_signs, number_in_words
from ttc.text.numbers import (
    BREAKS_OFF,
    CURRENCIES,
    MAGNITUDE,
    MINUS,
    POWER_OF_TEN,
    THOUSANDS,
    as_number,
    hyphened,
    plain_numbers,
)
from ttc.text.statements import (
    CLOSED_SCRIPTS,
    RESULTS,
    Statement,
    clause,
    decimal_comma,
    is_explained,
    plain,
    statements,
)
from ttc.text.tables import AROUND_WORDS, WORDS
from ttc.text.units import added_up, split_unit

OF, DOZEN, RESTATES, SPOKEN = (WORDS[name] for name in ("of", "dozen", "restates", "spoken"))

# Quantifiers that keep what they took (++, *+) make every pattern linear.
_FRACTION = r"/\d++(?!\.\d)"
_TEX_FRACTION = r"\\[dtc]?frac ?(?:\{ ?-?\d++ ?\}|\d) ?(?:\{ ?\d++ ?\}|\d)"
_SIGN = rf"[-{MINUS}]?(?:\\?[{CURRENCIES}])?"
_POWER = rf"\^ ?(?:\{{ ?[-{MINUS}]?\d{{1,3}} ?\}}|[-{MINUS}]?\d{{1,3}})(?![\d.]*\d)"

_NARROW = "[\u00a0\u2009\u202f]"
_GROUPED = (
    r"\d{1,3}(?:\.\d{3}){2,9}+(?!\d)(?:,\d++)?"  # 1.234.567
    r"|\d{1,3}(?:\.\d{3}){1,9}+,\d++"  # 1.234,5
    r"|\d{1,2}(?:,\d{2}(?=,)){1,9}+,\d{3}(?!\d)"  # 1,00,000
    rf"|[1-9]\d{{0,2}}(?:{_NARROW}\d{{3}}){{1,9}}+,\d++"
    r"|(?<!\d )[1-9]\d{0,2}(?: \d{3}){1,9}+(?:,\d++|\.\d{1,2}(?!\d))?"  # 12 000; 1 234,5
    r"(?![\d/]|\.\d{3}| \d)"
)
_WITH_POINT = rf"(?:\d{{1,3}}(?:{THOUSANDS}\d{{3}}(?!\d))++|\d++)(?:\.\d++|\{{,\}}\d++)?"
_WITH_COMMA = (
    r"[1-9]\d{0,2}(?:\.\d{3})++(?!\d)(?:,\d++)?"
    rf"|(?:[1-9]\d{{0,2}}(?:{THOUSANDS}\d{{3}}(?!\d))++)(?:\.\d++|\{{,\}}\d++)?"
    r"|\d++(?:(?:[.,]|\{,\})\d++)?"
)
_OURS = f"[^\\W_{CLOSED_SCRIPTS}]"
_NO_EXPONENT = rf"(?<!\^)(?<!\^\{{)(?<!\^[-{MINUS}])(?<!\^\{{[-{MINUS}])"
_BEFORE = rf"(?:(?<!{_OURS})(?<![\d_]\.)(?<!_){_NO_EXPONENT}|(?<=\bR[ps])(?=\d))"
"""A number is no exponent (18 m^2 is 18) and no part of a word (v1.5), unless the script joins its
words to it."""

_CURRENCY = r"(?:(?:Rs\.?|[A-Z]{3}(?=\s?\d)|[A-Z]{1,2}\$|S/\.?|Rp\.?|kr\.?)\s?)"
_OPENING = rf"(?:[\s*_`:\"'“”({{}}{CURRENCIES}]|\\(?![dtc]?frac)|(?<=\\)\[|≈|~|{_CURRENCY})*+"
_TIMES = r"\\(?:times|cdot|div)\b|(?<=[\d) ])x(?= ?[\d($])"
_SUM = re.compile(
    r"\s*+"
    rf"(?:[-−–+*/×÷·⋅∙∗∕²³^{{}}(){CURRENCIES}%, \t\d]|\.(?=\d)|{_TIMES}|\\[$%(\[])*+"
    r"=(?!=)[ \t]*+"
)
_OPERAND = (
    r"[\s($*_\\]*+\d[\d,]*+(?:\.\d++)?+(?:/\d++)?+(?:\s?\\?%)?+"
    rf"(?:[ /]++(?!(?:{OF}|{RESTATES}|{SPOKEN}|x)(?!\w))[^\W\d_]++){{0,3}}+[)\s]*+"
)
_OPERATOR = rf"(?:[-−–+*/×÷·⋅∙∗∕x]|(?:{OF}|{SPOKEN})\b|\\times\b|\\cdot\b)"
_THINGS = rf"(?:\s(?!(?:{RESTATES})(?!\w))[A-Za-z]++){{0,2}}+"
_MULTIPLE = (
    rf"[\s*_]*+(?:(?:\d++|{NUMBER_WORD})\s(?:{DOZEN}){_THINGS}"
    rf"|(?:{NUMBER_WORD})[ -](?:{WORDS['parts']})\sof\s\$?\d++{_THINGS}"
    r"|\d++!)"
)
_WORDED_SUM = re.compile(
    rf"{_OPERAND}(?:{_OPERATOR}{_OPERAND})++(?:=(?!=)|,?\s?(?:{RESTATES}),?\s)[ \t]*+"
    rf"|{_MULTIPLE}(?:\s?=|,?\s(?:{RESTATES}),?\s(?={_OPENING}\d))"
)
"""A sum of numbers with units, up to its result: 3 boxes * 4 apples = 12, 20% of 150, which is 30,
two dozen eggs, i.e. 24, three quarters of 60, or 45."""
_GOES_ON = re.compile(rf"[ )]*+{_OPERATOR}[ (]*+\$?\d")
_HEADING = re.compile(r"\d{1,2}[.)][ \t]++[A-Za-z*]")
_FIRST_OF_A_LIST = re.compile(r"1[.)][ \t]++[A-Za-z*]")
_TEXT_PART = re.compile(rf"{AROUND_WORDS} ?\{{([^{{}}]*+)\}}")
_BARE_MINUS = re.compile(rf"(?:^|[=:(\n*]|\bis)[ \t$*]*+[-{MINUS}] $")


def stated_number(text: str) -> str | None:
    """The number right after the last `####`, "answer is" or "Answer:", in any language of
    `languages.toml`, in digits or words, of an equation its result. Headings (`#### 2.
    Subtract`) and lists below "Answer:" state none."""
    return _stated(_plain(text), strict=True)


def find_number(text: str) -> str | None:
    """The number that is stated, else the last one in a `\\boxed{}`, else the only one of a stated
    clause, else the last result that nothing but a reason follows, else the last one."""
    text = _plain(after_cut(text))
    number = _stated(text) or _in_a_box(text) or _in_a_clause(text) or _in_a_result(text)
    if number is not None:
        return number
    comma = decimal_comma(text)
    last = _counted(text, comma) or last_number(text, comma)
    return last_in_signs(text) if last is None else _spelling(text, last, comma)


def _plain(text: str) -> str:
    """A text whose amounts are numbers: 2000 for 2k, 2.5 hours for 2 hours 30 minutes."""
    text = added_up(plain_numbers(plain(text)))
    return _SHORT.sub(lambda size: " billion" if "b" in size[0] else " thousand", text)


_SHORT = re.compile(r"(?:k(?<=\dk)|bn(?<=\dbn)| bn(?<=\d bn))" + BREAKS_OFF + ")")


def last_number(text: str, comma: bool = False) -> re.Match[str] | None:
    """Mostly in the last line with a digit, so that no other is searched before it."""
    line = text.rfind("\n", 0, max(map(text.rfind, "0123456789"), default=0)) + 1
    for start in dict.fromkeys((line, 0)):
        numbers = list(_number(comma).finditer(text, start))
        if numbers:
            return numbers[-1]
    return None


def _counted(text: str, comma: bool) -> re.Match[str] | None:
    """What a text's last words say to be a number for, per or from another one, as in "The bill is
    EUR 75 for 5 guests", or explain in brackets."""
    start = max(0, text.rstrip().rfind("\n"), len(text) - 120)
    searches = (_COUNTED, _EXPLAINED, _BOLD)
    match = next(filter(None, (each.search(text, start) for each in searches)), None)
    return match and _number_here(comma).match(text, match.start("number"))


_VALUE = rf"(?P<number>(?:{_CURRENCY}|\\?[{CURRENCIES}])?[\d.,]*\d)"
_LINK = rf"(?:[=≈:]|\b(?:{WORDS['verbs']})\s)"
_BOLD = re.compile(
    r"(?i:(?<!\bfor )(?<!\bof )(?<!\bin )(?<!\bat )(?<!\bwith )(?<!\bthe )(?<!\bfrom ))"
    rf"\*\*{_VALUE}(?:\s[A-Za-z]{{1,20}}){{0,3}}\*\*(?:(?!{_LINK})[^*,;]){{1,80}}$"
)
"""She picks **42** apples in 6 bags; not: from **3 days** of work she has 12."""
_EXPLAINED = re.compile(
    rf"{_LINK}[\s*$]{{0,3}}"
    rf"{_VALUE}[*$]{{0,2}}(?:\s[A-Za-z]{{1,20}}){{0,3}}[*$]{{0,2}}(?:\s|(?=\([^()]*[{CLOSED_SCRIPTS}]))"
    r"[(\[](?![\s$]*[\d.,]+(?:\s?[A-Za-z%]{1,20})?[)\]])"  # 2 hours (120 minutes)
    rf"(?![^()\[\]]*(?:\b(?:{WORDS['sums_up']})(?!\w)|[=≈]))"
    r"[^()\[\]\n]{1,80}[)\]][.!。]?\s*$"
)
"""12 + 30 = 42 (30 of them from Monday); not what is worked out in brackets: 3 each (12 in all)."""
_COUNTED = re.compile(
    rf"\b(?:{WORDS['verbs']}|to)\s(?:(?:{WORDS['adverbs']})\s)?{_VALUE}"
    r"(?:\s[A-Za-z]{1,20}){0,2}\s(?:for|from)\s\d[\d.,]*(?:\s[A-Za-z]{1,20}){0,3}[.!]?\s*$"
)


def _stated(text: str, strict: bool = False) -> str | None:
    stated = [one for one in statements(text) if not (strict and one.corrects)]
    comma = decimal_comma(text) if stated else False
    for statement in reversed(stated):
        joined = statement.linked or statement.language.bare
        if joined and (number := _result(text, statement, comma)) is not None:
            return number
    return None


def _result(text: str, statement: Statement, comma: bool) -> str | None:
    """The number at a statement's place, of an equation the last side that is one number."""
    place, alone = statement.place, None
    while equation := _SUM.match(text, place) or _WORDED_SUM.match(text, place):
        side = _number_here(comma).match(text, place)
        if side and not text[side.end() : equation.end()].strip(" =\t$*\\)"):
            alone = side
        place = equation.end()
    number = _number_here(comma).match(text, place)
    if number and alone and _GOES_ON.match(text, number.end()):
        number = alone
    if number and _DENIED.match(text, number.end()):
        return None
    if number is None:
        return number_in_words(text, place, statement.language.code)
    if _begins_a_list(text, statement, number.start(1)):
        return None
    return _spelling(text, number, comma)


def _begins_a_list(text: str, statement: Statement, start: int) -> bool:
    if statement.hashes:
        return _HEADING.match(text, start) is not None
    on_a_new_line = "\n" in text[statement.start : start]
    return on_a_new_line and _FIRST_OF_A_LIST.match(text, start) is not None


def _in_a_clause(text: str) -> str | None:
    """The number of the last stated clause that has one number: "The answer is that she has 6"."""
    stated = statements(text)
    comma = decimal_comma(text) if stated else False
    for statement in reversed(stated):
        place = statement.place
        if not statement.linked or statement.corrects or _LIST.match(text, place):
            continue
        if number := _only_number(clause(text, place), comma):
            return number
    return None


def _in_a_result(text: str) -> str | None:
    """The number of the last result, as in "Das Ergebnis ist 42, denn 6 mal 7 ist 42"."""
    text = text[-LONGEST_END:]
    told = [one.place for one in statements(text, RESULTS) if one.linked or one.language.bare]
    if not told:
        return None
    said = clause(text, told[-1]).partition("(")[0]
    explained = is_explained(text[text.index(said, told[-1]) + len(said) :])
    return _only_number(said, decimal_comma(text)) if explained else None


LONGEST_END = 600


def _only_number(sentence: str, comma: bool) -> str | None:
    numbers = list(_number(comma).finditer(sentence))
    if len(numbers) > 1 and (part := _PER.search(sentence, numbers[0].end())):
        sentence = sentence[: part.start()]
        numbers = [number for number in numbers if number.end() <= len(sentence)]
    if len(numbers) != 1 or _NOT_ALONE.search(sentence):
        return None
    return _spelling(sentence, numbers[0], comma)


_DENIED = re.compile(rf"\s?(?:{WORDS['denied_behind']})")
_NOT_ALONE = re.compile(rf"\b(?:{WORDS['relates']})\b")
_PER = re.compile(rf"\s(?:{WORDS['per']})\s(?=\d)|(?<=[{CLOSED_SCRIPTS}])[,，](?!\d)")
"""What parts an answer from what it is for: 64,80 zł for 4 tickets."""
_LIST = re.compile(r"\s*+\d{1,2}[.)]\s")


def _in_a_box(text: str) -> str | None:
    content = boxed(text)
    if content is None:
        return None
    comma = decimal_comma(text)
    words = _TEXT_PART.sub(" ", content)
    whole = hyphened(split_unit(content)[0]).strip()
    if as_number(whole) is not None and not (comma and "," in whole) and "." not in whole:
        return whole  # 12 000 or - 20
    for part in (words, content):
        numbers = list(_number(comma).finditer(part))
        if numbers:
            return _spelling(part, numbers[-1], comma)
    return number_in_words(_TEXT_PART.sub(r"\1", content), 0)


def _spelling(text: str, number: re.Match[str], comma: bool) -> str:
    """A number as `as_number` reads it: what English writes otherwise is written in its way."""
    raw, start = hyphened(number.group(1)), number.start(1)
    signed = hyphened(text[number.start() : start]).endswith("- ")
    if signed or _BARE_MINUS.search(text[max(0, start - 12) : start]):
        raw = f"-{raw}"
    if power := _ENDING_POWER.fullmatch(raw):
        return _powered(power[1], int(power[2].strip("{ }"))) or raw
    return _DIGITS.sub(lambda digits: in_english(digits.group(), comma), raw, count=1)


_ENDING_POWER = re.compile(r"(-?\d[\d,.]*) ?\^ ?(\{ ?-?\d+ ?\}|-?\d+)")
_DIGITS = re.compile(rf"(?<![\d.,])[\d.,]*\d(?:(?: |{_NARROW})\d{{3}})*(?:[.,]\d+)?(?![\d/])")


def in_english(digits: str, comma: bool) -> str:
    """12 000, 1.234,5 and 1,00,000 without what parts thousands. comma: 2,5 is two and a half."""
    if re.fullmatch(rf"\d{{1,3}}(?:(?: \d{{3}})+|(?:{_NARROW}\d{{3}})+,\d)[\d,.]*", digits):
        return re.sub(r"\s", "", digits).replace(",", ".")
    grouped = r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}"
    if re.fullmatch(rf"{grouped}|[1-9]\d{{0,2}}\.\d{{3}}" if comma else grouped, digits):
        return digits.replace(".", "").replace(",", ".")
    if re.fullmatch(r"\d{1,2}(?:,\d{2})+,\d{3}", digits):
        return digits.replace(",", "")
    if comma and re.fullmatch(r"\d+,\d+", digits) and not re.fullmatch(_THOUSANDS, digits):
        return digits.replace(",", ".")
    return digits


_THOUSANDS = r"[1-9]\d{0,2}(?:,\d{3})+"


def _powered(base: str, exponent: int) -> str | None:
    value = as_number(base)
    if value is None or (value == 0 and exponent < 0) or len(base) * abs(exponent) > 300:
        return None
    return str(value**exponent)


@cache
def _number(comma: bool) -> re.Pattern[str]:
    return re.compile(rf"{_BEFORE}({_digits(comma)})")


@cache
def _number_here(comma: bool) -> re.Pattern[str]:
    """A number behind markup and currencies, with a minus that a blank may follow."""
    return re.compile(rf"{_OPENING}(?:[-{MINUS}] (?={_SIGN}[\d.]))?+({_digits(comma)})")


def _digits(comma: bool) -> str:
    after = rf"{_FRACTION}|{POWER_OF_TEN}(?!\w)|{MAGNITUDE}|{_POWER}"
    return (
        rf"{_SIGN}(?:\d{{1,3}}+ ?)?{_TEX_FRACTION}"  # 1\frac{{1}}{{2}}
        rf"|{_SIGN}\d{{1,3}}+[ ]\d++{_FRACTION}"  # 1 1/2
        rf"|{_SIGN}(?:{_GROUPED}|{_WITH_COMMA if comma else _WITH_POINT})(?:{after})?"
        rf"|{_SIGN}\.\d++"
    )
