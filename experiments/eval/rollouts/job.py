"""A run with all of its tokens, and its samples with rewards and advantages beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from omegaconf import DictConfig

from experiments.cli.output import show
from experiments.eval.export.trajectories import trajectories, write_jsonl
from experiments.fit.rollouts.advantages import Rule, check_rule, token_advantages
from experiments.fit.rollouts.rollout import Rollout
from experiments.runs import problem_loop
from experiments.runs.finished import Run
from experiments.runs.records import run_folder
from ttc.errors import InvalidInput
from ttc.wording import number_of

Row = dict[str, Any]
FILE = "rollouts.jsonl"


def run(config: DictConfig, overrides: Sequence[str] = ()) -> list[Row]:
    """Solve what is left of a run, write `rollouts.jsonl` into its folder and return the rows."""
    rule = check_rule(config.rollouts.rule)
    if not config.run.record_tokens:
        raise InvalidInput("rollouts are made of tokens; leave run.record_tokens=true as it is")
    if not problem_loop.run(config):
        return []  # run.dry=true
    folder = run_folder(config)
    rows = training_rows(Run.load(folder), rule)
    write_jsonl(rows, folder / FILE)
    right = sum(row["reward"] for row in rows) / len(rows)
    show(f"{number_of(len(rows), 'rollout')} with a mean reward of {right:.3f}: {folder / FILE}")
    return rows


def training_rows(run: Run, rule: Rule) -> list[Row]:
    """A row for every sample of every problem: the trajectory (see `trajectories`) with its
    `reward`, 1 for a right answer and else 0, and with `advantages`, one for each token of the
    completion.

    Raises InvalidInput for a run without tokens, and for samples that are no leaves of one tree."""
    rows = [row for row in trajectories(run) if row["correct"] is not None]
    if not rows:
        raise InvalidInput(f"no problem in {run.folder} has a sample that was graded")
    problems = [list(group) for _, group in groupby(rows, key=lambda row: row["problem_id"])]
    groups = []
    for group in problems:
        rewards = [float(row["correct"]) for row in group]
        groups.append((list(map(_rollout, group)), rewards))
    return list(_rows(problems, token_advantages(groups, rule), rule))


def _rollout(row: Row) -> Rollout:
    if len(row["path"]) != len(row["step_ends"]):
        raise InvalidInput(
            f"a sample of problem {row['problem_id']} has "
            f"{number_of(len(row['step_ends']), 'step')} and a path of "
            f"{number_of(len(row['path']), 'fork')}; use search=tree_rollouts or "
            "search=self_consistency"
        )
    return Rollout(
        row["prompt_ids"],
        row["completion_ids"],
        [math.nan if logprob is None else logprob for logprob in row["logprobs"]],
        tuple(row["path"]),
        row["step_ends"],
        row["completion"],
        row["finish_reason"] is not None,
    )


def _rows(
    problems: list[list[Row]], advantages: list[list[list[float]]], rule: Rule
) -> Iterator[Row]:
    for group, values in zip(problems, advantages, strict=True):
        for row, of_tokens in zip(group, values, strict=True):
            yield row | {"reward": float(row["correct"]), "rule": rule, "advantages": of_tokens}
