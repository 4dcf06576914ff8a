"""Word problems whose arithmetic is too hard for a small model, with GSM8K's calculator and
without."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from experiments.lab.bench.word_problems import CONTAINERS, NAMES, THINGS, VERBS
from experiments.runs.provenance import provenance
from experiments.runs.stats import mcnemar, wilson
from search import Greedy, solve
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


def problems(count: int) -> list[Problem]:
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


def run(count: int, out: Path) -> None:
    """Solve the problems greedily in each way, print a table and write the figures. A record with
    fewer ways goes on."""
    record = provenance(
        f"python -m experiments.bench tools --problems {count}",
        model="smollm2-135m, float32, its real weights",
    )
    record |= {"problems": count, "rows": []}
    if out.exists() and (before := json.loads(out.read_text()))["problems"] == count:
        record |= before if len(before["rows"]) < len(ARMS) else {}
    engine, asked = Engine.from_pretrained("smollm2-135m", dtype="float32"), problems(count)
    for arm in list(ARMS)[len(record["rows"]) :]:
        annotated, tool = ARMS[arm]
        results = solve(
            Greedy(max_tokens=MAX_TOKENS),
            problem=asked,
            engine=engine,
            template=template(annotated),
            tools=CalculatorTools() if tool else None,
        )
        record["rows"].append({"arm": arm, **_figures(results)})
        out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


def _figures(results: list[Result]) -> dict[str, Any]:
    count, calls = len(results), [call for r in results for n in r.tree for call in n.tool_calls]
    right = [result.problem.id for result in results if result.answer == result.problem.answer]
    return {
        "accuracy": len(right) / count,
        "accuracy_95": wilson(len(right), count),
        "generated_tokens": sum(r.usage.generated_tokens for r in results) / count,
        "calls": len(calls) / count,
        "failed_calls": sum(call.failed for call in calls) / count,
        "right": right,
    }


def table(record: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| solved examples | accuracy | 95% interval | tokens per problem | calls per problem |",
        "|---|---|---|---|---|",
    ]
    before: set[str] | None = None
    for row in record["rows"]:
        right, (low, high) = set(row["right"]), row["accuracy_95"]
        p = 1.0 if before is None else mcnemar(len(before - right), len(right - before))
        told = "" if before is None else f" (p = {p:.2g} against the row above)"
        lines.append(
            f"| {row['arm']} | {row['accuracy']:.1%}{told} | {low:.1%} to {high:.1%} "
            f"| {row['generated_tokens']:.0f} | {row['calls']:.2f} |"
        )
        before = right
    return "\n".join(lines)
