"""Settings as Hydra reads them: of a command line, or of words from elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import hydra
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.cli.command import FULL_ERRORS
from experiments.cli.printable import printable
from experiments.cli.refusals import explained
from experiments.runs.schema import register
from experiments.runs.user_classes import as_choices, checked_parts


def composed(overrides: Sequence[str], name: str = "config") -> DictConfig:
    """The configuration of `conf/NAME.yaml` with these overrides."""
    register()
    with initialize_config_module("conf", version_base="1.3"):
        return checked_parts(compose(name, overrides=as_choices(overrides)))


def configured(name: str, work: Callable[[DictConfig, list[str]], Any]) -> None:
    """Do `work` with the configuration of `conf/NAME.yaml` and the settings that were typed. Known
    errors end the process with one line."""
    register()
    os.environ[FULL_ERRORS] = "1"  # Hydra then leaves it to `perform` to show them

    @hydra.main(version_base="1.3", config_path="pkg://conf", config_name=name)
    def job(config: DictConfig) -> None:
        overrides = list(HydraConfig.get().overrides.task)
        try:
            work(checked_parts(config), overrides)
        except (Exception, SystemExit) as error:
            raise SystemExit(printable(f"error: {explained(error)}")) from error

    sys.argv[1:] = as_choices(sys.argv[1:])
    job()
