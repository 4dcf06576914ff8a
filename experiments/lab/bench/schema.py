"""What an answer by a schema costs: passes with and without it, and the choice of tokens alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.lab.bench.options import RESULTS, Model
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from search import Greedy
from search.config import SearchConfig
from search.options import SolveOptions
from ttc import Branch, Engine, Sampling, Step
from ttc.step import Grammar
from ttc.text.prompt import PromptTemplate

QUESTION = "List many cities as JSON, each with its name, people and whether it has a river."

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "people": {"type": "integer", "minimum": 0},
        "river": {"type": "boolean"},
    },
    "required": ["name", "people", "river"],
    "additionalProperties": False,
}

SCHEMAS: dict[str, Any] = {
    "objects": {"type": "array", "items": CITY, "minItems": 1000},
    "one long string": {"type": "string", "minLength": 10000},
}
"""None of them is complete before a case ends."""


@dataclass
class Case:
    """Processor time of one way: of a pass with its draw, in milliseconds, and of what a row's
    grammar takes in it, in microseconds, with the tokens that it allowed."""

    pass_ms: float
    mask_us: float = 0.0
    allowed: float = 0.0


@dataclass(eq=False)
class Timed:
    """A grammar that says how long it took, and how much it allowed."""

    inner: Grammar
    taken_s: float = 0.0
    rows: int = 0
    allowed: int = 0

    @property
    def request_fields(self) -> Any:
        return self.inner.request_fields

    def reads(self, text: str) -> bool:
        return self.inner.reads(text)

    def fill(self, branch: Branch, allowed: np.ndarray) -> None:
        started = time.process_time()
        self.inner.fill(branch, allowed)
        self.taken_s += time.process_time() - started
        self.rows += 1
        self.allowed += int(np.unpackbits(allowed.view(np.uint8)).sum())


def run(
    *,
    model: Model = "smollm2-135m",
    rows: Sequence[int] = (1, 8, 32),
    tokens: int = 64,
    rounds: int = 5,
    out: Path = RESULTS / "schema.json",
) -> None:
    """Decode branches in each way, the ways in turn, print the table and write the record."""
    engine = Engine.from_pretrained(model, dtype="float32")
    prompt = PromptTemplate("{question}").tokens(QUESTION, engine.tokenizer)
    begun, grammars = time.process_time(), dict[str, Grammar | None]()
    grammars["no schema"] = None
    for name, schema in SCHEMAS.items():
        config = SearchConfig.of(Greedy(), engine, SolveOptions(schema=schema))
        grammars[name] = config.grammar
    made_s = time.process_time() - begun
    cases = list[dict[str, Any]]()
    for count in rows:
        found: dict[str, list[Case]] = {name: [] for name in grammars}
        for _ in range(rounds):
            for name, grammar in grammars.items():
                found[name].append(measured(engine, prompt, count, tokens, grammar))
        plain = found["no schema"]
        for name, of in found.items():
            ratios = [case.pass_ms / other.pass_ms for case, other in zip(of, plain, strict=True)]
            cases.append(
                {
                    "rows": count,
                    "way": name,
                    "pass_ms": round(median(case.pass_ms for case in of), 3),
                    "ratio": round(median(ratios), 3),
                    "mask_us_per_row": round(median(case.mask_us for case in of), 1),
                    "allowed": round(median(case.allowed for case in of)),
                }
            )
            print(cases[-1], flush=True)
    command = f"python -m experiments.bench schema --rows {','.join(map(str, rows))}"
    record = provenance(f"{command} --tokens {tokens} --rounds {rounds}", model=f"{model}, float32")
    save(record | {"vocabulary_and_schemas_s": round(made_s, 3), "cases": cases}, out)


def measured(
    engine: Engine, prompt: list[int], rows: int, tokens: int, grammar: Grammar | None
) -> Case:
    """Passes of so many branches of one prompt."""
    root = engine.root(prompt)
    branches = engine.fork(root, rows)
    timed = None if grammar is None else Timed(grammar)
    batch = engine.running_batch()
    batch.add(branches, Step(tokens, grammar=timed), Sampling(0.8))
    batch.step()  # it makes the plan
    times = list[float]()
    while len(batch):
        begun = time.process_time()
        batch.step()
        times.append(time.process_time() - begun)
    engine.release([root, *branches])
    if timed is None:
        return Case(1000 * median(times))
    return Case(1000 * median(times), 1e6 * timed.taken_s / timed.rows, timed.allowed / timed.rows)
