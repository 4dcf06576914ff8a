"""Running the cells: each is a job of its own, so that whatever stops a leaderboard, it goes on where it was."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from experiments.cli.refusals import reason
from experiments.eval.leaderboard.plan import Cell, Plan
from experiments.runs.job import run
from experiments.runs.own_classes import as_choices, checked_parts
from experiments.runs.schema import register
from experiments.runs.screen import say
from ttc.errors import InvalidInput


def configurations(cells: Sequence[Cell]) -> list[DictConfig]:
    """Every cell's configuration. Raises InvalidInput for the first that has a wrong setting, before any is run."""
    register()
    found = []
    with initialize_config_module("conf", version_base="1.3"):
        for cell in cells:
            try:
                found.append(checked_parts(compose("config", overrides=as_choices(cell.overrides))))
            except Exception as error:
                if (text := reason(error)) is None:
                    raise
                raise InvalidInput(f"the cell {cell.name}: {text}") from error
    return found


def run_cells(plan: Plan) -> dict[str, str]:
    """Solve what is left of every cell. Returns why cells failed, by their names; the others go on."""
    errors: dict[str, str] = {}
    cells = list(zip(plan.cells, configurations(plan.cells), strict=True))
    for number, (cell, config) in enumerate(cells, 1):
        say(f"cell {number} of {len(cells)}: {cell.name}")
        try:
            with redirect_stdout(io.StringIO()):  # the table of the whole comes at the end
                run(config)
        except Exception as error:
            if (text := reason(error)) is None:
                raise
            say(f"error: {text}")
            errors[cell.name] = text
    return errors
