"""Running a model over packed rows: the one way in which the engine calls it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ttc.attention.hf_hook import IMPLEMENTATION, attending
from ttc.attention.plan import Plan
from ttc.errors import UnsupportedModel
from ttc.memory.kv import LayerShape
from ttc.memory.small_copies import upload
from ttc.model.check.model_check import examine
from ttc.model.extra_arguments import ExtraArguments
from ttc.model.places import check_places, is_spread
from ttc.model.recurrent_layers import Recurrent
from ttc.model.running.model_changes import Watch
from ttc.parts import find

if TYPE_CHECKING:
    from ttc.memory.link import Link
    from ttc.residency.base import Residency
    from ttc.trace import Trace


class ModelRunner(Protocol):
    """Runs a decoder over packed rows whose attention goes by a plan.

    shapes: what each attention layer stores per token. recurrent: the layers that keep a state
    instead. watch: notices changes of the model. trace: where each pass leaves a span of time.
    link: what weights cross, None where all lie where layers run.
    """

    model: Any
    watch: Watch
    shapes: tuple[LayerShape, ...]
    recurrent: Recurrent | None
    device: torch.device
    dtype: torch.dtype
    trace: Trace | None

    @property
    def link(self) -> Link | None: ...

    def bind(self, policy: Residency) -> None:
        """The policy of the engine's KV was chosen."""
        ...

    def forward(
        self, tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        """One pass. Returns the logits (rows, vocab) of the rows `keep` or of all.

        tokens: of each row. Where they are a tensor (rows,) of int64 on a device, nothing waits
        for them there.
        """
        ...

    def check_attention(self) -> None:
        """Raise UnsupportedModel where the model's attention is not the engine's now."""
        ...


class HuggingFaceRunner:
    """Runs a transformers model, whose attention implementation is set to the engine's own.

    reason: why it was chosen (see `runner_choice.py`). streamed_layer_bytes: weights that cross the
    link for a layer in every pass. Raises UnsupportedModel for attention that cannot be served.
    """

    def __init__(self, model: Any):
        check_places(model)
        _check_adapters(model)
        if getattr(model, "is_quantized", False):
            from ttc.model.check.quantized import check_rows_apart

            check_rows_apart(model)
        self.model = model.eval()
        self.reason = ""
        self.streamed_layer_bytes = 0
        self.shapes, self.recurrent = examine(model)
        self._config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.input_device = self.device  # where tokens and positions go
        self.spread = is_spread(model)
        self.dtype: torch.dtype = model.dtype
        self.trace: Trace | None = None
        self.extras = ExtraArguments(model)
        self.watch = Watch(model)
        self.watch.on_change.append(partial(_check_adapters, model))
        self.link: Link | None = None
        self.graphs: Any = None  # decode passes that a device recorded (`ttc.cuda.graphs`)
        graphs_for = find("graphs", self.device.type)
        if graphs_for is not None and self.recurrent is None and not self.extras:
            self.graphs = graphs_for(self.watch, self.device)

    def bind(self, policy: Residency) -> None:
        return

    def check_attention(self) -> None:
        implementation = self._config._attn_implementation
        if self.shapes and implementation != IMPLEMENTATION:
            raise UnsupportedModel(
                f"the model's attention is {implementation!r} now, not the engine's: it was set "
                "elsewhere, or this is inside `engine.lent()`. Use the model elsewhere inside "
                "`with engine.lent() as model:`; to go on here, call "
                f"model.set_attn_implementation({IMPLEMENTATION!r})"
            )

    def forward(
        self, tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        self.check_attention()
        start = perf_counter()
        try:
            logits = None if self.graphs is None else self.graphs.forward(tokens, plan, keep)
            return self._run(tokens, plan, keep) if logits is None else logits
        finally:
            if self.trace is not None:
                self.trace.add("compute", f"{len(tokens)} rows", start, perf_counter())

    def _run(
        self, tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None
    ) -> Tensor:
        numbers = [np.array(part, np.int64) for part in (plan.positions, keep or [])]
        if isinstance(tokens, Tensor):
            positions, rows = upload(numbers, self.input_device)
            ids = tokens.to(self.input_device, non_blocking=True)
        else:
            numbers = [np.array(tokens, np.int64), *numbers]
            ids, positions, rows = upload(numbers, self.input_device)
        kept: Any = rows
        if keep is None:
            kept = 0
        elif self.spread:
            kept = list(keep)  # a list goes to whatever device needs it
        recurrent = self.recurrent
        states = nullcontext() if recurrent is None else recurrent.running(plan.states)
        with states, self.extras.running() as extras, attending(plan):
            options = {"use_cache": False, "logits_to_keep": kept} | extras
            output = self.model(input_ids=ids[None], position_ids=positions[None], **options)
        logits: Tensor = output.logits[0]
        return logits


def _check_adapters(model: Any) -> None:
    if any(hasattr(module, "peft_config") for module in model.modules()):
        from ttc.model.running.adapters import check_adapters

        check_adapters(model)
