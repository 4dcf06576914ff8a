"""CAPTURE: part of the cache kept as activations, from which keys and values are generated when
they are needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Self

import torch

from ttc.attention.act_inputs import Regenerate
from ttc.attention.entry import Entry, Reads
from ttc.attention.stream import FetchUnit, KVReader
from ttc.checks import PositiveInt, Probability
from ttc.cost_model.capture import MIN_GAIN, CaptureTimes, Line, mini_batches, next_is_act
from ttc.cost_model.capture import allocation as allocation_by
from ttc.errors import InvalidInput
from ttc.memory.kv import KV, LayerShape
from ttc.memory.tails import tail_inputs
from ttc.residency.base import Paths
from ttc.residency.capture_reader import CaptureReader, generated_bytes
from ttc.residency.offloading import Offloading, longest_segment


@dataclass
class Capture(Offloading):
    """KV blocks and ACT blocks (CAPTURE, section IV). An ACT block holds the input of a layer's K
    and V projections, and its KV is generated for each pass. KV blocks live on the host. The device
    holds ACT blocks as far as there is room, tails, and what a pass fetches or generates; other ACT
    blocks live on the host.

    act_share: the part of each branch's blocks that are ACT blocks; None for what Algorithm 1
        chooses by times measured on this machine: none where they gain less than a quarter by these
        times (`MIN_GAIN`), and `reason` says so.
    mini_batch_tokens: the largest number of tokens that a layer fetches and generates at once.
    balanced: give these mini-batches the ratio of all blocks (Eqs. 6 and 7); off, blocks are taken
        as they come.
    A layer whose ACT block would be no smaller than its KV block keeps KV alone; `reason` says so.
    """

    act_share: Probability | None = None
    mini_batch_tokens: PositiveInt = 8192
    balanced: bool = True
    block_tokens: int = 64

    regenerates = True
    reason = ""
    regenerate: Regenerate | None = field(init=False, repr=False, compare=False, default=None)
    measure: Callable[[int, int, int], CaptureTimes] | None = field(
        init=False, repr=False, compare=False, default=None
    )
    _times: CaptureTimes | None = field(init=False, repr=False, compare=False, default=None)
    """Times that are given, not measured."""
    _acts: frozenset[int] = field(init=False, repr=False, default=frozenset())
    """The layers that ACT blocks keep as activations."""
    _warned = False
    _rows = 1
    """Branches that grew together last."""
    _expected = 0
    """Tokens, tails not counted, that there will be when the prompts or the step under way are
    done."""
    _made_acts = 0
    _made = 0
    """Blocks of both kinds since `take_made`."""
    _tail_bytes = 0
    """What the largest tails so far took on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mini_batch_tokens < 2 * self.block_tokens:
            raise InvalidInput(
                f"memory.mini_batch_tokens={self.mini_batch_tokens} must be at least twice "
                f"memory.block_tokens={self.block_tokens}: a mini-batch has room for a KV block "
                "and an ACT block"
            )

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = super().bind(shapes, dtype, device)
        if self.act_share == 0:
            return bound
        sizes = zip(
            shapes,
            bound.memory.act_bytes_per_token,
            bound.memory.layer_bytes_per_token,
            strict=True,
        )
        bound._acts = frozenset(
            layer
            for layer, (shape, act, kv) in enumerate(sizes)
            if shape.input_dim is not None and act < kv
        )
        if not bound._acts:
            bound.reason = _why_none(
                shapes, bound.memory.act_bytes_per_token, bound.memory.layer_bytes_per_token
            )
            warnings.warn(f"memory=capture keeps no ACT blocks: {bound.reason}", stacklevel=2)
        return bound

    def use(self, regenerate: Regenerate, measure: Callable[[int, int, int], CaptureTimes]) -> None:
        """Generate KV by `regenerate`; `measure(layer, rows, tokens)` gives the times of a layer,
        per token, in a pass of so many rows that attends so many tokens."""
        self.regenerate = regenerate
        self.measure = measure

    @property
    def times(self) -> CaptureTimes | None:
        return self._times_at(max(self._expected, sum(self.counts())))

    @times.setter
    def times(self, times: CaptureTimes) -> None:
        self._times = times

    def _times_at(self, tokens: int) -> CaptureTimes | None:
        if (
            self._times is None
            and self._acts
            and self.act_share is None
            and self.measure is not None
        ):
            return self.measure(min(self._acts), self._rows, tokens)
        return self._times

    # ---------------------------------------------------------------- which blocks

    def take_made(self) -> tuple[int, int]:
        """How many ACT blocks, and blocks of both kinds, were made since the last call."""
        made = self._made_acts, self._made
        self._made_acts = self._made = 0
        return made

    def counts(self) -> tuple[int, int, int]:
        segments = [kv for kv in self.memory.live if not kv.pinned]
        acts = [kv for kv in segments if kv.acts]
        near = sum(
            kv.tokens for kv in acts if all(kv.device[layer] is not None for layer in kv.acts)
        )
        act_tokens = sum(kv.tokens for kv in acts)
        return near, act_tokens - near, sum(kv.tokens for kv in segments) - act_tokens

    def allocation(self, tokens: int) -> tuple[float, float]:
        """#ACT and #KV, in tokens, of all blocks once there are so many tokens (Algorithm 1); KV
        alone where ACT blocks gain less than `MIN_GAIN`."""
        if not self._acts:
            return 0, tokens
        if self.act_share is not None:
            return self.act_share * tokens, (1 - self.act_share) * tokens
        times = self._times_at(tokens)
        assert times is not None, "the policy is bound to no model"
        free = self._act_room(tokens)
        room = (
            tokens if free == inf else self.counts()[0] + max(0, int(free) // self._act_token_bytes)
        )
        act_gpu, act_host, kv_host = allocation_by(times, room, tokens, MIN_GAIN)
        if tokens:
            self._note_loss(times, tokens, loses=not act_gpu + act_host)
        return act_gpu + act_host, kv_host

    def _note_loss(self, times: CaptureTimes, tokens: int, loses: bool) -> None:
        known = self.reason
        self.reason = _why_it_loses(times, tokens) if loses else ""
        if loses and not known and not self._warned:
            self._warned = True
            warnings.warn(
                f"memory=capture makes no ACT blocks for now: {self.reason}", stacklevel=3
            )

    def _is_act(self, tokens: int, path: Sequence[KV]) -> bool:
        """Whether a block that follows those of `path` is an ACT block (Eq. 5). Where its branch
        stays within a block of the ratio either way, the blocks of all branches decide: else each
        of them would be rounded the same way."""
        act_req = sum(kv.tokens for kv in path if kv.acts)
        kv_req = sum(kv.tokens for kv in path if not kv.acts)
        near, far, kv = self.counts()
        act_all, kv_all = self.allocation(max(self._expected, near + far + kv + tokens))
        if self.act_share is None and near + far + tokens > act_all:
            return False  # other branches have them all
        # an ACT block would be a whole one too many
        if act_req * kv_all >= (kv_req + tokens) * act_all:
            return False
        if (act_req + tokens) * kv_all <= kv_req * act_all:  # a KV block would
            return True
        return next_is_act(near + far, kv, act_all, kv_all)

    @property
    def _act_token_bytes(self) -> int:
        return sum(self.memory.act_bytes_per_token[layer] for layer in self._acts)

    def _act_room(self, tokens: int) -> float:
        in_use = sum(self.memory.tier_bytes(kv)[0] for kv in self.memory.live if kv.pinned)
        tail_bytes = max(0, self._tail_bytes - in_use)
        return self.device.free_bytes - self._buffers(tokens) - tail_bytes

    def _buffers(self, tokens: int) -> float:
        nbytes = (
            3
            * min(tokens, self.mini_batch_tokens)
            * max(self.memory.layer_bytes_per_token, default=0)
        )
        return min(nbytes, self._half_of_device())

    def _half_of_device(self) -> float:
        budget = self.device.budget_bytes
        return inf if budget is None else budget // 2

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        layers = self.memory.layers
        kv = KV(len(layers), tokens, acts=self._acts if self._is_act(tokens, path) else ())
        self._made_acts += bool(kv.acts)
        self._made += 1
        near: Collection[int] = ()
        if kv.acts:
            room = self._act_room(sum(self.counts()) + tokens)
            near = kv.acts if tokens * self._act_token_bytes <= room else ()
        return self.memory.fill(kv, sorted(near), [layer for layer in layers if layer not in near])

    def state_on_device(self) -> bool:
        """As KV blocks, on the host: the device holds ACT blocks as far as it has room."""
        return False

    # ---------------------------------------------------------------- a step

    @property
    def tail_bytes_per_token(self) -> int:
        return self.memory.bytes_per_token + self._act_token_bytes

    def require_host(self, tokens: int, ends: int, device_bytes: float = 0) -> None:
        """All new tokens as KV blocks, and what the device holds, if it may have to leave."""
        self._expected = sum(self.counts()) + tokens
        self._rows = ends or self._rows
        leaving = 0 if self.device.budget_bytes is None else self._leaving_bytes()
        self._require_on_host(self.memory.bytes_of(tokens, ends) + leaving)

    def buffer_bytes(self, paths: Paths) -> int:
        """A KV block and an ACT block of a layer, and what is generated of the latter."""
        kv_bytes = super().buffer_bytes(paths)
        if not self._acts:
            return kv_bytes
        act_bytes = max(self.memory.act_bytes_per_token[layer] for layer in self._acts)
        return 2 * kv_bytes + longest_segment(paths) * act_bytes

    def enter(self, paths: Paths, upcoming: Paths, capacity: int) -> KV:
        memory, rows = self.memory, len(paths)
        tail_bytes = rows * (capacity * self.tail_bytes_per_token + memory.states.nbytes)
        self._tail_bytes = max(self._tail_bytes, tail_bytes)
        self.make_room(tail_bytes)
        tails = memory.allocate(capacity, rows=rows)
        if self._acts:
            try:
                tails.inputs = tail_inputs(memory, capacity, rows, self._acts)
            except BaseException:
                memory.free(tails)
                raise
        tokens = sum(self.counts())
        for kv in {
            segment.storage: None for path in paths for segment in path if segment.storage.acts
        }:
            if memory.missing_bytes(kv, kv.acts) <= self._act_room(tokens):
                memory.fetch(kv, "act", kv.acts)  # once, in place of once a token
        return tails

    # ---------------------------------------------------------------- a pass

    def stream(self, reads: Reads) -> KVReader | None:
        self.wait_for_entries(reads)
        min_tokens = max((entry.length for entry in reads.entries), default=0)
        max_tokens = max(self.mini_batch_tokens, min_tokens)
        while True:
            units = self._mini_batch_units(reads, max_tokens)
            if not units:
                return None
            prefetch = self.prefetch and len(units) > 1
            buffer_bytes = self.memory.itemsize * max(
                CaptureReader.elements(self.memory, u, reads) for u in units
            )
            generated = max(generated_bytes(self.memory, unit, reads) for unit in units)
            nbytes = buffer_bytes * (1 + prefetch) + generated
            if max_tokens > min_tokens and (
                nbytes > self._half_of_device() or not self.make_room(nbytes)
            ):
                max_tokens = max(max_tokens // 2, min_tokens)
                continue
            if not self.make_room(nbytes):
                prefetch = False  # one buffer may fit where two do not
                self.make_room(buffer_bytes + generated)
            return CaptureReader(self.memory, units, reads, self.regenerate, prefetch)

    def _mini_batch_units(self, reads: Reads, max_tokens: int) -> list[FetchUnit]:
        units: list[FetchUnit] = []
        known: dict[tuple[bool, tuple[int, ...]], list[list[int]]] = {}
        for layer in self.memory.layers:
            missing = tuple(self.missing_entries(layer, reads))
            key = layer in self._acts, missing
            if key not in known:
                known[key] = self._mini_batches(
                    [reads.entries[i] for i in missing], layer in self._acts, max_tokens
                )
            units += [
                FetchUnit(layer, slice(None), tuple(missing[i] for i in batch))
                for batch in known[key]
            ]
        return units

    def _mini_batches(
        self, entries: Sequence[Entry], acts: bool, max_tokens: int
    ) -> list[list[int]]:
        """Which entries (by index) load together. Each is a request of its own, as attention merges
        what it reads in several mini-batches. Balanced are those with the ratio of all: computing
        and loading then take equally long, with what else a layer computes and loads."""
        requests = []  # tokens of (ACT blocks, KV blocks)
        for entry in entries:
            in_acts = acts and entry.kv.acts
            requests.append((entry.length, 0) if in_acts else (0, entry.length))
        act = sum(request[0] for request in requests)
        kv = sum(request[1] for request in requests)
        if self.balanced and act and kv:
            return mini_batches(requests, max_tokens, Line(1 / act), Line(1 / kv))
        batches: list[list[int]] = []
        room = 0
        for index, entry in enumerate(entries):
            if entry.length > room:
                batches.append([])
                room = max_tokens
            batches[-1].append(index)
            room -= entry.length
        return batches


def _why_none(
    shapes: Sequence[LayerShape], act_bytes: Sequence[int], kv_bytes: Sequence[int]
) -> str:
    if not shapes:
        return "the model has no layers of attention, and so no keys and values"
    known = [layer for layer, shape in enumerate(shapes) if shape.input_dim is not None]
    if not known:
        return (
            "the model's keys and values cannot be generated from the inputs of its attention "
            "layers"
        )
    layer = known[0]
    return (
        f"in layer {layer} an ACT block takes {act_bytes[layer]:,} bytes a token and a KV block "
        f"{kv_bytes[layer]:,}, and no layer's ACT blocks are smaller (they are with multi-head "
        "attention, seldom with grouped queries)"
    )


def _why_it_loses(times: CaptureTimes, tokens: int) -> str:
    link_ms, computing_ms = times.t_pcie(tokens) * 1e3, times.t_computation(0) * 1e3
    return (
        f"by times measured here a layer gains less than {MIN_GAIN:g}x with them over KV blocks "
        f"alone, of which {tokens:,} tokens take {link_ms:.3g} ms over the link while "
        f"{computing_ms:.3g} ms are computed. They pay where the link is slow beside the device; "
        "else choose memory=paged, or set memory.act_share"
    )
