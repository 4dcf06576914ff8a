"""Hydra configurations of the jobs. Known settings are not copied for each configuration, which
would take most of the time of composing one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException

from experiments.fit.calibrate import calibration
from experiments.runs import problem_loop, schema
from ttc import TTCError

ConfigStore.__deepcopy__ = lambda store, _: store


def configuration(job: str, *overrides: str) -> Any:
    """The settings of `python -m experiments.JOB` with these words typed after it."""
    schema.register()
    with initialize_config_module("conf", version_base="1.3"):
        return compose("config" if job == "run" else job, overrides=list(overrides))


def assert_refused(job: str, arguments: Sequence[str], message: str, folder: Path) -> None:
    """`run` or `calibrate` names what is wrong and leaves no file."""
    jobs = {"run": problem_loop.run, "calibrate": calibration.run}
    with pytest.raises((TTCError, HydraException), match=message):
        jobs[job](configuration(job, *arguments, "run.name=r", f"run.output_dir={folder}"))
    assert not list(folder.iterdir())
