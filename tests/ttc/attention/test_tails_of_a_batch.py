"""Tails that are not equally long and lie in any order, by the kernel and by PyTorch's
operations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from ttc.attention.entry import Entry

from tests.helpers.tiers import examples
from ttc.attention.fused import SWITCH
from ttc.attention.kernels import Layer
from ttc.attention.plan import DecodePlan
from ttc.memory.kv import LayerShape
from ttc.memory.manager import KVMemory

NAN = float("nan")
SHAPE, GROUPS, PREFIX = LayerShape(2, 16, 24), 3, 40


@settings(max_examples=examples(40))
@given(
    tails=st.lists(st.integers(0, 70), min_size=1, max_size=9).flatmap(
        lambda filled: st.tuples(st.just(filled), st.permutations(range(len(filled) + 2)))
    ),
    window=st.sampled_from([None, 1, 4, 50, 200]),
    softcap=st.sampled_from([None, 3.0]),
    fused=st.booleans(),
)
def test_each_row_attends_its_own_tail(
    tails: tuple[list[int], list[int]], window: int | None, softcap: float | None, fused: bool
) -> None:
    filled, places = tails[0], tails[1][: len(tails[0])]
    rows, dtype, layer = len(filled), torch.float32, Layer(0, 0.3, softcap, window)
    torch.manual_seed(0)
    memory = KVMemory([SHAPE], dtype, torch.device("cpu"))
    prefix, kv = memory.allocate(PREFIX), memory.allocate(74, rows=rows + 2)
    for copy in (prefix.on_device(0), kv.on_device(0)):
        for tensor in copy.both:
            tensor.copy_(torch.randn(tensor.shape))
    for tensor in kv.on_device(0).both:  # what nobody wrote is anything
        for place in range(rows + 2):
            tensor[place, :, dict(zip(places, filled, strict=True)).get(place, 0) :] = NAN
    entries = [Entry(prefix, 0, PREFIX, slice(0, rows))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, str(int(fused)))
        plan = DecodePlan(entries, [PREFIX + n for n in filled], kv, filled, places=places)
        own: list[list[tuple[Tensor, Tensor]]] = [
            [(k[place, :, t], v[place, :, t]) for t in range(n)]
            for place, n in zip(places, filled, strict=True)
            for k, v in [[x.clone() for x in kv.on_device(0).both]]
        ]
        for _ in range(3):
            q = torch.randn(SHAPE.kv_heads, GROUPS, rows, SHAPE.key_dim)
            key, value = (
                torch.randn(SHAPE.kv_heads, rows, d) for d in (SHAPE.key_dim, SHAPE.value_dim)
            )
            out, lse = plan.attend(layer, q, key, value)
            plan.advance()
            for row, mine in enumerate(own):
                mine.append((key[:, row], value[:, row]))
                keys, values = (
                    torch.cat([p, torch.stack([pair[i] for pair in mine], 1)], 1).double()
                    for i, p in enumerate(prefix.on_device(0).both)
                )
                scores = torch.einsum("hgd,htd->hgt", q[:, :, row].double(), keys) * layer.scale
                scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
                if window is not None:
                    scores[..., : max(0, scores.shape[-1] - window)] = float("-inf")
                expected = torch.einsum("hgt,htd->hgd", scores.softmax(-1), values)
                torch.testing.assert_close(out[:, :, row].double(), expected, atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(
                    lse[:, :, row].double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5
                )
    assert (plan.fused is not None) == fused
