"""What gates and statistics do to searches, and what callers see of them: results, streams,
threads, refusals."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import pickle
import sys
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from search import (
    BeamSearch,
    BestOfN,
    Case,
    DiversePrompts,
    Expand,
    Greedy,
    Search,
    SearchSteps,
    SelfConsistency,
    Step,
    solve,
    stream,
    try_verifier,
)
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import make_engine
from tests.helpers.scripted import Scores
from tests.helpers.searches import seen
from ttc import Branch, DecodeGate, InvalidInput, VerifierError


def commas(branch: Branch) -> float:
    return float(branch.text.count(","))


COMMAS = Scores(commas)


def test_a_gated_engine_never_answers_with_what_it_cut_off() -> None:
    def brevity(branch: Branch) -> float:
        """Likes what the gate leaves behind."""
        assert not branch.gated
        return -float(len(branch.generated))

    engine = make_engine(context=160, gate=DecodeGate(theta=0.0, r_gap=0.0))
    search = DiversePrompts(n=4, max_tokens=6, hints=(" So", " First,"))
    result = solve(search, problem="1 + 1", engine=engine, verifier=Scores(brevity))
    assert len(result.best.generated) == 6
    assert [node.tokens for node in result.tree[1:]].count(1) == 3  # cut off after a token
    assert len(result.branches) == 1 and engine.kv_bytes() == 0


@dataclass(frozen=True)
class Told(Search):
    """Two steps, the second with statistics."""

    statistics: Any = True

    needs_verifier = False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        first = yield Expand([root], 2, Step(3), self.sampling)
        return (yield Expand(first, 1, Step(4, statistics=self.statistics), self.sampling))


def test_a_step_with_statistics_keeps_the_models_own_entropies() -> None:
    engine = make_engine(context=160)
    result = solve(Told(), problem="1 + 1", engine=engine)
    engine.model.set_attn_implementation("eager")
    for branch in result.branches:
        with torch.no_grad():
            logits = engine.model(torch.tensor([branch.tokens]), use_cache=False).logits[0]
        logprobs = logits[branch.prompt_length - 1 : -1].log_softmax(-1)
        entropies = (-(logprobs.exp() * logprobs).sum(-1)).tolist()
        likeliest = logprobs.topk(20).values.mean(-1).tolist()
        certainties = (-logprobs.mean(-1) - math.log(logprobs.shape[-1])).tolist()
        for kept, expected in (
            (branch.entropies, entropies),
            (branch.top_k_logprobs, likeliest),
            (branch.self_certainties, certainties),
        ):
            assert all(map(math.isnan, kept[:3]))
            assert kept[3:] == pytest.approx(expected[3:], abs=1e-4)
    with pytest.raises(InvalidInput, match=r"FakeBackend\.generate offers no statistics"):
        solve(Told(), problem="1 + 1", engine=FakeBackend())


def test_a_result_is_plain_values() -> None:
    result = solve(BestOfN(n=3, max_tokens=5), problem="q", engine=FakeBackend(), verifier=COMMAS)
    again = pickle.loads(pickle.dumps(result))
    assert again.to_dict() == result.to_dict() and again.best is again.branches[0]
    as_json = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert as_json["tree"][1]["score"] == result.tree[1].score
    assert len(repr(result).splitlines()) == 3
    assert result.tree[0].status == "root"


def test_a_result_keeps_no_engine_in_memory() -> None:
    engine = make_engine(context=160)
    gone = weakref.ref(engine)
    result = solve(
        BestOfN(n=2, max_tokens=3), problem="1 + 2", engine=engine, verifier=Scores(commas)
    )
    del engine
    gc.collect()
    assert gone() is None and len(result.branches) == 2


def test_a_stream_ends_with_the_result_and_frees_what_is_left() -> None:
    backend, verifier = FakeBackend(), Scores(commas)
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=2, max_steps=3)
    events = list(stream(search, problem="q", engine=backend, verifier=verifier))
    whole = solve(search, problem="q", engine=FakeBackend(), verifier=COMMAS)
    assert [e.did for e in events][:2] == ["expanded", "rated"] and events[-1].result is not None
    assert events[-1].result.tree == whole.tree
    assert len(verifier.gone) == len(whole.tree)  # each branch once, the root too
    watched: list[Any] = []
    solve(search, problem="q", engine=backend, verifier=COMMAS, on_step=watched.append)
    assert [e.nodes for e in watched] == [e.nodes for e in events]
    for _ in stream(search, problem="q", engine=backend, verifier=COMMAS):
        break
    assert not backend.live


def test_searches_in_threads_share_an_engine() -> None:
    engine = make_engine(context=160)
    search, questions = BestOfN(n=3, max_tokens=4), ["1 + 2", "3 + 4", "5 + 6"]
    rated = {"engine": engine, "verifier": COMMAS}

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(
            *(asyncio.to_thread(solve, search, problem=q, **rated) for q in questions)
        )

    before = sys.getswitchinterval()
    # threads take turns within a call wherever nothing keeps them from it
    sys.setswitchinterval(1e-6)
    try:
        together = asyncio.run(all_of_them())
    finally:
        sys.setswitchinterval(before)
    alone = [solve(search, problem=q, **rated) for q in questions]
    assert list(map(seen, together)) == list(map(seen, alone))
    assert engine.kv_bytes() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verifier": Scores}, "verifier=Scores is a class"),
        ({"verifier": 3}, "verifier=3 is of type int"),
        ({"problem": {"question": "q"}}, "problem is of type dict"),
        ({"engine": "smollm2"}, "engine='smollm2' is of type str"),
        ({"search": "beam"}, "search='beam' is of type str"),
        ({"search": BestOfN}, "search=BestOfN is a class"),
        ({"concurrency": "4"}, "concurrency='4' is of type str"),
        ({"on_result": "print"}, "on_result='print' is of type str; give a function"),
        ({"on_step": 1}, "on_step=1 is of type int; give a function"),
    ],
)
def test_wrong_types_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"search": BestOfN(), "problem": "q", "engine": FakeBackend()}
    given |= {"verifier": COMMAS} | options
    with pytest.raises(InvalidInput, match=message):
        solve(given.pop("search"), **given)


@pytest.mark.parametrize(
    ("extract", "message"),
    [
        (lambda text: 5, "the answer of extract=5 is of type int; give text, or None for none"),
        (lambda text: text[999], "extract raised IndexError: string index out of range, on the"),
    ],
)
def test_a_way_of_reading_answers_that_fails_is_named(extract: Any, message: str) -> None:
    search = SelfConsistency(n=2, max_tokens=2)
    with pytest.raises(InvalidInput, match=message):
        solve(search, problem="q", engine=FakeBackend(), extract=extract)


@pytest.mark.parametrize(
    "returned", [None, 0.5, {"a": 0.5}, [0.5, 0.9], [[None], [None]]], ids=repr
)
def test_what_does_not_read_as_scores_is_shown(returned: Any) -> None:
    odd = Scores(commas)
    odd.rate = lambda *given: returned  # type: ignore[method-assign]
    result = solve(BestOfN(n=2, max_tokens=2), problem="q", engine=FakeBackend(), verifier=odd)
    assert f"Scores returned {returned!r}, which does not read as scores" in str(result.error)


def test_numbers_of_numpy_count_continuations() -> None:
    expand = Expand([Branch([1], None, 0, None, None)] * 2, np.int64(3), Step(1))
    assert len(expand.parents()) == 6
    for n, message in (
        (2.5, "Expand.n=2.5 is of type float"),
        (-1, "Expand.n=-1 must be at least 0"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Expand(expand.branches, n, Step(1)).parents()  # type: ignore[arg-type]


def test_a_verifier_that_has_nothing_to_do_is_named() -> None:
    text = "Greedy does not rate branches, so Scores is not used"
    with pytest.warns(UserWarning, match=text) as said:
        solve(Greedy(max_tokens=2), problem="q", engine=FakeBackend(), verifier=COMMAS)
    assert said[0].filename == __file__


def test_a_verifier_is_tried_on_one_branch() -> None:
    def broken(branch: Branch) -> float:
        raise OSError("no weights")

    backend = FakeBackend()
    assert len(try_verifier(COMMAS, backend, "q")) == 1
    with pytest.raises(VerifierError, match="Scores raised OSError: no weights"):
        try_verifier(Scores(broken), backend, "q")
    assert not backend.live
