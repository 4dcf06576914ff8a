"""The one place that allocates KV: buffers in two tiers, each under a byte budget."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from ttc.errors import InvalidInput
from ttc.memory.kv import KV, LayerACT, LayerKV, LayerShape
from ttc.memory.link import Copies, Link, Transfer
from ttc.memory.state_memory import StateMemory
from ttc.memory.states import State
from ttc.memory.tiers import Tiers, as_out_of_memory

Block = KV | State
"""What moves between the tiers: the KV of a segment, or the recurrent state at its end."""


class KVMemory(Tiers):
    """Allocates, frees and moves KV between the tiers.

    budget_bytes, host_budget_bytes: the most KV that each tier may hold. link_gbps: see `Link`.
    by_layer: whether each layer of a KV has a buffer of its own, so that it can come and go alone. Else, where layers
        are alike and no budget counts each byte, all lie in one (`KV.block`), which is copied in one operation.
    states: what recurrent layers keep, in the same tiers.
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
        super().__init__(device, budget_bytes, host_budget_bytes, link_gbps)
        self.shapes = tuple(shapes)
        self.dtype = dtype
        self.live: dict[KV, None] = {}  # in order of creation
        self.itemsize = torch.empty(0, dtype=dtype).element_size()
        self.layer_bytes_per_token = [s.elements * self.itemsize for s in self.shapes]
        self.act_bytes_per_token = [s.as_inputs.elements * self.itemsize for s in self.shapes]
        self.bytes_per_token = sum(self.layer_bytes_per_token)
        self.fixed_layers = 0  # see `fix`
        self.states = StateMemory(self)
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

    def fix(self, layers: int, model_layers: int) -> None:
        """Let the first `layers` layers of attention keep their KV on the host, where they run, and the first
        `model_layers` of all layers their states; before anything is allocated.

        It lies where other layers have their device copies, and never moves. It counts in `fixed`, and takes no bytes
        of the two tiers.
        """
        self.states.use(self.states.shape, model_layers)
        self.fixed_layers, self.in_blocks = layers, False
        self.layer_bytes_per_token[:layers] = [0] * layers
        self.bytes_per_token = sum(self.layer_bytes_per_token)

    def fixed_bytes(self, kv: KV) -> int:
        """Bytes of `kv` in layers that run on the host."""
        if kv.borrowed:
            return 0
        layers = zip(self.shapes[: self.fixed_layers], kv.device, strict=False)
        states = 0 if kv.states is None else (kv.rows or 0) * self.states.fixed_bytes
        return states + kv.tokens * (kv.rows or 1) * self.itemsize * sum(s.elements for s, copy in layers if copy)

    def layer_bytes(self, kv: KV, layer: int) -> int:
        sizes = self.act_bytes_per_token if layer in kv.acts else self.layer_bytes_per_token
        return kv.tokens * (kv.rows or 1) * sizes[layer]

    def tail_bytes(self, tokens: int, rows: int = 1) -> int:
        """Bytes of `rows` tails of so many tokens, with the states of their branches."""
        return rows * (tokens * self.bytes_per_token + self.states.nbytes)

    def tier_bytes(self, kv: Block) -> tuple[int, int]:
        """Bytes of `kv` on the device and on the host."""
        if isinstance(kv, State):
            return self.states.tier_bytes(kv)
        sizes = [self.layer_bytes(kv, layer) for layer in range(len(self.shapes))]
        on_device = sum(n for n, copy in zip(sizes, kv.device, strict=True) if copy)
        on_device += 0 if kv.states is None else (kv.rows or 0) * self.states.nbytes
        return on_device, sum(n for n, copy in zip(sizes, kv.host, strict=True) if copy)

    # ---------------------------------------------------------------- allocating

    def allocate(self, tokens: int, rows: int | None = None, device_layers: int | None = None) -> KV:
        """KV for `tokens` tokens, or for `rows` tails of that capacity: the first `device_layers` layers (None: all)
        on the device, the rest on the host. Tails come with room for their branches' states."""
        layers = range(len(self.shapes))
        kv, near = KV(len(layers), tokens, rows), layers[:device_layers]
        running = 0 if rows is None or self.states.shape is None else rows
        self.states.claim(running)
        try:
            states = self.states.zeros(running) if running else None
            if self.in_blocks and len(near) == len(layers):
                self._allocate_block(kv)
            else:
                self.fill(kv, near, layers[len(near) :])
        except BaseException:
            self.states.give(running)
            raise
        kv.states = states
        return kv

    def fill(self, kv: KV, on_device: Collection[int], on_host: Collection[int]) -> KV:
        """Give new `kv` memory for some layers on the device and for others on the host; for those that run on the host
        in any case."""
        device_bytes, host_bytes = (
            sum(self.layer_bytes(kv, layer) for layer in layers) for layers in (on_device, on_host)
        )
        self.claim(self.device, device_bytes)
        self.require_host(host_bytes)
        for layer in {*range(0 if kv.borrowed else self.fixed_layers), *on_device}:
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
        with as_out_of_memory(self.device, nbytes):
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
        kv.block = kv.states = None
        del self.live[kv]
        if kv.inputs is not None:
            self.free(kv.inputs)
            kv.inputs = None

    def reserve(self, elements: int) -> Tensor:
        """A plain device buffer for KV in transit; `unreserve` gives it back."""
        nbytes = elements * self.itemsize
        self.claim(self.device, nbytes)
        with as_out_of_memory(self.device, nbytes):
            buffer = torch.empty(elements, dtype=self.dtype, device=self.link.device)
        self.device.take(nbytes)
        return buffer

    def unreserve(self, buffer: Tensor) -> None:
        self.device.give(buffer.numel() * self.itemsize)

    def buffer(self, kv: KV, layer: int, host: bool = False) -> LayerKV:
        shape = self.shapes[layer]
        place = torch.device("cpu") if layer < self.fixed_layers else shape.device or self.link.device
        with as_out_of_memory(self.host if host else self.device, self.layer_bytes(kv, layer)):
            like = kv.tokens, kv.rows, self.dtype, place, host
            if layer in kv.acts:
                return LayerACT(*LayerKV.empty(shape.as_inputs, *like).both)
            return LayerKV.empty(shape, *like)

    def require_host(self, nbytes: int, beside: Iterable[Block] = ()) -> None:
        """Raise OutOfMemory unless `nbytes` fit on the host, for which spare copies are given up, none of `beside`."""
        kept = set(beside)
        for kv in self.live:
            if self.host.free_bytes >= nbytes:
                break
            for layer in self._spare_layers(kv) if kv not in kept else ():
                kv.host[layer] = None
                self.host.give(self.layer_bytes(kv, layer), [kv.written, kv.fetched])
        for state in self.states.live:
            if self.host.free_bytes < nbytes and state not in kept:
                self.states.give_up_spare(state)
        self.claim(self.host, nbytes)

    @staticmethod
    def _spare_layers(kv: KV) -> list[int]:
        """The layers whose host copies can be given up, as the device has them too."""
        return [layer for layer, copy in enumerate(kv.host) if copy is not None and kv.device[layer] is not None]

    def spare_bytes(self) -> int:
        """What the host holds and could give up."""
        spare = sum(self.layer_bytes(kv, layer) for kv in self.live for layer in self._spare_layers(kv))
        return spare + self.states.spare_bytes()

    # ---------------------------------------------------------------- moving

    def write_back(self, kv: Block, cause: str, layers: Iterable[int] | None = None) -> None:
        """Give the device layers of `kv` a copy on the host, if they have none. A state moves as a whole, under a cause
        of its own."""
        if isinstance(kv, State):
            return self.states.write_back(kv)
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

    def evict(self, kv: Block, cause: str, layers: Iterable[int] | None = None) -> int:
        """Drop the device copies, written back first where that is still due. Returns the bytes that came free.

        Waits for the write-back unless it is done or CUDA's allocator does the waiting; `write_back` ahead of time.
        """
        if isinstance(kv, State):
            return self.states.evict(kv)
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
