"""Is a model one that the engine serves exactly? Asked once, at load, by running it both ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ttc.attention.hf_hook import IMPLEMENTATION
from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan import ExtendPlan, Piece
from ttc.errors import UnsupportedModel
from ttc.memory.kv import KV, LayerKV, LayerShape

CHECK_TOKENS = 12


class _Probe(ExtendPlan):
    """An ordinary prefill that allocates KV layer by layer, in whatever shape the model turns out to have."""

    def __init__(self, model: Any):
        self.shapes: dict[int, LayerShape] = {}
        self.kv = KV(0, CHECK_TOKENS)
        super().__init__([], range(CHECK_TOKENS), [Piece(slice(0, CHECK_TOKENS), [(self.kv, 0, CHECK_TOKENS)])])

    def attend_tails(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        if layer.index != len(self.shapes):
            raise UnsupportedModel(f"attention layers run in another order than 0, 1, 2, ...: {layer.index} came early")
        self.shapes[layer.index] = LayerShape(key.shape[0], key.shape[2], value.shape[2], layer.window)
        self.kv.device.append(LayerKV(torch.empty(key.shape).to(key), torch.empty(value.shape).to(value)))
        return super().attend_tails(layer, q, key, value)


@torch.inference_mode()
def check_model(model: Any) -> tuple[LayerShape, ...]:
    """Switch `model` to the engine's attention and return what each layer stores per token.

    Raises UnsupportedModel when the model isn't a decoder that dispatches attention through transformers'
    `AttentionInterface`, or when its logits on a few tokens differ from its own attention's.
    """
    name = type(model).__name__
    config = model.config.get_text_config()
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} is an encoder-decoder; the engine runs decoder-only language models")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModel(
            f"{name} does not dispatch attention through transformers' AttentionInterface, so the engine cannot reach "
            "it; use a model that does (Llama, Qwen, Mistral, Gemma, OPT, GPT-2, GPT-NeoX, Phi-3, OLMo 2, ...)"
        )
    tokens = torch.arange(1, CHECK_TOKENS + 1, device=model.device)[None] * 7 % config.vocab_size
    positions = torch.arange(CHECK_TOKENS, device=model.device)[None]
    own = model.config._attn_implementation
    if own == IMPLEMENTATION:  # another engine had the model before
        own = "eager"
        model.set_attn_implementation(own)
    expected = model(input_ids=tokens, use_cache=False).logits[0].double()
    probe = _Probe(model)
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False, tree_plan=probe).logits[0].double()
        _compare(name, config.num_hidden_layers, probe, logits, expected, model.dtype)
    except UnsupportedModel:
        model.set_attn_implementation(own)
        raise
    except Exception as error:
        model.set_attn_implementation(own)
        raise UnsupportedModel(f"{name} cannot run over the engine's attention: {error}") from error
    return tuple(probe.shapes[i] for i in range(len(probe.shapes)))


def _compare(name: str, layers: int, probe: _Probe, logits: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    if len(probe.shapes) != layers:
        raise UnsupportedModel(
            f"{name} has {layers} layers, but {len(probe.shapes)} of them called the engine's attention; models with "
            "linear attention, state-space layers or shared caches are not supported"
        )
    # mixture-of-experts routing may flip in 16 bits, so the mean is compared there, not the largest
    exact = dtype in (torch.float32, torch.float64)
    gap = (logits - expected).abs()
    error = float(gap.max() if exact else gap.mean())
    limit = 1e-3 + (1e-4 if exact else 5e-2) * float(expected.abs().max())
    if not error <= limit:
        raise UnsupportedModel(
            f"{name} gives other logits over the engine's attention than over its own (off by {error:.3g}, limit "
            f"{limit:.3g}); it uses something in attention that the engine does not know"
        )
