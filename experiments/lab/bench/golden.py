"""The golden set: what searches gave when it was recorded, and must give after any change that is
none of results. Texts, trees and choices are equal, scores and log-probabilities within a bound.

For each small model the cases hold every pair of a search and a policy, of a search and a feature,
and of a policy and a feature. They run in float64, so that the record holds on any processor; the
default model's cases, in float32, were recorded because float64 gives the same. A case is a
`Combination`. Its budget is the least of `SHARES` of what the search takes without one that was not
refused. What is exact must have been recorded as what the plain way gives.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch

from experiments.cli.output import say, show
from experiments.lab.bench.combinations import searches as drawn
from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.comparing import alike, seen
from experiments.lab.bench.combinations.engines import APPROXIMATE_MEMORIES, MEMORIES, engine_of
from experiments.lab.bench.combinations.letters import problems_of
from experiments.lab.bench.combinations.models import REAL
from experiments.lab.bench.combinations.running import results
from search import Result
from ttc.errors import InvalidInput, OutOfMemory, TTCError

RECORD = Path(__file__).with_name("golden.json")
MODELS = ("llama", "gemma3", "gpt2", "deepseek_v3", "lfm2")
SEARCHES = [name for name in drawn.SEARCHES if "mixed" not in name]
"""The searches of the product; those are a test's own."""
POLICIES = (*MEMORIES, *APPROXIMATE_MEMORIES)
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rsbcm": {"cache": "rsbcm", "speculation": "prompt_lookup"},
    "lru": {"cache": "lru", "speculation": "draft_model"},
    "unshared": {"sharing": "none"},
    "similar": {"sharing": "similar"},
    "gate": {"gate": True},
    "exit": {"verifier": "leaves_early"},
    "streamed": {"placement": "streamed"},
    "split": {"placement": "split"},
}
EXACT = ("plain", "rsbcm", "lru", "unshared", "streamed", "split")
REAL_CASES: list[dict[str, Any]] = [
    *({"search": "beam_search", "memory": memory} for memory in MEMORIES),
    {"search": "mcts", "memory": "paged", "cache": "rsbcm"},
    {"search": "self_consistency", "speculation": "prompt_lookup", "cache": "lru"},
    {"search": "diverse_prompts", "memory": "headwise"},
    {"search": "budget_forcing", "memory": "capture"},
    {"search": "deep_conf", "placement": "split"},
]
SHARES = (0.6, 1.0, 1.5, 3.0)
BOUND, BOUND_IN_FLOAT32 = 1e-6, 1e-4


@dataclass(frozen=True)
class Outcome:
    """What a case gives. digest: of texts, trees and ends, or the error that refuses the case.
    chosen: of each problem the text that was chosen. figures: of each problem the
    log-probabilities' and the scores' sums over the tree, and the candidates' scores."""

    digest: str
    chosen: list[str]
    figures: list[list[float]]

    def alike(self, other: Outcome, bound: float) -> bool:
        same = (self.digest, self.chosen) == (other.digest, other.chosen)
        return same and alike(self.figures, other.figures, bound)

    @classmethod
    def of(cls, found: Iterable[tuple[str, Result]]) -> Outcome:
        ended = [result for _, result in sorted(found, key=lambda pair: pair[0])]
        kept = json.dumps([_without_figures(seen(result)[:-1]) for result in ended])
        digest = hashlib.sha256(kept.encode()).hexdigest()[:10]
        chosen = ["" if result.best is None else result.best.text for result in ended]
        return cls(digest, chosen, [_figures(result) for result in ended])


def _without_figures(value: Any) -> Any:
    if isinstance(value, float):
        return None
    if isinstance(value, list | tuple):
        return [_without_figures(part) for part in value]
    return value


def _figures(result: Result) -> list[float]:
    logprobs = [p for node in result.tree for p in node.logprobs if p is not None]
    scores = [0.0 if node.score is None else node.score for node in result.tree]
    of_tree = [sum(logprobs), sum(n * score for n, score in enumerate(scores, 1))]
    of_candidates = [0.0 if branch.score is None else branch.score for branch in result.branches]
    return [round(figure, 7) for figure in (*of_tree, *of_candidates)]


def cases(model: str, search: str) -> dict[str, Combination]:
    """A search's cases on a model, by the names that they have in the record."""
    plain = Combination(model=model, search=search, verifier="pass_by_pass", problems=2)
    if model == REAL:
        chosen = [case for case in REAL_CASES if case["search"] == search]
        plain = replace(plain, compiled="layers", block_tokens=16)
        return {
            " ".join(name for key, name in case.items() if key != "search"): replace(plain, **case)
            for case in chosen
        }
    plain = replace(plain, block_tokens=8, capacity=4)
    first = SEARCHES.index(search)
    return {
        feature: replace(plain, memory=POLICIES[(first + n) % len(POLICIES)], **settings)
        for n, (feature, settings) in enumerate(FEATURES.items())
    }


