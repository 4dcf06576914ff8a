"""What code can leave changed in its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def state() -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path[:],
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
    }


@contextmanager
def as_it_was() -> Iterator[None]:
    """Put back what the block changes."""
    before = state()
    try:
        yield
    finally:
        for name in os.environ.keys() - before["environment"].keys():
            del os.environ[name]
        os.environ.update(before["environment"])
        os.chdir(before["folder"])
        sys.path[:] = before["path"]
        if torch.get_num_threads() != before["threads"]:
            torch.set_num_threads(before["threads"])
        torch.set_default_dtype(before["dtype"])
        torch.set_grad_enabled(before["gradients"])
