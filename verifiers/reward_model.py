"""What all reward models share: how a text is laid out for the model, and where scores are read.

The model's passes are in `verifiers.reward_model_pass`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, ClassVar
from weakref import ReferenceType, ref

from jinja2 import TemplateError
from torch import Tensor

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import NonEmptyText, Options
from ttc.engine import Engine
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.model.loading.load import load, load_headed
from ttc.model.loading.model_files import opened
from ttc.model.loading.reward_heads import HeadedModel, check_headless, headless
from ttc.model.packed_linear import pack_linears
from ttc.passes.ratings import pass_by_pass
from ttc.task import Passes
from ttc.text.chat import encoded, has_template
from ttc.text.prompt import raw_tokens
from ttc.tree.segment import common_prefix
from verifiers.reward_model_pass import Layout, TreeMirror, read_apart
from verifiers.side_branches import rated_text

MARK = "\x00"
"""Stands where a text goes on; `whole` and `templated` encode what a format puts before it."""

MAX_REMEMBERED = 10_000
MAKING = RLock()
"""Held while an engine of a reward model is made: threads may share a verifier."""


@dataclass(eq=False)
class RewardModel(Options, ABC):
    """Rates branches with a model whose KV follows the search's tree: a child costs its new tokens.

    model: a hub id or a folder, loaded at first use; or a loaded (model, tokenizer).
    separator: what ends a step in a branch's text. Each step gets a score; for one that is not
        ended yet, its end is put after it for that rating alone.
    device, dtype: as for `ttc.model.loading.load`.
    thoughts: rate what a model thinks too, and not its answer alone. Before there is an answer, the
        text so far is rated.
    With an `Engine` on the same device, the KV of both models has the same kind of residency policy
    and one budget of bytes.
    Raises UnsupportedModel at loading for a model without a reward head and a tokenizer without the
    format's tokens; InvalidInput for a text beyond the model's context.
    """

    model: Any
    separator: NonEmptyText = "\n\n"
    device: str = "auto"
    dtype: str = "auto"
    thoughts: bool = True

    headed: ClassVar[bool] = True
    """Whether a head in the place of the vocabulary's gives the score."""
    rates_steps: ClassVar[bool] = True
    """Whether it rates the steps of a text, and not the text as a whole."""
    writes: ClassVar[bool] = False
    """Whether the model writes before it rates, as its generation_config asks."""

    _parts: tuple[Any, Any] | None = field(init=False, repr=False, default=None)
    _mirror: tuple[ReferenceType[Backend], TreeMirror] | None = field(
        init=False, repr=False, default=None
    )
    _encodings: dict[str, list[int]] = field(init=False, repr=False, default_factory=dict)

    # ---------------------------------------------------------------- of each format

    @property
    def has_head(self) -> bool:
        return self.headed

    @property
    def offset(self) -> int:
        """Where a step's score is read, counted from the end of what ends the step."""
        return -1

    @abstractmethod
    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        """The tokens of a question and some steps, with what ends the last step."""

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        """The same without what ends the last step."""
        return self.closed(question, [*steps[:-1], steps[-1] + MARK])

    @abstractmethod
    def score(self, output: Tensor) -> float:
        """A step's score from what the model gives where it is read."""

    def check_tokenizer(self) -> None:
        """Raise UnsupportedModel unless the tokenizer knows the format's tokens."""

    # ---------------------------------------------------------------- a verifier

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        mirror = self.mirror(backend)
        return (yield from mirror.rate(branches, self.layouts(branches, questions)))

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        mirror = self.mirror(backend)
        mirror.follow_model()
        layouts = self.layouts(branches, questions)
        return sum(map(mirror.missing_tokens, branches, layouts))

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        suffix = self.layout(parent, question).suffix
        return count * (self.price([parent], [question], backend) + tokens + len(suffix))

    def released(self, branches: Sequence[Branch]) -> None:
        if self._mirror is not None:
            self._mirror[1].released(branches)

    def rate_solutions(self, solutions: Sequence[tuple[str, Sequence[str]]]) -> list[list[float]]:
        """A score for each step of solutions, as (question, steps), without a search.

        Raises InvalidInput for a model that rates texts as a whole, and for a text beyond the
        model's context.
        """
        if not self.rates_steps:
            raise InvalidInput(
                f"{type(self).__name__} gives one score for a text; rate the beginnings of the "
                "solution, each as a branch"
            )
        if not solutions:
            return []
        model, tokenizer = self.parts
        layouts = [self.laid_out(question, list(steps), None) for question, steps in solutions]
        return read_apart(Engine(model, tokenizer), self.score, layouts)

    # ---------------------------------------------------------------- layout

    def layouts(self, branches: Sequence[Branch], questions: Sequence[str]) -> list[Layout]:
        return [self.layout(b, q) for b, q in zip(branches, questions, strict=True)]

    def layout(self, branch: Branch, question: str) -> Layout:
        text = rated_text(branch, self.thoughts)
        if not self.rates_steps:
            return self.one_rating(question, text.strip())
        return self.laid_out(question, *self.split(text, branch.finished))

    def split(self, text: str, finished: bool) -> tuple[list[str], str | None]:
        return split_steps(text, self.separator, finished)

    def laid_out(self, question: str, steps: Sequence[str], rest: str | None) -> Layout:
        """The layout of steps that are ended and one that is not, None for none."""
        question, *steps = map(unmarked, (question, *steps))
        rest = None if rest is None else unmarked(rest)
        tokens, reads = list[int](), list[int]()
        for count in range(1, len(steps) + 1):
            before = tokens
            tokens = self.closed(question, steps[:count])
            if tokens[: len(before)] != before:
                raise UnsupportedModel(
                    f"the tokenizer joins the end of a step with the next, {steps[count - 1]!r}; "
                    "use the model's own tokenizer"
                )
            reads.append(len(tokens) + self.offset)
        if rest is None:
            return Layout(tokens, reads, [])
        whole = self.closed(question, [*steps, rest])
        shared = common_prefix(whole, self.opened(question, [*steps, rest]))
        kept = min(max(len(tokens), shared), len(whole) + self.offset)
        return Layout(whole[:kept], reads, whole[kept : len(whole) + self.offset + 1])

    def one_rating(self, question: str, text: str) -> Layout:
        """The layout of a text that is rated as a whole, and goes on from its last character."""
        question, text = unmarked(question), unmarked(text)
        whole = self.closed(question, [text])
        shared = common_prefix(whole, self.opened(question, [text]))
        kept = min(shared, len(whole) - 1)
        return Layout(whole[:kept], [], whole[kept:])

    # ---------------------------------------------------------------- the model

    @property
    def parts(self) -> tuple[Any, Any]:
        if self._parts is None:
            self._parts = self._load()
            try:
                self.check_tokenizer()
            except BaseException:
                self._parts = None
                raise
        return self._parts

    def _load(self) -> tuple[Any, Any]:
        if not isinstance(self.model, str):
            model, tokenizer = self.model
            return (HeadedModel.of(model) if self.has_head else headless(model)), tokenizer
        loading = load_headed if self.has_head else load
        if not self.has_head:
            with opened(self.model) as (source, options):
                if "gguf_file" not in options:
                    check_headless(source)
        model, tokenizer = loading(self.model, device=self.device, dtype=self.dtype)
        pack_linears(model)
        return model, tokenizer

    @property
    def tokenizer(self) -> Any:
        return self.parts[1]

    def mirror(self, backend: Backend) -> TreeMirror:
        if (before := self._mirror) is not None:
            followed, mirror = before
            if followed() is backend:
                if isinstance(backend, Engine):  # a server keeps its passes short
                    mirror.engine.runtime.prefill_tokens = backend.runtime.prefill_tokens
                return mirror
        with MAKING:
            if self._mirror is before:
                if before is not None:
                    before[1].clear()
                self._mirror = ref(backend), TreeMirror(self._engine(backend), self.score)
        return self.mirror(backend)

    def _engine(self, backend: Backend) -> Engine:
        """An engine for the reward model, with the bytes and the lock of a backend like it."""
        model, tokenizer = self.parts
        if not isinstance(backend, Engine) or backend.device != model.device:
            return Engine(model, tokenizer, generation_settings=self.writes)
        engine = Engine(
            model,
            tokenizer,
            prefill_tokens=backend.runtime.prefill_tokens,
            memory=backend.residency.for_another_model(),
            generation_settings=self.writes,
        )
        engine.residency.join(backend.residency)
        engine.take_turns_with(backend)
        return engine

    # ---------------------------------------------------------------- text and tokens

    def encode(self, text: str) -> list[int]:
        if (tokens := self._encodings.get(text)) is None:
            if len(self._encodings) >= MAX_REMEMBERED:
                self._encodings.clear()
            tokens = self._encodings[text] = encoded(text, self.tokenizer)
        return tokens

    def single(self, text: str, what: str = "") -> int:
        """The one token of `text`. Raises UnsupportedModel where it takes more, or is unknown.
        what: the setting that it is of."""
        tokens = self.encode(text)
        if len(tokens) != 1 or tokens[0] == getattr(self.tokenizer, "unk_token_id", None):
            raise UnsupportedModel(
                f"{what and f'{what}: '}the tokenizer has no token {text!r} (it gives {tokens}); "
                "give a text that is one token of it, or the reward model's own tokenizer"
            )
        return tokens[0]

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        answer: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Messages as the chat template writes them. answer: with the start of the model's turn
        after them. options: what else the template takes."""
        name = type(self).__name__
        if not has_template(self.tokenizer):
            raise UnsupportedModel(
                f"{name} needs a chat template, and the tokenizer has none; give the reward "
                "model's own tokenizer"
            )
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=answer, **(options or {})
            )
        except TemplateError as error:
            refused = f"the chat template refuses {name}'s messages: {error}"
            raise UnsupportedModel(refused) from error
        return text

    def whole(self, text: str) -> list[int]:
        """The tokens of a text up to MARK, with the special tokens that the tokenizer adds."""
        return raw_tokens(text.partition(MARK)[0], self.tokenizer)

    def templated(self, text: str) -> list[int]:
        return encoded(text.partition(MARK)[0], self.tokenizer)


def unmarked(text: str) -> str:
    """A text of a person or a model, in which MARK stands for nothing."""
    return text.replace(MARK, "\ufffd")


def check_room(engine: Engine, room: Sequence[int], what: str) -> None:
    """Raise InvalidInput unless there is room for a token of what is written after each text."""
    if min(room) < 1:
        raise InvalidInput(
            f"the verifier's context of {engine.limits.context_length} tokens has no room for "
            f"{what} after the solution; use shorter solutions or a model with a longer context"
        )


def split_steps(text: str, separator: str, finished: bool) -> tuple[list[str], str | None]:
    """The steps of a text that are ended, and the one that is not, None where all are. Blanks
    around steps and blank steps are left out, and a character that is cut in two."""
    *ended, rest = map(str.strip, text.rstrip("\ufffd").split(separator))
    steps = [step for step in ended if step]
    if rest and finished:
        return [*steps, rest], None
    return steps, rest if rest or not steps else None
