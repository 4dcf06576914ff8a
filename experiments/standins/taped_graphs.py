"""A stand-in for CUDA graphs on a CPU. It writes down what PyTorch and the kernels are given, with
the numbers that they are given, and gives it to them again, while no code of the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """What PyTorch and the kernels were given."""

    def __init__(self, recorder: StandIn):
        super().__init__()
        self.recorder, self.steps = recorder, list[Callable[[], Any]]()

    def replay(self) -> None:
        self.recorder.replays += 1
        for step in self.steps:
            step()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        places = {
            x.untyped_storage().data_ptr()
            for x in tree_leaves((args, given))
            if isinstance(x, Tensor)
        }
        made = tree_leaves(result)

        def again() -> None:
            for old, new in zip(made, tree_leaves(func(*args, **given)), strict=True):
                old.copy_(new)

        if func._schema.is_mutable:
            self.steps.append(lambda: func(*args, **given))
        elif any(
            x.untyped_storage().data_ptr() not in places for x in made
        ):  # else a view, which stays one
            self.steps.append(again)
        return result


class StandIn:
    """A recorder on the CPU. fails: what a recording raises. calls, replays: how many there
    were."""

    def __init__(self, fails: Exception | None = None):
        self.fails, self.calls, self.replays = fails, 0, 0
        self.tapes: WeakSet[Tape] = WeakSet()
        self.open: Tape | None = None

    def record(self, function: Callable[[], Tensor]) -> tuple[Tensor, Tape, Tensor]:
        self.calls += 1
        result = function()
        if self.fails is not None:
            raise self.fails
        self.open = tape = Tape(self)
        self.tapes.add(tape)
        with tape:
            left = function()
        self.open = None
        left.fill_(float("nan"))  # a recording computes nothing
        return result, tape, left

    def launch(self, kernel: Any, *args: Any, **kwargs: Any) -> None:
        """Launch a kernel, and put it on the tape that is open."""
        with _disable_current_modes():
            kernel(*args, **kwargs)
        if self.open is not None:
            self.open.steps.append(lambda: kernel(*args, **kwargs))


class Kernels:
    """The module of the kernels, as `TritonAttention` calls them."""

    def __init__(self, module: Any, recorder: StandIn):
        self.module, self.recorder = module, recorder

    def __getattr__(self, name: str) -> Any:
        return Kernels(getattr(self.module, name), self.recorder)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.recorder.launch(self.module[grid], *args, **kwargs)
