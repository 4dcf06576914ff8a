"""The command `python -m experiments.run`: a search over a data set."""

from __future__ import annotations

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig

from experiments.job import run
from experiments.schema import register
from ttc.errors import TTCError

register()


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
def main(config: DictConfig) -> None:
    try:
        run(config)
    except (TTCError, InstantiationException) as error:
        reason = error if isinstance(error, TTCError) else error.__cause__
        if not isinstance(reason, TTCError):
            raise
        if HydraConfig.get().mode == RunMode.MULTIRUN:  # the other jobs of a sweep go on
            print(f"error: {reason}", file=sys.stderr)
            raise reason from None
        raise SystemExit(f"error: {reason}") from error


if __name__ == "__main__":
    main()
