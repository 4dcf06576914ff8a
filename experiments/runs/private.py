"""What may be written of a data set that is not to be published (`dataset.private`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from ttc import errors
from ttc.errors import TTCError

SHORT = re.compile(r"\(?[A-Z]\)?|[-+]?[\d.,/%\s]+")
"""Answers that tell nothing of their question: a letter and a number."""
OURS = "|".join(
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, TTCError)
)
FOREIGN = re.compile(rf"(?:^|\braised )(?!(?:{OURS})\b)[\w.]+(?:: )")
"""Where the message of an error begins that is not this project's; it may repeat any text."""
PLACE = re.compile(r" \([^()]*\.py:\d+\)(?=$|[,;] )")
QUOTE = re.compile(r"(?<!\w)['\"]")
WORD = re.compile(r"\w*\d\w*|\w{4,}")
LEFT_OUT = "..."


def marked(answer: str | None) -> str | None:
    """An answer, or a mark of it where it is a text: equal texts have equal marks."""
    if answer is None or SHORT.fullmatch(answer):
        return answer
    return f"text {sha256(answer.encode(errors='surrogatepass')).hexdigest()[:12]}"


def without_quotes(message: str, texts: Iterable[object] = ()) -> str:
    """A message without what it may repeat of a question: messages of other code, all from the
    first quoted text on, and words of these texts. The place in the user's code stays.

    A quoted text may have been cut off before its second mark, so its end can't be found.
    """
    match = PLACE.search(message)
    place = "" if match is None else match.group()
    message = message.partition(place)[0] if place else message
    if foreign := FOREIGN.search(message):
        message = message[: foreign.end()] + LEFT_OUT
    elif quote := QUOTE.search(message):
        message = message[: quote.start()] + LEFT_OUT
    words = {word for text in texts for word in WORD.findall(str(text).casefold())}
    return WORD.sub(lambda w: LEFT_OUT if w[0].casefold() in words else w[0], message) + place


def without_texts(record: dict[str, Any], texts: Iterable[object] = ()) -> None:
    """Leave out of a record what the model was told and what it wrote, which may repeat a question
    or its choices; paths, scores, letters, numbers and votes stay. texts: of its problem, which its
    error may repeat."""
    if record["error"] is not None:
        written = [node["text"] for node in (*record["branches"], *record["tree"])]
        quotes = (*texts, record["question"], record["gold"], *written)
        record["error"] = without_quotes(record["error"], quotes)
    record |= {"question": None, "prompt": None, "source": marked(record["source"])}
    for node in (*record["branches"], *record["tree"]):
        node["text"] = ""
        node.pop("tool_calls", None)
        if "thought" in node:
            node["thought"] = "" if isinstance(node["thought"], str) else 0
    for node in (record, *record["branches"]):
        for name in ("answer", "vote", "gold"):
            if name in node:
                node[name] = marked(node[name])


@contextmanager
def texts_left_out(private: bool, texts: Iterable[object]) -> Iterator[None]:
    """Raise errors of private data without its texts."""
    try:
        yield
    except TTCError as error:
        if private:
            error.args = (without_quotes(str(error), texts),)
        raise
