"""R-KV: which tokens stay, that attention reads these alone, and that all is counted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import build, prompt
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.recurrent import engine_of
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Letters
from ttc import RKV, Branch, Engine, InvalidInput, Sampling, UnsupportedModel
from ttc.approximate.rkv import redundancy

RULE = RKV(budget_tokens=24, buffer_tokens=8, recent_tokens=4, pool_tokens=3)


def scores(queries: torch.Tensor, keys: torch.Tensor, rule: RKV, scale: float) -> list[float]:
    """R-KV's score of each token but the last ones for one head, token by token."""
    tokens, past = len(keys), len(keys) - rule.recent_tokens
    paid = torch.zeros(past)
    for place in range(rule.recent_tokens):
        largest = (queries[:, place] @ keys[:past].T * scale).max(0).values
        paid += largest.softmax(0) / rule.recent_tokens
    half = rule.pool_tokens // 2
    pooled = [float(paid[max(0, j - half) : j + half + 1].max()) for j in range(past)]
    alike = torch.zeros(tokens, tokens)
    for i in range(tokens):
        for j in range(tokens):
            if i != j:
                alike[i, j] = torch.cosine_similarity(keys[i], keys[j], dim=0)
        above = [j for j in range(tokens) if alike[i, j] > rule.alike]
        if above:
            alike[i, above[-1]] = 0
    said = alike.mean(0).softmax(0).tolist()
    share = rule.attention_share
    return [share * pooled[j] - (1 - share) * said[j] for j in range(past)]


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 1000), share=st.sampled_from([0.0, 0.1, 0.9, 1.0]))
def test_what_stays_is_what_the_rule_says(seed: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rule = RKV(
        budget_tokens=12, buffer_tokens=4, recent_tokens=3, pool_tokens=3, attention_share=share
    )
    keys = torch.randn(2, 20, 4, generator=generator)
    queries = torch.randn(2, 3, 3, 4, generator=generator)
    places = rule.choice(queries, keys, 0.5)
    for head in range(2):
        of = scores(queries[head], keys[head], rule, 0.5)
        worst = min(of[j] for j in places[head, :-3].tolist())
        left_out = [j for j in range(17) if j not in places[head].tolist()]
        assert all(of[j] <= worst + 1e-6 for j in left_out)
        assert places[head].tolist() == sorted(set(places[head].tolist()))
        assert places[head, -3:].tolist() == [17, 18, 19]


def test_what_is_said_again_and_again_is_redundant() -> None:
    keys = torch.eye(6)
    keys[3] = keys[2] = keys[1]
    found = redundancy(keys, 0.5)
    assert found.sum() == pytest.approx(1)
    # each of the three leaves out the last one that it is like
    assert found[1] > found[2] > found[0] and found[3] < found[1]
    assert found[0] == found[4] == found[5]


def written(engine: Engine, tokens: int, n: int = 2) -> list[Branch]:
    root = engine.root(prompt(1, 17))
    branches = engine.fork(root, n)
    engine.release([root])
    engine.generate(branches, tokens, sampling=GREEDY)
    return branches


@pytest.mark.parametrize("case", ["llama", "gpt2"])
def test_the_next_token_sees_what_stays_and_nothing_else(case: str) -> None:
    """Beside plain transformers with a cache of those tokens."""
    model = build(case)
    engine = Engine(copy.deepcopy(model), Letters(), memory=RULE)
    (branch,) = written(engine, 20, 1)
    engine.generate([branch], 15, sampling=GREEDY)
    kept: list[list[torch.Tensor]] = []
    choice = RKV.choice

    def noted(self: RKV, queries: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
        places = choice(self, queries, keys, scale)
        kept.append([keys, places])
        return places

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RKV, "choice", noted)
        engine.residency.condense([branch], engine.tree, engine.runner.forward)
    own = branch.leaf.end - branch.prompt_length
    assert own == 34 and branch.usage.evicted_tokens == 34 - 24
    tokens = branch.tokens
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([tokens[:-1]]), past_key_values=cache)
        for layer, (keys, places) in zip(cache.layers, kept, strict=True):
            torch.testing.assert_close(keys, layer.keys[0, :, -own:], atol=1e-5, rtol=1e-5)
            here = torch.arange(17).expand(len(places), -1)
            here = torch.cat([here, places + 17], 1)[None, ..., None]
            layer.keys, layer.values = (
                x.gather(2, here.expand(-1, -1, -1, x.shape[-1]))
                for x in (layer.keys, layer.values)
            )
        position = torch.tensor([[len(tokens) - 1]])
        logits = model(
            torch.tensor([tokens[-1:]]), past_key_values=cache, position_ids=position
        ).logits
    expected = logits[0, -1].log_softmax(-1)
    (((found,),),) = engine.score([branch], [[[5]]])
    assert found == pytest.approx(float(expected[5]), abs=1e-4)
    assert_nothing_left(engine, [branch])


