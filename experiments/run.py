"""The command `python -m experiments.run`: a search over a data set, or several in a sweep.

The loop over a data set's problems is in `experiments.runs.problem_loop`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from experiments.cli.command import FULL_ERRORS, HELP, perform, perform_or_help

UNTOUCHED = "stopped before anything was run; nothing is lost\nrun the same command to go on"


def main() -> None:
    """Answer at once, then import what takes seconds and hand over to Hydra."""
    command = " ".join(sys.argv[1:]) or "the default settings; --help shows others"
    words = [word for word in sys.argv[1:] if word not in HELP]
    if HELP & set(sys.argv[1:]) and words and _chooses(words):
        perform(_show_settings, command)
    else:
        perform_or_help(launch, "run", command, UNTOUCHED)


def _chooses(words: list[str]) -> bool:
    from experiments.cli.help import GROUPS
    from experiments.cli.settings import RUN_FLAGS

    return any(word.partition("=")[0] in {*GROUPS, *RUN_FLAGS} for word in words)


def _show_settings() -> None:
    from experiments.cli.output import show
    from experiments.runs.settings_help import settings_help

    show(settings_help([word for word in sys.argv[1:] if word not in HELP]))


def launch() -> int:
    """Run the job, or the jobs of a sweep; returns the exit code."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import DictConfig

    from experiments.cli.output import say, show
    from experiments.cli.printable import printable
    from experiments.cli.refusals import explained
    from experiments.cli.settings import RUN_FLAGS
    from experiments.eval.compare.show import compared
    from experiments.runs.flags import as_settings
    from experiments.runs.problem_loop import run, stopped
    from experiments.runs.records import run_folder
    from experiments.runs.schema import register
    from experiments.runs.summary_tables import sweep_table
    from experiments.runs.sweep import (
        JobOutcome,
        Outcomes,
        each_run,
        for_each_job,
        job_title,
        note_job,
        row_labels,
        sweeps,
    )
    from experiments.runs.user_classes import as_choices, checked_parts

    register()
    os.environ[FULL_ERRORS] = "1"  # Hydra then leaves it to `perform` to show them
    sys.argv[1:] = as_choices(as_settings(sys.argv[1:], RUN_FLAGS))
    if sweeps(sys.argv[1:]):
        sys.argv[1:] = for_each_job(sys.argv[1:])

    words = sys.argv[1:]

    with Outcomes.kept(words) as outcomes:

        @hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
        def job(config: DictConfig) -> None:
            register()  # a launcher may run this in another process
            hydra_config = HydraConfig.get()
            overrides = list(hydra_config.overrides.task)
            sweep = hydra_config.mode == RunMode.MULTIRUN
            number = hydra_config.job.num if sweep else 0
            title = job_title(words, number, overrides) if sweep else ""
            if sweep:
                say(f"\n{title}")
            try:
                outcomes.begin(number, run_folder(config), title)
                if summary := run(checked_parts(config), outcomes.place):  # a dry run has none
                    folder = None if config.run.shard else str(run_folder(config))
                    if sweep and folder is not None:
                        note_job(Path(folder), outcomes.place.name, number, overrides)
                    outcomes.add(number, JobOutcome(overrides, summary, folder))
            except (Exception, SystemExit) as error:
                text = explained(error)
                if not sweep:
                    raise SystemExit(printable(f"error: {text}")) from error
                say(f"error: {text}")  # the other jobs of a sweep go on
                outcomes.add(number, JobOutcome(overrides, text.splitlines()[0], None))

        try:
            with outcomes.watched(words):
                job()
        except KeyboardInterrupt as stop:
            if stop.args or not (done := outcomes.recorded()):
                raise
            raise KeyboardInterrupt(stopped(done)) from None
        jobs, again = each_run(outcomes.all())
    if len(jobs) > 1:
        show("\n\n".join([sweep_table([(j.overrides, j.result) for j in jobs]), *again]))
    whole = [job for job in jobs if job.folder is not None]
    if len(whole) > 1:
        names = row_labels([job.overrides for job in whole])
        show(f"\n{compared([Path(str(job.folder)) for job in whole], names)}")
    return int(any(job.failed for job in jobs))


if __name__ == "__main__":
    main()
