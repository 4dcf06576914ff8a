"""The one place that allocates KV: storages in two tiers, and one link between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ttc.errors import InvalidInput
from ttc.memory.kv import Codec, LayerKV, LayerShape
from ttc.memory.link import DryLink, Link
from ttc.memory.state_memory import StateMemory
from ttc.memory.storage import Storage
from ttc.memory.tiers import Block, Tiers, as_out_of_memory


class Memory(Tiers):
    """Storages, and where each of their layers lies: on the device, on the host, or both.

    block_tokens: the most tokens of a storage, which is what moves at once; None for no limit.
    one_block: whether all layers of a storage lie side by side on the device, so that a kernel
        finds them quickly; they never move then.
    codec: how storages that no branch decodes in keep their numbers.
    live: all storages, in order of creation. states: what recurrent layers keep, in the same tiers.
    fixed_layers: see `fix`. clock: counts plans.
    """

    def __init__(  # noqa: PLR0913 - what a policy says of its memory
        self,
        shapes: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        budget_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        link_gbps: float | None = None,
        block_tokens: int | None = None,
        one_block: bool = False,
        codec: Codec | None = None,
    ):
        super().__init__(device, budget_bytes, host_budget_bytes, link_gbps)
        if device.type == "meta":
            self.link = DryLink()
        self.shapes = tuple(shapes)
        self.layers = range(len(self.shapes))
        self.dtype = dtype
        self.block_tokens = block_tokens
        alike = len({(s.kv_heads, s.key_dim, s.value_dim, s.device) for s in self.shapes}) == 1
        self.one_block = one_block and alike and self.shapes[0].key_dim == self.shapes[0].value_dim
        self.layer_bytes = [shape.elements * dtype.itemsize for shape in self.shapes]
        self.act_bytes = [shape.as_inputs.elements * dtype.itemsize for shape in self.shapes]
        self.bytes_per_token = sum(self.layer_bytes)
        if codec is not None:
            packed = (shape.packed(codec.row_bytes) for shape in self.shapes)
            self.bytes_per_token = sum(shape.elements for shape in packed)
        self.codec = codec
        self.live: dict[Storage, None] = {}
        self.fixed_layers = 0
        self.states = StateMemory(self)
        self.clock = 0

    def fix(self, layers: int, model_layers: int) -> None:
        """Let the first `layers` layers of attention keep their KV on the host, where they run, and
        the first `model_layers` of all layers their states; before anything is allocated. It counts
        in `fixed` alone. Raises InvalidInput where KV is packed."""
        if layers and self.codec is not None:
            raise InvalidInput(
                f"memory keeps KV as {self.codec.kind}, which layers that run on the host do not; "
                "use memory=resident, or a placement whose layers all run on the device"
            )
        self.states.use(self.states.shape, model_layers)
        self.fixed_layers = layers
        self.one_block = False
        for sizes in (self.layer_bytes, self.act_bytes):
            sizes[:layers] = [0] * layers
        self.bytes_per_token = sum(self.layer_bytes)

    # ---------------------------------------------------------------- storages

    def room(self, tokens: int) -> int:
        """Of a new storage for so many tokens."""
        most = self.block_tokens
        return tokens if most is None else min(tokens, most)

    def begin(
        self,
        start: int,
        room: int,
        acts: Iterable[int] = (),
        near: Collection[int] | None = None,
        codec: Codec | None = None,
    ) -> Storage:
        """A storage for tokens from a position on, some layers (None: all) on the device and the
        others on the host. Raises OutOfMemory."""
        storage = Storage(len(self.shapes), start, self.room(room), acts, codec)
        layers = self.layers[self.fixed_layers :]
        here = layers if near is None else [layer for layer in near if layer >= self.fixed_layers]
        away = [layer for layer in layers if layer not in here]
        here_bytes, away_bytes = self.bytes_in(storage, here), self.bytes_in(storage, away)
        self.claim_device(here_bytes)
        self.require_host(away_bytes)
        if self.one_block and not storage.acts and not away:
            shape, dtype = self.form(storage, 0)
            with as_out_of_memory(self.device, here_bytes):
                storage.block = torch.empty(
                    *(len(self.shapes), 2, shape.kv_heads, storage.room, shape.key_dim),
                    dtype=dtype,
                    device=shape.device or self.link.device,
                )
            storage.device = [LayerKV.of_block(storage.block, layer) for layer in self.layers]
        else:
            for layer in [*range(self.fixed_layers), *here]:
                storage.device[layer] = self.buffer(storage, layer)
            for layer in away:
                storage.host[layer] = self.buffer(storage, layer, host=True)
        self.device.take(here_bytes)
        self.host.take(away_bytes)
        self.fixed.take(self.fixed_bytes(storage))
        storage.used_at = self.clock + 1
        self.live[storage] = None
        return storage

    def free(self, storage: Storage) -> None:
        self.fixed.give(self.fixed_bytes(storage))
        if storage.inputs is not None:
            self.give_back(storage.inputs)
        self.give_back(storage)
        storage.block = None
        del self.live[storage]

    def pack(self, storage: Storage) -> None:
        """Keep what is written as `codec` does, and no more room than that. Raises OutOfMemory, and
        changes nothing then."""
        packed = self.begin(storage.start, storage.filled, codec=self.codec)
        if packed.block is not None and storage.block is not None:
            packed.write(packed.block, storage.block[..., : storage.filled, :])
        else:
            for new, old in zip(packed.device, storage.device, strict=True):
                assert new is not None and old is not None
                for target, numbers in zip(new.both, storage.tensors(old), strict=True):
                    packed.write(target, numbers)
        freed = self.tier_bytes(storage)[0]
        storage.become(packed)
        del self.live[packed]
        self.device.give(freed)

    def copy(
        self, storage: Storage, first: int, end: int, cause: str, layers: Iterable[int]
    ) -> Storage:
        """A copy on the device of some tokens of a storage, fetched from the host; of layers that
        run on the host its own."""
        layers = self.moving(storage, layers)
        self.write_back(storage, cause, layers)
        twin = Storage(len(self.shapes), storage.start + first, end - first, storage.acts)
        twin.filled = twin.room
        for layer in range(self.fixed_layers):
            near = storage.device[layer]
            assert near is not None
            twin.device[layer] = LayerKV(*storage.span(near, first, end))
        for layer in layers:
            source = storage.host[layer]
            assert source is not None
            twin.host[layer] = LayerKV(*storage.span(source, first, end))
        twin.written = storage.written
        try:
            self.fetch(twin, cause, layers)
        finally:
            twin.host = [None] * len(self.shapes)
        self.fixed.take(self.fixed_bytes(twin))
        self.live[twin] = None
        return twin

    def used(self, storages: Iterable[Storage]) -> None:
        """A plan is about to read or write these."""
        self.clock += 1
        for storage in storages:
            storage.used_at = self.clock

    def wait(self, blocks: Iterable[Block]) -> None:
        """Let what is computed from here on see what was fetched of these."""
        for block in blocks:
            self.link.wait(block.fetched)

    # ---------------------------------------------------------------- inputs beside KV

    def keep_inputs(self, storage: Storage, layers: Collection[int]) -> None:
        """Room on the device for the inputs of some layers' K and V projections, beside a storage.
        Raises OutOfMemory."""
        inputs = Storage(len(self.shapes), storage.start, storage.room, layers)
        nbytes = self.bytes_in(inputs, layers)
        self.claim_device(nbytes)
        for layer in layers:
            inputs.device[layer] = self.buffer(inputs, layer)
        self.device.take(nbytes)
        storage.inputs = inputs

    def become_acts(self, storage: Storage) -> None:
        """Keep the inputs alone in the layers that have any."""
        inputs = storage.inputs
        assert inputs is not None
        freed = self.bytes_in(storage, inputs.acts)
        for layer in inputs.acts:
            storage.device[layer] = inputs.device[layer]
        storage.acts, storage.inputs, storage.block = inputs.acts, None, None
        self.device.give(freed, storage.under_way)

    # ---------------------------------------------------------------- the host's copies

    def store(self, storage: Storage, layer: int, first: int, key: Tensor, value: Tensor) -> None:
        """Write new keys and values (kv_heads, tokens, dim) to the host copy of a layer."""
        copy = storage.host[layer]
        assert copy is not None, "what is being written is in neither tier"
        places = storage.span(copy, first, first + key.shape[1])
        new = key.contiguous(), value.contiguous()
        self.send_to_host(storage, list(zip(places, new, strict=True)), "new")

    def mirror(self, storage: Storage) -> None:
        """Give a storage on the device room on the host, which `write_on` fills, if there is
        any."""
        nbytes = self.bytes_in(storage, self.layers)
        if not storage.is_resident or nbytes > self.host.free_bytes:
            return
        self.claim(self.host, nbytes)
        storage.host = [self.buffer(storage, layer, host=True) for layer in self.layers]
        self.host.take(nbytes)
        storage.on_host = 0

    def write_on(self, storage: Storage, end: int, cause: str) -> None:
        """Bring host copies of what the device has too up to the first `end` tokens."""
        first = storage.on_host
        storage.on_host = max(first, end)
        layers = storage.spare
        if first >= end or not layers:
            return
        copies: list[tuple[Tensor, Tensor]] = []
        for layer in layers:
            near, far = storage.device[layer], storage.host[layer]
            assert near is not None and far is not None
            parts = storage.span(far, first, end), storage.span(near, first, end)
            copies += zip(*parts, strict=True)
        self.send_to_host(storage, copies, cause)

    def write_back(self, block: Block, cause: str, pieces: Iterable[int] | None = None) -> None:
        if isinstance(block, Storage):
            self.write_on(block, block.filled, cause)
        super().write_back(block, cause, pieces)

    def fetch(self, block: Block, cause: str, pieces: Iterable[int] | None = None) -> None:
        if isinstance(block, Storage):
            self.write_on(block, block.filled, "write-back")
        super().fetch(block, cause, pieces)

    # ---------------------------------------------------------------- what `Tiers` asks

    def blocks(self) -> Iterable[Block]:
        return chain(self.live, self.states.live)

    def piece_bytes(self, block: Block, piece: int) -> int:
        if not isinstance(block, Storage):
            return self.states.nbytes
        sizes = self.act_bytes if piece in block.acts else self.layer_bytes
        if block.codec is not None:
            return int(block.room * self.form(block, piece)[0].elements)
        return int(block.room * sizes[piece])

    def moving(self, block: Block, pieces: Iterable[int] | None) -> list[int]:
        chosen = range(len(block.device)) if pieces is None else pieces
        first = self.fixed_layers if isinstance(block, Storage) else 0
        return [piece for piece in chosen if piece >= first]

    def buffer(self, block: Block, piece: int, host: bool = False) -> Any:
        if not isinstance(block, Storage):
            return self.states.buffer(host)
        shape, dtype = self.form(block, piece)
        near = self.link.device
        if near.type != "meta":
            near = torch.device("cpu") if piece < self.fixed_layers else shape.device or near
        tier = self.host if host else self.device
        on_host = host and self.link.device.type != "meta"  # a dry run has no numbers anywhere
        with as_out_of_memory(tier, self.piece_bytes(block, piece)):
            form = shape.as_inputs if piece in block.acts else shape
            return LayerKV.empty(form, block.room, dtype, near, on_host)

    def form(self, storage: Storage, layer: int) -> tuple[LayerShape, torch.dtype]:
        """How a layer of a storage lies in memory."""
        if storage.codec is None:
            return self.shapes[layer], self.dtype
        return self.shapes[layer].packed(storage.codec.row_bytes), torch.int8

    # ---------------------------------------------------------------- bytes

    def fixed_bytes(self, storage: Storage) -> int:
        """What a storage takes in layers that run on the host."""
        elements = sum(shape.elements for shape in self.shapes[: self.fixed_layers])
        return storage.room * elements * self.dtype.itemsize

    def bytes_of(self, tokens: int, states: int = 0) -> int:
        return tokens * self.bytes_per_token + states * self.states.nbytes

    def join_link(self, link: Link, gbps: float | None) -> None:
        """Move KV over a link that carries weights, too, whose placement gives it `gbps`; before
        anything is allocated. Raises InvalidInput where the memory policy gives it another speed.
        """
        speed = self.link.gbps
        if speed is not None and gbps is not None and speed != gbps:
            raise InvalidInput(
                f"memory.link_gbps={speed} and placement.link_gbps={gbps} are the speed of one "
                "link; give the same number, or one of them"
            )
        self.link = link
        link.gbps = speed if gbps is None else gbps

    def reserve(self, elements: int) -> Tensor:
        """A device buffer for KV in transit; `unreserve` gives it back."""
        nbytes = elements * self.dtype.itemsize
        self.claim(self.device, nbytes)
        with as_out_of_memory(self.device, nbytes):
            buffer = torch.empty(elements, dtype=self.dtype, device=self.link.device)
        self.device.take(nbytes)
        return buffer

    def unreserve(self, buffer: Tensor) -> None:
        self.device.give(buffer.numel() * self.dtype.itemsize)

    # ---------------------------------------------------------------- trials

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is done within moves no byte, and is undone at the end. It raises OutOfMemory as it
        would in earnest."""
        link, live, clock = self.link, dict(self.live), self.clock
        tiers = [(tier, dict(vars(tier))) for tier in (self.device, self.host, self.fixed)]
        states = dict(vars(self.states)) | {"live": dict(self.states.live)}
        before = [
            (block, vars(block) | {"device": block.device[:], "host": block.host[:]})
            for block in (*live, *(one.inputs for one in live), *self.states.live)
            if block is not None
        ]
        self.link = DryLink()
        for tier, _ in tiers:
            tier.leaving = deque()
        try:
            yield
        finally:
            self.link, self.live, self.clock = link, live, clock
            for changed, kept in (*tiers, (self.states, states), *before):
                vars(changed).update(kept)
