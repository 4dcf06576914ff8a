"""Two models in one tree: AB-MCTS draws which of them writes each answer, by the scores so far.

One is the default model, the other the same with its weights rounded to a few bits, which is right
less often. Each is tried alone and beside the other, with as many tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from experiments.lab.bench.dtypes import default_dtype
from experiments.runs.build import make_template, make_verifier, resolved
from experiments.runs.data import LoadedTask, graded, load_task
from experiments.runs.grading import AnswerReading
from experiments.runs.hydra_command import composed
from experiments.runs.provenance import provenance
from experiments.runs.stats import mcnemar, wilson
from search import ABMCTS, ABMCTSM, Search, solve
from ttc.engine import Engine
from ttc.model.loading.load import load
from ttc.results import Result

MODEL = "smollm2-135m"
BITS, GROUP = 4, 32
"""Of the rounded weights; each group of numbers has a scale."""
ANSWER_TOKENS = 64
ANSWERS = 18
"""At most; the tokens end before."""
TOKENS = 180
"""Generated tokens of a problem, all models together."""
CONCURRENCY = 32

Engines = Mapping[str, Engine]
SEARCHES: dict[str, type[ABMCTS]] = {"ab_mcts": ABMCTS, "ab_mcts_m": ABMCTSM}


def run(problems: int, out: Path) -> None:
    """Solve the problems in each way, print a table and write the figures."""
    config = resolved(composed([f"dataset.size={problems}"]))
    task = load_task(config.dataset)
    whole, coarse = Engine.from_pretrained(MODEL), rounded()
    arms: dict[str, tuple[str, Engines]] = {
        "whole, alone": ("ab_mcts_m", {"whole": whole}),
        "rounded, alone": ("ab_mcts_m", {"rounded": coarse}),
        "both": ("ab_mcts_m", {"whole": whole, "rounded": coarse}),
        "both, variant A": ("ab_mcts", {"whole": whole, "rounded": coarse}),
    }
    rows = []
    for name, (search, engines) in arms.items():
        made = SEARCHES[search](iterations=ANSWERS, max_tokens=ANSWER_TOKENS)
        rows.append({"arm": name, "search": search} | measured(config, made, engines, task))
        print(json.dumps(rows[-1]), flush=True)
    record = provenance(
        f"python -m experiments.bench several_models --problems {problems}",
        model=f"{MODEL}, {default_dtype()}, its real weights, and the same in "
        f"{BITS} bits, groups of {GROUP} rounded to the nearest",
    )
    out.write_text(json.dumps(record | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(table(record | {"rows": rows}))


def rounded() -> Engine:
    """The default model with the weights of its layers rounded to the nearest of a few values."""
    model, tokenizer = load(MODEL)
    largest = 2 ** (BITS - 1) - 1
    with torch.no_grad():
        for module in model.model.layers.modules():
            if isinstance(module, nn.Linear):
                groups = module.weight.view(-1, GROUP).float()
                scales = groups.abs().amax(1, keepdim=True) / largest
                values = (groups / scales).round() * scales
                module.weight.copy_(values.view_as(module.weight))
    return Engine(model, tokenizer)


def measured(config: Any, search: Search, engines: Engines, task: LoadedTask) -> dict[str, Any]:
    """outcomes: 1 for each problem that was solved, else 0. answers: how many each model wrote."""
    results: list[Result] = solve(
        search,
        problem=task.problems,
        engine=dict(engines),
        verifier=make_verifier(config),
        seed=config.run.seed,
        template=make_template(config),
        **AnswerReading.of(config.dataset).options(),
        end=tuple(config.dataset.end),
        max_generated_tokens=TOKENS,
        concurrency=CONCURRENCY,
    )
    answers = Counter(node.model for result in results for node in result.tree if node.text)
    return {
        "outcomes": [int(graded(task, result)["correct"]) for result in results],
        "generated_tokens": fmean(result.usage.generated_tokens for result in results),
        "answers": {name: answers[name] for name in engines},
    }


def table(record: dict[str, Any]) -> str:
    lines = [
        "| models | search | right | 95% interval | tokens per problem | answers of the whole one "
        "| p against it alone |",
        "|---|---|---|---|---|---|---|",
    ]
    alone = record["rows"][0]["outcomes"]
    for row in record["rows"]:
        right, count = sum(row["outcomes"]), len(row["outcomes"])
        low, high = wilson(right, count)
        share = row["answers"].get("whole", 0) / sum(row["answers"].values())
        lines.append(
            f"| {row['arm']} | `{row['search']}` | {right / count:.1%} | {low:.1%} to {high:.1%} "
            f"| {row['generated_tokens']:.0f} | {share:.0%} | {_p(alone, row['outcomes'])} |"
        )
    return "\n".join(lines)


def _p(one: Sequence[int], other: Sequence[int]) -> str:
    if one == other:
        return ""
    pairs = Counter(zip(one, other, strict=True))
    return f"{mcnemar(pairs[1, 0], pairs[0, 1]):.2g}"
