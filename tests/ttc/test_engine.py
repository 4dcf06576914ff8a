"""The engine's calls at their edges: wrong arguments, released branches, budgets, exact usage."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.models import small
from tests.helpers.ownership import assert_whole
from ttc import (
    Auto,
    BlockCache,
    DecodeGate,
    Engine,
    InvalidInput,
    OutOfMemory,
    Resident,
    Sampling,
    Sharing,
    Split,
)

WRONG_CALLS: list[tuple[Any, str]] = [
    (lambda e, b: e.root([]), "prompt is empty"),
    (lambda e, b: e.root([1] * 64), "leaves no room"),
    (lambda e, b: e.root([1] * 65), "65 tokens are more than the model's context of 64"),
    (lambda e, b: e.root([128]), "token 128, outside the model's vocabulary of 128"),
    (lambda e, b: e.root([-1]), "token -1"),
    (lambda e, b: e.root("text"), "the prompt is text, 'text'; give token numbers"),
    (lambda e, b: e.root(["1", "2"]), "the prompt is no list of token numbers"),
    (lambda e, b: e.root([1], seed=0.5), "seed=0.5 is of type float; give a whole number"),
    (lambda e, b: e.roots([[1], []]).result(), "prompt is empty"),
    (lambda e, b: e.roots([[1], [2]], seeds=[0]).result(), "prompts: 2, seeds: 1"),
    (lambda e, b: e.fork(b, 0), "n=0 must be at least 1"),
    (lambda e, b: e.fork(b, "2"), "n='2' is of type str; give a whole number"),
    (lambda e, b: e.fork(b, True), "n=True is of type bool; give a whole number"),
    (lambda e, b: e.fork(None, 2), "one of branches=None is of type NoneType; give what engine"),
    (lambda e, b: e.generate(b, 2), "branches=Branch.* is of type Branch; give a list of"),
    (lambda e, b: e.generate([b], 0), "max_tokens=0"),
    (lambda e, b: e.generate([b], 2.5), "max_tokens=2.5 is of type float"),
    (lambda e, b: e.generate([b], [None]), "max_tokens=None is of type NoneType"),
    (lambda e, b: e.generate([b], [1, 2]), "branches: 1, values of max_tokens: 2"),
    (lambda e, b: e.generate([b, b], 1), "given twice"),
    (lambda e, b: e.generate([b], 1, stop=[""]), "empty"),
    (lambda e, b: e.generate([b], 1, stop="nls"), "stop='nls' is one string, which would be"),
    (lambda e, b: e.generate([b], 1, stop=3), "stop=3 is of type int; give a list of strings"),
    (lambda e, b: e.generate([b], 1, end=[3]), "a string of end=3 is of type int"),
    (lambda e, b: e.generate([b], 1, sampling=0.7), "sampling=0.7 is of type float; give a ttc"),
    (lambda e, b: e.generate([b], 1, sampling=Sampling), "sampling=Sampling is a class; give an"),
    (lambda e, b: e.extend([b], []).result(), "branches: 1, token lists: 0"),
    (lambda e, b: e.extend([b], [[]]).result(), "extension is empty"),
    (lambda e, b: e.extend([b], [[1] * 62]).result(), "more than the model's context"),
    (lambda e, b: e.extend([b], [[128]]).result(), "extension holds token 128"),
    (lambda e, b: e.extend([b, b], [[1], [1]]).result(), "given twice"),
    (lambda e, b: e.score([b], []).result(), "branches: 1, lists of continuations: 0"),
    (lambda e, b: e.score([b], [[]]).result(), "no continuation"),
    (lambda e, b: e.score([b], [[[]]]).result(), "continuation is empty"),
    (lambda e, b: e.score([b], [[[1] * 63]]).result(), "65 tokens are more than the model's"),
    (lambda e, b: e.score([b, b], [[[1]], [[1]]]).result(), "given twice"),
    (lambda e, b: e.release([b, None]), "one of branches=None is of type NoneType"),
    (lambda e, b: e.running_batch(max_rows=0), "max_rows=0 must be at least 1"),
    (lambda e, b: e.encode(None), "text=None is of type NoneType; give a string"),
]


def test_bad_input_is_named_and_changes_nothing() -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3])
    before = (engine.kv_bytes(), branch.usage.to_dict())
    for call, message in WRONG_CALLS:
        with pytest.raises(InvalidInput, match=message):
            call(engine, branch)
        assert (engine.kv_bytes(), branch.usage.to_dict(), branch.tokens) == (*before, [1, 2, 3])
    assert_whole(engine, [branch])


WRONG_OPTIONS: list[tuple[Any, str]] = [
    (lambda: make_engine(prefill_tokens=0), "prefill_tokens=0"),
    (
        lambda: make_engine(prefill_tokens="512"),
        "prefill_tokens='512' is of type str; give a whole",
    ),
    (
        lambda: make_engine(memory="paged"),
        r"'paged' is of type str; give an object of ttc, as ttc\.P",
    ),
    (lambda: make_engine(memory=Resident), r"is a class; give an object, as Resident\(\)"),
    (lambda: make_engine(cache=2000), "give an object of ttc, as ttc.BlockCache"),
    (lambda: make_engine(sharing="exact"), "sharing='exact' is of type str"),
    (lambda: make_engine(gate=True), "gate=True is of type bool; give a gate"),
    (lambda: Resident(budget_gib=0), "budget_gib=0"),
    (
        lambda: Resident(budget_gib="1"),
        "memory.budget_gib='1' is of type str; give a number or None",
    ),
    (
        lambda: BlockCache("2000"),
        "cache.capacity_blocks='2000' is of type str; give a whole number",
    ),
    (lambda: Sharing(tau="high"), "sharing.tau='high' is of type str; give a number"),
    (lambda: DecodeGate(theta="0.7"), "gate.theta='0.7' is of type str; give a number"),
    (lambda: Split(budget_gib=math.nan), "placement.budget_gib=nan must be more than 0, or null"),
    (lambda: Auto(budget_gib=math.nan), "memory.budget_gib=nan must be more than 0, or null"),
    (lambda: Engine("smollm2-135m", None), "'smollm2-135m' is of type str; give a loaded model"),
    (lambda: Engine(small(2, 64), "x"), "tokenizer='x' is of type str; give a loaded token"),
    (
        lambda: Engine.from_pretrained(None),
        "name=None is of type NoneType; give an alias, a hub id",
    ),
    (lambda: Engine.from_pretrained("x", dtype=32), "dtype=32 is of type int; give its name"),
    (lambda: Engine.from_pretrained("x", device=1.0), "device=1.0 is of type float; give its name"),
    (
        lambda: Engine.from_pretrained("x", placement="split"),
        "'split' is of type str; give an object",
    ),
    (
        lambda: Engine.from_pretrained("x", placement=Split),
        "placement=Split is a class; give an obj",
    ),
]


def test_bad_options_are_named() -> None:
    for make, message in WRONG_OPTIONS:
        with pytest.raises(InvalidInput, match=message):
            make()


def test_a_misspelt_option_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'memori'"):
        Engine.from_pretrained("no such model", memori=Resident())


def test_numbers_of_numpy_are_numbers() -> None:
    one = np.int64(1)
    engine = make_engine(prefill_tokens=one * 4, memory=Resident(budget_gib=np.float32(1)))
    branch = engine.root([1, 2], seed=one)
    (child,) = engine.fork(branch, one)
    engine.generate([child], one, sampling=Sampling(np.float32(0.5), one))
    assert len(child.generated) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda e, b: e.fork(b, 1),
        lambda e, b: e.extend([b], [[1]]).result(),
        lambda e, b: e.generate([b], 1),
        lambda e, b: e.score([b], [[[1]]]).result(),
    ],
)
def test_a_released_branch_is_refused_but_readable(call: Any) -> None:
    engine = make_engine()
    branch = engine.root([1, 2, 3])
    engine.generate([branch], 2, sampling=GREEDY)
    tokens = branch.tokens[:]
    engine.release(iter([branch]))
    assert engine.kv_bytes() == 0
    engine.release([branch])  # a second time does nothing
    with pytest.raises(InvalidInput, match="released"):
        call(engine, branch)
    assert engine.kv_bytes() == 0
    assert branch.tokens == tokens and branch.text == "".join(map(chr, tokens[3:]))


def test_nothing_asked_is_nothing_done() -> None:
    engine = make_engine()
    assert (engine.roots([]).result(), engine.score([], []).result()) == ([], [])
    engine.generate([], 5)
    engine.extend([], []).result()
    assert engine.kv_bytes() == 0


def test_usage_is_exact() -> None:
    engine = make_engine(prefill_tokens=4)
    root = engine.root(list(range(1, 11)))  # 9 tokens in passes of 4, 4, 1
    assert (root.usage.prompt_tokens, root.usage.forward_passes) == (9, 3)
    children = engine.fork(root, 2)
    engine.extend(children[:1], [[20, 21, 22]], purpose="verifier").result()  # 10, 20, 21
    engine.extend(children[1:], [[30, 31]]).result()  # 10, 30
    engine.generate(children, [1, 3])
    # 1 token, then the last one, 1 and 2
    engine.score(children, [[[1], [2]], [[1, 2, 3], [1, 2, 4]]]).result()
    assert {name: count for name, count in root.usage.to_dict().items() if count} == {
        "prompt_tokens": 9 + 2,
        "generated_tokens": 4,
        "verifier_tokens": 3 + 1 + 3,
        "forward_passes": 3 + 1 + 1 + 3 + 1,
    }


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.root(list(range(1, 31))),
        lambda e: e.generate([e.root([1, 2, 3])], 20),
        lambda e: e.score([e.root([1, 2, 3])], [[[1, 2, 3, 4], [1, 9, 9]]]).result(),
        lambda e: e.extend([e.root([1, 2, 3])], [[4] * 20]).result(),
    ],
)
def test_the_budget_that_the_refusal_names_is_enough(call: Any) -> None:
    budget = 3 * make_engine().memory.bytes_per_token
    with pytest.raises(OutOfMemory) as refused:
        call(make_engine(memory=Resident(budget / 2**30)))
    named = re.search(r"a budget of ([\d,]+) bytes", str(refused.value))
    assert named
    enough = make_engine(memory=Resident(int(named[1].replace(",", "")) / 2**30))
    call(enough)
    assert budget < enough.memory.device.peak_bytes <= int(named[1].replace(",", ""))


def test_an_engine_says_what_it_serves() -> None:
    said = repr(make_engine(context=160))
    assert said.startswith("Engine('") and said.endswith(", dtype='float32', memory=Resident)")
    assert len(said) < 120
