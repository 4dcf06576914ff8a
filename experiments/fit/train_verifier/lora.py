"""LoRA adapters on the policy, trained together with the head: a process reward model (PRM)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import get_cosine_schedule_with_warmup

from experiments.cli.output import say
from experiments.fit.train_verifier.fitting import check_targets, loss
from experiments.fit.train_verifier.rollouts import Labels, Solution
from experiments.runs.screen import with_progress
from ttc.errors import InvalidInput
from verifiers import ValueHead

MISSING_PEFT = "train.lora_rank needs peft: pip install -e '.[train]' in the folder of this project"

WARM_UP = 0.05
"""The share of all training steps in which the learning rate rises."""

ALPHA = 2
"""lora_alpha, as a multiple of the rank."""


@dataclass(frozen=True)
class LoraSettings:
    """rank: of the adapters, on every linear layer of the model but the vocabulary's. epochs: how
    often all solutions are read. learning_rate: the highest one, of AdamW. batch: solutions of a
    training step."""

    rank: int
    epochs: int
    learning_rate: float
    batch: int

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch", self.batch)):
            if value < 1:
                raise InvalidInput(f"train.{name}={value} must be at least 1")
        if not 0 < self.learning_rate <= 1:
            raise InvalidInput(
                f"train.learning_rate={self.learning_rate} must be above 0 and at most 1"
            )


def check_peft() -> None:
    """Raise InvalidInput where peft is missing."""
    if find_spec("peft") is None:
        raise InvalidInput(MISSING_PEFT)


@dataclass(frozen=True)
class Example:
    """Equal solutions, as the head reads them.

    tokens: the text. reads: where in it each step ends. targets: (steps,) from 0 to 1, the mean of
    these solutions. count: how many solutions they are.
    """

    tokens: list[int]
    reads: list[int]
    targets: list[float]
    count: int


@dataclass
class LoraFit:
    """How the training went. Losses are means over steps, in nats.

    epoch: the one whose adapters and head are kept, the best on the validation problems.
    before, after: of the training steps, of the best constant and of what is kept. constant,
    validation: of the validation steps, of the training steps' mean and after each epoch.
    """

    settings: LoraSettings
    before: float
    constant: float
    after: float = 0.0
    epoch: int = 0
    validation: dict[int, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {
            "lora": vars(self.settings) | {"epoch": self.epoch},
            "loss_before": self.before,
            "loss": self.after,
            "validation_loss_before": self.constant,
            "validation_loss": {str(epoch): loss for epoch, loss in self.validation.items()},
        }


def examples(head: ValueHead, solved: Sequence[Solution], labels: Labels) -> list[Example]:
    """Each different text once, with the mean of its solutions' targets."""
    together: dict[tuple[str, tuple[str, ...]], list[list[float]]] = defaultdict(list)
    for one in solved:
        together[one.problem.question, tuple(one.steps)].append(one.targets(labels))
    read = list[Example]()
    for (question, steps), targets in together.items():
        layout = head.laid_out(question, list(steps), None)
        means = torch.tensor(targets).mean(0).tolist()
        read.append(Example(layout.tokens, layout.reads, means, len(targets)))
    return read


