"""From a question to the tokens of a prompt, as transformers makes them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ttc.checks import Options, QuestionText, check_is, check_kind
from ttc.errors import InvalidInput
from ttc.text.chat import (
    chat_text,
    chat_tokens,
    end_of_prompt,
    following,
    has_template,
    next_prompt,
    next_turn_text,
)
from ttc.text.encodable import check_encodable

if TYPE_CHECKING:
    from ttc.text.roles import Message

STEP_BY_STEP = (
    "{question}\nThink step by step, and end with 'The answer is N.', N being the final answer."
)

WORDS: Mapping[str, str] = {
    "number": STEP_BY_STEP,
    "strict": STEP_BY_STEP,
    "choice": "{question}\nThink step by step, and end with 'The answer is X.', X being the letter "
    "of your choice.",
    "math": "{question}\nThink step by step, and put your final answer in \\boxed{}.",
    "code": "{question}\nAnswer with the whole program in one fenced block of Python.",
    "text": "{question}",
}
"""The instruction for each kind of answer where none is given: what makes the model write its
answer in a form that is read."""

NEXT_QUESTION = "Question:"
"""Where a model without a chat template begins to invent the next question, as `until` has it in
lm-evaluation-harness's gsm8k.yaml."""

SET_HERE = {
    "conversation",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
}
"""What `apply_chat_template` takes and no options may say."""


class DefaultWords(str):
    """An instruction that nobody has given."""

    __slots__ = ()


DEFAULT = DefaultWords(STEP_BY_STEP)


def words_for(kind: str) -> str:
    """The instruction for a kind of answer; the question alone for one that is unknown."""
    return WORDS.get(kind, "{question}")


