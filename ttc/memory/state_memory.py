"""Recurrent states in the two tiers: those at segments' ends, and those that passes change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from ttc.errors import on_failure
from ttc.memory.link import Transfer
from ttc.memory.states import State, StateShape, Tensors
from ttc.memory.tiers import Tier, Tiers, as_out_of_memory


class StateMemory:
    """Keeps and frees the states of a model's recurrent layers, in the tiers of its KV.

    A state at a segment's end is a block, which the tiers move. Sequences that run change copies on
    the device.
    shape: of a sequence; None for models without recurrent layers. nbytes: what a state takes in a
        tier. fixed_bytes: what it takes in layers that run on the host.
    live: the states at segments' ends, the oldest first. running_bytes: of sequences that run.
    """

    def __init__(self, tiers: Tiers):
        self.tiers = tiers
        self.live: dict[State, None] = {}
        self.running_bytes = 0
        self.use(None)

    def use(self, shape: StateShape | None, fixed_layers: int = 0) -> None:
        """Keep states of this shape from now on. Those of the first `fixed_layers` layers lie on
        the host, where these run."""
        near = self.tiers.link.device
        self.shape = shape if shape is None or near.type != "meta" else shape.on(near)
        self.fixed_layers = fixed_layers
        sizes = {} if shape is None else shape.part_bytes()
        self.fixed_bytes = sum(n for part, n in sizes.items() if part.layer < fixed_layers)
        self.nbytes = sum(sizes.values()) - self.fixed_bytes

    def bytes_on(self) -> Counter[torch.device]:
        """What a state takes on each device; `nbytes` in all."""
        sizes = Counter[torch.device]()
        if self.shape is not None:
            for part, nbytes in self.shape.part_bytes().items():
                sizes[self.shape.parts[part][2]] += nbytes * (part.layer >= self.fixed_layers)
        return sizes

    def buffer(self, host: bool = False) -> Tensors:
        """Memory for the parts of a state that move."""
        assert self.shape is not None
        kind = self.tiers.link.device.type
        buffer = {}
        with as_out_of_memory(self.tiers.host if host else self.tiers.device, self.nbytes):
            for part, (shape, dtype, device) in self.shape.parts.items():
                if part.layer >= self.fixed_layers:
                    near = "meta" if kind == "meta" else "cpu" if host else device
                    pinned = host and kind == "cuda"
                    buffer[part] = torch.empty(
                        1, *shape, dtype=dtype, device=near, pin_memory=pinned
                    )
        return buffer

    # ---------------------------------------------------------------- sequences that run

    def claim(self, sequences: int) -> None:
        """Count the states of sequences that are about to run. Raises OutOfMemory."""
        tiers, nbytes = self.tiers, sequences * self.nbytes
        tiers.make_room(nbytes)
        tiers.claim(tiers.device, nbytes)
        tiers.device.take(nbytes)
        self.running_bytes += nbytes
        tiers.fixed.take(sequences * self.fixed_bytes)

    def give(self, sequences: int) -> None:
        self.running_bytes -= sequences * self.nbytes
        self.tiers.device.give(sequences * self.nbytes)
        self.tiers.fixed.give(sequences * self.fixed_bytes)

    def zeros(self, sequences: int) -> Tensors:
        """States of sequences that have not begun, which are counted already."""
        assert self.shape is not None
        with as_out_of_memory(self.tiers.device, sequences * self.nbytes):
            return self.shape.zeros(sequences)

    def load(self, states: Sequence[State | None], into: Tensors, first: int = 0) -> None:
        """Copy kept states (None: not begun) to `into`, from sequence `first` on. A state that is
        on the host alone crosses the link once."""
        rows: dict[State | None, list[int]] = {}
        for row, state in enumerate(states, first):
            rows.setdefault(state, []).append(row)
        arriving = [
            self._arriving(state, into, places[0])
            for state, places in rows.items()
            if state is not None
        ]
        for transfer in arriving:
            self.tiers.link.wait(transfer)
        for state, places in rows.items():
            for part, tensor in into.items():
                source = None if state is None else state.near(part)
                for row in places:
                    if state is None:
                        tensor[row].zero_()
                    elif source is None:
                        source = tensor[row][None]  # what has arrived
                    else:
                        tensor[row].copy_(source[0])

    def _arriving(self, state: State, into: Tensors, row: int) -> Transfer | None:
        """What is under way to the device copy of a state; without one it is sent to its row of
        `into`."""
        if state.device[0] is not None:
            return state.fetched
        (source,) = state.host
        assert source is not None, "a state is in neither tier"
        copies = [(into[part][row], tensor[0]) for part, tensor in source.items()]
        return self.tiers.link.fetch(copies, state.cause, state.under_way)

    # ---------------------------------------------------------------- states at segments' ends

    def keep(self, tensors: Tensors, sequence: int, on_device: bool) -> State:
        """Keep a copy of one sequence's state, on the device or on the host. Raises OutOfMemory."""
        tiers, state = self.tiers, State()
        mine = {part: tensor[sequence : sequence + 1] for part, tensor in tensors.items()}
        state.fixed = self._copies(
            {part: t for part, t in mine.items() if part.layer < self.fixed_layers}, tiers.fixed
        )
        moving = {part: tensor for part, tensor in mine.items() if part not in state.fixed}
        if on_device:
            tiers.claim(tiers.device, self.nbytes)
            state.device[0] = self._copies(moving, tiers.device)
            tiers.device.take(self.nbytes)
        else:
            self._store(state, moving)
        tiers.fixed.take(self.fixed_bytes)
        self.live[state] = None
        return state

    def free(self, state: State) -> None:
        self.tiers.give_back(state)
        self.tiers.fixed.give(self.fixed_bytes)
        state.fixed = {}
        del self.live[state]

    def _store(self, state: State, tensors: Tensors) -> None:
        """Send tensors that are about to change to the host: a copy of them, or without room for it
        the tensors themselves, which are waited for."""
        tiers, copied = self.tiers, self.nbytes <= self.tiers.device.free_bytes
        if copied:
            tiers.claim(tiers.device, self.nbytes)
            tensors = self._copies(tensors, tiers.device)
        tiers.require_host(self.nbytes, [state])
        state.host[0] = target = self.buffer(host=True)
        tiers.host.take(self.nbytes)
        tiers.device.take(self.nbytes if copied else 0)
        tiers.send_to_host(
            state, [(target[part], tensor) for part, tensor in tensors.items()], state.cause
        )
        tiers.device.give(self.nbytes if copied else 0, [state.written])
        if not copied:
            with on_failure(tiers.host.give, self.nbytes):
                tiers.link.wait(state.written)
                tiers.link.wait_on_host(state.written)

    def _copies(self, tensors: Tensors, tier: Tier) -> Tensors:
        with as_out_of_memory(tier, self.nbytes):
            return {part: tensor.clone() for part, tensor in tensors.items()}
