"""A small model is trained on one-digit sums, on tree rollouts and on flat ones of as many generated
tokens."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from experiments.cli.output import say
from experiments.fit.rollouts.advantages import Rule, token_advantages
from experiments.fit.rollouts.packed import PackedTree, policy_loss
from experiments.fit.rollouts.rollout import Rollout, rollouts_of
from experiments.runs.provenance import provenance
from experiments.runs.stats import mcnemar, wilson
from search import Greedy, TreeRollouts, solve
from ttc import Engine, InvalidInput
from ttc.results import Problem, Result
from ttc.text.equality import same_answer
from ttc.text.prompt import PromptTemplate

SEED = 0
END = "\n\n"
HELD_OUT = 100
"""Sums that nobody trains on."""
PROBLEMS = 4
"""Sums of one update."""
LEARNING_RATE = 3e-5
TRAINED_LAYERS = 10
"""The last layers, which alone are trained: the others then need no gradients."""
SHOTS = ((3, 1, 9), (2, 2, 8))
"""The solved examples."""
PERIODS = 4
"""Parts of a training run in the table."""


@dataclass(frozen=True)
class Arm:
    """How an update's samples are made, and what each of their tokens is credited with."""

    search: TreeRollouts
    rule: Rule


ARMS = {
    "flat GRPO": Arm(TreeRollouts(n=8, max_steps=1, step_tokens=32, temperature=1.0), "grpo"),
    "tree TreeRL": Arm(
        TreeRollouts(n=12, width=4, max_steps=3, step_tokens=12, delimiter="\n", temperature=1.0),
        "treerl",
    ),
    "tree TreePO": Arm(
        TreeRollouts(n=12, width=4, max_steps=3, step_tokens=12, delimiter="\n", temperature=1.0),
        "treepo",
    ),
}


def solved(numbers: Sequence[int]) -> str:
    a, b, c = numbers
    return f"\n{a} + {b} = {a + b}\n{a + b} + {c} = {a + b + c}{END}"


def asked(numbers: Sequence[int]) -> str:
    return " + ".join(map(str, numbers)) + ":"


TEMPLATE = PromptTemplate(
    "".join(asked(shot) + solved(shot) for shot in SHOTS) + "{question}", raw=True
)


def sums() -> tuple[list[Problem], list[Problem]]:
    """(to train on, held out): all sums of three digits from 1 to 9 but the examples', shuffled."""
    numbers = [(a, b, c) for a in range(1, 10) for b in range(1, 10) for c in range(1, 10)]
    numbers = [each for each in numbers if each not in SHOTS]
    random.Random(SEED).shuffle(numbers)
    problems = [Problem(asked(each), asked(each), str(sum(each))) for each in numbers]
    return problems[HELD_OUT:], problems[:HELD_OUT]


