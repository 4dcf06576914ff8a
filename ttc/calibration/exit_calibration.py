"""An early exit's settings for one model and data set, from held-out problems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Annotated, Any, Self

from annotated_types import Interval

from ttc.approximate.early_exit import EarlyExit, EntropyRule, RankingRule
from ttc.calibration.calibration_file import CalibrationFile, chosen_and_checked
from ttc.calibration.error_bounds import check_counts, clopper_pearson, quantiles
from ttc.calibration.layer_profile import BranchProfile
from ttc.checks import check_option
from ttc.errors import InvalidInput
from ttc.results import comparable

Rating = Sequence[BranchProfile]
"""A held-out problem: its branches as one rating saw them; of equals the first is chosen."""
MAX_PATIENCE = 4
"""The longest patience that is tried."""


@dataclass(frozen=True, kw_only=True)
class ExitCalibration(CalibrationFile):
    """An exit, and how often it changes the branch that comes first.

    layers: the model's. quantiles: of "change", |H_l - H_(l-1)| over layers and branches, of
    "stable_entropy", H where the paper's rule would find it stable (see `paper_rule`), and of
    "depth", the layers that branches go through under `exit`.
    depth, looks: layers, and looks through the lens, of a branch on the checked problems, on
    average. look_layers: what a look was held to cost, in layers.
    """

    exit: EarlyExit
    layers: int
    depth: float
    looks: float
    look_layers: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(l_min=self.exit.l_min, layers=self.layers)

    @classmethod
    def _from(cls, values: dict[str, Any]) -> Self:
        return cls(**values | {"exit": EarlyExit(**values["exit"])})


def calibrate_exit(
    problems: Sequence[Rating],
    *,
    model: str,
    dataset: str,
    max_disagreement: float | None = None,
    eps: float | None = None,
    look_layers: float = 0.0,
    settings: dict[str, Any] | None = None,
) -> ExitCalibration:
    """An exit from held-out problems, and how often it chooses another branch than all layers do.

    max_disagreement: None for RKSC's `paper_rule` with `eps`, else the exit is `risk_controlled`
    (see `chosen_and_checked`). look_layers: what a look costs, in layers of one branch
    (`ttc.calibration.layer_profile.look_layers`).
    """
    if max_disagreement is not None and eps is not None:
        raise InvalidInput(
            f"eps={eps} belongs to the paper's rule; with max_disagreement it is chosen, leave it "
            "out"
        )
    chosen_on, checked = chosen_and_checked(problems, max_disagreement)
    layers = layers_of(problems)
    if max_disagreement is None:
        exit = paper_rule(chosen_on, eps)
    else:
        exit = risk_controlled(chosen_on, max_disagreement, look_layers)
    depths = [replay(rating, exit) for rating in checked]
    disagreements = sum(not agrees(*pair) for pair in zip(checked, depths, strict=True))
    stable_eps = median(changes(problems)) if eps is None else eps
    return ExitCalibration(
        model=model,
        dataset=dataset,
        exit=exit,
        layers=layers,
        problems=len(problems),
        quantiles={
            "change": quantiles(changes(problems)),
            "stable_entropy": quantiles(stable_entropies(problems, stable_eps)),
            "depth": quantiles([d for rating in problems for d in replay(rating, exit)]),
        },
        max_disagreement=max_disagreement,
        checked=len(checked),
        disagreements=disagreements,
        disagreement_bound=clopper_pearson(disagreements, len(checked)),
        depth=fmean(depth for row in depths for depth in row),
        looks=fmean(looks(depth, exit) for row in depths for depth in row),
        look_layers=look_layers,
        settings=settings or {},
    )


# ---------------------------------------------------------------- the paper's rule


def paper_rule(problems: Sequence[Rating], eps: float | None = None) -> EarlyExit:
    """RKSC's Algorithm 3 with theta as in section 2.3: the median H of branches at their first
    stable layer.

    eps: in nats; the paper fixes it (3.0 in appendix G, for its lens without the norm). None for
    the median of the changes |H_l - H_(l-1)| over layers and branches, so that a stable layer is
    one that changes less than usual.
    """
    eps = median(changes(problems)) if eps is None else eps
    check_option("eps", eps, Annotated[float, Interval(ge=0, lt=math.inf)])
    entropies = stable_entropies(problems, eps)
    if not entropies:
        raise InvalidInput(
            f"no branch's entropy ever changes by less than eps={eps} nats; use a larger eps"
        )
    return EarlyExit("entropy", theta=median(entropies), eps=eps)


def stable_entropies(
    problems: Sequence[Rating], eps: float, l_min: int = EarlyExit.l_min
) -> list[float]:
    """H of each branch after its first layer l >= l_min with |H_l - H_(l-1)| < eps, if any."""
    entropies = []
    for profile in (profile for rating in problems for profile in rating):
        steps = list(pairwise(profile.entropy))[max(0, l_min - 2) :]
        entropies += [after for before, after in steps if abs(after - before) < eps][:1]
    return entropies


def changes(problems: Sequence[Rating]) -> list[float]:
    """|H_l - H_(l-1)| of all branches and layers from the second on."""
    profiles = (profile for rating in problems for profile in rating)
    return [abs(b - a) for profile in profiles for a, b in pairwise(profile.entropy)]


# ---------------------------------------------------------------- risk control


def risk_controlled(
    problems: Sequence[Rating], max_disagreement: float, look_layers: float = 0.0
) -> EarlyExit:
    """The exit that saves most layers while at most `max_disagreement` of the problems end with
    another branch.

    A look beyond the one that every branch ends with costs `look_layers`. Of equals: fewer
    disagreements, then the first. One that never leaves if no other will do.
    """
    layers = layers_of(problems)
    best = (0.0, 0, EarlyExit("ranking", l_min=layers))  # layers saved, -disagreements
    for exit in candidates(problems):
        saved, disagreements = 0.0, 0
        for rating in problems:
            depths = replay(rating, exit)
            saved += sum(layers - d - look_layers * (looks(d, exit) - 1) for d in depths)
            disagreements += not agrees(rating, depths)
            if disagreements / len(problems) > max_disagreement:
                break
        else:
            best = max(best, (saved, -disagreements, exit), key=lambda candidate: candidate[:2])
    return best[2]


def candidates(problems: Sequence[Rating]) -> Iterator[EarlyExit]:
    """The exits that `risk_controlled` tries.

    Branches leave together, so that their scores compare: by the ranking rule with every l_min and
    patience, and by the entropy rule at a common depth with every l_min, eps and theta from
    quartiles of what is observed.
    """
    layers = layers_of(problems)
    for l_min in range(1, layers):
        for patience in range(1, min(MAX_PATIENCE, layers - l_min) + 1):
            yield EarlyExit("ranking", l_min=l_min, patience=patience)
    steps = quantiles(changes(problems))[1:]
    for l_min in range(2, layers):
        for eps in steps:
            for theta in quantiles(stable_entropies(problems, eps, l_min))[1:]:
                yield EarlyExit("entropy", l_min, theta, eps, common_depth=True)


# ---------------------------------------------------------------- an exit without the model


def replay(rating: Rating, exit: EarlyExit) -> list[int]:
    """The layers that each branch of a problem goes through under `exit`, as in `Engine.score`."""
    layers = len(rating[0].p)
    live = list(range(len(rating)))
    by_entropy = exit.rule == "entropy"
    rule = EntropyRule(exit, [live]) if by_entropy else RankingRule(exit, [live])
    depths = [layers] * len(rating)
    for depth in range(exit.first_look, layers):
        seen = {i: rating[i].entropy if by_entropy else rating[i].p for i in live}
        leaving = rule.leaving(depth, {i: values[depth - 1] for i, values in seen.items()})
        for i in leaving:
            depths[i] = depth
        live = [i for i in live if i not in leaving]
    return depths


def looks(depth: int, exit: EarlyExit) -> int:
    """How often a branch that went through `depth` layers was looked at."""
    return depth - exit.first_look + 1


def agrees(rating: Rating, depths: Sequence[int]) -> bool:
    """Whether the branch that is chosen at these depths is the one that all layers choose."""
    return chosen(rating, depths) == chosen(rating, [len(profile.p) for profile in rating])


def chosen(rating: Rating, depths: Sequence[int]) -> int:
    """The branch with the highest P, the first of equals, compared as in a search."""
    shares = [comparable(profile.p[d - 1]) for profile, d in zip(rating, depths, strict=True)]
    return shares.index(max(shares))


def layers_of(problems: Sequence[Rating]) -> int:
    """How many layers the profiles have, all of them the same."""
    layers = {len(profile.p) for rating in problems for profile in rating}
    if len(layers) != 1:
        raise InvalidInput(f"the profiles have {sorted(layers)} layers; give those of one model")
    return layers.pop()
