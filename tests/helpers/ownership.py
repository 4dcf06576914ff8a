"""Random programs of calls: whatever is called, the tree holds exactly what live branches need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.helpers.engines import make_engine
from ttc import Engine
from ttc.branch import Branch
from ttc.memory.storage import Storage


class Cancelled(BaseException):
    """What stops a call in the middle."""


def assert_whole(engine: Engine, branches: Sequence[Branch]) -> None:
    """Exactly what these branches need holds KV, in tiers that add up within their budgets."""
    memory, segments = engine.memory, engine.tree.segments()
    written = Counter[Storage]()
    for segment in segments:
        written[segment.storage] += len(segment.tokens)
    assert written == {storage: storage.filled for storage in memory.live}
    sizes = [memory.tier_bytes(storage) for storage in memory.live]
    states = [s.state for s in segments if s.state is not None]
    assert set(memory.states.live) == set(states)
    assert all(state.device[0] is not None or state.host[0] is not None for state in states)
    sizes += [memory.tier_bytes(state) for state in states]
    on_device, on_host = sum(d for d, _ in sizes), sum(h for _, h in sizes)
    assert (memory.device.used_bytes, memory.host.used_bytes) == (on_device, on_host)
    for tier in (memory.device, memory.host):
        assert tier.budget_bytes is None or tier.peak_bytes <= tier.budget_bytes
    for segment in segments:
        assert segment.parent is not None and segment.start == segment.parent.end
        assert segment.refs == sum(b.leaf is segment for b in branches) + len(segment.children) > 0
        assert all(
            segment.storage.device[i] or segment.storage.host[i] for i in range(len(memory.shapes))
        )
    for branch in branches:
        leaf = branch.leaf
        assert [t for s in leaf.path() for t in s.tokens] == branch.tokens[: leaf.end]
        missing = len(branch.tokens) - 1 - leaf.end
        assert (
            missing or leaf.state is not None or leaf.parent is None or memory.states.shape is None
        )
        may_lack_kv = engine.cache is not None or memory.device.budget_bytes is not None
        assert missing == 0 or (missing > 0 and may_lack_kv)
        assert len(branch.logprobs) == len(branch.top1) == len(branch.generated)


def assert_nothing_left(engine: Engine, branches: Sequence[Branch]) -> None:
    """These branches are whole, and once they are released no KV is held."""
    assert_whole(engine, branches)
    engine.release(branches)
    assert engine.kv_bytes() == 0 and not engine.memory.live and not engine.tree.segments()


class Ownership(RuleBasedStateMachine):
    """Whatever is called in whatever order, the tree holds exactly what live branches need."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = make_engine()
        self.live: list[Branch] = []

    def pick(self, data: Any) -> Branch | None:
        usable = [b for b in self.live if len(b.tokens) < 50 and not b.finished]
        return data.draw(st.sampled_from(usable)) if usable else None

    @rule(length=st.integers(1, 24), salt=st.integers(0, 2))
    def root(self, length: int, salt: int) -> None:
        tokens = [5 + i for i in range(length)]
        tokens[length // 2] += salt  # prompts share prefixes of many lengths
        self.live.append(self.engine.root(tokens, seed=salt))

    @rule(data=st.data(), n=st.integers(1, 3))
    def fork(self, data: Any, n: int) -> None:
        if branch := self.pick(data):
            self.live += self.engine.fork(branch, n)

    @rule(data=st.data(), length=st.integers(1, 12))
    def extend(self, data: Any, length: int) -> None:
        if branch := self.pick(data):
            self.engine.extend([branch], [list(range(40, 40 + length))]).result()

    @rule(data=st.data(), tokens=st.integers(1, 4))
    def generate(self, data: Any, tokens: int) -> None:
        usable = [b for b in self.live if len(b.tokens) < 50][:4]
        if usable:
            self.engine.generate(usable, [1 + (tokens + i) % 4 for i in range(len(usable))])

    @rule(call=st.integers(1, 4), step=st.booleans())
    def cancel(self, call: int, step: bool) -> None:
        """A step or an extension is stopped at some call of the model, if it comes that far."""
        usable = [b for b in self.live if len(b.tokens) < 45][:4]
        forward, calls = self.engine.runner.forward, count(1)

        def cancelled(*args: Any, **kwargs: Any) -> torch.Tensor:
            if next(calls) == call:
                raise Cancelled
            return forward(*args, **kwargs)

        self.engine.runner.forward = cancelled  # type: ignore[method-assign]
        try:
            if step:
                self.engine.generate(usable, [1 + (call + i) % 4 for i in range(len(usable))])
            else:
                self.engine.extend(
                    usable, [list(range(60, 64 + i)) for i in range(len(usable))]
                ).result()
        except Cancelled:
            pass
        finally:
            self.engine.runner.forward = forward  # type: ignore[method-assign]

    @rule(data=st.data())
    def score(self, data: Any) -> None:
        if branch := self.pick(data):
            self.engine.score([branch], [[[1], [1, 2, 3], [1, 2, 4]]]).result()

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        if branch := self.pick(data):
            self.engine.release([branch])
            self.live.remove(branch)

    @invariant()
    def owns_exactly_what_is_referenced(self) -> None:
        assert_whole(self.engine, self.live)

    def teardown(self) -> None:
        assert_nothing_left(self.engine, self.live)
