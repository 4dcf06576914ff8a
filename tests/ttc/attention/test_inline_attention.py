"""Families that compute attention by code of their own: exact as all others, and left as they
were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers.models.falcon import modeling_falcon
from transformers.models.gptj.modeling_gptj import GPTJAttention

from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import OWN_CODE, build, prompt
from tests.helpers.tiers import slow
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Capture, Engine, Headwise, Layerwise, Paged, Sampling, UnsupportedModel
from ttc.attention.fused import SWITCH
from ttc.attention.inline_attention import CallsAttention
from ttc.attention.position_bias import with_bias
from ttc.model.check import examine

GREEDY = Sampling(temperature=0)
IN_FLOAT32 = ("bloom", "codegen", "gpt_neo", "gptj", "mpt")
"""These compute softmax, or all of attention, in float32 whatever the type of their weights."""


def state(model: Any) -> list[Any]:
    """The classes of a model's modules and their attributes, and its attention."""
    modules = [
        (type(module), sorted(vars(module)), "forward" in vars(module))
        for module in model.modules()
    ]
    return [*modules, model.config._attn_implementation]


@pytest.mark.parametrize("fused", ["0", "1"])
@pytest.mark.parametrize("family", OWN_CODE)
def test_tree_equals_plain_transformers(
    family: str, fused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, fused)
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    engine.release(branches)
    assert engine.kv_bytes() == 0


@pytest.mark.parametrize(
    "family", [name for name in OWN_CODE if name.split(",")[0] not in (*IN_FLOAT32, "xglm")]
)
def test_double_precision(family: str) -> None:
    """XGLM does not run in float64 in transformers."""
    plain = build(family, torch.float64)
    for branch in grow(Engine(copy.deepcopy(plain), Letters())):
        assert_like_plain(plain, branch, bound=1e-9)


POLICIES = [
    lambda gib: Capture(budget_gib=0.6 * gib, act_share=0.5, block_tokens=8),
    lambda gib: Layerwise(budget_gib=0.75 * gib),
    lambda gib: BeamGroups(budget_gib=0.5 * gib, block_tokens=8),
    lambda gib: Paged(budget_gib=0.4 * gib, block_tokens=8),
    lambda gib: Headwise(budget_gib=0.5 * gib, block_tokens=8),
]


@pytest.mark.filterwarnings("ignore:memory=capture keeps no ACT blocks")
@pytest.mark.parametrize("memory", POLICIES)
@pytest.mark.parametrize("family", ["bloom", *map(slow, ("falcon, new", "gpt_neo", "mpt"))])
def test_offloaded_equals_plain_transformers(family: str, memory: Any) -> None:
    plain = build(family)
    resident = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5)
    grow(resident)
    policy = memory(resident.memory.device.peak_bytes / 2**30)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5, memory=policy)
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert sum(engine.memory.link.to_device_bytes.values()) > 0


@pytest.mark.parametrize("family", ["falcon, alibi", "gpt_neo", "mpt"])
@torch.no_grad()
def test_scores_equal_plain_transformers(family: str) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5)
    root = engine.root(prompt(1, 30))
    continuations = [prompt(2, 5), prompt(3, 1), prompt(4, 3)]
    [found] = engine.score([root], [continuations])
    for tokens, logprobs in zip(continuations, found, strict=True):
        logits = plain(torch.tensor([root.tokens + tokens])).logits[0].double().log_softmax(-1)
        expected = [float(logits[29 + place, token]) for place, token in enumerate(tokens)]
        assert logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["falcon, alibi", slow("bloom"), slow("mpt")])
