"""The command `ttc-serve`, also `python -m experiments.serve`."""

from __future__ import annotations

import os
import sys

from experiments.command import FULL_ERRORS, perform


def main() -> None:
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        from experiments.help import SERVE

        print(SERVE, end="")
        return
    perform(launch, f"serve {' '.join(arguments)}".strip())


def launch() -> None:
    """Serve until told to stop."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from experiments.own_classes import with_own_classes
    from experiments.refusals import reason
    from experiments.schema import register

    try:
        from experiments.serve.job import run
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "pydantic", "prometheus_client"):
            raise
        raise SystemExit(f"error: the server needs {error.name}: pip install 'ttc-tree[serve]'") from error

    register()
    os.environ[FULL_ERRORS] = "1"  # Hydra then leaves it to `perform` to show them

    @hydra.main(version_base="1.3", config_path="pkg://conf", config_name="serve")
    def job(config: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        try:
            run(with_own_classes(config, hydra_config.overrides.task), hydra_config.runtime.choices.search)
        except Exception as error:
            if (text := reason(error)) is None:
                raise
            raise SystemExit(f"error: {text}") from error

    job()


if __name__ == "__main__":
    main()
