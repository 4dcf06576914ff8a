"""`python -m experiments.lm_eval run --model ttc ...`: lm-evaluation-harness, and searches as one
of its models."""

from __future__ import annotations

import argparse
import re
import sys
from importlib.metadata import version
from importlib.util import find_spec

from experiments.cli.command import perform
from experiments.cli.output import show
from ttc.errors import InvalidInput

NAME, TARGET = "ttc", "experiments.integrations.lm:SearchLM"
OLDEST = (0, 4, 13)
"""The first release that has all that is imported here."""
INSTALL = "pip install -e '.[eval]' in the folder of this project"

PAGE = f"""\
usage: python -m experiments.lm_eval run --model ttc --tasks TASKS
           --model_args pretrained=MODEL [SETTING=VALUE ...]

The command of lm-evaluation-harness, with searches as one more of its models. Settings are those
of `python -m experiments.run`, as search=best_of_n search.n=8 verifier=self; docs/evaluation.md has
examples.

lm-evaluation-harness is not installed, so that its own options are not shown: {INSTALL}
"""


def main() -> None:
    if {"-h", "--help"} & set(sys.argv[1:]) and find_spec("lm_eval") is None:
        show(PAGE, end="")
        return
    perform(evaluate, f"lm_eval {' '.join(sys.argv[1:])}")


def evaluate() -> None:
    check_installed()
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    setup_logging()
    register()
    harness = HarnessCLI()
    harness.execute(own_settings(harness.parse_args()))


def check_installed() -> None:
    """Raise InvalidInput where the harness is missing or too old."""
    if find_spec("lm_eval") is None:
        raise InvalidInput(f"lm-evaluation-harness is not installed: {INSTALL}")
    installed = version("lm_eval")
    if tuple(map(int, re.findall(r"\d+", installed)[:3])) < OLDEST:
        least = ".".join(map(str, OLDEST))
        raise InvalidInput(
            f"lm-evaluation-harness {installed} is too old, {least} or newer is needed: {INSTALL}"
        )


def register() -> None:
    """Make the model known to the harness, whose newer releases find it by the entry point."""
    import lm_eval.models  # noqa: F401  which fills the registry
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)


def own_settings(arguments: argparse.Namespace) -> argparse.Namespace:
    """With `--model ttc`, the cache is one that knows searches apart, and the device is the
    engine's."""
    if getattr(arguments, "model", None) == NAME:
        settings = dict(arguments.model_args or {})
        if arguments.use_cache is not None:
            settings["cache_file"], arguments.use_cache = arguments.use_cache, None
        if arguments.device is not None:
            settings.setdefault("device", arguments.device)
        arguments.model_args = settings
    return arguments
