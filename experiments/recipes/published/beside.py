"""Our figures beside the published ones, and what differs between the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.cli.tables import Table, amount, percent
from experiments.eval.compare.rows import ComparedRow
from experiments.eval.predictions import predictions_of
from experiments.recipes.published.recipe import Arm, Recipe
from experiments.runs.build import make_search, resolved
from experiments.runs.config_values import as_dict, changed_values, flat
from experiments.runs.finished import FinishedRun
from experiments.runs.hydra_command import composed
from experiments.runs.records import MAY_CHANGE
from experiments.runs.stats import Estimate, accuracy, wilson
from experiments.runs.summary import is_right, majority_share, pass_share
from ttc.errors import InvalidInput, number_of

MEASURES = {
    "accuracy": "the share of right answers",
    "pass@K": "the chance that one of K candidates is right",
    "maj@K": "a majority of K candidates, over all subsets",
    "naive@N, weighted@N": "the best score, or the highest total, of the first N candidates",
}
FIRST = ("naive", "weighted")
"""Rules that go by the first candidates of a record, as search-and-learn's files have them."""


def measure(name: str) -> Callable[[dict[str, Any]], float]:
    """What a measure makes of a record. Raises InvalidInput for an unknown one."""
    rule, _, size = name.partition("@")
    if name == "accuracy":
        return is_right
    if size.isdigit() and int(size) > 0:
        if rule == "pass":
            return partial(pass_share, k=int(size))
        if rule == "maj":
            return partial(majority_share, k=int(size))
        if rule in FIRST:
            return partial(_first, f"pred_{rule}@{size}")
    raise InvalidInput(f"the measure {name!r} is unknown; use one of {', '.join(MEASURES)}")


def _first(name: str, record: dict[str, Any]) -> float:
    """A prediction of the first candidates; a problem that has fewer counts as wrong."""
    return float(predictions_of(record).get(name, (None, False))[1])


def estimate(runs: Sequence[FinishedRun], name: str) -> Estimate:
    """A measure over the problems of runs that differ in seed or shard, with its 95% interval."""
    row = ComparedRow("", list(runs))
    figures = row.each(measure(name))
    return accuracy(list(figures.values()), row.sources(list(figures)))


def run_name(arm: Arm, seed: int) -> str:
    return f"{arm.name}-seed{seed}"


def runs_of(arm: Arm, folder: Path) -> list[FinishedRun]:
    """The runs of an arm with a problem done: of each seed the whole one, else its shards."""
    runs = []
    for seed in range(arm.seeds):
        whole = folder / run_name(arm, seed)
        shards = sorted(folder.glob(f"{whole.name}-shard*of*"))
        places = [whole] if (whole / "records.jsonl").is_file() else shards
        runs += [FinishedRun.load(place) for place in places if (place / "records.jsonl").is_file()]
    return runs


def listing(recipes: Sequence[Recipe]) -> Table:
    """The recipes and what they cost."""
    lines = [
        [
            recipe.name,
            recipe.title,
            str(sum(arm.seeds for arm in recipe.arms)),
            amount(recipe.solutions),
            amount(recipe.tokens),
        ]
        for recipe in recipes
    ]
    columns = ("recipe", "what", "runs", "solutions", "tokens")
    notes = [
        "Tokens are solutions times the length that each recipe takes for one: "
        "`python -m experiments.published NAME` says which, and shows its values.",
    ]
    return Table("", columns, lines, notes)


def beside(recipe: Recipe, folder: Path, arms: Sequence[Arm]) -> Table:
    """A line for each published value: theirs, ours, and whether theirs lies in our interval."""
    lines = []
    for arm in arms:
        runs = runs_of(arm, folder)
        for name, value in arm.published.items():
            lines.append([arm.name, name, _theirs(value, arm.problems), *_ours(arm, runs, name)])
            lines[-1].append(_verdict(value, runs, name))
    columns = ("arm", "measure", "published", "ours", "95% interval", "problems", "published lies")
    notes = [
        f"published: {recipe.source}",
        f"their setting: {recipe.setting}",
        f"cost of {number_of(len(recipe.arms), 'arm')}: about {amount(recipe.tokens)} tokens; "
        f"{recipe.cost}",
        "The interval in brackets is Wilson's for one run over as many problems; the sources give "
        "none.",
    ]
    return Table(recipe.title, columns, lines, notes)


def _theirs(value: float, problems: int) -> str:
    low, high = wilson(value / 100 * problems, problems)
    return f"{value:.1f}% ({100 * low:.1f} to {100 * high:.1f})"


def _ours(arm: Arm, runs: Sequence[FinishedRun], name: str) -> list[str]:
    if not runs:
        return ["-", "-", "0"]
    ours = estimate(runs, name)
    done = sum(len(run.records) for run in runs)
    interval = f"{percent(ours.low)} to {percent(ours.high)}"
    return [percent(ours.mean), interval, f"{done} of {arm.problems * arm.seeds}"]


def _verdict(value: float, runs: Sequence[FinishedRun], name: str) -> str:
    if not runs:
        return "-"
    ours = estimate(runs, name)
    if 100 * ours.low > value:
        return "below"
    return "above" if 100 * ours.high < value else "inside"


def differences(recipe: Recipe, folder: Path, arms: Sequence[Arm]) -> list[str]:
    """What differs from the published setting: what the recipe says, and the runs' own settings."""
    lines = list(recipe.differs)
    for arm in arms:
        changes = {change for run in runs_of(arm, folder) for change in _changes(arm, run)}
        lines += [f"{arm.name}: {change}" for change in sorted(changes)]
    return lines


def _changes(arm: Arm, run: FinishedRun) -> list[str]:
    config = resolved(composed([*arm.settings, "run.name=x"]))
    make_search(config)  # a search that asks for no ratings has no verifier
    expected = flat(as_dict(config, resolve=True))
    # where the model ran is no part of the setting
    places = {key for key in {*expected, *run.config} if key.startswith("backend.")}
    free = {*MAY_CHANGE, "run.name", "run.seed", *places} - {"dataset.limit", "backend._target_"}
    return list(changed_values(expected, run.config, free))