def test_a_bias_by_position_holds_far_into_the_context(family: str) -> None:
    """Falcon rounds positions to bfloat16 in its bias: from 256 on, a formula would give something
    else."""
    plain = build(family)
    plain.config.max_position_embeddings = plain.config.max_seq_len = 2048
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=512)
    branches = engine.fork(engine.root(prompt(1, 1500)), 2)
    engine.extend(branches[:1], [prompt(2, 3)])
    engine.generate(branches, 4, sampling=GREEDY)
    for branch in branches:
        assert_like_plain(plain, branch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_columns_carry_the_bias(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 4, 3, 8, generator=generator).to(dtype) for _ in range(3))
    positions = [3, 1900, 700]
    slopes = torch.tensor([0.84, 0.5, 0.1, 0.0039], dtype=torch.float64)
    plan = type("Plan", (), {"positions": positions})()
    monkeypatch.setattr("ttc.attention.position_bias.current_plan", lambda: plan)
    longer = with_bias(
        query, key[:, :2], value[:, :2], 0.25, lambda n: slopes[:, None] * torch.arange(n)
    )
    found = longer[0].double() @ longer[1].double().transpose(2, 3)
    near = torch.tensor(positions)
    keys = key[:, :2].repeat_interleave(2, 1)
    products = (query * 0.25).double() @ keys.double().transpose(2, 3)
    expected = products + slopes[:, None, None] * (near[None, :] - near[:, None])
    assert float((found - expected).abs().max()) < {2: 2e-3, 4: 2e-4, 8: 1e-10}[dtype.itemsize]
    assert longer[0].shape[-1] == longer[1].shape[-1] == longer[2].shape[-1] == 16


@pytest.mark.slow
@pytest.mark.parametrize("family", OWN_CODE)
def test_every_family_is_accepted_in_16_bits(family: str) -> None:
    examine(build(family, torch.bfloat16))


@pytest.mark.parametrize("family", ["falcon, alibi", "gptj", "mpt"])
def test_a_model_runs_its_own_code_wherever_it_is_lent_or_copied(family: str) -> None:
    model, ids = build(family), torch.tensor([prompt(1, 12)])
    before, expected = state(model), model(ids).logits
    engine = Engine(model, Letters())
    assert any(isinstance(module, CallsAttention) for module in model.modules())
    with pytest.raises(UnsupportedModel, match="without a plan"):
        model(ids)
    other = copy.deepcopy(model)
    with engine.lent() as lent:
        assert state(lent) == before
        assert torch.equal(lent(ids).logits, expected)
    second = Engine(other, Letters())
    for one in (engine, second):
        branch = one.root(prompt(1, 12))
        one.generate([branch], 3, sampling=GREEDY)
    with second.lent() as lent:
        assert state(lent)[:-1] == before[:-1]
        assert torch.equal(lent(ids).logits, expected)


def test_a_copy_of_an_installed_model_does_not_run_the_weights_of_the_first() -> None:
    model = build("gptj")
    Engine(model, Letters())
    other = copy.deepcopy(model)
    for weight in model.parameters():
        weight.data.zero_()
    plain = build("gptj")
    for branch in grow(Engine(other, Letters())):
        assert_like_plain(plain, branch)


def test_attention_that_is_no_softmax_of_products_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scores are capped; the scale near 0 is what it was."""
    own = GPTJAttention._attn

    def capped(self: Any, query: Any, key: Any, value: Any, attention_mask: Any = None) -> Any:
        scores = torch.tanh(query.float() @ key.float().transpose(-1, -2) / self.scale_attn)
        scores = scores if attention_mask is None else scores + attention_mask
        return scores.softmax(-1).to(value.dtype) @ value, None

    model = build("gptj")
    before = state(model)
    monkeypatch.setattr(GPTJAttention, "_attn", capped)
    with pytest.raises(UnsupportedModel, match="differs from the model's own"):
        Engine(model, Letters())
    monkeypatch.setattr(GPTJAttention, "_attn", own)
    assert state(model) == before


def test_a_forward_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = modeling_falcon.FalconAttention.forward

    def doubled(self: Any, *args: Any, **kwargs: Any) -> Any:
        out, weights = own(self, *args, **kwargs)
        return 2 * out, weights

    model = build("falcon")
    monkeypatch.setattr(modeling_falcon.FalconAttention, "forward", doubled)
    before = state(model)
    with pytest.raises(UnsupportedModel, match="its logits differ"):
        Engine(model, Letters())
    assert state(model) == before


def test_a_window_that_only_the_module_knows_is_found() -> None:
    model = build("gpt_neo")
    shapes = examine(model)[0]
    assert [shape.window for shape in shapes] == [None, 8]
