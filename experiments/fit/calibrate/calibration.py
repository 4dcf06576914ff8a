"""The calibration job: settings of approximate verifiers from held-out problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from experiments.cli.output import show
from experiments.cli.tables import labelled
from experiments.runs.build import (
    make_engine,
    make_template,
    make_verifier,
    resolved,
    solve_options,
)
from experiments.runs.config_values import as_dict
from experiments.runs.data import load_task
from experiments.runs.orders import check_one_order
from experiments.runs.screen import show_logged, with_progress
from search import Search
from search.config import SearchConfig
from search.options import SolveOptions
from search.solving import results_of
from ttc.approximate.branch_confidence import confidence, gap_ratio
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.calibration.error_bounds import CONFIDENCE
from ttc.calibration.exit_calibration import ExitCalibration, calibrate_exit
from ttc.calibration.gate_calibration import GateCalibration, Observation, calibrate
from ttc.calibration.layer_profile import BranchProfile, look_layers
from ttc.engine import Engine
from ttc.errors import InvalidInput, refuse
from ttc.protocols import Verifier
from ttc.results import BranchRecord, Problem
from ttc.tree.branch import by_problem
from verifiers import ConfidenceGatedVerifier, SelfVerifier

DEFAULTS = SolveOptions()


def run(config: DictConfig) -> GateCalibration | ExitCalibration:
    """Observe each problem of the data set and write the calibration.

    calibrate.level=1 is the confidence gate, for which each problem is solved with every rating
    verified and with none. calibrate.level=2 is the self-verifier's exit, for which each is rated
    by all layers.
    """
    config = resolved(config)
    show_logged(config.dataset.private)
    _check(config)
    search = instantiate(config.search, _convert_="all")
    inner = _inner(config)
    check_one_order(config.dataset.orders, "a calibration")
    task = load_task(config.dataset)
    if not search.needs_verifier:
        raise InvalidInput(
            f"{type(search).__name__} does not rate branches, so that there is nothing to skip"
        )
    if config.calibrate.level == 2:
        check_exit_can_be_observed(search, inner)
    engine = make_engine(config)
    options = solve_options(config, task.reading, template=make_template(config))
    observed: Any = observe if config.calibrate.level == 1 else observe_exits
    observations = observed(search, inner, task.problems, engine, options, config.run.batch)
    unused = len(task.problems) + len(task.failures) - len(observations)
    calibration, text = _made(config, observations, unused, engine)
    calibration.save(config.calibrate.file)
    show(f"{text}\n\ncalibration: {config.calibrate.file}")
    return calibration


def _check(config: DictConfig) -> None:
    settings = config.calibrate
    level, eps = settings.level, settings.eps
    refuse(
        {
            "calibrate.file is not given; name the file to write": (
                OmegaConf.is_missing(settings, "file")
            ),
            f"calibrate.level={level} is neither 1, the confidence gate, nor 2, the early exit": (
                level not in (1, 2)
            ),
            f"calibrate.eps={eps} belongs to calibrate.level=2; leave it out": (
                level == 1 and eps is not None
            ),
        }
    )


def _inner(config: DictConfig) -> Verifier:
    """The verifier that may be skipped, or layers of it."""
    verifier = make_verifier(config)
    inner = verifier.inner if isinstance(verifier, ConfidenceGatedVerifier) else verifier
    if inner is None:
        raise InvalidInput("there is no verifier to skip; choose a verifier other than none")
    return inner


def _made(
    config: DictConfig, observations: list[Any], unused: int, engine: Engine
) -> tuple[GateCalibration | ExitCalibration, str]:
    settings = config.calibrate
    about: dict[str, Any] = {
        "model": config.model.name,
        "dataset": config.dataset.name,
        "max_disagreement": settings.max_disagreement,
        "settings": _settings(config),
    }
    if settings.level == 1:
        gate = calibrate(observations, **about)
        return gate, report(gate, unused)
    rows = [profile.rows for rating in observations for profile in rating]
    looks = look_layers(engine, fmean(rows)) if rows else 0.0
    exit = calibrate_exit(observations, eps=settings.eps, look_layers=looks, **about)
    return exit, report_exit(exit, unused)


def _settings(config: DictConfig) -> dict[str, Any]:
    groups = {name: config[name] for name in ("search", "dataset", "gate", "sharing", "cache")}
    groups["verifier"] = config.verifier.get("inner", config.verifier)
    plain = {name: as_dict(group, resolve=True) for name, group in groups.items()}
    return plain | {"dtype": config.model.dtype, "seed": config.run.seed}


# -------------------------------------------------------------------- level 1


def observe(
    search: Any,
    inner: Verifier,
    problems: Sequence[Problem],
    engine: Backend,
    options: SolveOptions = DEFAULTS,
    concurrency: int | None = None,
) -> list[Observation]:
    """One observation for each problem that both searches solved: verified throughout, and skipped
    throughout. They agree when they choose the same tokens."""
    best = partial(_best, search, problems, engine, options, concurrency)
    first = _FirstRating(ConfidenceGatedVerifier(inner, tau_conf=0.0, r_gap=0.0))
    verified = best("verified", inner)
    skipped = best("not verified", first)
    return [
        Observation(*first.seen[short.root_id], full.generated == short.generated)
        for full, short in zip(verified, skipped, strict=True)
        if full is not None and short is not None
    ]


def _best(
    search: Any,
    problems: Sequence[Problem],
    engine: Backend,
    options: SolveOptions,
    concurrency: int | None,
    label: str,
    verifier: Any,
) -> list[BranchRecord | None]:
    """The best branch of each problem; None where it could not be solved."""
    best: dict[tuple[str, str], BranchRecord | None] = {}
    config = SearchConfig.of(search, engine, replace(options, verifier=verifier))
    with closing(results_of(engine, config, problems, concurrency)) as results:
        for result in with_progress(results, f"calibrate: {label}", total=len(problems)):
            best[result.problem.id, result.problem.question] = None if result.error else result.best
    return [best[problem.id, problem.question] for problem in problems]


@dataclass
class _FirstRating:
    """A gate, and what it sees of each problem when it decides: (max p, gap) by the problem's
    root."""

    gate: ConfidenceGatedVerifier
    seen: dict[int, tuple[float, float]] = field(default_factory=dict)

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[Sequence[float]]:
        for rows in by_problem(branches):
            p = [confidence(branches[row]) for row in rows]
            self.seen.setdefault(branches[rows[0]].root_id, (max(p), gap_ratio(p)))
        return self.gate.rate(branches, questions, backend)


def report(calibration: GateCalibration, unused: int) -> str:
    rows = [
        ("problems", _problems(calibration.problems, unused)),
        ("tau_conf", f"{calibration.tau_conf:.4f}"),
        ("r_gap", f"{calibration.r_gap:.4f}"),
        ("skipped", f"{calibration.skipped} of {calibration.checked} checked problems"),
    ]
    return labelled(rows + _bound(calibration))


# -------------------------------------------------------------------- level 2


def check_exit_can_be_observed(search: Any, inner: Verifier) -> None:
    """Refuse what no exit can be calibrated for."""
    refuse(
        {
            f"{type(inner).__name__} runs no model whose layers could be left; choose "
            "verifier=self": not isinstance(inner, SelfVerifier),
            "the verifier has an exit already, and calibrate.level=2 is to find one; leave it "
            "out": getattr(inner, "exit", None) is not None,
            f"{type(search).__name__} does not choose the branch that is rated highest, by which "
            "exits are judged; use search=best_of_n": type(search).choose is not Search.choose,
        }
    )


def observe_exits(
    search: Any,
    inner: SelfVerifier,
    problems: Sequence[Problem],
    engine: Backend,
    options: SolveOptions = DEFAULTS,
    concurrency: int | None = None,
) -> list[list[BranchProfile]]:
    """The profiles of the branches of each solved problem, asked through all layers. Raises
    InvalidInput for a search that rates a problem more than once."""
    if search.compares_ratings:
        raise InvalidInput(
            f"{type(search).__name__} rates a problem more than once, and an exit is judged by "
            "what one rating chooses; use search=best_of_n"
        )
    profiled = _Profiled(inner)
    best = _best(search, problems, engine, options, concurrency, "all layers", profiled)
    return [profiled.seen[branch.root_id] for branch in best if branch is not None]


@dataclass
class _Profiled:
    """Rates by all layers; keeps the profiles of each problem, by its root."""

    verifier: SelfVerifier
    seen: dict[int, list[BranchProfile]] = field(default_factory=dict)

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        profiles = self.verifier.profiles(branches, questions, backend)
        for rows in by_problem(branches):
            self.seen[branches[rows[0]].root_id] = [profiles[row] for row in rows]
        return [[profile.p[-1]] for profile in profiles]


def report_exit(calibration: ExitCalibration, unused: int) -> str:
    exit = calibration.exit
    if exit.rule == "ranking":
        rule = f"ranking, l_min {exit.l_min}, patience {exit.patience}"
    else:
        common = ", at a common depth" if exit.common_depth else ""
        rule = f"entropy, l_min {exit.l_min}, theta {exit.theta:.4f}, eps {exit.eps:.4f}{common}"
    if exit.l_min >= calibration.layers:
        rule = "none: every one that was tried changes too much, or saves nothing"
    price = (calibration.looks - 1) * calibration.look_layers
    rows = [
        ("problems", _problems(calibration.problems, unused)),
        ("exit", rule),
        (
            "depth",
            f"{calibration.depth:.1f} of {calibration.layers} layers per branch, "
            f"{calibration.checked} checked problems",
        ),
        ("looks", f"{calibration.looks:.1f} per branch, which cost as much as {price:.1f} layers"),
    ]
    return labelled(rows + _bound(calibration))


# -------------------------------------------------------------------- tables


def _problems(used: int, unused: int) -> str:
    return f"{used} ({unused} more could not be used)" if unused else f"{used}"


def _bound(calibration: GateCalibration | ExitCalibration) -> list[tuple[str, str]]:
    limit, bound = calibration.max_disagreement, calibration.disagreement_bound
    rows = [
        ("another solution", f"{calibration.disagreements} of {calibration.checked}"),
        ("at most", f"{bound:.1%} of problems, with {CONFIDENCE:.0%} confidence"),
    ]
    if limit is not None and bound > limit:
        needed = _needed(limit, calibration.problems)
        rows.append(("not shown", f"that it is under {limit:.1%}: {needed}"))
    return rows


def _needed(bound: float, problems: int) -> str:
    """How many held-out problems could show it: half are checked, and the best case is that none
    disagrees."""
    if bound == 0:
        return "no number of problems can show that"
    least = math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-bound))
    if problems < 2 * least:
        return f"that takes {2 * least} held-out problems or more"
    return "too many disagree"
