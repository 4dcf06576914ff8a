"""Does a model still compute what it computed? Asked before each call: KV stays between calls.

What decides what a model computes: its modules and their hooks, the code that they run, their
attributes (a scale, an epsilon, which adapter of peft is active, disabled or merged), and its
weights. All of it is noted once, flat, so that comparing is a few passes over lists in C: 0.14 ms
for the 397 modules and 272 weights of SmolLM2-135M.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from copy import copy
from itertools import chain, repeat
from operator import attrgetter, call, getitem, is_, itemgetter
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Hook = TypeVar("Hook", bound=Callable[..., Any])
Getter = Callable[[dict[str, Any]], tuple[Any, ...]]
SCALAR = (bool, int, float, str, type(None))
COMMON = frozenset(vars(nn.Module())) | {"_is_hf_initialized", "training"}
"""Attributes that every module has, or that are not part of what it computes."""


class Noted:
    """What a model was when this was made. All that is compared by its place in memory is held, so
    that nothing else can take that place."""

    def __init__(self, model: nn.Module):
        self.modules = list(model.modules())
        self.classes = [*map(type, self.modules)]
        self._own = [vars(module) for module in self.modules]
        self._children = [module._modules for module in self.modules if module._modules]
        both = [(module._forward_hooks, module._forward_pre_hooks) for module in self.modules]
        self._hooks = [*chain.from_iterable(both)]
        self._getters, self._attributed = _attributes(self._own)
        self._code = _Code(set(self.classes))
        self._weights = _Weights(self.modules)
        *self._before, attributes = self._structure()
        self._before.append([tuple(map(copy, values)) for values in attributes])

    def same_structure(self) -> bool:
        """Whether the modules, their code, attributes and hooks are as they were, and weights where
        they were."""
        try:
            same = self._structure() == self._before and self._code.same()
            return same and self._weights.same_places()
        except (AttributeError, KeyError, RuntimeError, ValueError):
            return False  # something is gone, or a tensor where a number was

    def same_numbers(self) -> bool:
        """Whether the numbers in the weights are as they were; see `_Weights`."""
        return self._weights.same_versions() and self._weights.same_samples()

    def same_versions(self) -> bool:
        """The part of `same_numbers` that waits for no device."""
        return self._weights.same_versions()

    def taken_over(self) -> bool:
        """Whether hooks, or another forward than its class's, act on any module just now."""
        return any(self._hooks) or any(map(dict.__contains__, self._own, repeat("forward")))

    def _structure(self) -> list[list[Any]]:
        return [
            [*map(type, self.modules)],
            [*chain.from_iterable(map(dict.values, self._children))],
            [ids for hooks in self._hooks if hooks and (ids := _foreign(hooks))],
            [*map(dict.get, self._own, repeat("forward"))],
            [*map(call, self._getters, self._attributed)],
        ]


