"""Thresholds for the confidence gate from held-out problems. `python -m experiments.calibrate calibrate.file=FILE`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from experiments.data import load_task
from experiments.run import make_engine, make_template, make_verifier, resolved
from experiments.schema import register
from search import solve
from ttc.branch import Branch
from ttc.calibration import CONFIDENCE, Calibration, Observation, calibrate
from ttc.errors import InvalidInput, TTCError
from ttc.protocols import Backend, Problem, Result, Verifier
from ttc.usage import Usage
from verifiers import ConfidenceGatedVerifier
from verifiers.confidence_gated import by_problem, confidence, gap_ratio

register()


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="calibrate")
def main(config: DictConfig) -> None:
    try:
        run(config)
    except TTCError as error:
        raise SystemExit(f"error: {error}") from error


def run(config: DictConfig) -> Calibration:
    """Solve each problem of the data set twice, with every rating verified and with none, and write the calibration.

    The problems must be others than those of the runs that will use it: choose them by dataset.offset, dataset.limit,
    dataset.split or dataset.seed.
    """
    config = resolved(config)
    if OmegaConf.is_missing(config.calibrate, "file"):
        raise InvalidInput("calibrate.file is not given; name the file to write")
    if config.run.batch < 1:
        raise InvalidInput(f"run.batch={config.run.batch} must be at least 1")
    search = instantiate(config.search)
    verifier = make_verifier(config)
    inner = verifier.inner if isinstance(verifier, ConfidenceGatedVerifier) else verifier
    if inner is None:
        raise InvalidInput("there is no verifier to skip; choose a verifier other than none")
    if not search.needs_verifier:
        raise InvalidInput(f"{type(search).__name__} does not rate branches, so that there is nothing to skip")
    template, task = make_template(config), load_task(config.dataset)
    engine = make_engine(config)
    options: dict[str, Any] = {
        "engine": engine,
        "seed": config.run.seed,
        "template": template,
        "answer_kind": config.dataset.answer_kind,
        "end": tuple(config.dataset.end),
        "max_tokens": config.run.max_tokens,
        "max_calls": config.run.max_calls,
        "concurrency": config.run.batch,
    }
    observations: list[Observation] = []
    with tqdm(total=len(task.problems), desc="calibrate", unit="problem", file=sys.stderr) as bar:
        for start in range(0, len(task.problems), config.run.batch):
            batch = task.problems[start : start + config.run.batch]
            observations += observe(search, inner, batch, **options)
            bar.update(len(batch))
    gated = config.verifier.inner if "inner" in config.verifier else config.verifier
    made = calibrate(
        observations,
        model=config.model.name,
        dataset=config.dataset.name,
        max_disagreement=config.calibrate.max_disagreement,
        settings={
            "search": OmegaConf.to_container(config.search, resolve=True),
            "verifier": OmegaConf.to_container(gated, resolve=True),
            "dataset": OmegaConf.to_container(config.dataset, resolve=True),
            "seed": config.run.seed,
        },
    )
    made.save(config.calibrate.file)
    print(report(made, len(task.problems) + len(task.failures) - len(observations)))
    print(f"\ncalibration: {config.calibrate.file}")
    return made


def observe(search: Any, inner: Verifier, problems: Sequence[Problem], **options: Any) -> list[Observation]:
    """One observation for each problem that both searches solved: verified throughout, and skipped throughout.

    That is what the gate chooses between, since its first decision holds for the whole problem. They agree when they
    choose the same tokens. options: as for `search.solve`.
    """
    first = _FirstRating(ConfidenceGatedVerifier(inner, tau_conf=0.0, r_gap=0.0))
    verified: list[Result] = solve(search, problem=list(problems), verifier=inner, **options)
    skipped: list[Result] = solve(search, problem=list(problems), verifier=first, **options)
    observations = []
    for full, short in zip(verified, skipped, strict=True):
        if full.best is None or short.best is None or full.error or short.error:
            continue
        _, max_p, gap = first.seen[id(short.best.usage)]
        observations.append(Observation(max_p, gap, full.best.generated == short.best.generated))
    return observations


@dataclass
class _FirstRating:
    """A gate, and what it sees of each problem when it decides: (meter, max p, gap) by the meter's identity."""

    gate: ConfidenceGatedVerifier
    seen: dict[int, tuple[Usage, float, float]] = field(default_factory=dict)

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[Sequence[float]]:
        for rows in by_problem(branches):
            usage, p = branches[rows[0]].usage, [confidence(branches[row]) for row in rows]
            self.seen.setdefault(id(usage), (usage, max(p), gap_ratio(p)))
        return self.gate.rate(branches, questions, backend)


def report(made: Calibration, unused: int) -> str:
    """The thresholds and what is known about them, as a small table."""
    rows = [
        ("problems", f"{made.problems} ({unused} more could not be used)" if unused else f"{made.problems}"),
        ("tau_conf", f"{made.tau_conf:.4f}"),
        ("r_gap", f"{made.r_gap:.4f}"),
        ("skipped", f"{made.skipped} of {made.checked} checked problems"),
        ("another solution", f"{made.disagreements} of {made.checked}"),
        ("at most", f"{made.disagreement_bound:.1%} of problems, with {CONFIDENCE:.0%} confidence"),
    ]
    bound = made.max_disagreement
    if bound is not None and made.disagreement_bound > bound:
        rows.append(("not shown", f"that it is under {bound:.1%}: {_needed(bound)}"))
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"  {label:<{width}}  {value}" for label, value in rows)


def _needed(bound: float) -> str:
    """How many held-out problems could show it: half are checked, and the best case is that none disagrees."""
    if bound == 0:
        return "no number of problems can show that"
    least = math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-bound))
    return f"that takes {2 * least} held-out problems or more"


if __name__ == "__main__":
    main()
