"""The searches that looked best at equal budgets, again on more problems and over some seeds, beside
one greedy answer: is one of them better than another by more than chance?

Each run is one of `experiments.run`, in a folder that is kept: the same command goes on where it was
stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import experiments.runs.problem_loop  # noqa: F401  the record names the code that a run uses
from experiments.eval.compare.figures import pair_figures, row_figures
from experiments.eval.compare.rows import ComparedRow
from experiments.eval.compare.show import draw as accuracy_against_compute
from experiments.lab.bench.dtypes import default_dtype
from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.finished import FinishedRun
from experiments.runs.provenance import provenance
from ttc.errors import InvalidInput

SEARCHES = {
    "greedy": ("greedy", "search=greedy verifier=none search.max_tokens=64"),
    "rebase": ("REBASE, n=16", "search=rebase"),
    "beam_search": ("beam search, 4 x 4", "search=beam_search"),
    "particle_gibbs": ("particle Gibbs, 2 x 8", "search=particle_gibbs"),
    "particle_filter": ("particle filter, n=16", "search=particle_filter"),
    "best_of_n": ("best of 18", "search=best_of_n search.n=18 search.max_tokens=64"),
}
"""For each search: the name of its row, and what its command sets: the defaults, and as many whole
samples as the budget pays for."""

LEVEL = 0.05


def run(
    *,
    problems: int = 500,
    seeds: Sequence[int] = (0, 1, 2),
    budget: Annotated[int, "generated tokens of a problem"] = 360,
    searches: Annotated[Sequence[str], "names with commas; default: all of the table"] = tuple(
        SEARCHES
    ),
    runs: Annotated[Path, "the folder of the runs"] = Path("outputs/best_searches"),
    out: Path = RESULTS / "best_searches.json",
) -> None:
    """Make the runs that are missing, print the tables and write the figures. searches: of `SEARCHES`;
    raises InvalidInput for others."""
    if unknown := [name for name in searches if name not in SEARCHES]:
        raise InvalidInput(
            f"--searches {unknown[0]!r} is unknown; use some of {','.join(SEARCHES)}"
        )
    limits = [f"dataset.size={problems}", f"run.max_generated_tokens={budget}"]
    rows = [
        ComparedRow(label, made_runs(name, [*limits, *search.split()], seeds, runs))
        for name, (label, search) in SEARCHES.items()
        if name in searches
    ]
    words = f"--problems {problems} --seeds {','.join(map(str, seeds))} --budget {budget}"
    if set(searches) != set(SEARCHES):
        words += f" --searches {','.join(searches)}"
    record = provenance(
        f"python -m experiments.bench best_searches {words}",
        model=f"smollm2-135m, {default_dtype()}, its real weights",
    )
    record |= {"budget": budget, "rows": [], "pairs": pair_figures(rows, every=True)}
    settings = dict(SEARCHES.values())
    for row in rows:
        figures = row_figures(row)
        del figures["folders"]
        record["rows"].append(figures | {"settings": settings[row.name]})
    save(record, out)
    print(table(record))


def made_runs(
    name: str, settings: Sequence[str], seeds: Sequence[int], folder: Path
) -> list[FinishedRun]:
    """A run of `experiments.run` for each seed; each goes on where it was stopped."""
    words = [f"run.output_dir={folder}", f"run.name='{name}-seed${{run.seed}}'", *settings]
    words += [f"run.seed={','.join(map(str, seeds))}"]
    subprocess.run([sys.executable, "-m", "experiments.run", "-m", *words], check=True)
    return [FinishedRun.load(folder / f"{name}-seed{seed}") for seed in seeds]


def draw(figures: Path, out: Path) -> None:
    """Plot accuracy against tokens."""
    rows = json.loads(figures.read_text(encoding="utf-8"))["rows"]
    accuracy_against_compute([row | {"flops": None} for row in rows], out)


def table(record: dict[str, Any]) -> str:
    """Each search, the best first, and each two of them, as Markdown."""
    return f"{accuracies(record)}\n\n{differences(record)}"


def accuracies(record: dict[str, Any]) -> str:
    """Each search, the best first."""
    lines = [
        "| search | accuracy | 95% interval | tokens per problem |",
        "|---|---|---|---|",
    ]
    for row in sorted(record["rows"], key=lambda row: -row["accuracy"]):
        low, high = row["accuracy_95"]
        lines.append(
            f"| {row['row']} | {row['accuracy']:.1%} | {low:.1%} to {high:.1%} "
            f"| {row['generated_tokens']:.0f} |"
        )
    return "\n".join(lines)


def differences(record: dict[str, Any]) -> str:
    """Each two searches, the better one first, by their distance."""
    lines = [
        "| search | against | difference | 95% interval | p | p, Holm |",
        "|---" * 6 + "|",
    ]
    for pair in sorted(record["pairs"], key=lambda pair: -abs(pair["difference"])):
        names, gap, ends = [pair["row"], pair["against"]], pair["difference"], pair["difference_95"]
        if gap < 0:
            names, gap, ends = names[::-1], -gap, [-end for end in ends[::-1]]
        mark = "**" if pair["p_holm"] <= LEVEL else ""
        low, high = (100 * end for end in ends)
        lines.append(
            f"| {names[0]} | {names[1]} | {mark}{100 * gap:+.1f}{mark} | {low:+.1f} to {high:+.1f} "
            f"| {pair['p']:.2g} | {pair['p_holm']:.2g} |"
        )
    return "\n".join(lines)