class LoraTraining:
    """model: a causal language model as `ttc.model.loading.load` gives it; the adapters are put
    into it. seed: of their first weights and of the order of solutions. prompt, separator: as of
    `ValueHead`."""

    def __init__(
        self, model: Any, tokenizer: Any, settings: LoraSettings, seed: int, **layout: str
    ):
        from peft import LoraConfig, get_peft_model

        self.settings = settings
        self.order = torch.Generator().manual_seed(seed)
        self.head = ValueHead.on(model, tokenizer, **layout)
        self.linear = cast(nn.Linear, self.head.head)
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=ALPHA * settings.rank,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        # peft draws the first weights on the CPU, whatever the model's device is.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.adapted: Any = get_peft_model(model, config)
        self.body = model.base_model

    def run(
        self, solved: Sequence[Solution], validation: Sequence[Solution], labels: Labels
    ) -> LoraFit:
        """Train on some solutions; keep what is best on the others after an epoch.

        Raises InvalidInput where there is nothing to tell apart, and where training diverges.
        """
        train, held_out = (examples(self.head, part, labels) for part in (solved, validation))
        targets, others = _targets(train), _targets(held_out)
        check_targets(targets, others)
        constant = targets.mean().clamp(1e-6, 1 - 1e-6).logit()
        fit = LoraFit(self.settings, loss(constant, targets), loss(constant, others))
        self._start(constant)
        steps = self.settings.epochs * -(-len(train) // self.settings.batch)
        optimizer = torch.optim.AdamW(self._parameters(), lr=self.settings.learning_rate)
        schedule = get_cosine_schedule_with_warmup(optimizer, int(WARM_UP * steps), steps)
        kept: list[Tensor] = []
        for epoch in range(1, self.settings.epochs + 1):
            batches = list(self._batches(train))
            for batch in with_progress(batches, f"epoch {epoch}", "batches"):
                optimizer.zero_grad()
                self._loss(batch).backward()
                nn.utils.clip_grad_norm_(self._parameters(), 1.0)
                optimizer.step()
                schedule.step()
            fit.validation[epoch] = self.mean_loss(held_out)
            if not math.isfinite(fit.validation[epoch]):
                raise InvalidInput(
                    f"train.learning_rate={self.settings.learning_rate:g} is too high: the loss "
                    f"was {fit.validation[epoch]} after epoch {epoch}; give a lower one"
                )
            say(f"validation loss after epoch {epoch}: {fit.validation[epoch]:.4f}")
            if fit.validation[epoch] == min(fit.validation.values()):
                fit.epoch = epoch
                kept = [parameter.detach().clone() for parameter in self._parameters()]
        with torch.no_grad():
            for parameter, value in zip(self._parameters(), kept, strict=True):
                parameter.copy_(value)
        fit.after = self.mean_loss(train)
        return fit

    def save(self, folder: Path, base: str) -> None:
        """The adapters in peft's format, and the head, as `ValueHead` loads them.

        base: the model below, by alias, folder or hub id.
        """
        self.adapted.peft_config["default"].base_model_name_or_path = base
        # the embeddings are the base's own: else peft asks the hub about a base it does not know
        self.adapted.save_pretrained(folder, save_embedding_layers=False)
        self.head.save(folder, base=base)

    # ---------------------------------------------------------------- one step of training

    def _parameters(self) -> list[nn.Parameter]:
        adapters = [p for p in self.adapted.parameters() if p.requires_grad]
        return [*adapters, *self.linear.parameters()]

    def _start(self, log_odds: Tensor) -> None:
        """Let the head begin with these log-odds, whatever it sees."""
        with torch.no_grad():
            self.linear.bias.copy_(torch.stack([-log_odds / 2, log_odds / 2]))

    def _batches(self, rows: list[Example]) -> Iterator[list[Example]]:
        drawn = torch.randperm(len(rows), generator=self.order).tolist()
        for first in range(0, len(rows), self.settings.batch):
            yield [rows[place] for place in drawn[first : first + self.settings.batch]]

    def _log_odds(self, batch: Sequence[Example]) -> Tensor:
        """That each step is right, of all steps of a batch: (steps,)."""
        tokens = nn.utils.rnn.pad_sequence(
            [torch.tensor(one.tokens) for one in batch], batch_first=True
        )
        lengths = torch.tensor([[len(one.tokens)] for one in batch])
        mask = (torch.arange(tokens.shape[1]) < lengths).long()
        device = self.body.device
        states = self.body(tokens.to(device), attention_mask=mask.to(device)).last_hidden_state
        ends = torch.cat([states[row, one.reads] for row, one in enumerate(batch)])
        wrong, right = self.linear(ends.float()).unbind(-1)
        return right - wrong

    def _loss(self, batch: Sequence[Example]) -> Tensor:
        """Mean cross-entropy over the steps of the batch's solutions."""
        log_odds = self._log_odds(batch)
        targets, counts = (part.to(log_odds) for part in _weighted(batch))
        summed = binary_cross_entropy_with_logits(log_odds, targets, counts, reduction="sum")
        return summed / counts.sum()

    @torch.no_grad()
    def mean_loss(self, rows: Sequence[Example]) -> float:
        """Over the steps of all solutions, in nats."""
        size = self.settings.batch
        odds = [self._log_odds(rows[at : at + size]).cpu() for at in range(0, len(rows), size)]
        targets, counts = _weighted(rows)
        return loss(torch.cat(odds).repeat_interleave(counts), targets.repeat_interleave(counts))


def _weighted(rows: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """The target of each step, and how many solutions have the step: (steps,) both."""
    targets = [target for one in rows for target in one.targets]
    counts = [one.count for one in rows for _ in one.targets]
    return torch.tensor(targets), torch.tensor(counts)


def _targets(rows: Sequence[Example]) -> Tensor:
    """The target of each step of each solution: (steps,)."""
    targets, counts = _weighted(rows)
    return targets.repeat_interleave(counts)
