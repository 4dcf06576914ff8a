"""What drafts gain where few branches decode: problems of GSM8K, and code that repeats itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc import Branch, DraftModel, Engine, PromptLookup, Sampling
from ttc.model.loading.default_model import smollm2_file
from ttc.speculation.base import Draft
from ttc.text.prompt import PromptTemplate

MODEL = "smollm2-135m"
ROWS = (1, 2, 4)
DECODED = ((1, 0.0), (1, 0.7), (2, 0.7), (4, 0.7))
"""How many branches decode, and their temperature; several greedy ones would be equal."""
COUNTS = (0, 1, 2, 4, 8)
"""Drafted tokens of each row, for what a row costs."""
TOKENS = 96
"""Of each branch, in a case."""
COST_TOKENS = 12
"""The same where the cost of rows is measured."""
DRAFT_COST = 0.0
"""Of the draft model, less than it is, so that it drafts in any case: it writes nearly the same."""

CODE = """Write the same functions for multiplication and for division.

def add(left, right):
    result = left + right
    print("the result is", result)
    return result

def subtract(left, right):
    result = left - right
    print("the result is", result)
    return result
"""


@dataclass
class Refused(Draft):
    """Drafts `count` tokens that no model writes, whatever comes of it."""

    count: int = 0

    def length(self, rows: int) -> int:
        return self.count

    def propose(
        self, branches: Sequence[Branch], counts: Sequence[int], samplings: Sequence[Sampling]
    ) -> list[list[int]]:
        return [[0] * count for count in counts]


def run(
    *,
    data: Annotated[Path | None, "a file with GSM8K's rows; default: code alone"] = None,
    problems: Annotated[int, "of that file"] = 4,
    rounds: int = 2,
    out: Path = RESULTS / "speculative.json",
) -> None:
    """Decode each prompt in each way, the ways in turn, print the tables and write the record."""
    asked = gsm8k(data, problems) if data is not None else {}
    plain = Engine.from_pretrained(MODEL, dtype="float32")
    stored = Engine.from_pretrained(smollm2_file(), dtype="float32", quantized=True)
    drafted_by = DraftModel(model=stored, cost=DRAFT_COST, max_rows=max(ROWS))
    ways = {
        "without": plain,
        "prompt lookup": beside(plain, PromptLookup(max_rows=max(ROWS))),
        "draft model": beside(plain, drafted_by),
    }
    texts = {"GSM8K": asked, "code": {"code": CODE}}
    prompts = {
        kind: [PromptTemplate().tokens(text, plain.tokenizer) for text in of.values()]
        for kind, of in texts.items()
        if of
    }
    costs = row_costs(beside(plain, Refused(max_rows=max(ROWS))), prompts["code"][0])
    figures = list(cases(ways, prompts, rounds))
    given = "" if data is None else f" --data {data} --problems {problems}"
    record = provenance(
        f"python -m experiments.bench speculative{given} --rounds {rounds}",
        model=f"{MODEL}, float32, its real weights; drafts by the same model's .gguf file, its "
        f"weights as they are stored, cost={DRAFT_COST}",
    )
    record |= {"row_costs": costs, "cases": figures}
    save(record, out)
    print(table(record))


def beside(engine: Engine, speculation: Draft) -> Engine:
    """Another engine over the same model."""
    return Engine(engine.model, engine.tokenizer, runner=engine.runner, speculation=speculation)


def gsm8k(data: Path, count: int) -> dict[str, str]:
    """The first questions of a file with GSM8K's rows."""
    lines = data.read_text(encoding="utf-8").splitlines()[:count]
    return {str(place): json.loads(line)["question"] for place, line in enumerate(lines)}


