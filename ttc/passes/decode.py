"""One step of decoding: rows that advance together, token by token, until each has ended its step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ttc.attention.plan import DecodePlan
from ttc.errors import OutOfMemory
from ttc.memory.kv import KV
from ttc.memory.tails import Tails, freeze, keep_rows
from ttc.sampling import Sampling, choose, streams
from ttc.tree.branch import Branch, by_problem
from ttc.tree.tree import Segment

if TYPE_CHECKING:
    from ttc.engine import Engine


OVERLAP = 8
"""Tokens before a step that an end string may begin in."""


def window_tokens(strings: Sequence[str]) -> int:
    """As many last tokens as any of `strings` can reach back in: a character is at most four tokens."""
    return 4 * max(map(len, strings), default=0) + OVERLAP


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
        self.stop_window, self.end_window = window_tokens(stop), window_tokens(end)
        self.begins: dict[int, int] = {}  # of a branch, by id: its first token in this step with more than blanks
        self.capacity = max(limits)
        self.problems = by_problem(branches)
        self.starts = {id(b): len(b.tokens) for b in branches}
        self.limits = {id(b): len(b.tokens) + limit for b, limit in zip(branches, limits, strict=True)}

    def run(self) -> None:
        engine, residency = self.engine, self.engine.residency
        for leaf in dict.fromkeys(engine.leaf(b) for b in self.branches):
            engine.tree.compact(leaf)
        chosen = residency.groups(self._paths(self.branches), self.capacity)
        if engine.gate is not None and len(chosen) > 1:
            raise OutOfMemory(
                f"a decode gate compares a problem's branches token by token, and the budget has room for "
                f"{len(chosen[0])} of {len(self.branches)} branches at a time; give a larger memory.budget_gib, fewer "
                "or shorter branches, or no gate"
            )
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
                    loser.usage.gated_branches += 1
        return [row for row, branch in enumerate(active) if ended[row] or branch.finished]

    def _append(self, active: Sequence[Branch], logits: Tensor) -> None:
        states = streams([b.key for b in active], [len(b.tokens) for b in active])
        chosen = choose(logits, self.sampling, states)
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
        engine, tokens, length = self.engine, branch.tokens, len(branch.tokens)
        step = self._step_text(branch) if self.stop else ""
        text = ""
        if self.end:
            first = max(branch.prompt_length, self.starts[id(branch)] - OVERLAP, length - self.end_window)
            text = engine.decode(tokens[first:])
        if tokens[-1] in engine.eos_ids:
            branch.finish_reason = "eos"
        elif any(s in text for s in self.end):
            branch.finish_reason = "end"
        elif engine.context_left(branch) == 0:
            branch.finish_reason = "context"
        at_limit = length >= self.limits[id(branch)]
        return branch.finished or at_limit or any(s in step for s in self.stop)

    def _step_text(self, branch: Branch) -> str:
        """The end of the step's text, where a delimiter may just have been completed; one before any text ends
        nothing, so leading blanks are left out."""
        length, begin = len(branch.tokens), self.begins.get(id(branch))
        first = max(self.starts[id(branch)] if begin is None else begin, length - self.stop_window)
        text = self.engine.decode(branch.tokens[first:])
        if begin is not None and first > begin:
            return text
        if (text := text.lstrip()) and begin is None:
            self.begins[id(branch)] = length - 1
        return text

    def _leave(self, active: Sequence[Branch], ended: Sequence[int], tails: KV, filled: int) -> list[Branch]:
        """Freeze the rows that ended and close the gaps; returns the branches that go on, in order."""
        for row in ended:
            self._freeze(active[row], tails, row, filled)
        going = [row for row in range(len(active)) if row not in set(ended)]
        keep_rows(self.engine.memory, tails, going)
        return [active[row] for row in going]

    def _freeze(self, branch: Branch, tails: KV, row: int, filled: int) -> None:
        """Turn the first `filled` tokens of a tail into immutable segments of the tree, each a block at most."""
        if filled == 0:
            return
        engine, blocks = self.engine, list[KV]()
        size = engine.residency.block_tokens or filled
        try:
            for first in range(0, filled, size):
                blocks.append(engine.residency.allocate_frozen(min(size, filled - first)))
                freeze(engine.memory, tails, row, first, blocks[-1])
        except BaseException:
            for kv in blocks:
                engine.memory.free(kv)
            raise
        for kv in blocks:
            leaf = engine.leaf(branch)
            engine.move(branch, engine.tree.attach(leaf, branch.tokens[leaf.end : leaf.end + kv.tokens], kv))
        branch.step_ends.append(len(branch.tokens))
