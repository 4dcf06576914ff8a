"""`python -m experiments.lm_eval run --model ttc ...`: lm-evaluation-harness, and searches as one of its models."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

from experiments.cli.command import perform
from ttc.errors import InvalidInput

NAME, TARGET = "ttc", "experiments.integrations.lm:SearchLM"


def main() -> None:
    perform(evaluate, f"lm_eval {' '.join(sys.argv[1:])}")


def evaluate() -> None:
    """The harness's own command, with one more model."""
    if find_spec("lm_eval") is None:
        raise InvalidInput("lm-evaluation-harness is not installed: pip install 'ttc-tree[eval]'")
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    register()
    harness = HarnessCLI()
    harness.execute(own_settings(harness.parse_args()))


def register() -> None:
    """Make the model known to the harness under its name. Newer releases find it by the entry point."""
    import lm_eval.models  # noqa: F401  which fills the registry
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)


def own_settings(arguments: argparse.Namespace) -> argparse.Namespace:
    """With `--model ttc`, the cache is one that knows searches apart, and the device is the engine's."""
    if getattr(arguments, "model", None) == NAME:
        given = dict(arguments.model_args or {})
        if arguments.use_cache is not None:
            given["cache_file"], arguments.use_cache = arguments.use_cache, None
        if arguments.device is not None:
            given.setdefault("device", arguments.device)
        arguments.model_args = given
    return arguments
