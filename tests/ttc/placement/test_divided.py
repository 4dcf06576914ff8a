"""Layers of the host that the device helps with: the same tokens and logits, the rows' weights
counted, and which share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import FAMILIES, FEW, prompt
from tests.helpers.ownership import assert_nothing_left
from tests.helpers.placements import LAYERS, deeper, placed, save_without_weights, write_profile
from tests.helpers.tiers import some_quick
from ttc import Engine, InvalidInput, OutOfMemory, Split
from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.decoder_layers import decoder_layers, large_linears
from ttc.model.packed_linear import packs
from ttc.placement.divided import DividedLinear

KIB = 1 / 2**20
NO_LARGE_LINEARS = ("gpt2", "mixtral", "gpt_oss")
"""Their large matrices are in modules of other kinds."""
LARGE = [family for family in FAMILIES if family not in NO_LARGE_LINEARS]
ROWS_BYTES = 4 * (2 * 16 * 32 + 2 * 24 * 32 + 16 * 48)
"""What the device computes of a layer of the Llama of `deeper` at a share of 0.6: 16 of 32 rows of
q, o and down, and 24 of 48 of gate and up; k and v are small."""


def helped(plain: Any, **options: Any) -> Engine:
    return placed(plain, Split(**({"k": LAYERS, "streamed": 0.6} | options)))


@pytest.mark.few
@pytest.mark.parametrize("family", some_quick(LARGE, [family for family in FEW if family in LARGE]))
def test_a_tree_over_divided_layers_equals_plain_transformers(family: str) -> None:
    plain = deeper(family)
    engine = helped(plain)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    divided = [layer for layer in decoder_layers(plain)[: LAYERS - 1] if large_linears(layer)]
    # else all are in the buffers
    assert (engine.memory.link.to_device_bytes["weights"] > 0) == (len(divided) > 2)
    assert any(isinstance(module, DividedLinear) for module in engine.model.modules())
    assert_nothing_left(engine, branches)


@pytest.mark.parametrize("family", NO_LARGE_LINEARS)
def test_a_model_whose_large_matrices_cannot_be_divided_is_refused(family: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"placement.streamed=0.6: the layers of \w+ have no large nn.Linear"
    ):
        helped(deeper(family))


def test_weights_that_layers_have_in_common_stay_whole() -> None:
    plain = deeper("llama")
    plain.model.layers[2].mlp.up_proj.weight = plain.model.layers[0].mlp.up_proj.weight
    engine = helped(plain)
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert type(engine.model.model.layers[2].mlp.up_proj) is torch.nn.Linear
    assert isinstance(engine.model.model.layers[2].mlp.gate_proj, DividedLinear)


def test_each_pass_moves_the_rows_of_each_layer_on_the_host_once() -> None:
    engine = helped(deeper("llama"))
    branches = engine.fork(engine.root(prompt(1, 11)), 2)
    moved = engine.memory.link.to_device_bytes
    before = moved["weights"]
    engine.generate(branches, 6, sampling=GREEDY)
    assert moved["weights"] - before == 6 * 3 * ROWS_BYTES  # passes, layers on the host


def test_the_buffers_count_on_the_device_and_nothing_more_on_the_host() -> None:
    plain = deeper("llama")
    alone, with_help = helped(plain, streamed=0).runner, helped(plain).runner
    assert with_help.device_bytes - alone.device_bytes == 2 * ROWS_BYTES
    assert with_help.host_bytes == alone.host_bytes
    assert with_help.streamed == 0.6 and alone.streamed == 0


def test_in_bfloat16_the_hosts_rows_are_packed_where_that_is_of_use() -> None:
    engine = helped(deeper("llama").to(torch.bfloat16))
    divided = [module for module in engine.model.modules() if isinstance(module, DividedLinear)]
    packed = [type(module.near) is not torch.nn.Linear for module in divided]
    assert packed == [packs(torch.device("cpu"), torch.bfloat16)] * (3 * 5)


# -------------------------------------------------------------------- which share


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """A made-up profile of this machine with a GPU that is five times as fast."""
    host = DeviceProfile(name="cpu float32", bandwidth=40e9, flops={1: 1e12})
    device = DeviceProfile(name="cuda float32", bandwidth=200e9, flops={1: 1e13})
    link = LinkProfile(to_device_bandwidth=16e9, to_host_bandwidth=16e9)
    return write_profile(tmp_path / "profile.json", [host, device], link)


def test_auto_takes_the_fastest_pair_that_fits(profile: str) -> None:
    model, gpu = deeper("llama", num_hidden_layers=8), torch.device("cuda")
    search: dict[str, Any] = {
        "prompt_tokens": 16,
        "output_tokens": 8,
        "branches": 2,
        "profile": profile,
    }
    layer = sum(4 * weight.numel() for weight in model.model.layers[0].parameters())
    budget = (2 * layer + 4 * 129 * 32 + 3 * 32 * 4 * 32) / 2**30
    k, share = Split(budget_gib=budget, **search).decide(model, gpu)
    assert (k, share > 0.2) == (8, True)  # one layer less than fits, in whose place are the buffers
    assert Split(budget_gib=budget, streamed=0, **search).decide(model, gpu) == (7, 0)
    assert Split(k=8, budget_gib=budget, **search).decide(model, gpu) == (8, share)
    # one processor
    assert Split(k=8, budget_gib=budget, **search).decide(model, torch.device("cpu")) == (8, 0)
    assert Split(k=8, streamed=0.25, budget_gib=budget, **search).decide(model, gpu) == (8, 0.25)


def test_buffers_without_room_are_refused_before_a_weight_is_read(
    tmp_path: Path, letters: None
) -> None:
    save_without_weights(tmp_path)
    step: dict[str, Any] = {"prompt_tokens": 16, "output_tokens": 8, "branches": 2}

    def needed(share: float, budget: int) -> str:
        with pytest.raises(OutOfMemory) as error:
            placement = Split(k=4, streamed=share, budget_gib=budget / 2**30, **step)
            Engine.from_pretrained(tmp_path, device="cpu", dtype="float32", placement=placement)
        return str(error.value)

    large = 4 * (2 * 32 * 32 + 3 * 32 * 48)  # q, o, gate, up and down
    layer = large + 4 * (2 * 32 * 16 + 2 * 32)
    # the head, a layer, its KV, two buffers of a half
    whole = 4 * (128 * 32 + 32) + layer + 32 * 4 * 2 * 16 + large
    message = needed(0.5, whole - 1)
    assert f"needs {whole:,} there" in message and "2 buffers for placement.streamed=0.5" in message
    assert (
        f"a placement.budget_gib of {whole:,} bytes" in message
        and "a smaller placement.streamed" in message
    )


@pytest.mark.parametrize("share", [1, 1.5, -0.1, "most", float("nan")])
def test_bad_shares_are_refused(share: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"placement.streamed={share!r} (must|is unknown)"):
        Split(k=2, streamed=share)
