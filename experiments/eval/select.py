"""`python -m experiments.select outputs/NAME`: score every selection rule on the records of a run,
without a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cli.command import perform
from experiments.cli.output import show
from experiments.cli.tables import Table
from experiments.runs.reading import read_fingerprint, read_records
from experiments.runs.stats import wilson
from experiments.runs.summary import by_path, counted, means, question_of
from search.selection import Rule, Sample, all_rules
from ttc.errors import InvalidInput, number_of
from ttc.sampling import random_key

ANY = "any right"
"""Not a rule but the bound of all rules: whether any of the n candidates is right (pass@n)."""

MISSING = {
    "score": "no candidate has a score; run a search that asks a verifier",
    "logprob": "the records were written before log-probabilities were kept; run again under "
    "another run.name",
    "self_certainty": "the records hold no statistics; run with search.statistics=true",
    "confidences": "the records hold no statistics; run with search.statistics=true",
}
"""Why a rule's field can be missing, and what to do."""


@dataclass(frozen=True)
class Solved:
    """One problem's candidates in the order of their index, and which of them are right. None, if
    it failed. question: see `question_of`."""

    id: str
    question: str
    samples: list[Sample]
    correct: list[bool]
    tokens: list[int]

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Solved:
        branches = by_path(counted(record))
        return cls(
            record["id"],
            question_of(record),
            [Sample.of_record(branch) for branch in branches],
            [branch["correct"] for branch in branches],
            [branch["tokens"] for branch in branches],
        )


def load(folder: Path) -> list[Solved]:
    """The problems of a run. Raises InvalidInput where there is nothing to choose from."""
    file = folder / "records.jsonl"
    if not file.is_file():
        what = "holds no records.jsonl" if folder.is_dir() else "is no folder"
        raise InvalidInput(
            f"{folder} {what}; give the folder of a run, as outputs/NAME, once a problem is done"
        )
    problems = [Solved.of_record(record) for record in read_records(file)[0].values()]
    if not any(problem.samples for problem in problems):
        raise InvalidInput(f"no record in {file} has a candidate; `error` in each of them says why")
    return problems


def usable(rules: Sequence[Rule], problems: Sequence[Solved]) -> tuple[list[Rule], dict[str, str]]:
    """The rules whose field some candidate has; why the others cannot be scored."""
    samples = [sample for problem in problems for sample in problem.samples]
    absent = {field for field in MISSING if all(getattr(s, field) is None for s in samples)}
    missing = {rule.name: MISSING[rule.needs] for rule in rules if rule.needs in absent}
    return [rule for rule in rules if rule.name not in missing], missing


def subsets(problem: Solved, n: int, draws: int) -> Iterator[list[int]]:
    """The candidates that a rule chooses among: the first n, or for `draws` above 0 that many
    random subsets of n.

    A subset keeps the order of the index. A problem with no more than n candidates has one subset,
    all of them.
    """
    count = len(problem.samples)
    if draws == 0 or n >= count:
        yield list(range(min(n, count)))
        return
    rng = np.random.default_rng(random_key(0, problem.id, n))
    for _ in range(draws):
        yield sorted(rng.choice(count, n, replace=False).tolist())


def score(
    problems: Sequence[Solved], rules: Sequence[Rule], draws: int = 0
) -> list[dict[str, Any]]:
    """Accuracy of each rule for each n up to the largest number of candidates, with Wilson's 95%
    interval.

    A problem counts with the share of its subsets in which the rule chooses a right candidate, so
    that an interval over several subsets is rather too wide than too narrow; so does a question
    with the mean of its orders. One that failed counts as wrong. tokens: the mean number of
    generated tokens of the n candidates.
    """
    rows = []
    for n in range(1, max(len(problem.samples) for problem in problems) + 1):
        shares: dict[str, list[float]] = {rule.name: [] for rule in rules}
        shares[ANY] = []
        tokens = []
        for problem in problems:
            chosen = list(subsets(problem, n, draws))
            tokens.append(sum(problem.tokens[i] for subset in chosen for i in subset) / len(chosen))
            right = [[problem.correct[i] for i in subset] for subset in chosen]
            shares[ANY].append(sum(map(any, right)) / len(chosen))
            for rule in rules:
                hits = 0.0
                for subset, marks in zip(chosen, right, strict=True):
                    chances = rule.chances([problem.samples[i] for i in subset])
                    hits += sum(chance for chance, mark in zip(chances, marks, strict=True) if mark)
                shares[rule.name].append(hits / len(chosen))
        questions = [problem.question for problem in problems]
        for name, each in shares.items():
            values = means(zip(questions, each, strict=True)).values()
            figures = {
                "accuracy": sum(values) / len(values),
                "accuracy_95": list(wilson(sum(values), len(values))),
            }
            rows.append({"rule": name, "n": n, **figures, "tokens": sum(tokens) / len(tokens)})
    return rows


