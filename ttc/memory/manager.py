"""The one place that allocates KV: buffers in two tiers, each under a byte budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import ROUND_CEILING, Context

import torch
from torch import Tensor

from ttc.errors import InvalidInput, OutOfMemory
from ttc.memory.kv import KV, LayerACT, LayerKV, LayerShape
from ttc.memory.link import Copies, Link, Transfer
from ttc.memory.states import State, StateShape


def as_budget(nbytes: int) -> str:
    """`nbytes` in words, the GiB rounded up so that a budget of them is enough."""
    gib = Context(prec=4, rounding=ROUND_CEILING).divide(nbytes, 2**30)
    return f"{nbytes:,} bytes ({gib:f} GiB)"


class Tier:
    """Bytes in use in one tier, and the most that may be; None for no limit but the machine's.

    models: how many models keep KV here, under the one budget.
    What was given back while a transfer still used it is there until that is done. It counts in `peak_bytes`; whoever
    needs the room waits for it (`KVMemory.claim`), so it does not count in `used_bytes`.
    """

    def __init__(self, name: str, budget_bytes: int | None):
        self.name, self.budget_bytes, self.models = name, budget_bytes, 1
        self.used_bytes = 0
        self.peak_bytes = 0
        self.leaving: deque[tuple[int, list[Transfer]]] = deque()

    @property
    def free_bytes(self) -> float:
        return float("inf") if self.budget_bytes is None else self.budget_bytes - self.used_bytes

    def take(self, nbytes: int) -> None:
        self.require(nbytes)
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes + self.leaving_bytes)

    def give(self, nbytes: int, transfers: Iterable[Transfer | None] = ()) -> None:
        """Give bytes back, which `transfers` may still use."""
        self.used_bytes -= nbytes
        under_way = [transfer for transfer in transfers if transfer is not None and not transfer.done]
        if nbytes and under_way:
            self.leaving.append((nbytes, under_way))

    @property
    def leaving_bytes(self) -> int:
        """What transfers under way still hold of what was given back."""
        self.leaving = deque(item for item in self.leaving if not all(transfer.done for transfer in item[1]))
        return sum(nbytes for nbytes, _ in self.leaving)

    def require(self, nbytes: int, beside_bytes: int | None = None) -> None:
        """Raise `OutOfMemory` unless `nbytes` fit beside what is in use (or beside `beside_bytes` of it)."""
        used = self.used_bytes if beside_bytes is None else beside_bytes
        if self.budget_bytes is not None and used + nbytes > self.budget_bytes:
            shared = f", which {self.models} models share," if self.models > 1 else ""
            raise OutOfMemory(
                f"the {self.name} KV budget of {self.budget_bytes:,} bytes{shared} is too small: {used:,} are in use "
                f"and {nbytes:,} more are needed; a budget of {as_budget(used + nbytes)} would do, or use fewer beams, "
                "shorter steps or a smaller batch"
            )


class KVMemory:
    """Allocates, frees and moves KV between the tiers.

    budget_bytes, host_budget_bytes: the most KV that each tier may hold. link_gbps: see `Link`.
    by_layer: whether each layer of a KV has a buffer of its own, so that it can come and go alone. Else, where layers
        are alike and no budget counts each byte, all lie in one (`KV.block`), which is copied in one operation.
    states: where recurrent states count, which are always on the device: in its tier, or beside it. state_shape: what
    the model keeps of a sequence beside KV, None for nothing.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        budget_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        link_gbps: float | None = None,
        by_layer: bool = True,
    ):
        self.shapes = tuple(shapes)
        self.dtype = dtype
        self.device = Tier("device", budget_bytes)
        self.host = Tier("host", host_budget_bytes)
        self.link = Link(device, link_gbps)
        self.live: dict[KV, None] = {}  # in order of creation
        self.itemsize = torch.empty(0, dtype=dtype).element_size()
        self.layer_bytes_per_token = [s.elements * self.itemsize for s in self.shapes]
        self.act_bytes_per_token = [s.as_inputs.elements * self.itemsize for s in self.shapes]
        self.bytes_per_token = sum(self.layer_bytes_per_token)
        self.fixed_layers, self.fixed = 0, Tier("host", None)  # see `fix`
        self.states = self.device
        self.state_shape: StateShape | None = None
        alike = len({(s.kv_heads, s.key_dim, s.value_dim, s.device) for s in self.shapes}) == 1
        one = alike and self.shapes[0].key_dim == self.shapes[0].value_dim and budget_bytes is None
        self.in_blocks = one and not by_layer

    def join_link(self, link: Link, gbps: float | None) -> None:
        """Move KV over a link that carries weights, too, whose placement gives it `gbps`; before anything is allocated.

        Raises InvalidInput where the memory policy gives it another speed.
        """
        own = self.link.gbps
        if own is not None and gbps is not None and own != gbps:
            raise InvalidInput(
                f"memory.link_gbps={own} and placement.link_gbps={gbps} are the speed of one link; give the same "
                "number, or one of them"
            )
        self.link, link.gbps = link, own if gbps is None else gbps

    def fix(self, layers: int) -> None:
        """Let the first `layers` layers keep their KV on the host, where they run; before anything is allocated.

        It lies where other layers have their device copies, and never moves. It counts in `fixed`, and takes no bytes
        of the two tiers.
        """
        self.fixed_layers, self.in_blocks = layers, False
        self.layer_bytes_per_token[:layers] = [0] * layers
        self.bytes_per_token = sum(self.layer_bytes_per_token)

    def fixed_bytes(self, kv: KV) -> int:
        """Bytes of `kv` in layers that run on the host."""
        if kv.borrowed:
            return 0
        layers = zip(self.shapes[: self.fixed_layers], kv.device, strict=False)
        return kv.tokens * (kv.rows or 1) * self.itemsize * sum(shape.elements for shape, copy in layers if copy)

    def layer_bytes(self, kv: KV, layer: int) -> int:
        sizes = self.act_bytes_per_token if layer in kv.acts else self.layer_bytes_per_token
        return kv.tokens * (kv.rows or 1) * sizes[layer]

    def tier_bytes(self, kv: KV) -> tuple[int, int]:
        """Bytes of `kv` on the device and on the host."""
        sizes = [self.layer_bytes(kv, layer) for layer in range(len(self.shapes))]
        on_device = sum(n for n, copy in zip(sizes, kv.device, strict=True) if copy)
        return on_device, sum(n for n, copy in zip(sizes, kv.host, strict=True) if copy)

    # ---------------------------------------------------------------- allocating

    def allocate(self, tokens: int, rows: int | None = None, device_layers: int | None = None) -> KV:
        """KV for `tokens` tokens, or for `rows` tails of that capacity: the first `device_layers` layers (None: all)
        on the device, the rest on the host."""
        layers = range(len(self.shapes))
        kv, near = KV(len(layers), tokens, rows), layers[:device_layers]
        if self.in_blocks and len(near) == len(layers):
            self._allocate_block(kv)
            return kv
        return self.fill(kv, near, layers[len(near) :])

    def fill(self, kv: KV, on_device: Collection[int], on_host: Collection[int]) -> KV:
        """Give new `kv` memory for some layers on the device and for others on the host; for those that run on the host
        in any case."""
        device_bytes, host_bytes = (
            sum(self.layer_bytes(kv, layer) for layer in layers) for layers in (on_device, on_host)
        )
        self.claim(self.device, device_bytes)
        self.require_host(host_bytes)
        for layer in {*range(self.fixed_layers), *on_device}:
            kv.device[layer] = self.buffer(kv, layer)
        for layer in on_host:
            if layer >= self.fixed_layers:
                kv.host[layer] = self.buffer(kv, layer, host=True)
        self.device.take(device_bytes)
        self.host.take(host_bytes)
        self.fixed.take(self.fixed_bytes(kv))
        self.live[kv] = None
        return kv

    def _allocate_block(self, kv: KV) -> None:
        nbytes, shape = kv.tokens * (kv.rows or 1) * self.bytes_per_token, self.shapes[0]
        self.claim(self.device, nbytes)
        lead = (len(self.shapes), 2) if kv.rows is None else (len(self.shapes), 2, kv.rows)
        place = shape.device or self.link.device
        with _as_out_of_memory(self.device, nbytes):
            kv.block = torch.empty(*lead, shape.kv_heads, kv.tokens, shape.key_dim, dtype=self.dtype, device=place)
        kv.device = [LayerKV.of_block(kv.block, layer) for layer in range(len(self.shapes))]
        self.device.take(nbytes)
        self.live[kv] = None

    def free(self, kv: KV) -> None:
        """Give back every copy of `kv`, at once: a transfer under way holds its tensors until it is done."""
        on_device, on_host = self.tier_bytes(kv)
        self.device.give(on_device, [kv.written, kv.fetched])
        self.host.give(on_host, [kv.written, kv.fetched])
        self.fixed.give(self.fixed_bytes(kv))
        kv.device = [None] * len(self.shapes)
        kv.host = [None] * len(self.shapes)
        kv.block = None
        del self.live[kv]
        if kv.inputs is not None:
            self.free(kv.inputs)
            kv.inputs = None

    def claim(self, tier: Tier, nbytes: int) -> None:
        """See that `nbytes` fit now: wait for what is on its way out if they do not fit beside it.

        Raises OutOfMemory when they would not fit even then.
        """
        tier.require(nbytes)
        while tier.leaving_bytes and tier.leaving_bytes + nbytes > tier.free_bytes:
            for transfer in tier.leaving.popleft()[1]:
                with suppress(Exception):  # whoever needs its result is told
                    self.link.wait_on_host(transfer)

    def reserve(self, elements: int) -> Tensor:
        """A plain device buffer for KV in transit; `unreserve` gives it back."""
        nbytes = elements * self.itemsize
        self.claim(self.device, nbytes)
        with _as_out_of_memory(self.device, nbytes):
            buffer = torch.empty(elements, dtype=self.dtype, device=self.link.device)
        self.device.take(nbytes)
        return buffer

    def unreserve(self, buffer: Tensor) -> None:
        self.device.give(buffer.numel() * self.itemsize)

    def buffer(self, kv: KV, layer: int, host: bool = False) -> LayerKV:
        shape = self.shapes[layer]
        place = torch.device("cpu") if layer < self.fixed_layers else shape.device or self.link.device
        with _as_out_of_memory(self.host if host else self.device, self.layer_bytes(kv, layer)):
            like = kv.tokens, kv.rows, self.dtype, place, host
            if layer in kv.acts:
                return LayerACT(*LayerKV.empty(shape.as_inputs, *like).both)
            return LayerKV.empty(shape, *like)

    def require_host(self, nbytes: int, beside: Iterable[KV] = ()) -> None:
        """Raise OutOfMemory unless `nbytes` fit on the host, for which spare copies are given up, none of `beside`."""
        kept = set(beside)
        for kv in self.live:
            if self.host.free_bytes >= nbytes:
                return
            for layer in self._spare_layers(kv) if kv not in kept else ():
                kv.host[layer] = None
                self.host.give(self.layer_bytes(kv, layer), [kv.written, kv.fetched])
        self.claim(self.host, nbytes)

    @staticmethod
    def _spare_layers(kv: KV) -> list[int]:
        """The layers whose host copies can be given up, as the device has them too."""
        return [layer for layer, copy in enumerate(kv.host) if copy is not None and kv.device[layer] is not None]

    def spare_bytes(self) -> int:
        """What the host holds and could give up."""
        return sum(self.layer_bytes(kv, layer) for kv in self.live for layer in self._spare_layers(kv))

    # ---------------------------------------------------------------- recurrent states

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's recurrent state, 0 for models without."""
        return 0 if self.state_shape is None else self.state_shape.nbytes

    def require_states(self, count: int, tokens: int = 0) -> None:
        """Raise `OutOfMemory` unless `count` more states fit, and the KV of `tokens` tokens where both share a tier."""
        if self.state_shape is not None:
            beside = tokens * self.bytes_per_token if self.states is self.device else 0
            self.states.require(count * self.state_bytes + beside)

    def take_state(self, state: State) -> State:
        """Count a state that somebody keeps from now on."""
        self.states.take(self.state_bytes)
        return state

    def give_state(self, state: State | None) -> None:
        """A state that was kept is gone."""
        if state is not None:
            self.states.give(self.state_bytes)

    # ---------------------------------------------------------------- moving

    def write_back(self, kv: KV, cause: str, layers: Iterable[int] | None = None) -> None:
        """Give the device layers of `kv` a copy on the host, if they have none."""
        wanted = range(len(self.shapes)) if layers is None else layers
        missing = [n for n in wanted if n >= self.fixed_layers and kv.device[n] is not None and kv.host[n] is None]
        if not missing:
            return
        nbytes = sum(self.layer_bytes(kv, layer) for layer in missing)
        self.require_host(nbytes, [kv])
        made = {layer: self.buffer(kv, layer, host=True) for layer in missing}
        self.host.take(nbytes)
        copies: list[tuple[Tensor, Tensor]] = []
        for layer, copy in made.items():
            kv.host[layer] = copy
            copies += zip(copy.both, kv.on_device(layer).both, strict=True)
        self.send_to_host(kv, copies, cause)

    def evict(self, kv: KV, cause: str, layers: Iterable[int] | None = None) -> int:
        """Drop the device copies, written back first where that is still due. Returns the bytes that came free.

        Waits for the write-back unless it is done or CUDA's allocator does the waiting; `write_back` ahead of time.
        """
        wanted = [n for n in (range(len(self.shapes)) if layers is None else layers) if n >= self.fixed_layers]
        self.write_back(kv, cause, wanted)
        self.link.wait_before_drop(kv.written)
        self.link.wait_before_drop(kv.fetched)
        freed, kv.block = 0, None
        for layer in wanted:
            if kv.device[layer] is not None:
                kv.device[layer] = None
                freed += self.layer_bytes(kv, layer)
        self.device.give(freed, [kv.written, kv.fetched])
        return freed

    @staticmethod
    def is_resident(kv: KV) -> bool:
        """Whether every layer of `kv` is on the device."""
        return None not in kv.device

    def replicate(self, kv: KV, cause: str, layers: Iterable[int]) -> KV:
        """One more copy of some layers of `kv`, fetched from the host to the device; layers that run on the host have
        the same KV."""
        layers = list(layers)
        self.write_back(kv, cause, layers)
        twin = KV(len(self.shapes), kv.tokens, acts=kv.acts)
        twin.pinned = twin.borrowed = True
        twin.device[: self.fixed_layers] = kv.device[: self.fixed_layers]
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
        """Bring the missing layers of `kv` to the device; `wait_kv` before reading them.

        Once one fetch failed, all that follow do.
        """
        wanted = range(len(self.shapes)) if layers is None else layers
        missing = [layer for layer in wanted if kv.device[layer] is None]
        if not missing:
            return None
        nbytes = sum(self.layer_bytes(kv, layer) for layer in missing)
        self.claim(self.device, nbytes)
        made = {layer: self.buffer(kv, layer) for layer in missing}
        self.device.take(nbytes)
        copies: list[tuple[Tensor, Tensor]] = []
        for layer, copy in made.items():
            kv.device[layer] = copy
            source = kv.host[layer]
            assert source is not None, "a layer of KV is in neither tier"
            copies += zip(copy.both, source.both, strict=True)
        kv.fetched = self.link.fetch(copies, cause, [t for t in (kv.written, kv.fetched) if t])
        return kv.fetched

    def wait_kv(self, kv: KV) -> None:
        """Let what the device computes from here on see what is under way to or from `kv`."""
        self.link.wait(kv.written)
        self.link.wait(kv.fetched)

    def wait_kv_on_host(self, kv: KV) -> None:
        """Wait until nothing is under way to or from `kv`, so that this processor can read its host copies."""
        self.wait_kv(kv)
        self.link.wait_on_host(kv.written)

    def store(self, kv: KV, layer: int, where: tuple[slice | int, ...], key: Tensor, value: Tensor) -> None:
        """Write new keys and values to the host copy of a layer."""
        copy = kv.host[layer]
        assert copy is not None
        pairs = [(copy.keys[where], key.contiguous()), (copy.values[where], value.contiguous())]
        self.send_to_host(kv, pairs, "new")

    def send_to_host(self, kv: KV, copies: Copies, cause: str) -> None:
        """Send copies to the host side of `kv`; once one failed, all that follow do."""
        kv.written = self.link.store(copies, cause, [t for t in (kv.written, kv.fetched) if t])


@contextmanager
def _as_out_of_memory(tier: Tier, nbytes: int) -> Iterator[None]:
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
