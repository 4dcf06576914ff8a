"""`python -m experiments.select outputs/NAME`: score every selection rule on the records of a run,
without a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from experiments.cli.output import say, show
from experiments.cli.printable import printable
from experiments.cli.tables import Table
from experiments.runs.reading import read_fingerprint, read_records
from experiments.runs.stats import wilson
from experiments.runs.summary import counted
from search.selection import Measure, Rule, Sample, all_rules
from ttc.checks import check_known
from ttc.errors import InvalidInput, TTCError, number_of
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
    it failed."""

    id: str
    samples: list[Sample]
    correct: list[bool]
    tokens: list[int]

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Solved:
        branches = sorted(counted(record), key=lambda branch: branch["path"])
        samples = [Sample.of_record(branch) for branch in branches]
        return cls(
            record["id"], samples, [b["correct"] for b in branches], [b["tokens"] for b in branches]
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


def problems_left(folder: Path, solved: Collection[str]) -> int:
    return len(read_fingerprint(folder).get("data", {}).keys() - set(solved))


def usable(rules: Sequence[Rule], problems: Sequence[Solved]) -> tuple[list[Rule], dict[str, str]]:
    """The rules whose field some candidate has; why the others cannot be scored."""
    samples = [sample for problem in problems for sample in problem.samples]
    known = {
        field for field in MISSING if any(getattr(sample, field) is not None for sample in samples)
    }
    missing = {
        rule.name: MISSING[rule.needs] for rule in rules if rule.needs not in {"answer", *known}
    }
    return [rule for rule in rules if rule.name not in missing], missing


def subsets(problem: Solved, n: int, draws: int, seed: int) -> Iterator[list[int]]:
    """The candidates that a rule chooses among: the first n, or for `draws` above 0 that many
    random subsets of n.

    A subset keeps the order of the index. A problem with no more than n candidates has one subset,
    all of them.
    """
    count = len(problem.samples)
    if draws == 0 or n >= count:
        yield list(range(min(n, count)))
        return
    rng = np.random.default_rng(random_key(seed, problem.id, n))
    for _ in range(draws):
        yield sorted(rng.choice(count, n, replace=False).tolist())


def score(
    problems: Sequence[Solved], rules: Sequence[Rule], draws: int = 0, seed: int = 0
) -> list[dict[str, Any]]:
    """Accuracy of each rule for each n up to the largest number of candidates, with Wilson's 95%
    interval.

    A problem counts with the share of its subsets in which the rule chooses a right candidate, so
    that an interval over several subsets is rather too wide than too narrow. One that failed counts
    as wrong. tokens: the mean number of generated tokens of the n candidates.
    """
    rows = []
    for n in range(1, max(len(problem.samples) for problem in problems) + 1):
        shares: dict[str, list[float]] = {
            name: [] for name in [*(rule.name for rule in rules), ANY]
        }
        tokens = []
        for problem in problems:
            chosen = list(subsets(problem, n, draws, seed))
            tokens.append(sum(problem.tokens[i] for subset in chosen for i in subset) / len(chosen))
            right = [[problem.correct[i] for i in subset] for subset in chosen]
            shares[ANY].append(sum(map(any, right)) / len(chosen))
            for rule in rules:
                hits = 0.0
                for subset, marks in zip(chosen, right, strict=True):
                    chances = rule.chances([problem.samples[i] for i in subset])
                    hits += sum(chance for chance, mark in zip(chances, marks, strict=True) if mark)
                shares[rule.name].append(hits / len(chosen))
        for name, values in shares.items():
            figures = {
                "accuracy": sum(values) / len(values),
                "accuracy_95": list(wilson(sum(values), len(values))),
            }
            rows.append({"rule": name, "n": n, **figures, "tokens": sum(tokens) / len(tokens)})
    return rows


# ---------------------------------------------------------------- what is shown


def shown_numbers(last: int) -> list[int]:
    """The values of n in a table: all up to 8, then powers of two and the last."""
    return [n for n in range(1, last + 1) if last <= 8 or n == last or n & (n - 1) == 0]


def cells(rows: Sequence[dict[str, Any]], numbers: Sequence[int]) -> list[list[str]]:
    by_rule = {(row["rule"], row["n"]): row for row in rows}
    names = list(dict.fromkeys(row["rule"] for row in rows))
    lines = [["rule", *(f"n={n}" for n in numbers), f"95% interval, n={numbers[-1]}"]]
    for name in names:
        low, high = by_rule[name, numbers[-1]]["accuracy_95"]
        accuracies = [f"{100 * by_rule[name, n]['accuracy']:.1f}" for n in numbers]
        lines.append([name, *accuracies, f"{100 * low:.1f} to {100 * high:.1f}"])
    lines.append(["tokens", *(f"{by_rule[names[0], n]['tokens']:.0f}" for n in numbers), ""])
    return lines


def plain(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in padded)


def about(folder: Path, problems: Sequence[Solved], draws: int, seed: int) -> list[str]:
    """What the figures are of."""
    counts = [len(problem.samples) for problem in problems]
    how = "the first n by index"
    if draws:
        how = f"the mean over {draws} random subsets of n, seed {seed}"
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
    return lines


def report(arguments: argparse.Namespace) -> str:
    if arguments.draws < 0:
        raise InvalidInput(f"--draws={arguments.draws} must be 0 (the first n candidates) or more")
    problems = load(arguments.folder)
    rules = all_rules(arguments.measure, arguments.window, arguments.temperature)
    names = [rule.name for rule in rules]
    asked = arguments.rules or names
    for name in asked:
        check_known(name, names, f"--rules: {name!r} is unknown")
    rules, missing = usable([rule for rule in rules if rule.name in asked], problems)
    for name in arguments.rules or ():
        if name in missing:
            raise InvalidInput(f"--rules: {name} cannot be scored: {missing[name]}")
    rows = score(problems, rules, arguments.draws, arguments.seed)
    notes = about(arguments.folder, problems, arguments.draws, arguments.seed)
    if left := problems_left(arguments.folder, {problem.id for problem in problems}):
        notes.append(f"problems left to solve, which count nowhere: {left}")
    if arguments.format == "json":
        return json.dumps({"about": notes, "not_scored": missing, "rows": rows}, indent=1)
    lines = cells(rows, shown_numbers(max(row["n"] for row in rows)))
    reasons: dict[str, list[str]] = {}
    for name, why in missing.items():
        reasons.setdefault(why, []).append(name)
    left_out = [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
    if arguments.format == "markdown":
        return "\n\n".join([*notes, Table("", lines[0], lines[1:]).markdown(), *left_out])
    return "\n".join(
        [*notes, "", plain(lines), *(["", "not scored:"] if left_out else []), *left_out]
    )


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.select",
        description="Score every rule that chooses among the candidates of a run, for every "
        "number of candidates.",
    )
    parser.add_argument("folder", type=Path, help="a run's folder, as outputs/NAME")
    parser.add_argument(
        "--rules", type=lambda text: text.split(","), help="some of them, with commas; default: all"
    )
    parser.add_argument(
        "--draws",
        type=int,
        default=0,
        help="random subsets of n candidates; default: 0, the first n",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random subsets")
    parser.add_argument(
        "--measure", choices=get_args(Measure), default="lowest", help="of the confidence votes"
    )
    parser.add_argument(
        "--window", type=int, default=2048, help="tokens of a group, for the confidence votes"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.1, help="of soft best-of-n, in units of the score"
    )
    parser.add_argument(
        "--format", choices=("table", "markdown", "json"), default="table", help="json has every n"
    )
    parser.add_argument("--out", type=Path, help="a file to write to, in place of the screen")
    return parser.parse_args(words)


def main() -> None:
    arguments = parsed()
    try:
        text = report(arguments)
        if arguments.out is None:
            show(text)
        else:
            arguments.out.write_text(text + "\n", encoding="utf-8")
            say(f"written: {arguments.out}")
    except (TTCError, OSError) as error:
        raise SystemExit(printable(f"error: {error}")) from None
