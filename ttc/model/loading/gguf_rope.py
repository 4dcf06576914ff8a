"""The rotary positions that a .gguf file asks for, as transformers' `rope_parameters`."""

from __future__ import annotations

import math
from typing import Any

from ttc.errors import UnsupportedModel
from ttc.model.loading.gguf_file import GgufFile

BASE = 10_000.0
"""The base of rotary frequencies where a file states none."""


def rope_parameters(file: GgufFile, head_dim: int, part: bool) -> dict[str, Any]:
    """part: whether the model can turn a part of a head's numbers alone.

    Raises UnsupportedModel for what transformers does not compute.
    """
    turned = int(file.setting("rope.dimension_count", head_dim))
    base: dict[str, Any] = {"rope_theta": float(file.setting("rope.freq_base", BASE))}
    if part:
        base["partial_rotary_factor"] = _share(turned, head_dim)
    else:
        whole = f"heads have {head_dim} numbers"
        file.check("rope.dimension_count", turned, turned == head_dim, whole)
    kind = file.setting("rope.scaling.type", "linear")
    more = float(file.setting("rope.scaling.attn_factor", 1.0))
    factor = _factor(file) if kind != "none" else 1.0
    if kind == "yarn":
        alone = file.numbers("rope_freqs.weight") is None
        file.check("rope.scaling.type", kind, alone, "its tensor rope_freqs is one more")
        return base | _yarn(file, factor, more)
    if kind == "longrope" or file.numbers("rope_factors_long.weight") is not None:
        return base | _longrope(file, turned, factor, more)
    kinds = "none, linear, yarn and longrope are read"
    file.check("rope.scaling.type", kind, kind in ("none", "linear"), kinds)
    divisors = file.numbers("rope_freqs.weight")
    if divisors is not None or more != 1:
        divisors = [factor * n for n in divisors or [1.0] * (turned // 2)]
        _checked(file, "rope_freqs.weight", divisors, turned)
        return base | _by_divisors(divisors, divisors, more, int(file.setting("context_length")))
    if factor != 1:
        return base | {"rope_type": "linear", "factor": factor}
    return base | {"rope_type": "default"}


def _factor(file: GgufFile) -> float:
    """How many times slower heads turn. Old files have it by another name, and 0 is none."""
    stated = file.setting("rope.scaling.factor", file.setting("rope.scale_linear", 0.0))
    return float(stated) or 1.0


def _share(turned: int, head_dim: int) -> float:
    """The part of a head that turns, so that transformers' int(head_dim * part) is `turned`."""
    part = turned / head_dim
    return part if int(head_dim * part) == turned else math.nextafter(part, 1.0)


def _yarn(file: GgufFile, factor: float, more: float) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": _original(file),
        "attention_factor": more * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
        "beta_fast": float(file.setting("rope.scaling.yarn_beta_fast", 32.0)),
        "beta_slow": float(file.setting("rope.scaling.yarn_beta_slow", 1.0)),
    }


def _longrope(file: GgufFile, turned: int, factor: float, more: float) -> dict[str, Any]:
    """Two sets of divisors, for texts up to the original context and for longer ones."""
    file.check("rope.scaling.factor", factor, factor == 1, "its tensors of factors say as much")
    names = ("rope_factors_short.weight", "rope_factors_long.weight")
    short, long = (_checked(file, name, file.numbers(name) or [], turned) for name in names)
    return _by_divisors(short, long, more, _original(file))


def _by_divisors(
    short: list[float], long: list[float], more: float, original: int
) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "attention_factor": more,
        "original_max_position_embeddings": original,
    }


def _checked(file: GgufFile, name: str, divisors: list[float], turned: int) -> list[float]:
    if len(divisors) != turned // 2:
        raise UnsupportedModel(
            f"{name} of {file.name} has {len(divisors)} numbers, and {turned} numbers of a head "
            f"that turn need {turned // 2}"
        )
    return divisors


def _original(file: GgufFile) -> int:
    context = int(file.setting("context_length"))
    return int(file.setting("rope.scaling.original_context_length", context))
