"""Integer weights with a scale and a zero for each group of inputs, in the form that the kernel for
stored weights multiplies by: a weight is scale * (code - zero)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ttc.errors import UnsupportedModel
from ttc.model.stored_kernel import GROUPS

HALF = 16
"""Codes of 4 bits that lie in the lower halves of 16 bytes; as many more are in their upper
halves."""


@dataclass(frozen=True)
class Grouped:
    """One weight. codes: (out_features, in_features), uint8. scales, zeros: float32,
    (out_features, groups), groups of as many inputs in a row each."""

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor

    def packed(self) -> tuple[Tensor, int]:
        """The rows as bytes, (out_features, bytes), and the kernel's number of their kind.

        Raises UnsupportedModel for groups that are no multiple of 32.
        """
        rows, width = self.codes.shape
        groups = self.scales.shape[1]
        stored, block = block_of(self.bits, width, groups)
        factors = torch.stack((self.scales, self.zeros), -1).float()
        heads = (
            factors.repeat_interleave(width // groups // block, 1).contiguous().view(torch.uint8)
        )
        codes = self.codes
        if self.bits == 4:
            pairs = codes.view(rows, -1, 2, HALF)
            codes = pairs[:, :, 0] | pairs[:, :, 1] << 4
        blocks = width // block
        parts = (heads.view(rows, blocks, -1), codes.reshape(rows, blocks, -1))
        return torch.cat(parts, -1).view(rows, -1), stored


def block_of(bits: int, width: int, groups: int) -> tuple[int, int]:
    """The kernel's number of a weight's kind, and how many numbers share a scale and a zero there.

    Raises UnsupportedModel for groups that are no multiple of 32.
    """
    size = width // groups
    for stored, (each, block) in GROUPS.items():
        if each == bits and size % block == 0 and size * groups == width:
            return stored, block
    raise UnsupportedModel(
        f"{width} inputs in {groups} groups: what is multiplied as it is stored has groups of a "
        "multiple of 32 inputs"
    )


def row_bytes(bits: int, width: int, groups: int) -> int:
    """The bytes of a row of `Grouped.packed`."""
    _, block = block_of(bits, width, groups)
    return width // block * (2 * torch.float32.itemsize + block * bits // 8)


def unpacked_words(words: Tensor, bits: int) -> Tensor:
    """The codes of words of 32 bits, the lowest bits first: (..., words) to (..., words, codes)."""
    octets = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), -1).flatten(-2)


def gptq(qweight: Tensor, qzeros: Tensor, scales: Tensor, bits: int, plus: int) -> Grouped:
    """GPTQ's layout (Frantar et al., 2023; AutoGPTQ): words of inputs in qweight (in / n, out), of
    outputs in qzeros (groups, out / n); scales (groups, out). plus: 1 where a zero is stored less
    one."""
    codes = unpacked_words(qweight, bits).permute(1, 0, 2).flatten(1)
    zeros = unpacked_words(qzeros, bits).flatten(1)
    zeros = zeros + plus & (1 << bits) - 1
    return Grouped(bits, codes, scales.T.float(), zeros.T.float())


AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in a word AWQ stores each of eight outputs."""


def awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Grouped:
    """AWQ's layout of version "gemm" (Lin et al., 2024; AutoAWQ), 4 bits: words of outputs in
    qweight (in, out / 8) and qzeros (groups, out / 8), in the order of `AWQ_PLACES`; scales
    (groups, out)."""
    codes, zeros = (unpacked_words(x, 4)[..., AWQ_PLACES].flatten(1) for x in (qweight, qzeros))
    return Grouped(4, codes.T.contiguous(), scales.T.float(), zeros.T.float())


def pack_quantized(
    packed: Tensor, scale: Tensor, zero: Tensor | None, shape: Sequence[int], bits: int
) -> Grouped:
    """compressed-tensors' layout "pack-quantized": words of inputs in `packed` (out, in / n), codes
    with a sign that are stored with half of their range added; scale (out, groups); zero None, or
    words of outputs (out / n, groups)."""
    rows, width = shape
    codes = unpacked_words(packed, bits).flatten(1)[:, :width]
    middle = float(1 << bits - 1)
    if zero is None:
        zeros = torch.full_like(scale, middle, dtype=torch.float32)
    else:
        zeros = unpacked_words(zero, bits).permute(0, 2, 1).flatten(0, 1)[:rows].float()
    return Grouped(bits, codes.contiguous(), scale.float(), zeros)


def signed_bytes(weight: Tensor, scale: Tensor, zero: Tensor | None, bits: int) -> Grouped:
    """int8 codes (out, in) with a sign, of which `bits` bits are used; scale and zero
    (out, groups)."""
    middle = 1 << bits - 1
    codes = (weight.to(torch.int16) + middle).to(torch.uint8)
    zeros = torch.zeros_like(scale) if zero is None else zero
    return Grouped(bits, codes, scale.float(), zeros.float() + middle)
