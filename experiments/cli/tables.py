"""Tables as people read them: on a terminal, in Markdown, and as a page of HTML that needs no other
file."""

from __future__ import annotations

import csv
import html
import io
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

WIDTH, NOTE = 80, 100
"""Columns of a terminal that does not say how wide it is; the most of a note's line."""
LABEL, CELL = 0.55, 0.425
"""The most of the width for a line of a cell in the first column and in others; longer ones are
broken."""
SHORT = 20
"""Characters of a cell of a page that stays on one line."""
FORMATS = ("text", "markdown", "latex", "csv")
"""What `--format` can be; csv has other columns than the tables."""
NAMED = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater"}
LATEX = str.maketrans(
    {"\n": " "}
    | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {sign: rf"\text{name}{{}}" for sign, name in NAMED.items()}
)
"""Signs that LaTeX would take for its own."""
RESULTS = ("accuracy", "difference")
"""Columns that stay, even where all lines have the same."""


@dataclass(frozen=True)
class Table:
    """title, the names of the columns, and lines of cells. notes: what stands below it."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """For a terminal, as wide as it is. What is the same in every line is told once; a wider
        table becomes several, each with the first column."""
        width = terminal_width()
        columns = list(zip(self.columns, *self.lines, strict=True))
        several = len(self.lines) > 1
        alike = [c for c in columns[1:] if several and c[0] not in RESULTS and len({*c[1:]}) == 1]
        notes = list(self.notes)
        if alike:
            values = "; ".join(f"{name}: {value}" for name, value, *_ in alike)
            notes.insert(0, f"in every row: {values}")
        differing = [column for column in columns if column not in alike]
        parts = [self.title] if self.title else []
        if len(differing) > 1:
            parts += [_aligned(block, width) for block in _blocks(differing, width)]
        parts += [textwrap.fill(note, min(width, NOTE)) for note in notes]
        return "\n\n".join(parts)

    def markdown(self) -> str:
        """The title, unless it is empty, the table and the notes."""
        cells = [
            [cell.replace("|", "\\|").replace("\n", " ") for cell in line]
            for line in (self.columns, *self.lines)
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        head, *rest = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
        rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
        text = "\n".join([head, f"|{rule}|", *rest])
        return "\n\n".join([*([f"**{self.title}**"] if self.title else []), text, *self.notes])

    def latex(self) -> str:
        """A tabular of the package booktabs; title and notes are comments."""
        head, *rest = [
            " & ".join(cell.translate(LATEX) for cell in line) + r" \\"
            for line in (self.columns, *self.lines)
        ]
        begin = rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}"
        lines = [begin, r"\toprule", head, r"\midrule", *rest, r"\bottomrule", r"\end{tabular}"]
        notes = [f"% {' '.join(note.split())}" for note in self.notes]
        return "\n".join([f"% {self.title}", *lines, *notes])

    def html(self) -> str:
        lines = [_html_row(self.columns, "th"), *(_html_row(cells, "td") for cells in self.lines)]
        notes = [f"<p>{html.escape(note)}</p>" for note in self.notes]
        return "\n".join(
            [f"<h2>{html.escape(self.title)}</h2>", "<table>", *lines, "</table>", *notes]
        )


def terminal_width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


def as_typed(value: Any) -> Any:
    r"""A setting's value, its texts with `\n` and `\t` for line breaks and tabs, as they are
    typed."""
    if isinstance(value, list):
        return list(map(as_typed, value))
    if isinstance(value, str):
        return value.replace("\n", r"\n").replace("\t", r"\t")
    return value


def _broken(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width) or [""]


def _width(column: Sequence[str], width: int) -> int:
    return max(len(line) for cell in column for line in _broken(cell, width))


def _limits(width: int) -> tuple[int, int]:
    return max(1, int(width * LABEL)), max(1, int(width * CELL))


def _blocks(columns: Sequence[Sequence[str]], width: int) -> Iterator[list[Sequence[str]]]:
    """The columns in groups that fit a terminal, each with the first column."""
    first, *others = columns
    of_label, of_cell = _limits(width)
    label_width = _width(first, of_label)
    block = [first]
    for column in others:
        rest_width = sum(_width(c, of_cell) + 2 for c in (*block[1:], column))
        if len(block) > 1 and label_width + rest_width > width:
            yield block
            block = [first]
        block.append(column)
    yield block


def _aligned(columns: Sequence[Sequence[str]], width: int) -> str:
    """Columns as lines: the first and those of long texts to the left, the others to the right."""
    of_label, of_cell = _limits(width)
    widths = [_width(columns[0], of_label), *(_width(column, of_cell) for column in columns[1:])]
    sides = [str.ljust if max(map(len, column)) > of_cell else str.rjust for column in columns[1:]]
    lines = []
    for label, *cells in zip(*columns, strict=True):
        broken = [_broken(label, of_label), *(_broken(cell, of_cell) for cell in cells)]
        for parts in zip_longest(*broken, fillvalue=""):
            first, *others = parts
            rest = [put(cell, w) for put, cell, w in zip(sides, others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *rest]).rstrip())
    return "\n".join(lines)


def _html_row(cells: Sequence[str], tag: str) -> str:
    starts = [f'{tag} class="long"' if len(cell) > SHORT else tag for cell in cells]
    inner = [
        f"<{start}>{html.escape(cell)}</{tag}>" for start, cell in zip(starts, cells, strict=True)
    ]
    return f"<tr>{''.join(inner)}</tr>"


STYLE = (
    "body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:80em;padding:0 1em}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.25em "
    ".5em;border-bottom:1px solid #ccc;text-align:right;vertical-align:bottom}"
    "td{white-space:nowrap}td.long{white-space:normal;overflow-wrap:anywhere;min-width:12em}"
    "td:first-child,th:first-child{text-align:left}"
)


def page(title: str, tables: Sequence[Table], svg: str | None = None) -> str:
    """One page that needs no network. svg: a picture below the first table."""
    parts = [table.html() for table in tables]
    if svg:
        parts.insert(1, svg)
    head = (
        '<!DOCTYPE html>\n<html lang="en"><meta '
        f'charset="utf-8"><title>{html.escape(title)}</title>'
    )
    return "\n".join(
        [f"{head}<style>{STYLE}</style>", f"<h1>{html.escape(title)}</h1>", *parts, "</html>\n"]
    )


def labelled(rows: Sequence[tuple[str, str]]) -> str:
    """A line for each (label, value), indented and aligned."""
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"  {label:<{width}}  {value}" for label, value in rows)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each row, a column for each key; nested keys are joined by dots."""
    lines = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            cells |= _flat(value, f"{prefix}{key}.")
        else:
            listed = isinstance(value, list | tuple)
            cells[f"{prefix}{key}"] = " ".join(map(str, value)) if listed else value
    return cells


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def points(value: float) -> str:
    """A difference of two percentages."""
    return f"{100 * value:+.1f}"


def amount(value: float | None) -> str:
    """A number in at most three digits and a unit: 12.3k, 4.56G; - where it is not known."""
    if value is None:
        return "-"
    for unit in ("", "k", "M", "G", "T", "P"):
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}E"


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"
