"""What stands around each call of an engine: its KV is of the model as it is now and lies where the
call needs it, others have made way, and the cache stays within its capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet, ref

from ttc.backend import Purpose
from ttc.branch import Branch
from ttc.errors import OutOfMemory
from ttc.passes.new_tokens import prefill
from ttc.passes.runtime import Runtime
from ttc.task import LET_GO, Passes, Task, all_of
from ttc.usage import distinct

if TYPE_CHECKING:
    from ttc.tree.eviction import BlockCache

T = TypeVar("T")

RESTARTS = 3
"""How often a call begins again because the model has changed between its passes."""


class Decoding(Protocol):
    """A batch whose branches decode (`RunningBatch`)."""

    runtime: Runtime

    @property
    def branches(self) -> set[Branch]: ...

    @property
    def at_work(self) -> bool: ...

    def make_way(self, needed: Sequence[Branch] = ()) -> None: ...

    def interrupt(self) -> None: ...

    def preempt(self) -> None: ...

    def youngest(self) -> list[Branch]: ...

    def forget(self, branches: Iterable[Branch]) -> None: ...


class Calls:
    """The calls of one engine, and of those that take turns with it.

    lock: held during each call, or each pass of one that others may come between.
    live: the branches that were not released. batches: where branches decode. family: the calls of
        the engines that take turns, these among them.
    count: of calls so far. changes: of the model that KV has followed, since load.
    """

    def __init__(self, runtime: Runtime, cache: BlockCache | None):
        self.runtime = runtime
        self.cache = cache
        self.lock = RLock()
        self.live: WeakSet[Branch] = WeakSet()
        self.batches: WeakSet[Decoding] = WeakSet()
        self.family = [ref(self)]
        self.count = 0
        self.changes = runtime.runner.watch.changes

    def take_turns_with(self, other: Calls) -> None:
        """Share another engine's lock, before any call: each makes way for the other's passes."""
        self.lock = other.lock
        self.batches = other.batches
        self.family = other.family
        self.family.append(ref(self))
        self.runtime.under_way = other.runtime.under_way

    # ---------------------------------------------------------------- a call

    @contextmanager
    def present(self, branches: Sequence[Branch], wake: bool = True) -> Iterator[None]:
        """Keep the cache within its capacity around a call, and have the KV of `branches` there."""
        self._begin(branches)
        all_of(self._woken(branches if wake else []))
        try:
            yield
        finally:
            self.trim()

    def pass_by_pass(self, branches: Sequence[Branch], made: Passes[T]) -> Task[T]:
        """A call on these branches that is made one pass at a time."""
        return Task(branches, made, self.lock, self.runtime.under_way)

    def in_parts(
        self,
        branches: Sequence[Branch],
        passes: Callable[[slice], Passes[None]],
        wake: bool,
        whole_problems: bool = False,
    ) -> Passes[None]:
        """The passes of all branches (see `between`), or of half of them at a time where they do
        not fit together. passes: those of some of the branches. whole_problems: branches of one
        problem are never parted."""
        waiting = [slice(0, len(branches))]
        while waiting:
            part = waiting.pop()
            of = branches[part]
            try:
                yield from self.between(of, partial(passes, part), wake)
            except OutOfMemory:
                middle = part.start + _middle(of, whole_problems)
                if middle == part.start:
                    raise
                waiting += [slice(middle, part.stop), slice(part.start, middle)]

    def between(
        self, branches: Sequence[Branch], passes: Callable[[], Passes[T]], wake: bool
    ) -> Passes[T]:
        """What stands around a call (see `present`), where others may use the engine between its
        passes. If the model has changed meanwhile, all passes are made again: `RESTARTS` times at
        most, as a model may change with each of its own passes. So they are where others have to
        make room, with nobody between from then on."""

        def from_the_start() -> Passes[T]:
            yield from self._woken([branch for branch in branches if wake and not branch.released])
            return (yield from passes())

        self._begin(branches)
        starts = 0
        spent = [(usage, replace(usage)) for usage in distinct(b.usage for b in branches)]

        def forget() -> None:
            """An attempt that is made again costs the search nothing."""
            for usage, before in spent:
                usage.prompt_tokens = before.prompt_tokens
                usage.shared_tokens = before.shared_tokens
                usage.verifier_tokens = before.verifier_tokens

        try:
            while True:
                changes = self.changes
                starts += 1
                with closing(from_the_start()) as made:
                    try:
                        if starts > RESTARTS:
                            return all_of(made)  # with nobody between
                        while changes == self.changes:
                            next(made)
                            yield
                            if changes == self.changes:
                                self._make_way()
                        forget()
                    except StopIteration as end:
                        result: T = end.value
                        return result
                    except OutOfMemory:
                        forget()
                        if not self.let_go_of_others(branches):
                            raise
                        starts = RESTARTS
                if changes != self.changes:
                    yield LET_GO
                    self._make_way(branches)
        finally:
            self.trim()

    def wake(self, branches: Sequence[Branch]) -> None:
        """Compute the KV again of branches that a batch is about to decode."""
        self._use(branches)
        all_of(self._woken(branches))
        self.trim()

    def _begin(self, branches: Sequence[Branch]) -> None:
        self.follow_model()
        self.finish_others()
        self._use(branches)
        self._make_way(branches)
        self.trim(branches)

    # ---------------------------------------------------------------- its parts

    def _use(self, branches: Sequence[Branch]) -> None:
        self.count += 1
        for branch in branches:
            branch.used_at = self.count

    def follow_model(self, changed: bool = False) -> None:
        """Where the model is another one than in the last call, let go of all KV: for the branches
        that go on it is computed again. changed: it is another one, whatever can be seen of it.
        Raises UnsupportedModel while the model has adapters that cannot be served."""
        watch = self.runtime.runner.watch
        if changed:
            watch.changed()
        else:
            watch.unchanged()
        if watch.changes == self.changes:
            return
        self.changes = watch.changes
        for batch in list(self.batches):
            if batch.runtime is self.runtime:
                batch.interrupt()
        tree = self.runtime.tree
        for branch in list(self.live):
            tree.move(branch, tree.trunk)

    def finish_others(self) -> None:
        """Calls that others have begun are finished first where room is tight: it was theirs when
        they began."""
        if not self.runtime.residency.roomy:
            self._finish_begun()

    def _finish_begun(self) -> bool:
        """Finish the calls that others have begun; says whether there were any. Whoever made one is
        told what has stopped it. One whose model has changed lets go of what it has, and waits: the
        model may be changed back before its maker goes on with it."""
        begun = self._holding()
        for call in begun:
            with suppress(Exception):
                while not call.running and not call.step() and call.holds:
                    pass
        return bool(begun)

    def _holding(self) -> list[Task[Any]]:
        """The calls that others have begun, and that have something."""
        return [call for call in self.runtime.under_way if call.holds and not call.running]

    def _make_way(self, needed: Sequence[Branch] = ()) -> None:
        """needed: the branches of a call, which are not to decode while it begins."""
        for batch in list(self.batches):
            batch.make_way(needed)

    def _woken(self, branches: Sequence[Branch]) -> Passes[None]:
        """Compute the KV of branches that has been evicted."""
        missing = [branch for branch in branches if branch.leaf.end < len(branch.tokens) - 1]
        purpose: Purpose = "prompt" if self.runtime.sharing.rule == "none" else "recompute"
        yield from prefill(self.runtime, missing, [b.tokens for b in missing], purpose)
        if missing:
            yield

    def let_go_of_others(self, branches: Sequence[Branch]) -> bool:
        """Have all that decode wait; where nobody did, `let_go` of a branch that is not one of
        these; where there is none, finish the calls that others have begun, in the room of these;
        else have these begin anew. Says whether there may be more room now."""
        at_work = [batch for batch in list(self.batches) if batch.at_work]
        for batch in at_work:
            batch.preempt()
        if at_work or self.let_go(branches):
            return True
        if not self._holding():
            return self._begin_anew(branches)
        for branch in self.live.intersection(branches):
            self.runtime.tree.let_go(branch)
        return self._finish_begun()

    def _begin_anew(self, branches: Sequence[Branch]) -> bool:
        """Let go of branches that go on from the middle of a storage whose end nobody needs any
        more: computed again they take less room. Says whether there was any."""
        tree, chosen = self.runtime.tree, list[Branch]()
        for branch in self.live.intersection(branches):
            storages = [segment.storage for segment in branch.leaf.path()]
            if any(storage.left for storage in storages if storage is not storages[-1]):
                chosen.append(branch)
        for branch in chosen:
            tree.let_go(branch)
        return bool(chosen)

    def let_go(self, keep: Sequence[Branch]) -> bool:
        """Free the KV of a branch that is not one of `keep`, to be computed again when it goes on:
        an idle one first, else one of another part of this call, else the youngest in a batch. Says
        whether there was any. Models in the same tiers count, each with its own tree."""
        tiers = self.runtime.memory.device
        alike = [calls for other in self.family if (calls := other()) is not None]
        alike = [calls for calls in alike if calls.runtime.memory.device is tiers]
        own = dict.fromkeys(
            branch
            for call in self.runtime.under_way
            for branch in call.branches
            if branch in self.live and not set(keep).isdisjoint(call.branches)
        )
        others = [(calls.runtime.tree, branch) for calls in alike for branch in calls.idle()]
        others += [(self.runtime.tree, branch) for branch in own]
        for batch in list(self.batches):
            if batch.runtime.memory.device is tiers:
                others += [(batch.runtime.tree, branch) for branch in batch.youngest()]
        return any(tree.let_go(branch) for tree, branch in others if branch not in keep)

    def trim(self, at_work: Iterable[Branch] = ()) -> None:
        """Keep the cache within its capacity, without the KV of these branches and of those that
        calls or batches work on."""
        if self.cache is not None:
            self.cache.trim(self.runtime.tree, self.live, chain(at_work, self._at_work()))

    def idle(self) -> list[Branch]:
        """The branches that no call works on, that of the longest ago first."""
        return sorted(self.live.difference(self._at_work()), key=lambda branch: branch.used_at)

    def _at_work(self) -> Iterator[Branch]:
        begun = (call.branches for call in self.runtime.under_way)
        decoding = (batch.branches for batch in self.batches)
        return chain(*begun, *decoding)


def _middle(branches: Sequence[Branch], whole_problems: bool) -> int:
    """How many of the branches are the first half; 0 where they cannot be parted."""
    roots = [branch.root_id for branch in branches]
    places = [
        n
        for n in range(1, len(branches))
        if not whole_problems or set(roots[:n]).isdisjoint(roots[n:])
    ]
    return min(places, key=lambda n: abs(2 * n - len(branches)), default=0)
