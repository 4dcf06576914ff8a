"""What code can leave changed in its process."""

from __future__ import annotations

import logging
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


LOGGERS = (None, "ttc", "ttc.serve")
"""Those that commands set, and Hydra: the root's level and handlers too."""

FRESH = {"level": logging.NOTSET, "handlers": [], "propagate": True, "disabled": False}
"""A logger that nobody has set."""


def logging_state() -> dict[str | None, dict[str, Any]]:
    loggers = {name: logging.getLogger(name) for name in LOGGERS}
    return {
        name: {
            "level": logger.level,
            "handlers": logger.handlers[:],
            "propagate": logger.propagate,
            "disabled": logger.disabled,
        }
        for name, logger in loggers.items()
    }


def restore_logging(before: dict[str | None, dict[str, Any]]) -> None:
    logging.disable(logging.NOTSET)
    for name, values in before.items():
        logger = logging.getLogger(name)
        logger.setLevel(values["level"])
        logger.handlers = values["handlers"][:]
        logger.propagate = values["propagate"]
        logger.disabled = values["disabled"]


@contextmanager
def as_it_was() -> Iterator[None]:
    """Put back what the block changes."""
    before = state()
    logged = logging_state()
    try:
        yield
    finally:
        restore_logging(logged)
        for name in os.environ.keys() - before["environment"].keys():
            del os.environ[name]
        os.environ.update(before["environment"])
        os.chdir(before["folder"])
        sys.path[:] = before["path"]
        if torch.get_num_threads() != before["threads"]:
            torch.set_num_threads(before["threads"])
        torch.set_default_dtype(before["dtype"])
        torch.set_grad_enabled(before["gradients"])
