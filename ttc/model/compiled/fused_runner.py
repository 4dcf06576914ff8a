"""Running decoders of Llama's kind without their modules: one compiled call for a pass, or one
between attentions."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import ref

import torch
from torch import Tensor

from ttc.attention.all_layers import LayerCalls, all_layers
from ttc.attention.hf_hook import IMPLEMENTATION
from ttc.attention.kernels import Layer
from ttc.attention.plan import Plan
from ttc.errors import UnsupportedModel, refuse
from ttc.memory.kv import LayerShape
from ttc.model.compiled import layers_kernel
from ttc.model.compiled.cpu_program import Program
from ttc.model.compiled.llama_structure import Decoder, Linear
from ttc.model.running.runner import HuggingFaceRunner
from ttc.model.stored import StoredMatrix
from ttc.trace import Trace

if TYPE_CHECKING:
    from ttc.memory.link import Link
    from ttc.residency.base import Residency

ROWS = 16
"""The fewest rows that memory is allocated for."""
VECTOR_BYTES = 64
"""Rows of weights are whole vectors of so many bytes."""


class CompiledLayers:
    """The layers of a decoder on a CPU, run from the weights of its modules, which stay as they
    are.

    decoder: a whole one, or the first layers of one, without norm and head. shapes: what each of
    its layers stores. Raises UnsupportedModel when its numbers are not of a kind that the compiled
    code multiplies.
    """

    def __init__(self, decoder: Decoder, shapes: Sequence[LayerShape], dtype: torch.dtype):
        check_numbers(decoder, dtype)
        if elsewhere := {w.device for w in decoder.weights if w.device.type != "cpu"}:
            raise UnsupportedModel(
                f"its weights are on {elsewhere.pop()}, and the compiled layers run on a CPU"
            )
        self.decoder = decoder
        self.shapes = shapes
        self.dtype = dtype
        self._program: Program | None = None
        self._described: tuple[ref[Plan], Program, LayerCalls] | None = None
        self._layers = [
            Layer(index, layer.scale, None, shape.window, shape.chunk)
            for index, (layer, shape) in enumerate(zip(decoder.layers, shapes, strict=True))
        ]

    def renew(self) -> None:
        self._program = None
        self._described = None

    def program(self, rows: int) -> Program:
        if self._program is None or self._program.capacity < rows:
            self._program = Program(self.decoder, 1 << (max(rows, ROWS) - 1).bit_length())
        return self._program

    def run(self, program: Program, plan: Plan) -> None:
        if self._attends_by_itself(program, plan):
            program.run()
        else:
            self._run_by_parts(program, plan)

    def states(self, states: Tensor, rotation: tuple[Tensor, Tensor], plan: Plan) -> Tensor:
        """What the first layers of a decoder make of the states (1, rows, hidden). rotation: cos
        and sin of the rows' positions, (1, rows, head_dim)."""
        rows = states.shape[1]
        program = self.program(rows)
        program.begin(rows)
        cos, sin = rotation
        program.x[:rows], program.cos[:rows], program.sin[:rows] = states[0], cos[0], sin[0]
        self.run(program, plan)
        return program.x[:rows][None].clone()

    def _run_by_parts(self, program: Program, plan: Plan) -> None:
        rows = program.rows
        for layer, shape in zip(self._layers, self.shapes, strict=True):
            kv_heads, dim = shape.kv_heads, shape.key_dim
            key, value = torch.empty(2, rows, kv_heads * dim, dtype=self.dtype)
            program.keep_new(layer.index, key, value)
            program.run(layer.index)
            q = program.q[:rows].view(rows, kv_heads, -1, dim).permute(1, 2, 0, 3)
            out, _ = plan.attend(
                layer, q, *(x.view(rows, kv_heads, dim).transpose(0, 1) for x in (key, value))
            )
            attended = out.permute(2, 0, 1, 3).contiguous()
            program.take(layer.index, attended)
        program.run(len(self._layers))

    def _attends_by_itself(self, program: Program, plan: Plan) -> bool:
        """Have the program call the attention kernel, where a layer's attention is no more than
        that."""
        described = self._described
        if described is None or described[0]() is not plan or described[1] is not program:
            rows, shape = program.rows, self.shapes[0]
            q = program.q[:rows].view(rows, shape.kv_heads, -1, shape.key_dim).permute(1, 2, 0, 3)
            key, value = (
                x[:rows].view(rows, shape.kv_heads, -1).transpose(0, 1)
                for x in (program.key, program.value)
            )
            calls = all_layers(
                plan, self._layers, q, (key, value), program.attended, program.lse, program.threads
            )
            if calls is None:
                return False
            described = self._described = ref(plan), program, calls
        calls = described[2]
        calls.counters[:] = 0
        program.attend_by(calls.kernel, calls.parameters)
        return True


