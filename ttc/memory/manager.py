"""The one place that allocates KV: buffers in two tiers, each under a byte budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context

import torch
from torch import Tensor

from ttc.errors import OutOfMemory
from ttc.memory.link import Copies, Link, Transfer


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer stores per token. K and V may differ in width (DeepSeek-V3).

    window: how many tokens back the layer looks, None for all.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None

    @property
    def elements(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


class LayerKV:
    """Keys and values of one layer: (kv_heads, tokens, dim), or (rows, kv_heads, tokens, dim) for tails."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: Tensor, values: Tensor):
        self.keys, self.values = keys, values

    @classmethod
    def empty(
        cls, shape: LayerShape, tokens: int, rows: int | None, dtype: torch.dtype, device: torch.device, pinned: bool
    ) -> LayerKV:
        """Keys and values side by side in one new buffer."""
        lead = () if rows is None else (rows,)
        size, k, v = shape.kv_heads * tokens * (rows or 1), shape.key_dim, shape.value_dim
        buffer = torch.empty(size * (k + v), dtype=dtype, device=device, pin_memory=pinned)
        return cls(
            buffer[: size * k].view(*lead, shape.kv_heads, tokens, k),
            buffer[size * k :].view(*lead, shape.kv_heads, tokens, v),
        )

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


class KV:
    """KV of a run of tokens: for each layer a copy on the device, on the host, or on both.

    rows: None, or how many tails of `tokens` tokens lie side by side. pinned: never evicted. written, fetched: the last
    transfer to the host copies and to the device copies.
    """

    def __init__(self, layers: int, tokens: int, rows: int | None = None):
        self.tokens, self.rows, self.pinned = tokens, rows, rows is not None
        self.device: list[LayerKV | None] = [None] * layers
        self.host: list[LayerKV | None] = [None] * layers
        self.written: Transfer | None = None
        self.fetched: Transfer | None = None

    def on_device(self, layer: int) -> LayerKV:
        """The device copy of a layer; asking for one that isn't there is a mistake of the engine."""
        found = self.device[layer]
        if found is None:
            raise RuntimeError(f"layer {layer} of {self.tokens} tokens is not on the device")
        return found


def as_budget(nbytes: int) -> str:
    """`nbytes` in words, the GiB rounded up so that a budget of them is enough."""
    gib = Context(prec=4, rounding=ROUND_CEILING).divide(nbytes, 2**30)
    return f"{nbytes:,} bytes ({gib:f} GiB)"


class Tier:
    """Bytes in use in one tier, and the most that may be; None for no limit but the machine's."""

    def __init__(self, name: str, budget_bytes: int | None):
        self.name, self.budget_bytes = name, budget_bytes
        self.used_bytes = 0
        self.peak_bytes = 0

    @property
    def free_bytes(self) -> float:
        return float("inf") if self.budget_bytes is None else self.budget_bytes - self.used_bytes

    def take(self, nbytes: int) -> None:
        self.require(nbytes)
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def give(self, nbytes: int) -> None:
        self.used_bytes -= nbytes

    def require(self, nbytes: int, beside_bytes: int | None = None) -> None:
        """Raise `OutOfMemory` unless `nbytes` fit beside what is in use (or beside `beside_bytes` of it)."""
        used = self.used_bytes if beside_bytes is None else beside_bytes
        if self.budget_bytes is not None and used + nbytes > self.budget_bytes:
            raise OutOfMemory(
                f"the {self.name} KV budget of {self.budget_bytes:,} bytes is too small: {used:,} are in use and "
                f"{nbytes:,} more are needed; a budget of {as_budget(used + nbytes)} would do, or use fewer beams, "
                "shorter steps or a smaller batch"
            )