# ---------------------------------------------------------------- what is shown


def table_numbers(last: int) -> list[int]:
    """The values of n in a table: all up to 8, then powers of two and the last."""
    return [n for n in range(1, last + 1) if last <= 8 or n == last or n & (n - 1) == 0]


def table(rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> Table:
    by_rule = {(row["rule"], row["n"]): row for row in rows}
    names = list(dict.fromkeys(row["rule"] for row in rows))
    numbers = table_numbers(max(row["n"] for row in rows))
    lines = []
    for name in names:
        low, high = by_rule[name, numbers[-1]]["accuracy_95"]
        accuracies = [f"{100 * by_rule[name, n]['accuracy']:.1f}" for n in numbers]
        lines.append([name, *accuracies, f"{100 * low:.1f} to {100 * high:.1f}"])
    lines.append(["tokens", *(f"{by_rule[names[0], n]['tokens']:.0f}" for n in numbers), ""])
    columns = ["rule", *(f"n={n}" for n in numbers), f"95% interval, n={numbers[-1]}"]
    return Table("", columns, lines, notes)


def about(folder: Path, problems: Sequence[Solved], draws: int) -> list[str]:
    """What the figures are of."""
    counts = [len(problem.samples) for problem in problems]
    how = f"the mean over {draws} random subsets of n" if draws else "the first n by index"
    lines = [
        f"{folder}: {number_of(len(problems), 'problem')}, up to "
        f"{number_of(max(counts), 'candidate')} each; accuracy in percent, {how}"
    ]
    if none := counts.count(0):
        lines.append(f"problems without a candidate, which count as wrong: {none}")
    if fewer := sum(0 < count < max(counts) for count in counts):
        lines.append(
            f"problems with fewer than {max(counts)} candidates, all of which count where n is "
            f"more: {fewer}"
        )
    ids = read_fingerprint(folder).get("data", {}).keys()
    if left := len(ids - {problem.id for problem in problems}):
        lines.append(f"problems left to solve, which count nowhere: {left}")
    return lines


def report(arguments: argparse.Namespace) -> str:
    folder, draws = arguments.folder, arguments.draws
    if draws < 0:
        raise InvalidInput(f"--draws={draws} must be 0 (the first n candidates) or more")
    problems = load(folder)
    rules, missing = usable(all_rules(temperature=arguments.temperature), problems)
    rows = score(problems, rules, draws)
    notes = about(folder, problems, draws)
    if arguments.format == "json":
        return json.dumps({"about": notes, "not_scored": missing, "rows": rows}, indent=1)
    reasons: dict[str, list[str]] = {}
    for name, why in missing.items():
        reasons.setdefault(why, []).append(name)
    notes += [f"not scored: {', '.join(names)}: {why}" for why, names in reasons.items()]
    return getattr(table(rows, notes), arguments.format)()


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.select",
        description="Score every rule that chooses among the candidates of a run, for every "
        "number of candidates.",
    )
    parser.add_argument("folder", type=Path, help="a run's folder, as outputs/NAME")
    parser.add_argument(
        "--draws",
        type=int,
        default=0,
        help="random subsets of n candidates; default: 0, the first n",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.1, help="of soft best-of-n, in units of the score"
    )
    parser.add_argument(
        "--format", choices=("text", "markdown", "json"), default="text", help="json has every n"
    )
    return parser.parse_args(words)


def main() -> None:
    arguments = parsed()
    perform(lambda: show(report(arguments)), f"a selection from {arguments.folder}")