class FusedRunner:
    """Runs a model of Llama's kind on a CPU from the weights of its modules, which stay as they
    are.

    A pass goes through the modules instead while anything about them is not as it was at load:
    hooks, adapters, other modules or weights in their place, other attributes or code (see
    `Watch`). Raises UnsupportedModel when its numbers are not of a kind that the compiled code
    multiplies.
    """

    def __init__(self, modules: HuggingFaceRunner, decoder: Decoder):
        self.modules, self.model = modules, modules.model
        self.shapes: tuple[LayerShape, ...] = modules.shapes
        self.recurrent = modules.recurrent
        self.device, self.dtype = modules.device, modules.dtype
        self.trace: Trace | None = None
        self.link: Link | None = None
        self._config = self.model.config.get_text_config()
        self._decoder = decoder
        assert decoder.head is not None
        self._vocabulary = decoder.head.out_features
        self.layers = CompiledLayers(decoder, self.shapes, self.dtype)
        self.watch = modules.watch
        self.reason = f"compiled layers, built for {layers_kernel.processor()}"

    def bind(self, policy: Residency) -> None:
        return

    def check_attention(self) -> None:
        self.modules.check_attention()

    @torch.no_grad()
    def forward(
        self, tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        """See `ModelRunner.forward`. Raises UnsupportedModel where attention is no longer the
        engine's."""
        if self._config._attn_implementation != IMPLEMENTATION:
            self.modules.check_attention()
        if not self.watch.may_leave_out_modules():
            self.modules.trace = self.trace
            return self.modules.forward(tokens, plan, keep)
        start, rows = perf_counter(), len(tokens)
        program = self.layers.program(rows)
        index = None if keep is None else torch.tensor([*range(rows)])[list(keep)]
        logits = torch.empty(
            rows if index is None else len(index), self._vocabulary, dtype=self.dtype
        )
        program.begin(rows)
        program.write_logits(index, logits)
        ids = tokens if isinstance(tokens, Tensor) else torch.tensor(list(tokens))
        program.x[:rows] = self._decoder.embedding(ids)
        positions = torch.tensor([plan.positions])
        cos, sin = self._decoder.rotary(self._decoder.embedding.weight, positions)
        program.cos[:rows], program.sin[:rows] = cos[0], sin[0]
        self.layers.run(program, plan)
        if self.trace is not None:
            self.trace.add("compute", f"{rows} rows", start, perf_counter())
        return logits


def check_numbers(decoder: Decoder, dtype: torch.dtype) -> None:
    """Raises UnsupportedModel unless the compiled code multiplies such weights, wherever they are
    now, and where there is none."""
    weights, first = list(decoder.weights), decoder.layers[0]
    if reason := layers_kernel.why_not():
        raise UnsupportedModel(reason)
    head_dim, q = first.head_dim, first.q
    linears = (*first.linears, *([] if decoder.head is None else [decoder.head]))
    refuse(
        {
            f"no kernel multiplies stored weights by {dtype} here": (
                isinstance(q, StoredMatrix) and not q.multiplies(layers_kernel.input_dtype(dtype))
            ),
            f"its numbers are {dtype}, and the compiled layers take float32 and bfloat16": (
                dtype not in (torch.float32, torch.bfloat16)
            ),
            "its weights differ in type, or do not lie row by row": any(
                weight.dtype != dtype or not weight.is_contiguous() for weight in weights
            ),
            "one of gate and up is stored as in a file, and the other is not": any(
                isinstance(layer.gate, StoredMatrix) != isinstance(layer.up, StoredMatrix)
                for layer in decoder.layers
            ),
            "its layers differ in width": any(
                layer.head_dim != head_dim
                or [*map(_shape, layer.linears)] != [*map(_shape, first.linears)]
                for layer in decoder.layers
            ),
            f"its heads are {head_dim} wide": head_dim % 2 or first.q.out_features % head_dim,
            **{
                f"its rows of {linear.in_features} {dtype} numbers are not whole vectors": (
                    linear.in_features * dtype.itemsize % VECTOR_BYTES
                )
                for linear in linears
            },
        },
        UnsupportedModel,
    )


def _shape(linear: Linear) -> tuple[int, int]:
    return linear.out_features, linear.in_features
