"""Partial attention and its merging, against a softmax over all keys at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ttc.attention.kernels import Layer, merge_, partial_attention, segment_attention

HEADS, ROWS, KEYS, DIM = 2, 5, 12, 8


def tensors(value_dim: int, rows: int = ROWS, keys: int = KEYS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, HEADS, rows, DIM), (1, HEADS, keys, DIM), (1, HEADS, keys, value_dim)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer, visible: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = layer.scale * torch.einsum("bhrd,bhkd->bhrk", q, k)
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("bhrk,bhkd->bhrd", scores.softmax(-1), v), scores.logsumexp(-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("value_dim", [DIM, 6])
@pytest.mark.parametrize("rows", [1, 12, 40])
def test_one_run_of_keys_equals_a_softmax(
    rows: int, value_dim: int, softcap: float | None, causal: bool
) -> None:
    q, k, v = tensors(value_dim, rows, keys=rows if causal else KEYS)
    layer = Layer(0, scale=0.4, softcap=softcap)
    visible = torch.ones(rows, k.shape[2]).bool()
    expected = reference(q, k, v, layer, visible.tril() if causal else visible)
    for found, wanted in zip(
        partial_attention(q, k, v, layer, causal=causal), expected, strict=True
    ):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-9)


def test_rows_see_only_what_is_visible_to_them() -> None:
    q, k, v = tensors(DIM)
    visible = torch.rand(ROWS, KEYS, generator=torch.Generator().manual_seed(1)) < 0.5
    layer = Layer(0, scale=0.4)
    expected = reference(q, k, v, layer, visible)
    for found, wanted in zip(
        partial_attention(q, k, v, layer, visible=visible), expected, strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("cuts", [(4, 12), (1, 2, 12), (11, 12)])
def test_parts_of_the_keys_merge_into_the_whole(cuts: tuple[int, ...]) -> None:
    q, k, v = tensors(DIM)
    layer, first = Layer(0, scale=0.4), cuts[0]
    out, lse = partial_attention(q, k[:, :, :first], v[:, :, :first], layer)
    for start, stop in pairwise(cuts):
        merge_(out, lse, *partial_attention(q, k[:, :, start:stop], v[:, :, start:stop], layer))
    expected = reference(q, k, v, layer, torch.ones(ROWS, KEYS).bool())
    torch.testing.assert_close((out, lse), expected, rtol=0, atol=1e-9)


def test_a_part_that_a_row_does_not_see_changes_nothing_for_it() -> None:
    q, k, v = tensors(DIM)
    layer, seen = Layer(0, scale=0.4), torch.ones(ROWS, KEYS).bool()
    seen[2] = False
    out, lse = partial_attention(q, k, v, layer)
    part = partial_attention(q, k, v, layer, visible=seen)
    assert (part[1][:, :, 2] == float("-inf")).all()
    before = out[:, :, 2].clone(), lse[:, :, 2].clone()
    merge_(out, lse, *part)
    assert torch.equal(out[:, :, 2], before[0]) and torch.equal(lse[:, :, 2], before[1])


@pytest.mark.parametrize("masked", [False, True])
def test_queries_of_a_group_are_folded_over_the_same_keys(masked: bool) -> None:
    groups, (_, k, v) = 3, tensors(DIM)
    many = torch.randn(
        HEADS, groups, ROWS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    visible = (
        torch.ones(ROWS, KEYS).bool().tril(KEYS - ROWS) if masked else torch.ones(ROWS, KEYS).bool()
    )
    layer = Layer(0, scale=0.4)
    out, lse = segment_attention(many, k[0], v[0], layer, visible if masked else None)
    for group in range(groups):
        expected = reference(many[None, :, group], k, v, layer, visible)
        torch.testing.assert_close(
            (out[None, :, group], lse[None, :, group]), expected, rtol=0, atol=1e-9
        )
