"""A comparison as tables, files and a plot."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.cli.labels import labels, short_keys, short_value, telling_settings
from experiments.cli.tables import Table, amount, as_csv, as_typed, p_value, page, percent, points
from experiments.eval.compare.figures import frontier, pair_figures, repeat_figures, row_figures
from experiments.eval.compare.rows import (
    ComparedRow,
    check_comparable,
    differing_settings,
    load_rows,
    short_place,
    some_of,
)
from experiments.runs.records import as_json
from experiments.runs.screen import as_bytes
from experiments.runs.summary import counts_line
from ttc.errors import InvalidInput, refusing

Figures = dict[str, Any]

ABOUT = (
    "Accuracy with its 95% interval: Wilson's for single runs, from the standard error of the "
    "questions' means for several seeds, clustered where questions share a source. A question in "
    "several orders of its choices counts once, with their mean. Tokens, FLOPs "
    "and seconds are per problem; FLOPs are 2 x parameters x tokens."
)
ABOUT_PAIRS = (
    "Differences in percentage points over the same problems. p: McNemar's test for single runs, "
    "else the same test of the problems' mean differences. The interval goes with p: it leaves out "
    "0 exactly where p is below 0.05. Holm adjusts p for the number of comparisons. Detectable: "
    "the true difference that such a comparison finds with 80% probability."
)
LEGEND = 120
"""Characters of a line of a plot's legend."""
COINCIDE = 0.005
"""The share of an axis within which two points are one to the eye."""
MARKERS = "osD^vP"
"""One for each ten rows, as there are ten colours."""


def remarks(name: str, figures: Figures) -> Iterator[str]:
    """What is to be told of a row: problems without a result, and branches that are not as they
    should be."""
    if figures["left"]:
        yield f"{name}: problems left to solve, which count nowhere: {figures['left']}."
    if counts := counts_line(figures["branches"]):
        yield f"{name}: branches: {counts}."


def comparison(rows: Sequence[ComparedRow]) -> Figures:
    """All figures of a comparison, as JSON has them."""
    return {
        "about": [ABOUT, ABOUT_PAIRS],
        "rows": [row_figures(row) for row in rows],
        "differences": pair_figures(rows),
        "repeats": repeat_figures(rows),
        "settings": differing_settings(rows),
    }


def tables(figures: Figures, settings: bool = True) -> list[Table]:
    """settings: whether the settings that differ have a table, too."""
    rows = figures["rows"]
    optional = [
        _accuracy(rows),
        _repeats(figures["repeats"]),
        _samples(rows),
        _differences(figures["differences"]),
        _settings(figures["settings"]) if settings else None,
    ]
    return [table for table in optional if table is not None]


def compared(folders: Sequence[Path], names: Sequence[str]) -> str:
    """What a sweep says of its runs: how they differ from the first, or why that cannot be said.

    names: what the sweep calls its runs, seeds left aside, one for each folder.
    """
    command = f"python -m experiments.compare {shlex.join(map(str, short_place(folders)))}"
    try:
        rows = _called(load_rows(folders), dict(zip(folders, names, strict=True)))
        check_comparable(rows)
        differences = _differences(pair_figures(rows))
    except InvalidInput as error:
        return f"not compared: {error}\nthe command: {command}"
    again = _repeats(repeat_figures(rows))
    texts = [table.text() for table in (again, differences) if table is not None]
    return "\n\n".join([*texts, f"costs, pass@k, files and a plot: {command}"])


def _called(rows: Sequence[ComparedRow], names: Mapping[Path, str]) -> list[ComparedRow]:
    """The rows under these names, where the names tell them apart."""
    titles = [names[row.runs[0].folder] for row in rows]
    if not all(titles) or len(set(titles)) < len(titles):
        return list(rows)
    return [ComparedRow(name, row.runs) for name, row in zip(titles, rows, strict=True)]


