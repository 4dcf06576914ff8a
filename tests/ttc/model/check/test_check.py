"""The check at load: what the engine serves exactly is accepted, everything else is refused, in any
dtype."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama import modeling_llama

import ttc.attention.hf_hook
from experiments.standins import small_models
from tests.helpers.models import COMMON, FAMILIES, build, prompt
from tests.helpers.tiers import slow
from ttc import UnsupportedModel
from ttc.attention.hf_hook import IMPLEMENTATION, install, uninstall
from ttc.attention.kernels import Layer
from ttc.model.check.model_check import examine

Attention = Callable[..., Any]
EAGER = modeling_llama.eager_attention_forward


def double_scale(attention: Attention) -> Attention:
    def changed(*arguments: Any, scaling: float, **options: Any) -> Any:
        return attention(*arguments, scaling=2 * scaling, **options)

    return changed


def soft_cap(attention: Attention) -> Attention:
    """Scores are capped at 5, which no keyword argument says."""

    def changed(
        module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **options: Any
    ) -> Any:
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = 5 * torch.tanh(q @ k.transpose(-1, -2) * options["scaling"] / 5)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return (scores.masked_fill(future, -torch.inf).softmax(-1) @ v).transpose(
            1, 2
        ).contiguous(), None

    return changed


def short_window(attention: Attention) -> Attention:
    """A token sees the last 8 alone, which neither a mask nor a keyword argument says."""

    def changed(
        module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **options: Any
    ) -> Any:
        near = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril().triu(-7)
        return attention(
            module, q, k, v, torch.where(near, 0.0, -1e9).to(q.dtype)[None, None], **options
        )

    return changed


CHANGES = [double_scale, soft_cap, short_window]


def small_llama(dtype: torch.dtype = torch.bfloat16) -> Any:
    """Weights as training starts with: scores are so small that no change of attention shows in the
    logits."""
    torch.manual_seed(0)
    return (
        hf.LlamaForCausalLM(hf.LlamaConfig(**COMMON | {"initializer_range": 0.02})).to(dtype).eval()
    )


@pytest.mark.parametrize("family", ["bloom", "falcon", "gptj", "mpt"])
def test_attention_that_a_family_writes_out_itself_is_refused(family: str) -> None:
    model = small_models.build(family)
    written = inspect.getsource(inspect.getmodule(type(model)) or hf)
    if "ALL_ATTENTION_FUNCTIONS" in written:  # GPT-J's, from transformers 5.24 on
        examine(model)
        return
    with pytest.raises(UnsupportedModel, match="does not dispatch attention through transformers"):
        examine(model)


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_whose_eager_attention_is_another_is_refused(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", change(EAGER))
    with pytest.raises(UnsupportedModel, match="differs from the model's own"):
        examine(small_llama())


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_whose_registered_attention_is_another_is_refused(change: Any) -> None:
    AttentionInterface.register("changed", change(sdpa_attention_forward))
    model = small_llama()
    model.set_attn_implementation("changed")
    with pytest.raises(UnsupportedModel, match="differs from the model's own"):
        examine(model)
    assert model.config._attn_implementation == "changed"


@pytest.mark.parametrize("layer", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_layer_is_enough(layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(module: Any, *arguments: Any, **options: Any) -> Any:
        function = double_scale(EAGER) if module.layer_idx == layer else EAGER
        return function(module, *arguments, **options)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", one)
    with pytest.raises(UnsupportedModel, match=f"layer {layer} "):
        examine(small_llama())


@pytest.mark.parametrize(
    "mistake",
    [
        {"scale": 2.0},
        {"softcap": 5.0},
        {"window": 8},
        {"chunk": 8},
    ],
)
def test_an_engine_that_computes_something_else_is_noticed(
    mistake: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("index", "scale", "softcap", "window", "chunk")

    def layer(*given: Any) -> Layer:
        return Layer(**dict(zip(names, given, strict=True)) | mistake)

    monkeypatch.setattr(ttc.attention.hf_hook, "Layer", layer)
    with pytest.raises(UnsupportedModel, match="differs from the model's own"):
        examine(small_llama())


@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_supported_family_is_accepted_in_16_bits(family: str) -> None:
    examine(build(family, torch.bfloat16))


@pytest.mark.parametrize("window", [16, 100])  # run over; read off the mask
@pytest.mark.parametrize(
    ("case", "reason"),
    [("doge", "adds a bias to its scores")],
)
def test_masks_that_do_not_reach_the_attention_function_are_refused(
    case: str, reason: str, window: int
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        examine(small_models.build(case, window))


@pytest.mark.parametrize("chunk", [16, 100])  # run over; read off the mask
@pytest.mark.parametrize("case", ["llama4", "llama4_text"])
def test_chunks_that_only_the_mask_has_are_found(case: str, chunk: int) -> None:
    shapes = examine(small_models.build(case, chunk))[0]
    assert [(shape.window, shape.chunk) for shape in shapes] == [(None, chunk)] * 3 + [(None, None)]


@pytest.mark.parametrize("window", [16, 100])  # run over; read off the mask
@pytest.mark.parametrize(("case", "layers"), [("qwen2_moe", [0]), ("phimoe", [0, 1, 2, 3])])
def test_a_window_that_only_the_mask_has_is_found(
    case: str, layers: list[int], window: int
) -> None:
    shapes = examine(small_models.build(case, window))[0]
    assert [shape.window for shape in shapes] == [
        window if layer in layers else None for layer in range(4)
    ]


@pytest.mark.parametrize("case", ["qwen2_moe", "phimoe"])
def test_a_window_that_only_the_mask_has_and_no_configuration_states_is_refused(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ttc.model.check.model_check, "stated_windows", lambda _: [50])
    with pytest.raises(UnsupportedModel, match="told of no sliding window"):
        examine(small_models.build(case, 100))


# the first one's masks look at tokens
@pytest.mark.parametrize("case", [slow("gemma4_unified"), "gemma3_text"])
@pytest.mark.parametrize(("told", "accepted"), [(100, True), (99, False), (101, False)])
def test_a_long_window_is_compared_to_the_token(case: str, told: int, accepted: bool) -> None:
    model = small_models.build(case, window=100)
    for module in model.modules():
        if getattr(module, "sliding_window", None) == 100:
            module.sliding_window = told
    if accepted:
        examine(model)
    else:
        with pytest.raises(UnsupportedModel, match="sliding window of"):
            examine(model)


def test_a_chunk_that_no_configuration_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_llama()
    original = modeling_llama.create_causal_mask

    def chunked(**options: Any) -> Any:
        return original(**options, and_mask_function=lambda batch, head, q, k: q // 200 == k // 200)

    monkeypatch.setattr(modeling_llama, "create_causal_mask", chunked)
    with pytest.raises(UnsupportedModel, match="position 257 does not see the one at 0"):
        model.config.max_position_embeddings = 512
        examine(model)


def test_a_layer_that_runs_and_calls_no_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="layer 0 of 4 neither calls attention"):
        examine(small_models.build("recurrent_gemma"))


def test_positions_that_are_not_used_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = modeling_llama.LlamaRotaryEmbedding.forward

    def by_place(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return original(self, x, torch.arange(x.shape[1])[None])

    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", by_place)
    with pytest.raises(UnsupportedModel, match="ignores the positions"):
        examine(small_llama())


def test_tokens_that_mix_outside_attention_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = modeling_llama.LlamaMLP.forward

    def shifted(self: Any, x: torch.Tensor) -> torch.Tensor:
        return original(self, x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", shifted)
    with pytest.raises(UnsupportedModel, match="mixes neighbouring tokens"):
        examine(small_llama())


@pytest.mark.few
@torch.no_grad()
@pytest.mark.parametrize("case", ["doge", "xlnet", "inkling_text", "xlm", "bart"])
def test_a_refused_model_runs_as_before(case: str) -> None:
    model = small_models.build(case)
    ids = torch.tensor([prompt(1, 30)])
    before, own = model(ids).logits, model.config._attn_implementation
    with pytest.raises(UnsupportedModel):
        examine(model)
    assert model.config._attn_implementation == own
    assert torch.equal(model(ids).logits, before)


@torch.no_grad()
def test_parts_of_a_model_get_their_own_attention_back() -> None:
    model = small_models.build("got_ocr2")
    ids = torch.tensor([prompt(1, 30)])
    choice = {"": "sdpa", "vision_config": "eager", "text_config": "sdpa"}
    model.set_attn_implementation(choice)
    before = model(ids).logits
    examine(model)
    assert model.config.get_text_config()._attn_implementation == IMPLEMENTATION
    uninstall(model)
    assert model.config.vision_config._attn_implementation == "eager"
    assert model.config.text_config._attn_implementation == "sdpa"
    assert torch.equal(model(ids).logits, before)


def test_a_second_check_of_one_model_is_the_first_again() -> None:
    model = small_llama()
    assert examine(model) == examine(model)
    uninstall(model)
    assert model.config._attn_implementation == "sdpa"
    install(model)
    copied = copy.deepcopy(model)
    assert examine(copied) == examine(model)
    uninstall(copied)
    assert copied.config._attn_implementation == "eager"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(number: float) -> None:
    model = build("llama")
    name, weights = list(model.named_parameters())[5]
    with torch.no_grad():
        weights.view(-1)[7] = number
    with pytest.raises(UnsupportedModel, match=f"{name} hold NaN or infinite numbers"):
        examine(model)
