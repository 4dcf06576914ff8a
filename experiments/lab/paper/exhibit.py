"""A table or figure of a paper: rows with our values and the paper's. All of them are printed and
drawn in one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil
from pathlib import Path
from typing import Any

from ttc.errors import InvalidInput

Row = dict[str, Any]
COLUMNS = 2
"""Figures beside each other in a plot."""
WIDTH = 0.5
"""Of the space between two texts along the bottom, the part that their points take."""
FEW = 10
"""Up to so many values along the bottom, each has a tick."""
LINE = {
    "marker": "o",
    "markersize": 5,
    "markeredgecolor": "white",
    "markeredgewidth": 0.6,
    "zorder": 4,
}
POINT = {
    "marker": "D",
    "markersize": 8,
    "markeredgecolor": "black",
    "linestyle": "none",
    "zorder": 3,
}
"""How our values and the paper's are drawn."""


@dataclass(frozen=True)
class Lines:
    """What a plot of an exhibit shows: the columns `ours` as lines, the columns `paper` as points
    of the same colour.

    x: the column along the bottom; texts are drawn as places. by: the column whose values are lines
    of their own.
    log: the axes with a logarithmic scale. label: what stands at the left.
    """

    x: str
    ours: tuple[str, ...] = ("ours",)
    paper: tuple[str, ...] = ("paper",)
    by: str | None = None
    log: str = ""
    label: str = ""


@dataclass(frozen=True)
class Exhibit:
    """name: as the paper has it, such as "Table 6.2". rows: a value of each column; None where
    there is none."""

    name: str
    title: str
    rows: Callable[[], list[Row]]
    lines: Lines | None = None
    note: str = ""

    def markdown(self) -> str:
        """The rows as a table below a heading, and the note."""
        rows = self.rows()
        head = list(rows[0])
        lines = [
            f"## {self.name}: {self.title}",
            "",
            f"| {' | '.join(head)} |",
            "|---" * len(head) + "|",
        ]
        lines += [f"| {' | '.join(_cell(row[column]) for column in head)} |" for row in rows]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def draw(exhibits: Sequence[Exhibit], file: Path) -> None:
    """Draw all exhibits that have lines into one picture. Raises InvalidInput without
    matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise InvalidInput("a plot needs matplotlib: pip install -e '.[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [(exhibit, exhibit.lines) for exhibit in exhibits if exhibit.lines is not None]
    down = ceil(len(drawn) / COLUMNS)
    figure, axes = pyplot.subplots(down, COLUMNS, figsize=(8 * COLUMNS, 4.2 * down), squeeze=False)
    for axis, (exhibit, lines) in zip(axes.flat, drawn, strict=False):
        _draw_one(axis, exhibit.rows(), lines)
        axis.set_title(f"{exhibit.name}: {exhibit.title}", fontsize=10, wrap=True)
    for axis in axes.flat[len(drawn) :]:
        axis.axis("off")
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110, metadata={"Software": None} if file.suffix == ".png" else None)
    pyplot.close(figure)


def _draw_one(axis: Any, rows: list[Row], lines: Lines) -> None:
    names = list(dict.fromkeys(row[lines.x] for row in rows))
    texts = not all(isinstance(name, int | float) for name in names)
    groups = list(dict.fromkeys(row[lines.by] for row in rows)) if lines.by else [None]
    columns, count = list(zip_longest(lines.ours, lines.paper)), 0
    # at a text, one line's points stand right of another's
    apart = WIDTH / (len(groups) * len(columns))
    for group in groups:
        of_group = [row for row in rows if lines.by is None or row[lines.by] == group]
        for ours, paper in columns:
            style = {"color": f"C{count % 10}", **({"linestyle": "none"} if texts else {})}
            places = [
                names.index(row[lines.x]) + apart * count if texts else row[lines.x]
                for row in of_group
            ]
            points = list(zip(places, of_group, strict=True))
            if ours is not None:
                _draw_line(
                    axis,
                    points,
                    ours,
                    _label(group, "ours" if len(lines.ours) == 1 else ours),
                    style | LINE,
                )
            if paper is not None:
                _draw_line(axis, points, paper, _label(group, paper), style | POINT)
            count += 1
    axis.set(xlabel=lines.x, ylabel=lines.label)
    for letter, of_axis, scale in (
        ("x", axis.xaxis, axis.set_xscale),
        ("y", axis.yaxis, axis.set_yscale),
    ):
        if letter in lines.log:
            scale("log")
            of_axis.set_major_formatter("{x:g}")
            of_axis.set_minor_formatter("")
    if texts:
        axis.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
    elif len(names) <= FEW and (
        "x" not in lines.log or all(isinstance(name, int) for name in names)
    ):
        axis.set_xticks(names, [f"{name:,}" for name in names])
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    axis.grid(alpha=0.3)


def _label(group: object, column: str) -> str:
    return column if group is None else f"{group}, {column}"


def _draw_line(
    axis: Any, points: list[tuple[float, Row]], column: str, label: str, style: dict[str, Any]
) -> None:
    known = sorted((x, row[column]) for x, row in points if row[column] is not None)
    if known:
        axis.plot(*zip(*known, strict=True), label=label, **style)
