"""Whatever program runs under whatever policy, budget and cache: it gives what it gives with all KV
on the device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from math import isnan
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

import ttc.model.running.runner
from tests.helpers.links import late
from tests.helpers.models import deep
from tests.helpers.ownership import assert_nothing_left, assert_whole
from tests.helpers.tiers import examples, some_quick
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, BlockCache, Capture, Engine, Headwise, Layerwise, OutOfMemory, Paged
from ttc.branch import Branch
from ttc.residency.offloading import Offloading

CONTEXT = 64
KINDS: dict[str, tuple[type[Offloading], dict[str, Any]]] = {
    "layerwise": (Layerwise, {}),
    "layerwise, private": (Layerwise, {"shared": False}),
    "beam_groups": (BeamGroups, {}),
    "beam_groups, private": (BeamGroups, {"shared": False}),
    "paged": (Paged, {}),
    "paged, low watermark": (Paged, {"watermark": 0.3}),
    "headwise": (Headwise, {}),
    "headwise, one head": (Headwise, {"head_group": 1}),
    "capture": (Capture, {"act_share": 0.5, "mini_batch_tokens": 32}),
}


class Case(NamedTuple):
    """A program, and what it runs under. budget, host: bytes as shares of what the program takes
    resident. late: copies are made at the last moment that a link may take."""

    program: tuple[tuple[Any, ...], ...]
    budget: float
    host: float | None
    block_tokens: int
    prefetch: bool
    late: bool
    cache: BlockCache | None


@cache
def model() -> LlamaForCausalLM:
    return deep(layers=3, heads=2, context=CONTEXT)


@pytest.fixture(scope="module", autouse=True)
def one_check_of_the_model() -> Iterator[None]:
    """Most of an engine's making; all engines have one model here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ttc.model.running.runner, "examine", cache(ttc.model.running.runner.examine))
        yield


# ---------------------------------------------------------------- programs


def prompt(salt: int, length: int) -> tuple[int, ...]:
    """Prompts share a prefix up to a place that their salts decide; those of one salt share all."""
    return tuple(
        100 + salt if salt and i and i % (5 * salt) == 0 else 3 + 7 * i % 90 for i in range(length)
    )


picks = st.lists(st.integers(0, 7), min_size=1, max_size=4)
prompts = st.lists(st.builds(prompt, st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=3)
extensions = st.builds(prompt, st.integers(0, 3), st.integers(1, 12))
roots = st.tuples(st.just("roots"), prompts)
limits = st.lists(st.integers(1, 9), min_size=1, max_size=4)
generate = st.tuples(st.just("generate"), st.just(range(8)) | picks, limits)
fork = st.tuples(st.just("fork"), picks, st.integers(1, 4))
ops = st.one_of(
    roots,
    fork,
    generate,
    generate,
    st.tuples(st.just("extend"), picks, st.lists(extensions, min_size=1, max_size=3)),
    st.tuples(st.just("score"), picks, extensions),
    st.tuples(st.just("release"), picks),
)
programs = st.builds(
    lambda *ops: (*ops[:-1], *ops[-1]), roots, fork, generate, st.lists(ops, max_size=8)
)


def step(engine: Engine, live: list[Branch], op: tuple[Any, ...]) -> Any:
    """Run one operation; returns what it gives. Which branches it takes depends on `live` alone."""
    name, *arguments = op
    if name == "roots":
        live += engine.roots(
            arguments[0], seeds=range(len(live), len(live) + len(arguments[0]))
        ).result()
        return None
    usable = [branch for branch in live if len(branch.tokens) + 14 < CONTEXT]
    chosen = (
        list(dict.fromkeys(usable[pick % len(usable)] for pick in arguments[0])) if usable else []
    )
    if name == "fork" and len(live) < 10:
        for branch in chosen[:1]:
            live += engine.fork(branch, arguments[1])
    elif name == "extend":
        engine.extend(
            chosen, [arguments[1][i % len(arguments[1])] for i in range(len(chosen))]
        ).result()
    elif name == "generate":
        engine.generate(chosen, [arguments[1][i % len(arguments[1])] for i in range(len(chosen))])
        return [(branch.tokens[:], branch.logprobs[:], branch.top1[:]) for branch in chosen]
    elif name == "score":
        run = arguments[1]
        return engine.score(chosen, [[run, [*run[:-1], 1, 2], [5]] for _ in chosen]).result()
    elif name == "release":
        engine.release(chosen)
        live[:] = [branch for branch in live if branch not in chosen]
    return None


# ---------------------------------------------------------------- the check


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return abs(one - other) <= 1e-4 or (isnan(one) and isnan(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def make(kind: str, case: Case, budget_bytes: int, host_bytes: int | None) -> Engine:
    policy, options = KINDS[kind]
    memory = policy(
        budget_bytes / 2**30,
        host_budget_gib=host_bytes and host_bytes / 2**30,
        block_tokens=case.block_tokens,
        prefetch=case.prefetch,
        **options,
    )
    engine = Engine(model(), Letters(), prefill_tokens=5, memory=memory, cache=case.cache)
    return late(engine) if case.late else engine


def check(kind: str, case: Case) -> None:
    """Run a case; where it is refused, see that nothing is lost, and run it again with the budget
    that would do. Only a branch that does not fit alone is refused: others may have decoded
    then."""
    engine, live = Engine(model(), Letters()), list[Branch]()
    expected = [step(engine, live, op) for op in case.program]
    peak = engine.memory.device.peak_bytes
    budgets = {
        "device": int(case.budget * peak) + 1,
        "host": case.host and int(case.host * peak) + 1,
    }
    for _ in range(25):
        engine, live = make(kind, case, budgets["device"], budgets["host"]), []
        refused, lengths = None, list[int]()
        try:
            for op, result in zip(case.program, expected, strict=True):
                lengths = [len(branch.tokens) for branch in live]
                assert same(step(engine, live, op), result), op
                assert_whole(engine, live)
        except OutOfMemory as error:
            refused = re.match(r"the (\w+) KV budget of .*; a budget of ([\d,]+) bytes", str(error))
            assert refused is not None, str(error)
            assert all(
                len(branch.tokens) >= length for branch, length in zip(live, lengths, strict=False)
            ), "something was lost"
            assert_whole(engine, live)
        assert_nothing_left(engine, live)
        if refused is None:
            return
        tier, enough = refused[1], int(refused[2].replace(",", ""))
        assert enough > budgets[tier]
        budgets[tier] = max(enough, int(1.5 * budgets[tier]))
    raise AssertionError("refused again and again")


cases = st.builds(
    Case,
    programs,
    st.floats(0.1, 1.2),
    st.none() | st.floats(0.5, 2.5),
    st.sampled_from([2, 3, 5, 8, 16]),
    st.booleans(),
    st.booleans(),
    st.none()
    | st.builds(BlockCache, st.integers(1, 12), st.just(4), st.sampled_from(["rsbcm", "lru"])),
)


RATED_IN_PARTS = Case(
    (("roots", [(3,)]), ("fork", [0], 2), ("generate", range(8), [3]), ("score", [0, 1], (3,))),
    budget=0.15625,
    host=None,
    block_tokens=2,
    prefetch=False,
    late=False,
    cache=None,
)


@pytest.mark.parametrize("kind", some_quick(KINDS, ["beam_groups"]))
@given(case=cases)
@example(case=RATED_IN_PARTS)
@settings(max_examples=examples(16))
def test_every_policy_gives_what_resident_gives(kind: str, case: Case) -> None:
    check(kind, case)
