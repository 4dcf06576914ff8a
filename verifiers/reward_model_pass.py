"""A reward model's passes, over a KV tree that follows the search's tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from torch import Tensor

from ttc.branch import Branch
from ttc.engine import Engine
from ttc.errors import VerifierError, on_failure
from ttc.passes.new_tokens import Outputs
from ttc.task import Passes, all_of
from ttc.tree.segment import tokens_to_read
from ttc.usage import by_meter, read_by_verifier

PENDING = 0
"""A token that is never run: an engine's branch has no KV of its last token."""


@dataclass(frozen=True)
class Layout:
    """A text as a reward model reads it.

    tokens: what later text goes on from.
    reads: places in `tokens` whose outputs are scores, in order.
    suffix: what follows for this rating alone; the output at its last token is one more score.
    """

    tokens: list[int]
    reads: list[int]
    suffix: list[int]

    @property
    def whole(self) -> list[int]:
        return self.tokens + self.suffix

    @property
    def places(self) -> list[int]:
        return self.reads + ([len(self.whole) - 1] if self.suffix else [])


class Read:
    """A text up to a place that is read, and the score there once it is known. Texts that begin
    alike share these; each lives as long as a mirrored text goes through it."""

    def __init__(self, before: Read | None):
        self.before = before
        self.score: Any = None
        self.longer: WeakValueDictionary[tuple[int, ...], Read] = WeakValueDictionary()

    def after(self, tokens: list[int]) -> Read:
        return self.longer.setdefault(tuple(tokens), Read(self))


@dataclass
class Mirror:
    """A branch's text on the reward model's engine, and its scores."""

    branch: Branch
    layout: Layout
    reads: list[Read]


class Text(NamedTuple):
    """A text to be computed, charged to `branch`. reads: what is read of it, by place."""

    branch: Branch
    tokens: list[int]
    reads: Mapping[int, Read]


