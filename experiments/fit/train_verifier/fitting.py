"""A logistic regression on the head's features, with soft targets; its strength of regularisation
is chosen on problems that it was not fitted on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from ttc.errors import refuse

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Of the penalty on the squared weights, in features of unit variance."""


@dataclass(frozen=True)
class Rows:
    """states: (rows, width), what the head sees. targets: (rows,) from 0 to 1."""

    states: Tensor
    targets: Tensor


@dataclass
class Fit:
    """weight (width,) and bias of the log-odds that a step is right.

    before, after: the mean loss on the training rows, of the best constant and of the fit.
    validation: the mean loss on the validation rows for each strength; constant: that of the
    training rows' mean.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    before: float
    after: float
    constant: float = 0.0
    validation: dict[float, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {
            "strength": self.strength,
            "loss_before": self.before,
            "loss": self.after,
            "validation_loss_before": self.constant,
            "validation_loss": {
                f"{strength:g}": loss for strength, loss in self.validation.items()
            },
        }

    def log_odds(self, states: Tensor) -> Tensor:
        return states.double() @ self.weight + self.bias

    def put(self, head: nn.Module) -> None:
        """Make the weights those of a linear layer of two labels, whose softmax then gives the same
        probability."""
        assert isinstance(head, nn.Linear)
        with torch.no_grad():
            head.weight.copy_(torch.stack([-self.weight / 2, self.weight / 2]))
            head.bias.copy_(torch.stack([-self.bias / 2, self.bias / 2]))


def train(rows: Rows, validation: Rows) -> Fit:
    """The fit to all rows with the strength that was best on the validation rows when fitted
    without them.

    Raises InvalidInput where all targets are equal: there is nothing to tell apart.
    """
    losses = validation_losses(rows, validation)
    best = min(losses, key=lambda strength: losses[strength])
    whole = Rows(
        torch.cat([rows.states, validation.states]), torch.cat([rows.targets, validation.targets])
    )
    fitted = fit(whole, best)
    mean = torch.full_like(validation.targets, float(rows.targets.mean())).double()
    fitted.validation = losses
    fitted.constant = loss(mean.logit(), validation.targets)
    return fitted


def validation_losses(rows: Rows, validation: Rows) -> dict[float, float]:
    """The mean loss on the validation rows of the fit to the others, for each strength. Raises
    InvalidInput as `train` does."""
    check_targets(rows.targets, validation.targets)
    return {
        strength: loss(fit(rows, strength).log_odds(validation.states), validation.targets)
        for strength in STRENGTHS
    }


def check_targets(training: Tensor, validation: Tensor) -> None:
    """Raise InvalidInput where there is nothing to learn from, or nothing to tell apart."""
    none = "there are no {} steps to learn from; give more problems (train.problems)"
    refuse(
        {
            none.format("training"): not len(training),
            none.format("validation"): not len(validation),
            f"all {len(training)} training steps are labelled {float(training[:1].sum()):g}, so "
            "there is nothing to tell apart; give more problems or rollouts, or problems of "
            "another difficulty": bool((training == training[:1]).all()),
        }
    )


def fit(rows: Rows, strength: float, iterations: int = 200) -> Fit:
    """The weights with the least mean cross-entropy plus strength / 2 times their squares, on
    features scaled to unit variance. The problem is convex; it is solved in float64 by L-BFGS from
    the constant that fits best."""
    states, targets = rows.states.double(), rows.targets.double()
    centre, scale = states.mean(0), states.std(0, correction=0).clamp_min(1e-6)
    scaled = (states - centre) / scale
    bias = targets.mean().clamp(1e-6, 1 - 1e-6).logit()
    weight = torch.zeros_like(centre)
    before = loss(bias.expand_as(targets), targets)
    for parameter in (weight, bias):
        parameter.requires_grad_(True)
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=iterations, line_search_fn="strong_wolfe", tolerance_grad=1e-7
    )

    def penalised() -> Tensor:
        solver.zero_grad()
        value = (
            binary_cross_entropy_with_logits(scaled @ weight + bias, targets)
            + strength / 2 * weight.square().sum()
        )
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(penalised)
    weight, bias = weight.detach(), bias.detach()
    after = loss(scaled @ weight + bias, targets)
    return Fit(weight / scale, bias - (weight * centre / scale).sum(), strength, before, after)


def loss(log_odds: Tensor, targets: Tensor) -> float:
    """Mean cross-entropy in nats."""
    return float((softplus(log_odds) - targets * log_odds).mean())