@pytest.mark.slow
def test_long_texts_stay_within_their_budget_and_what_goes_is_counted() -> None:
    engine = make_engine(context=2000, memory=RULE)
    branches = written(engine, 500, 3)
    assert [len(branch.generated) for branch in branches] == [500] * 3
    for branch in branches:
        held = sum(segment.held for segment in branch.leaf.path())
        assert held < 17 + 24 + 8 + 64  # what the last tail held was not cut down yet
    held = sum(segment.held for segment in engine.tree.segments())
    assert engine.kv_bytes() == held * engine.memory.bytes_per_token
    whole = sum(len(segment.tokens) for segment in engine.tree.segments())
    assert branches[0].usage.evicted_tokens == whole - held > 3 * 400
    assert_nothing_left(engine, branches)


def test_short_texts_and_what_branches_share_stay_exact() -> None:
    model = build("llama")
    engine = Engine(copy.deepcopy(model), Letters(), memory=RULE)
    short = written(engine, 20)
    root = engine.root(prompt(2, 60))
    shared = engine.fork(root, 2)
    engine.generate(shared[:1], 20, sampling=GREEDY)
    children = engine.fork(shared[0], 2)
    engine.generate(children, 20, sampling=GREEDY)  # 40 tokens, 20 of which they share
    for branch in [*short, *children]:
        assert_like_plain(model, branch)
    assert short[0].usage.evicted_tokens == root.usage.evicted_tokens == 0
    assert_nothing_left(engine, [*short, root, *shared, *children])


def test_a_text_that_was_cut_down_is_given_to_no_other_branch() -> None:
    model = build("llama")
    engine = Engine(copy.deepcopy(model), Letters(), memory=RULE)
    (branch,) = written(engine, 90, 1)
    assert branch.usage.evicted_tokens
    again = engine.root(branch.tokens[:60])
    engine.generate([again], 5, sampling=GREEDY)
    assert_like_plain(model, again)
    children = engine.fork(branch, 2)
    engine.generate(children, 9, sampling=Sampling())
    assert [len(child.generated) for child in children] == [99, 99]
    assert_nothing_left(engine, [branch, again, *children])


def test_a_text_may_be_longer_than_memory() -> None:
    token = make_engine().memory.bytes_per_token
    rule = RKV(130 * token / 2**30, budget_tokens=24, buffer_tokens=8, recent_tokens=4)
    engine = make_engine(context=2000, memory=rule)
    branches = written(engine, 250, 1)
    assert [len(branch.generated) for branch in branches] == [250]
    assert engine.memory.device.peak_bytes <= 130 * token
    assert_nothing_left(engine, branches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget_tokens": 8}, "memory.budget_tokens=8 leaves nothing to choose"),
        ({"attention_share": 1.5}, "memory.attention_share=1.5 must be from 0 to 1"),
        ({"pool_tokens": 4}, "memory.pool_tokens=4 has no middle"),
        ({"buffer_tokens": 0}, "memory.buffer_tokens=0"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RKV(**options)


def test_models_that_it_cannot_serve_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="layers that look so many tokens back"):
        Engine(build("gemma2"), Letters(), memory=RKV())
    with pytest.raises(UnsupportedModel, match="recurrent layers"):
        engine_of("mamba2", memory=RKV())
