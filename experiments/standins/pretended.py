"""A processor with two devices, `pretend:0` and `pretend:1`, for machines that have none.

To PyTorch it is a device as any other. A tensor there keeps its numbers in a tensor of the CPU,
which computes them. An operation on tensors of several devices fails as it does on CUDA: numbers
(tensors without dimensions) may come from the CPU, and so may indices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
CPU = torch.device("cpu")
aten = torch.ops.aten
COPIES = {aten.copy_, aten._to_copy, aten._foreach_copy_}
TAKES_INDICES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
WHOLE = {aten.scaled_dot_product_attention, aten.matmul, aten.linear}
"""Operations that are not taken apart: PyTorch would look for the processor's own attention, and
takes long over products."""


class PretendedTensor(torch.Tensor):
    """numbers: those of the tensor, on the CPU; views of one tensor are views of the other."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor, device: torch.device) -> PretendedTensor:
        layout: dict[str, Any] = {
            "strides": numbers.stride(),
            "storage_offset": numbers.storage_offset(),
            "dtype": numbers.dtype,
        }
        with torch.inference_mode(False):  # what it is a view of may be older than the mode
            made: Any = torch.Tensor._make_wrapper_subclass(
                cls, numbers.size(), device=device, **layout
            )
        made.numbers = numbers
        return made

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def tolist(self) -> Any:
        _waited("tolist")
        return self.numbers.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PretendedTensor({self.numbers}, device={self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, packet = dict(kwargs or {}), func.overloadpacket
        if packet not in WHOLE and _can_decompose(func):
            return func.decompose(*args, **kwargs)
        if packet is aten.histc:  # CUDA takes whole numbers, a CPU does not
            args = (args[0].float(), *args[1:])
        tensors = [x for x in _leaves((*args, *kwargs.values())) if isinstance(x, Tensor)]
        place = _place(func, args, tensors)
        if kwargs.get("device") is not None:
            place, kwargs["device"] = _numbered(kwargs["device"]), CPU
        _count(func, args, place)
        owners = {id(x.numbers): x for x in tensors if isinstance(x, PretendedTensor)}

        def wrapped(value: Any) -> Any:
            if not isinstance(value, Tensor) or place.type != NAME:
                return value
            return owners[id(value)] if id(value) in owners else PretendedTensor(value, place)

        on_cpu = {name: _mapped(_numbers, value) for name, value in kwargs.items()}
        return _mapped(wrapped, func(*_mapped(_numbers, args), **on_cpu))


@cache
def _can_decompose(func: Any) -> bool:
    return bool(func._can_decompose())


def _leaves(value: Any) -> Iterator[Any]:
    """What is in lists and tuples. PyTorch's own functions for it know other kinds too, and take
    most of an operation's time."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_mapped(change, part) for part in value])
    return change(value)


def _place(func: Any, args: Any, tensors: list[Tensor]) -> torch.device:
    """Where an operation runs: on the device of all its tensors, or as a copy on that of its
    first."""
    if func.overloadpacket in COPIES:
        return (args[0] if isinstance(args[0], Tensor) else args[0][0]).device
    place = next(x.device for x in tensors if isinstance(x, PretendedTensor))
    for tensor in tensors:
        movable = tensor.dim() == 0 or (
            func.overloadpacket in TAKES_INDICES and tensor is not args[0]
        )
        if tensor.device != place and not (tensor.device == CPU and movable):
            raise RuntimeError(f"{func} got tensors on {place} and on {tensor.device}")
    return place


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, PretendedTensor) else value


def _numbered(device: Any) -> torch.device:
    device = torch.device(device)
    return torch.device(NAME, 0) if device.type == NAME and device.index is None else device


class Waits:
    """Counts within what would make the processor wait for a real device: numbers that it reads,
    copies from there, and operations whose result has a size that depends on numbers.

    by_name: how often each operation did.
    """

    def __init__(self) -> None:
        self.by_name = Counter[str]()

    @property
    def total(self) -> int:
        return self.by_name.total()

    def __enter__(self) -> Waits:
        _COUNTING.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _COUNTING.remove(self)


_COUNTING: list[Waits] = []
_DEPENDS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def _count(func: Any, args: Any, place: torch.device) -> None:
    """Count an operation on tensors of the device whose result lies on `place`, if it waits."""
    packet = func.overloadpacket
    masks = packet in (aten.index, aten.index_put_) and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    to_host = packet in COPIES and place.type != NAME
    if masks or to_host or not _DEPENDS.isdisjoint(func.tags):
        _waited(str(func))


def _waited(name: str) -> None:
    for counting in _COUNTING:
        counting.by_name[name] += 1


class _Module:
    """What `torch.pretend` offers."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 2

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None: ...


_REGISTERED: list[torch.library.Library] = []
"""What was registered stays so while it is here."""


@cache
def pretended_devices() -> tuple[str, str]:
    """The names of the two devices. PyTorch knows them from the first call on."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")

    def makes(func: Any) -> Any:
        return lambda *args, device, **kwargs: PretendedTensor(
            func(*args, device=CPU, **kwargs), _numbered(device)
        )

    for func in (
        aten.empty.memory_format, aten.empty_strided.default,
        aten.arange.default, aten.arange.start, aten.arange.start_step,
    ):  # fmt: skip
        library.impl(func, makes(func))
    library.impl(
        aten._copy_from.default, lambda one, other, *_: _numbers(other).copy_(_numbers(one))
    )
    _REGISTERED.append(library)
    return f"{NAME}:0", f"{NAME}:1"
