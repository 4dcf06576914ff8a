"""Verification looked at alone: on the branch's KV against a fresh prompt, layer by layer, and by difficulty."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from tqdm import tqdm

from experiments.paper.rksc.setting import Setting, loaded
from search import solve
from ttc.answers import extract_answer
from ttc.branch import Branch
from ttc.calibration import Observation, percentiles, verify_skip
from ttc.confidence import confidence, gap_ratio
from ttc.engine import Engine
from ttc.layer_profile import Profile
from ttc.protocols import Backend, Problem
from verifiers import SelfVerifier

DIFFICULTIES: dict[str, list[str]] = {
    "2 terms, 1 digit": ["dataset.params.max_terms=2", "dataset.params.max_digits=1"],
    "2 or 3 terms, 1 or 2 digits": [],
    "4 terms, 2 digits": [
        "dataset.params.min_terms=4",
        "dataset.params.max_terms=4",
        "dataset.params.min_digits=2",
    ],
    "6 terms, 3 digits": [
        "dataset.params.min_terms=6",
        "dataset.params.max_terms=6",
        "dataset.params.min_digits=3",
        "dataset.params.max_digits=3",
    ],
}
USUAL = "2 or 3 terms, 1 or 2 digits"
EPS = 0.1
"""The change of entropy, in nats, under which a layer is called stable in the histogram of exit layers."""


@dataclass
class _Both:
    """Rates on the branch's own KV, on fresh prompts, and layer by layer, and keeps what each said and cost."""

    own: SelfVerifier = field(default_factory=SelfVerifier)
    fresh: SelfVerifier = field(default_factory=lambda: SelfVerifier(fresh=True))
    seen: list[dict[str, Any]] = field(default_factory=list)

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        assert isinstance(backend, Engine)
        row: dict[str, Any] = {"p": [confidence(b) for b in branches], "texts": [b.text for b in branches]}
        for name, verifier in (("own", self.own), ("fresh", self.fresh)):
            usage = branches[0].usage
            tokens, start = usage.verifier_tokens, time.perf_counter()
            found = verifier.rate(branches, questions, backend)
            row[name] = [score for (score,) in found]
            row[f"{name}_s"] = time.perf_counter() - start
            row[f"{name}_tokens"] = usage.verifier_tokens - tokens
        row["profiles"] = self.own.profiles(branches, questions, backend)
        self.seen.append(row)
        return [[score] for score in row["own"]]


