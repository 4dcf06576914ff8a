"""LoRA adapters on the policy, trained together with the head: a process reward model (PRM). Or
alone, so that the model's own tokens rate (`TokenPRM`).

The head begins as the logistic regression on the states of the model as it is, for a head that has
to be learned from nothing spoils the states meanwhile (LP-FT, arXiv 2202.10054).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import get_cosine_schedule_with_warmup

from experiments.cli.output import say
from experiments.fit.train_verifier.fitting import Rows, check_targets, fit, loss, validation_losses
from experiments.fit.train_verifier.rollouts import Labels, Solution
from experiments.runs.screen import with_progress
from ttc.errors import InvalidInput
from verifiers import TokenPRM, ValueHead
from verifiers.reward_model import RewardModel

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


def check_peft() -> None:
    """Raise InvalidInput where peft is missing."""
    if find_spec("peft") is None:
        raise InvalidInput(MISSING_PEFT)


@dataclass(frozen=True)
class TrainingExample:
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

    epoch: the one whose adapters and head are kept, the best on the validation problems; 0 for the
    head as it begins.
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


def rows_of(layer: nn.Linear, rows: Sequence[int]) -> nn.Linear:
    """Some outputs of a layer, in float32, which training leaves as they are."""
    chosen = nn.Linear(layer.in_features, len(rows), layer.bias is not None, layer.weight.device)
    chosen.weight = nn.Parameter(layer.weight[rows].detach().float(), requires_grad=False)
    if layer.bias is not None:
        chosen.bias = nn.Parameter(layer.bias[rows].detach().float(), requires_grad=False)
    return chosen


def examples(
    head: RewardModel, solved: Sequence[Solution], labels: Labels
) -> list[TrainingExample]:
    """Each different text once, with the mean of its solutions' targets."""
    together: dict[tuple[str, tuple[str, ...]], list[list[float]]] = defaultdict(list)
    for one in solved:
        together[one.problem.whole_question, tuple(one.steps)].append(one.targets(labels))
    read = list[TrainingExample]()
    for (question, steps), targets in together.items():
        layout = head.laid_out(question, list(steps), None)
        means = torch.tensor(targets).mean(0).tolist()
        read.append(TrainingExample(layout.tokens, layout.reads, means, len(targets)))
    return read


