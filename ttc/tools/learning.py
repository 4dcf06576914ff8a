"""How a model writes calls, learned from its chat template.

The template is given calls with marked names and values, and what it writes around these is the
syntax. So a new model needs no table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from ttc.errors import InvalidInput
from ttc.text.chat import chat_text, common_end, common_start
from ttc.tools.arguments import KEY, Arguments, NamedJson, NamedLoose, Pairs, PythonCalls, WholeJson
from ttc.tools.formats import Llama, Marked, ToolFormat

CONTENT = "WHAT-IS-SAID"
NAMES = ("first_tool", "other_tool")
IDS = ("call00000", "call00001")
TEXTS = {"alpha": "ALPHA1", "beta": "BETA2", "gamma": "GAMMA3"}
NUMBERS = {"alpha": 31337, "beta": 31338, "gamma": 31339}


def learn(tokenizer: Any, options: Mapping[str, Any]) -> tuple[ToolFormat | None, str]:
    """The format in which a chat template writes calls, None where it shows none, and why then, if
    it refuses calls.

    options: what the template is given beside the messages.
    Raises InvalidInput where it writes calls that no format here reads.
    """
    refusal, unread = "", ""
    for as_text in (False, True):
        template = _Template(tokenizer, options, as_text)
        learned = template.format()
        if learned is not None and template.is_read_by(learned):
            return learned, ""
        refusal = refusal or template.refusal
        unread = unread or template.called([TEXTS]) or ""
    if unread:
        call = _example(unread.partition(template.end_of_turn() or "\n")[0])
        raise InvalidInput(
            f"the chat template writes calls in a way that is not known: {call:.200}"
        )
    return None, refusal


def opening(tokenizer: Any, options: Mapping[str, Any], names: Sequence[str], as_text: bool) -> str:
    """What the chat template writes first of a call of any of these tools, up to the name of one of
    several, or to the arguments of a single one; "" where it shows no calls.

    as_text: see `ToolFormat`. A brace or a blank at the end is the model's to write, as it is often
    one token with what follows.
    """
    template = _Template(tokenizer, options, as_text)
    tried: Sequence[Mapping[str, str]] = ({}, {"alpha": "A"}, {"beta": "B"})
    texts = [text for arguments in tried if (text := template.called([arguments], ("", CONTENT)))]
    if len(texts) < 2:
        return ""
    begun = reduce(common_start, texts).partition(IDS[0])[0]
    if len(names) > 1:
        return begun.partition(NAMES[0])[0]
    return without_brace(begun.replace(NAMES[0], names[0]))


def without_brace(begun: str) -> str:
    return re.sub(r"(?<=[^\w {]) *\{?$", "", begun)


class _Template:
    """A chat template, asked for calls.

    as_text: arguments are given as JSON text, not as a mapping.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any], as_text: bool):
        self.tokenizer = tokenizer
        self.options = {**options, "tools": [_schema(name) for name in NAMES]}
        self.as_text = as_text
        self.refusal = ""

    def format(self) -> ToolFormat | None:
        one = self.called([TEXTS])
        if one is None:
            return None
        opening, arguments, rest = self._syntax(one)
        if arguments is None:
            return None
        mark, section = self._marks(opening, self.called([TEXTS, TEXTS]))
        if not mark.strip():
            return Llama() if isinstance(arguments, WholeJson) else None
        end = self.end_of_turn() or "\n"
        close = rest.lstrip().partition(end)[0].strip()
        example = _example(opening + one[len(opening) :].partition(end)[0])
        return Marked(mark, arguments, close, section, self.as_text, example)

    def is_read_by(self, learned: ToolFormat) -> bool:
        """Whether a format reads what the template writes of one call and of two, if it writes
        two."""
        tried: tuple[list[Mapping[str, Any]], ...] = ([TEXTS], [NUMBERS], [TEXTS, TEXTS])
        for calls in tried:
            text = self.called(calls)
            if text is None:
                continue
            read = learned.calls(text)
            expected = [(name, _as_texts(each)) for name, each in zip(NAMES, calls, strict=False)]
            if [(call.name, _as_texts(call.arguments)) for call in read] != expected:
                return False
        return True

    def called(
        self, calls: Sequence[Mapping[str, Any]], sayings: Sequence[str] = (CONTENT, "")
    ) -> str | None:
        """What the template writes of calls with these arguments, behind the words said before
        them; None where it writes none."""
        for content in sayings:
            text = self._text(content, calls)
            if text is None:
                continue
            if content:
                text = text.rpartition(content)[2] if content in text else ""
            else:
                text = text.removeprefix(common_start(text, self._text(None, ()) or ""))
            if all(name in text for name in NAMES[: len(calls)]):
                return text
        return None

    def end_of_turn(self) -> str:
        """What ends the model's turn."""
        text = self._text(CONTENT, ())
        return (text or "").rpartition(CONTENT)[2].strip()

    def _text(self, content: str | None, calls: Sequence[Mapping[str, Any]]) -> str | None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        if content is not None:
            answer: dict[str, Any] = {"role": "assistant", "content": content}
            if calls:
                answer["tool_calls"] = list(map(self._call, range(len(calls)), calls))
            messages.append(answer)
        try:
            return chat_text(messages, self.tokenizer, self.options, begins_answer=content is None)
        except InvalidInput as error:
            self.refusal = f" ({error})"
            return None

    def _call(self, place: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
        value = json.dumps(arguments) if self.as_text else dict(arguments)
        function = {"name": NAMES[place], "arguments": value}
        return {"type": "function", "id": IDS[place], "function": function}

    def _syntax(self, text: str) -> tuple[str, Arguments | None, str]:
        """What stands before a call's name or JSON, how the rest is written, and what follows."""
        for read in (_json, _python, _loose, self._pairs):
            opening, arguments, rest = read(text)
            if arguments is not None:
                return opening, arguments, rest
        return "", None, ""

    def _marks(self, opening: str, two: str | None) -> tuple[str, str]:
        """The mark of each call, and what stands before the first one's.

        The mark stands before a call with or without words before it, and before each of several,
        where something does.
        """
        mark = opening = _without_ids(opening)
        alone = self.called([TEXTS], ("",))
        if alone is not None:
            mark = common_end(mark, _without_ids(self._syntax(alone)[0]))
        if two is not None:
            between, listed, _ = self._syntax(self._syntax(two)[2].replace(NAMES[1], NAMES[0]))
            shared = common_end(mark, _without_ids(between))
            if listed is not None and shared.strip():
                mark = shared
        mark = mark.lstrip().removeprefix(KEY)  # which begins with no id
        return mark, opening.removesuffix(mark).strip()

    def _pairs(self, text: str) -> tuple[str, Arguments | None, str]:
        places = _places(text, [NAMES[0], *(part for pair in TEXTS.items() for part in pair)])
        if places is None:
            return "", None, ""
        name, *holes = places
        opening = text[: name[0]]
        between = [text[holes[i][1] : holes[i + 1][0]] for i in range(len(holes) - 1)]
        first = text[name[1] : holes[0][0]]
        next_pair = between[1].replace("alpha", KEY)
        if next_pair != between[3].replace("beta", KEY):
            return "", None, ""
        after, value = self._around_kind(between[0])
        quote = '"' if value == '"' and next_pair.startswith('"') else ""
        next_pair = next_pair.removeprefix(quote)
        before = common_end(first, next_pair)
        close = next_pair.removesuffix(before)
        rest = text[holes[-1][1] :].replace("gamma", KEY, 1 if KEY in close else 0)
        closed = quote + close.rstrip()
        if not closed.strip() or not rest.startswith(closed):
            return "", None, ""
        rest = rest[len(closed) :]
        end = self._end_of_call(rest, closed)
        head = first.removesuffix(before)
        pairs = Pairs(before, after, value.removeprefix(quote), close, end, head, bool(quote))
        return opening, pairs, rest

    def _end_of_call(self, rest: str, closed: str) -> str:
        """What ends a call, of all that follows its last argument: what follows a call's in a turn
        with two, too. closed: what ends an argument."""
        ended = rest.partition(self.end_of_turn())[0] if self.end_of_turn() else rest
        two = self.called([TEXTS, TEXTS])
        if two is not None:
            between = two.partition("GAMMA3")[2].partition(NAMES[1])[0]
            between = between.replace("gamma", KEY).removeprefix(closed)
            ended = common_start(ended.lstrip(), between.lstrip())
        return ended.split()[0] if ended.split() else ""

    def _around_kind(self, text: str) -> tuple[str, str]:
        """What stands between an argument's name and its value, in two around a word on the value's
        type, where there is one; the quote of texts alone is the second."""
        numbers = self.called([NUMBERS])
        if numbers is None or "31337" not in numbers:
            return text, ""
        of_number = numbers.partition("alpha")[2].partition("31337")[0]
        if of_number == text or not of_number:
            return text, ""
        if text == f'{of_number}"':
            return of_number, '"'
        after = common_start(text, of_number)
        return after, common_end(text.removeprefix(after), of_number.removeprefix(after))


# ---------------------------------------------------------------- what a text shows


def _json(text: str) -> tuple[str, Arguments | None, str]:
    decoder = json.JSONDecoder()
    for place in (match.start() for match in re.finditer(r"[{\[]", text)):
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        call = value[0] if isinstance(value, list) and value else value
        if not isinstance(call, Mapping):
            continue
        if call == TEXTS:
            opening, name, _ = text[:place].rpartition(NAMES[0])
            return (opening, NamedJson(), text[end:]) if name else ("", None, "")
        keys = {key for key, entry in call.items() if entry in (TEXTS, json.dumps(TEXTS))}
        names = {key for key, entry in call.items() if entry == NAMES[0]}
        if NAMES[0] in keys:
            return text[:place], WholeJson("", ""), text[end:]
        if keys and names:
            return text[:place], WholeJson(min(names), min(keys)), text[end:]
    return "", None, ""


def _python(text: str) -> tuple[str, Arguments | None, str]:
    start = text.find(f"{NAMES[0]}(")
    if start < 0 or not re.match(r"alpha=(['\"])ALPHA1\1", text[start + len(NAMES[0]) + 1 :]):
        return "", None, ""
    rest = text[start:].partition("GAMMA3")[2]
    after = rest[rest.find(")") + 1 :].lstrip("]")
    mark = re.match(r"\s*(<[^<>\s]*>|\[/[A-Z_]+\]|`{3,})", after)
    end = "" if mark is None else mark[1]
    return text[:start].rstrip("[ "), PythonCalls(end), after


def _loose(text: str) -> tuple[str, Arguments | None, str]:
    start = text.find(NAMES[0] + "{alpha:")
    if start < 0:
        return "", None, ""
    quote = text[start:].partition("{alpha:")[2].partition("ALPHA1")[0]
    rest = text[start:].partition("GAMMA3" + quote + "}")[2]
    return (text[:start], NamedLoose(quote), rest) if quote and rest else ("", None, "")


def _as_texts(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in arguments.items()}


def _places(text: str, words: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where these words stand, each behind the one before; the first word's last place before
    them."""
    spans = list[tuple[int, int]]()
    at = 0
    for word in words:
        start = text.find(word, at)
        if start < 0:
            return None
        at = start + len(word)
        spans.append((start, at))
    last = text.rfind(words[0], 0, spans[1][0])
    return [(last, last + len(words[0])), *spans[1:]]


def _schema(name: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": key} for key in TEXTS}
    parameters = {"type": "object", "properties": properties, "required": list(TEXTS)}
    function = {"name": name, "description": name, "parameters": parameters}
    return {"type": "function", "function": function}


def _example(text: str) -> str:
    text = text.replace(NAMES[0], "FUNCTION")
    for place, (key, value) in enumerate(TEXTS.items(), 1):
        text = text.replace(key, f"ARGUMENT{place}").replace(value, f"VALUE{place}")
    return text.strip()


def _without_ids(text: str) -> str:
    """With `KEY` for what differs from call to call."""
    return re.sub("|".join((*IDS, *NAMES)), KEY, text)
