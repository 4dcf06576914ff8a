"""One step of decoding: rows that advance together, token by token, until each has ended its step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttc.branch import Branch, by_problem
from ttc.memory import KV
from ttc.plan import DecodePlan
from ttc.sampling import Sampling, choose, uniforms
from ttc.stream import Tails
from ttc.tree import Segment

if TYPE_CHECKING:
    from ttc.engine import Engine


OVERLAP = 8
"""Tokens before a step that an end string may begin in."""


class DecodeStep:
    """One call of `Engine.generate`.

    branches: in depth-first order. limits: the most tokens for each. The residency policy says which of them decode
    together; each group's tails grow in place in one buffer, and a branch that ends its step leaves the batch, its tail
    frozen into a segment.
    """

    def __init__(
        self,
        engine: Engine,
        branches: Sequence[Branch],
        limits: Sequence[int],
        stop: Sequence[str],
        end: Sequence[str],
        sampling: Sampling,
    ):
        self.engine, self.branches = engine, list(branches)
        self.stop, self.end, self.sampling = tuple(stop), tuple(end), sampling
        self.capacity = max(limits)
        self.problems = by_problem(branches)
        self.starts = {id(b): len(b.tokens) for b in branches}
        self.limits = {id(b): len(b.tokens) + limit for b, limit in zip(branches, limits, strict=True)}

    def run(self) -> None:
        engine, residency = self.engine, self.engine.residency
        for leaf in dict.fromkeys(engine.leaf(b) for b in self.branches):
            engine.tree.compact(leaf)
        chosen = residency.groups(self._paths(self.branches), self.capacity)
        groups = [[self.branches[i] for i in sorted(group)] for group in chosen]
        for group, upcoming in zip(groups, [*groups[1:], []], strict=True):
            tails = residency.enter(self._paths(group), self._paths(upcoming), self.capacity)
            try:
                self._decode(group, tails)
            finally:
                residency.leave(tails)

    def _decode(self, active: list[Branch], tails: KV) -> None:
        """Let a group decode its whole step."""
        filled = 0
        try:
            while active:
                plan = self._plan(active, tails, filled)
                try:
                    while not (ended := self._advance(active, plan)):
                        pass
                finally:
                    plan.close()
                filled = plan.filled
                active = self._leave(active, ended, tails, filled)
        finally:
            for row, branch in enumerate(active):  # empty unless something was raised
                self._rescue(branch, tails, row)

    def _rescue(self, branch: Branch, tails: KV, row: int) -> None:
        """Keep what a branch has decoded of a step that broke off; if its KV is lost, undo the step."""
        filled = len(branch.tokens) - 1 - self.engine.leaf(branch).end
        try:
            self._freeze(branch, tails, row, filled)
        except Exception:
            for column in (branch.tokens, branch.logprobs, branch.top1):
                del column[len(column) - filled :]
            branch.finish_reason = None

    def _paths(self, branches: Sequence[Branch]) -> list[list[Segment]]:
        return [self.engine.leaf(b).path() for b in branches]

    def _plan(self, active: Sequence[Branch], tails: KV, filled: int) -> DecodePlan:
        residency = self.engine.residency
        entries = residency.entries(self._paths(active))
        positions = [len(b.tokens) - 1 for b in active]
        stream = residency.stream(entries, positions, Tails(tails, len(active), filled), repeat=True)
        return DecodePlan(entries, positions, tails, filled, stream)

    def _advance(self, active: Sequence[Branch], plan: DecodePlan) -> list[int]:
        """One token for every row. Returns the rows whose step is over."""
        logits = self.engine.forward([b.tokens[-1] for b in active], plan)
        plan.advance()
        self.engine.count_pass(b.usage for b in active)
        self._append(active, logits)
        ended = [self._ended(branch) for branch in active]
        if (gate := self.engine.gate) is not None:
            for problem in self.problems:
                for loser in gate.losers([self.branches[i] for i in problem]):
                    loser.finish_reason = "gate"
        return [row for row, branch in enumerate(active) if ended[row] or branch.finished]

    def _append(self, active: Sequence[Branch], logits: Tensor) -> None:
        uniform = uniforms([b.key for b in active], [len(b.tokens) for b in active])
        chosen = choose(logits, self.sampling, uniform)
        total = logits.logsumexp(-1)
        logprobs = logits.gather(-1, chosen[:, None])[:, 0] - total
        top1 = (logits.amax(-1) - total).exp()
        # one transfer for all three; token ids are exact in float64
        columns = torch.stack([chosen.double(), logprobs.double(), top1.double()]).tolist()
        for branch, token, logprob, top in zip(active, *columns, strict=True):
            branch.tokens.append(int(token))
            branch.logprobs.append(logprob)
            branch.top1.append(top)
            branch.usage.generated_tokens += 1

    def _ended(self, branch: Branch) -> bool:
        """Whether the branch's step is over; sets `finish_reason` where the branch itself is."""
        engine, start = self.engine, self.starts[id(branch)]
        step = text = ""
        if self.stop:
            step = engine.decode(branch.tokens[start:]).lstrip()  # a delimiter before any text ends nothing
        if self.end:
            text = engine.decode(branch.tokens[max(branch.prompt_length, start - OVERLAP) :])
        if branch.tokens[-1] in engine.eos_ids:
            branch.finish_reason = "eos"
        elif any(s in text for s in self.end):
            branch.finish_reason = "end"
        elif engine.context_left(branch) == 0:
            branch.finish_reason = "context"
        at_limit = len(branch.tokens) >= self.limits[id(branch)]
        return branch.finished or at_limit or any(s in step for s in self.stop)

    def _leave(self, active: Sequence[Branch], ended: Sequence[int], tails: KV, filled: int) -> list[Branch]:
        """Freeze the rows that ended and close the gaps; returns the branches that go on, in order."""
        for row in ended:
            self._freeze(active[row], tails, row, filled)
        going = [row for row in range(len(active)) if row not in set(ended)]
        self.engine.memory.keep_rows(tails, going)
        return [active[row] for row in going]

    def _freeze(self, branch: Branch, tails: KV, row: int, filled: int) -> None:
        """Turn the first `filled` tokens of a tail into an immutable segment of the tree."""
        if filled == 0:
            return
        engine = self.engine
        kv = engine.residency.allocate_frozen(filled)
        engine.memory.freeze(tails, row, filled, kv)
        leaf = engine.leaf(branch)
        engine.move(branch, engine.tree.attach(leaf, branch.tokens[leaf.end : leaf.end + filled], kv))
        branch.step_ends.append(len(branch.tokens))
