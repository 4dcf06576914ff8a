"""The ways in which models write a call's name and arguments, each with its reader.

A reader begins behind the mark that begins a call (`ttc.tools.formats.Marked`). It reads values as
far as they go, so that a string may hold the marks of calls.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

NAME = re.compile(r"[\w./-]+")
"""What names of tools are made of."""

HEADER_CHARS = 200
"""The most characters between a name and its arguments: a number of the call, a mark."""

_FENCE = re.compile(r"```[a-z]{0,9}\s*+")


class Reading(NamedTuple):
    """A call that was read, and where what follows it begins."""

    name: str
    arguments: Mapping[str, Any]
    end: int
    error: str = ""


class Arguments(Protocol):
    """One way to write what stands in a call after its mark."""

    def read(self, text: str, place: int) -> list[Reading]:
        """The calls whose names or JSON begin at `place`; none where there is none."""


# ---------------------------------------------------------------- JSON


@dataclass(frozen=True)
class WholeJson:
    """A JSON object of name and arguments, several of them, or a list.

    name, arguments: their keys. name "": the name is the key of the arguments.
    """

    name: str
    arguments: str

    def read(self, text: str, place: int) -> list[Reading]:
        readings = list[Reading]()
        start = _skip(text, place, ",;")
        if fence := _FENCE.match(text, start):
            start = fence.end()
        while text.startswith(("{", "["), start):
            try:
                value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                fault = f"the call cannot be read as JSON ({error})"
                return [*readings, Reading("", {}, start, fault)]
            calls = value if isinstance(value, list) else [value]
            readings += [self._call(call, end) for call in calls]
            start = _skip(text, end, ",;")
        return readings

    def _call(self, call: Any, end: int) -> Reading:
        if self.name and isinstance(call, Mapping) and isinstance(call.get("function"), Mapping):
            call = call["function"]
        if not isinstance(call, Mapping) or not call:
            fault = f"the call {json.dumps(call):.80} must be a JSON object with name and arguments"
            return Reading("", {}, end, fault)
        if not self.name:
            name, arguments = next(iter(call.items()))
        else:
            name = call.get(self.name)
            arguments = call.get(self.arguments, call.get("parameters"))
        return checked(name, arguments, end)


@dataclass(frozen=True)
class NamedJson:
    """A name, what the template writes after it, and a JSON object of the arguments."""

    def read(self, text: str, place: int) -> list[Reading]:
        name = NAME.match(text, _skip(text, place))
        if name is None:
            return []
        start = text.find("{", name.end(), name.end() + HEADER_CHARS)
        if start < 0:
            return [Reading(name[0], {}, name.end(), "the call has no arguments in JSON")]
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            fault = f"the arguments cannot be read as JSON ({error})"
            return [Reading(name[0], {}, name.end(), fault)]
        return [checked(name[0], value, end)]


@dataclass(frozen=True)
class NamedLoose:
    """A name and its arguments in braces, with bare keys and strings in quotes of the model's own,
    as Gemma 4 writes `call:weather{city:<|"|>Rome<|"|>,days:3}`."""

    quote: str

    def read(self, text: str, place: int) -> list[Reading]:
        name = NAME.match(text, _skip(text, place))
        if name is None or text[name.end() : name.end() + 1] != "{":
            return []
        try:
            value, end = read_loose(text, name.end(), self.quote)
        except ValueError as error:
            return [Reading(name[0], {}, name.end(), f"the arguments cannot be read ({error})")]
        return [checked(name[0], value, end)]


DEPTH = 64
"""The deepest nesting of loose JSON that is read."""

NAMED = {"True": "true", "False": "false", "None": "null"}


def read_loose(text: str, place: int, quote: str) -> tuple[Any, int]:
    """The value at `place`, and where it ends.

    quote: stands before and after each string, which escapes nothing.
    Raises ValueError where there is none.
    """
    mark = re.escape(quote)
    bare = rf"(?!{mark})[^\s,:{{}}\[\]]+"
    piece = re.compile(
        rf"\s*(?:{mark}(?P<string>.*?){mark}|(?P<sign>[{{}}\[\],:])|(?P<key>{bare})(?=\s*:)"
        rf"|(?P<word>{bare}))",
        re.DOTALL,
    )
    strict = list[str]()
    depth = 0
    while depth > 0 or not strict:
        match = piece.match(text, place)
        if match is None:
            raise ValueError(f"a value is missing before {text[place : place + 10]!r}")
        place = match.end()
        token = match[match.lastgroup or 0]
        if match.lastgroup == "sign":
            depth += (token in "{[") - (token in "}]")
            if token in "}]" and strict and strict[-1] == ",":
                strict.pop()
            if depth > DEPTH:
                raise ValueError(f"it is nested more than {DEPTH} deep")
        elif match.lastgroup != "word" or not _is_json(NAMED.get(token, token)):
            token = json.dumps(token)
        strict.append(NAMED.get(token, token))
    return json.loads("".join(strict)), place


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- Python


@dataclass(frozen=True)
class PythonCalls:
    """`weather(city='Rome', days=3)`, one or several in a list.

    end: the mark that ends them, where the template has one.
    """

    end: str = ""

    def read(self, text: str, place: int) -> list[Reading]:
        last = text.find(self.end, place) if self.end else len(text)
        last = last if last >= 0 else len(text)
        code = text[place:last].strip()
        if not code:
            return []
        try:
            body = ast.parse(code, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return _loose_python(text, place)
        calls = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
        return [_of_python(call, last) for call in calls]


_CALL = re.compile(r"[\[,\s]*([\w.]+)\(\s*")
_ARGUMENT = re.compile(r"[,\s]*(\w+)\s*=\s*")
_FOLLOWS = r"(?=(?:(?<!\s)\s*|(?<=\s))(?:,\s*\w+\s*=|\)\s*(?:[\],<`]|\[/|$)))"
_ENDS = {quote: re.compile(quote + _FOLLOWS) for quote in ("'", '"', "")}
"""What ends a value: a quote, or nothing, before the next argument or the end of the call."""


def _loose_python(text: str, place: int) -> list[Reading]:
    """Calls whose texts hold line breaks, their own quotes or marks as they are, as some templates
    write them."""
    readings = list[Reading]()
    while call := _CALL.match(text, place):
        arguments = dict[str, Any]()
        place = call.end()
        while argument := _ARGUMENT.match(text, place):
            arguments[argument[1]], place = _python_value(text, argument.end())
        place = _skip(text, place)
        if not text.startswith(")", place):
            break
        place += 1
        readings.append(Reading(call[1], arguments, place))
    return readings or [Reading("", {}, place, "the call cannot be read as Python")]


def _python_value(text: str, start: int) -> tuple[Any, int]:
    quote = text[start : start + 1]
    ends = _ENDS.get(quote, _ENDS[""]).search(text, start + 1)
    end = len(text) if ends is None else ends.end()
    literal = text[start:end]
    try:
        return ast.literal_eval(_literal(ast.parse(literal, mode="eval").body)), end
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return literal.removeprefix(quote).removesuffix(quote) if quote in _ENDS else literal, end


def _of_python(call: ast.expr, end: int) -> Reading:
    if not isinstance(call, ast.Call) or call.args or any(not k.arg for k in call.keywords):
        return Reading("", {}, end, "a call must be written as name(argument=value)")
    try:
        arguments = {str(k.arg): ast.literal_eval(_literal(k.value)) for k in call.keywords}
    except (ValueError, RecursionError):
        return Reading(ast.unparse(call.func), {}, end, "the arguments must be plain values")
    return Reading(ast.unparse(call.func), arguments, end)


def _literal(value: ast.expr) -> ast.expr:
    """With JSON's true, false and null as Python's."""
    names = {"true": True, "false": False, "null": None}

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Constant(names[node.id]) if node.id in names else node

    renamed: ast.expr = Renamed().visit(value)
    return renamed


# ---------------------------------------------------------------- an element for each argument

CDATA, CDATA_END = "<![CDATA[", "]]>"
"""What XML puts around a text that holds its signs."""

KEY = "\0"
"""Stands for the argument's name in what is written around it."""