class KVMemory:
    """Allocates, frees and moves KV between the tiers.

    budget_bytes, host_budget_bytes: the most KV that each tier may hold. link_gbps: see `Link`.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        budget_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        link_gbps: float | None = None,
    ):
        self.shapes = tuple(shapes)
        self.dtype = dtype
        self.device = Tier("device", budget_bytes)
        self.host = Tier("host", host_budget_bytes)
        self.link = Link(device, link_gbps)
        self.live: dict[KV, None] = {}  # in order of creation
        self.itemsize = torch.empty(0, dtype=dtype).element_size()
        self.layer_bytes_per_token = [s.elements * self.itemsize for s in self.shapes]
        self.bytes_per_token = sum(self.layer_bytes_per_token)

    def layer_bytes(self, kv: KV, layer: int) -> int:
        return kv.tokens * (kv.rows or 1) * self.layer_bytes_per_token[layer]

    def tier_bytes(self, kv: KV) -> tuple[int, int]:
        """Bytes of `kv` on the device and on the host."""
        sizes = [self.layer_bytes(kv, layer) for layer in range(len(self.shapes))]
        on_device = sum(n for n, copy in zip(sizes, kv.device, strict=True) if copy)
        return on_device, sum(n for n, copy in zip(sizes, kv.host, strict=True) if copy)

    # ---------------------------------------------------------------- allocating

    def allocate(self, tokens: int, rows: int | None = None, device_layers: int | None = None) -> KV:
        """KV for `tokens` tokens, or for `rows` tails of that capacity: the first `device_layers` layers (None: all)
        on the device, the rest on the host."""
        split = len(self.shapes) if device_layers is None else device_layers
        kv = KV(len(self.shapes), tokens, rows)
        sizes = [self.layer_bytes(kv, layer) for layer in range(len(self.shapes))]
        self.device.require(sum(sizes[:split]))
        self._require_host(sum(sizes[split:]))
        for layer in range(len(self.shapes)):
            if layer < split:
                kv.device[layer] = self._buffer(kv, layer)
            else:
                kv.host[layer] = self._buffer(kv, layer, host=True)
        self.device.take(sum(sizes[:split]))
        self.host.take(sum(sizes[split:]))
        self.live[kv] = None
        return kv

    def free(self, kv: KV) -> None:
        """Give back every copy of `kv`, at once: a transfer under way holds its tensors until it is done."""
        on_device, on_host = self.tier_bytes(kv)
        self.device.give(on_device)
        self.host.give(on_host)
        kv.device = [None] * len(self.shapes)
        kv.host = [None] * len(self.shapes)
        del self.live[kv]

    def reserve(self, elements: int) -> Tensor:
        """A plain device buffer for KV in transit; `unreserve` gives it back."""
        nbytes = elements * self.itemsize
        self.device.require(nbytes)
        with _named(self.device, nbytes):
            buffer = torch.empty(elements, dtype=self.dtype, device=self.link.device)
        self.device.take(nbytes)
        return buffer

    def unreserve(self, buffer: Tensor) -> None:
        self.device.give(buffer.numel() * self.itemsize)

    def _buffer(self, kv: KV, layer: int, host: bool = False) -> LayerKV:
        device = torch.device("cpu") if host else self.link.device
        pinned = host and self.link.device.type == "cuda"
        with _named(self.host if host else self.device, self.layer_bytes(kv, layer)):
            return LayerKV.empty(self.shapes[layer], kv.tokens, kv.rows, self.dtype, device, pinned)

    def _require_host(self, nbytes: int, beside: Iterable[KV] = ()) -> None:
        """Raise OutOfMemory unless `nbytes` fit on the host, for which spare copies are given up, none of `beside`."""
        kept = set(beside)
        for kv in self.live:
            if self.host.free_bytes >= nbytes:
                return
            for layer in self._spare_layers(kv) if kv not in kept else ():
                kv.host[layer] = None
                self.host.give(self.layer_bytes(kv, layer))
        self.host.require(nbytes)

    @staticmethod
    def _spare_layers(kv: KV) -> list[int]:
        """The layers whose host copies can be given up, as the device has them too."""
        return [layer for layer, copy in enumerate(kv.host) if copy is not None and kv.device[layer] is not None]

    def spare_bytes(self) -> int:
        """What the host holds and could give up."""
        return sum(self.layer_bytes(kv, layer) for kv in self.live for layer in self._spare_layers(kv))

    # ---------------------------------------------------------------- moving

    def write_back(self, kv: KV, cause: str, layers: Iterable[int] | None = None) -> None:
        """Give the device layers of `kv` a copy on the host, if they have none."""
        wanted = range(len(self.shapes)) if layers is None else layers
        missing = [layer for layer in wanted if kv.device[layer] is not None and kv.host[layer] is None]
        if not missing:
            return
        nbytes = sum(self.layer_bytes(kv, layer) for layer in missing)
        self._require_host(nbytes, [kv])
        made = {layer: self._buffer(kv, layer, host=True) for layer in missing}
        self.host.take(nbytes)
        copies: list[tuple[Tensor, Tensor]] = []
        for layer, copy in made.items():
            kv.host[layer] = copy
            copies += zip(copy.both, kv.on_device(layer).both, strict=True)
        self._stored(kv, copies, cause)

    def evict(self, kv: KV, cause: str, layers: Iterable[int] | None = None) -> int:
        """Drop the device copies, written back first where that is still due. Returns the bytes that came free.

        Waits for the write-back unless it is done or CUDA's allocator does the waiting; `write_back` ahead of time.
        """
        wanted = list(range(len(self.shapes)) if layers is None else layers)
        self.write_back(kv, cause, wanted)
        self.link.let_go(kv.written)
        self.link.let_go(kv.fetched)
        freed = 0
        for layer in wanted:
            if kv.device[layer] is not None:
                kv.device[layer] = None
                freed += self.layer_bytes(kv, layer)
        self.device.give(freed)
        return freed

    @staticmethod
    def is_resident(kv: KV) -> bool:
        """Whether every layer of `kv` is on the device."""
        return None not in kv.device

    def replicate(self, kv: KV, cause: str, layers: Iterable[int]) -> KV:
        """One more copy of some layers of `kv`, fetched from the host to the device."""
        layers = list(layers)
        self.write_back(kv, cause, layers)
        twin = KV(len(self.shapes), kv.tokens)
        twin.pinned = True
        twin.host, twin.written = kv.host, kv.written
        try:
            self.fetch(twin, cause, layers)
        finally:
            twin.host = [None] * len(self.shapes)
        self.live[twin] = None
        return twin

    def missing_bytes(self, kv: KV, layers: Iterable[int]) -> int:
        """What fetching these layers of `kv` would move."""
        return sum(self.layer_bytes(kv, layer) for layer in layers if kv.device[layer] is None)

    def fetch(self, kv: KV, cause: str, layers: Iterable[int] | None = None) -> Transfer | None:
        """Bring the missing layers of `kv` to the device; `settle` before reading them. Once one fetch failed, all that
        follow do."""
        wanted = range(len(self.shapes)) if layers is None else layers
        missing = [layer for layer in wanted if kv.device[layer] is None]
        if not missing:
            return None
        nbytes = sum(self.layer_bytes(kv, layer) for layer in missing)
        self.device.require(nbytes)
        made = {layer: self._buffer(kv, layer) for layer in missing}
        self.device.take(nbytes)
        copies: list[tuple[Tensor, Tensor]] = []
        for layer, copy in made.items():
            kv.device[layer] = copy
            source = kv.host[layer]
            assert source is not None, "a layer of KV is in neither tier"
            copies += zip(copy.both, source.both, strict=True)
        kv.fetched = self.link.fetch(copies, cause, [t for t in (kv.written, kv.fetched) if t])
        return kv.fetched

    def settle(self, kv: KV) -> None:
        """Let what the device computes from here on see what is under way to or from `kv`."""
        self.link.wait(kv.written)
        self.link.wait(kv.fetched)

    def complete(self, kv: KV) -> None:
        """Wait until nothing is under way to or from `kv`, so that this processor can read its host copies."""
        self.settle(kv)
        self.link.complete(kv.written)

    def store(self, kv: KV, layer: int, where: tuple[slice | int, ...], key: Tensor, value: Tensor) -> None:
        """Write new keys and values to the host copy of a layer."""
        copy = kv.host[layer]
        assert copy is not None
        pairs = [(copy.keys[where], key.contiguous()), (copy.values[where], value.contiguous())]
        self._stored(kv, pairs, "new")

    def _stored(self, kv: KV, copies: Copies, cause: str) -> None:
        """Send copies to the host side of `kv`; once one failed, all that follow do."""
        kv.written = self.link.store(copies, cause, [t for t in (kv.written, kv.fetched) if t])

    def freeze(self, tails: KV, row: int, first: int, kv: KV) -> None:
        """Fill `kv` with the tokens of a tail from `first` on, layer by layer."""
        stores, span = [], slice(first, first + kv.tokens)
        self.complete(tails)
        for layer in range(len(self.shapes)):
            source = tails.device[layer] or tails.host[layer]
            target = kv.device[layer] or kv.host[layer]
            assert source is not None and target is not None
            for new, old in zip(target.both, source.both, strict=True):
                if tails.device[layer] is not None and kv.device[layer] is None:
                    # never a view: other rows move to this place while the copy may be under way
                    stores.append((new, old[row, :, span].clone(memory_format=torch.contiguous_format)))
                else:
                    new.copy_(old[row, :, span])
        if stores:
            self._stored(kv, stores, "write-back")

    def keep_rows(self, tails: KV, rows: Sequence[int]) -> None:
        """Close the gaps that other rows leave: `rows`, ascending, become the first ones."""
        moves = [(new, old) for new, old in enumerate(rows) if new != old]
        if moves and None in tails.device:
            self.complete(tails)
        for copy in [*tails.device, *tails.host]:
            for tensor in copy.both if moves and copy is not None else ():
                for new, old in moves:
                    tensor[new] = tensor[old]

    # ---------------------------------------------------------------- cutting

    def can_recut(self, kvs: Sequence[KV]) -> bool:
        """Whether there is room to `recut`, and no layer that all of `kvs` have on the device has to leave it."""
        device_bytes, host_bytes = self._recut_bytes(kvs, self._on_device(kvs))
        return device_bytes <= self.device.free_bytes and host_bytes <= self.host.free_bytes

    def recut(self, kvs: Sequence[KV], lengths: Sequence[int]) -> list[KV]:
        """Cut the run of tokens that `kvs` hold into KV of `lengths` tokens, which take their place: one into several
        or several into one, copied within the tiers. They are as old as the last of `kvs`.

        Layer by layer, so that it needs room for one layer alone. A layer is cut on the device if all of it is there,
        else on the host; all layers on the host if the device has no room. Raises OutOfMemory, or what a copy raises,
        and leaves `kvs` whole then.
        """
        layers, on_device = range(len(self.shapes)), self._on_device(kvs)
        if self._recut_bytes(kvs, on_device)[0] > self.device.free_bytes:
            nowhere = [False] * len(layers)
            if self._recut_bytes(kvs, nowhere)[1] <= self.host.free_bytes:
                on_device = nowhere
        device_bytes, host_bytes = self._recut_bytes(kvs, on_device)
        self.device.require(device_bytes)
        self._require_host(host_bytes, kvs)
        for kv in kvs:
            self.evict(kv, "join", [layer for layer in layers if not on_device[layer]])
            self.complete(kv)
        cut, done = [KV(len(layers), length) for length in lengths], 0
        self.live.update(dict.fromkeys(cut))
        try:
            for layer in layers:
                self._recut_layer(kvs, cut, layer)
                done += 1
        except BaseException:  # an allocator that fails within the budget, or a cancelled call
            for layer in range(done):
                self._recut_layer(cut, kvs, layer)
            for kv in cut:
                self.free(kv)
            raise
        order = [new for kv in self.live if kv not in cut for new in ([*cut, kv] if kv is kvs[-1] else [kv])]
        self.live = dict.fromkeys(order)
        for kv in kvs:
            self.free(kv)
        return cut

    def _on_device(self, kvs: Sequence[KV]) -> list[bool]:
        """For each layer, whether all of `kvs` have it on the device."""
        return [all(kv.device[layer] for kv in kvs) for layer in range(len(self.shapes))]

    def _recut_bytes(self, kvs: Sequence[KV], on_device: Sequence[bool]) -> tuple[int, int]:
        """The room on the device and on the host that `recut` needs, cutting the layers `on_device` there: for the
        largest layer of each tier, and for what has to be written back first."""
        tokens = sum(kv.tokens for kv in kvs)
        device_bytes = host_bytes = moved_bytes = 0
        for layer, per_token in enumerate(self.layer_bytes_per_token):
            lacking = [kv for kv in kvs if kv.host[layer] is None]
            if on_device[layer]:
                device_bytes = max(device_bytes, tokens * per_token)
            else:
                moved_bytes += sum(self.layer_bytes(kv, layer) for kv in lacking)
            if not on_device[layer] or not lacking:
                host_bytes = max(host_bytes, tokens * per_token)
        return device_bytes, moved_bytes + host_bytes

    def _recut_layer(self, old: Sequence[KV], new: Sequence[KV], layer: int) -> None:
        """Let `new` take over a layer of `old`, in each tier that has all of it."""
        tiers = (
            (self.device, [kv.device for kv in old], [kv.device for kv in new]),
            (self.host, [kv.host for kv in old], [kv.host for kv in new]),
        )
        for tier, sources, targets in tiers:
            parts = [part for copies in sources if (part := copies[layer]) is not None]
            if len(parts) < len(old):
                continue
            made = [self._buffer(kv, layer, host=tier is self.host) for kv in new]
            copy_run([copy.keys for copy in parts], [copy.keys for copy in made])
            copy_run([copy.values for copy in parts], [copy.values for copy in made])
            tier.take(sum(self.layer_bytes(kv, layer) for kv in new))
            for copies, copy in zip(targets, made, strict=True):
                copies[layer] = copy
        for tier, sources, _ in tiers:
            for kv, copies in zip(old, sources, strict=True):
                if copies[layer] is not None:
                    tier.give(self.layer_bytes(kv, layer))
                    copies[layer] = None


@contextmanager
def _named(tier: Tier, nbytes: int) -> Iterator[None]:
    """Turn an allocator's failure into the project's own error."""
    try:
        yield
    except RuntimeError as error:  # of which torch.OutOfMemoryError is one
        words = ("can't allocate", "out of memory")
        if not isinstance(error, torch.OutOfMemoryError) and not any(word in str(error) for word in words):
            raise
        raise OutOfMemory(
            f"the machine has no room for {nbytes:,} bytes of KV in the {tier.name} tier, beside {tier.used_bytes:,} "
            "bytes of KV there; set or lower the tier's budget (memory.budget_gib, memory.host_budget_gib), or use "
            "fewer beams, shorter steps or a smaller batch"
        ) from error


def copy_run(old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Copy a run of tokens from one tensor to several, or from several to one: (kv_heads, tokens, dim) each."""
    sources = old[0].split([part.shape[1] for part in new], dim=1) if len(old) == 1 else old
    targets = new[0].split([part.shape[1] for part in old], dim=1) if len(new) == 1 else new
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