@dataclass(frozen=True)
class PromptTemplate(Options):
    """How a question is put to the model.

    instruction: the user's words, `{question}` in them replaced by the question. Where none is
        given, `search.solve` takes those that go with the kind of answer (`WORDS`, see `asking`),
        and a template by itself those of "number".
    examples: solved (question, answer) pairs that come first.
    chat: use the tokenizer's chat template; None for when it has one. Without it examples and
        question are written as "Question: ...\\nAnswer:".
    raw: the instruction is the whole prompt, with neither of the two around it.
    options: what else the chat template takes.
    add_bos: put the beginning-of-sequence token before a prompt that does not begin with it.
        transformers does not.
    keep_generated: go on in further turns from the tokens that the model wrote, where the chat
        template leaves its thoughts out or writes its answer in another way. transformers does not.

    The tokens are those of transformers: of `apply_chat_template` with a chat template, else
    `tokenizer(text)["input_ids"]`.
    """

    instruction: QuestionText = DEFAULT
    system: str | None = None
    examples: tuple[tuple[str, str], ...] = ()
    chat: bool | None = None
    raw: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    add_bos: bool = False
    keep_generated: bool = False

    what: ClassVar[str] = "the question"
    """What errors call the question."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_is("options", self.options, Mapping, "a dictionary")
        pairs = isinstance(self.examples, Sequence) and all(map(_is_pair, self.examples))
        check_kind("examples", self.examples, pairs, "pairs of texts, as ((question, answer), ...)")
        for name, text in (("instruction", self.instruction), ("system", self.system or "")):
            check_encodable(text, name)
        for text in (part for pair in self.examples for part in pair):
            check_encodable(text, "a solved example")

    def refusals(self) -> Mapping[str, object]:
        fixed = sorted(self.options.keys() & SET_HERE) if isinstance(self.options, Mapping) else ()
        return {
            f"options holds {next(iter(fixed), None)!r}, which is set here; leave it out": fixed,
            "raw=true and chat=true exclude each other: a raw prompt goes through no chat "
            "template": self.raw and self.chat,
        }

    # ---------------------------------------------------------------- the prompt

    def asking(self, kind: str) -> PromptTemplate:
        """The template for questions with answers of a kind (see `ttc.text.answers`)."""
        custom = not isinstance(self.instruction, DefaultWords)
        return self if custom else replace(self, instruction=DefaultWords(words_for(kind)))

    def plain(self) -> PromptTemplate:
        """Without solved examples, and without an instruction but where that is the whole
        prompt."""
        instruction = self.instruction if self.raw else "{question}"
        return replace(self, instruction=instruction, examples=())

    @property
    def way_out(self) -> str:
        """What to do where the chat template refuses the messages."""
        texts = {"the system text": self.system, "the examples": self.examples}
        named = " or ".join(name for name, value in texts.items() if value)
        return f"leave {named} out, or set chat to false" if named else "set chat to false"

    def uses_chat(self, tokenizer: Any) -> bool:
        """Whether prompts go through the chat template. Raises InvalidInput if they must and there
        is none."""
        if self.chat and not has_template(tokenizer):
            raise InvalidInput(
                "chat=true was asked for, but the tokenizer has no chat template; set chat to null"
            )
        return has_template(tokenizer) and self.chat is not False and not self.raw

    def question_text(self, question: str) -> str:
        """The question as verifiers are given it, with the conversation that it is part of."""
        return question

    def messages(self, question: str) -> list[Message]:
        messages: list[Message] = (
            [{"role": "system", "content": self.system}] if self.system else []
        )
        for user, assistant in self.examples:
            messages.append({"role": "user", "content": self._filled(user)})
            messages.append({"role": "assistant", "content": assistant})
        return [*messages, {"role": "user", "content": self._filled(question)}]

    def text(self, question: str, tokenizer: Any) -> str:
        """The prompt as text. Raises InvalidInput for a question that no tokenizer can read."""
        check_text(question, self.what)
        if self.uses_chat(tokenizer):
            messages = self.messages(question)
            text = chat_text(messages, tokenizer, self.options, way_out=self.way_out)
        else:
            text = self._words(self._typed(question, tokenizer))
        if self.add_bos and (bos := getattr(tokenizer, "bos_token", None)):
            begun = replace(self, add_bos=False).tokens(question, tokenizer)[:1]
            text = text if begun == [tokenizer.bos_token_id] else f"{bos}{text}"
        return str(getattr(tokenizer, "readable", str)(text))  # of `SplitSpecialTokens`

    def _words(self, question: str) -> str:
        """The prompt where no chat template writes it."""
        turns = [(self._filled(q), a) for q, a in (*self.examples, (question, ""))]
        prompts = [q if self.raw else f"{NEXT_QUESTION} {q}\nAnswer:" for q, _ in turns]
        written = [q + _answer(q, a) for q, (_, a) in zip(prompts, turns, strict=True)]
        return (f"{self.system}\n\n" if self.system else "") + "\n\n".join(written)

    def tokens(self, question: str, tokenizer: Any) -> list[int]:
        """The prompt as tokens. Raises InvalidInput as `text` does."""
        check_text(question, self.what)
        if self.uses_chat(tokenizer):
            tokens = chat_tokens(
                self.messages(question), tokenizer, self.options, way_out=self.way_out
            )
        else:
            text = self._words(self._typed(question, tokenizer))
            tokens = raw_tokens(text, tokenizer)
            _warn_of_end(tokens, text, tokenizer)
        bos = getattr(tokenizer, "bos_token_id", None)
        return (
            [bos, *tokens] if self.add_bos and bos is not None and tokens[:1] != [bos] else tokens
        )

    def ends(self, tokenizer: Any) -> tuple[str, ...]:
        """The strings that end an answer to such a prompt, besides the end of sequence.

        A chat template has its own end, and of a raw prompt's form nothing is known: neither has
        any.
        """
        chat = has_template(tokenizer) and self.chat is not False
        return () if self.raw or chat else (NEXT_QUESTION,)

    # ---------------------------------------------------------------- further turns

    def next_turn(
        self, words: str, tokenizer: Any, question: str = "?", turns: Sequence[str] = ("",)
    ) -> str:
        """What follows an answer when the user goes on with `words`: the end of the model's turn,
        the words, and the start of its next turn.

        turns: the chat after the question: the model's answers and the user's words in turn.
        """
        if self.uses_chat(tokenizer):
            return next_turn_text(self._chat(question, turns[:-1]), words, tokenizer, self.options)
        words = guarded(words, tokenizer)
        # the model may have written that much itself
        begun = not self.raw and turns[-1].endswith(NEXT_QUESTION)
        return f" {words}\nAnswer:" if begun else f"\n\n{NEXT_QUESTION} {words}\nAnswer:"

    def next_prompt(
        self, words: str, tokenizer: Any, question: str, turns: Sequence[str], tokens: Sequence[int]
    ) -> list[int]:
        """The prompt of the model's next answer, once the user goes on with `words`.

        tokens: the chat so far as the branch holds it, without an end of sequence. With a chat
        template the prompt is the whole chat as transformers sends it, which may begin with other
        tokens (see `ttc.text.chat.next_prompt`). Without one it goes on from `tokens`.
        """
        if self.uses_chat(tokenizer):
            messages, keep = self._chat(question, turns[:-1]), self.keep_generated
            return next_prompt(
                messages, turns[-1], words, tokens, tokenizer, self.options, keep_generated=keep
            )
        return [*tokens, *following(self.next_turn(words, tokenizer, question, turns), tokenizer)]

    def end_of_prompt(self, question: str, tokenizer: Any, turns: Sequence[str] = ()) -> str | None:
        """What the prompt's form puts after the question's words, which alone may open a thought;
        None where it is not known, as the question is the whole prompt.

        turns: those after the question: the model's answers and the user's words in turn.
        """
        if self.uses_chat(tokenizer):
            return end_of_prompt(self._chat(question, turns), tokenizer, self.options)
        if turns or not self.raw:
            return "\nAnswer:"
        return self.instruction.rpartition("{question}")[2] or None

    # ---------------------------------------------------------------- parts

    def _typed(self, question: str, tokenizer: Any) -> str:
        return guarded(question, tokenizer)

    def _filled(self, question: str) -> str:
        return self.instruction.replace("{question}", question)

    def _chat(self, question: str, turns: Sequence[str]) -> list[Message]:
        roles = ("assistant", "user")
        later = [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]
        return [*self.messages(question), *later]


def _is_pair(example: Any) -> bool:
    return (
        isinstance(example, list | tuple)
        and len(example) == 2
        and all(isinstance(part, str) for part in example)
    )


def _answer(prompt: str, answer: str) -> str:
    apart = not answer or answer[0].isspace() or prompt[-1].isspace()
    return answer if apart else f" {answer}"


def check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is {value!r}, of type {type(value).__name__}; give it as text")
    if not value.strip():
        raise InvalidInput(f"{what} is empty; give some text to solve")
    check_encodable(value, what)


def guarded(text: str, tokenizer: Any) -> str:
    """What a user typed, for a prompt that no chat template writes (see `SplitSpecialTokens`)."""
    return str(getattr(tokenizer, "guarded", str)(text))


def raw_tokens(text: str, tokenizer: Any) -> list[int]:
    """The tokens of a text that no chat template has written: `tokenizer(text)["input_ids"]`, with
    the special tokens that the tokenizer puts around it."""
    check_encodable(text, "the text")
    if callable(tokenizer):
        return list(tokenizer(text)["input_ids"])
    return list(tokenizer.encode(text, add_special_tokens=True))


def _warn_of_end(tokens: Sequence[int], text: str, tokenizer: Any) -> None:
    eos = getattr(tokenizer, "eos_token_id", None)
    if (
        eos is None
        or list(tokens[-1:]) != [eos]
        or text.endswith(str(getattr(tokenizer, "eos_token", None)))
    ):
        return
    warnings.warn(
        f"the tokenizer puts its end of sequence, token {eos}, after a raw prompt, for "
        "transformers as well, so that the model is asked to go on after an end; load the "
        "tokenizer with add_eos_token=False, or use a chat template",
        stacklevel=3,
    )