@dataclass
class TreeMirror:
    """Rates texts with a model whose KV tree follows a search's: a child costs its new tokens.

    score: from the model's output (width,) at a place to what is kept. A branch's KV goes when the
    search has let it go and no child that is to be rated goes on from it.
    """

    engine: Engine
    score: Callable[[Tensor], Any]
    mirrors: dict[Branch, Mirror] = field(default_factory=dict)
    _start: Read = field(default_factory=lambda: Read(None))
    _gone: WeakSet[Branch] = field(default_factory=WeakSet)
    _changes: int = 0

    def rate(
        self, branches: Sequence[Branch], layouts: Sequence[Layout]
    ) -> Passes[list[list[Any]]]:
        """The scores of each branch's text, in order of `Layout.places`.

        Raises InvalidInput for a text beyond the model's context and OutOfMemory where the budget
        has no room, both before the model runs.
        """
        try:
            with self.reading(branches, layouts):
                reads = yield from self.follow(branches, layouts)
                yield from self._read_suffixes(branches, layouts, reads)
        finally:
            self.released([])  # of the branches that have gone meanwhile nothing is kept
        if any(read.score is None for row in reads for read in row):
            raise VerifierError(
                "a step holds the reward model's own separator in its middle; leave it out"
            )
        return [[read.score for read in row] for row in reads]

    def follow_model(self) -> None:
        """Forget all KV and scores if the model has changed."""
        with self.engine.lock:
            if (changes := self.engine.model_changes()) != self._changes:
                self.clear()
                self._start = Read(None)
                self._changes = changes

    def follow(
        self, branches: Sequence[Branch], layouts: Sequence[Layout]
    ) -> Passes[list[list[Read]]]:
        """Compute the KV of each branch's text but its suffix, and the scores of that part."""
        self.follow_model()
        for layout in layouts:
            self.engine.limits.check_context(len(layout.whole) + 1)
        rows = list(zip(branches, layouts, map(self._reads, layouts), strict=True))
        new = [
            (branch, layout, reads)
            for branch, layout, reads in rows
            if (mirror := self.mirrors.get(branch)) is None or mirror.layout.tokens != layout.tokens
        ]
        computed = yield from self._compute(
            [
                Text(branch, layout.tokens, dict(zip(layout.reads, reads, strict=False)))
                for branch, layout, reads in new
            ]
        )
        with self.engine.lock:
            for (branch, layout, reads), mirrored in zip(new, computed, strict=True):
                if (before := self.mirrors.get(branch)) is not None:
                    self.engine.release([before.branch])
                self.mirrors[branch] = Mirror(mirrored, layout, reads)
            for branch, layout, reads in rows:
                if (mirror := self.mirrors.get(branch)) is not None:
                    mirror.layout = layout
                    mirror.reads = reads
        return [reads for *_, reads in rows]

    def _read_suffixes(
        self, branches: Sequence[Branch], layouts: Sequence[Layout], rows: Sequence[list[Read]]
    ) -> Passes[None]:
        """Compute the scores after the suffixes, whose KV is dropped at once."""
        texts = [
            Text(branch, layout.whole, {layout.places[-1]: reads[-1]})
            for branch, layout, reads in zip(branches, layouts, rows, strict=True)
            if layout.suffix and reads[-1].score is None
        ]
        self.engine.release((yield from self._compute(texts)))

    def _compute(self, texts: Sequence[Text]) -> Passes[list[Branch]]:
        """Branches with the KV of these texts; scores that are not known yet are kept."""
        outputs = Outputs.at(
            [place for place, read in text.reads.items() if read.score is None] for text in texts
        )
        prompts = [[*text.tokens, PENDING] for text in texts]
        call = self.engine.side_branches([text.branch for text in texts], prompts, outputs)
        with on_failure(lambda: self.engine.release(call.branches)):
            computed = yield from call.passes()
            for text, by_place in zip(texts, outputs.computed, strict=True):
                for place, output in by_place.items():
                    text.reads[place].score = self.score(output)
        return computed

    def _reads(self, layout: Layout) -> list[Read]:
        tokens = layout.whole
        reads = [self._start]
        for before, place in pairwise([-1, *layout.places]):
            reads.append(reads[-1].after(tokens[before + 1 : place + 1]))
        return reads[1:]

    def missing_tokens(self, branch: Branch, layout: Layout) -> int:
        return tokens_to_read([(layout.whole, self._prefix(branch, layout))])

    def reading(
        self, branches: Sequence[Branch], layouts: Sequence[Layout]
    ) -> AbstractContextManager[None]:
        """Around the passes that read these texts: each meter counts what is new in them."""
        self.follow_model()
        texts = [
            (layout.whole, self._prefix(branch, layout))
            for branch, layout in zip(branches, layouts, strict=True)
        ]
        meters = by_meter(branch.usage for branch in branches)
        return read_by_verifier(
            [(usage, tokens_to_read(texts[place] for place in places)) for usage, places in meters]
        )

    def _prefix(self, branch: Branch, layout: Layout) -> list[int]:
        """What was read before it: of the branch, or of the nearest that it goes on from."""
        above: Branch | None = branch
        while above is not None and above not in self.mirrors:
            above = above.parent
        if above is None:
            return []
        read = self.mirrors[above].layout
        return layout.whole if above is branch and read == layout else read.tokens

    # ---------------------------------------------------------------- what may go

    def released(self, branches: Sequence[Branch]) -> None:
        with self.engine.lock:
            self._gone.update(branches)
            self._sweep()

    def clear(self) -> None:
        self.engine.release([mirror.branch for mirror in self.mirrors.values()])
        self.mirrors.clear()

    def _sweep(self) -> None:
        for branch in [branch for branch in self.mirrors if not self._needed(branch)]:
            self.engine.release([self.mirrors.pop(branch).branch])

    def _needed(self, branch: Branch) -> bool:
        waiting = [branch]
        while waiting:
            branch = waiting.pop()
            if branch not in self._gone and not branch.released:  # nobody may have rated it
                return True
            waiting += [child for child in branch.children if child not in self.mirrors]
        return False


def read_apart(
    engine: Engine, kept: Callable[[Tensor], Any], layouts: Sequence[Layout]
) -> list[list[Any]]:
    """What is read of texts of no search. What they share from the beginning is computed once.
    kept: see `TreeMirror.score`."""
    mirror = TreeMirror(engine, kept)
    branches = engine.fork(engine.root([0]), len(layouts))
    try:
        return all_of(mirror.rate(branches, layouts))
    finally:
        mirror.clear()
