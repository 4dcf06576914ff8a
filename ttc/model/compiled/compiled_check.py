"""May compiled layers run a model, and do they give what its own modules give?"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ttc.attention.fused import SWITCH
from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan import Plan, Run
from ttc.errors import UnsupportedModel
from ttc.memory.kv import LayerShape
from ttc.memory.storage import Places, Storage
from ttc.model.check.attention_check import deviation, is_precise
from ttc.model.check.model_check import CHECK_TOKENS
from ttc.model.compiled import layers_kernel
from ttc.model.compiled.fused_runner import FusedRunner, check_numbers
from ttc.model.compiled.llama_structure import Decoder, decoder_of
from ttc.model.running.runner import HuggingFaceRunner

RunPass = Callable[[Sequence[int], Plan], Tensor]
"""What tokens and a plan become."""


class Differs(UnsupportedModel):
    """The compiled layers give something else than the model's modules."""


def compiled_runner(model: Any) -> FusedRunner:
    """What runs a model by compiled layers. Raises UnsupportedModel where they do not serve it."""
    decoder = decoder_of(model)
    runner = FusedRunner(HuggingFaceRunner(model), decoder)
    check_runner(runner)
    return runner


def compiled_decoder(model: Any) -> Decoder | None:
    """The parts of a model whose layers run compiled on a CPU; None where its own modules run.

    model: as it was built, without hooks; may be without memory, on PyTorch's "meta" device.
    """
    if why_not():
        return None
    try:
        decoder = decoder_of(model)
        check_numbers(decoder, model.dtype)
    except UnsupportedModel:
        return None
    return decoder


def why_not() -> str:
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    return layers_kernel.why_not()


class _Watched(Plan):
    """A plan that keeps what each layer gives to attention and gets from it. answers: what layers
    get, instead."""

    def __init__(self, *arguments: Any, answers: list[Partial] | None = None):
        super().__init__(*arguments)
        self.inputs: list[tuple[Tensor, ...]] = []
        self.partials: list[Partial] = []
        self.answers = answers

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        self.inputs.append(tuple(x.detach().clone() for x in (q, key, value)))
        if self.answers is None:
            partial = super().attend(layer, q, key, value)
        else:
            partial = self.answers[layer.index]
        self.partials.append(partial)
        return partial


def check_runner(runner: FusedRunner) -> None:
    config = runner.model.config.get_text_config()
    check_layers(config, runner.shapes, runner.dtype, runner.modules.forward, runner.forward)


@torch.inference_mode()
def check_layers(
    config: Any,
    shapes: Sequence[LayerShape],
    dtype: torch.dtype,
    modules: RunPass,
    compiled: RunPass,
) -> None:
    """On a few tokens, near and far, each layer's queries, keys and values and the results of two
    passes must be the same. Attention is computed once and answered from the record the second
    time, so that layers are compared one by one.

    config: of the model's text. shapes: what each layer stores, on the CPU. Raises Differs.
    """
    half = CHECK_TOKENS // 2
    far = max(half, min(getattr(config, "max_position_embeddings", None) or 1000, 1000) - half)
    tokens = [7 * (n + 1) % config.vocab_size for n in range(CHECK_TOKENS)]
    positions = [*range(half), *range(far, far + half)]

    def watched(answers: list[Partial] | None = None) -> _Watched:
        storage = Storage.uncounted(shapes, CHECK_TOKENS, dtype, torch.device("cpu"))
        runs = [Run(slice(n, n + half), [Places(storage, n, half)]) for n in (0, half)]
        return _Watched([], positions, runs, answers=answers)

    by_modules = watched()
    expected = modules(tokens, by_modules)
    fused = watched(by_modules.partials)
    result = compiled(tokens, fused)
    for layer, (theirs, ours) in enumerate(zip(by_modules.inputs, fused.inputs, strict=True)):
        for what, a, b in zip(("queries", "keys", "values"), theirs, ours, strict=True):
            _same(f"the {what} of layer {layer}", a, b, 0.1)
    _same("the results", expected, result, 0.25)


def _same(what: str, expected: Tensor, actual: Tensor, rounded: float) -> None:
    precise = is_precise(expected.dtype)
    error, limit = deviation(expected, actual, precise, 1e-3, rounded)
    if not error <= limit:
        raise Differs(f"{what} differ by {error:.3g} (limit {limit:.3g}) from those of its modules")
