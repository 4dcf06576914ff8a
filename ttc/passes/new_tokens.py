"""New tokens (prompts, given tokens, KV that was evicted): which of them a pass computes, where
their KV is written, and the pass itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from ttc.attention.pieces import depth_first
from ttc.attention.plan import Plan, Run
from ttc.backend import Purpose
from ttc.branch import Branch
from ttc.errors import OutOfMemory
from ttc.memory.storage import Places
from ttc.model.recurrent_layers import StatesOfPass
from ttc.passes.runtime import Runtime
from ttc.task import Passes
from ttc.tree.branch import by_problem
from ttc.tree.segment import Segment, present
from ttc.tree.tree import Holder, Path, Tree
from ttc.usage import Usage, count_pass


class New(NamedTuple):
    """Tokens of a path that a pass computes. keep: the numbers of those after which the model's
    output is wanted."""

    holder: Holder
    tokens: Sequence[int]
    places: Sequence[Places]
    keep: Sequence[int] = ()

    @property
    def start(self) -> int:
        return self.places[0].storage.start + self.places[0].first


class Packed(NamedTuple):
    """The rows of a pass. order: the numbers of the `New` that the plan's runs are."""

    tokens: list[int]
    plan: Plan
    order: list[int]


def packed(runtime: Runtime, new: Sequence[New]) -> Packed:
    paths = [one.holder.leaf.path() for one in new]
    firsts = [one.start for one in new]
    order = depth_first(paths, firsts)
    tokens: list[int] = []
    positions: list[int] = []
    runs: list[Run] = []
    for i in order:
        one, start = new[i], firsts[i]
        row, count = len(tokens), len(one.tokens)
        runs.append(Run(slice(row, row + count), one.places))
        tokens += one.tokens
        positions += range(start, start + count)
    counts = [len(new[i].tokens) for i in order]
    starts = [firsts[i] for i in order]
    read = runtime.residency.pieces([paths[i] for i in order], counts, starts)
    return Packed(tokens, runtime.plan(read, positions, runs), order)


def run(
    runtime: Runtime, new: Sequence[New], load: Callable[[Packed], None] = lambda rows: None
) -> Tensor:
    """One pass over new tokens: the model's outputs (kept rows, width), in the order of `new`.
    load: makes its recurrent states ready."""
    rows = packed(runtime, new)
    load(rows)
    tokens, plan, order = rows
    firsts = {i: run.rows.start for i, run in zip(order, plan.runs, strict=True)}
    keep = [firsts[i] + number for i, one in enumerate(new) for number in one.keep]
    with plan:
        return runtime.runner.forward(tokens, plan, keep or [len(tokens) - 1])


@contextmanager
def one_pass(
    runtime: Runtime,
    holders: Sequence[Holder],
    tokens: Sequence[Sequence[int]],
    openings: Sequence[int] = (),
) -> Iterator[tuple[Packed, list[Path]]]:
    """New tokens after each of some paths in a single pass, and who holds the longer paths until it
    is over. None of them reads what another one writes."""
    tree, states = runtime.tree, runtime.pass_states()
    paths = [Path(tree.hold(holder.leaf)) for holder in holders]
    before = [path.leaf for path in paths]
    try:
        if states is not None:
            states.claim(2 * len(paths))  # those of who stays are copied where others leave
        new = [
            New(path, part, tree.write(path, part, len(part)))
            for path, part in zip(paths, tokens, strict=True)
        ]
        rows = packed(runtime, new)
        if states is not None:
            inside = [openings[i] > new[i].start for i in rows.order]
            states.begin(rows.plan, [before[i] for i in rows.order], inside)
        with rows.plan:
            yield rows, paths
        runtime.residency.leave([place.storage for one in new for place in one.places])
    finally:
        if states is not None:
            states.clear()
        for path in reversed(paths):
            tree.drop(path.leaf)


