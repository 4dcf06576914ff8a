"""The kernels of attention against softmax written out in double precision, by shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from experiments.lab.bench.gpu.machine import FAILED, Machine, Row, verdict
from experiments.standins.attention_cases import DecodeCase, ExtendCase, Segments, random_piece
from ttc.approximate.quantized_kv import Bytes, CodecKind
from ttc.attention.hf_hook import attending, tree_attention
from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan_arrays import PlanArrays
from ttc.cuda import fused_gpu
from ttc.cuda.fused_gpu import TritonAttention
from ttc.memory.kv import LayerShape

BOUND = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Of a number of size 1. On a GPU weights are rounded to the values' type before they meet."""
TREE: Segments = [(700, 0, 16), (300, 0, 4), (33, 4, 8), (1, 4, 5), (90, 5, 7), (1100, 8, 16)]
ROWS, FILLED, LONG = 16, 37, 3000
NEW = [3, 1, 40, 2, 130, 9, 12, 1]
SMALL_TREE: Segments = [(40, 0, 4), (7, 0, 2), (33, 2, 3)]
SMALL_NEW = [3, 1, 9, 2]
LAYERS = {
    "": Layer(0, 0.1),
    "cap": Layer(0, 0.1, softcap=5.0),
    "window": Layer(0, 0.1, window=110),
    "chunk": Layer(0, 0.1, chunk=100),
}


@dataclass(frozen=True)
class Shape:
    """groups: query heads of a KV head. filled: the tokens that rows wrote since the plan was made.
    packed: how the KV of pieces is kept in 8 bits; None as it is."""

    groups: int
    dim: int
    dtype: torch.dtype = torch.bfloat16
    layer: str = ""
    kind: str = "decode"
    filled: int = FILLED
    packed: CodecKind | None = None

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        words = [self.kind, f"GQA {self.groups}", f"dim {self.dim}", name]
        words += [word for word in (self.layer, self.packed) if word]
        return ", ".join(words + ([f"own keys: {self.filled}"] if self.filled == LONG else []))


def shapes(machine: Machine) -> list[Shape]:
    """Those that are tried. Each type, size of heads and kind is compiled once more."""
    if machine.rehearsed:
        few = [Shape(groups, 16, torch.float32, filled=5) for groups in (1, 8)]
        few += [Shape(1, 16, torch.float32, layer, filled=5) for layer in LAYERS if layer]
        few += [Shape(1, 16, torch.float32, filled=5, packed="fp8")]
        return [*few, Shape(1, 16, torch.float32, kind="new tokens")]
    found = [Shape(groups, dim) for dim in (64, 128, 256) for groups in (1, 2, 4, 7, 8)]
    found += [Shape(4, dim) for dim in (80, 96, 112, 192)]
    found += [Shape(4, dim, layer=layer) for dim in (64, 128, 256) for layer in LAYERS if layer]
    found += [Shape(4, dim, dtype) for dim in (64, 128) for dtype in BOUND]
    found += [Shape(4, dim, packed=kind) for dim in (64, 128) for kind in get_args(CodecKind)]
    found += [Shape(4, 128, filled=LONG), Shape(1, 64, filled=LONG)]
    found += [Shape(4, dim, kind="new tokens") for dim in (64, 128, 256)]
    found += [Shape(4, 128, layer=layer, kind="new tokens") for layer in LAYERS if layer]
    return list(dict.fromkeys(found))


def rows(machine: Machine) -> Iterator[Row]:
    """A row for each shape, for attention sinks and for rows that see no key."""
    checks: dict[str, Callable[[], float]] = {
        str(shape): lambda shape=shape: by_shape(machine, shape)  # type: ignore[misc]
        for shape in shapes(machine)
    }
    checks |= {"sinks": lambda: sinks(machine), "empty rows": lambda: empty_rows(machine)}
    with machine.gpu_kernels():
        for case, check in checks.items():
            try:
                worst = check()
            except Exception as error:
                yield {"case": case, "verdict": FAILED, "error": f"{type(error).__name__}: {error}"}
                continue
            yield {"case": case, "verdict": verdict(worst <= 1), "of_what_is_allowed": worst}


