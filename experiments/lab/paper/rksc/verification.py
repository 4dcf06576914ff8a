"""Verification looked at alone: on the branch's KV against a fresh prompt, layer by layer, and by
difficulty."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from experiments.fit.calibrate.calibration import observe_exits
from experiments.lab.paper.rksc.intervals import share
from experiments.lab.paper.rksc.setting import HELD_OUT_SEED, Setting, loaded
from experiments.runs.screen import with_progress
from search import solve
from search.options import SolveOptions
from ttc.approximate.branch_confidence import clear_leader, confidence, gap_ratio
from ttc.approximate.early_exit import EarlyExit
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.calibration.exit_calibration import Rating, agrees, paper_rule, replay
from ttc.calibration.gate_calibration import Observation, percentiles
from ttc.calibration.layer_profile import BranchProfile
from ttc.engine import Engine
from ttc.results import Problem
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
LONG = "about 1,024 tokens"
RANKING = EarlyExit("ranking")
"""The ranking rule as it comes: the same order after three layers running."""
WAYS = ("own", "fresh", "p")


@dataclass
class _Both:
    """Rates on the branch's own KV, on fresh prompts, and layer by layer, and keeps what each said
    and cost."""

    own: SelfVerifier = field(default_factory=SelfVerifier)
    fresh: SelfVerifier = field(default_factory=lambda: SelfVerifier(fresh=True))
    seen: list[dict[str, Any]] = field(default_factory=list)
    profiles: list[Rating] = field(default_factory=list)

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        assert isinstance(backend, Engine)
        row: dict[str, Any] = {
            "p": [confidence(b) for b in branches],
            "texts": [b.answer_text for b in branches],
        }
        for name, verifier in (("own", self.own), ("fresh", self.fresh)):
            usage = branches[0].usage
            tokens, start = usage.verifier_tokens, time.perf_counter()
            found = verifier.rate(branches, questions, backend)
            row[name] = [score for (score,) in found]
            row[f"{name}_s"] = time.perf_counter() - start
            row[f"{name}_tokens"] = usage.verifier_tokens - tokens
        self.profiles.append(self.own.profiles(branches, questions, backend))
        self.seen.append(row)
        return [[score] for score in row["own"]]


def run(overrides: Sequence[str], problems: int, held_out: int) -> dict[str, Any]:
    """Each difficulty's problems, without padding; the usual one's also with the padded prompt, for
    the cost.

    Without hints, too: they cost a small model nearly all of its accuracy. RKSC's exit has its
    theta and eps from `held_out` other problems of the usual difficulty.
    """
    overrides = ["search.hints=[]", *overrides]
    model, tokenizer = loaded(Setting.of("rksc_verify", overrides).config)

    def of(changes: Sequence[str], n: int, *more: str) -> Setting:
        return Setting.of(
            "rksc_verify", [*changes, *overrides, f"dataset.size={n}", f"dataset.limit={n}", *more]
        )

    plain = "dataset.pad_chars=0"
    other = of(DIFFICULTIES[USUAL], held_out, plain, f"dataset.seed={HELD_OUT_SEED}")
    exits = {"entropy": paper_rule(_ratings(other, model, tokenizer)), "ranking": RANKING}
    rows, usual = list[dict[str, Any]](), list[Rating]()
    for name, changes in DIFFICULTIES.items():
        found, profiles = _records(of(changes, problems, plain), model, tokenizer, name, exits)
        rows += found
        usual = profiles if name == USUAL else usual
    rows += _records(of([], max(2, problems // 5)), model, tokenizer, LONG, exits)[0]
    layers = _layers([profile for rating in usual for profile in rating])
    about = {
        "problems": problems,
        "held_out": held_out,
        "exits": {k: vars(exit) for k, exit in exits.items()},
    }
    return about | {"layers": layers, "rows": rows} | summary(rows)


def _ratings(setting: Setting, model: Any, tokenizer: Any) -> list[Rating]:
    """What each layer says of the branches of a setting's problems."""
    inner, options = setting.verifier, SolveOptions.of(**setting.solve_options())
    assert isinstance(inner, SelfVerifier)
    problems = with_progress(setting.task.problems, "held out")
    engine = setting.engine(model, tokenizer)
    return [
        r
        for p in problems
        for r in observe_exits(setting.search, inner, [p], engine=engine, options=options)
    ]


