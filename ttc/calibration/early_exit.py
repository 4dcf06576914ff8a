"""An early exit's settings for one model and data set, found on held-out problems and kept in a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Self

from ttc.approximate.early_exit import EarlyExit, EntropyRule, RankingRule
from ttc.calibration.file import CalibrationFile
from ttc.calibration.layer_profile import Profile
from ttc.calibration.statistics import check_counts, clopper_pearson, quantiles
from ttc.errors import InvalidInput
from ttc.ranking import comparable

Rating = Sequence[Profile]
"""A held-out problem: its branches as one rating saw them, in the order in which the first of equals is chosen."""
PATIENCE = 4
"""The longest patience that is tried."""


@dataclass(frozen=True)
class ExitCalibration(CalibrationFile):
    """An exit, what it was found on, and how often it changed the chosen branch there.

    model, dataset: the names that a run must have to use it. layers: the model's. problems: held-out problems it was
    made from. quantiles, over these: minimum, quartiles and maximum of "change", |H_l - H_(l-1)| over layers and
    branches, of "stable_entropy", H where the paper's rule would find it stable (see `paper_rule`), and of "depth", the
    layers that branches go through under `exit`. max_disagreement: the bound that the exit was chosen under; None for
    RKSC's rule.
    checked: problems on which the exit was then compared with all layers; disagreements: those where another branch
    comes first. disagreement_bound: with 95% confidence, at most this share of problems ends with another branch.
    depth, looks: layers, and looks through the lens, of a branch on the checked problems, on average. look_layers: what
    a look was held to cost, in layers.
    settings: the search, verifier, data set and seed that it was made with; the counts hold for them.
    """

    model: str
    dataset: str
    exit: EarlyExit
    layers: int
    problems: int
    quantiles: dict[str, list[float]]
    max_disagreement: float | None
    checked: int
    disagreements: int
    disagreement_bound: float
    depth: float
    looks: float
    look_layers: float
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_counts(disagreements=self.disagreements, checked=self.checked, problems=self.problems)
        check_counts(l_min=self.exit.l_min, layers=self.layers)

    @classmethod
    def _from(cls, found: dict[str, Any]) -> Self:
        return cls(**found | {"exit": EarlyExit(**found["exit"])})


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

    max_disagreement: None for RKSC's rule with `eps` (`paper_rule`), which does not look at what is chosen; the count
    is of the same problems. Otherwise the exit is `risk_controlled` on every other problem, and the count is of those
    in between: a choice that was made for having few disagreements must be counted where it was not made.
    look_layers: what a look costs, in layers of one branch (`ttc.calibration.layer_profile.look_layers`).
    """
    if max_disagreement is not None and not 0 <= max_disagreement <= 1:
        raise InvalidInput(f"max_disagreement={max_disagreement} must lie in [0, 1]")
    if max_disagreement is not None and eps is not None:
        raise InvalidInput(f"eps={eps} belongs to the paper's rule; with max_disagreement it is chosen, leave it out")
    least = 1 if max_disagreement is None else 2
    if len(problems) < least:
        raise InvalidInput(f"{len(problems)} held-out problems were rated; at least {least} are needed")
    layers = layers_of(problems)
    if max_disagreement is None:
        checked, exit = problems, paper_rule(problems, eps)
    else:
        checked, exit = problems[1::2], risk_controlled(problems[::2], max_disagreement, look_layers)
    depths = [replay(rating, exit) for rating in checked]
    disagreements = sum(not agrees(rating, own) for rating, own in zip(checked, depths, strict=True))
    return ExitCalibration(
        model,
        dataset,
        exit,
        layers,
        len(problems),
        {
            "change": quantiles(changes(problems)),
            "stable_entropy": quantiles(stable_entropies(problems, median(changes(problems)) if eps is None else eps)),
            "depth": quantiles([depth for rating in problems for depth in replay(rating, exit)]),
        },
        max_disagreement,
        len(checked),
        disagreements,
        clopper_pearson(disagreements, len(checked)),
        fmean(depth for own in depths for depth in own),
        fmean(looks(depth, exit) for own in depths for depth in own),
        look_layers,
        settings or {},
    )


# -------------------------------------------------------------------- the paper's rule


