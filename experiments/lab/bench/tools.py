"""Word problems whose arithmetic is too hard for a small model, with GSM8K's calculator and
without."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.lab.bench.options import RESULTS
from experiments.lab.bench.word_problems import CONTAINERS, NAMES, THINGS, VERBS
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from experiments.runs.stats import mcnemar, wilson
from search import Greedy, solve_each
from ttc import CalculatorTools, Engine
from ttc.results import Problem, Result
from ttc.text.prompt import PromptTemplate

SEED = 0
MAX_TOKENS = 80
SHOTS = ((7, 24, 15), (13, 31, 48), (6, 85, 27), (28, 17, 9))
"""The numbers of the solved examples."""

ARMS = {
    "plain": (False, False),
    "annotated": (True, False),
    "annotated, with the calculator": (True, True),
}
"""Whether the solved examples have annotations as `<<7*24=168>>`, and whether a tool answers
them."""


def question(rng: random.Random, containers: int, each: int, more: int) -> str:
    name, things, verb = rng.choice(NAMES), rng.choice(THINGS), rng.choice(VERBS)
    return (
        f"{name} has {containers} {rng.choice(CONTAINERS)} with {each} {things} each. "
        f"Then {name} {verb} {more} more {things}. How many {things} does {name} have now?"
    )


def solution(containers: int, each: int, more: int, annotated: bool) -> str:
    product, total = containers * each, containers * each + more
    first = f"<<{containers}*{each}={product}>>" if annotated else ""
    second = f"<<{product}+{more}={total}>>" if annotated else ""
    return (
        f"First there are {containers} * {each} = {first}{product}. "
        f"Then there are {product} + {more} = {second}{total}. The answer is {total}."
    )


def word_problems(count: int) -> list[Problem]:
    """So many different ones, always the same."""
    rng, made = random.Random(SEED), dict[str, int]()
    while len(made) < count:
        containers, each, more = rng.randint(3, 40), rng.randint(12, 99), rng.randint(11, 99)
        made[question(rng, containers, each, more)] = containers * each + more
    return [
        Problem(asked, str(place), str(gold)) for place, (asked, gold) in enumerate(made.items())
    ]


def template(annotated: bool) -> PromptTemplate:
    rng = random.Random(SEED + 1)
    shots = tuple((question(rng, *shot), solution(*shot, annotated)) for shot in SHOTS)
    return PromptTemplate("{question}", examples=shots, chat=False)


def run(*, problems: int = 200, out: Path = RESULTS / "tools.json") -> None:
    """Solve the problems greedily in each way, print a table and write the figures. A record in
    which some are missing goes on."""
    record = provenance(
        f"python -m experiments.bench tools --problems {problems}",
        model="smollm2-135m, float32, its real weights",
    )
    record |= {"problems": problems, "solved": {arm: {} for arm in ARMS}}
    if out.exists() and (before := json.loads(out.read_text()))["problems"] == problems:
        record |= before
    engine, asked = Engine.from_pretrained("smollm2-135m", dtype="float32"), word_problems(problems)
    for arm, (annotated, tool) in ARMS.items():
        solved = record["solved"][arm]
        for result in solve_each(
            Greedy(max_tokens=MAX_TOKENS),
            problems=[problem for problem in asked if problem.id not in solved],
            engine=engine,
            template=template(annotated),
            tools=CalculatorTools() if tool else None,
        ):
            solved[result.problem.id] = _figures(result)
            save(record, out)
    print(table(record))


def _figures(result: Result) -> list[int]:
    """Whether it is right, its generated tokens, its calls and those that failed."""
    calls = [call for node in result.tree for call in node.tool_calls]
    right, failed = result.answer == result.problem.answer, sum(call.failed for call in calls)
    return [int(right), result.usage.generated_tokens, len(calls), failed]


def table(record: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| solved examples | accuracy | 95% interval | tokens per problem | calls per problem |",
        "|---|---|---|---|---|",
    ]
    before: set[str] | None = None
    for arm, solved in record["solved"].items():
        right = {name for name, figures in solved.items() if figures[0]}
        tokens, calls = (fmean(figures[i] for figures in solved.values()) for i in (1, 2))
        low, high = wilson(len(right), len(solved))
        p = 1.0 if before is None else mcnemar(len(before - right), len(right - before))
        told = "" if before is None else f" (p = {p:.2g} against the row above)"
        lines.append(
            f"| {arm} | {len(right) / len(solved):.1%}{told} | {low:.1%} to {high:.1%} "
            f"| {tokens:.0f} | {calls:.2f} |"
        )
        before = right
    return "\n".join(lines)
