"""How results are compared."""

from __future__ import annotations

import json
import math
import warnings
from contextlib import closing
from dataclasses import astuple, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.engines import engine_of, second_of
from experiments.lab.bench.combinations.letters import problems_of
from experiments.lab.bench.combinations.running import results
from search import Result
from ttc.errors import TTCError


def seen(result: Result) -> Any:
    """All that must be the same. Of a problem that failed within a step its tree has the step's
    tokens only where they were watched."""
    branches = [(b.tokens, b.path, b.finish_reason, b.score) for b in result.branches]
    nodes = [] if result.error else result.tree
    tree = [astuple(replace(node, logprobs=[])) for node in nodes]
    meters = [result.usage, *(result.usage_by_model[name] for name in result.usage_by_model)]
    spent = [
        (u.generated_tokens, u.budgeted_tokens, u.thinking_tokens, u.tool_calls) for u in meters
    ]
    records = [branch.to_dict() | {"root_id": 0} for branch in result.branches]
    logprobs = [node.logprobs for node in nodes]
    more = result.stopped, result.prompt, result.pruned, spent, records, logprobs
    return result.answer, branches, tree, str(result.error), more


def begins(part: Result, whole: Result) -> bool:
    """Whether a result that was broken off is a beginning of the whole one: each of its nodes holds
    the first tokens of one of the whole tree."""
    nodes = {tuple(node.path): node for node in whole.tree}
    pairs = [(node, nodes.get(tuple(node.path))) for node in part.tree]
    return all(
        other is not None
        and node.start == other.start
        and node.token_ids == other.token_ids[: len(node.token_ids)]
        and (node.text == other.text or node.token_ids != other.token_ids)
        for node, other in pairs
    )


def alike(one: Any, other: Any, bound: float) -> bool:
    """Whether two things are the same, numbers but for a difference up to `bound`."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=bound)
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = [*one.items()], [*other.items()]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(
            alike(a, b, bound) for a, b in zip(one, other, strict=True)
        )
    return bool(one == other)


@lru_cache(maxsize=64)
def alone(plain: Combination, number: int) -> tuple[Result, int]:
    """What a problem gives alone, and the bytes that its KV took."""
    second = second_of(plain)
    engine = engine_of(plain, None, None, second)
    ((_, result),) = results(plain, engine, [problems_of(plain)[number]], second)
    writers = [engine, second] if plain.writers else [engine]
    return result, max(writer.memory.device.peak_bytes for writer in writers)


def difference(c: Combination) -> str | None:
    """What is not as it is alone, None if nothing is."""
    expected = {f"{c.seed}-{n}": alone(c.plain, n) for n in range(c.problems)}
    most_gib = max(peak for _, peak in expected.values()) / 2**30
    found = dict[str, Result]()
    for stop in [*filter(None, [c.restarted]), c.problems]:
        if kept := _solve(c, most_gib, found, stop):
            return f"{kept} bytes of KV are left"
    missing = expected.keys() - found.keys()
    if c.ended_by == "driver":
        missing -= {c.name_cancelled}
    if missing:
        return f"no result of {sorted(missing)}"
    wrong = [name for name, result in found.items() if not _right(c, result, expected[name][0])]
    return f"{len(wrong)} of {len(found)} {DIFFER}: {wrong}" if wrong else None


def _solve(c: Combination, most_gib: float, found: dict[str, Result], stop: int) -> int:
    """Solve the problems that were not found, until there are so many results. Returns the bytes of
    KV that are left then. most_gib: what one problem takes alone."""
    shares = (c.budget, c.host_budget)
    budget, host_budget = ((share and share * most_gib) or None for share in shares)
    second = second_of(c, budget, host_budget)
    engine = engine_of(c, budget, host_budget, second)
    left = [problem for problem in problems_of(c) if problem.id not in found]
    with closing(results(c, engine, left, second)) as solving:
        for name, result in solving:
            found[name] = result
            if len(found) >= stop:
                break
    return engine.kv_bytes() + second.kv_bytes()


def _right(c: Combination, result: Result, whole: Result) -> bool:
    """Whether a result is as alone, or its beginning where it was broken off, and can be stored. Of one
    that failed alone the tree may lack what the failed step wrote."""
    values = result.to_dict()
    if Result.from_dict(json.loads(json.dumps(values))).to_dict() != values:
        return False
    early = result.stopped in ("cancelled", "max_wall_s")
    if early and result.problem.id == c.name_cancelled:
        return whole.error is not None or begins(result, whole)
    return alike(seen(result), seen(whole), 1e-3 if c.rounded else 1e-9)


DIFFER = "results differ"


class Outcome(NamedTuple):
    """What became of a combination, and why it was refused or has failed."""

    kind: Literal["same", "refused", "failed"]
    why: str = ""


def outcome(c: Combination) -> Outcome:
    """What becomes of a combination. What the engine refuses by name is no failure, nor is a
    difference in float32 that other samples do not have."""
    found = _outcome(c)
    if DIFFER in found.why and c.rounded:
        others = [_outcome(replace(c, seed=c.seed + 10**6 * n)) for n in range(1, OTHERS + 1)]
        if sum(DIFFER in other.why for other in others) < 2:
            return Outcome("same", f"rounded: {found.why}")
    return found


OTHERS = 6
"""Other samples that are tried where one differs in float32; about one in a hundred is rounded to
another token."""


def _outcome(c: Combination) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            why = difference(c)
        except TTCError as error:
            return Outcome("refused", str(error))
        except Exception as error:
            return Outcome("failed", f"{type(error).__name__}: {error}")
    return Outcome("same") if why is None else Outcome("failed", why)


def failed(c: Combination) -> bool:
    return outcome(c).kind == "failed"
