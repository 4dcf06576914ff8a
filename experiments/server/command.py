"""The command `ttc-serve`, also `python -m experiments.serve`."""

from __future__ import annotations

import sys

from experiments.cli.command import perform_or_help


def main() -> None:
    perform_or_help(launch, "serve", " ".join(["serve", *sys.argv[1:]]))


def launch() -> None:
    """Serve until told to stop."""
    from hydra.core.hydra_config import HydraConfig

    from experiments.runs.flags import as_settings
    from experiments.runs.hydra_command import configured
    from experiments.server.settings import FLAGS, ServeConfig

    try:
        from experiments.server.launch import run
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        raise SystemExit(
            f"error: the server needs {error.name}: pip install -e '.[serve]'"
        ) from error

    sys.argv[1:] = as_settings(sys.argv[1:], FLAGS, {"serve": ServeConfig})
    configured("serve", lambda config, _: run(config, HydraConfig.get().runtime.choices["search"]))
