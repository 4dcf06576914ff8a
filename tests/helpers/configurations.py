"""Hydra configurations of the jobs."""

from __future__ import annotations

from typing import Any

from hydra import compose, initialize_config_module

from experiments.runs.schema import register


def configuration(job: str, *overrides: str) -> Any:
    register()
    with initialize_config_module("conf", version_base="1.3"):
        return compose("config" if job == "run" else job, overrides=list(overrides))