@dataclass(eq=False)
class Target:
    """A path that is to have the KV of all of `tokens`.

    branch: whose it is. holder: who holds it, None for one that begins where `after` has ended.
    shared: whether what stands in the tree is taken, and others take what is computed.
    output_places: the numbers of tokens after which the model's output is wanted, where it is
        computed.
    opening: see `Segment`. kept: whether others go on from its end. passing: of recurrent layers, a
        segment whose state was kept for the next pass alone.
    """

    branch: Branch
    tokens: Sequence[int]
    holder: Holder | None
    shared: bool = True
    output_places: set[int] = field(default_factory=set)
    after: Target | None = None
    opening: int = 0
    kept: bool = True
    passing: Segment | None = None

    @property
    def done(self) -> bool:
        return self.holder is not None and self.holder.leaf.end >= len(self.tokens)

    @property
    def there(self) -> int:
        """The tokens whose KV is there, as far as is known before it is looked for."""
        if self.holder is None and self.after is not None:
            return len(self.after.tokens)
        return (self.holder or self.branch).leaf.end

    def hold(self, tree: Tree) -> Holder:
        if self.holder is None:
            assert self.after is not None and self.after.holder is not None
            self.holder = Path(tree.hold(self.after.holder.leaf))
        return self.holder


Take = Callable[[Target, Sequence[int], Tensor], None]
"""Gets the outputs (numbers, width) of a pass after the tokens with these numbers of a target."""


@torch.inference_mode()
def compute(
    runtime: Runtime,
    targets: Sequence[Target],
    purpose: Purpose,
    take: Take = lambda target, numbers, outputs: None,
) -> Passes[None]:
    """Bring each target's KV there, pass by pass. Between two of them others may use the tree. A
    branch that is released there is left out from then on."""
    waiting = [t for t in targets if not t.branch.released]
    require(runtime, waiting)
    while waiting := [t for t in waiting if not t.branch.released and not t.done]:
        with (
            runtime.metered([target.branch for target in waiting]),
            _chunk(runtime, waiting) as (chosen, new, states),
        ):
            outputs = _run(runtime, chosen, new, states) if new else torch.empty(0)
        count_pass(target.branch.usage for target in chosen)
        sizes = [len(one.keep) for one in new]
        parts = outputs[: sum(sizes)].split(sizes) if new else ()
        for target, one, part in zip(chosen, new, parts, strict=True):
            _count(target.branch.usage, len(one.tokens), purpose)
            if one.keep:
                take(target, [one.start + number for number in one.keep], part)
        if new and not all(target.done for target in waiting):
            yield


def require(runtime: Runtime, targets: Sequence[Target]) -> None:
    """Raise OutOfMemory unless there is room for what these lack, tokens that they share once."""
    lacking = sum(len(target.tokens) - target.there for target in targets)
    ends = sum(target.kept for target in targets)
    try:
        runtime.residency.require(lacking, ends)
    except OutOfMemory:
        if (less := _lacking_together(runtime, targets)) == lacking:
            raise
        runtime.residency.require(less, ends)


def _lacking_together(runtime: Runtime, targets: Sequence[Target]) -> int:
    """The tokens whose KV is nowhere, those that targets share once."""
    tree, before = runtime.tree, list[int]()
    lacking = 0
    for tokens, target in sorted(((list(t.tokens), t) for t in targets), key=itemgetter(0)):
        there = target.there
        if target.shared and target.holder is not None:
            leaf = target.holder.leaf
            there = tree.find(leaf, tokens[there:], target.opening).end
            there = max(there, present(tokens, before))
            before = tokens
        lacking += len(tokens) - there
    return lacking


def _run(
    runtime: Runtime, targets: Sequence[Target], new: Sequence[New], states: StatesOfPass | None
) -> Tensor:
    if states is None:
        return run(runtime, new)
    of: list[Target] = []

    def load(rows: Packed) -> None:
        of.extend(targets[i] for i in rows.order)
        inside = [new[i].start < targets[i].opening for i in rows.order]
        states.begin(rows.plan, [states.chosen[target][0] for target in of], inside)

    outputs = run(runtime, new, load)
    states.end(of)
    return outputs


