"""What the documents show of `experiments.bench searches`: a table and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]

FAMILIES = {
    "samples": ("greedy", "self_consistency", "best_of_n", "diverse_prompts"),
    "sampling that stops early": (
        "adaptive_consistency",
        "deep_conf",
        "certainty_probe",
    ),
    "step by step": (
        "beam_search",
        "dvts",
        "rebase",
        "particle_filter",
        "particle_gibbs",
        "mur",
        "phi_decoding",
    ),
    "trees": ("best_first", "tree_of_thoughts", "mcts", "ab_mcts", "ab_mcts_m"),
    "one after the other": ("revision", "self_refine", "aggregate", "budget_forcing"),
    "by difficulty": ("compute_optimal",),
}
"""The searches as docs/searches.md groups them."""

REFERENCE = "best_of_n"
LEVEL = 0.05


def table(record: Figures) -> str:
    """A line for each task, budget and search, with its difference from each baseline, as
    Markdown."""
    heads = [
        "task",
        "budget",
        "search",
        "accuracy",
        "95% interval",
        "tokens",
        "prompt tokens",
    ]
    heads += [f"against {name}" for name in _baselines(record)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in sorted(
        record["rows"],
        key=lambda row: (row["task"] != "default task", row["budget"], -row["accuracy"]),
    ):
        low, high = row["accuracy_95"]
        cells = [row["task"], str(row["budget"]), f"`{row['search']}`", f"{row['accuracy']:.1%}"]
        cells += [
            f"{low:.1%} to {high:.1%}",
            f"{row['generated_tokens'] + row['verifier_tokens']:.0f}",
        ]
        cells += [f"{row['prompt_tokens']:.0f}"]
        cells += [_compared(record, row, name) for name in _baselines(record)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot_link(record: Figures) -> str:
    """The plot, for docs/searches.md."""
    problems = max(row["problems"] for row in record["rows"])
    return f"![accuracy against tokens of each search, {problems} problems](plots/searches.png)"


def _baselines(record: Figures) -> list[str]:
    return list(dict.fromkeys(found["baseline"] for found in record["comparisons"]))


def _compared(record: Figures, row: Figures, baseline: str) -> str:
    """The difference in percentage points; in bold, with its corrected p-value, where it is
    significant."""
    for found in record["comparisons"]:
        if found["baseline"] == baseline and all(
            found[k] == row[k] for k in ("task", "budget", "search")
        ):
            text = f"{100 * found['difference']:+.1f}"
            return (
                f"**{text}** (p {max(found['p_holm'], 1e-4):.1g})"
                if found["p_holm"] <= LEVEL
                else text
            )
    return ""


def draw(figures: Path, out: Path) -> bool:
    """Plot accuracy against tokens on the default task, a panel for each family of searches, the
    others in grey.

    Returns whether there were figures, and matplotlib to draw them.
    """
    if not figures.exists():
        return False
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [
        r
        for r in json.loads(figures.read_text(encoding="utf-8"))["rows"]
        if r["task"] == "default task"
    ]
    budgets = sorted({row["budget"] for row in rows})
    curves = {name: _curve(rows, name) for name in dict.fromkeys(row["search"] for row in rows)}
    figure, grid = pyplot.subplots(
        2, 3, figsize=(13, 6), sharex=True, sharey=True, layout="constrained"
    )
    for axis, (family, members) in zip(grid.flat, FAMILIES.items(), strict=True):
        for name, (tokens, accuracy, _) in curves.items():
            if name not in members:
                axis.plot(
                    tokens, accuracy, ".-", color="0.85", markersize=3, linewidth=0.8, zorder=0
                )
        if REFERENCE not in members and REFERENCE in curves:
            axis.plot(*curves[REFERENCE][:2], "k.--", linewidth=1, label=REFERENCE)
        for name in (name for name in members if name in curves):
            tokens, accuracy, spread = curves[name]
            axis.errorbar(
                tokens,
                accuracy,
                yerr=spread,
                fmt="o-",
                markersize=4,
                capsize=2,
                linewidth=1.4,
                label=name,
            )
        axis.set(title=family, xscale="log")
        axis.set_xticks(budgets, map(str, budgets))
        axis.minorticks_off()
        axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    for axis in grid[1]:
        axis.set_xlabel("generated tokens of a problem")
    for axis in grid[:, 0]:
        axis.set_ylabel("problems solved")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return True


def _curve(
    rows: Sequence[Figures], name: str
) -> tuple[list[float], list[float], list[list[float]]]:
    """Tokens, accuracy, and how far its interval reaches below and above, by ascending budget."""
    own = sorted((row for row in rows if row["search"] == name), key=lambda row: row["budget"])
    accuracy = [row["accuracy"] for row in own]
    below = [row["accuracy"] - row["accuracy_95"][0] for row in own]
    above = [row["accuracy_95"][1] - row["accuracy"] for row in own]
    return (
        [row["generated_tokens"] + row["verifier_tokens"] for row in own],
        accuracy,
        [below, above],
    )
