"""Activations in 8 bits: integers that meet stored weights, compared with their definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from experiments.standins.random_gguf import Shape, random_weight, write_llama
from tests.helpers.models import prompt
from tests.helpers.processors import passes_on, skip_unless_runs
from tests.helpers.tiers import slow
from ttc import Engine, InvalidInput
from ttc.model.compiled.compiled_check import check_runner
from ttc.model.compiled.fused_runner import FusedRunner
from ttc.stored.int8_activations import Int8Rows
from ttc.stored.layers import StoredLinear

KINDS = [
    *(Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K),
    *(Kind.IQ4_NL, Kind.MXFP4),
]
WIDTH = 1280  # not a multiple of what is unpacked at a time


def parts_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits: the integers (rows, parts, 32), and their scales (rows, parts, 1)."""
    rows, width = x.shape
    packed = Int8Rows().rounded(x)
    integers = packed[:, :width].contiguous().view(torch.int8).view(rows, -1, 32)
    scales = packed[:, width : width + width // 8].contiguous().view(torch.float32)
    return integers.double(), scales[..., None].double()


def rounded(x: Tensor) -> Tensor:
    integers, scales = parts_of(x.reshape(-1, x.shape[-1]))
    return (integers * scales).view(x.shape).to(x.dtype)


def rows_of(count: int) -> Tensor:
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count))
    x[0, :32] = 0  # without a largest number
    x[-1, 40] = 1000  # one that the others of its part vanish beside
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_become_the_nearest_integers(dtype: torch.dtype) -> None:
    x = rows_of(40).to(dtype)
    integers, scales = parts_of(x)
    parts = x.double().view(40, -1, 32)
    assert torch.allclose(scales, parts.abs().amax(-1, keepdim=True) / 127, rtol=1e-6)
    far = (integers - parts / scales.clamp_min(1e-30)).abs()
    assert float(far.max()) < 0.5 + 1e-4
    assert float(integers.abs().max()) == 127


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.bfloat16)], ids=str)
def test_products_are_those_of_rounded_rows(kind: Kind, dtype: torch.dtype) -> None:
    products_are_those_of_rounded_rows(kind, dtype, 150)


def products_are_those_of_rounded_rows(kind: Kind, dtype: torch.dtype, rows: int) -> None:
    packed = random_weight(kind, 21, WIDTH, 0.02)
    weight = torch.from_numpy(gguf.dequantize(packed, kind)).double()
    together = rows_of(rows).to(dtype)
    found = Int8Rows().linear(together, torch.from_numpy(packed), int(kind))
    assert_products(found, together, weight)
    for count in (1, 2, 7):
        alone = Int8Rows().linear(together[:count], torch.from_numpy(packed), int(kind))
        assert torch.equal(alone, found[:count])


def sweep() -> None:
    """All kinds, for a process with other settings."""
    for kind in KINDS:
        products_are_those_of_rounded_rows(kind, torch.float32, 40)


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["haswell", "x86-64"])
def test_other_processors_compute_the_same(processor: str) -> None:
    skip_unless_runs(processor)
    passes_on(processor, "from tests.ttc.stored.test_int8_activations import sweep; sweep()")


def assert_products(found: Tensor, x: Tensor, weight: Tensor) -> None:
    integers, scales = parts_of(x)
    rows = (integers * scales).flatten(1)
    size = rows.abs() @ weight.abs().T
    narrow = 2**-8 if found.dtype == torch.bfloat16 else 0
    exact = rows @ weight.T
    assert bool(((found.double() - exact).abs() <= 2e-6 * size + narrow * exact.abs()).all())


def rounding_engine(folder: Path, dtype: str, runner: Any) -> Engine:
    return Engine.from_pretrained(
        folder / "model.gguf",
        device="cpu",
        dtype=dtype,
        quantized=True,
        runner=runner,
        int8_activations=True,
    )


@pytest.mark.parametrize("runner", ["fused", "modules"])
def test_a_model_computes_what_transformers_would_on_rounded_rows(
    tmp_path: Path, runner: Any
) -> None:
    write_llama(tmp_path / "model.gguf", Kind.Q4_1, Shape(layers=2))
    engine = rounding_engine(tmp_path, "float32", runner)
    plain = LlamaForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    ).eval()
    branches = engine.fork(engine.root(prompt(1, 20)), 3)
    engine.generate(branches, 4)
    assert engine.runner.watch.may_leave_out_modules()
    tokens = torch.tensor([branch.tokens for branch in branches])
    with torch.no_grad():
        for module in plain.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(lambda _, given: (rounded(given[0]),))
        expected = plain(tokens).logits.log_softmax(-1)
    steps = expected[:, -5:-1].gather(-1, tokens[:, -4:, None])[..., 0]
    found = torch.tensor([branch.logprobs for branch in branches])
    # a number that another order of sums makes another integer changes what comes after it
    assert float((steps - found).abs().max()) < 5e-3


def test_without_stored_weights_it_is_refused(tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf", Kind.Q4_1)
    with pytest.raises(InvalidInput, match=r"int8_activations=True .* load it with quantized=True"):
        Engine.from_pretrained(
            tmp_path / "model.gguf", device="cpu", dtype="float32", int8_activations=True
        )


def test_an_exact_layer_beside_rounded_ones_takes_its_own_rows(tmp_path: Path) -> None:
    """Rows are prepared for tiles once for all products of an input, also where some of these are
    rounded."""
    write_llama(tmp_path / "model.gguf", Kind.Q4_1, Shape(layers=2))
    engine = rounding_engine(tmp_path, "bfloat16", "fused")
    assert isinstance(engine.runner, FusedRunner)
    first, second = engine.model.model.layers
    for module in (*first.modules(), second.self_attn.v_proj):
        if isinstance(module, StoredLinear):
            module.rounding = None
    engine.runner.layers.renew()
    check_runner(engine.runner)
