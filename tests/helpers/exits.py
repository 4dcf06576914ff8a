"""Models of five layers, what two problems' branches are asked, and plain transformers cut off at a
layer."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import transformers as hf

from tests.helpers.models import COMMON, FAMILIES, prompt
from ttc import Engine
from ttc.approximate.early_exit import EarlyExit, ExitReport
from ttc.branch import Branch

LAYERS = 5
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]}
MODELS: dict[str, tuple[type, dict[str, Any]]] = FAMILIES | {
    "gpt2": (hf.GPT2Config, {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 256}),
    "gemma2": (hf.Gemma2Config, FAMILIES["gemma2"][1] | WINDOWS | {"final_logit_softcapping": 3.0}),
    "gemma3": (hf.Gemma3TextConfig, FAMILIES["gemma3"][1] | WINDOWS),
    # project_in, project_out
    "opt": (hf.OPTConfig, FAMILIES["opt"][1] | {"word_embed_proj_dim": 16}),
    "untied": (hf.LlamaConfig, {"tie_word_embeddings": False}),
    "tied": (hf.LlamaConfig, {"tie_word_embeddings": True}),
    "granite": (hf.GraniteConfig, {"logits_scaling": 4.0, "residual_multiplier": 0.5}),
    "cohere": (hf.CohereConfig, {"logit_scale": 0.25}),
}
CORE = ["llama", "gemma2", "gpt2", "opt", "mixtral", "gpt_oss", "deepseek_v3"]
NEVER = EarlyExit(l_min=LAYERS)
ALWAYS = EarlyExit(l_min=2, theta=math.inf, eps=math.inf)
CANDIDATES = [5, 9, 77]


def build(family: str, dtype: torch.dtype | None = None) -> Any:
    """In double precision, which experts' grouped products don't have."""
    dtype = dtype or (
        torch.float32 if family in ("mixtral", "gpt_oss", "deepseek_v3") else torch.float64
    )
    config_class, extra = MODELS[family]
    torch.manual_seed(0)
    settings = COMMON | {"num_hidden_layers": LAYERS} | extra
    model = hf.AutoModelForCausalLM.from_config(config_class(**settings), dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def problems(engine: Engine) -> tuple[list[Branch], list[list[int]]]:
    """Two problems with three branches and two, none where it was forked, and what each is
    asked."""
    first, second = engine.roots([prompt(1, 20), prompt(2, 14)], seeds=[1, 2]).result()
    branches = engine.fork(first, 3) + engine.fork(second, 2)
    engine.extend(branches, [prompt(10 + i, 2 + 3 * i) for i in range(5)]).result()
    engine.release([first, second])
    return branches, [prompt(20 + i, 12 - 2 * i) for i in range(5)]


def ask(
    engine: Engine, branches: list[Branch], given: list[list[int]], exit: EarlyExit | None
) -> tuple[list[list[float]], ExitReport]:
    report = ExitReport()
    wanted = [[[t] for t in CANDIDATES]] * len(branches)
    found = engine.score(branches, wanted, given=given, exit=exit, report=report).result()
    return [[logprob for (logprob,) in group] for group in found], report


@torch.no_grad()
def cut_off(plain: Any, tokens: list[int], depth: int) -> torch.Tensor:
    """The logits after `tokens` of a model that ends after `depth` layers."""
    short, layers = copy.deepcopy(plain), plain.config.get_text_config().num_hidden_layers
    for parent in list(short.modules()):
        for name, child in parent.named_children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == layers:
                setattr(parent, name, child[:depth])
    return short(torch.tensor([tokens]), use_cache=False).logits[0, -1].double()


def lenses(plain: Any, branches: list[Branch], given: list[list[int]]) -> list[list[torch.Tensor]]:
    """[branch][layer - 1]: log-probabilities of the whole vocabulary."""
    layers = range(1, plain.config.get_text_config().num_hidden_layers + 1)
    return [
        [cut_off(plain, b.tokens + g, d).log_softmax(-1) for d in layers]
        for b, g in zip(branches, given, strict=True)
    ]


def paper_depth(h: list[float], exit: EarlyExit) -> int:
    """Algorithm 3 of RKSC over the entropies of all layers."""
    before = math.inf
    for layer, now in enumerate(h, 1):
        if layer >= exit.l_min and now < exit.theta and abs(now - before) < exit.eps:
            return layer
        before = now
    return len(h)


def middle(values: list[float], part: float) -> float:
    """A threshold between two of the values, with `part` of them below."""
    values = sorted(values)
    place = max(1, round(part * len(values)))
    return (values[place - 1] + values[place]) / 2


def entropies(lens: list[torch.Tensor]) -> list[float]:
    return [float(-(logp.exp() * logp).sum()) for logp in lens]


def untouched(engine: Engine) -> bool:
    return not any(
        "forward" in m.__dict__ or m._forward_hooks or m._forward_pre_hooks
        for m in engine.model.modules()
    )