@contextmanager
def _chunk(
    runtime: Runtime, targets: Sequence[Target]
) -> Iterator[tuple[list[Target], list[New], StatesOfPass | None]]:
    """The next tokens that a pass computes, with their places; taken back where it fails."""
    tree, left = runtime.tree, runtime.prefill_tokens
    states = runtime.pass_states()
    chosen: list[Target] = []
    new: list[New] = []
    begun: list[tuple[Holder, int]] = []
    try:
        for target in targets:
            head = target.after if target.holder is None else None
            if states is not None and head is not None and (head in chosen or not head.done):
                continue  # until the state is there
            holder = target.hold(tree)
            before = holder.leaf.end
            begun.append((holder, before))
            node = tree.last_state(holder.leaf)
            if target.shared:
                node = tree.find(holder.leaf, target.tokens[before:], target.opening)
            tree.move(holder, node)
            start = node.end
            target.branch.usage.shared_tokens += max(0, start - before)
            missing = target.tokens[start:]
            part = missing[:left]
            if part and states is not None:
                part = part[: states.most(target, targets)]
            if part:
                places = tree.write(holder, part, len(missing))
                end = start + len(part)
                keep = [
                    number - start
                    for number in sorted(target.output_places)
                    if start <= number < end
                ]
                chosen.append(target)
                new.append(New(holder, part, places, keep))
                tree.set_opening(holder.leaf, start, target.opening)
                left -= len(part)
            if not left:
                break
        yield chosen, new, states
    except BaseException:
        for holder, end in reversed(begun):
            tree.rewind(holder, end)
        raise
    finally:
        if states is not None:
            states.clear()
        runtime.residency.leave([place.storage for one in new for place in one.places])


def _count(usage: Usage, tokens: int, purpose: Purpose) -> None:
    if purpose == "verifier":
        usage.verifier_tokens += tokens
    elif purpose == "recompute":
        usage.recomputed_tokens += tokens
    else:
        usage.prompt_tokens += tokens


def batches(
    runtime: Runtime, branches: Sequence[Branch], runs: Sequence[Sequence[int]], together: bool
) -> Iterator[list[int]]:
    """Which branches share a pass: depth-first, as many as `prefill_tokens` rows hold, problems
    whole where `together`."""
    paths = [[] if b.released else b.leaf.path() for b in branches]
    order = depth_first(paths)
    units = [[i] for i in order]
    if together:
        problems = by_problem([branches[i] for i in order])
        units = [[order[n] for n in rows] for rows in problems]
    batch: list[int] = []
    for unit in units:
        if batch and sum(len(runs[i]) for i in batch + unit) > runtime.prefill_tokens:
            yield [batch[n] for n in depth_first([paths[i] for i in batch])]
            batch = []
        batch += unit
    if batch:
        yield [batch[n] for n in depth_first([paths[i] for i in batch])]


# ---------------------------------------------------------------- whole texts


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model at places of some sequences. places[i]: in sequence i, from its first
    token. computed[i]: the output (width,) at each of them that was computed; what stands in the
    tree already is missing."""

    places: list[set[int]]
    computed: list[dict[int, Tensor]]

    @classmethod
    def at(cls, places: Iterable[Iterable[int]]) -> Outputs:
        sets = [set(numbers) for numbers in places]
        return cls(sets, [{} for _ in sets])

    def of(self, indices: Sequence[int]) -> Outputs:
        """The same for some of the sequences."""
        return Outputs([self.places[i] for i in indices], [self.computed[i] for i in indices])


def prefill(
    runtime: Runtime,
    branches: Sequence[Branch],
    texts: Sequence[Sequence[int]],
    purpose: Purpose,
    outputs: Outputs | None = None,
) -> Passes[None]:
    """Bring the KV of each branch up to all tokens of its text but the last, pass by pass (see
    `compute`). outputs: takes what the model gives at chosen places of the texts."""
    shared = runtime.sharing.rule != "none"
    outputs = outputs or Outputs.at([()] * len(branches))
    targets = {
        Target(
            branch,
            text[:-1],
            branch,
            shared,
            places,
            opening=runtime.opening(branch, len(text) - len(branch.tokens)),
        ): computed
        for branch, text, places, computed in zip(
            branches, texts, outputs.places, outputs.computed, strict=True
        )
    }

    def take(target: Target, places: Sequence[int], rows: Tensor) -> None:
        targets[target].update(zip(places, rows, strict=False))

    yield from compute(runtime, list(targets), purpose, take)
