"""What searches can ask for besides steps, and what callers see of them: text, counts, results, streams, threads."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from search import (
    Append,
    BeamSearch,
    BestOfN,
    Case,
    Expand,
    Greedy,
    Rate,
    Release,
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
from ttc import Branch, InvalidInput, VerifierError


class Commas:
    """Scores a branch by its commas, and remembers what it was told of releases."""

    def __init__(self) -> None:
        self.forgotten: list[Branch] = []

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Any) -> list[list[float]]:
        return [[float(branch.text.count(","))] for branch in branches]

    def released(self, branches: Sequence[Branch]) -> None:
        self.forgotten += branches


@dataclass(frozen=True)
class Revision(Search):
    """Two samples from one branch and none from another; then each is told to think again."""

    @property
    def needs_verifier(self) -> bool:
        return False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        first = yield Expand([root], 2, Step(3, end=case.end), self.sampling)
        going = [b for b in first if not b.finished] or first
        told = yield Append(going, "Wait")
        assert [b.parent for b in told] == going and not any(b.finished for b in told)
        yield Release([*first, root])
        children = yield Expand(told, [3, *[0] * (len(told) - 1)], Step(2, end=case.end), self.sampling)
        assert [b.parent for b in children] == [told[0]] * 3
        order = case.rng.permutation(3)
        return [children[i] for i in order]


def test_text_is_appended_as_given_tokens_on_an_engine() -> None:
    engine = make_engine(context=160)
    before = engine.kv_bytes()
    (result,) = solve(Revision(), problem=["1 + 1"], engine=engine)
    again = solve(Revision(), problem=["9", "1 + 1"], engine=make_engine(context=160))[1]
    assert result.error is None and engine.kv_bytes() == before
    assert [b.path for b in result.branches] == [b.path for b in again.branches]
    for branch in result.branches:
        assert "Wait" in branch.text and branch.step_reasons[-1] in ("length", "eos", "context")
        assert sum(value != value for value in branch.logprobs) == len(engine.encode("Wait"))
    assert [node.text for node in result.tree].count("Wait") >= 1


def test_what_a_gate_cut_off_is_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for search in (BestOfN(n=4, max_tokens=6), SelfConsistency(n=4, max_tokens=6)):
        backend = FakeBackend()
        plain = backend.generate

        def gated(branches: Any, *args: Any, plain: Any = plain, **options: Any) -> None:
            plain(branches, *args, **options)
            for branch in branches[1:]:
                branch.finish_reason = "gate"

        monkeypatch.setattr(backend, "generate", gated)
        verifier = Commas() if search.needs_verifier else None
        result = solve(search, problem="q", engine=backend, verifier=verifier)
        assert [b.path for b in result.branches] == [(0,)] and not backend.live


def test_a_result_is_plain_values() -> None:
    result = solve(BestOfN(n=3, max_tokens=5), problem="q", engine=FakeBackend(), verifier=Commas())
    again = pickle.loads(pickle.dumps(result))
    assert again.to_dict() == result.to_dict() and again.best is again.branches[0]
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["tree"][1]["score"] == result.tree[1].score
    assert len(repr(result).splitlines()) == 3
    with pytest.deprecated_call():
        assert result.tree[0]["status"] == "root"


def test_a_stream_ends_with_the_result_and_frees_what_is_left() -> None:
    backend, verifier = FakeBackend(), Commas()
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=2, max_steps=3)
    events = list(stream(search, problem="q", engine=backend, verifier=verifier))
    whole = solve(search, problem="q", engine=FakeBackend(), verifier=Commas())
    assert [e.did for e in events][:2] == ["expanded", "rated"] and events[-1].result is not None
    assert events[-1].result.tree == whole.tree
    assert len(verifier.forgotten) == len(whole.tree)  # each branch once, the root too
    watched: list[Any] = []
    solve(search, problem="q", engine=backend, verifier=Commas(), on_step=watched.append)
    assert [e.nodes for e in watched] == [e.nodes for e in events]
    for _ in stream(search, problem="q", engine=backend, verifier=Commas()):
        break
    assert not backend.live


def test_searches_in_threads_share_an_engine() -> None:
    engine = make_engine(context=160)
    search, questions = BestOfN(n=3, max_tokens=4), ["1 + 2", "3 + 4", "5 + 6"]
    verifier = Commas()

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(
            *(asyncio.to_thread(solve, search, problem=q, engine=engine, verifier=verifier) for q in questions)
        )

    together = asyncio.run(all_of_them())
    alone = [solve(search, problem=q, engine=engine, verifier=verifier) for q in questions]
    assert [[b.text for b in r.branches] for r in together] == [[b.text for b in r.branches] for r in alone]
    assert engine.kv_bytes() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verifier": Commas}, "verifier=Commas is a class"),
        ({"verifier": 3}, "verifier=3 is of type int"),
        ({"problem": {"question": "q"}}, "problem is of type dict"),
        ({"engine": "smollm2"}, "engine='smollm2' is of type str"),
        ({"search": "beam"}, "search='beam' is of type str"),
        ({"search": BestOfN}, "search=BestOfN is a class"),
    ],
)
def test_wrong_types_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"search": BestOfN(), "problem": "q", "engine": FakeBackend(), "verifier": Commas()}
    given |= options
    with pytest.raises(InvalidInput, match=message):
        solve(given.pop("search"), **given)


def test_a_verifier_that_has_nothing_to_do_is_named() -> None:
    with pytest.warns(UserWarning, match="Greedy does not rate branches, so Commas is not used"):
        solve(Greedy(max_tokens=2), problem="q", engine=FakeBackend(), verifier=Commas())


def test_a_verifier_is_tried_on_one_branch() -> None:
    class Broken(Commas):
        def rate(self, branches: Any, questions: Any, backend: Any) -> Any:
            raise OSError("no weights")

    backend = FakeBackend()
    assert len(try_verifier(Commas(), backend, "q")) == 1
    with pytest.raises(VerifierError, match="Broken raised OSError: no weights"):
        try_verifier(Broken(), backend, "q")
    assert not backend.live


def test_a_search_of_the_old_shape_still_runs() -> None:
    class Old(Greedy):
        def run(self, root: Branch, end: Any) -> SearchSteps:  # type: ignore[override]
            children = yield Expand([root], 1, Step(3, end=end), self.sampling)
            yield Rate(children)
            return children

    with pytest.deprecated_call(), pytest.warns(UserWarning):
        assert solve(Old(), problem="q", engine=FakeBackend(), verifier=Commas()).error is None
