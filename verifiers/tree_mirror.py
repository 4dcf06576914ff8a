"""A reward model's KV, kept along the search's tree: its own branches follow the search's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from torch import Tensor

from ttc.engine import Engine
from ttc.errors import VerifierError
from ttc.passes.outputs import Outputs
from ttc.tree.branch import Branch
from ttc.tree.segment import MIN_SHARED_TOKENS, common_prefix

PENDING = 0
"""An engine's branch has no KV of its last token. This one stands there and is never run, so that all of the text has
KV."""


@dataclass(frozen=True)
class Layout:
    """A text as a reward model reads it.

    tokens: what later text goes on from. reads: places in `tokens` whose outputs are scores, in order. suffix: what
    follows for this rating alone; the output at its last token is one more score. Empty for none.
    """

    tokens: list[int]
    reads: list[int]
    suffix: list[int]

    @property
    def places(self) -> list[int]:
        """All places that are read, in the whole text."""
        return self.reads + ([len(self.tokens) + len(self.suffix) - 1] if self.suffix else [])


class Read:
    """A text up to a place that is read, and the score there once it is known.

    Texts that begin alike share these; each lives as long as a text that goes through it is mirrored.
    """

    def __init__(self, before: Read | None):
        self.before = before
        self.score: Any = None
        self.longer: WeakValueDictionary[tuple[int, ...], Read] = WeakValueDictionary()

    def after(self, tokens: list[int]) -> Read:
        """The place that is read next, `tokens` further."""
        key = tuple(tokens)
        found = self.longer.get(key)
        if found is None:
            found = self.longer[key] = Read(self)
        return found


@dataclass
class Mirror:
    """What is kept for one branch of a search: the same text on the reward model's engine, and its scores."""

    branch: Branch
    layout: Layout
    reads: list[Read]