def searches(model: str) -> list[str]:
    return [search for search in SEARCHES if cases(model, search)]


def outcome(c: Combination, budget_bytes: int | None) -> Outcome:
    """What a case gives, or the kind of the error that refuses it. Raises OutOfMemory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            engine = engine_of(c, None if budget_bytes is None else budget_bytes / 2**30, None)
            return Outcome.of(results(c, engine, problems_of(c)))
        except OutOfMemory:
            raise
        except TTCError as error:
            return Outcome(type(error).__name__, [], [])


def read() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def differences(record: dict[str, Any], model: str, search: str) -> list[str]:
    """The cases of a search whose outcome is not the recorded one."""
    bound = BOUND_IN_FLOAT32 if model == REAL else BOUND
    named = cases(model, search)
    found = []
    for name, (place, budget_bytes) in record["cases"][model][search].items():
        c = named[name]
        expected = Outcome(*record["outcomes"][place])
        try:
            now = outcome(c, budget_bytes)
        except OutOfMemory as error:
            now = Outcome(f"OutOfMemory: {error}", [], [])
        if not now.alike(expected, bound):
            found.append(f"{model} {search} {name}: {now}, and not {expected}; {c.settings()}")
    return found


# -------------------------------------------------------------------- recording


def record(models: Iterable[str]) -> dict[str, Any]:
    """Run all cases of some models. Raises InvalidInput where what is exact is not as the plain
    way, or where float64 gives the default model another text."""
    outcomes: list[Outcome] = []
    recorded: dict[str, Any] = {}
    for model in models:
        recorded[model] = {}
        for search in searches(model):
            named = cases(model, search)
            plain, most_bytes = _plain(next(iter(named.values())))
            recorded[model][search] = {}
            for name, c in named.items():
                now, budget_bytes = _within_a_budget(c, most_bytes)
                approximate = name not in EXACT and model != REAL
                if not approximate and c.memory in MEMORIES and not now.alike(plain, 1e-4):
                    raise InvalidInput(f"{c.settings()} gives {now}, and not {plain}")
                place = _place(outcomes, now)
                recorded[model][search][name] = [place, budget_bytes]
            say(f"{model}: {search}")
    rows = [[o.digest, o.chosen, o.figures] for o in outcomes]
    return {"cases": recorded, "outcomes": rows}


def _plain(c: Combination) -> tuple[Outcome, int]:
    """What the plain way gives, and the bytes that its KV takes at most."""
    c = replace(c.plain, verifier="pass_by_pass")
    engine = engine_of(c, None, None)
    plain = Outcome.of(results(c, engine, problems_of(c)))
    if c.compiled is not None:
        wide = outcome(replace(c, compiled=None), None)
        if wide.digest != plain.digest:
            raise InvalidInput(f"float64 gives {c.settings()} another text; use another seed")
    return plain, engine.memory.device.peak_bytes


def _within_a_budget(c: Combination, most_bytes: int) -> tuple[Outcome, int | None]:
    if c.memory != "resident":
        for share in SHARES:
            try:
                return outcome(c, int(share * most_bytes)), int(share * most_bytes)
            except OutOfMemory:
                continue
    return outcome(c, None), None


def _place(outcomes: list[Outcome], now: Outcome) -> int:
    for place, known in enumerate(outcomes):
        if known.alike(now, 1e-7):
            return place
    outcomes.append(now)
    return len(outcomes) - 1


def _lines(recorded: dict[str, Any]) -> Iterator[str]:
    """The record as JSON with a line for each search and each outcome."""
    yield '{"cases": {'
    for n, (model, of_model) in enumerate(recorded["cases"].items()):
        yield f'{"," * (n > 0)}"{model}": {{'
        rows = [f'"{search}": {json.dumps(row)}' for search, row in of_model.items()]
        yield ",\n".join(rows) + "}"
    yield '}, "outcomes": ['
    yield ",\n".join(json.dumps(row, separators=(",", ":")) for row in recorded["outcomes"])
    yield "]}\n"


def run(*, again: Annotated[bool, "record what they give now instead"] = False) -> int:
    """Compare all cases with the record, or record them `again`. Returns an exit code."""
    torch.set_num_threads(1)
    if again:
        RECORD.write_text("\n".join(_lines(record([*MODELS, REAL]))), encoding="utf-8")
        return 0
    recorded = read()
    found = [
        difference
        for model, of_model in recorded["cases"].items()
        for search in of_model
        for difference in differences(recorded, model, search)
    ]
    for difference in found:
        show(difference)
    show(f"{len(found)} cases differ from the record")
    return int(bool(found))
