"""The command `python -m experiments.run`: a search over a data set."""

from __future__ import annotations

import os
import sys
from typing import Any

STOPPED = 130
"""The exit code after Ctrl-C, as a shell has it."""


def main() -> None:
    """Answer at once, then import what takes seconds and hand over to Hydra."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        from experiments.help import page

        print(page(), end="")
        return
    given = " ".join(arguments) or "the default settings; --help shows others"
    print(f"starting: {given}", file=sys.stderr, flush=True)
    try:
        code = launch()
    except KeyboardInterrupt as stop:
        safe = stop.args[0] if stop.args else "stopped before anything was run; nothing is lost"
        print(f"\n{safe}\nrun the same command to go on", file=sys.stderr)
        raise SystemExit(STOPPED) from None
    if code:
        raise SystemExit(code)


def launch() -> int:
    """Run the job, or the jobs of a sweep; returns the exit code."""
    from experiments.quiet import quiet

    quiet()
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import InstantiationException
    from hydra.types import RunMode
    from omegaconf import DictConfig

    from experiments.job import run
    from experiments.own_classes import with_own_classes
    from experiments.schema import register
    from experiments.screen import sweep_table
    from ttc.errors import TTCError

    register()
    jobs: list[tuple[list[str], dict[str, Any] | str]] = []
    process = os.getpid()

    @hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
    def job(config: DictConfig) -> None:
        overrides = list(HydraConfig.get().overrides.task)
        try:
            if summary := run(with_own_classes(config, overrides)):  # a dry run has none
                jobs.append((overrides, summary))
        except (TTCError, InstantiationException) as error:
            reason = error if isinstance(error, TTCError) else error.__cause__
            if not isinstance(reason, TTCError):
                raise
            if os.getpid() != process:  # a launcher's own process, where `jobs` is a copy
                raise reason from None
            if HydraConfig.get().mode != RunMode.MULTIRUN:
                raise SystemExit(f"error: {reason}") from error
            print(f"error: {reason}", file=sys.stderr)  # the other jobs of a sweep go on
            jobs.append((overrides, str(reason).splitlines()[0]))

    job()
    if len(jobs) > 1:
        print(sweep_table(jobs))
    return int(any(isinstance(outcome, str) or outcome["failures"] == outcome["problems"] for _, outcome in jobs))


if __name__ == "__main__":
    main()