def run(overrides: Sequence[str], problems: int) -> dict[str, Any]:
    """Each difficulty's problems, without padding; the usual one's also with the padded prompt, for the cost.

    Without hints, too: they cost a small model nearly all of its accuracy."""
    overrides = ["search.hints=[]", *overrides]
    model, tokenizer = loaded(Setting.of("rksc_verify", overrides).config)
    plain = ["dataset.pad_chars=0", f"dataset.size={problems}", f"dataset.limit={problems}"]
    found: dict[str, list[dict[str, Any]]] = {}
    for name, changes in DIFFICULTIES.items():
        found[name] = _records(Setting.of("rksc_verify", [*changes, *overrides, *plain]), model, tokenizer, name)
    few = max(2, problems // 5)
    long = [*overrides, f"dataset.size={few}", f"dataset.limit={few}"]
    padded = _records(Setting.of("rksc_verify", long), model, tokenizer, "about 1,024 tokens")
    usual = found[USUAL]
    return {
        "problems": problems,
        "cost": [_cost("short prompt", usual), _cost("about 1,024 tokens", padded)],
        "quality": _quality(usual),
        "layers": _layers([p for record in usual for p in record["profiles"]]),
        "difficulty": _difficulty(found),
    }


def _records(setting: Setting, model: Any, tokenizer: Any, name: str) -> list[dict[str, Any]]:
    engine, verifier = setting.engine(model, tokenizer), _Both()
    problems: list[Problem] = setting.task.problems
    for problem in tqdm(problems, desc=name, unit="problem"):
        solve(setting.search, problem=[problem], engine=engine, verifier=verifier, **setting.solve_options())
    kind = setting.config.dataset.answer_kind
    for problem, record in zip(problems, verifier.seen, strict=True):
        record["right"] = [setting.task.is_correct(problem, extract_answer(text, kind)) for text in record["texts"]]
    return verifier.seen


# -------------------------------------------------------------------- cost and quality


def _cost(name: str, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "prompt": name,
        "problems": len(records),
        **{f"{way}_tokens": fmean(r[f"{way}_tokens"] for r in records) for way in ("own", "fresh")},
        **{f"{way}_ms": 1e3 * median(r[f"{way}_s"] for r in records) for way in ("own", "fresh")},
    }


def _quality(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who ranks better: the chance that a right branch outranks a wrong one of its problem, and the chosen one's."""
    rows = []
    for way in ("own", "fresh", "p"):
        pairs = [
            1.0 if a > b else 0.5 if a == b else 0.0
            for r in records
            for a, a_right in zip(r[way], r["right"], strict=True)
            for b, b_right in zip(r[way], r["right"], strict=True)
            if a_right and not b_right
        ]
        chosen = [r["right"][max(range(len(r[way])), key=r[way].__getitem__)] for r in records]
        rows.append(
            {
                "way": way,
                "pairs": len(pairs),
                "auc": fmean(pairs) if pairs else math.nan,
                "accuracy": fmean(chosen),
                "mean_accuracy": fmean(fmean(r["right"]) for r in records),
                "oracle": fmean(any(r["right"]) for r in records),
            }
        )
    return rows


# -------------------------------------------------------------------- layer by layer


def _layers(profiles: Sequence[Profile]) -> dict[str, Any]:
    """Entropy after each layer with and without the final norm, and where each branch would leave."""
    layers = range(len(profiles[0].entropy))
    return {
        "branches": len(profiles),
        "entropy": [fmean(p.entropy[i] for p in profiles) for i in layers],
        "raw_entropy": [fmean(p.raw_entropy[i] for p in profiles) for i in layers],
        "eps": EPS,
        "first_stable": _histogram([_first_stable(p.entropy) for p in profiles], len(layers)),
        "first_stable_raw": _histogram([_first_stable(p.raw_entropy) for p in profiles], len(layers)),
        "settled": [_settled(profiles, i) for i in layers],
    }


def _first_stable(entropy: Sequence[float]) -> int:
    """The first layer, from 2 on, whose entropy differs by less than EPS from the one before; the last if none."""
    stable = (i + 1 for i in range(1, len(entropy)) if abs(entropy[i] - entropy[i - 1]) < EPS)
    return next(stable, len(entropy))


def _histogram(values: Sequence[int], layers: int) -> list[int]:
    return [sum(v == layer for v in values) for layer in range(1, layers + 1)]


def _settled(profiles: Sequence[Profile], layer: int) -> float:
    """The share of branches on whose P >= 1/2 this layer and the last agree."""
    return fmean((p.p[layer] >= 0.5) == (p.p[-1] >= 0.5) for p in profiles)


# -------------------------------------------------------------------- difficulty


def _difficulty(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """How often the confidence gate would skip, with one pair of thresholds for all: the percentiles over all."""
    everyone = [Observation(max(r["p"]), gap_ratio(r["p"]), True) for records in found.values() for r in records]
    tau_conf, r_gap = percentiles(everyone)
    rows = []
    for name, records in found.items():
        skipped = [verify_skip(max(r["p"]), gap_ratio(r["p"]), tau_conf, r_gap) for r in records]
        rows.append(
            {
                "difficulty": name,
                "problems": len(records),
                "accuracy": fmean(fmean(r["right"]) for r in records),
                "max_p": fmean(max(r["p"]) for r in records),
                "skipped": fmean(skipped),
                "tau_conf": tau_conf,
                "r_gap": r_gap,
            }
        )
    return rows
