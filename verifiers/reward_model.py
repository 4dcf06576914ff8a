"""What all reward models share: how a text is laid out for the model, and where its scores are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import ReferenceType, ref

from jinja2 import TemplateError
from torch import Tensor

from ttc.checks import check_kind
from ttc.engine import Engine
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.model.loading import load, load_headed
from ttc.model.packed_linear import pack_linears
from ttc.model.reward_heads import HeadedModel
from ttc.protocols import Backend
from ttc.text.chat import encoded, has_template
from ttc.text.prompt import raw_tokens
from ttc.tree.branch import Branch
from ttc.tree.segment import common_prefix
from verifiers.tree_mirror import Layout, TreeMirror

MARK = "\x00"
"""Stands where a text goes on, to see what a chat template puts before it."""


@dataclass(eq=False)
class RewardModel(ABC):
    """Rates branches with a model of its own, whose KV follows the search's tree: a child costs its new tokens.

    model: a hub id or a folder, loaded when it is first used; or a loaded (model, tokenizer).
    separator: what ends a step in a branch's text. Each step gets a score. A step that is not ended yet, as one that
        was cut by its length, is rated as it is: what would end it is put after it for that rating alone.
    device, dtype: as for `Engine.from_pretrained`.

    With an `Engine` on the same device the reward model's KV is kept under the same kind of residency policy, and one
    budget of bytes holds for both. What is rated is counted as verifier tokens of the problem. `released` must be told
    of branches that are let go; a search does so.
    Raises UnsupportedModel, when it is loaded, for a model without a reward head and for a tokenizer without the tokens
    of the format; InvalidInput for a text beyond the model's context.
    """

    model: Any
    separator: str = "\n\n"
    device: str = "auto"
    dtype: str = "auto"

    headed: ClassVar[bool] = True
    """Whether the score comes from a head of its own, and not from the vocabulary's."""
    writes: ClassVar[bool] = False
    """Whether the model writes before it rates, as its generation_config asks."""
    offset: ClassVar[int] = -1
    """Where the score of a step is read, counted from the end of what ends it."""

    _parts: tuple[Any, Any] | None = field(init=False, repr=False, default=None)
    _mirror: tuple[ReferenceType[Backend], TreeMirror] | None = field(init=False, repr=False, default=None)
    _known: dict[str, list[int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_kind("separator", self.separator, isinstance(self.separator, str), "text")
        if not self.separator:
            raise InvalidInput("separator is empty; give what ends a step, such as a blank line")

    # ---------------------------------------------------------------- of each format

    @abstractmethod
    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        """The tokens of a question and some steps, what ends the last one included."""

    @abstractmethod
    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        """The same without what ends the last step."""

    @abstractmethod
    def score(self, output: Tensor) -> float:
        """From what the model gives where a step is read to the step's score."""

    def check_tokenizer(self) -> None:
        """Raise UnsupportedModel unless the tokenizer knows the format's own tokens."""
        return

    # ---------------------------------------------------------------- a verifier

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        mirror = self.mirror(backend)
        return mirror.rate(branches, [self.layout(b, q) for b, q in zip(branches, questions, strict=True)])

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        """The most verifier tokens that rating these branches takes."""
        mirror = self.mirror(backend)
        mirror.follow_model()
        pairs = zip(branches, questions, strict=True)
        return sum(mirror.missing_tokens(branch, self.layout(branch, question)) for branch, question in pairs)

    def released(self, branches: Sequence[Branch]) -> None:
        """Let go of what is kept for branches that are gone."""
        if self._mirror is not None:
            self._mirror[1].released(branches)

    def layout(self, branch: Branch, question: str) -> Layout:
        """A branch's text as the model reads it, and where."""
        return self.laid_out(question, *self.split(branch.text, branch.finished))

    def split(self, text: str, finished: bool) -> tuple[list[str], str | None]:
        """The steps of a text that are ended, and the one that is not (see `split_steps`)."""
        return split_steps(text, self.separator, finished)

    def laid_out(self, question: str, steps: Sequence[str], rest: str | None) -> Layout:
        """Steps that are ended, and one that is not, as the model reads them."""
        tokens, reads = list[int](), list[int]()
        for count in range(1, len(steps) + 1):
            before, tokens = tokens, self.closed(question, steps[:count])
            if tokens[: len(before)] != before:
                raise UnsupportedModel(
                    f"the tokenizer joins the end of a step with the next one, {steps[count - 1]!r}, so that "
                    f"{type(self).__name__} cannot go on from it; use the model's own tokenizer"
                )
            reads.append(len(tokens) + self.offset)
        if rest is None:
            return Layout(tokens, reads, [])
        whole = self.closed(question, [*steps, rest])
        kept = max(len(tokens), common_prefix(whole, self.opened(question, [*steps, rest])))
        return Layout(whole[:kept], reads, whole[kept : len(whole) + self.offset + 1])

    def answer(self, branch: Branch, thoughts: bool) -> str:
        """What of a branch is rated as a whole: its answer, as a message of a chat holds it. While the model still
        thinks, and with `thoughts`, it is all of its text."""
        said = None if thoughts else branch.answer_text
        return (branch.text if said is None else said).strip()

    def one_rating(self, question: str, text: str) -> Layout:
        """The layout of a text that is rated as a whole, and goes on from its last character."""
        whole = self.closed(question, [text])
        kept = min(common_prefix(whole, self.opened(question, [text])), len(whole) - 1)
        return Layout(whole[:kept], [], whole[kept:])

    # ---------------------------------------------------------------- the model

    @property
    def parts(self) -> tuple[Any, Any]:
        """(model, tokenizer), loaded at first use."""
        if self._parts is None:
            parts = self._load()
            self._parts = parts
            try:
                self.check_tokenizer()
            except BaseException:
                self._parts = None
                raise
        return self._parts

    def _load(self) -> tuple[Any, Any]:
        if not isinstance(self.model, str):
            model, tokenizer = self.model
            return (HeadedModel.of(model) if self.headed else model), tokenizer
        model, tokenizer = (load_headed if self.headed else load)(self.model, device=self.device, dtype=self.dtype)
        pack_linears(model)
        return model, tokenizer

    @property
    def tokenizer(self) -> Any:
        return self.parts[1]

    def mirror(self, backend: Backend) -> TreeMirror:
        """What follows the tree of `backend`; that of another backend is given up."""
        if self._mirror is not None:
            if self._mirror[0]() is backend:
                return self._mirror[1]
            self._mirror[1].clear()
        mirror = TreeMirror(self._engine(backend), self.score)
        self._mirror = ref(backend), mirror
        return mirror

    def _engine(self, backend: Backend) -> Engine:
        """An engine for the reward model, with one account of bytes where the backend is an engine beside it."""
        model, tokenizer = self.parts
        if not isinstance(backend, Engine) or backend.device != model.device:
            return Engine(model, tokenizer, generation_settings=self.writes)
        rows = backend.runtime.prefill_tokens
        memory = backend.residency.for_another_model()
        engine = Engine(model, tokenizer, prefill_tokens=rows, memory=memory, generation_settings=self.writes)
        engine.residency.join(backend.residency)
        engine.lock, engine.under_way = backend.lock, backend.under_way
        engine.batches = backend.batches  # what decodes makes way for both engines' passes
        return engine

    # ---------------------------------------------------------------- text and tokens

    def encode(self, text: str) -> list[int]:
        """Text to tokens, with no special tokens added. Texts come again at every rating, and are remembered."""
        if (known := self._known.get(text)) is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[text] = encoded(text, self.tokenizer)
        return known

    def single(self, text: str) -> int:
        """The one token of `text`. Raises UnsupportedModel where it takes more, or is unknown."""
        tokens = self.encode(text)
        if len(tokens) != 1 or tokens[0] == getattr(self.tokenizer, "unk_token_id", None):
            raise UnsupportedModel(
                f"the tokenizer has no token {text!r}, by which {type(self).__name__} knows its format (it gives "
                f"{tokens}); give the reward model's own tokenizer"
            )
        return tokens[0]

    def chat(self, messages: Sequence[Mapping[str, str]], *, answer: bool = False) -> str:
        """Messages as the tokenizer's chat template writes them, up to MARK where that stands among them.

        answer: with the start of the model's turn after them.
        """
        if not has_template(self.tokenizer):
            raise UnsupportedModel(
                f"{type(self).__name__} writes its text by a chat template, and the tokenizer has none; give the "
                "reward model's own tokenizer"
            )
        try:
            text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answer)
        except TemplateError as error:
            raise UnsupportedModel(f"the chat template refuses {type(self).__name__}'s messages: {error}") from error
        return str(text).partition(MARK)[0]

    def whole(self, text: str) -> list[int]:
        """The tokens of a text that no chat template has written, special tokens as the tokenizer puts them around
        it."""
        return raw_tokens(text, self.tokenizer)

    def templated(self, text: str) -> list[int]:
        """The tokens of a text that the chat template has written, no other special token with them."""
        return encoded(text, self.tokenizer)

    def unknown_template(self, text: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"the chat template writes {text!r}, which is not {type(self).__name__}'s format; give the reward model's "
            "own tokenizer"
        )


REMEMBERED = 10_000
"""So many texts at most are remembered with their tokens."""


def split_steps(text: str, separator: str, finished: bool) -> tuple[list[str], str | None]:
    """The steps of a text that are ended, and the one that is not, None where all are.

    Blanks around a step and blank steps are left out; a finished text has no step that goes on. A character that the
    end of the tokens cuts in two is left out until it is whole.
    """
    *ended, rest = text.rstrip("\ufffd").split(separator)
    steps = [step.strip() for step in ended if step.strip()]
    rest = rest.strip()
    if rest and finished:
        return [*steps, rest], None
    return steps, rest if rest or not steps else None
