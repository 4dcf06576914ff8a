"""`python -m experiments.published [RECIPE] [--run | --dry]`: published figures, made again."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.command import perform
from experiments.cli.output import show, show_errors
from experiments.cli.tables import terminal_width
from ttc.errors import number_of

if TYPE_CHECKING:
    from experiments.eval.cells import Cell
    from experiments.recipes.published.recipe import Arm, Recipe

EXAMPLE = """\
Examples:
  python -m experiments.published                              the recipes, and what they cost
  python -m experiments.published s1                           values, ours beside, what differs
  python -m experiments.published s1 --run --arms 'aime24-*'   run what is left of some arms
  python -m experiments.published s1 --run run.shard=1/4       a part of each run, one GPU of four
  python -m experiments.published s1 --dry --arms 'aime24-0*'  settings, three prompts, no weights
"""


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.published",
        description="Runs that make published figures, and ours beside theirs. The same "
        "command goes on where it was.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", nargs="?", help="its name, as the list has it")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", action="store_true", help="solve what is left of its arms")
    what.add_argument("--dry", action="store_true", help="check them and show their prompts")
    parser.add_argument("--arms", default="*", help="a pattern of names, as 'Llama-3.2-1B*' (all)")
    parser.add_argument(
        "--out", type=Path, help="the folder of its runs (outputs/published-RECIPE)"
    )
    parser.add_argument(
        "settings", nargs="*", help="settings of experiments.run for all arms, as KEY=VALUE"
    )
    return parser.parse_intermixed_args(words)


def published(arguments: argparse.Namespace) -> int:
    """Returns the exit code: 1 where an arm could not be run."""
    from experiments.recipes.published.beside import beside, differences, listing
    from experiments.recipes.published.recipes import RECIPES

    if arguments.recipe is None:
        show(listing(list(RECIPES.values())).text())
        return 0
    recipe = chosen(arguments.recipe, RECIPES)
    arms = chosen_arms(recipe, arguments.arms)
    folder = arguments.out or Path("outputs") / f"published-{recipe.name}"
    cells = [cell for arm in arms for cell in cells_of(arm, folder, arguments.settings)]
    if arguments.dry:
        dry_run(cells)
        return 0
    errors: dict[str, str] = {}
    if arguments.run:
        from experiments.eval.cells import run_cells

        errors, _ = run_cells(cells)
    show(beside(recipe, folder, arms).text())
    lines = [
        textwrap.fill(text, terminal_width(), initial_indent="- ", subsequent_indent="  ")
        for text in differences(recipe, folder, arms)
    ]
    show("\n".join(["\nwhat differs:", *lines]))
    show_errors(errors, f"{number_of(len(cells), 'run')} could not be made")
    return int(bool(errors))


def chosen(name: str, recipes: dict[str, Recipe]) -> Recipe:
    from ttc.checks import check_choice

    check_choice(name, recipes, f"the recipe {name!r} is unknown")
    return recipes[name]


def chosen_arms(recipe: Recipe, pattern: str) -> list[Arm]:
    from ttc.errors import InvalidInput

    arms = [arm for arm in recipe.arms if fnmatchcase(arm.name, pattern)]
    if not arms:
        names = ", ".join(arm.name for arm in recipe.arms)
        raise InvalidInput(f"--arms {pattern!r} matches none of {names}")
    return arms


def cells_of(arm: Arm, folder: Path, settings: Sequence[str]) -> list[Cell]:
    """The runs of an arm, one for each seed. settings: typed ones, which come last."""
    from experiments.eval.cells import Cell
    from experiments.recipes.published.beside import run_name
    from experiments.runs.overrides import as_override

    cells = []
    for seed in range(arm.seeds):
        name = run_name(arm, seed)
        place = [
            f"run.name={as_override(name)}",
            f"run.seed={seed}",
            f"run.output_dir={as_override(str(folder))}",
        ]
        cells.append(Cell(name, {}, seed, [*arm.settings, *settings, *place]))
    return cells


def dry_run(cells: Sequence[Cell]) -> None:
    from experiments.eval.cells import configurations
    from experiments.runs.problem_loop import run

    for cell, config in zip(cells, configurations(cells), strict=True):
        show(f"=== {cell.name}")
        config.run.dry = True
        run(config)


def main() -> None:
    arguments = parsed()
    stopped = "stopped; every problem done is kept\nrun the same command to go on"
    command = " ".join(sys.argv[1:]) or "the recipes"
    perform(lambda: published(arguments), command, stopped)
