"""Random programs of calls: whatever is called, the tree holds exactly what live branches need."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.helpers.engines import make_engine
from ttc.tree.branch import Branch


class Cancelled(BaseException):
    """What stops a call in the middle."""


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
            self.engine.extend([branch], [list(range(40, 40 + length))])

    @rule(data=st.data(), tokens=st.integers(1, 4))
    def generate(self, data: Any, tokens: int) -> None:
        usable = [b for b in self.live if len(b.tokens) < 50][:4]
        if usable:
            self.engine.generate(usable, [1 + (tokens + i) % 4 for i in range(len(usable))])

    @rule(call=st.integers(1, 4), step=st.booleans())
    def cancel(self, call: int, step: bool) -> None:
        """A step or an extension is stopped at some call of the model, if it comes that far."""
        usable = [b for b in self.live if len(b.tokens) < 45][:4]
        forward, calls = self.engine.forward, count(1)

        def cancelled(*args: Any, **kwargs: Any) -> torch.Tensor:
            if next(calls) == call:
                raise Cancelled
            return forward(*args, **kwargs)

        self.engine.forward = cancelled  # type: ignore[method-assign]
        try:
            if step:
                self.engine.generate(usable, [1 + (call + i) % 4 for i in range(len(usable))])
            else:
                self.engine.extend(usable, [list(range(60, 64 + i)) for i in range(len(usable))])
        except Cancelled:
            pass
        finally:
            self.engine.forward = forward  # type: ignore[method-assign]

    @rule(data=st.data())
    def score(self, data: Any) -> None:
        if branch := self.pick(data):
            self.engine.score([branch], [[[1], [1, 2, 3], [1, 2, 4]]])

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        if branch := self.pick(data):
            self.engine.release([branch])
            self.live.remove(branch)

    @invariant()
    def owns_exactly_what_is_referenced(self) -> None:
        segments = self.engine.tree.segments()
        assert self.engine.kv_bytes() == sum(sum(self.engine.memory.tier_bytes(s.storage)) for s in segments)
        for segment in segments:
            assert segment.refs == sum(b.leaf is segment for b in self.live) + len(segment.children) > 0
            assert segment.storage.tokens == len(segment.tokens)
            assert segment.parent is not None and segment.start == segment.parent.end
        for branch in self.live:
            path = branch.leaf.path() if branch.leaf else []
            assert [t for s in path for t in s.tokens] == branch.tokens[:-1]

    def teardown(self) -> None:
        self.engine.release(self.live)
        assert self.engine.kv_bytes() == 0
        assert self.engine.tree.segments() == []
