"""A module that can be made to fail while it stays the same module, so that no KV is dropped for a
changed model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Breakable:
    """Makes a module one of a class of its own, whose forward can fail; do it before an engine is
    made of its model."""

    def __init__(self, module: nn.Module, error: str):
        self.broken = False
        usual = type(module)

        def forward(called: Any, *arguments: Any, **options: Any) -> Any:
            if self.broken:
                raise RuntimeError(error)
            return usual.forward(called, *arguments, **options)

        module.__class__ = type(usual.__name__, (usual,), {"forward": forward})

    @contextmanager
    def failing(self) -> Iterator[None]:
        """The module fails meanwhile."""
        self.broken = True
        try:
            yield
        finally:
            self.broken = False
