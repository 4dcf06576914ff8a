"""CAPTURE: part of the cache kept as activations, from which keys and values are generated when they are needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Self

import torch

from ttc.attention.entry import Entry
from ttc.attention.inputs import Regenerate
from ttc.attention.stream import KVReader, Unit
from ttc.cost_model.capture import CaptureTimes, Line, mini_batches, next_is_act
from ttc.cost_model.capture import allocation as allocation_by
from ttc.errors import InvalidInput
from ttc.memory.kv import KV, LayerShape
from ttc.memory.tails import Tails, tail_inputs
from ttc.residency.base import Paths
from ttc.residency.capture_reader import CaptureReader, generated_bytes
from ttc.residency.offloading import Offloading


@dataclass
class Capture(Offloading):
    """KV blocks and ACT blocks (CAPTURE, section IV). An ACT block holds what goes into a layer's K and V projections,
    and its KV is generated for each pass. KV blocks live on the host. The device holds ACT blocks as far as there is
    room, tails, and what a pass fetches or generates; other ACT blocks live on the host.

    act_share: the part of each branch's blocks that are ACT blocks; None for what Algorithm 1 finds with times measured
    on this machine: none where a layer would take no less time with any, and `reason` says so.
    mini_batch_tokens: the most tokens that a layer fetches and generates at once. balanced: give these mini-batches the
    ratio of all blocks (Eqs. 6 and 7); off, blocks are taken as they come.
    A layer whose ACT block would be no smaller than its KV block keeps KV alone; `reason` says so.
    """

    act_share: float | None = None
    mini_batch_tokens: int = 8192
    balanced: bool = True
    block_tokens: int = 64

    reason: str = field(init=False, repr=False, default="")
    _times: CaptureTimes | None = field(init=False, repr=False, compare=False, default=None)
    """Times that are given, not measured."""
    measure: Callable[[int, int, int], CaptureTimes] | None = field(init=False, repr=False, compare=False, default=None)
    _rows: int = field(init=False, repr=False, default=1)
    """Branches that grew together last."""
    regenerate: Regenerate | None = field(init=False, repr=False, compare=False, default=None)
    _acts: frozenset[int] = field(init=False, repr=False, default=frozenset())
    _warned: bool = field(init=False, repr=False, compare=False, default=False)
    _expected: int = field(init=False, repr=False, default=0)
    """Tokens, tails not counted, that there will be when the prompts or the step under way are done."""
    _tail_bytes: int = field(init=False, repr=False, default=0)
    """What the largest tails so far took on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("mini_batch_tokens")
        if self.act_share is not None and not 0 <= self.act_share <= 1:
            raise InvalidInput(f"memory.act_share={self.act_share} must be from 0 to 1, or null to have it measured")
        if self.mini_batch_tokens < 2 * self.block_tokens:
            raise InvalidInput(
                f"memory.mini_batch_tokens={self.mini_batch_tokens} must be at least twice memory.block_tokens="
                f"{self.block_tokens}: a mini-batch has room for a KV block and an ACT block"
            )

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        bound = super().bind(shapes, dtype, device)
        bound._expected, bound._tail_bytes, bound._times, memory = 0, 0, None, bound.memory
        bound._rows, bound.reason = 1, ""
        pays = {
            layer
            for layer, shape in enumerate(memory.shapes)
            if shape.input_dim is not None and memory.act_bytes_per_token[layer] < memory.layer_bytes_per_token[layer]
        }
        bound._acts = frozenset() if self.act_share == 0 else frozenset(pays)
        if not pays and self.act_share != 0:
            bound.reason = _why_none(memory.shapes, memory.act_bytes_per_token, memory.layer_bytes_per_token)
            warnings.warn(f"memory=capture keeps no ACT blocks: {bound.reason}", stacklevel=2)
        return bound

    def use(self, regenerate: Regenerate, measure: Callable[[int, int, int], CaptureTimes]) -> None:
        """Generate KV by `regenerate`; `measure` gives the times of a layer, per token, in a pass of so many rows that
        attends so many tokens, once they are needed."""
        self.regenerate, self.measure = regenerate, measure

    @property
    def times(self) -> CaptureTimes | None:
        """The times that Algorithm 1 goes by, per token of a layer, with as many tokens and branches as there are; None
        where it has nothing to decide."""
        return self._times_at(max(self._expected, sum(self.counts())))

    @times.setter
    def times(self, times: CaptureTimes) -> None:
        self._times = times

    def _times_at(self, tokens: int) -> CaptureTimes | None:
        if self._times is None and self._acts and self.act_share is None and self.measure is not None:
            return self.measure(min(self._acts), self._rows, tokens)
        return self._times

    # ---------------------------------------------------------------- which blocks

    @property
    def _act_token_bytes(self) -> int:
        """Bytes of a token's ACT blocks, of all layers that have them."""
        return sum(self.memory.act_bytes_per_token[layer] for layer in self._acts)

    def counts(self) -> tuple[int, int, int]:
        """Tokens of ACT blocks on the device, of ACT blocks on the host, and of KV blocks: unique ones, tails not
        counted."""
        segments = [kv for kv in self.memory.live if not kv.pinned]
        acts = [kv for kv in segments if kv.acts]
        near = sum(kv.tokens for kv in acts if all(kv.device[layer] is not None for layer in kv.acts))
        held = sum(kv.tokens for kv in acts)
        return near, held - near, sum(kv.tokens for kv in segments) - held

    def allocation(self, tokens: int) -> tuple[float, float]:
        """#ACT and #KV, in tokens, of all blocks once there are so many tokens (Algorithm 1).

        KV blocks alone where ACT blocks would lose by the times measured, with a warning the first time."""
        if not self._acts:
            return 0, tokens
        if self.act_share is not None:
            return self.act_share * tokens, (1 - self.act_share) * tokens
        times, near = self._times_at(tokens), self.counts()[0]
        assert times is not None, "the policy is bound to no model"
        free = self._act_room(tokens)
        room = tokens if free == inf else near + max(0, int(free) // self._act_token_bytes)
        act_gpu, act_host, kv_host = allocation_by(times, room, tokens)
        if tokens:
            self._note_loss(times, tokens, loses=not act_gpu + act_host)
        return act_gpu + act_host, kv_host

    def _note_loss(self, times: CaptureTimes, tokens: int, loses: bool) -> None:
        """Leave in `reason` why there are no ACT blocks, and warn the first time."""
        known, self.reason = self.reason, _why_it_loses(times, tokens) if loses else ""
        if loses and not known and not self._warned:
            self._warned = True
            warnings.warn(f"memory=capture makes no ACT blocks for now: {self.reason}", stacklevel=3)

    def _is_act(self, tokens: int, path: Iterable[KV]) -> bool:
        """Whether a block that follows those of `path` is an ACT block (Eq. 5). Where its branch stays within a block
        of the ratio either way, the blocks of all branches decide: else each of them would be rounded the same way."""
        path = list(path)
        own_act, own_kv = (sum(kv.tokens for kv in path if bool(kv.acts) == act) for act in (True, False))
        near, far, kv = self.counts()
        act_all, kv_all = self.allocation(max(self._expected, near + far + kv + tokens))
        if self.act_share is None and near + far + tokens > act_all:
            return False  # other branches have them all
        if own_act * kv_all >= (own_kv + tokens) * act_all:  # an ACT block would be a whole one too many
            return False
        if (own_act + tokens) * kv_all <= own_kv * act_all:  # a KV block would
            return True
        return next_is_act(near + far, kv, act_all, kv_all)

    def _act_room(self, tokens: int) -> float:
        """Bytes that the device has for more ACT blocks, once there are `tokens` tokens: less what buffers, and tails
        like those of earlier steps, will take."""
        in_use = sum(self.memory.tier_bytes(kv)[0] for kv in self.memory.live if kv.pinned)
        tail_bytes = max(0, self._tail_bytes - in_use)
        return self.memory.device.free_bytes - self._buffers(tokens) - tail_bytes

    def _buffers(self, tokens: int) -> float:
        """Bytes of two buffers and of generated KV where there are `tokens` tokens: at most half of the device."""
        wanted = 3 * min(tokens, self.mini_batch_tokens) * max(self.memory.layer_bytes_per_token, default=0)
        budget = self.memory.device.budget_bytes
        return wanted if budget is None else min(wanted, budget // 2)

    def allocate(self, tokens: int, needed: Iterable[KV] = (), path: Sequence[KV] = ()) -> KV:
        layers, memory = range(len(self.memory.shapes)), self.memory
        kv = KV(len(layers), tokens, acts=self._acts if self._is_act(tokens, path) else ())
        room = kv.acts and tokens * self._act_token_bytes <= self._act_room(sum(self.counts()) + tokens)
        near = kv.acts if room else frozenset[int]()
        return memory.fill(kv, sorted(near), [layer for layer in layers if layer not in near])

    # ---------------------------------------------------------------- a step

    @property
    def tail_bytes_per_token(self) -> int:
        return self.memory.bytes_per_token + self._act_token_bytes

    def require_host(self, tokens: int, ends: int, beside_bytes: float = 0) -> None:
        """All new tokens as KV blocks, and what the device holds beside that, if it may have to leave."""
        memory, leaving = self.memory, 0
        self._expected, self._rows = sum(self.counts()) + tokens, ends or self._rows
        if memory.device.budget_bytes is not None:
            leaving = sum(memory.tier_bytes(kv)[0] for kv in self.evictable()) + self.idle_bytes()
        new_bytes = tokens * memory.bytes_per_token + ends * memory.states.nbytes
        memory.host.require(new_bytes + leaving, beside_bytes=memory.host.used_bytes - memory.spare_bytes())

    def buffer_bytes(self, paths: Paths) -> int:
        """A KV block and an ACT block of a layer, and what is generated of the latter."""
        longest = max((len(segment.tokens) for path in paths for segment in path), default=0)
        kv_bytes = max(self.memory.layer_bytes_per_token, default=0)
        if not self._acts:
            return longest * kv_bytes
        return longest * (2 * kv_bytes + max(self.memory.act_bytes_per_token[layer] for layer in self._acts))

    def state_on_device(self) -> bool:
        """As KV blocks, on the host: the device holds ACT blocks as far as it has room."""
        return False

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
        for kv in {segment.storage: None for path in paths for segment in path if segment.storage.acts}:
            if memory.missing_bytes(kv, kv.acts) <= self._act_room(tokens):
                memory.fetch(kv, "act", kv.acts)  # once, in place of once a token
        return tails

    # ---------------------------------------------------------------- a pass

    def stream(
        self, entries: Sequence[Entry], positions: Sequence[int], tails: Tails | None, *, repeat: bool
    ) -> KVReader | None:
        memory, smallest = self.memory, max((entry.length for entry in entries), default=0)
        for entry in entries:
            memory.link.wait(entry.kv.fetched)
        most = max(self.mini_batch_tokens, smallest)
        share = inf if memory.device.budget_bytes is None else memory.device.budget_bytes // 2
        while True:
            units = self._units_of(entries, positions, most)
            if not units:
                return None
            prefetch = self.prefetch and len(units) > 1
            buffer, generated = self._sizes(units, entries)
            wanted = buffer * (1 + prefetch) + generated
            if most > smallest and (wanted > share or not self.make_room(wanted)):
                most = max(most // 2, smallest)
                continue
            if not self.make_room(wanted):
                prefetch = False  # one buffer may fit where two do not
                self.make_room(buffer + generated)
            return CaptureReader(memory, units, entries, self.regenerate, repeat=repeat, prefetch=prefetch)

    def _sizes(self, units: Sequence[Unit], entries: Sequence[Entry]) -> tuple[int, int]:
        """Bytes of the largest unit in its buffer, and of the most KV that is generated of one."""
        memory, runs = self.memory, [(entry.kv, entry.length) for entry in entries]
        most = max(CaptureReader.elements(memory, unit, runs, None) for unit in units)
        return most * memory.itemsize, max(generated_bytes(memory, unit, entries) for unit in units)

    def _units_of(self, entries: Sequence[Entry], positions: Sequence[int], most: int) -> list[Unit]:
        """The mini-batches of every layer, of at most `most` tokens."""
        found, alike = list[Unit](), dict[tuple[bool, tuple[int, ...]], list[list[int]]]()
        for layer in range(len(self.memory.shapes)):
            seen = tuple(self.missing_entries(layer, entries, positions))
            key = layer in self._acts, seen
            if key not in alike:
                alike[key] = self._mini_batches([entries[i] for i in seen], layer in self._acts, most)
            found += [Unit(layer, slice(None), tuple(seen[i] for i in batch)) for batch in alike[key]]
        return found

    def _mini_batches(self, entries: Sequence[Entry], acts: bool, most: int) -> list[list[int]]:
        """Which entries (by index) load together. Each is a request of its own, as attention puts together what it
        finds in several mini-batches. They are balanced where they have the ratio of all: that is what makes
        computing and loading take equally long, with what else a layer computes and loads."""
        requests = [(e.length, 0) if acts and e.kv.acts else (0, e.length) for e in entries]
        act, kv = (sum(request[kind] for request in requests) for kind in (0, 1))
        if self.balanced and act and kv:
            return mini_batches(requests, most, Line(1 / act), Line(1 / kv))
        batches, room = list[list[int]](), 0
        for index, entry in enumerate(entries):
            if entry.length > room:
                batches.append([])
                room = most
            batches[-1].append(index)
            room -= entry.length
        return batches


def _why_none(shapes: Sequence[LayerShape], act_bytes: Sequence[int], kv_bytes: Sequence[int]) -> str:
    if not shapes:
        return "the model has no layers of attention, and so no keys and values"
    known = [layer for layer, shape in enumerate(shapes) if shape.input_dim is not None]
    if not known:
        return "the model's keys and values cannot be generated from the inputs of its attention layers"
    layer = known[0]
    return (
        f"in layer {layer} an ACT block takes {act_bytes[layer]:,} bytes a token and a KV block {kv_bytes[layer]:,}, "
        "and no layer's ACT blocks are smaller (they are with multi-head attention, seldom with grouped queries)"
    )


def _why_it_loses(times: CaptureTimes, tokens: int) -> str:
    link_ms, computing_ms = times.t_pcie(tokens) * 1e3, times.t_computation(0) * 1e3
    return (
        f"by times measured here a layer takes no less time with them than with KV blocks alone, of which {tokens:,} "
        f"tokens take {link_ms:.3g} ms over the link while {computing_ms:.3g} ms are computed. They pay where the link "
        "is slow beside the device; else choose memory=paged, or set memory.act_share"
    )
