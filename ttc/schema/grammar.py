"""An answer's grammar: which tokens a branch may go on with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import InvalidInput, Unsupported
from ttc.schema.asked import Constraint, json_answer
from ttc.schema.marks import Marks
from ttc.schema.vocabulary import vocabulary
from ttc.text.thoughts import Thoughts

ANYTHING = np.uint32(2**32 - 1)
"""All tokens of a word of bits."""


@dataclass(eq=False)
class Matcher:
    """Where a branch stands in its answer's grammar. A fork of the branch has a copy.

    phase: nothing was written yet, a mark is being written that opens a thought, a thought in which
        all is free, or the answer.
    since: `len(tokens)` where this phase began. place: how many tokens were read.
    reader: llguidance's `LLMatcher`. openings: what is left of marks that may be written.
    error: why nothing can follow, "" where something can.
    """

    grammar: AnswerGrammar
    phase: Literal["before", "opening", "thought", "answer"]
    since: int
    place: int
    reader: Any
    openings: Sequence[Sequence[int]] = ()
    error: str = ""

    def copy(self) -> Matcher:
        return replace(self, reader=self.reader.deep_copy())


@dataclass(eq=False)
class AnswerGrammar:
    """What answers have to be, in the tokens of one model (see `ttc.step.Grammar`).

    What a branch was given is no part of its answer, which begins after it. A thought is free,
    whether the prompt opens it or the model's own mark does.
    first: llguidance's `LLMatcher` at the beginning; None where a server keeps to it. words: of a
    row of bits. eos_ids: the tokens that end a sequence.
    must_call: an answer is a call of a tool, without a thought before it. then: what answers have
    to be once a tool has answered, None for anything.
    """

    constraint: Constraint
    first: Any = field(repr=False)
    words: int
    eos_ids: Sequence[int]
    marks: Marks | None
    must_call: bool = False
    then: AnswerGrammar | None = None

    @classmethod
    def of(
        cls, schema: Any, grammar: Any, backend: Backend, thoughts: Thoughts | None
    ) -> AnswerGrammar:
        """schema: as `ttc.schema.asked.as_schema` takes it; grammar: a text of rules; one of both.

        Raises InvalidInput for a schema or grammar that cannot be kept to, and for a tokenizer
        that cannot be read; Unsupported for a backend that offers no choice of tokens."""
        constraint = Constraint.of(schema, grammar)
        kind, value = ("schema", schema) if grammar is None else ("grammar", grammar)
        return cls.by(constraint, kind, f"{kind}={value!r:.80}", backend, thoughts)

    @classmethod
    def by(
        cls,
        constraint: Constraint,
        kind: str,
        name: str,
        backend: Backend,
        thoughts: Thoughts | None,
    ) -> AnswerGrammar:
        """name: what errors call it."""
        limits = backend.limits
        if kind not in backend.keeps_to or limits is None:
            raise Unsupported(
                f"{type(backend).__name__} keeps to no {kind}, as {name} asks; leave that out, or "
                "use a ttc.Engine (servers take a schema)"
            )
        if backend.served:
            return cls(constraint, None, 0, (), None)
        eos = getattr(backend.tokenizer, "eos_token_id", None)
        eos_ids = sorted(limits.eos_ids) or ([] if eos is None else [eos])
        tokens = vocabulary(backend.tokenizer, limits.vocab_size, eos_ids)
        from llguidance import LLMatcher

        first = LLMatcher(tokens, constraint.rules, log_level=0)
        trial = first.deep_copy()
        if not trial.is_error():  # some are found to be wrong with the first token
            trial.compute_bitmask()
        if trial.is_error():
            raise InvalidInput(f"{name} cannot be kept to: {_reason(trial)}")
        marks = None if thoughts is None else Marks(thoughts, backend)
        return cls(constraint, first, -(-limits.vocab_size // 32), eos_ids, marks)

    @property
    def request_fields(self) -> Mapping[str, Any]:
        """See `ttc.step.Grammar`."""
        named = {"name": "answer", "schema": dict(self.constraint.schema or {}), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def reads(self, text: str) -> bool:
        """See `ttc.step.Grammar`."""
        return json_answer(text) is not None

    def fill(self, branch: Branch, allowed: np.ndarray) -> None:
        """See `ttc.step.Grammar`. Where llguidance gives up, the branch can only end, and
        `branch.matcher.error` says why."""
        if self.must_call and any(call.answer is not None for call in branch.tool_calls):
            if self.then is None:
                allowed[:] = ANYTHING
            else:
                self.then.fill(branch, allowed)
            return
        at = branch.matcher = self._read(branch)
        if at.phase == "thought":
            allowed[:] = ANYTHING
            return
        if at.phase != "opening":
            row = allowed[: self.words]
            at.reader.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if at.reader.is_error():
                at.error = f"the answer's grammar cannot be kept to: {_reason(at.reader)}"
                allowed[:] = 0
                _allow(allowed, self.eos_ids)
        if at.phase != "answer":
            _allow(allowed, (opening[0] for opening in at.openings))
        elif self.marks is not None:
            for token in self.marks.single:
                allowed[token // 32] &= ~np.uint32(1 << token % 32)

    # ---------------------------------------------------------------- where a branch stands

    def _read(self, branch: Branch) -> Matcher:
        at: Matcher | None = branch.matcher
        tokens = branch.tokens
        if at is None or at.grammar is not self or branch.given_end > at.place:
            return self._begin(branch)
        for place in range(at.place, len(tokens)):
            if at.phase != "thought":
                self._take(at, tokens[place], place)
        new, at.place = len(tokens) - at.place, len(tokens)
        marks = self.marks if at.phase == "thought" else None
        if marks is not None and marks.has_ended(tokens[at.since :], new):
            at.phase = "answer"
        return at

    def _begin(self, branch: Branch) -> Matcher:
        marks, length = self.marks, len(branch.tokens)
        at = Matcher(self, "answer", length, length, self.first.deep_copy())
        if marks is not None and branch.thinks(marks.thoughts):
            at.phase = "thought"
        elif marks is not None and not self.must_call and length == branch.turn_start:
            at.phase, at.openings = "before", marks.openings
        return at

    def _take(self, at: Matcher, token: int, place: int) -> None:
        if token in self.eos_ids:
            return
        if at.phase != "answer":
            begun = [opening[1:] for opening in at.openings if opening[0] == token]
            if begun and (at.phase == "opening" or not at.reader.validate_tokens([token])):
                if at.phase == "before":
                    at.since = place
                at.phase = "opening" if all(begun) else "thought"
                at.openings = begun
                return
            at.phase = "answer"
        at.reader.consume_token(token)


def _allow(allowed: np.ndarray, tokens: Iterable[int]) -> None:
    for token in tokens:
        allowed[token // 32] |= np.uint32(1 << token % 32)


def _reason(reader: Any) -> str:
    """The first line of llguidance's error, without its place in the rules."""
    line = str(reader.get_error()).partition("\n")[0]
    return line.partition(": ")[2] if line.startswith("at ") else line
