"""`python -m experiments.compute_optimal outputs/A outputs/B ...`: fit from runs which search each
difficulty gets.

Every run is one strategy, on the same problems with the same model. How hard a problem is comes
from the mean score of the first samples of the first run that has scored samples. For each bin of
difficulty the strategy with the highest accuracy is chosen, within a budget of tokens that the
first samples count towards. What that is worth is measured in two folds: fitted on one half of the
problems, applied to the other, against the single strategy that was best on the same half.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from experiments.cli.command import perform
from experiments.cli.output import show
from experiments.runs.bootstrap import difference
from experiments.runs.finished import FinishedRun
from experiments.runs.orders import check_one_order
from experiments.runs.stats import wilson
from experiments.runs.summary import by_path, is_right
from search.budget import LIMITS
from ttc.checks import check_whole
from ttc.errors import InvalidInput

SAMPLING = ("search.BestOfN", "search.SelfConsistency")
"""Searches whose candidates are plain samples of the prompt."""


@dataclass(frozen=True)
class Measurements:
    """What was measured: a row for each problem.

    ease: the mean score of its first samples. estimate: what these took, in tokens. correct,
    tokens: (problems, strategies); tokens are generated and verifier tokens.
    """

    ease: np.ndarray
    estimate: np.ndarray
    correct: np.ndarray
    tokens: np.ndarray

    def rows(self, which: np.ndarray) -> Measurements:
        return Measurements(
            self.ease[which], self.estimate[which], self.correct[which], self.tokens[which]
        )


@dataclass(frozen=True)
class BinChoice:
    """The strategy of each bin, by its place, and the edges between the bins."""

    edges: list[float]
    strategies: list[int]

    def of(self, ease: np.ndarray) -> np.ndarray:
        return np.array(self.strategies)[np.searchsorted(self.edges, ease, side="right")]


def measured(runs: Sequence[FinishedRun], samples: int) -> tuple[Measurements, FinishedRun, int]:
    """The table, the run that the first samples are from, and how many problems all runs have.

    Those without so many scored samples are not in the table.
    """
    _check_runs(runs)
    common = [name for name in runs[0].records if all(name in run.records for run in runs)]
    for source in runs:
        if source.setting("search._target_") in SAMPLING:
            problems = [name for name in common if scored_samples(source, name, samples)]
            if problems:
                break
    else:
        raise InvalidInput(
            f"no run has {samples} scored samples of a problem that all runs have; give one of "
            f"search=best_of_n with search.n={samples} or more"
        )
    ease, estimates = [], []
    for name in problems:
        chosen = scored_samples(source, name, samples)
        record = source.records[name]
        verifier = record["usage"].get("verifier_tokens", 0) * samples / len(record["branches"])
        ease.append(np.mean([branch["score"] for branch in chosen]))
        estimates.append(sum(branch["tokens"] for branch in chosen) + verifier)
    records = [[run.records[name] for run in runs] for name in problems]
    right = [[is_right(record) for record in row] for row in records]
    kinds = ("generated_tokens", "verifier_tokens")
    spent = [
        [sum(record["usage"].get(kind, 0) for kind in kinds) for record in row] for row in records
    ]
    table = Measurements(
        np.array(ease), np.array(estimates), np.array(right, float), np.array(spent, float)
    )
    return table, source, len(common)


def _check_runs(runs: Sequence[FinishedRun]) -> None:
    """Raise InvalidInput for runs of different problems or models, and for one with a limit."""
    first = runs[0]
    for run in runs:
        for group in ("model", "dataset"):
            name, usual = run.setting(f"{group}.name"), first.setting(f"{group}.name")
            if name != usual:
                raise InvalidInput(
                    f"{run.folder} has {group} {name}, and {first.folder} has {usual}; give runs "
                    "of one"
                )
        for name in LIMITS:  # of a whole run, which a strategy within a search is not
            if (limit := run.config.get(f"run.{name}")) is not None:
                raise InvalidInput(
                    f"{run.folder} was limited by run.{name}={limit}, which a strategy does not "
                    "carry along; give runs that their own settings end, such as search.n"
                )
        check_one_order(run.config.get("dataset.orders"), "this fit")


def scored_samples(run: FinishedRun, problem: str, count: int) -> list[dict[str, Any]]:
    """The first scored samples of a problem by index, [] where there are too few."""
    branches = by_path(run.records[problem]["branches"])[:count]
    if len(branches) < count or any(branch.get("score") is None for branch in branches):
        return []
    return branches


def best_fixed(table: Measurements, budget: float) -> int:
    """The most accurate strategy whose mean tokens lie within the budget; of equals the cheaper
    one."""
    tokens = table.tokens.mean(0)
    return _best(table.correct.mean(0), tokens, tokens <= budget, budget)


def fit(table: Measurements, bins: int, budget: float) -> BinChoice:
    """The best strategy of each quantile bin; the first samples count towards the budget."""
    edges = np.quantile(table.ease, np.arange(1, bins) / bins)
    places = np.searchsorted(edges, table.ease, side="right")
    chosen = []
    for i in range(bins):
        # ties can leave a bin empty
        rows = table.rows(places == i) if (places == i).any() else table
        tokens = rows.tokens.mean(0) + rows.estimate.mean()
        chosen.append(_best(rows.correct.mean(0), tokens, tokens <= budget, budget))
    return BinChoice(edges.tolist(), chosen)


def _best(accuracy: np.ndarray, tokens: np.ndarray, allowed: np.ndarray, budget: float) -> int:
    if not allowed.any():
        raise InvalidInput(
            f"--budget={budget:g} is less than the {tokens.min():.0f} tokens of the cheapest "
            "strategy"
        )
    return min(np.flatnonzero(allowed).tolist(), key=lambda i: (-accuracy[i], tokens[i]))


def two_fold(table: Measurements, bins: int, budget: float, seed: int) -> dict[str, Any]:
    """Accuracy and tokens of the fitted choice and of the best fixed strategy, each on the half of
    the problems that it was not fitted on."""
    halves = np.array_split(np.random.default_rng(seed).permutation(len(table.ease)), 2)
    parts: list[tuple[np.ndarray, ...]] = []
    for train, test in (halves, halves[::-1]):
        old = table.rows(train)
        new = table.rows(test)
        chosen = fit(old, bins, budget).of(new.ease)
        fixed = best_fixed(old, budget)
        each = np.arange(len(test))
        fitted = new.correct[each, chosen], new.tokens[each, chosen] + new.estimate
        parts.append((*fitted, new.correct[:, fixed], new.tokens[:, fixed]))
    right, tokens, fixed_right, fixed_tokens = map(np.concatenate, zip(*parts, strict=True))
    return {
        "fitted": [right.mean(), *wilson(right.sum(), len(right)), tokens.mean()],
        "fixed": [fixed_right.mean(), *wilson(fixed_right.sum(), len(right)), fixed_tokens.mean()],
        "difference": list(difference(fixed_right.tolist(), right.tolist(), seed)),
    }


def report(arguments: argparse.Namespace) -> str:
    """What the choice is worth; writes the configuration of the search that makes it."""
    check_whole("--samples", arguments.samples, 1)
    check_whole("--bins", arguments.bins, 2)
    runs = [FinishedRun.load(folder) for folder in arguments.folders]
    if len(runs) < 2:
        raise InvalidInput(
            "one run is one strategy, and there is nothing to choose; give two or more folders"
        )
    table, source, common = measured(runs, arguments.samples)
    problems = len(table.ease)
    if problems < 4 * arguments.bins:
        raise InvalidInput(
            f"--bins={arguments.bins} in two halves takes {4 * arguments.bins} problems at least, "
            f"and there {'is' if problems == 1 else 'are'} {problems}; give more, or fewer bins"
        )
    budget = arguments.budget
    if budget is None:
        # every strategy is within it
        budget = float((table.tokens + table.estimate[:, None]).max() + 1)
    worth = two_fold(table, arguments.bins, budget, arguments.seed)
    choice = fit(table, arguments.bins, budget)
    sampling = ("temperature", "top_k", "top_p", "min_p", "max_tokens", "aggregation")
    text = OmegaConf.to_yaml(
        {
            "_target_": "search.ComputeOptimal",
            **{name: source.setting(f"search.{name}") for name in sampling},
            "n": arguments.samples,
            "edges": choice.edges,
            "strategies": [runs[i].settings["search"] for i in choice.strategies],
        }
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    data, model = source.config["dataset.name"], source.config["model.name"]
    about = f"# fitted on {problems} problems of {data} with {model}"
    arguments.out.write_text(f"{about}\n{text}", encoding="utf-8")
    lines = [
        f"{problems} problems of {common} with {arguments.samples} scored samples, "
        f"{arguments.bins} bins, 2 folds",
        "accuracy in percent [95% interval], tokens per problem",
    ]
    for name, key in (("by bins", "fitted"), ("best fixed", "fixed")):
        *accuracy, tokens = worth[key]
        mean, low, high = (100 * value for value in accuracy)
        lines.append(f"{name:<12} {mean:.1f} [{low:.1f} to {high:.1f}]  {tokens:.0f}")
    gain, low, high = (f"{100 * value:+.1f}" for value in worth["difference"])
    lines += [f"difference   {gain} [{low} to {high}], paired bootstrap", ""]
    lines.append("fitted on all problems, hardest bin first:")
    lines += [f"  {place}  {runs[i].folder}" for place, i in enumerate(choice.strategies, 1)]
    return "\n".join([*lines, f"written to {arguments.out}"])


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compute_optimal",
        description="Fit which search each difficulty gets, from the records of runs on the same "
        "problems.",
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, help="folders of runs, each of which is a strategy"
    )
    parser.add_argument(
        "--samples", type=int, default=4, help="first samples that difficulty is estimated from"
    )
    parser.add_argument("--bins", type=int, default=5, help="quantile bins of difficulty")
    parser.add_argument(
        "--budget", type=float, help="tokens per problem, on average; default: enough for every run"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the two halves and of the bootstrap"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("fitted/search/fitted.yaml"),
        help="default: fitted/search/fitted.yaml",
    )
    return parser.parse_args(words)


def main() -> None:
    arguments = parsed()
    perform(lambda: show(report(arguments)), " ".join(map(str, arguments.folders)))