@dataclass(frozen=True)
class Pairs:
    """A name, and each argument between marks, as
    `<function=weather><parameter=city>Rome</parameter></function>`.

    before, after: what stands around the name of an argument. value: what stands before the value,
        where a word on its type stands between. close: what stands after it, with `KEY` for the
        argument's name. end: what ends a call. head: what stands between the call's name and the
        first argument. as_json: whether values are JSON, texts in quotes too.
    """

    before: str
    after: str
    value: str
    close: str
    end: str
    head: str = ""
    as_json: bool = False

    def read(self, text: str, place: int) -> list[Reading]:
        name = NAME.match(text, _skip(text, place))
        if name is None:
            return []
        arguments = dict[str, Any]()
        at = self._to_pair(text, name.end())
        before, end = self.before.strip(), self.end.strip()
        while text.startswith(before, at) and not (end and text.startswith(end, at)):
            pair = self._pair(text, at + len(before))
            if pair is None:
                fault = "an argument is not ended as the model's calls have it"
                return [Reading(name[0], {}, name.end(), fault)]
            key, value, at = pair
            arguments[key] = value
            at = _skip(text, at)
        return [Reading(name[0], arguments, at)]

    def _to_pair(self, text: str, place: int) -> int:
        """The place of the first argument, or of the end of a call without any."""
        at = _skip(text, place)
        if self.head.strip() and text.startswith(self.head.strip(), at):
            place = at + len(self.head.strip())
        if not self.before.strip():
            return _skip(text, place)
        marks = [mark for mark in (self.before.strip(), self.end.strip()) if mark]
        places = [text.find(mark, place, place + HEADER_CHARS) for mark in marks]
        return min((at for at in places if at >= 0), default=place)

    def _pair(self, text: str, start: int) -> tuple[str, Any, int] | None:
        after, *others = self.after.split() or [self.after[:1] or "\n"]
        place = text.find(after, start, start + HEADER_CHARS)
        if place < 0:
            return None
        key = text[start:place].strip()
        place += len(after)
        for mark in others:  # with blanks between or without
            place = _skip(text, place)
            if not text.startswith(mark, place):
                return None
            place += len(mark)
        if self.value.strip():
            place = text.find(self.value.strip(), place, place + HEADER_CHARS)
            if place < 0:
                return None
            place += len(self.value.strip())
        close = self.close.replace(KEY, key).strip()
        if self.as_json:
            return _json_pair(text, key, _skip(text, place), close)
        last = text.find(close, place)
        while last >= 0 and not self._follows(text, last + len(close)):
            last = text.find(close, last + 1)  # the value holds the mark
        if last < 0:
            return None
        return key, self._value(text[place:last]), last + len(close)

    def _value(self, value: str) -> Any:
        before = self.before.strip()
        if KEY in self.close and value.lstrip().startswith(before):
            return self._nested(value)
        if (self.value or self.after).endswith("\n"):
            value = value.removeprefix("\n")
        if self.close.startswith("\n"):
            value = value.removesuffix("\n")
        if value.startswith(CDATA) and value.endswith(CDATA_END):
            value = value.removeprefix(CDATA).removesuffix(CDATA_END)
        return value

    def _nested(self, text: str) -> Any:
        """A list, whose elements are all called `item`, or an object, as elements in an element."""
        pairs = list[tuple[str, Any]]()
        at = _skip(text, 0)
        while text.startswith(self.before.strip(), at):
            pair = self._pair(text, at + len(self.before.strip()))
            if pair is None:
                return text
            value = pair[1]
            if isinstance(value, str):
                with suppress(ValueError, RecursionError):
                    value = json.loads(value)
            pairs.append((pair[0], value))
            at = _skip(text, pair[2])
        if all(key == "item" for key, _ in pairs):
            return [value for _, value in pairs]
        return dict(pairs)

    def _follows(self, text: str, place: int) -> bool:
        at = _skip(text, place)
        marks = (self.before.strip(), self.end.strip())
        return at == len(text) or any(mark and text.startswith(mark, at) for mark in marks)


def _json_pair(text: str, key: str, place: int, close: str) -> tuple[str, Any, int] | None:
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, place)
    except (ValueError, RecursionError):
        return None
    end = _skip(text, end)
    return (key, value, end + len(close)) if text.startswith(close, end) else None


def _skip(text: str, place: int, signs: str = "") -> int:
    while place < len(text) and (text[place].isspace() or text[place] in signs):
        place += 1
    return place


def checked(name: Any, arguments: Any, end: int) -> Reading:
    """A call whose parts were read, with an error where they are no name or no arguments."""
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
    if not isinstance(name, str) or not name:
        return Reading("", {}, end, "the call names no tool")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return Reading(name, {}, end, "the arguments must be a JSON object")
    return Reading(name, dict(arguments), end)
