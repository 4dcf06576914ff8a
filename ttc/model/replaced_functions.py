"""A module's own forward, with functions that it calls by name replaced by others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch

Function = Callable[..., Any]


def called_by(module: torch.nn.Module, names: Iterable[str]) -> dict[str, Function]:
    """Those of the functions of these names in the module's file that its forward calls; none where something has taken
    the forward's place, such as Accelerate's hooks."""
    inner = inspect.unwrap(type(module).forward)
    if "forward" in module.__dict__ or any(hasattr(part, "_hf_hook") for part in module.modules()):
        return {}
    return {n: inner.__globals__[n] for n in names if n in inner.__code__.co_names and n in inner.__globals__}


def forward_with(module: torch.nn.Module, functions: Mapping[str, Function]) -> Function:
    """The forward of `module` with other functions under these names; nothing else calls them."""
    inner = inspect.unwrap(type(module).forward)
    scope = {**inner.__globals__, **functions}
    forward = FunctionType(inner.__code__, scope, inner.__name__, inner.__defaults__, inner.__closure__)
    forward.__kwdefaults__ = inner.__kwdefaults__
    return MethodType(forward, module)
