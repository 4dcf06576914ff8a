"""A chat as a model reads it: the text that its chat template writes, and the tokens of that text.

Everything goes through `apply_chat_template`, so the tokens are those of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, TemplateError

from ttc.errors import InvalidInput, UnsupportedModel, refusing
from ttc.text.encodable import check_encodable

if TYPE_CHECKING:
    from ttc.text.roles import Message

QUESTION: tuple[Message, ...] = ({"role": "user", "content": "?"},)
"""A chat that stands for any other, where only what follows the answer is asked for."""

ANSWER = "THE-ANSWER"
"""Stands for an answer, or at the end of a message, to see what a template writes after it."""

TEMPLATE_S = 10.0
"""Seconds that a chat template may take for one chat."""

ANCHOR = "a"
"""Stands before a text that is to be cut into tokens as a later part of a longer text."""


def has_template(tokenizer: Any) -> bool:
    return getattr(tokenizer, "chat_template", None) is not None


def template_text(tokenizer: Any) -> str:
    """The chat template, all of them where a tokenizer has several; "" for none."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        return "\n".join(map(str, template.values()))
    return template if isinstance(template, str) else ""


def is_token(text: str, tokenizer: Any) -> bool:
    number_of = getattr(tokenizer, "convert_tokens_to_ids", None)
    number = None if number_of is None else number_of(text)
    return number is not None and number != getattr(tokenizer, "unk_token_id", None)


def check_template(template: Any) -> None:
    """Raise UnsupportedModel for a template that computes a power: no chat needs one, and nothing
    can cut off a large one. template: one, or several by their names, as a tokenizer has them."""
    for text in template.values() if isinstance(template, Mapping) else [template]:
        before = ""
        for _, _, word in _words(str(text)):
            if word == "**" and before not in ("(", ","):  # there it stands for named arguments
                raise UnsupportedModel("its chat template computes a power (**); take it out")
            before = word if word.strip() else before


def _words(template: str) -> Iterator[tuple[int, str, str]]:
    try:
        yield from Environment().lex(template)
    except TemplateError:  # which is told when it is used
        return


def chat_text(
    messages: Sequence[Message],
    tokenizer: Any,
    options: Mapping[str, Any] | None = None,
    *,
    way_out: str = "send other messages",
    begins_answer: bool = True,
) -> str:
    """Messages as the chat template writes them, with the start of the model's answer. Those in
    roles that it does not know are put into others (`ttc.text.roles`).

    options: what else the template takes. way_out: what the InvalidInput says to do that is raised
    where the template refuses the messages. begins_answer: False leaves that start out.
    """
    if not begins_answer:
        options = {**(options or {}), "add_generation_prompt": False}
    return str(_applied(messages, tokenizer, options, way_out, tokenize=False))


def chat_tokens(
    messages: Sequence[Message],
    tokenizer: Any,
    options: Mapping[str, Any] | None = None,
    *,
    way_out: str = "send other messages",
) -> list[int]:
    """The tokens of `chat_text`, as `apply_chat_template(messages, tokenize=True)` gives them: a
    list or a dictionary with `input_ids`, of one chat or of a batch of one."""
    output = _applied(messages, tokenizer, options, way_out, tokenize=True)
    if isinstance(output, str):  # a tokenizer that knows its template as text alone
        return encoded(output, tokenizer)
    if isinstance(output, Mapping):
        output = output["input_ids"]
    if hasattr(output, "tolist"):
        output = output.tolist()
    if output and isinstance(output[0], Sequence):
        output = output[0]
    return [int(token) for token in output]


def next_turn_text(
    messages: Sequence[Message],
    words: str,
    tokenizer: Any,
    options: Mapping[str, Any] | None = None,
) -> str:
    """What the template writes after an answer to `messages` when the user goes on with `words`:
    the end of the answer's turn, the words, and the start of the next answer.

    Raises InvalidInput for a template that refuses a second turn or leaves answers out.
    """
    mark = _unused([words, *(message["content"] for message in messages)])
    text = chat_text(_answered(messages, mark, words), tokenizer, options, way_out=ONE_TURN)
    _, written, after = text.rpartition(mark)
    if not written:
        raise InvalidInput(
            "the chat template leaves out what the model has answered, so that no turn can follow "
            f"an answer; {ONE_TURN}"
        )
    return after


def next_prompt(
    messages: Sequence[Message],
    answer: str,
    words: str,
    tokens: Sequence[int],
    tokenizer: Any,
    options: Mapping[str, Any] | None = None,
    *,
    keep_generated: bool = False,
) -> list[int]:
    """The tokens of the whole chat, after the model's `answer` to `messages` and the user's next
    `words`.

    tokens: those of `messages` and of the answer as the model wrote it. Blanks around answers are
        left out where the whole chat begins with `tokens` then. It does not where the template
        rewrites the answer, or the model wrote it in other pieces than the tokenizer.
    keep_generated: then `tokens` stay, and what the template writes after an answer follows.
    Raises InvalidInput as `next_turn_text` does.
    """
    chat, chats = _answered(messages, answer, words), list[list[int]]()
    for version in (chat, list(map(_stripped, chat))):  # the template may put blanks around answers
        whole = chat_tokens(version, tokenizer, options, way_out=ONE_TURN)
        if len(whole) > len(tokens) and whole[: len(tokens)] == list(tokens):
            return whole
        chats.append(whole)
    after = next_turn_text(messages, words, tokenizer, options)
    return [*tokens, *following(after, tokenizer)] if keep_generated else chats[0]


