"""How many parameters a model has, read from the heads of its files; the FLOPs of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def count_parameters(name: str) -> int | None:
    """The parameters of a folder, a .gguf file or a model in the hub's cache; None where its files
    do not tell. Tied weights count once, as they are stored."""
    from ttc.model.loading.model_files import local_path

    path = local_path(name)
    if path is None:
        config = cached_config(name)
        path = None if config is None else config.parent
    if path is None:
        return None
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    counts = [_of_gguf(f) if f.suffix == ".gguf" else _of_safetensors(f) for f in files]
    return sum(counts) if counts else None


def run_parameters(model: str, verifier: Mapping[str, Any]) -> dict[str, int]:
    """{"model": ..., "verifier": ...}: of the searched model, and of the largest one that rates;
    unknown ones are left out. A verifier that names no model asks the searched one."""
    raters = sorted(set(models_of(verifier)))
    counts = {"model": count_parameters(model)}
    rated = [count_parameters(name) for name in raters] if raters else [counts["model"]]
    counts["verifier"] = None if None in rated else max(filter(None, rated))
    return {role: count for role, count in counts.items() if count is not None}


def flops(usage: Mapping[str, float], parameters: Mapping[str, int]) -> float | None:
    """2 x parameters x tokens (Kaplan et al., 2020), of tokens that were really computed; None
    without the parameters.

    An estimate: attention over the context is left out, and a mixture of experts counts whole.
    """
    tokens = sum(
        usage.get(kind, 0) for kind in ("prompt_tokens", "recomputed_tokens", "generated_tokens")
    )
    rated = usage.get("verifier_tokens", 0)
    if "model" not in parameters or (rated and "verifier" not in parameters):
        return None
    return 2.0 * (parameters["model"] * tokens + parameters.get("verifier", 0) * rated)


def models_of(verifier: Mapping[str, Any]) -> Iterator[str]:
    """The models that a verifier's configuration names, and those of the verifiers in it."""
    for key, value in verifier.items():
        if key == "model" and isinstance(value, str):
            yield value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Mapping):
                yield from models_of(inner)


def cached_config(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        file = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no name that the hub could have
        return None
    return Path(file) if isinstance(file, str) else None


def _of_safetensors(file: Path) -> int:
    from safetensors import safe_open

    with safe_open(file, "pt") as tensors:
        names = tensors.keys()
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)


def _of_gguf(file: Path) -> int:
    from gguf import GGUFReader

    return sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
