"""A leaderboard's rows, tables and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.cli.tables import Table, amount, as_csv, as_typed, page, percent
from experiments.eval.cells import Cell
from experiments.eval.compare.figures import row_figures
from experiments.eval.compare.rows import OF_A_SEED, ComparedRow, prompt_settings
from experiments.eval.compare.show import Figures, remarks
from experiments.eval.predictions import RULES, predictions_of
from experiments.pages.leaderboard.plan import Leaderboard
from experiments.runs.finished import FinishedRun
from experiments.runs.records import as_json
from experiments.runs.summary import KS, by_question, mean
from ttc.errors import InvalidInput

LABELS = ("model", "dataset", "search", "budget")
ABOUT = (
    "pred_naive@n, pred_weighted@n and pred_maj@n are search-and-learn's: the best score, the "
    "highest total score and most votes among the first n candidates. Tokens and FLOPs are per "
    "problem."
)


def board_rows(plan: Leaderboard, refused: Collection[str] = ()) -> list[Figures]:
    """A row of each cell that has results. refused: the cells whose folders hold those of other
    settings."""
    folders = [(cell, plan.folder / cell.name) for cell in plan.cells if cell.name not in refused]
    return [
        cell_row(cell, FinishedRun.load(folder))
        for cell, folder in folders
        if (folder / "records.jsonl").is_file()
    ]


def cell_row(cell: Cell, run: FinishedRun) -> Figures:
    figures = row_figures(ComparedRow(cell.name, [run]))
    for name in ("row", "runs", "seeds", "folders"):  # of rows over several runs
        del figures[name]
    goes = run.summary.get("made_by", [])
    return {
        "row": cell.title or cell.name,
        **cell.labels,
        "seed": cell.seed,
        "folder": str(run.folder),
        **figures,
        **predictions_right(run),
        "commit": " ".join(dict.fromkeys(str(go["commit"]) for go in goes)) or None,
        "made_by": goes,
        "data_fingerprint": digest(sorted(run.problems.items(), key=str)),
        "prompt_fingerprint": digest(sorted(_prompts(run).items()) or prompt_settings(run)),
        "prompt": next(iter(_prompts(run).values()), None),
        "settings": run.config,
    }


def predictions_right(run: FinishedRun) -> dict[str, float]:
    """The share of problems whose prediction is right, for n = 1, 2, 4, ... candidates."""
    by_problem = {name: predictions_of(record) for name, record in run.records.items()}
    solved = list(filter(None, by_problem.values()))
    if not solved:
        return {}
    shared = [name for name in solved[0] if all(name in predictions for predictions in solved)]

    def right(record: dict[str, Any], column: str) -> bool:
        return by_problem[record["id"]].get(column, (None, False))[1]

    return {
        column: mean(by_question(run.records.values(), partial(right, column=column)))
        for column in shared
    }


def write_predictions(run: FinishedRun, out: Path) -> None:
    """A line per problem as search-and-learn publishes them: question, gold answer, and `\\boxed{}`
    predictions."""
    with out.open("w", encoding="utf-8") as file:
        for name, record in run.records.items():
            line = {
                "unique_id": name,
                "problem": record.get("question"),
                "answer": record.get("gold"),
            }
            line |= {
                key: f"\\boxed{{{answer or ''}}}"
                for key, (answer, _) in predictions_of(record).items()
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def check_folder(plan: Leaderboard) -> None:
    """Raise InvalidInput where the folder has the tables of cells that the plan does not have."""
    file = plan.folder / "leaderboard.json"
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        written = [Path(row["folder"]).name for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return  # there is none, or none that could be read
    names = {cell.name for cell in plan.cells}
    if others := [name for name in written if name not in names]:
        raise InvalidInput(
            f"{file} is a leaderboard of other cells, as {others[0]}, and would be replaced; give "
            "this one another name, or keep the cells and add yours"
        )


def write_board(plan: Leaderboard, rows: Sequence[Figures], errors: dict[str, str]) -> list[Path]:
    """Write leaderboard.md, .csv, .json and .html, and a folder of every cell's predictions."""
    sections = tables(rows, errors)
    files = [plan.folder / f"leaderboard.{form}" for form in ("md", "csv", "json", "html")]
    files[0].write_text(
        "\n\n".join(table.markdown() for table in sections) + "\n", encoding="utf-8"
    )
    lines = [
        {k: v for k, v in row.items() if k not in ("made_by", "prompt")}
        | {"settings": {key: as_typed(value) for key, value in row["settings"].items()}}
        for row in rows
    ]
    files[1].write_text(as_csv(lines), encoding="utf-8")
    whole = {"name": plan.name, "rows": rows, "errors": errors}
    files[2].write_text(as_json(whole), encoding="utf-8")
    files[3].write_text(page(plan.name, sections), encoding="utf-8")
    folder = plan.folder / "predictions"
    folder.mkdir(exist_ok=True)
    for row in rows:
        run = FinishedRun.load(Path(row["folder"]))
        write_predictions(run, folder / f"{run.folder.name}.jsonl")
    return [*files, folder]


