"""Weights that stay as a .gguf file stores them give what transformers gives on the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.standins.random_gguf import FACTORS, Shape, random_weight, write_llama
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.exits import ALWAYS, CANDIDATES, LAYERS, ask, cut_off, problems
from tests.helpers.processors import passes_on, skip_unless_runs
from ttc import (
    BeamGroups,
    Capture,
    Engine,
    Headwise,
    InvalidInput,
    Layerwise,
    Paged,
    UnsupportedModel,
)
from ttc.model.loading.load import load
from ttc.residency.base import Residency
from ttc.stored.kernel import KINDS, linear, tile_rows, unpacked
from ttc.stored.layers import StoredLinear

ALL = [Kind[name] for name in KINDS.values()]
SCALED = [kind for kind in ALL if "Q" in kind.name or kind == Kind.MXFP4]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_unpacked_numbers_are_the_bits_of_ggufs_own(kind: Kind) -> None:
    packed = np.ascontiguousarray(random_weight(kind, 5, 768, 0.02)).view(np.uint8).reshape(5, -1)
    expected = gguf.dequantize(random_weight(kind, 5, 768, 0.02), kind)
    assert torch.equal(unpacked(torch.from_numpy(packed), int(kind), 768), torch.tensor(expected))


@pytest.mark.parametrize("kind", SCALED, ids=lambda kind: kind.name)
def test_numbers_at_the_edges_are_the_bits_of_ggufs_own(kind: Kind) -> None:
    """Zeros with a sign, scales that are 0, infinite or no number, and MXFP4's largest exponents,
    in a row of blocks that have all codes."""
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    places = FACTORS[kind][0] if kind in FACTORS else []
    scales = np.array([0.0, -0.0, 1.0, -1.0, 6e-8, -6e-8, 65504, np.inf, -np.inf, np.nan])
    packed = np.random.default_rng(0).integers(0, 256, (256, size), np.uint8)
    for n, place in enumerate(places):  # each with each
        factors = scales[np.arange(256) // 10**n % 10].astype(np.float16)
        packed[:, place : place + 2] = factors[:, None].view(np.uint8)
    if kind == Kind.MXFP4:
        packed[:, 0] = np.arange(256)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(packed.reshape(1, -1), kind)
    found = unpacked(torch.from_numpy(packed.reshape(1, -1)), int(kind), 256 * numbers).numpy()
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert bool((same | np.isnan(expected)).all())


@pytest.mark.parametrize("kind", SCALED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [1, 3, 7, 16, 150])
def test_products_are_those_of_the_stored_numbers(kind: Kind, rows: int) -> None:
    packed = random_weight(kind, 70, 2304, 0.02)
    weight = torch.from_numpy(gguf.dequantize(packed, kind))
    x = torch.randn(rows, 2304, generator=torch.Generator().manual_seed(rows))
    exact = x.double() @ weight.double().T
    found = linear(x, torch.from_numpy(packed), int(kind))
    assert float((found - exact).abs().max()) < 1e-6 * float(exact.abs().max())
    x = x.bfloat16()
    found = linear(x, torch.from_numpy(packed), int(kind))
    exact = x.double() @ weight.double().T
    # weights and results are rounded to bfloat16, each by 2^-8 of itself at most
    bound = 2.1 * 2**-8 * (x.double().abs() @ weight.double().abs().T)
    assert bool(((found.double() - exact).abs() <= bound).all())


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    packed = torch.from_numpy(random_weight(Kind.Q4_K, 48, 2304, 0.02))
    x = torch.randn(150, 2304)
    for dtype in (torch.float32, torch.bfloat16):
        together = linear(x.to(dtype), packed, int(Kind.Q4_K))
        least = tile_rows() if dtype == torch.bfloat16 else 0  # tiles add up in another order
        for count in (n for n in (1, 2, 5, 13) if n >= least):
            assert torch.equal(
                linear(x[:count].to(dtype), packed, int(Kind.Q4_K)), together[:count]
            )


POLICIES: dict[str, Any] = {
    "resident": lambda: None,
    "paged": lambda: Paged(budget_gib=BUDGET, block_tokens=8),
    "headwise": lambda: Headwise(budget_gib=BUDGET, block_tokens=8),
    "layerwise": lambda: Layerwise(budget_gib=BUDGET),
    "beam_groups": lambda: BeamGroups(budget_gib=BUDGET, block_tokens=8),
    "capture": lambda: Capture(block_tokens=8),
}
BUDGET = 200_000 / 2**30
KINDS_OF_TREES = [Kind.Q8_0, Kind.Q6_K, Kind.Q4_1, Kind.Q4_1, Kind.Q4_K, Kind.Q4_1]


@pytest.mark.few(1)
@pytest.mark.parametrize(("policy", "kind"), zip(POLICIES, KINDS_OF_TREES, strict=True))
def test_a_tree_on_stored_weights_equals_plain_transformers(
    tmp_path: Path, policy: str, kind: Kind
) -> None:
    engine, plain = _both(tmp_path, kind, memory=POLICIES[policy]())
    for branch in grow(engine):
        assert_like_plain(plain, branch)


@pytest.mark.slow
def test_verification_that_exits_early_is_a_shorter_model(tmp_path: Path) -> None:
    engine, plain = _both(tmp_path, Kind.Q4_1, layers=LAYERS)
    branches, given = problems(engine)
    found, report = ask(engine, branches, given, ALWAYS)
    for branch, more, row, depth in zip(branches, given, found, report.depths, strict=True):
        expected = cut_off(plain, branch.tokens + more, depth).log_softmax(-1)[CANDIDATES]
        assert depth < LAYERS and row == pytest.approx(expected.tolist(), abs=1e-4)


def _both(
    folder: Path, kind: Kind, memory: Residency | None = None, layers: int = 2
) -> tuple[Engine, Any]:
    """An engine on the stored weights, and transformers' model of the same file."""
    write_llama(folder / "model.gguf", kind, Shape(layers=layers))
    engine = Engine.from_pretrained(
        folder / "model.gguf", device="cpu", dtype="float32", quantized=True, memory=memory
    )
    engine.limits.eos_ids = frozenset()
    plain = LlamaForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
    return engine, plain.eval()