def _records(
    setting: Setting, model: Any, tokenizer: Any, name: str, exits: dict[str, EarlyExit]
) -> tuple[list[dict[str, Any]], list[Rating]]:
    """One row for each problem, and what each layer said of its branches."""
    engine, both = setting.engine(model, tokenizer), _Both()
    problems: list[Problem] = setting.task.problems
    for problem in with_progress(problems, name):
        solve(
            setting.search,
            problem=[problem],
            engine=engine,
            verifier=both,
            **setting.solve_options(),
        )
    rows = []
    for problem, seen, rating in zip(problems, both.seen, both.profiles, strict=True):
        reader = setting.task.reading.voting(problem)
        answers = [None if text is None else reader(text) for text in seen.pop("texts")]
        right = [setting.task.is_correct(problem, answer) for answer in answers]
        depths = {way: replay(rating, exit) for way, exit in exits.items()}
        same = {way: agrees(rating, own) for way, own in depths.items()}
        told = {"setting": name, "problem": problem.id, "answers": answers, "right": right}
        rows.append(told | {"depths": depths, "agrees": same} | seen)
    return rows, both.profiles


# -------------------------------------------------------------------- what the rows add up to


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The tables' figures, from one row for each problem of each setting."""
    settings = {
        name: [r for r in rows if r["setting"] == name]
        for name in dict.fromkeys(r["setting"] for r in rows)
    }
    return {
        "cost": [_cost("short prompt", settings[USUAL]), _cost(LONG, settings[LONG])],
        "quality": [quality(settings[USUAL], way) for way in WAYS],
        "exit_depths": [_exit(settings[USUAL], way) for way in rows[0]["depths"]],
        "difficulty": _difficulty({name: own for name, own in settings.items() if name != LONG}),
    }


def _cost(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "prompt": name,
        "problems": len(rows),
        **{f"{way}_tokens": fmean(r[f"{way}_tokens"] for r in rows) for way in ("own", "fresh")},
        **{f"{way}_ms": 1e3 * median(r[f"{way}_s"] for r in rows) for way in ("own", "fresh")},
    }


def quality(rows: Sequence[dict[str, Any]], way: str) -> dict[str, Any]:
    """How well one way ranks: the chance that a right branch outranks a wrong one of its problem,
    and the chosen one's; both with their intervals over problems."""
    won = [pair_wins(r[way], r["right"]) for r in rows]
    chosen = [r["right"][max(range(len(r[way])), key=r[way].__getitem__)] for r in rows]
    return {
        "way": way,
        "pairs": sum(map(len, won)),
        "auc": share([sum(w) for w in won], [len(w) for w in won]),
        "accuracy": share(chosen, [1] * len(rows)),
        "mean_accuracy": fmean(fmean(r["right"]) for r in rows),
        "oracle": fmean(any(r["right"]) for r in rows),
    }


def pair_wins(scores: Sequence[float], right: Sequence[bool]) -> list[float]:
    """For each pair of a right and a wrong branch of a problem: 1 where the right one is rated
    higher, 1/2 if equal."""
    rated = list(zip(scores, right, strict=True))
    return [
        (a > b) + (a == b) / 2
        for a, a_right in rated
        for b, b_right in rated
        if a_right and not b_right
    ]


def _exit(rows: Sequence[dict[str, Any]], way: str) -> dict[str, Any]:
    """Where branches leave under an exit, and how often another branch comes first then."""
    return {
        "exit": way,
        "depth": fmean(depth for r in rows for depth in r["depths"][way]),
        "problems": len(rows),
        "changed": sum(not r["agrees"][way] for r in rows),
    }


def _difficulty(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """How often the confidence gate would skip, with one pair of thresholds for all: the
    percentiles over all."""
    everyone = [
        Observation(max(r["p"]), gap_ratio(r["p"]), True) for own in found.values() for r in own
    ]
    tau_conf, r_gap = percentiles(everyone)
    rows = []
    for name, own in found.items():
        skipped = [clear_leader(max(r["p"]), gap_ratio(r["p"]), tau_conf, r_gap) for r in own]
        rows.append(
            {
                "difficulty": name,
                "problems": len(own),
                "accuracy": fmean(fmean(r["right"]) for r in own),
                "max_p": fmean(max(r["p"]) for r in own),
                "skipped": fmean(skipped),
                "tau_conf": tau_conf,
                "r_gap": r_gap,
            }
        )
    return rows


# -------------------------------------------------------------------- layer by layer


def _layers(profiles: Sequence[BranchProfile]) -> dict[str, Any]:
    """Of the usual setting: entropy after each layer with and without the final norm, and the share
    of branches on whose P >= 1/2 that layer and the last one agree."""
    layers = range(len(profiles[0].entropy))
    return {
        "setting": USUAL,
        "branches": len(profiles),
        "entropy": [fmean(p.entropy[i] for p in profiles) for i in layers],
        "raw_entropy": [fmean(p.raw_entropy[i] for p in profiles) for i in layers],
        "settled": [fmean((p.p[i] >= 0.5) == (p.p[-1] >= 0.5) for p in profiles) for i in layers],
    }