def write(
    figures: Figures, csv: Path | None, json: Path | None, html: Path | None, plot: Path | None
) -> list[Path]:
    rows = figures["rows"]
    files = [file for file in (csv, json, html, plot) if file is not None]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    if csv is not None:
        csv.write_text(csv_text(figures), encoding="utf-8")
    if json is not None:
        json.write_text(as_json(figures), encoding="utf-8")
    if html is not None:
        html.write_text(page("Runs side by side", tables(figures), _svg(rows)), encoding="utf-8")
    if plot is not None:
        draw(rows, plot)
    return files


def csv_text(figures: Figures) -> str:
    """A line for each row: the settings in which rows differ, figures, the difference from the
    first."""
    rows = figures["rows"]
    first = {
        pair["row"]: pair for pair in figures["differences"] if pair["against"] == rows[0]["row"]
    }
    kept = (
        *("against", "difference", "difference_95", "correlation"),
        *("test", "p", "p_holm", "detectable"),
    )
    lines = []
    for row in rows:
        pair = first.get(row["row"], {})
        settings = {key: as_typed(value) for key, value in figures["settings"][row["row"]].items()}
        lines.append({"row": row["row"], **settings, **row, **{key: pair.get(key) for key in kept}})
    return as_csv(lines)


def draw(rows: Sequence[Figures], out: Path | io.StringIO, form: str | None = None) -> None:
    """Accuracy against compute, with intervals, and the frontier: the rows that no cheaper one
    reaches.

    Compute is FLOPs per problem where every row knows them, else tokens. Raises InvalidInput
    without matplotlib.
    """
    needs = "a plot needs matplotlib: pip install matplotlib, or leave --plot out"
    with refusing(ImportError, needs):
        import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    costs, what = [row["flops"] for row in rows], "FLOPs per problem"
    if None in costs:
        costs = [row["generated_tokens"] + row["verifier_tokens"] for row in rows]
        what = "generated and verifier tokens per problem"
    heights = [100 * row["accuracy"] for row in rows]
    marks = list(zip(costs, heights, strict=True))
    names = _distinct_names(rows, marks)
    across = max(1, LEGEND // (max(map(len, names)) + 6))
    legend_height = 0.17 * math.ceil(len(rows) / across)
    figure, axis = pyplot.subplots(figsize=(7, 4.2 + legend_height), layout="constrained")
    for place, (row, cost, height) in enumerate(zip(rows, costs, heights, strict=True)):
        low, high = (100 * end for end in row["accuracy_95"])
        mark: dict[str, Any] = {
            "fmt": MARKERS[place // 10 % len(MARKERS)],
            "color": f"C{place % 10}",
            "label": names[place],
        }
        axis.errorbar(
            cost, height, [[height - low], [high - height]], markersize=5, capsize=3, **mark
        )
    figure.legend(loc="outside lower center", ncols=across, fontsize=7, frameon=False)
    best = zip(*(marks[i] for i in frontier(marks)), strict=True)
    axis.plot(*best, color="grey", linewidth=1, zorder=0)
    axis.set(
        xlabel=what,
        ylabel="accuracy, %",
        title="accuracy against compute; the line is the frontier",
    )
    if min(costs) > 0 and max(costs) > 5 * min(costs):
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
        axis.xaxis.set_minor_formatter(lambda value, _: amount(value))
    axis.xaxis.set_major_formatter(lambda value, _: amount(value))
    try:
        # a suffix that matplotlib does not know
        with refusing(ValueError, f"--plot={out}: {{error}}"):
            figure.savefig(out, dpi=120, format=form)
    finally:
        pyplot.close(figure)


def _distinct_names(rows: Sequence[Figures], points: Sequence[tuple[float, float]]) -> list[str]:
    """The rows' names in the legend. One whose point lies on that of an earlier row says so."""
    costs, heights = zip(*points, strict=True)
    wide = COINCIDE * max(max(costs) - min(costs), 1e-9)
    high = COINCIDE * max(max(heights) - min(heights), 1e-9)
    names: list[str] = []
    for place, (row, (x, y)) in enumerate(zip(rows, points, strict=True)):
        near = [i for i in range(place) if abs(costs[i] - x) < wide and abs(heights[i] - y) < high]
        names.append(f"{row['row']} (at {rows[near[0]]['row']})" if near else row["row"])
    return names


def _svg(rows: Sequence[Figures]) -> str | None:
    text = io.StringIO()
    try:
        draw(rows, text, "svg")
    except InvalidInput:  # a page without a picture is a page
        return None
    return text.getvalue()[text.getvalue().index("<svg") :]


# ---------------------------------------------------------------- tables


def _accuracy(rows: Sequence[Figures]) -> Table:
    columns = (
        *("run", "accuracy", "95% interval", "strict", "problems", "seeds", "failed"),
        *("generated", "verifier", "FLOPs", "seconds", "KV"),
    )
    lines = []
    for row in rows:
        interval = " to ".join(map(percent, row["accuracy_95"]))
        shares = (percent(row["accuracy"]), interval, percent(row["accuracy_strict"]))
        counts = [str(row[name]) for name in ("problems", "runs", "failed")]
        spent = ("generated_tokens", "verifier_tokens", "flops", "seconds")
        costs = [amount(row[name]) for name in spent]
        kv = "-" if row["kv_peak_bytes"] is None else as_bytes(row["kv_peak_bytes"])
        lines.append([row["row"], *shares, *counts, *costs, kv])
    notes = [ABOUT, *(text for row in rows for text in remarks(row["row"], row))]
    return Table("Accuracy and cost", columns, lines, notes)


def _repeats(repeats: Sequence[Figures]) -> Table | None:
    """Whether runs of one configuration and seed gave the same."""
    columns = ("run", "against", "problems", "same answers", "same texts", "other answers")
    lines = []
    for repeat in repeats:
        problems = repeat["problems"]
        texts = "-" if repeat["same_texts"] is None else f"{repeat['same_texts']} of {problems}"
        answers = f"{repeat['same_answers']} of {problems}"
        others = some_of(repeat["other_answers"]) or "-"
        names = (repeat["row"], repeat["against"])
        lines.append([*names, str(problems), answers, texts, others])
    return Table("The same configuration, run again", columns, lines) if lines else None


def _samples(rows: Sequence[Figures]) -> Table | None:
    ks = sorted({int(k) for row in rows for k in row["pass_at_k"]})
    if len(ks) < 2:
        return None

    def cells(row: Figures, key: str) -> list[str]:
        return [percent(row[key][str(k)]) if str(k) in row[key] else "-" for k in ks]

    columns = ["run", *(f"pass@{k}" for k in ks), *(f"maj@{k}" for k in ks)]
    lines = [[row["row"], *cells(row, "pass_at_k"), *cells(row, "maj_at_k")] for row in rows]
    note = (
        "Over all subsets of k of a problem's branches; in maj@k ties count in part. The branches "
        "of a step-wise search are no independent samples."
    )
    return Table("Samples", columns, lines, [note])


def _differences(pairs: Sequence[Figures]) -> Table | None:
    columns = (
        *("run", "against", "difference", "95% interval", "correlation"),
        *("test", "p", "p, Holm", "detectable"),
    )
    lines = []
    for pair in pairs:
        gap = (points(pair["difference"]), " to ".join(map(points, pair["difference_95"])))
        correlation = "-" if pair["correlation"] is None else f"{pair['correlation']:.2f}"
        test = (pair["test"], p_value(pair["p"]), p_value(pair["p_holm"]))
        detectable = "-" if pair["detectable"] is None else f"{100 * pair['detectable']:.1f}"
        lines.append([pair["row"], pair["against"], *gap, correlation, *test, detectable])
    return Table("Differences", columns, lines, [ABOUT_PAIRS]) if lines else None


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> Table | None:
    rows = list(settings.values())
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if labels(rows) == list(settings) and set(keys) == set(telling_settings(rows)):
        return None  # the labels say it all
    if not keys:
        return None
    lines = []
    for name, row in settings.items():
        values = [short_value(key, row[key]) if key in row else "-" for key in keys]
        lines.append([name, *values])
    return Table("Settings that differ", ("run", *short_keys(keys).values()), lines)