def end_of_prompt(
    messages: Sequence[Message], tokenizer: Any, options: Mapping[str, Any] | None = None
) -> str | None:
    """What the template writes after the last message's words, up to the start of the answer.

    None where it does not write these words as they are.
    """
    *earlier, last = messages
    mark = _unused([message["content"] for message in messages])
    marked = {**last, "content": last["content"] + mark}
    _, written, after = chat_text([*earlier, marked], tokenizer, options).rpartition(mark)
    return after if written else None


def encoded(text: str, tokenizer: Any) -> list[int]:
    """The tokens of a text. Raises InvalidInput for half of a surrogate pair, which none can
    read."""
    check_encodable(text, "the text")
    return list(tokenizer.encode(text, add_special_tokens=False))


def decoded(tokens: Sequence[int], tokenizer: Any, *, special: bool = False) -> str:
    """Tokens to text, special tokens left out unless `special`."""
    options = {"skip_special_tokens": not special, "clean_up_tokenization_spaces": False}
    return str(tokenizer.decode(list(tokens), **options))


def following(text: str, tokenizer: Any) -> list[int]:
    """The tokens of a text that follows another: without the blank that SentencePiece adds."""
    before, both = encoded(ANCHOR, tokenizer), encoded(ANCHOR + text, tokenizer)
    if len(both) > len(before) and both[: len(before)] == before:
        return both[len(before) :]
    return encoded(text, tokenizer)


ONE_TURN = (
    "use a search or a verifier that asks in one turn, or leave the chat template out (chat=false)"
)


def _unused(texts: Sequence[str]) -> str:
    mark = ANSWER
    while any(mark in text for text in texts):
        mark += "-"
    return mark


def _answered(messages: Sequence[Message], answer: str, words: str) -> list[Message]:
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": words}]


def _stripped(message: Message) -> Message:
    if message["role"] != "assistant":
        return message
    return {**message, "content": message["content"].strip()}


def _applied(
    messages: Sequence[Message],
    tokenizer: Any,
    options: Mapping[str, Any] | None,
    way_out: str,
    *,
    tokenize: bool,
) -> Any:
    from ttc.text.roles import fitted
    from ttc.time_limit import limited

    chat = [dict(message) for message in messages]
    for message in chat:
        if isinstance(content := message.get("content"), str):
            check_encodable(content, f"the {message.get('role')}'s message")

    def written() -> Any:
        arguments = {"add_generation_prompt": True, **(options or {})}
        in_parts = _takes_parts(tokenizer, arguments)

        def write(messages: Sequence[Message], tokenize: bool = False) -> Any:
            parts = list(map(_in_parts if in_parts else dict, messages))
            return tokenizer.apply_chat_template(parts, tokenize=tokenize, **arguments)

        bos = getattr(tokenizer, "bos_token", None)
        return write(fitted(chat, template_text(tokenizer), bos, write, way_out), tokenize)

    def reason(error: Exception) -> str:
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        return f"{kind}{error}".partition("\n")[0]

    instead = way_out
    if isinstance(getattr(tokenizer, "chat_template", None), Mapping):
        name = "+dataset.chat_options.chat_template=NAME"
        instead = f"choose one of several chat templates ({name}), or {way_out}"
    refuses = f"the chat template refuses these messages: {{error}}; {instead}"
    # a template can make Python raise anything
    with refusing(Exception, refuses, but=InvalidInput, words=reason):
        return limited(written, TEMPLATE_S, "the chat template", way_out)


def _takes_parts(tokenizer: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether the template writes a part of a list but not a text, as for models of images."""

    def writes(message: Mapping[str, Any]) -> bool:
        try:
            text = tokenizer.apply_chat_template([message], tokenize=False, **arguments)
        except Exception:  # a template can make Python raise anything
            return False
        return ANSWER in str(text)

    message = {"role": "user", "content": ANSWER}
    return not writes(message) and writes(_in_parts(message))


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


# ---------------------------------------------------------------- what two texts share

PIECES = re.compile(r"<[^<>\s]*>?|\[/?[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
"""The pieces in which texts are compared: a tag is never split."""


def common_start(one: str, other: str) -> str:
    return "".join(_alike(PIECES.findall(one), PIECES.findall(other)))


def common_end(one: str, other: str) -> str:
    return "".join(_alike(PIECES.findall(one)[::-1], PIECES.findall(other)[::-1])[::-1])


def _alike(one: list[str], other: list[str]) -> list[str]:
    """What both begin with."""
    pairs = zip(one, other, strict=False)
    return [piece for piece, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