def by_shape(machine: Machine, shape: Shape) -> float:
    """The largest difference, as a part of what is allowed."""
    tree = SMALL_TREE if machine.rehearsed else TREE
    device, kv = (
        torch.device(machine.kernels),
        LayerShape(1 if machine.rehearsed else 2, shape.dim, shape.dim),
    )
    layer = LAYERS[shape.layer]
    case: DecodeCase | ExtendCase
    if shape.kind == "decode":
        count = 4 if machine.rehearsed else ROWS
        case = DecodeCase(kv, shape.groups, tree, count, shape.filled, shape.dtype, device)
        if shape.packed is not None:
            case.pack(Bytes(shape.packed))
    else:
        new = SMALL_NEW if machine.rehearsed else NEW
        within = [segment for segment in tree if segment[2] <= len(new)]
        case = ExtendCase(kv, shape.groups, within, new, shape.dtype, device=device)
    plan = case.plan()
    found = plan.attend(layer, case.q, case.key, case.value)
    if not isinstance(plan.fused, TritonAttention):
        raise RuntimeError("the kernels of a GPU were not used")
    return gap(found, case.expected(layer), BOUND[shape.dtype])


def gap(found: Partial, expected: tuple[Tensor, Tensor], bound: float) -> float:
    """The largest difference as a part of `bound` (for a number of size 1, and in proportion)."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        parts = (one.double() - other).abs() / (bound * (1 + other.abs()))
        worst = max(worst, float(parts.nan_to_num(float("inf")).amax()))
    return worst


def sinks(machine: Machine) -> float:
    """A head's sink takes its part of the weights."""
    device = torch.device(machine.kernels)
    kv, segments = LayerShape(2, 16, 16), [(40, 0, 2)]
    case = ExtendCase(kv, 2, segments, [3, 5], torch.float32, device=device)
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0], device=device)
    module = torch.nn.Module()
    module.layer_idx = torch.tensor(0)
    with attending(case.plan()):
        query, key, value = case.q.flatten(0, 1)[None], case.key[None], case.value[None]
        found, _ = tree_attention(module, query, key, value, None, 0.3, s_aux=logits)
    out, lse = case.expected(Layer(0, 0.3))
    weights = lse.exp() / (lse.exp() + logits.double().exp().view(2, 2, 1))
    right = (out * weights[..., None]).flatten(0, 1).transpose(0, 1)
    return gap((found[0], lse.float()), (right, lse), BOUND[torch.float32])


def empty_rows(machine: Machine) -> float:
    """A row whose window hides all keys gets nothing, and no weight; where one task writes it, and
    where several are merged."""
    device, worst = torch.device(machine.kernels), 0.0
    case = DecodeCase(LayerShape(1, 16, 16), 1, [(20, 0, 2)], 2, 0, torch.float32, device)
    for tokens in (0, 400):
        more = [replace(random_piece(case.memory, 0, tokens), rows=slice(0, 2))] if tokens else []
        arrays = PlanArrays([*case.pieces, *more], [], [500, 22], 1)
        kernels = fused_gpu.kernels(device)
        if kernels is None:
            raise RuntimeError("the kernels cannot be used")
        alone = TritonAttention(arrays, torch.float32, kernels)
        new = case.key[None], case.value[None]
        out, lse = alone.attend(Layer(0, 1.0, window=10), case.q, *new, None)
        nothing = float(out[:, :, 0].abs().max()) == 0 and lse[0, 0, 0] == float("-inf")
        something = bool(out[:, :, 1].isfinite().all()) and float(out[:, :, 1].abs().min()) > 0
        worst = max(worst, 0.0 if nothing and something else float("inf"))
    return worst
