"""Several runs by one command: each is a job of its own, so that a command that was stopped goes on
where it was."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

from omegaconf import DictConfig

from experiments.cli.output import say
from experiments.cli.refusals import explained
from experiments.cli.temporary import temporary_folder
from experiments.runs.build import make_search, resolved
from experiments.runs.data import load_task
from experiments.runs.hydra_command import composed
from experiments.runs.problem_loop import run
from ttc.errors import InvalidInput, refusing


@dataclass(frozen=True)
class Cell:
    """One run. labels: its model, data set, search and budget. title: what tells it from other
    rows."""

    name: str
    labels: dict[str, str]
    seed: int
    overrides: list[str]
    title: str = ""


def configurations(cells: Sequence[Cell]) -> list[DictConfig]:
    """Every cell's configuration. Raises InvalidInput for the first wrong one, before any is run,
    also where its data set is a file that cannot be read."""
    configs = []
    data_sets = list[DictConfig]()  # each is read once
    for cell in cells:
        with refusing((Exception, SystemExit), f"the cell {cell.name}: {{error}}", words=explained):
            config = composed(cell.overrides)
            values = checked(config)
            if values.dataset.path is not None and values.dataset not in data_sets:
                load_task(values.dataset)
                data_sets.append(values.dataset)
            configs.append(config)
    return configs


def checked(config: DictConfig) -> DictConfig:
    """The configuration with all values, once its search and its limits can be used."""
    values = resolved(config)
    make_search(values)
    return values


def run_cells(cells: Sequence[Cell]) -> tuple[dict[str, str], set[str]]:
    """Solve what is left of every cell. Returns why cells failed, by their names, and which of them
    were refused: the folder of such a one may hold results of other settings."""
    errors: dict[str, str] = {}
    refused = set[str]()
    planned = zip(cells, configurations(cells), strict=True)
    with temporary_folder() as notes:
        for number, (cell, config) in enumerate(planned, 1):
            say(f"cell {number} of {len(cells)}: {cell.name}")
            try:
                with redirect_stdout(io.StringIO()):  # the table of the whole comes at the end
                    run(config, notes)
            except (Exception, SystemExit) as error:
                errors[cell.name] = explained(error)
                if isinstance(error, InvalidInput):
                    refused.add(cell.name)
                say(f"error: {errors[cell.name]}")
    return errors, refused
