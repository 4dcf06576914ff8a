"""The one place that allocates KV: buffers in two tiers, each under a byte budget."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ttc.errors import InvalidInput
from ttc.memory.kv import KV, Codec, LayerACT, LayerKV, LayerShape
from ttc.memory.link import Link
from ttc.memory.state_memory import StateMemory
from ttc.memory.states import State
from ttc.memory.tiers import Block, Tiers, as_out_of_memory


class KVMemory(Tiers):
    """Allocates and frees KV in the two tiers.

    by_layer: whether each layer of a KV has a buffer of its own, so that it can come and go alone.
        Else, where layers are alike and there is no budget, all lie in one (`KV.block`), which is
        copied in one operation.
    codec: how segments keep their numbers, None for the model's own type, as in tails.
    live: all KV, in order of creation.
    fixed_layers: see `fix`.
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
        codec: Codec | None = None,
    ):
        super().__init__(device, budget_bytes, host_budget_bytes, link_gbps)
        self.shapes = tuple(shapes)
        self.layers = range(len(self.shapes))
        self.dtype = dtype
        self.itemsize = dtype.itemsize
        self.live: dict[KV, None] = {}
        self.codec = codec
        self.tail_layer_bytes = [s.elements * self.itemsize for s in self.shapes]
        self.layer_bytes_per_token = self.tail_layer_bytes[:]
        if codec is not None:
            self.layer_bytes_per_token = [s.packed(codec.row_bytes).elements for s in self.shapes]
        self.act_bytes_per_token = [s.as_inputs.elements * self.itemsize for s in self.shapes]
        self.bytes_per_token = sum(self.layer_bytes_per_token)
        self.tail_bytes_per_token = sum(self.tail_layer_bytes)
        self.fixed_layers = 0
        self.states = StateMemory(self)
        alike = len({(s.kv_heads, s.key_dim, s.value_dim, s.device) for s in self.shapes}) == 1
        one = alike and self.shapes[0].key_dim == self.shapes[0].value_dim and budget_bytes is None
        self.in_blocks = one and not by_layer

    def join_link(self, link: Link, gbps: float | None) -> None:
        """Move KV over a link that carries weights, too, whose placement gives it `gbps`; before
        anything is allocated. Raises InvalidInput where the memory policy gives it another
        speed."""
        given = self.link.gbps
        if given is not None and gbps is not None and given != gbps:
            raise InvalidInput(
                f"memory.link_gbps={given} and placement.link_gbps={gbps} are the speed of one "
                "link; give the same number, or one of them"
            )
        self.link = link
        link.gbps = given if gbps is None else gbps

    def fix(self, layers: int, model_layers: int) -> None:
        """Let the first `layers` layers of attention keep their KV on the host, where they run, and
        the first `model_layers` of all layers their states; before anything is allocated. These
        bytes count in `fixed` alone. Raises InvalidInput where KV is packed."""
        if layers and self.codec is not None:
            raise InvalidInput(
                f"memory keeps KV as {self.codec.kind}, which layers that run on the host do not; "
                "use memory=resident, or a placement whose layers all run on the device"
            )
        self.states.use(self.states.shape, model_layers)
        self.fixed_layers = layers
        self.in_blocks = False
        for sizes in (self.layer_bytes_per_token, self.tail_layer_bytes):
            sizes[:layers] = [0] * layers
        self.bytes_per_token = sum(self.layer_bytes_per_token)
        self.tail_bytes_per_token = sum(self.tail_layer_bytes)

    # ---------------------------------------------------------------- sizes

    def piece_bytes(self, block: Block, piece: int) -> int:
        if not isinstance(block, KV):
            return self.states.nbytes
        sizes = self.layer_bytes_per_token if block.rows is None else self.tail_layer_bytes
        if piece in block.acts:
            sizes = self.act_bytes_per_token
        return block.tokens * (block.rows or 1) * sizes[piece]

    def fixed_bytes(self, kv: KV) -> int:
        """Bytes of `kv` in layers that run on the host."""
        if kv.borrowed:
            return 0
        layers = zip(self.shapes[: self.fixed_layers], kv.device, strict=False)
        states = 0 if kv.states is None else (kv.rows or 0) * self.states.fixed_bytes
        return states + kv.tokens * (kv.rows or 1) * self.itemsize * sum(
            s.elements for s, copy in layers if copy
        )

    def bytes_of(self, tokens: int, states: int = 0) -> int:
        return tokens * self.bytes_per_token + states * self.states.nbytes

    def tail_bytes(self, tokens: int, rows: int = 1) -> int:
        """Bytes of `rows` tails of so many tokens, with the states of their branches."""
        return rows * tokens * self.tail_bytes_per_token + self.bytes_of(0, rows)

    def form(self, kv: KV, layer: int) -> tuple[LayerShape, torch.dtype]:
        """How a layer of `kv` lies in memory."""
        if kv.codec is None:
            return self.shapes[layer], self.dtype
        return self.shapes[layer].packed(kv.codec.row_bytes), torch.int8

    def tier_bytes(self, block: Block) -> tuple[int, int]:
        if isinstance(block, KV) and block.block is not None and not any(block.host):
            on_device, on_host = block.block.nbytes, 0
        else:
            on_device, on_host = super().tier_bytes(block)
        if isinstance(block, KV) and block.states is not None:
            on_device += (block.rows or 0) * self.states.nbytes
        return on_device, on_host

    @staticmethod
    def is_resident(kv: KV) -> bool:
        return None not in kv.device

    def blocks(self) -> Iterator[Block]:
        return chain(self.live, self.states.live)

    def moving(self, block: Block, pieces: Iterable[int] | None) -> list[int]:
        chosen = range(len(block.device)) if pieces is None else pieces
        if isinstance(block, State):
            return list(chosen)
        return [piece for piece in chosen if piece >= self.fixed_layers]

    # ---------------------------------------------------------------- allocating

    def allocate(
        self, tokens: int, rows: int | None = None, device_layers: int | None = None
    ) -> KV:
        """KV for `tokens` tokens, or for `rows` tails of that capacity and their states: the first
        `device_layers` layers (None: all) on the device, the rest on the host."""
        layers = self.layers
        near = layers[:device_layers]
        kv = KV(len(layers), tokens, rows, codec=self.codec if rows is None else None)
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
        """Give new `kv` memory for some layers on the device, for others on the host, and for those
        that run on the host."""
        device_bytes = sum(self.piece_bytes(kv, layer) for layer in on_device)
        host_bytes = sum(self.piece_bytes(kv, layer) for layer in on_host)
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
        per_token = self.bytes_per_token if kv.rows is None else self.tail_bytes_per_token
        nbytes = kv.tokens * (kv.rows or 1) * per_token
        shape, dtype = self.form(kv, 0)
        self.claim(self.device, nbytes)
        lead = (len(self.shapes), 2) if kv.rows is None else (len(self.shapes), 2, kv.rows)
        place = shape.device or self.link.device
        with as_out_of_memory(self.device, nbytes):
            kv.block = torch.empty(
                *lead, shape.kv_heads, kv.tokens, shape.key_dim, dtype=dtype, device=place
            )
        kv.device = [LayerKV.of_block(kv.block, layer) for layer in self.layers]
        self.device.take(nbytes)
        self.live[kv] = None

    def buffer(self, block: Block, piece: int, host: bool = False) -> Any:
        if not isinstance(block, KV):
            return self.states.buffer(host)
        shape, dtype = self.form(block, piece)
        place = (
            torch.device("cpu") if piece < self.fixed_layers else shape.device or self.link.device
        )
        like = block.tokens, block.rows, dtype, place, host
        with as_out_of_memory(self.host if host else self.device, self.piece_bytes(block, piece)):
            if piece in block.acts:
                return LayerACT(*LayerKV.empty(shape.as_inputs, *like).both)
            return LayerKV.empty(shape, *like)

    def free(self, kv: KV) -> None:
        self.fixed.give(self.fixed_bytes(kv))
        self.give_back(kv)
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

    # ---------------------------------------------------------------- moving

    def evict(self, block: Block, cause: str, pieces: Iterable[int] | None = None) -> None:
        super().evict(block, cause, pieces)
        if isinstance(block, KV):
            block.block = None

    def replicate(self, kv: KV, cause: str, layers: Iterable[int]) -> KV:
        """One more copy of some layers of `kv`, fetched from the host to the device. What runs on
        the host is shared."""
        layers = list(layers)
        self.write_back(kv, cause, layers)
        twin = KV(len(self.shapes), kv.tokens, acts=kv.acts)
        twin.pinned = twin.borrowed = True
        twin.device[: self.fixed_layers] = kv.device[: self.fixed_layers]
        twin.host = kv.host
        twin.written = kv.written
        try:
            self.fetch(twin, cause, layers)
        finally:
            twin.host = [None] * len(self.shapes)
        self.live[twin] = None
        return twin

    def wait_kv(self, kv: KV) -> None:
        """Let what the device computes from here on see what is under way to or from `kv`."""
        self.link.wait(kv.written)
        self.link.wait(kv.fetched)

    def wait_kv_on_host(self, kv: KV) -> None:
        """Wait until nothing is under way to or from `kv`, so that this processor can read its host
        copies."""
        self.wait_kv(kv)
        self.link.wait_on_host(kv.written)

    def store(
        self, kv: KV, layer: int, where: tuple[slice | int, ...], key: Tensor, value: Tensor
    ) -> None:
        """Write new keys and values to the host copy of a layer."""
        copy = kv.host[layer]
        assert copy is not None
        pairs = [(copy.keys[where], key.contiguous()), (copy.values[where], value.contiguous())]
        self.send_to_host(kv, pairs, "new")