def paper_rule(problems: Sequence[Rating], eps: float | None = None) -> EarlyExit:
    """RKSC's Algorithm 3 with theta as in section 2.3: the median H of branches at their first stable layer.

    eps: in nats; the paper fixes it (3.0 in appendix G, for its lens without the norm). None for the median of the
    changes |H_l - H_(l-1)| over layers and branches, so that a stable layer is one that changes less than usual.
    """
    eps = median(changes(problems)) if eps is None else eps
    if not 0 <= eps < math.inf:
        raise InvalidInput(f"eps={eps} must be a number of at least 0, in nats")
    found = stable_entropies(problems, eps)
    if not found:
        raise InvalidInput(f"no branch's entropy ever changes by less than eps={eps} nats; use a larger eps")
    return EarlyExit("entropy", theta=median(found), eps=eps)


def stable_entropies(problems: Sequence[Rating], eps: float, l_min: int = EarlyExit.l_min) -> list[float]:
    """H of each branch after its first layer l >= l_min with |H_l - H_(l-1)| < eps; of those that have one."""
    found = []
    for profile in (profile for rating in problems for profile in rating):
        steps = list(pairwise(profile.entropy))[max(0, l_min - 2) :]
        found += [after for before, after in steps if abs(after - before) < eps][:1]
    return found


def changes(problems: Sequence[Rating]) -> list[float]:
    """|H_l - H_(l-1)| of all branches and layers from the second on."""
    return [abs(b - a) for rating in problems for profile in rating for a, b in pairwise(profile.entropy)]


# -------------------------------------------------------------------- risk control


def risk_controlled(problems: Sequence[Rating], max_disagreement: float, look_layers: float = 0.0) -> EarlyExit:
    """The exit that saves most layers while at most `max_disagreement` of the problems end with another branch.

    A look beyond the one that every branch ends with costs `look_layers`. Candidates have branches leave together, so
    that their scores compare: the ranking rule with every l_min and patience up to PATIENCE, and the entropy rule at a
    common depth with every l_min, eps and theta from quartiles of what is observed. Of equals: fewer disagreements,
    then the first. One that never leaves if no other will do.
    """
    layers = layers_of(problems)
    best = (0.0, 0, EarlyExit("ranking", l_min=layers))  # layers saved, -disagreements
    for exit in candidates(problems):
        saved, disagreements = 0.0, 0
        for rating in problems:
            depths = replay(rating, exit)
            saved += sum(layers - depth - look_layers * (looks(depth, exit) - 1) for depth in depths)
            disagreements += not agrees(rating, depths)
            if disagreements / len(problems) > max_disagreement:
                break
        else:
            best = max(best, (saved, -disagreements, exit), key=lambda found: found[:2])
    return best[2]


def candidates(problems: Sequence[Rating]) -> Iterator[EarlyExit]:
    """The exits that `risk_controlled` tries."""
    layers = layers_of(problems)
    for l_min in range(1, layers):
        for patience in range(1, min(PATIENCE, layers - l_min) + 1):
            yield EarlyExit("ranking", l_min=l_min, patience=patience)
    steps = quantiles(changes(problems))[1:]
    for l_min in range(2, layers):
        for eps in steps:
            for theta in quantiles(stable_entropies(problems, eps, l_min))[1:]:
                yield EarlyExit("entropy", l_min, theta, eps, common_depth=True)


# -------------------------------------------------------------------- what an exit does, without the model


def replay(rating: Rating, exit: EarlyExit) -> list[int]:
    """The layers that each branch of a problem goes through under `exit`, as `Engine.score` lets it."""
    layers, live = len(rating[0].p), list(range(len(rating)))
    rule = EntropyRule(exit, [live]) if exit.rule == "entropy" else RankingRule(exit, [live])
    depths = [layers] * len(rating)
    for depth in range(exit.first_look, layers):
        values = {i: (rating[i].entropy if exit.rule == "entropy" else rating[i].p)[depth - 1] for i in live}
        leaving = rule.leaving(depth, values)
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
    """The branch with the highest P, the first of equals; P that agree in six digits are equal, as in a search."""
    shares = [comparable(profile.p[depth - 1]) for profile, depth in zip(rating, depths, strict=True)]
    return shares.index(max(shares))


def layers_of(problems: Sequence[Rating]) -> int:
    """How many layers the profiles have; they must all have the same."""
    found = {len(profile.p) for rating in problems for profile in rating}
    if len(found) != 1:
        raise InvalidInput(f"the profiles have {sorted(found)} layers; give those of one model")
    return found.pop()