class LoraTraining:
    """model: a causal language model as `ttc.model.loading.load` gives it; the adapters are put
    into it. seed: of their first weights and of the order of solutions. verifier: what is trained,
    on that model."""

    def __init__(
        self, model: Any, settings: LoraSettings, seed: int, verifier: ValueHead | TokenPRM
    ):
        from peft import LoraConfig, get_peft_model

        self.settings = settings
        self.order = torch.Generator().manual_seed(seed)
        self.verifier = verifier
        self.kinds = [1, 1]
        """How many of the labels say wrong, and how many right."""
        if isinstance(verifier, ValueHead):
            self.linear = cast(nn.Linear, verifier.head)
        else:
            good = len(verifier.good)
            rows = [*verifier.places[good:], *verifier.places[:good]]
            self.kinds = [len(verifier.bad), good]
            self.linear = rows_of(model.get_output_embeddings(), rows)
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
        train, held_out = (examples(self.verifier, group, labels) for group in (solved, validation))
        rows, others = self._rows(train), self._rows(held_out)
        if isinstance(self.verifier, ValueHead):
            self._start(rows, others)
        check_targets(rows.targets, others.targets)
        constant = rows.targets.mean().clamp(1e-6, 1 - 1e-6).logit()
        made = LoraFit(self.settings, loss(constant, rows.targets), loss(constant, others.targets))
        kept = self._note(made, 0, held_out)
        steps = self.settings.epochs * -(-len(train) // self.settings.batch)
        optimizer = torch.optim.AdamW(self._parameters(), lr=self.settings.learning_rate)
        schedule = get_cosine_schedule_with_warmup(optimizer, int(WARM_UP * steps), steps)
        for epoch in range(1, self.settings.epochs + 1):
            batches = list(self._batches(train))
            for batch in with_progress(batches, f"epoch {epoch}", "batches"):
                optimizer.zero_grad()
                self._loss(batch).backward()
                nn.utils.clip_grad_norm_(self._parameters(), 1.0)
                optimizer.step()
                schedule.step()
            kept = self._note(made, epoch, held_out) or kept
        with torch.no_grad():
            for parameter, value in zip(self._parameters(), kept, strict=True):
                parameter.copy_(value)
        made.after = self.mean_loss(train)
        return made

    def save(self, folder: Path, base: str) -> None:
        """The adapters in peft's format, and the head, as `ValueHead` loads them; or the language
        model with the adapters in its weights, and its tokenizer, as `TokenPRM` does.

        base: the model below, by alias, folder or hub id.
        """
        if not isinstance(self.verifier, ValueHead):
            self.adapted.merge_and_unload().save_pretrained(folder)
            self.verifier.tokenizer.save_pretrained(folder)
            return
        self.adapted.peft_config["default"].base_model_name_or_path = base
        # the embeddings are the base's own: else peft asks the hub about a base it does not know
        self.adapted.save_pretrained(folder, save_embedding_layers=False)
        self.verifier.save(folder, base=base)

    # ---------------------------------------------------------------- one step of training

    def _parameters(self) -> list[nn.Parameter]:
        adapters = [p for p in self.adapted.parameters() if p.requires_grad]
        return [*adapters, *(p for p in self.linear.parameters() if p.requires_grad)]

    def _rows(self, solved: Sequence[TrainingExample]) -> Rows:
        """What the head sees at the end of each step, of the model as it is now."""
        counts = _weighted(solved)[1]
        states = [batch.cpu() for batch in self._each_batch(solved, self._states)]
        return Rows(torch.cat(states).repeat_interleave(counts, 0), _targets(solved))

    def _start(self, rows: Rows, validation: Rows) -> None:
        """Let the head be the logistic regression on the training rows that is best on the
        validation rows."""
        losses = validation_losses(rows, validation)
        fit(rows, min(losses, key=lambda strength: losses[strength])).put(self.linear)

    def _note(self, made: LoraFit, epoch: int, held_out: Sequence[TrainingExample]) -> list[Tensor]:
        """Note the validation loss after an epoch. Returns the weights where it is the least so
        far, else nothing."""
        made.validation[epoch] = self.mean_loss(held_out)
        if not math.isfinite(made.validation[epoch]):
            raise InvalidInput(
                f"train.learning_rate={self.settings.learning_rate:g} is too high: the loss "
                f"was {made.validation[epoch]} after epoch {epoch}; give a lower one"
            )
        say(f"validation loss after epoch {epoch}: {made.validation[epoch]:.4f}")
        if made.validation[epoch] > min(made.validation.values()):
            return []
        made.epoch = epoch
        return [parameter.detach().clone() for parameter in self._parameters()]

    def _batches(self, rows: list[TrainingExample]) -> Iterator[list[TrainingExample]]:
        drawn = torch.randperm(len(rows), generator=self.order).tolist()
        for first in range(0, len(rows), self.settings.batch):
            yield [rows[place] for place in drawn[first : first + self.settings.batch]]

    def _states(self, batch: Sequence[TrainingExample]) -> Tensor:
        """What the head sees at the end of each step of a batch: (steps, width)."""
        tokens = nn.utils.rnn.pad_sequence(
            [torch.tensor(one.tokens) for one in batch], batch_first=True
        )
        lengths = torch.tensor([[len(one.tokens)] for one in batch])
        mask = (torch.arange(tokens.shape[1]) < lengths).long()
        device = self.body.device
        states = self.body(tokens.to(device), attention_mask=mask.to(device)).last_hidden_state
        return torch.cat([states[row, one.reads] for row, one in enumerate(batch)]).float()

    def _log_odds(self, batch: Sequence[TrainingExample]) -> Tensor:
        """That each step is right, of all steps of a batch: (steps,)."""
        wrong, right = self.linear(self._states(batch)).split(self.kinds, -1)
        return right.logsumexp(-1) - wrong.logsumexp(-1)

    @torch.no_grad()
    def _each_batch(
        self, rows: Sequence[TrainingExample], of: Callable[[Sequence[TrainingExample]], Tensor]
    ) -> list[Tensor]:
        size = self.settings.batch
        return [of(rows[first : first + size]) for first in range(0, len(rows), size)]

    def _loss(self, batch: Sequence[TrainingExample]) -> Tensor:
        """Mean cross-entropy over the steps of the batch's solutions."""
        log_odds = self._log_odds(batch)
        targets, counts = (tensor.to(log_odds) for tensor in _weighted(batch))
        summed = binary_cross_entropy_with_logits(log_odds, targets, counts, reduction="sum")
        return summed / counts.sum()

    def mean_loss(self, rows: Sequence[TrainingExample]) -> float:
        """Over the steps of all solutions, in nats."""
        odds = [batch.cpu() for batch in self._each_batch(rows, self._log_odds)]
        targets, counts = _weighted(rows)
        return loss(torch.cat(odds).repeat_interleave(counts), targets.repeat_interleave(counts))


def _weighted(rows: Sequence[TrainingExample]) -> tuple[Tensor, Tensor]:
    """The target of each step, and how many solutions have the step: (steps,) both."""
    targets = [target for one in rows for target in one.targets]
    counts = [one.count for one in rows for _ in one.targets]
    return torch.tensor(targets), torch.tensor(counts)


def _targets(rows: Sequence[TrainingExample]) -> Tensor:
    """The target of each step of each solution: (steps,)."""
    targets, counts = _weighted(rows)
    return targets.repeat_interleave(counts)
