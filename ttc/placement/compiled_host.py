"""The host's layers of a split as compiled code, where they are of Llama's kind."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ttc.attention.hf_hook import attending
from ttc.attention.plan import Plan
from ttc.errors import UnsupportedModel
from ttc.memory.kv import LayerShape
from ttc.model.compiled.compiled_check import check_layers
from ttc.model.compiled.fused_runner import CompiledLayers
from ttc.model.compiled.llama_structure import Decoder
from ttc.model.replaced_functions import running_as
from ttc.model.running.model_changes import Snapshot, Watch


class CompiledHost:
    """Runs a model's first layers in one compiled call, in place of their modules.

    The modules run while anything about them is not as it was at load, as where an early exit looks
    between layers. decoder: these layers. Raises UnsupportedModel where the compiled layers differ.
    """

    def __init__(
        self,
        model: Any,
        layers: Sequence[nn.Module],
        decoder: Decoder,
        shapes: Sequence[LayerShape],
        watch: Watch,
    ):
        self.layers = layers
        self.decoder = decoder
        self.watch = watch
        self.compiled = CompiledLayers(decoder, shapes, model.dtype)
        self._snapshot = Snapshot(nn.ModuleList(layers))
        check_layers(
            model.config.get_text_config(), shapes, model.dtype, self._by_modules, self._by_compiled
        )

    @contextmanager
    def instead_of_modules(self, plan: Plan) -> Iterator[None]:
        """Let the first module run all of these layers meanwhile, the others hand its states on."""
        if not self.watch.as_at_load or self._snapshot.is_patched():
            yield
            return

        def run(
            states: Tensor, *_: Any, position_embeddings: tuple[Tensor, Tensor], **__: Any
        ) -> Tensor:
            return self.compiled.states(states, position_embeddings, plan)

        def hand_on(states: Tensor, *_: Any, **__: Any) -> Tensor:
            return states

        hand_ons = [hand_on] * (len(self.layers) - 1)
        with running_as(self.layers, [run, *hand_ons]):
            yield

    def _begun(self, tokens: Sequence[int], plan: Plan) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The states before the first layer, and the rotation of their positions."""
        states = self.decoder.embedding(torch.tensor([list(tokens)]))
        return states, self.decoder.rotary(states, torch.tensor([plan.positions]))

    def _by_compiled(self, tokens: Sequence[int], plan: Plan) -> Tensor:
        return self.compiled.states(*self._begun(tokens, plan), plan)[0]

    def _by_modules(self, tokens: Sequence[int], plan: Plan) -> Tensor:
        states, rotation = self._begun(tokens, plan)
        with attending(plan):
            for layer in self.layers:
                states = layer(states, attention_mask=None, position_embeddings=rotation)
        return states[0]


def compiled_host(
    model: Any,
    layers: Sequence[nn.Module],
    decoder: Decoder | None,
    shapes: Sequence[LayerShape],
    watch: Watch,
) -> CompiledHost | None:
    """What runs the first `layers` compiled; None where their modules run. See `CompiledHost`."""
    if decoder is None or not layers:
        return None
    try:
        return CompiledHost(model, layers, decoder.first(len(layers)), shapes[: len(layers)], watch)
    except UnsupportedModel as error:
        kind = type(model).__name__
        reason = f"the host's layers of {kind} run by their own modules: {error}"
        warnings.warn(reason, stacklevel=3)
        return None
