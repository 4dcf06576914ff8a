"""How the gain grows with the prefix: the KV probe over a sweep, its fits, n* and B* (RKSC, Tables
5 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.lab.paper.rksc.kv_probe import KVProbe
from experiments.lab.paper.rksc.setting import Setting, loaded
from experiments.runs.screen import with_progress

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
BRANCHES = 8
SUFFIX_TOKENS = 16


def run(overrides: Sequence[str], lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    setting = Setting.of("rksc_verify", overrides)
    engine = setting.engine(*loaded(setting.config))
    probe = KVProbe(engine, suffix_tokens=SUFFIX_TOKENS)
    probe.times(64, 2)  # first-use set-up is not counted
    rows = []
    for tokens in with_progress(lengths, "prefix", "lengths"):
        times = probe.times(tokens, BRANCHES)
        rows.append(
            vars(times)
            | {
                "beneficial": times.beneficial,
                "net_s": times.net_s,
                "speedup": times.full_s / (times.prefix_s + times.suffix_s),
                "break_even_branches": times.break_even_branches,
            }
        )
    prefix = fit(lengths, [row["prefix_s"] for row in rows])
    return {"rows": rows, "fit": {"c1": prefix[0], "c2": prefix[1]}, "n_star": n_star(prefix, rows)}


def n_star(fitted: tuple[float, float], rows: Sequence[dict[str, Any]]) -> float:
    """The prefix length from which sharing pays: (B - 1) (c1 n + c2 n^2) = what the suffixes cost
    on shared KV beyond what they cost as ends of whole prompts. RKSC's proposition A.1 with its
    linear term put back; 0 if it pays at once.
    """
    c1, c2 = fitted
    first = rows[0]
    suffixes = first["branches"] * c1 * first["suffix_tokens"]
    extra = (first["suffix_s"] - suffixes) / (first["branches"] - 1)
    if extra <= 0:
        return 0.0
    if c2 <= 0:
        return extra / c1
    return float((-c1 + (c1 * c1 + 4 * c2 * extra) ** 0.5) / (2 * c2))


def fit(lengths: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """c1 and c2 of c1 n + c2 n^2, by least squares on relative errors. RKSC's own model has no
    linear term."""
    n, t = np.array(lengths, dtype=float), np.array(seconds, dtype=float)
    columns = np.stack([n, n * n], axis=1) / t[:, None]
    (c1, c2), *_ = np.linalg.lstsq(columns, np.ones_like(t), rcond=None)
    return float(c1), float(c2)
