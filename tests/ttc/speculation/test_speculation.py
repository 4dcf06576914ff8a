"""Drafts change no token, and nothing that is kept of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import GREEDY, make_engine, numbers_engine
from tests.helpers.models import build
from tests.helpers.tiers import examples, slow
from tests.helpers.tokenizers import Letters
from ttc import (
    DecodeGate,
    DraftModel,
    Engine,
    InvalidInput,
    Paged,
    PromptLookup,
    QuantizedKV,
    Sampling,
)
from ttc.branch import Branch
from ttc.speculation.base import Draft

PROMPTS = [[1, 2, 3, 4, 1, 2, 3], [5, 6, 7, 5, 6, 7, 5, 6]]


def written(engine: Engine, tokens: int, **options: Any) -> list[Branch]:
    roots = engine.roots(PROMPTS, seeds=[1, 2]).result()
    children = [child for root in roots for child in engine.fork(root, 2)]
    engine.generate(children, tokens, statistics=True, **options)
    return children


def assert_same(branches: list[Branch], others: list[Branch]) -> None:
    for one, other in zip(branches, others, strict=True):
        assert one.tokens == other.tokens
        assert (one.step_ends, one.step_reasons) == (other.step_ends, other.step_reasons)
        for column, expected in zip(one.columns(), other.columns(), strict=True):
            assert column == pytest.approx(expected, abs=1e-4)


@dataclass
class Foreseen(Draft):
    """Drafts what is going to be written, with a wrong token at every third place."""

    texts: list[list[int]] = field(default_factory=list)

    def length(self, rows: int) -> int:
        return self.max_tokens

    def propose(
        self, branches: Sequence[Branch], counts: Sequence[int], samplings: Sequence[Sampling]
    ) -> list[list[int]]:
        return [
            self.after(branch.tokens, count) for branch, count in zip(branches, counts, strict=True)
        ]

    def after(self, tokens: list[int], count: int) -> list[int]:
        start = len(tokens)
        text = next(text for text in self.texts if text[:start] == tokens)
        return [
            token if place % 3 else token ^ 1
            for place, token in enumerate(text[start : start + count], start)
        ]


@pytest.mark.few
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gemma2"])
def test_families_write_the_same(name: str) -> None:
    plain = written(Engine(build(name), Letters()), 40)
    speculation = Foreseen(max_rows=4, texts=[branch.tokens for branch in plain])
    drafted = written(Engine(build(name), Letters(), speculation=speculation), 40)
    assert_same(drafted, plain)
    usage = drafted[0].usage
    assert usage.drafted_tokens > usage.accepted_tokens > 20
    assert usage.forward_passes < plain[0].usage.forward_passes


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 60), st.sampled_from([0.0, 0.7, 1.0]))
def test_any_draft_writes_the_same(
    shortest: int, max_tokens: int, tokens: int, temperature: float
) -> None:
    speculation = PromptLookup(max_tokens=max_tokens, max_rows=4, shortest=shortest)
    sampling = Sampling(temperature=temperature)
    plain = written(make_engine(context=70), tokens, sampling=sampling)
    drafted = written(make_engine(context=70, speculation=speculation), tokens, sampling=sampling)
    assert_same(drafted, plain)


def test_a_draft_model_is_accepted_and_lets_go_of_its_kv() -> None:
    """The same weights with the same random numbers draw the same tokens."""
    other = make_engine(context=256)
    engine = make_engine(context=256, speculation=DraftModel(model=other, cost=0.1))
    plain = make_engine(context=256)
    ends = []
    for at in (plain, engine):
        root = at.root(PROMPTS[0], seed=3)
        at.generate([root], 40, sampling=Sampling(temperature=0.9))
        ends.append(root)
    assert ends[0].tokens == ends[1].tokens
    usage = ends[1].usage
    assert usage.accepted_tokens == usage.drafted_tokens > 0
    assert usage.forward_passes < ends[0].usage.forward_passes
    engine.release([ends[1]])
    assert other.kv_bytes() == engine.kv_bytes() == 0


def test_stops_act_token_by_token() -> None:
    plain = written(make_engine(context=256), 60, sampling=GREEDY)
    text = plain[0].text
    stop = [text[20:22]]
    ends = [
        written(make_engine(context=256, speculation=speculation), 60, sampling=GREEDY, stop=stop)
        for speculation in (None, PromptLookup(shortest=1, max_rows=4))
    ]
    assert_same(ends[1], ends[0])
    assert ends[0][0].step_reasons == ["delimiter"]


def test_it_is_off_where_many_rows_decode() -> None:
    engine = make_engine(context=256, speculation=PromptLookup(max_rows=3))
    assert all(branch.usage.drafted_tokens == 0 for branch in written(engine, 20, sampling=GREEDY))


def test_drafts_stop_where_none_is_accepted() -> None:
    draft = PromptLookup()
    assert draft.length(1) > 0
    for _ in range(100):
        draft.note(1, 0)
    assert draft.length(1) == 0
    for _ in range(200):
        draft.note_none()
    assert draft.length(1) > 0


def test_a_draft_is_longer_where_more_is_accepted_and_rows_are_few() -> None:
    draft = PromptLookup(max_rows=4)
    lengths = []
    for draft.rate in (0.1, 0.5, 0.8, 1.0):
        lengths.append([draft.length(rows) for rows in (1, 2, 4, 5)])
    assert [of[0] for of in lengths] == sorted(of[0] for of in lengths)
    assert all(of == sorted(of, reverse=True) for of in lengths)
    assert lengths[0] == [0] * 4 and lengths[-1] == [8, 8, 8, 0]


def test_a_draft_model_costs_its_share_of_the_weights() -> None:
    """One of the same size gains nothing, so nothing is drafted."""
    engine = make_engine(context=256, speculation=DraftModel(model=make_engine()))
    assert engine.speculation is not None and engine.speculation.pass_cost == 1
    root = engine.root(PROMPTS[0])
    engine.generate([root], 10)
    assert root.usage.drafted_tokens == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gate": DecodeGate()}, "gate=none"),
        ({"memory": Paged()}, "memory=resident"),
        slow(({"memory": QuantizedKV()}, "memory=resident")),
    ],
)
def test_an_engine_says_why_it_does_not_speculate(options: dict[str, Any], reason: str) -> None:
    engine = make_engine(speculation=PromptLookup(), **options)
    assert engine.speculation is not None
    assert reason in engine.speculation.reason
    assert all(branch.usage.drafted_tokens == 0 for branch in written(engine, 5))


def test_bad_settings_are_refused() -> None:
    for settings_ in ({"max_tokens": 0}, {"max_rows": 0}, {"shortest": 0}, {"shortest": 5}):
        with pytest.raises(InvalidInput, match="speculation"):
            PromptLookup(**settings_)
    with pytest.raises(InvalidInput, match="a model's name"):
        DraftModel()
    with pytest.raises(InvalidInput, match="cost=-1"):
        DraftModel(model="other", cost=-1.0)
    with pytest.raises(InvalidInput, match="vocabulary"):
        make_engine(speculation=DraftModel(model=numbers_engine()))
    with pytest.raises(InvalidInput, match="is a class"):
        make_engine(speculation=PromptLookup)
    with torch.inference_mode(), pytest.raises(InvalidInput, match="speculation="):
        make_engine(speculation="prompt_lookup")
