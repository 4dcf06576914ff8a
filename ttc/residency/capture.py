"""CAPTURE: part of the cache kept as activations, from which KV is generated when needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Self

import torch

from ttc.attention.reader import Fetch, Reader, Reads, Regenerate
from ttc.checks import PositiveInt, Probability
from ttc.cost_model.capture import MIN_GAIN, CaptureTimes, Line, mini_batches, next_is_act
from ttc.cost_model.capture import allocation as allocation_by
from ttc.errors import on_failure
from ttc.memory.kv import LayerShape
from ttc.memory.storage import Storage
from ttc.residency.base import Paths
from ttc.residency.capture_reader import CaptureReader, generated_bytes
from ttc.residency.offloading import Offloading
from ttc.tree.segment import Segment

NEVER = (
    "no layer's keys and values can be generated from inputs that are smaller (with multi-head "
    "attention they can, seldom with grouped queries)"
)
LOSES = (
    f"by times measured here a layer gains less than {MIN_GAIN:g}x with them over KV blocks alone; "
    "choose memory=paged, or set memory.act_share"
)


@dataclass
class Capture(Offloading):
    """Part of the blocks are kept as activations, from which the device computes keys and values
    (CAPTURE, section IV). A storage is a KV block, or an ACT block, which holds the input of a
    layer's K and V projections. KV blocks live on the host. The device holds ACT blocks as far as
    there is room, what a step writes, and what a pass fetches or generates; other ACT blocks live
    on the host.

    act_share: the part of each branch's tokens that ACT blocks hold; None for what Algorithm 1
        chooses by times measured on this machine: none where they gain less than a quarter by these
        times (`MIN_GAIN`), and `reason` says so.
    mini_batch_tokens: the largest number of tokens that a layer fetches and generates at once.
    balanced: give these mini-batches the ratio of all blocks (Eqs. 6 and 7); off, blocks are taken
        as they come.

    A layer whose ACT block would be no smaller than its KV block keeps KV alone; `reason` says so.

    Use it where: the link is slow beside the device, and the model has multi-head attention.
    """

    act_share: Probability | None = None
    mini_batch_tokens: PositiveInt = 8192
    balanced: bool = True
    block_tokens: int = 64

    regenerates = True
    reason = ""
    measure: Callable[[int, int, int], CaptureTimes] | None = field(
        init=False, repr=False, compare=False, default=None
    )
    _times: CaptureTimes | None = field(init=False, repr=False, compare=False, default=None)
    """Times that are given, not measured."""
    acts: frozenset[int] = field(init=False, repr=False, default=frozenset())
    """The layers that ACT blocks keep as activations."""
    warned = False
    rows = 1
    """Branches that grew together last."""
    expected = 0
    """Tokens that there will be when the prompts or the step under way are done."""
    made_acts = 0
    made = 0
    """Blocks of both kinds since `take_made`."""
    step_bytes = 0
    """What the branches of a step wrote at most so far."""

    def refusals(self) -> Mapping[str, object]:
        return {
            f"memory.mini_batch_tokens={self.mini_batch_tokens} must be at least twice "
            f"memory.block_tokens={self.block_tokens}: a mini-batch has room for a KV block and an "
            "ACT block": self.mini_batch_tokens < 2 * self.block_tokens
        }

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = super().bind(shapes, dtype, device)
        if self.act_share == 0:
            return bound
        sizes = bound.memory.act_bytes, bound.memory.layer_bytes
        layers = enumerate(zip(shapes, *sizes, strict=True))
        bound.acts = frozenset(n for n, (shape, a, kv) in layers if shape.input_dim and a < kv)
        if not bound.acts:
            bound.reason = NEVER
            warnings.warn(f"memory=capture keeps no ACT blocks: {NEVER}", stacklevel=2)
        return bound

    def use(self, regenerate: Regenerate, measure: Callable[[int, int, int], CaptureTimes]) -> None:
        """`measure(layer, rows, tokens)` gives the times of a layer, per token, in a pass of so
        many rows that attends so many tokens."""
        self.regenerate = regenerate
        self.measure = measure

    @property
    def times(self) -> CaptureTimes | None:
        return self.times_at(max(self.expected, sum(self.counts())))

    @times.setter
    def times(self, times: CaptureTimes) -> None:
        self._times = times

    def times_at(self, tokens: int) -> CaptureTimes | None:
        if (
            self._times is None
            and self.acts
            and self.act_share is None
            and self.measure is not None
        ):
            return self.measure(min(self.acts), self.rows, tokens)
        return self._times

    # ---------------------------------------------------------------- which blocks

    def take_made(self) -> tuple[int, int]:
        """How many ACT blocks, and blocks of both kinds, were made since the last call."""
        made = self.made_acts, self.made
        self.made_acts = self.made = 0
        return made

    def counts(self, storages: Iterable[Storage] | None = None) -> tuple[int, int, int]:
        """Tokens of ACT blocks on the device, of those on the host, and of KV blocks."""
        near = far = kv = 0
        for storage in self.memory.live if storages is None else storages:
            tokens = storage.room if storage in self.writing else storage.filled
            if storage.inputs is None and not storage.acts:
                kv += tokens
            elif self.memory.missing_bytes(storage, storage.acts):
                far += tokens
            else:
                near += tokens
        return near, far, kv

    def allocation(self, tokens: int) -> tuple[float, float]:
        """#ACT and #KV, in tokens, once there are so many (Algorithm 1); KV alone where ACT blocks
        gain less than `MIN_GAIN`."""
        if not self.acts:
            return 0, tokens
        if self.act_share is not None:
            return self.act_share * tokens, (1 - self.act_share) * tokens
        times = self.times_at(tokens)
        assert times is not None, "the policy is bound to no model"
        free = self.act_room(tokens)
        more = tokens if free == inf else max(0, int(free) // self.act_token_bytes)
        room = min(tokens, self.counts()[0] + more) if free != inf else tokens
        act_gpu, act_host, kv_host = allocation_by(times, room, tokens, MIN_GAIN)
        if tokens:
            self.reason = "" if act_gpu + act_host else LOSES
            if self.reason and not self.warned:
                self.warned = True
                warnings.warn(f"memory=capture makes no ACT blocks for now: {LOSES}", stacklevel=3)
        return act_gpu + act_host, kv_host

    def is_act(self, tokens: int, path: Sequence[Segment]) -> bool:
        """Whether a block that follows those of `path` is an ACT block (Eq. 5). Where its branch
        stays within a block of the ratio either way, the blocks of all branches decide."""
        if not self.acts:
            return False
        acts = {s: bool(s.storage.acts or s.storage.inputs) for s in path}
        act_req, kv_req = (
            sum(len(s.tokens) for s, act in acts.items() if act == kind) for kind in (True, False)
        )
        near, far, kv = self.counts()
        act_all, kv_all = self.allocation(max(self.expected, near + far + kv + tokens))
        if self.act_share is None and near + far + tokens > act_all:
            return False  # other branches have them all
        # an ACT block would be a whole one too many
        if act_req * kv_all >= (kv_req + tokens) * act_all:
            return False
        if (act_req + tokens) * kv_all <= kv_req * act_all:  # a KV block would
            return True
        return next_is_act(near + far, kv, act_all, kv_all)

    @property
    def act_token_bytes(self) -> int:
        return sum(self.memory.act_bytes[layer] for layer in self.acts)

    def act_room(self, tokens: int) -> float:
        """For ACT blocks on the device, beside buffers and what a step writes."""
        own = [s for s in self.memory.live if self.writing.get(s, 0) is None]
        beside = [s.inputs for s in own if s.inputs is not None]
        in_use = sum(self.memory.tier_bytes(s)[0] for s in (*own, *beside))
        buffers = 3 * min(tokens, self.mini_batch_tokens) * max(self.memory.layer_bytes, default=0)
        free_bytes = self.memory.device.free_bytes - min(buffers, self.half_of_device)
        return free_bytes - max(0, self.step_bytes - in_use)

    @property
    def half_of_device(self) -> float:
        budget = self.memory.device.budget_bytes
        return inf if budget is None else budget // 2

    # ---------------------------------------------------------------- what lies where

    def require(self, tokens: int, ends: int = 0) -> None:
        self.expected = sum(self.counts()) + tokens
        super().require(tokens, ends)

    def state_on_device(self) -> bool:
        """The device holds ACT blocks as far as it has room."""
        return False

    def begin(self, after: Segment, room: int, one_each: bool) -> Storage:
        """Who decodes writes KV, and inputs beside it where these will be kept."""
        memory = self.memory
        room = memory.room(room)
        as_act = self.is_act(room, after.path())
        if one_each:
            storage = memory.begin(after.end, room)
            self.writing[storage] = None  # it does not leave to make room for its inputs
            if as_act:
                with on_failure(self.free, storage):
                    memory.keep_inputs(storage, self.acts)
        else:
            acts = self.acts if as_act else frozenset[int]()
            act_room = self.act_room(sum(self.counts()) + room) if as_act else 0
            near = acts if room * self.act_token_bytes <= act_room else frozenset[int]()
            storage = memory.begin(after.end, room, acts, near)
            self.writing[storage] = 0
        self.made_acts += as_act
        self.made += 1
        return storage

    def leave(self, storages: Sequence[Storage]) -> None:
        super().leave(storages)
        memory = self.memory
        for storage in storages:
            if storage.inputs is not None:
                memory.become_acts(storage)
            stays = self.acts & storage.acts
            memory.evict(storage, "write-back", [n for n in memory.layers if n not in stays])
            if stays and self.act_room(sum(self.counts())) < 0:
                memory.evict(storage, "write-back")

    # ---------------------------------------------------------------- a step

    @contextmanager
    def trial(self) -> Iterator[Self]:
        times = self.times  # measured before, for within nothing is computed
        with super().trial() as policy:
            policy._times = times
            yield policy

    def begin_step(self, paths: Paths, tokens: int) -> list[list[int]]:
        self.expected = sum(self.counts()) + tokens * len(paths)
        self.rows = len(paths)
        return super().begin_step(paths, tokens)

    def groups(self, paths: Paths, tokens: int) -> list[list[int]]:
        groups = super().groups(paths, tokens)
        own_bytes = max(map(len, groups)) * tokens * self.own_token_bytes
        self.step_bytes = max(self.step_bytes, own_bytes)
        return groups

    @property
    def own_token_bytes(self) -> int:
        return self.memory.bytes_per_token + self.act_token_bytes

    def buffer_bytes(self, paths: Paths) -> int:
        """A KV block and an ACT block of a layer, and what is generated of the latter."""
        kv_bytes = super().buffer_bytes(paths)
        if not self.acts:
            return kv_bytes
        act_bytes = max(self.memory.act_bytes[layer] for layer in self.acts)
        return 2 * kv_bytes + kv_bytes * act_bytes // max(self.memory.layer_bytes)

    def enter(self, paths: Paths) -> None:
        """ACT blocks come as far as there is room: once, in place of once a token."""
        memory = self.memory
        self.make_room(self.step_bytes)
        tokens = sum(self.counts())
        for storage in dict.fromkeys(s.storage for path in paths for s in path):
            missing = memory.missing_bytes(storage, storage.acts)
            if missing and missing <= self.act_room(tokens):
                memory.fetch(storage, "act", sorted(storage.acts))

    # ---------------------------------------------------------------- a pass

    def stream(self, reads: Reads) -> Reader | None:
        memory = self.memory
        memory.wait(piece.kv for piece in reads.pieces)
        least = max((piece.length for piece in reads.pieces), default=0)
        most = max(self.mini_batch_tokens, least)
        while True:
            units = self.mini_batch_units(reads, most)
            if not units:
                return None
            prefetch = self.prefetch and len(units) > 1
            elements = max(CaptureReader.elements(memory, unit, reads) for unit in units)
            buffer_bytes = memory.dtype.itemsize * elements
            generated = max(generated_bytes(memory, unit, reads) for unit in units)
            nbytes = buffer_bytes * (1 + prefetch) + generated
            if most > least and (nbytes > self.half_of_device or not self.make_room(nbytes)):
                most = max(most // 2, least)
                continue
            if not self.make_room(nbytes):
                prefetch = False  # one buffer may fit where two do not
                self.make_room(buffer_bytes + generated)
            return CaptureReader(memory, units, reads, prefetch, regenerate=self.regenerate)

    def mini_batch_units(self, reads: Reads, most: int) -> list[Fetch]:
        batches: dict[tuple[bool, tuple[int, ...]], list[list[int]]] = {}
        units: list[Fetch] = []
        for layer, shape in enumerate(self.memory.shapes):
            absent = tuple(
                number
                for number, piece in enumerate(reads.pieces)
                if piece.kv.readable(layer) is None and reads.sees(shape, piece)
            )
            key = layer in self.acts, absent
            if key not in batches:
                batches[key] = self.mini_batches(reads, layer, absent, most)
            units += [Fetch(layer, slice(None), tuple(batch)) for batch in batches[key]]
        return units

    def mini_batches(
        self, reads: Reads, layer: int, absent: Sequence[int], most: int
    ) -> list[list[int]]:
        """Which pieces load together. Balanced are those with the ratio of all: computing and
        loading then take equally long."""
        pieces = [reads.pieces[number] for number in absent]
        requests = [  # tokens of (ACT blocks, KV blocks)
            (piece.length, 0) if layer in piece.kv.acts else (0, piece.length) for piece in pieces
        ]
        act, kv = (sum(kind) for kind in zip(*requests, strict=True)) if requests else (0, 0)
        if self.balanced and act and kv:
            batches = mini_batches(requests, most, Line(1 / act), Line(1 / kv))
            return [[absent[number] for number in batch] for batch in batches]
        groups: list[list[int]] = []
        room = 0
        for number, piece in zip(absent, pieces, strict=True):
            if piece.length > room:
                groups.append([])
                room = most
            groups[-1].append(number)
            room -= piece.length
        return groups