@dataclass
class TreeMirror:
    """Rates texts with a model whose KV tree follows a search's: of a child only what is new is computed.

    engine: runs the reward model. score: from the model's output (width,) at a place to what is kept of it, the score.
    What is kept for a branch goes when the search has let the branch go and nothing needs it any more: a child that is
    not rated yet goes on from it (`Branch.children`). Texts are found by their tokens, so what is kept never changes a
    score.
    """

    engine: Engine
    score: Callable[[Tensor], Any]
    mirrors: dict[Branch, Mirror] = field(default_factory=dict)
    _start: Read = field(default_factory=lambda: Read(None))
    _gone: WeakSet[Branch] = field(default_factory=WeakSet)
    _changes: int = 0

    def follow_model(self) -> None:
        """Where the model has changed, as by other weights, no score of the one of before is kept."""
        with self.engine.lock:
            if (changes := self.engine.model_changes()) != self._changes:
                self.clear()
                self._start, self._changes = Read(None), changes

    def rate(self, branches: Sequence[Branch], layouts: Sequence[Layout]) -> list[list[Any]]:
        """The scores of each branch's text, in order of `Layout.places`.

        Raises InvalidInput for a text beyond the model's context and OutOfMemory where the budget has no room, both
        before the model runs.
        """
        with self.engine.lock:
            reads = self.follow(branches, layouts)
            self._read_suffixes(branches, layouts, reads)
            self._sweep()
        scores = [[read.score for read in row if read.score is not None] for row in reads]
        if list(map(len, scores)) != list(map(len, reads)):
            raise VerifierError("a text holds the reward model's own separator in the middle of a step; leave it out")
        return scores

    def follow(self, branches: Sequence[Branch], layouts: Sequence[Layout]) -> list[list[Read]]:
        """Have the KV of each branch's text but its suffix, and the scores of that part."""
        self.follow_model()
        for layout in layouts:
            self.engine.limits.check_context(len(layout.tokens) + len(layout.suffix) + 1)
        reads = [self._reads(layout) for layout in layouts]
        new = [
            (branch, layout, row)
            for branch, layout, row in zip(branches, layouts, reads, strict=True)
            if branch not in self.mirrors or self.mirrors[branch].layout.tokens != layout.tokens
        ]
        made = self._computed(
            [
                (branch, layout.tokens, dict(zip(layout.reads, row[: len(layout.reads)], strict=True)))
                for branch, layout, row in new
            ]
        )
        for (branch, layout, row), mirrored in zip(new, made, strict=True):
            if (before := self.mirrors.get(branch)) is not None:
                self.engine.release([before.branch])
            self.mirrors[branch] = Mirror(mirrored, layout, row)
        for branch, layout, row in zip(branches, layouts, reads, strict=True):
            self.mirrors[branch].layout, self.mirrors[branch].reads = layout, row
        return reads

    def _read_suffixes(
        self, branches: Sequence[Branch], layouts: Sequence[Layout], reads: Sequence[list[Read]]
    ) -> None:
        """The scores after the suffixes, whose KV is dropped at once."""
        asked = [
            (branch, layout.tokens + layout.suffix, {layout.places[-1]: row[-1]})
            for branch, layout, row in zip(branches, layouts, reads, strict=True)
            if layout.suffix and row[-1].score is None
        ]
        self.engine.release(self._computed(asked))

    def _computed(self, texts: Sequence[tuple[Branch, list[int], dict[int, Read]]]) -> list[Branch]:
        """Branches with the KV of some texts, given as (whose, tokens, what to read where); what is read is kept."""
        outputs = Outputs.at([place for place, read in wanted.items() if read.score is None] for *_, wanted in texts)
        prompts = [[*tokens, PENDING] for _, tokens, _ in texts]
        made = self.engine.side_branches([branch for branch, *_ in texts], prompts, outputs)
        try:
            for (*_, wanted), found in zip(texts, outputs.computed, strict=True):
                for place, output in found.items():
                    wanted[place].score = self.score(output)
        except BaseException:
            self.engine.release(made)
            raise
        return made

    def _reads(self, layout: Layout) -> list[Read]:
        """What is read of a text, with the scores that are known."""
        whole, found, read = layout.tokens + layout.suffix, list[Read](), self._start
        for first, place in pairwise([-1, *layout.places]):
            read = read.after(whole[first + 1 : place + 1])
            found.append(read)
        return found

    # ---------------------------------------------------------------- what a rating takes

    def missing_tokens(self, branch: Branch, layout: Layout) -> int:
        """The most tokens that rating a text computes now."""
        rated = self.mirrors.get(branch)
        if rated is not None and rated.layout == layout:
            return 0
        above: Branch | None = branch
        while above is not None and above not in self.mirrors:
            above = above.parent
        present = 0
        if above is not None:
            mirrored = self.mirrors[above].branch
            present = _present(mirrored.tokens[: mirrored.leaf.end], layout.tokens)
        return len(layout.tokens) - present + len(layout.suffix)

    # ---------------------------------------------------------------- what may go

    def released(self, branches: Sequence[Branch]) -> None:
        """The search has let these branches go."""
        self._gone.update(branches)
        self._sweep()

    def clear(self) -> None:
        """Let go of everything."""
        self.engine.release([mirror.branch for mirror in self.mirrors.values()])
        self.mirrors.clear()

    def _sweep(self) -> None:
        """Let go of what is kept for branches that are gone, unless a branch to be rated goes on from there."""
        for branch in [branch for branch in self.mirrors if not self._needed(branch)]:
            self.engine.release([self.mirrors.pop(branch).branch])

    def _needed(self, branch: Branch) -> bool:
        waiting = [branch]
        while waiting:
            branch = waiting.pop()
            if branch not in self._gone:
                return True
            waiting += [child for child in branch.children if child not in self.mirrors]
        return False


def _present(mirrored: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of the tokens are surely found in a tree that holds the mirrored ones."""
    shared = common_prefix(mirrored, tokens)
    return shared if shared == len(mirrored) else max(0, shared - MIN_SHARED_TOKENS + 1)
