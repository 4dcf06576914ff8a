"""Calls of branches over one tree: prefill, forks, decoding, scoring, by one plan and one loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor

from ttc.model.limits import ModelLimits
from ttc.model.runner_choice import RunnerChoice, runner_for
from ttc.model.running.regeneration import Regeneration
from ttc.model.running.runner import ModelRunner
from ttc.passes.arguments import forked
from ttc.sampling import Sampling, random_key
from ttc.scheduler.rows import Request, Row, draw_tokens
from ttc.scheduler.stops import Stops
from ttc.segments.pieces import depth_first
from ttc.segments.plan import Run, TreePlan
from ttc.segments.policies.base import Policy
from ttc.segments.policies.capture import Capture
from ttc.segments.room import room_for
from ttc.segments.segment import Segment
from ttc.segments.storage import Storage
from ttc.segments.tree import Places, Tree
from ttc.tree.branch import Branch
from ttc.tree.eviction import BlockCache
from ttc.usage import Usage


@dataclass
class New:
    """Tokens of a branch that a pass computes.

    keep: the numbers of those after which the model's output is wanted.
    """

    branch: Branch
    tokens: list[int]
    places: list[Places]
    keep: Sequence[int] = ()


class TreeEngine:
    """A model over one tree in one memory.

    prefill_tokens: the most rows of a pass that computes many tokens of a branch. cache: which idle
        branches keep their KV.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        policy: Policy | None = None,
        runner: RunnerChoice | ModelRunner = "modules",
        prefill_tokens: int = 512,
        cache: BlockCache | None = None,
    ):
        self.runner: ModelRunner = runner_for(model, runner)
        self.model, self.tokenizer = model, tokenizer
        self.limits = ModelLimits.of(model)
        shapes, regeneration = self.runner.shapes, None
        if isinstance(policy, Capture):
            regeneration = Regeneration(self.runner.model, shapes)
            shapes = regeneration.shapes
        self.policy = (policy or Policy()).bind(shapes, self.runner.dtype, self.runner.device)
        if isinstance(self.policy, Capture):
            self.policy.regenerate = regeneration
        self.memory = self.policy.memory
        self.tree = Tree(self.policy.begin, self.policy.free, self.policy.resume)
        self.prefill_tokens = prefill_tokens
        self.cache = None if cache is None else cache.fresh()
        self.live = WeakSet[Branch]()
        self.count = 0

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=not special))

    # ---------------------------------------------------------------- branches

    def root(self, tokens: Sequence[int], seed: int = 0) -> Branch:
        return self.roots([tokens], [seed])[0]

    def roots(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None = None
    ) -> list[Branch]:
        seeds = seeds or [0] * len(prompts)
        branches = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            trunk = cast("Any", self.tree.hold(self.tree.trunk))
            branches.append(Branch(prompt, trunk, random_key(seed), Usage(), self.decode))
        self.live.update(branches)
        with self.present(branches):
            self.compute(branches)
        return branches

    @contextmanager
    def present(self, branches: Sequence[Branch]) -> Iterator[None]:
        """Keep the cache within its capacity around a call on these branches."""
        self.count += 1
        for branch in branches:
            branch.used_at = self.count
        self._trim(branches)
        try:
            yield
        finally:
            self._trim()

    def _trim(self, at_work: Sequence[Branch] = ()) -> None:
        if self.cache is not None:
            self.cache.trim(cast("Any", self.tree), self.live, at_work)

    def fork(self, branch: Branch, n: int) -> list[Branch]:
        children = forked(branch, n, None)
        for child in children:
            self.tree.hold(leaf_of(child))
        self.live.update(children)
        return children

    def release(self, branches: Iterable[Branch]) -> None:
        for branch in branches:
            self.live.discard(branch)
            if (leaf := branch.detach()) is not None:
                self.tree.drop(cast("Any", leaf))

    # ---------------------------------------------------------------- many tokens

    def compute(self, branches: Sequence[Branch]) -> None:
        """Compute the KV of all tokens of branches but the last; what stands in the tree is
        shared."""
        waiting = list(branches)
        missing = [len(b.tokens) - 1 - leaf_of(b).end for b in branches]
        if any(missing):
            self.policy.expect(sum(missing), len(branches))
        while waiting := [b for b in waiting if leaf_of(b).end < len(b.tokens) - 1]:
            with self._chunk(waiting) as new:
                if new:
                    self.run(new)

    @contextmanager
    def _chunk(self, branches: Sequence[Branch]) -> Iterator[list[New]]:
        """The next tokens that a pass computes, with their places; taken back where it fails."""
        tree, chosen, befores, left = self.tree, list[New](), list[Segment](), self.prefill_tokens
        try:
            for branch in branches:
                before = tree.hold(leaf_of(branch))
                befores.append(before)
                tree.move(cast("Any", branch), tree.find(before, branch.tokens[before.end : -1]))
                missing = branch.tokens[leaf_of(branch).end : -1]
                part = missing[:left]
                if part:
                    places = tree.write(cast("Any", branch), part, len(missing))
                    chosen.append(New(branch, part, places))
                    left -= len(part)
                if not left:
                    break
            yield chosen
        except BaseException:
            new = {one.branch: one for one in chosen}
            for branch, before in reversed(list(zip(branches, befores, strict=False))):
                if leaf_of(branch) is before and branch in new:  # it grew in place
                    tree.drop(before)
                    befores.remove(before)
                    tree.take_back(cast("Any", branch), len(new[branch].tokens))
                else:
                    tree.move(cast("Any", branch), before)
            raise
        finally:
            for before in befores:
                tree.drop(before)

    def run(self, new: Sequence[New]) -> Tensor:
        """One pass over new tokens: the model's output (kept rows, width), in the order of
        `new`."""
        paths = [leaf_of(one.branch).path() for one in new]
        order = depth_first(paths)
        tokens: list[int] = []
        positions: list[int] = []
        runs: list[Run] = []
        kept: dict[int, list[int]] = {}
        starts = []
        for i in order:
            one = new[i]
            storage, first, _ = one.places[0]
            start = storage.start + first
            starts.append(start)
            row = len(tokens)
            runs.append(Run(slice(row, row + len(one.tokens)), one.places))
            kept[i] = [row + n for n in one.keep]
            tokens += one.tokens
            positions += range(start, start + len(one.tokens))
        counts = [len(new[i].tokens) for i in order]
        keep = [row for i in range(len(new)) for row in kept[i]]
        try:
            with (
                torch.inference_mode(),
                self.plan([paths[i] for i in order], counts, starts, positions, runs) as plan,
            ):
                return self.runner.forward(tokens, plan, keep or [len(tokens) - 1])
        finally:
            self.policy.leave([place.storage for one in new for place in one.places])

    def plan(
        self,
        paths: Sequence[Sequence[Segment]],
        counts: Sequence[int],
        starts: Sequence[int],
        positions: Sequence[int],
        runs: Sequence[Run],
    ) -> TreePlan:
        found = self.policy.pieces(paths, counts, starts)
        self.memory.used(
            [piece.kv for piece in found] + [p.storage for run in runs for p in run.places]
        )
        return TreePlan(found, positions, runs, self.policy)

    # ---------------------------------------------------------------- scoring

    def score(
        self, branches: Sequence[Branch], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """The log-probability of each token of a continuation of each branch, which stays as it
        is."""
        self.compute(branches)
        children = [self.fork(branch, 1)[0] for branch in branches]
        new = []
        try:
            for child, continuation in zip(children, continuations, strict=True):
                given = [child.tokens[-1], *continuation[:-1]]
                places = self.tree.write(cast("Any", child), given, len(given))
                new.append(New(child, given, places, range(len(given))))
            logprobs = self.run(new).log_softmax(-1)
            parts = logprobs.split([len(continuation) for continuation in continuations])
            return [
                part.gather(1, torch.tensor(continuation)[:, None])[:, 0].tolist()
                for part, continuation in zip(parts, continuations, strict=True)
            ]
        finally:
            self.release(children)

    # ---------------------------------------------------------------- decoding

    def generate(
        self,
        branches: Sequence[Branch],
        max_tokens: int,
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling | None = None,
    ) -> None:
        """Continue each branch by one step, in place; those of a group together."""
        stops = Stops(stop, end, self.limits, self.decode)
        request = Request(stops, sampling or Sampling(), False, list(branches))
        with self.present(branches):
            self.compute(branches)
            rows = [Row.of(branch, request, max_tokens, self.limits) for branch in branches]
            paths = [leaf_of(branch).path() for branch in branches]
            try:
                for group in self.policy.begin_step(paths, max_tokens):
                    Decoding(self, [rows[i] for i in group]).finish()
            finally:
                self.policy.end_step()


class Decoding:
    """Branches that decode a step together, a token at each pass.

    plan: of the passes to come, None where it is to be made anew. room: the passes that it is good
        for. written: where each branch has written in its step.
    """

    def __init__(self, engine: TreeEngine, rows: Sequence[Row]):
        self.engine = engine
        self.rows = list(rows)
        self.plan: TreePlan | None = None
        self.room = 0
        self.begun: dict[Row, int] = {}
        self.written: dict[Row, list[Storage]] = {}

    @torch.inference_mode()
    def finish(self) -> None:
        self.engine.policy.enter([leaf_of(row.branch).path() for row in self.rows])
        try:
            while self.rows:
                self.postprocess(self.run(self.schedule()))
        finally:
            self.settle()
            self.leave(self.rows)

    def schedule(self) -> TreePlan:
        """The plan of the next pass, with a place for the token of each row."""
        if self.plan is not None and self.room:
            return self.plan
        self.settle()
        engine, tree = self.engine, self.engine.tree
        for row in self.rows:
            room = room_for(row.limit - len(row.branch.tokens) + 1, len(row.branch.generated))
            segment = tree.open(cast("Any", row.branch), room)
            its = self.written.setdefault(row, [])
            its += [segment.storage] if segment.storage not in its else []
            self.begun[row] = len(row.branch.tokens) - 1
        paths = [leaf_of(row.branch).path() for row in self.rows]
        order = depth_first(paths)
        self.rows = [self.rows[i] for i in order]
        positions = [len(row.branch.tokens) - 1 for row in self.rows]
        storages = [leaf_of(row.branch).storage for row in self.rows]
        runs = [
            Run(slice(n, n + 1), [Places(storage, storage.filled, 1)])
            for n, storage in enumerate(storages)
        ]
        self.room = min(storage.room - storage.filled for storage in storages)
        self.plan = engine.plan(
            [paths[i] for i in order], [1] * len(order), positions, positions, runs
        )
        return self.plan

    def run(self, plan: TreePlan) -> Tensor:
        tokens = [row.branch.tokens[-1] for row in self.rows]
        logits = self.engine.runner.forward(tokens, plan)
        self.room = self.room - 1 if plan.in_storages else 0
        plan.advance()
        return logits

    def postprocess(self, logits: Tensor) -> None:
        draw_tokens(self.rows, logits)
        ended = [
            (row, reason)
            for row in self.rows
            if (reason := row.request.stops.check(row.branch, row.start, row.limit))
        ]
        if not ended:
            return
        self.settle()
        for row, reason in ended:
            row.branch.end_step(reason)
            self.rows.remove(row)
        self.leave(row for row, _ in ended)

    def settle(self) -> None:
        """Note in the tree what was written since the plan was made."""
        if self.plan is not None:
            self.plan.close()
        self.plan = None
        tree = self.engine.tree
        for row, begun in self.begun.items():
            branch = row.branch
            tree.close(cast("Any", branch), branch.tokens[begun:-1])
        self.begun = {}

    def leave(self, rows: Iterable[Row]) -> None:
        """The steps of these are over."""
        written = [storage for row in rows for storage in self.written.pop(row, ())]
        self.engine.policy.leave([storage for storage in written if storage.filled])


def leaf_of(branch: Branch) -> Segment:
    return cast("Segment", branch.leaf)
