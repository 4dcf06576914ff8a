"""One step of decoding: rows that advance together, token by token, until each has ended its step."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Protocol

from torch import Tensor

from ttc.attention.plan import DecodePlan
from ttc.errors import OutOfMemory
from ttc.memory.kv import KV
from ttc.memory.tails import Tails, freeze, keep_rows, write_new
from ttc.passes.runtime import Runtime
from ttc.passes.stops import Stops
from ttc.sampling import Sampling, draw, random_states
from ttc.tree.branch import Branch, StepEnd, by_problem
from ttc.tree.segment import Segment
from ttc.usage import count_pass


class Gate(Protocol):
    """Stops branches while they decode (`ttc.approximate.decode_gate.DecodeGate` is one)."""

    def losers(self, problem: Sequence[Branch]) -> list[Branch]:
        """Those of a problem's branches in this step that stop now."""
        ...


class DecodeStep:
    """One call of `Engine.generate`.

    branches: in depth-first order. limits: the most tokens for each. The residency policy says which of them decode
    together; each group's tails grow in place in one buffer, and a branch that ends its step leaves the batch, its tail
    frozen into a segment. statistics: keep each token's entropy and the mean log-probability of the likeliest tokens.
    """

    def __init__(
        self,
        runtime: Runtime,
        branches: Sequence[Branch],
        limits: Sequence[int],
        stops: Stops,
        sampling: Sampling,
        gate: Gate | None = None,
        statistics: bool = False,
    ):
        self.runtime, self.branches = runtime, list(branches)
        self.stops, self.sampling, self.gate, self.statistics = stops, sampling, gate, statistics
        self.capacity = max(limits)
        self.problems = by_problem(branches)
        self.starts = {id(b): len(b.tokens) for b in branches}
        self.limits = {id(b): len(b.tokens) + limit for b, limit in zip(branches, limits, strict=True)}

    def run(self) -> None:
        tree, residency = self.runtime.tree, self.runtime.residency
        for leaf in dict.fromkeys(b.leaf for b in self.branches):
            tree.compact(leaf)
        chosen = residency.groups(_paths(self.branches), self.capacity)
        if self.gate is not None and len(chosen) > 1:
            raise OutOfMemory(
                f"a decode gate compares a problem's branches token by token, and the budget has room for "
                f"{len(chosen[0])} of {len(self.branches)} branches at a time; give a larger memory.budget_gib, fewer "
                "or shorter branches, or no gate"
            )
        groups = [[self.branches[i] for i in sorted(group)] for group in chosen]
        try:
            for group, upcoming in zip(groups, [*groups[1:], []], strict=True):
                tails = residency.enter(_paths(group), _paths(upcoming), self.capacity)
                try:
                    self._decode(group, tails)
                finally:
                    residency.leave(tails)
        finally:
            residency.end_step()

    def _decode(self, active: list[Branch], tails: KV) -> None:
        """Let a group decode its whole step."""
        filled = 0
        try:
            while active:
                with self._plan(active, tails, filled) as plan:
                    while not (ended := self._advance(active, plan)):
                        pass
                filled = plan.filled[0]
                write_new(self.runtime.memory, Tails(tails, len(active), filled), least=1)
                active = self._leave(active, ended, tails, filled)
        finally:
            for row, branch in enumerate(active):  # empty unless something was raised
                self._rescue(branch, tails, row)

    def _plan(self, active: Sequence[Branch], tails: KV, filled: int) -> DecodePlan:
        residency = self.runtime.residency
        entries = residency.entries(_paths(active))
        positions = [len(b.tokens) - 1 for b in active]
        stream = residency.stream(entries, positions, Tails(tails, len(active), filled), repeat=True)
        return DecodePlan(entries, positions, tails, filled, stream)

    def _advance(self, active: Sequence[Branch], plan: DecodePlan) -> dict[int, StepEnd]:
        """One token for every row. Returns the rows whose step is over, and why."""
        logits = self.runtime.runner.forward([b.tokens[-1] for b in active], plan)
        plan.advance()
        write_new(self.runtime.memory, Tails(plan.tails, len(active), plan.filled[0]))
        count_pass(b.usage for b in active)
        self._append(active, logits)
        ended: dict[int, StepEnd] = {}
        for row, branch in enumerate(active):
            if reason := self.stops.check(branch, self.starts[id(branch)], self.limits[id(branch)]):
                ended[row] = reason
        if self.gate is not None:
            for problem in self.problems:
                for loser in self.gate.losers([self.branches[i] for i in problem]):
                    loser.finish_reason = "gate"
                    loser.usage.gated_branches += 1
            ended |= {row: "gate" for row, branch in enumerate(active) if branch.gated}
        return ended

    def _append(self, active: Sequence[Branch], logits: Tensor) -> None:
        states = random_states([b.key for b in active], [len(b.tokens) for b in active])
        draws = draw(logits, self.sampling, states, statistics=self.statistics)
        columns = (column or [nan] * len(active) for column in draws)
        for branch, token, *figures in zip(active, *columns, strict=True):
            branch.append(int(token), *figures)
            branch.usage.generated_tokens += 1

    def _leave(self, active: Sequence[Branch], ended: dict[int, StepEnd], tails: KV, filled: int) -> list[Branch]:
        """Freeze the rows that ended and close the gaps; returns the branches that go on, in order."""
        for row, reason in sorted(ended.items()):
            self._freeze(active[row], tails, row, filled, reason)
        going = [row for row in range(len(active)) if row not in ended]
        keep_rows(self.runtime.memory, tails, going)
        return [active[row] for row in going]

    def _freeze(self, branch: Branch, tails: KV, row: int, filled: int, reason: StepEnd) -> None:
        """Turn the first `filled` tokens of a tail into immutable segments of the tree, each a block at most."""
        if filled == 0:
            return
        tree, residency, memory, blocks = self.runtime.tree, self.runtime.residency, self.runtime.memory, list[KV]()
        size = residency.block_tokens or filled
        try:
            for first in range(0, filled, size):
                blocks.append(residency.allocate_frozen(min(size, filled - first)))
                freeze(memory, tails, row, first, blocks[-1])
        except BaseException:
            for kv in blocks:
                memory.free(kv)
            raise
        for kv in blocks:
            leaf = branch.leaf
            tree.move(branch, tree.attach(leaf, branch.tokens[leaf.end : leaf.end + kv.tokens], kv))
        branch.step_ends.append(len(branch.tokens))
        branch.step_reasons.append(reason)

    def _rescue(self, branch: Branch, tails: KV, row: int) -> None:
        """Keep what a branch has decoded of a step that broke off; if its KV is lost, undo the step."""
        filled = len(branch.tokens) - 1 - branch.leaf.end
        try:
            self._freeze(branch, tails, row, filled, "interrupted")
        except Exception:
            branch.take_back(filled)


def _paths(branches: Sequence[Branch]) -> list[list[Segment]]:
    return [branch.leaf.path() for branch in branches]
