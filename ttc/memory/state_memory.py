"""Recurrent states in the two tiers: those at segments' ends, and those that tails and passes change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from ttc.memory.link import Transfer
from ttc.memory.states import State, StateShape, Tensors
from ttc.memory.tiers import Tier, Tiers, as_out_of_memory

CAUSE = "states"
"""What the bytes of states that cross the link count under."""


class StateMemory:
    """Keeps, frees and moves the states of a model's recurrent layers, in the tiers of its KV.

    A state at a segment's end is a block: it moves as a whole. Sequences that run change copies of their states, which
    are on the device and count there meanwhile.

    shape: what the model keeps of a sequence; None for models without recurrent layers. nbytes: what a state takes in a
    tier that has it. fixed_bytes: what it takes beside that, in layers that run on the host. live: the states at
    segments' ends, the oldest first.
    """

    def __init__(self, tiers: Tiers):
        self.tiers = tiers
        self.live: dict[State, None] = {}
        self.use(None)

    def use(self, shape: StateShape | None, fixed_layers: int = 0) -> None:
        """Keep states of this shape from now on. Those of the model's first `fixed_layers` layers lie on the host,
        where these layers run, and never move: they count in `Tiers.fixed` alone."""
        self.shape, self.fixed_layers = shape, fixed_layers
        sizes = {} if shape is None else shape.part_bytes()
        self.fixed_bytes = sum(n for part, n in sizes.items() if part.layer < fixed_layers)
        self.nbytes = sum(sizes.values()) - self.fixed_bytes

    def bytes_on(self) -> Counter[torch.device]:
        """What a state takes on each device; `nbytes` in all."""
        found = Counter[torch.device]()
        if self.shape is not None:
            for part, nbytes in self.shape.part_bytes().items():
                found[self.shape.parts[part][2]] += nbytes * (part.layer >= self.fixed_layers)
        return found

    def tier_bytes(self, state: State) -> tuple[int, int]:
        """Bytes of a kept state on the device and on the host."""
        return self.nbytes * (state.device is not None), self.nbytes * (state.host is not None)

    # ---------------------------------------------------------------- sequences that run

    def claim(self, sequences: int) -> None:
        """Count the states of so many sequences that are about to run. Raises OutOfMemory, see `Tiers.claim`."""
        tiers, nbytes = self.tiers, sequences * self.nbytes
        tiers.claim(tiers.device, nbytes)
        tiers.device.take(nbytes)
        tiers.fixed.take(sequences * self.fixed_bytes)

    def give(self, sequences: int) -> None:
        """So many sequences run no more."""
        self.tiers.device.give(sequences * self.nbytes)
        self.tiers.fixed.give(sequences * self.fixed_bytes)

    def zeros(self, sequences: int) -> Tensors:
        """States of sequences that have not begun, which are counted already."""
        assert self.shape is not None
        with as_out_of_memory(self.tiers.device, sequences * self.nbytes):
            return self.shape.zeros(sequences)

    def load(self, states: Sequence[State | None], into: Tensors, first: int = 0) -> None:
        """Copy kept states to `into`, from sequence `first` on; None for a sequence that has not begun. A state that is
        on the host alone crosses the link once."""
        rows: dict[State | None, list[int]] = {}
        for row, state in enumerate(states, first):
            rows.setdefault(state, []).append(row)
        arriving: list[Transfer | None] = []
        for state, (row, *_) in rows.items():
            if state is not None and state.device is None:
                copies = [(into[part][row], tensor[0]) for part, tensor in self._on_host(state).items()]
                arriving.append(self.tiers.link.fetch(copies, CAUSE, state.under_way))
            elif state is not None:
                arriving.append(state.fetched)
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

    # ---------------------------------------------------------------- states at segments' ends

    def keep(self, tensors: Tensors, sequence: int, on_device: bool) -> State:
        """Keep a copy of the state of one of several sequences, on the device or on the host. Raises OutOfMemory."""
        tiers, state = self.tiers, State()
        own = {part: tensor[sequence : sequence + 1] for part, tensor in tensors.items()}
        state.fixed = self._copies({part: t for part, t in own.items() if part.layer < self.fixed_layers}, tiers.fixed)
        moving = {part: tensor for part, tensor in own.items() if part not in state.fixed}
        if on_device:
            tiers.claim(tiers.device, self.nbytes)
            state.device = self._copies(moving, tiers.device)
            tiers.device.take(self.nbytes)
        else:
            self._store(state, moving)
        tiers.fixed.take(self.fixed_bytes)
        self.live[state] = None
        return state

    def free(self, state: State) -> None:
        """Nobody keeps a state any more. A transfer under way holds its tensors until it is done."""
        on_device, on_host = self.tier_bytes(state)
        self.tiers.device.give(on_device, state.under_way)
        self.tiers.host.give(on_host, state.under_way)
        self.tiers.fixed.give(self.fixed_bytes)
        state.device = state.host = None
        state.fixed = {}
        del self.live[state]

    def write_back(self, state: State) -> None:
        """Give a state on the device a copy on the host, if it has none."""
        if state.device is not None and state.host is None:
            state.host = self._empty_on_host(state.device, state)
            copies = [(state.host[part], tensor) for part, tensor in state.device.items()]
            state.written = self.tiers.link.store(copies, CAUSE, state.under_way)

    def evict(self, state: State) -> int:
        """Drop the device copy, written back first where that is still due. Returns the bytes that came free."""
        self.write_back(state)
        for transfer in (state.written, state.fetched):
            self.tiers.link.wait_before_drop(transfer)
        freed, _ = self.tier_bytes(state)
        state.device = None
        self.tiers.device.give(freed, state.under_way)
        return freed

    def fetch(self, state: State) -> None:
        """Begin to bring a state to the device, ahead of the step that needs it."""
        if state.device is not None:
            return
        tiers, host, shape = self.tiers, self._on_host(state), self.shape
        assert shape is not None
        tiers.claim(tiers.device, self.nbytes)
        with as_out_of_memory(tiers.device, self.nbytes):
            near = {part: torch.empty_like(tensor, device=shape.parts[part][2]) for part, tensor in host.items()}
        tiers.device.take(self.nbytes)
        copies = [(near[part], tensor) for part, tensor in host.items()]
        state.device, state.fetched = near, tiers.link.fetch(copies, CAUSE, state.under_way)

    def give_up_spare(self, state: State) -> None:
        """Drop the host copy of a state that the device has, too."""
        if state.is_spare:
            state.host = None
            self.tiers.host.give(self.nbytes, state.under_way)

    def spare_bytes(self) -> int:
        """What the host holds and could give up."""
        return self.nbytes * sum(state.is_spare for state in self.live)

    def _store(self, state: State, tensors: Tensors) -> None:
        """Send tensors that are about to change to the host: a copy of them, or without room for it the tensors
        themselves, which then are waited for."""
        tiers, copied = self.tiers, self.nbytes <= self.tiers.device.free_bytes
        if copied:
            tiers.claim(tiers.device, self.nbytes)
            tensors = self._copies(tensors, tiers.device)
        state.host = self._empty_on_host(tensors, state)
        tiers.device.take(self.nbytes if copied else 0)
        copies = [(state.host[part], tensor) for part, tensor in tensors.items()]
        state.written = tiers.link.store(copies, CAUSE)
        tiers.device.give(self.nbytes if copied else 0, [state.written])
        if not copied:
            try:
                tiers.link.wait(state.written)
                tiers.link.wait_on_host(state.written)
            except BaseException:
                tiers.host.give(self.nbytes)
                raise

    def _empty_on_host(self, like: Tensors, state: State) -> Tensors:
        self.tiers.require_host(self.nbytes, [state])
        pinned = self.tiers.link.device.type == "cuda"
        with as_out_of_memory(self.tiers.host, self.nbytes):
            made = {p: torch.empty_like(tensor, device="cpu", pin_memory=pinned) for p, tensor in like.items()}
        self.tiers.host.take(self.nbytes)
        return made

    def _copies(self, tensors: Tensors, tier: Tier) -> Tensors:
        with as_out_of_memory(tier, self.nbytes):
            return {part: tensor.clone() for part, tensor in tensors.items()}

    @staticmethod
    def _on_host(state: State) -> Tensors:
        assert state.host is not None, "a state is in neither tier"
        return state.host