class Watch:
    """Follows a model from look to look.

    at_load, last: the model when this was made, and when somebody looked last. as_at_load: whether
    its structure was the same both times. on_change: called by the look that sees a change, to let go
    of what was made of the model; what they raise is raised by every look until the cause is gone.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.at_load = self.last = Noted(model)
        self.as_at_load = True
        self.on_change: list[Callable[[], None]] = []

    def unchanged(self, *, samples: bool = True) -> bool:
        """Whether the model computes what it computed at the last look. This is the next look.

        samples: also read some numbers of the weights, for which a GPU is waited for.
        """
        last = self.last
        if last.same_structure() and (last.same_numbers() if samples else last.same_versions()):
            return True
        for react in self.on_change:
            react()
        self.last = Noted(self.model)
        self.as_at_load = self.at_load.same_structure()
        return False

    def may_leave_out_modules(self) -> bool:
        """Whether what was made of the modules at load does what they would: nothing about them had
        changed by the last look, and nothing acts on them now."""
        return self.as_at_load and not self.at_load.taken_over()


class _Code:
    """The forward of each class, and what it calls by name (see `_reached`); whoever replaces one of
    these replaces it for all models."""

    def __init__(self, classes: Iterable[type]):
        reached = [(kind, *_reached(kind)) for kind in classes]
        self._classes = [kind for kind, _, methods in reached for _ in methods]
        self._methods = [name for _, _, methods in reached for name in methods]
        called = [pair for _, functions, _ in reached for pair in functions]
        self._scopes = [scope for scope, _ in called]
        self._functions = [name for _, name in called]
        self._before = self._now()

    def same(self) -> bool:
        return self._now() == self._before

    def _now(self) -> list[Any]:
        """Raises KeyError for a function that is gone, AttributeError for a method."""
        return [
            *map(getattr, self._classes, self._methods),
            *map(getitem, self._scopes, self._functions),
        ]


class _Weights:
    """The weights and buffers of modules: which they are, where they lie, and what was written to
    them.

    PyTorch counts what is written to a tensor (`Tensor._version`), but not what is written through
    `weight.data`, as peft does to merge adapters and to swap them. So one number of each tensor is
    compared as well. Where a few numbers alone are written through `.data`, nobody notices.
    """

    def __init__(self, modules: Iterable[nn.Module]):
        both: Iterable[dict[str, Any]]
        both = chain.from_iterable((module._parameters, module._buffers) for module in modules)
        self._held = [tensors for tensors in both if tensors]
        self._sizes = [*map(len, self._held)]
        self._dicts = [tensors for tensors in self._held for _ in tensors]
        self._keys = [*chain.from_iterable(self._held)]
        self._entries: list[Tensor | None] = [*map(getitem, self._dicts, self._keys)]
        self._tensors = [tensor for tensor in self._entries if tensor is not None]
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._places, self._versions = self._places_now(), self._versions_now()
        self._groups = _samples(self._tensors)
        self._samples = [*map(_bytes, self._groups)]

    def same_places(self) -> bool:
        return (
            [*map(len, self._held)] == self._sizes
            and all(map(is_, map(getitem, self._dicts, self._keys), self._entries))
            and self._places_now() == self._places
        )

    def same_versions(self) -> bool:
        return self._versions_now() == self._versions

    def same_samples(self) -> bool:
        return all(map(torch.equal, map(_bytes, self._groups), self._samples))

    def _places_now(self) -> list[int]:
        return [*map(Tensor.data_ptr, self._tensors)]

    def _versions_now(self) -> list[int]:
        return [*map(attrgetter("_version"), self._counted)]


# ---------------------------------------------------------------- parts


def changes_nothing(hook: Hook) -> Hook:
    """Mark a hook of the engine's own, which reads and changes nothing: no look counts it, so that
    an engine which comes or goes is no change of the model for another one."""
    hook.changes_nothing = True  # type: ignore[attr-defined]
    return hook


def _foreign(hooks: dict[int, Any]) -> tuple[int, ...]:
    """The hooks that somebody else has registered, by their numbers."""
    return tuple(n for n, hook in hooks.items() if not hasattr(hook, "changes_nothing"))


def _attributes(own: Iterable[dict[str, Any]]) -> tuple[list[Getter], list[dict[str, Any]]]:
    """What gets the plain values among each module's own attributes, and where from."""
    getters, owners = list[Getter](), list[dict[str, Any]]()
    for attributes in own:
        names = [n for n, value in attributes.items() if n not in COMMON and _is_plain(value)]
        if names:
            getters.append(itemgetter(names[0], *names))  # twice: for one name it gives no tuple
            owners.append(attributes)
    return getters, owners


def _is_plain(value: Any) -> bool:
    """Whether an attribute is a number, a text, or a collection of these, as peft's scales are."""
    if isinstance(value, dict):
        return all(isinstance(part, SCALAR) for part in value.values())
    if isinstance(value, list | tuple | set):
        return all(isinstance(part, SCALAR) for part in value)
    return isinstance(value, SCALAR)


def _reached(kind: Any) -> tuple[list[tuple[dict[str, Any], str]], list[str]]:
    """What the forward of a class calls by name: functions, each as (its file's names, the name), and
    methods of the class, the forward among them. Those of its own file are followed to what they call."""
    functions, methods = dict[tuple[int, str], tuple[dict[str, Any], str]](), dict.fromkeys(["forward"])
    left: list[Any] = [kind.forward]
    while left:
        code = getattr(inner := inspect.unwrap(left.pop()), "__code__", None)
        scope = {} if code is None else inner.__globals__
        for name in () if code is None else code.co_names:
            function, method = scope.get(name), getattr(kind, name, None)
            method = None if method is getattr(nn.Module, name, None) else method
            if isinstance(function, FunctionType) and (id(scope), name) not in functions:
                functions[id(scope), name] = scope, name
                left += [function] * (inspect.unwrap(function).__globals__ is scope)
            if isinstance(method, FunctionType) and name not in methods:
                methods[name] = None
                left += [method] * (inspect.unwrap(method).__globals__ is scope)
    return [*functions.values()], [*methods]


def _samples(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The middle number of each tensor, as a part of it; those of one type and device together."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        plain = type(tensor) in (nn.Parameter, Tensor) and tensor.layout == torch.strided
        if plain and tensor.numel() and tensor.device.type != "meta":
            middle = tuple(slice(size // 2, size // 2 + 1) for size in tensor.shape)
            part = tensor.detach()[middle].reshape(1)
            groups.setdefault((tensor.device, tensor.dtype), []).append(part)
    return [group for group in groups.values() if _can_be_joined(group)]


def _can_be_joined(parts: list[Tensor]) -> bool:
    """Whether PyTorch joins such numbers; of some types of 8 bits and less it does not."""
    try:
        _bytes(parts)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _bytes(parts: list[Tensor]) -> Tensor:
    """The numbers as they are written, so that NaN equals itself."""
    return torch.cat(parts).view(torch.uint8)
