"""A module's own forward, with functions that it calls by name replaced by others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any

import torch

Function = Callable[..., Any]


def called_by(module: torch.nn.Module, names: Iterable[str]) -> dict[str, Function]:
    """The functions of these names in the module's file that its forward calls.

    None where something has taken the forward's place, such as Accelerate's hooks.
    """
    forward = inspect.unwrap(type(module).forward)
    hooked = any(hasattr(part, "_hf_hook") for part in module.modules())
    if hooked or "forward" in module.__dict__:
        return {}
    scope = forward.__globals__
    return {
        name: scope[name] for name in names if name in forward.__code__.co_names if name in scope
    }


def forward_with(module: torch.nn.Module, functions: Mapping[str, Function]) -> Function:
    """The forward of `module` with other functions under these names; nothing else calls them."""
    original = inspect.unwrap(type(module).forward)
    scope = {**original.__globals__, **functions}
    forward = FunctionType(
        original.__code__, scope, original.__name__, original.__defaults__, original.__closure__
    )
    forward.__kwdefaults__ = original.__kwdefaults__
    return MethodType(forward, module)


@contextmanager
def running_as(modules: Sequence[torch.nn.Module], forwards: Iterable[Function]) -> Iterator[None]:
    before = [module.__dict__.get("forward") for module in modules]
    for module, forward in zip(modules, forwards, strict=True):
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            del module.__dict__["forward"]
            if original is not None:
                module.__dict__["forward"] = original