def test_the_weights_are_the_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_llama(file, Kind.Q4_1)
    model, _ = load(file, device="cpu", dtype="bfloat16", quantized=True)
    stored = [module for module in model.modules() if isinstance(module, StoredLinear)]
    assert len(stored) == 15
    shared = {module.packed.untyped_storage().data_ptr() for module in stored}
    copies = [module for module in stored if module.packed.untyped_storage().nbytes() < 2**16]
    assert len(copies) == 4  # queries and keys have their rows in another order
    assert len(shared) == 1 + len(copies)
    assert not any(weight.is_meta for weight in model.parameters())


@pytest.mark.slow
def test_the_default_model_is_read_from_its_own_file() -> None:
    model, tokenizer = load("smollm2-135m", device="cpu", dtype="float32", quantized=True)
    plain, theirs = load("smollm2-135m", device="cpu", dtype="float32")
    assert tokenizer.chat_template == theirs.chat_template
    text = "Tom has 12 apples and 345 boxes."
    tokens = tokenizer.encode(text)
    assert tokens == theirs.encode(text)
    with torch.no_grad():
        found, expected = (m(torch.tensor([tokens])).logits for m in (model, plain))
    assert float((found - expected).abs().max()) < 1e-5 * float(expected.abs().max())
    assert model.generation_config.eos_token_id == plain.generation_config.eos_token_id


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_llama(file, Kind.Q8_0)
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(UnsupportedModel, match=r"cannot load the model .*model.gguf"):
        load(file, device="cpu", quantized=True)


def test_what_does_not_go_with_stored_weights_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_llama(file, Kind.Q4_0)
    with pytest.raises(InvalidInput, match=r"float32 or bfloat16, not in torch\.float16"):
        load(file, device="cpu", dtype="float16", quantized=True)
    folder = tmp_path / "folder"
    LlamaConfig().save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        InvalidInput, match=r"keeps the weights of a .gguf file, or gpt-oss's experts"
    ):
        load(folder, device="cpu", quantized=True)


def test_a_kind_that_is_not_read_is_named(tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf", Kind.TQ2_0)
    with pytest.raises(UnsupportedModel, match=r"stored as TQ2_0, .*leave quantized out"):
        load(tmp_path / "model.gguf", device="cpu", quantized=True)


def check_products() -> None:
    """The sweep over kinds, for a process with other settings."""
    for kind in SCALED:
        test_unpacked_numbers_are_the_bits_of_ggufs_own(kind)
        test_numbers_at_the_edges_are_the_bits_of_ggufs_own(kind)
        for rows in (1, 40):
            test_products_are_those_of_the_stored_numbers(kind, rows)


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["haswell", "x86-64"])
def test_other_processors_compute_the_same(processor: str) -> None:
    skip_unless_runs(processor)
    program = "from tests.ttc.stored.test_stored import check_products; check_products()"
    passes_on(processor, program)


def test_without_a_compiler_weights_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_llama(tmp_path / "model.gguf", Kind.Q4_0)
    monkeypatch.setattr("ttc.stored.reading.why_not", lambda: "there is no C++ compiler")
    with pytest.warns(UserWarning, match="unpacked: there is no C"):
        model, _ = load(tmp_path / "model.gguf", device="cpu", dtype="float32", quantized=True)
    assert not any(isinstance(module, StoredLinear) for module in model.modules())
