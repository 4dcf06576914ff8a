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
from search import Greedy, Search, SelfConsistency, solve
from ttc import CalculatorTools, Engine
from ttc.results import Problem, Result
from ttc.text.prompt import PromptTemplate

SEED = 0
MAX_TOKENS = 80
SHOTS = ((7, 24, 15), (13, 31, 48), (6, 85, 27), (28, 17, 9))
"""The numbers of the solved examples."""

ARMS = {
    "plain": (False, False),
    "annotations, no tool": (True, False),
    "calculator": (True, True),
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


def run(count: int, samples: int, out: Path) -> None:
    """Solve the problems in each way, print a table and write the figures. samples: for
    self-consistency beside greedy, 0 for none."""
    engine = Engine.from_pretrained("smollm2-135m", dtype="float32")
    searches: dict[str, Search] = {"greedy": Greedy(max_tokens=MAX_TOKENS)}
    if samples:
        voting = SelfConsistency(n=samples, max_tokens=MAX_TOKENS)
        searches[f"self-consistency, n={samples}"] = voting
    asked, rows, right = (
        problems(count),
        list[dict[str, Any]](),
        dict[tuple[str, str], list[bool]](),
    )
    for search_name, search in searches.items():
        for arm, (annotated, tool) in ARMS.items():
            results = solve(
                search,
                problem=asked,
                engine=engine,
                template=template(annotated),
                tools=CalculatorTools() if tool else None,
            )
            right[search_name, arm] = correct = [r.answer == r.problem.answer for r in results]
            rows.append({"search": search_name, "arm": arm, **_figures(results, correct)})
            print(json.dumps(rows[-1]), flush=True)
            if tool:
                rows[-1]["p"] = _p(right[search_name, "plain"], correct)
    record = provenance(
        f"python -m experiments.bench tools --problems {count} --samples {samples}",
        model="smollm2-135m, float32, its real weights",
    )
    record |= {"problems": count, "rows": rows}
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


def _figures(results: list[Result], correct: list[bool]) -> dict[str, Any]:
    count, calls = len(results), [call for r in results for n in r.tree for call in n.tool_calls]
    return {
        "accuracy": sum(correct) / count,
        "accuracy_95": wilson(sum(correct), count),
        "generated_tokens": sum(r.usage.generated_tokens for r in results) / count,
        "calls": len(calls) / count,
        "failed_calls": sum(call.failed for call in calls) / count,
    }


def _p(before: list[bool], after: list[bool]) -> float:
    """Of McNemar's test."""
    pairs = list(zip(before, after, strict=True))
    return mcnemar(sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs))


def table(record: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| search | | accuracy | 95% interval | tokens per problem | calls per problem |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        low, high = row["accuracy_95"]
        p = f" (p = {row['p']:.1g} against plain)" if "p" in row else ""
        lines.append(
            f"| {row['search']} | {row['arm']} | {row['accuracy']:.1%}{p} | {low:.1%} to {high:.1%} "
            f"| {row['generated_tokens']:.0f} | {row['calls']:.2f} |"
        )
    return "\n".join(lines)
