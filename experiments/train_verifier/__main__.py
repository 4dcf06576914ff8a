"""The command `python -m experiments.train_verifier`."""

from __future__ import annotations

import os
import sys

from experiments.command import FULL_ERRORS, perform


def main() -> None:
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        from experiments.help import TRAIN_VERIFIER

        print(TRAIN_VERIFIER, end="")
        return
    perform(launch, f"train_verifier {' '.join(arguments)}".strip())


def launch() -> None:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from experiments.own_classes import with_own_classes
    from experiments.refusals import reason
    from experiments.schema import register
    from experiments.train_verifier.job import run

    register()
    os.environ[FULL_ERRORS] = "1"  # Hydra then leaves it to `perform` to show them

    @hydra.main(version_base="1.3", config_path="pkg://conf", config_name="train_verifier")
    def job(config: DictConfig) -> None:
        overrides = list(HydraConfig.get().overrides.task)
        try:
            run(with_own_classes(config, overrides), overrides)
        except Exception as error:
            if (text := reason(error)) is None:
                raise
            raise SystemExit(f"error: {text}") from error

    job()


if __name__ == "__main__":
    main()