def csv_text(rows: Sequence[Figures]) -> str:
    configs = [row["settings"] for row in rows]
    keys = sorted({key for config in configs for key in config} - set(OF_A_SEED))
    apart = [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]
    left = ("made_by", "prompt", "settings")
    lines = []
    for row in rows:
        line = {"row": row["row"]}
        line |= {key: as_typed(row["settings"].get(key)) for key in apart}
        line |= {key: value for key, value in row.items() if key not in left}
        lines.append(line)
    return as_csv(lines)


def tables(rows: Sequence[Figures], errors: Mapping[str, str] | None = None) -> list[Table]:
    """For each data set one table over seeds, best first; then every row with what it was made
    from, and why cells could not be run."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    every = _every(rows)
    failed = [f"The cell {name} could not be run: {why}" for name, why in (errors or {}).items()]
    return [
        *(_over_seeds(name, [r for r in rows if r["dataset"] == name]) for name in names),
        replace(every, notes=[*every.notes, *failed]),
    ]


def _percent_right(rows: Sequence[Figures], prediction: str) -> str:
    if not all(prediction in row for row in rows):
        return "-"
    return percent(sum(row[prediction] for row in rows) / len(rows))


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


def _over_seeds(dataset: str, rows: Sequence[Figures]) -> Table:
    groups: dict[str, list[Figures]] = {}
    for row in rows:
        groups.setdefault(row["row"], []).append(row)
    keys = {key for row in rows for key in row}
    preds = [name for n in KS for rule in RULES if (name := f"pred_{rule}@{n}") in keys]
    lines = []
    for name, group in groups.items():
        figures = row_figures(
            ComparedRow("", [FinishedRun.load(Path(row["folder"])) for row in group])
        )
        interval = " to ".join(map(percent, figures["accuracy_95"]))
        costs = [amount(figures[kind]) for kind in ("generated_tokens", "verifier_tokens", "flops")]
        shares = [_percent_right(group, pred) for pred in preds]
        line = [name, str(len(group)), percent(figures["accuracy"]), interval, *costs, *shares]
        lines.append((figures["accuracy"], line))
    lines.sort(key=lambda scored: -scored[0])
    columns = ("row", "seeds", "accuracy", "95% interval", "generated", "verifier", "FLOPs")
    return Table(dataset, (*columns, *preds), [line for _, line in lines], [ABOUT])


def _every(rows: Sequence[Figures]) -> Table:
    """A line for each run. A row's name tells what its labels differ in, so they are shown where
    all rows have the same."""
    alike = [name for name in LABELS if len({row[name] for row in rows}) == 1 or name == "dataset"]
    figures = ("seed", "accuracy", "strict", "problems", "failed", "commit", "data", "prompt")
    columns = ("row", *alike, *figures)
    lines = []
    for row in rows:
        shares = (percent(row["accuracy"]), percent(row["accuracy_strict"]))
        commits = " ".join(commit[:10] for commit in (row["commit"] or "-").split())
        origin = (commits, row["data_fingerprint"][:8], row["prompt_fingerprint"][:8])
        labels = (row[label] for label in alike)
        lines.append(
            [
                row["row"],
                *labels,
                str(row["seed"]),
                *shares,
                str(row["problems"]),
                str(row["failed"]),
                *origin,
            ]
        )
    notes = ["The folder, settings, versions, machine and a prompt of each: leaderboard.json."]
    notes += [text for row in rows for text in remarks(row["folder"], row)]
    return Table("Every run", columns, lines, notes)


def _prompts(run: FinishedRun) -> dict[str, str]:
    return {name: text for name, record in run.records.items() if (text := record.get("prompt"))}