class Training:
    """A policy on its way: one engine whose model is trained in place.

    rows: what each update was: its mean reward, its generated tokens, the tokens of its rows and
    those that the model was trained on.
    """

    def __init__(self, arm: Arm, engine: Engine):
        self.arm = arm
        self.engine = engine
        self.problems, self.held_out = sums()
        self.rows: list[dict[str, float]] = []
        self.evaluations: dict[str, list[int]] = {}
        engine.model.requires_grad_(False)
        self.layers = engine.model.model.layers[-TRAINED_LAYERS:].requires_grad_(True)
        self.optimizer = torch.optim.AdamW(
            self.layers.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.0
        )

    @property
    def tokens(self) -> int:
        """Generated so far."""
        return sum(int(row["generated"]) for row in self.rows)

    def solve(self, search: Any, problems: Sequence[Problem], seed: int) -> list[Result]:
        results: list[Result] = solve(
            search,
            problem=list(problems),
            engine=self.engine,
            template=TEMPLATE,
            end=(END,),
            seed=seed,
        )
        return results

    def update(self) -> None:
        """Sample, reward and learn once."""
        step = len(self.rows)
        problems = random.Random(f"{SEED} {step}").sample(self.problems, PROBLEMS)
        results = self.solve(self.arm.search, problems, seed=SEED + step)
        groups: list[tuple[list[Rollout], list[float]]] = []
        for result in results:
            rollouts = rollouts_of(result)
            groups.append((rollouts, [reward(result.problem, one.text) for one in rollouts]))
        advantages = token_advantages(groups, self.arm.rule)
        packed = PackedTree.of(
            [one for rollouts, _ in groups for one in rollouts],
            [values for group in advantages for values in group],
        )
        if packed.weights.any():
            with self.engine.lent() as model:
                policy_loss(model, packed).backward()
            torch.nn.utils.clip_grad_norm_(self.layers.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.rows.append(
            {
                "reward": fmean(gain for _, rewards in groups for gain in rewards),
                "generated": sum(result.usage.generated_tokens for result in results),
                "row_tokens": packed.rows,
                "trained_tokens": len(packed.tokens),
            }
        )

    def evaluate(self) -> list[int]:
        """Which held-out sums a greedy answer gets right."""
        results = self.solve(Greedy(max_tokens=32), self.held_out, seed=SEED)
        return [int(reward(each.problem, each.best.text if each.best else "")) for each in results]

    def save(self, file: Path) -> None:
        state = {
            "rows": self.rows,
            "evaluations": self.evaluations,
            "layers": self.layers.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        written = file.with_suffix(".new")
        torch.save(state, written)
        os.replace(written, file)

    def load(self, file: Path) -> None:
        state = torch.load(file, weights_only=True)
        self.rows, self.evaluations = state["rows"], state["evaluations"]
        self.layers.load_state_dict(state["layers"])
        self.optimizer.load_state_dict(state["optimizer"])


def reward(problem: Problem, text: str) -> float:
    """1 where the last line's result is the sum."""
    said = text.strip().rpartition("=")[2].strip()
    return float(problem.answer is not None and same_answer(problem.answer, said, "number"))


def run(tokens: int, names: Sequence[str], states: Path, out: Path) -> None:
    """Train each arm until it has generated so many tokens, print a table and write the figures.
    states: the folder where a training run is kept after every few updates, so that it goes on
    where it was stopped."""
    if unknown := [name for name in names if name not in ARMS]:
        raise InvalidInput(f"the arm {unknown[0]} is unknown; use some of {', '.join(ARMS)}")
    states.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"tokens": tokens, "arms": {}}
    if out.exists() and (before := json.loads(out.read_text()))["tokens"] == tokens:
        record = before
    for name in names:
        training = _trained(name, tokens, states)
        record["arms"][name] = {"rows": training.rows, "held_out": training.evaluations}
        arms = ",".join(record["arms"])
        head = provenance(
            f"python -m experiments.bench rollouts --tokens {tokens} --arms '{arms}'",
            model=f"smollm2-135m, float32, its real weights; the last {TRAINED_LAYERS} layers "
            "are trained",
        )
        out.write_text(json.dumps(record | head) + "\n")
    print(table(record))


def _trained(name: str, tokens: int, states: Path) -> Training:
    training = Training(ARMS[name], Engine.from_pretrained("smollm2-135m", dtype="float32"))
    file = states / f"{name.replace(' ', '-')}.pt"
    if file.exists():
        training.load(file)
    if "0" not in training.evaluations:
        training.evaluations["0"] = training.evaluate()
        training.save(file)
    while training.tokens < tokens:
        training.update()
        row = training.rows[-1]
        say(f"{name}, {training.tokens} of {tokens} tokens: reward {row['reward']:.2f}")
        if len(training.rows) % 4 == 0:
            training.save(file)
    if str(tokens) not in training.evaluations:
        training.evaluations[str(tokens)] = training.evaluate()
        training.save(file)
    return training


def table(record: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    total = record["tokens"]
    parts = [f"{i + 1}/{PERIODS}" for i in range(PERIODS)]
    lines = [
        f"| rollouts | updates | mean reward, tokens {', '.join(parts)} | held-out sums before "
        "| after | trained tokens, of those in rows |",
        "|---|---|---|---|---|---|",
    ]
    for name, arm in record["arms"].items():
        rows, held_out = arm["rows"], arm["held_out"]
        periods: list[list[float]] = [[] for _ in parts]
        spent = 0
        for row in rows:
            periods[min(spent * PERIODS // total, PERIODS - 1)].append(row["reward"])
            spent += row["generated"]
        rewards = ", ".join(f"{fmean(period):.2f}" if period else "-" for period in periods)
        before, after = held_out["0"], held_out[str(total)]
        low, high = wilson(sum(after), len(after))
        lost, won = (
            sum(b > a for b, a in zip(before, after, strict=True)),
            sum(a > b for b, a in zip(before, after, strict=True)),
        )
        share = sum(row["trained_tokens"] for row in rows) / sum(row["row_tokens"] for row in rows)
        lines.append(
            f"| {name} | {len(rows)} | {rewards} | {fmean(before):.0%} "
            f"| {fmean(after):.0%} (95%: {low:.0%} to {high:.0%}; p = {mcnemar(lost, won):.2g}) "
            f"| {share:.0%} |"
        )
    return "\n".join(lines)
