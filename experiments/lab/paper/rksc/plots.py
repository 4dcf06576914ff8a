"""PNG plots of what `experiments.paper rksc` has measured; needs matplotlib (the `plot` extra)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.lab.paper.rksc.intervals import speedups

Result = dict[str, Any]


def draw(results: Path, folder: Path) -> list[Path]:
    """Draw whatever there are figures for. Returns the files; none without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    made = []
    for part, plot in PLOTS.items():
        file = results / f"rksc_{part}.json"
        if file.exists():
            figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
            plot(json.loads(file.read_text(encoding="utf-8")), axes)
            folder.mkdir(parents=True, exist_ok=True)
            made.append(folder / f"rksc_{part}.png")
            figure.savefig(made[-1], dpi=120, metadata={"Software": None})
            pyplot.close(figure)
    return made


def arms(result: Result, axes: Any) -> None:
    for axis, base, title in ((axes[0], "no_kv", "No-KV"), (axes[1], "exact", "token-exact")):
        regimes = result["regimes"]
        for n, (regime, found) in enumerate(regimes.items()):
            ratios = speedups(found["arms"], base)
            places = [i + (n - (len(regimes) - 1) / 2) * 0.25 for i in range(len(ratios))]
            spread = [[r[0] - r[1] for r in ratios], [r[2] - r[0] for r in ratios]]
            axis.errorbar(
                places,
                [r[0] for r in ratios],
                yerr=spread,
                fmt="o",
                markersize=4,
                capsize=2,
                label=regime,
            )
        names = [arm["arm"] for arm in next(iter(regimes.values()))["arms"]]
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set(title=f"speed-up over {title}", ylim=(0, None))
        axis.axhline(1, color="grey", linewidth=0.5)
    axes[0].legend()


def prefix(result: Result, axes: Any) -> None:
    rows = result["rows"]
    lengths = [row["tokens"] for row in rows]
    for key, label in (
        ("full_s", "every branch"),
        ("prefix_s", "once"),
        ("suffix_s", "suffixes on it"),
    ):
        axes[0].loglog(lengths, [row[key] for row in rows], "o-", label=label)
    axes[0].set(xlabel="prefix tokens", ylabel="s", title="prefill of 8 branches")
    axes[0].legend()
    axes[1].semilogx(lengths, [row["speedup"] for row in rows], "o-")
    axes[1].axhline(1, color="grey", linewidth=0.5)
    axes[1].set(xlabel="prefix tokens", title="gain of sharing", ylim=(0, None))


def phrasings(result: Result, axes: Any) -> None:
    kinds = list(dict.fromkeys(record["kind"] for record in result["records"]))
    for axis, pooling in zip(axes, ("matched", "mean"), strict=True):
        for n, kind in enumerate(kinds):
            own = [record[pooling] for record in result["records"] if record["kind"] == kind]
            axis.plot(own, [n] * len(own), "|", markersize=9)
        axis.set_yticks(range(len(kinds)), kinds if axis is axes[0] else [])
        axis.axvline(0.82, color="grey", linewidth=0.5)
        axis.set(title=f"similarity, {pooling}")


def verification(result: Result, axes: Any) -> None:
    layers = result["layers"]
    depth = range(1, len(layers["entropy"]) + 1)
    axes[0].plot(depth, layers["entropy"], label="with the final norm")
    axes[0].plot(depth, layers["raw_entropy"], label="without (RKSC)")
    axes[0].set(
        xlabel="layer", ylabel="entropy (nats)", title="what the lens says after each layer"
    )
    axes[0].legend()
    usual = [row for row in result["rows"] if row["setting"] == layers["setting"]]
    for n, (way, label) in enumerate(
        (("entropy", "leaves by RKSC's rule"), ("ranking", "leaves by stable ranking"))
    ):
        left = Counter(d for row in usual for d in row["depths"][way])
        shares = [left[d] / left.total() for d in depth]
        axes[1].bar([d + 0.4 * n - 0.2 for d in depth], shares, width=0.4, label=label)
    axes[1].plot(depth, layers["settled"], "k-", label="same verdict as the last layer")
    axes[1].set(xlabel="layer", title="share of branches", ylim=(0, 1.02))
    axes[1].legend(loc=(0.02, 0.62), fontsize="small")


PLOTS: dict[str, Callable[[Result, Any], None]] = {
    "arms": arms,
    "prefix": prefix,
    "phrasings": phrasings,
    "verification": verification,
}
