"""The engine against plain transformers, branch by branch, on small random models of every supported family."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers as hf

import ttc.attention.plan
import ttc.residency.base
from ttc import Engine, Sampling, UnsupportedModel
from ttc.tree.branch import Branch

VOCAB = 128
GREEDY = Sampling(temperature=0)
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
MOE = {"num_experts_per_tok": 2, "num_local_experts": 4}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "head_dim": 4,
    "v_head_dim": 6,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, {}),
    "qwen2": (hf.Qwen2Config, {}),
    "qwen3": (hf.Qwen3Config, {}),
    "mistral": (hf.MistralConfig, {"sliding_window": 8}),
    "opt": (
        hf.OPTConfig,
        {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3, "activation_function": "gelu"},
    ),
    "gpt2": (hf.GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "gpt_neox": (hf.GPTNeoXConfig, {}),
    "phi3": (hf.Phi3Config, {}),
    "gemma2": (
        hf.Gemma2Config,
        {"sliding_window": 8, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gemma3": (
        hf.Gemma3TextConfig,
        {"sliding_window": 8, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "olmo2": (hf.Olmo2Config, {}),
    "mixtral": (hf.MixtralConfig, MOE),
    "gpt_oss": (hf.GptOssConfig, {**MOE, "sliding_window": 8}),
    "deepseek_v3": (hf.DeepseekV3Config, MLA),
}


class Letters:
    """A tokenizer of one token per character."""

    eos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(c) % VOCAB for c in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, tokens))


def build(family: str, dtype: torch.dtype = torch.float32) -> Any:
    config_class, extra = FAMILIES[family]
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config_class(**(COMMON | extra)), dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(1, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def assert_like_plain(plain: Any, branch: Branch, bound: float | None = None) -> None:
    """Every generated token is plain greedy's, every log-probability plain's within the bound."""
    logits = plain(torch.tensor([branch.tokens]), use_cache=False).logits[0].double()
    limit = (1e-4 + 1e-5 * float(logits.abs().max())) if bound is None else bound
    expected = logits.log_softmax(-1)
    for place, (token, logprob, top1) in enumerate(zip(branch.generated, branch.logprobs, branch.top1, strict=True)):
        row = expected[branch.prompt_length + place - 1]
        if logprob != logprob:  # a given token, not a generated one
            continue
        assert token == int(row.argmax())
        assert abs(float(row[token]) - logprob) <= limit
        assert abs(float(row.max().exp()) - top1) <= limit


def grow(engine: Engine) -> list[Branch]:
    """A three-level tree over two roots: ragged lengths, pruning, a longer prefix than any window."""
    shared = prompt(1, 20)
    first, second = engine.roots([shared + prompt(2, 7), shared + prompt(3, 12)], seeds=[1, 2])
    level = engine.fork(first, 3) + engine.fork(second, 2)
    engine.release([first, second])
    engine.extend(level[:3], [prompt(4, 1), prompt(5, 6), prompt(6, 3)])
    engine.generate(level, [3, 9, 5, 2, 4], sampling=GREEDY)
    engine.release([level[0], level[4]])
    next_level = engine.fork(level[1], 2) + engine.fork(level[2], 1) + engine.fork(level[3], 2)
    engine.release(level[1:4])
    engine.generate(next_level, 4, sampling=GREEDY)
    engine.release(next_level[1:3])
    kept = [next_level[0], *next_level[3:]]
    engine.extend(kept[:1], [prompt(7, 2)])
    last = engine.fork(kept[0], 2) + kept[1:]
    engine.release(kept[:1])
    engine.generate(last, 3, sampling=GREEDY)
    return last


@pytest.mark.parametrize("family", FAMILIES)
def test_tree_equals_plain_transformers(family: str) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5)
    branches = grow(engine)
    assert sorted(len(b.generated) for b in branches) == [9, 9, 18, 18]
    for branch in branches:
        assert_like_plain(plain, branch)
    engine.release(branches)
    assert engine.kv_bytes() == 0
    assert engine.tree.segments() == []


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt"])  # others compute in float32 within
def test_double_precision(family: str) -> None:
    plain = build(family, torch.float64)
    for branch in grow(Engine(copy.deepcopy(plain), Letters())):
        assert_like_plain(plain, branch, bound=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3"])
@torch.no_grad()
def test_score_equals_plain_transformers(family: str) -> None:
    plain = build(family)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=4)
    branches = engine.roots([prompt(1, 12), prompt(2, 17)])
    tails = [[[5, 6, 7], [5, 6, 8, 9, 1, 2], [5]], [[3], [4]]]
    for branch, group, scores in zip(branches, tails, engine.score(branches, tails), strict=True):
        for continuation, found in zip(group, scores, strict=True):
            logits = plain(torch.tensor([branch.tokens + continuation]), use_cache=False).logits[0]
            rows = logits[len(branch.tokens) - 1 : -1].log_softmax(-1)
            expected = [float(row[token]) for row, token in zip(rows, continuation, strict=True)]
            assert found == pytest.approx(expected, abs=1e-4 + 1e-5 * float(logits.abs().max()))
    assert [len(b.tokens) for b in branches] == [12, 17]
    engine.release(branches)
    assert engine.kv_bytes() == 0


def wrong_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ttc.attention.plan.DecodePlan.__init__

    def shifted(self: Any, entries: Any, positions: list[int], *rest: Any) -> None:
        original(self, entries, [p + 1 for p in positions], *rest)

    monkeypatch.setattr(ttc.attention.plan.DecodePlan, "__init__", shifted)


def wrong_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(out: Any, lse: Any, part_out: Any, part_lse: Any) -> None:
        out.lerp_(part_out.to(out.dtype), 0.5)

    monkeypatch.setattr(ttc.attention.plan, "merge_", halves)


def lost_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ttc.attention.plan.shared_entries
    monkeypatch.setattr(ttc.residency.base, "shared_entries", lambda *a: original(*a)[1:])


@pytest.mark.parametrize("mistake", [wrong_positions, wrong_merge, lost_segment])
def test_a_planted_mistake_is_noticed(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build("llama")
    engine = Engine(copy.deepcopy(plain), Letters())
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        for branch in grow(engine):
            assert_like_plain(plain, branch)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize(
    "sampling", [Sampling(0.8), Sampling(0.8, top_k=20), Sampling(1.2, top_p=0.9), Sampling(1.0, min_p=0.05)]
)
def test_samples_do_not_depend_on_the_batch(family: str, sampling: Sampling) -> None:
    def sample(order: list[int], together: bool) -> dict[int, list[int]]:
        engine = Engine(build(family), Letters())
        root = engine.root(prompt(1, 14), seed=7)
        branches = engine.fork(root, 4)
        engine.extend(branches[:2], [prompt(2, 5), prompt(3, 1)])
        for group in [order] if together else [[i] for i in order]:
            engine.generate([branches[i] for i in group], 8, sampling=sampling)
        return {i: branches[i].generated for i in order}

    together = sample([0, 1, 2, 3], together=True)
    assert together == sample([3, 1, 0, 2], together=True) == sample([2, 0, 3, 1], together=False)
    assert len({tuple(tokens) for tokens in together.values()}) == 4


@pytest.mark.parametrize(
    "config",
    [
        hf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4),
        hf.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2),
    ],
)
def test_other_models_are_refused(config: Any) -> None:
    model = hf.AutoModelForCausalLM.from_config(config)
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModel, match=type(model).__name__):
        Engine(model, Letters())
    assert model.config._attn_implementation == before