def row_costs(engine: Engine, prompt: list[int]) -> list[dict[str, float]]:
    """The time of a pass over so many rows, by how many branches decode."""
    draft = engine.speculation
    assert isinstance(draft, Refused)
    times: dict[tuple[int, int], list[float]] = {}
    for _ in range(3):
        for rows in ROWS:
            for draft.count in COUNTS:
                seconds, passes = decoded(engine, prompt, rows, COST_TOKENS)
                times.setdefault((rows, draft.count), []).append(seconds / passes)
    return [
        {"branches": rows, "drafted": count, "pass_ms": median(of) * 1e3}
        for (rows, count), of in times.items()
    ]


def decoded(engine: Engine, prompt: list[int], rows: int, tokens: int) -> tuple[float, int]:
    """The seconds that so many branches take for so many tokens, and how many passes."""
    root = engine.root(prompt)
    children = engine.fork(root, rows)
    before = root.usage.forward_passes
    start = time.perf_counter()
    engine.generate(children, tokens, sampling=Sampling(temperature=0.0))
    seconds = time.perf_counter() - start
    engine.release([root, *children])
    return seconds, root.usage.forward_passes - before


def cases(
    ways: dict[str, Engine], prompts: dict[str, list[list[int]]], rounds: int
) -> Iterator[dict[str, Any]]:
    """Tokens per second and what was accepted, of each way, kind of text and number of rows."""
    for kind, of in prompts.items():
        for rows, temperature in DECODED:
            figures: dict[str, list[tuple[float, int, int, int, int]]] = {way: [] for way in ways}
            texts: dict[str, list[list[int]]] = {}
            for turn in range(rounds):
                for place, prompt in enumerate(of):
                    for way, engine in ways.items():
                        figure, tokens = one(engine, prompt, rows, Sampling(temperature), place)
                        figures[way].append(figure)
                        texts.setdefault(f"{turn} {place}", []).append(tokens)
            same = sum(all(text == one[0] for text in one) for one in texts.values())
            for way, rates in figures.items():
                columns = list(zip(*rates, strict=True))
                yield {
                    "text": kind,
                    "branches": rows,
                    "temperature": temperature,
                    "way": way,
                    "tokens_per_s": median(columns[0]),
                    "generated": sum(columns[1]),
                    "passes": sum(columns[2]),
                    "drafted": sum(columns[3]),
                    "accepted": sum(columns[4]),
                    "equal_texts": same / len(texts),
                }


def one(
    engine: Engine, prompt: list[int], rows: int, sampling: Sampling, seed: int
) -> tuple[tuple[float, int, int, int, int], list[int]]:
    """(tokens per second, tokens, passes, drafted, accepted) of a prompt, and all its tokens."""
    root = engine.root(prompt, seed=seed)
    children = engine.fork(root, rows)
    usage = root.usage
    before = usage.forward_passes
    start = time.perf_counter()
    engine.generate(children, TOKENS, sampling=sampling)
    seconds = time.perf_counter() - start
    engine.release([root, *children])
    passes = usage.forward_passes - before
    tokens = [token for child in children for token in child.generated]
    rate = usage.generated_tokens / seconds
    return (
        (rate, usage.generated_tokens, passes, usage.drafted_tokens, usage.accepted_tokens),
        tokens,
    )


def table(record: dict[str, Any]) -> str:
    """The figures as Markdown tables."""
    lines = [
        "| text | branches | temperature | way | tokens/s | against without | tokens a pass "
        "| accepted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain = 0.0
    for case in record["cases"]:
        if case["way"] == "without":
            plain = case["tokens_per_s"]
        share = f"{case['accepted'] / case['drafted']:.0%}" if case["drafted"] else "-"
        lines.append(
            f"| {case['text']} | {case['branches']} | {case['temperature']} | {case['way']} "
            f"| {case['tokens_per_s']:.1f} "
            f"| {case['tokens_per_s'] / plain:.2f} | {case['generated'] / case['passes']:.2f} "
            f"| {share} |"
        )
    lines += ["", "| branches | drafted of each | pass, ms |", "|---|---|---|"]
    lines += [
        f"| {cost['branches']} | {cost['drafted']} | {cost['pass_ms']:.1f} |"
        for cost in record["row_costs"]
    ]
    return "\n".join(lines)
