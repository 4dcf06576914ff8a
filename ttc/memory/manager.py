"""The one place that allocates KV: storages in two tiers, each under a byte budget, and one link
between them that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ttc.errors import InvalidInput
from ttc.memory.kv import LayerACT, LayerKV, LayerShape
from ttc.memory.link import Link
from ttc.memory.state_memory import StateMemory
from ttc.memory.storage import Storage
from ttc.memory.tiers import Block, Tiers, as_out_of_memory

MakeRoom = Callable[[int], None]


class Memory(Tiers):
    """Storages, and where each of their layers lies: on the device, on the host, or both.

    block_tokens: the most tokens of a storage, which is what moves at once; None for no limit.
    one_block: whether all layers of a storage lie side by side on the device, so that a kernel
        finds them quickly; they then come and go together.
    live: all storages, in order of creation.
    make_room: a policy's: has so many bytes free on the device, if it can.
    fixed_layers: see `fix`.
    states: what recurrent layers keep, in the same tiers.
    clock: counts plans; a storage keeps when one last used it.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        budget_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        link_gbps: float | None = None,
        block_tokens: int | None = None,
        one_block: bool = False,
    ):
        super().__init__(device, budget_bytes, host_budget_bytes, link_gbps)
        self.shapes = tuple(shapes)
        self.layers = range(len(self.shapes))
        self.dtype = dtype
        self.block_tokens = block_tokens
        alike = len({(s.kv_heads, s.key_dim, s.value_dim, s.device) for s in self.shapes}) == 1
        self.one_block = one_block and alike and self.shapes[0].key_dim == self.shapes[0].value_dim
        self.layer_bytes = [shape.elements * dtype.itemsize for shape in self.shapes]
        self.act_bytes = [shape.as_inputs.elements * dtype.itemsize for shape in self.shapes]
        self.bytes_per_token = sum(self.layer_bytes)
        self.live: dict[Storage, None] = {}
        self.fixed_layers = 0
        self.states = StateMemory(self)
        self.make_room: MakeRoom = lambda nbytes: None
        self.clock = 0

    def fix(self, layers: int, model_layers: int) -> None:
        """Let the first `layers` layers of attention keep their KV on the host, where they run, and
        the first `model_layers` of all layers their states; before anything is allocated. These
        bytes count in `fixed` alone."""
        self.states.use(self.states.shape, model_layers)
        self.fixed_layers = layers
        self.one_block = False
        for sizes in (self.layer_bytes, self.act_bytes):
            sizes[:layers] = [0] * layers
        self.bytes_per_token = sum(self.layer_bytes)

    # ---------------------------------------------------------------- storages

    def begin(self, start: int, room: int, acts: Iterable[int] = ()) -> Storage:
        """A storage on the device for tokens from a position on. Raises OutOfMemory."""
        room = room if self.block_tokens is None else min(room, self.block_tokens)
        storage = Storage(len(self.shapes), start, room, acts)
        nbytes = sum(self.piece_bytes(storage, layer) for layer in self.layers)
        if self.device.free_bytes < nbytes:
            self.make_room(nbytes)
        self.claim(self.device, nbytes)
        if self.one_block and not storage.acts:
            shape = self.shapes[0]
            with as_out_of_memory(self.device, nbytes):
                storage.block = torch.empty(
                    *(len(self.shapes), 2, shape.kv_heads, room, shape.key_dim),
                    dtype=self.dtype,
                    device=shape.device or self.link.device,
                )
            storage.device = [LayerKV.of_block(storage.block, layer) for layer in self.layers]
        else:
            storage.device = [self.buffer(storage, layer) for layer in self.layers]
        self.device.take(nbytes)
        self.fixed.take(self.fixed_bytes(storage))
        self.live[storage] = None
        return storage

    def free(self, storage: Storage) -> None:
        self.fixed.give(self.fixed_bytes(storage))
        self.give_back(storage)
        storage.block = None
        del self.live[storage]

    def forget_on_host(self, storage: Storage) -> None:
        for layer in storage.spare:
            storage.host[layer] = None
            self.host.give(self.piece_bytes(storage, layer), storage.under_way)

    def used(self, storages: Iterable[Storage]) -> None:
        """A plan is about to read or write these."""
        self.clock += 1
        for storage in storages:
            storage.used_at = self.clock

    # ---------------------------------------------------------------- what `Tiers` asks

    def blocks(self) -> Iterable[Block]:
        return chain(self.live, self.states.live)

    def piece_bytes(self, block: Block, piece: int) -> int:
        if not isinstance(block, Storage):
            return self.states.nbytes
        sizes = self.act_bytes if piece in block.acts else self.layer_bytes
        return int(block.room * sizes[piece])

    def moving(self, block: Block, pieces: Iterable[int] | None) -> list[int]:
        chosen = range(len(block.device)) if pieces is None else pieces
        first = self.fixed_layers if isinstance(block, Storage) else 0
        return [piece for piece in chosen if piece >= first]

    def buffer(self, block: Block, piece: int, host: bool = False) -> Any:
        if not isinstance(block, Storage):
            return self.states.buffer(host)
        shape = self.shapes[piece]
        near = shape.device or self.link.device
        place = torch.device("cpu") if piece < self.fixed_layers else near
        tier = self.host if host else self.device
        on_host = host and self.link.device.type != "meta"  # a dry run has no numbers anywhere
        like = block.room, None, self.dtype, place, on_host
        with as_out_of_memory(tier, self.piece_bytes(block, piece)):
            if piece in block.acts:
                return LayerACT(*LayerKV.empty(shape.as_inputs, *like).both)
            return LayerKV.empty(shape, *like)

    def evict(self, block: Block, cause: str, pieces: Iterable[int] | None = None) -> None:
        super().evict(block, cause, pieces)
        if isinstance(block, Storage):
            block.block = None

    # ---------------------------------------------------------------- bytes

    def fixed_bytes(self, storage: Storage) -> int:
        """What a storage takes in layers that run on the host."""
        elements = sum(shape.elements for shape in self.shapes[: self.fixed_layers])
        return storage.room * elements * self.dtype.itemsize

    def bytes_of(self, tokens: int, states: int = 0) -> int:
        return tokens * self.bytes_per_token + states * self.states.nbytes

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

    def reserve(self, elements: int) -> Tensor:
        """A plain device buffer for KV in transit; `unreserve` gives it back."""
        nbytes = elements * self.dtype.itemsize
        if self.device.free_bytes < nbytes:
            self.make_room(nbytes)
        self.claim(self.device, nbytes)
        with as_out_of_memory(self.device, nbytes):
            buffer = torch.empty(elements, dtype=self.dtype, device=self.link.device)
        self.device.take(nbytes)
        return buffer

    def unreserve(self, buffer: Tensor) -> None:
        self.device.give(buffer.numel() * self.dtype.itemsize)

    def on_device(self) -> list[Storage]:
        """Storages of which the device has something, the longest unused first."""
        near = [storage for storage in self.live if any(storage.device)]
        return sorted(near, key=lambda storage: storage.used_at)
