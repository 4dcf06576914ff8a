"""The tables of `experiments.lab.bench.search`, and its aims as ratios within one record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NOT_MEASURED = "Not measured yet: `python -m experiments.bench search {}`"
Figures = dict[str, Any]


def steps_table(result: dict[str, Any]) -> str:
    """Milliseconds per token of the first and the second step, each way beside the engine, as a
    Markdown table."""
    if not cases_of(result):
        return NOT_MEASURED.format("steps")
    lines = [
        "| problems x branches | step | entries | engine | against the first at equal length | "
        "`generate` | its time / engine's | vLLM | its time / engine's | linear layers alone | "
        "engine's time / theirs |",
        "|---" * 11 + "|",
    ]
    for problems, ways in cases_of(result).items():
        own = ways.get("engine", {})
        for step in ("first", "second"):
            ms = {way: figures[f"{step}_ms"] for way, figures in ways.items()}
            cells = [f"{problems} x {result['steps']['branches']}", step]
            cells += (
                [f"{own[f'{step}_entries']:.0f}", f"{ms['engine']:.1f} ms"] if own else ["", ""]
            )
            cells.append(
                f"{ms['engine'] / own['first_equal_ms']:.2f}" if own and step == "second" else ""
            )
            for way in ("generate", "vllm"):
                cells += [f"{ms[way]:.1f} ms" if way in ms else "", _ratio(ms, way, "engine")]
            cells += [
                f"{ms['floor']:.1f} ms" if "floor" in ms else "",
                _ratio(ms, "engine", "floor"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cases_of(result: dict[str, Any]) -> dict[int, dict[str, Figures]]:
    """For each number of problems: the figures of each way that was measured."""
    cases: dict[int, dict[str, Figures]] = {}
    for way, figures in result.get("steps", {}).get("ways", {}).items():
        for case in figures["cases"]:
            cases.setdefault(round(case["problems"]), {})[way] = case
    return dict(sorted(cases.items()))


def _ratio(figures: dict[str, float], one: str, other: str) -> str:
    return f"{figures[one] / figures[other]:.2f}" if one in figures and other in figures else ""


def searches_table(result: dict[str, Any]) -> str:
    """Tokens per second and the parts of a decode step of each search, as a Markdown table."""
    if not (rows := result.get("searches", {}).get("rows")):
        return NOT_MEASURED.format("searches")
    parts = list(rows[0]["parts_ms"])
    heads = [
        "search",
        "problems",
        "ended",
        "rows at most",
        "tokens/s",
        "against the fewest rows",
        "rows at work while problems wait",
        "in all steps",
        "entries",
        "step",
        *parts,
        "KV at most",
        "peak memory",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    fewest: dict[str, Figures] = {}
    for row in rows:
        base = fewest.setdefault(row["search"], row)
        cells = [
            row["search"].replace("_", " "),
            f"{row['problems']}",
            f"{row['ended']}",
            f"{row['max_rows']}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['tokens_per_s'] / base['tokens_per_s']:.2f}x",
            f"{row['rows_at_work']:.0%}",
            f"{row['rows_to_the_end']:.0%}",
            f"{row['entries']:.0f}",
            f"{row['step_ms']:.1f} ms",
            *(f"{row['parts_ms'][name]:.1f} ms" for name in parts),
            f"{row['kv_peak_bytes'] / 2**20:.0f} MiB",
            f"{row['peak_bytes'] / 2**30:.2f} GiB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# ---------------------------------------------------------------- aims


def aims_table(result: dict[str, Any]) -> str:
    """What the record says of each aim, as a Markdown table; an aim whose figures are missing is
    left out."""
    lines = ["| aim | wanted | measured | |", "|---|---|---|---|"]
    for aim, most, wanted, measured in aims(result):
        reached = measured <= wanted if most else measured >= wanted
        bound = f"{'at most' if most else 'at least'} {wanted:g}"
        lines.append(
            f"| {aim} | {bound} | {measured:.2f} | {'reached' if reached else 'not reached'} |"
        )
    return "\n".join(lines) if len(lines) > 2 else NOT_MEASURED.format("--peer PYTHON")


def aims(result: dict[str, Any]) -> Iterator[tuple[str, bool, float, float]]:
    """(what is compared, whether `wanted` is the most, wanted, measured), each a ratio of times,
    speeds or rows."""
    cases = cases_of(result)
    for problems, ways in cases.items():
        if (own := ways.get("engine")) is not None:
            name = (
                f"{problems} x {result['steps']['branches']}, second step, time / the first's at "
                "equal length"
            )
            yield name, True, 1.2, own["second_ms"] / own["first_equal_ms"]
    for problems, way, wanted in ((1, "vllm", 1.5), (16, "vllm", 1.5), (16, "generate", 3.0)):
        ways = cases.get(problems, {})
        if "engine" in ways and way in ways:
            name = (
                f"{problems} x {result['steps']['branches']}, second step, time of {NAMES[way]} / "
                "engine's"
            )
            yield name, False, wanted, ways[way]["second_ms"] / ways["engine"]["second_ms"]
    for problems, ways in cases.items():
        if "engine" in ways and "floor" in ways:
            branches = result["steps"]["branches"]
            name = f"{problems} x {branches}, second step, time / the linear layers'"
            yield name, True, 1.7, ways["engine"]["second_ms"] / ways["floor"]["second_ms"]
    rows = {
        (row["search"], row["in_flight"]): row for row in result.get("searches", {}).get("rows", [])
    }
    one, many = rows.get(("beam_search", 1)), rows.get(("beam_search", 16))
    if one is not None and many is not None:
        name = "beam search 4 x 4, tokens/s with 16 problems in flight / one at a time"
        yield name, False, 3.0, many["tokens_per_s"] / one["tokens_per_s"]
    for row in rows.values():
        if row["search"] == "best_of_8" and row["problems"] >= 64:
            name = f"best of 8, {row['problems']} problems in {row['max_rows']} rows, rows at work"
            yield f"{name} while problems wait", False, 0.9, row["rows_at_work"]
            yield f"{name} in all steps", False, 0.9, row["rows_to_the_end"]


NAMES = {"vllm": "vLLM", "generate": "`generate`"}
