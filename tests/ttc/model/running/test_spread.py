"""Models whose layers lie on two devices, each with its KV beside it, against plain transformers on
one.

The devices are pretended ones (see `experiments.standins.pretended`), which refuse what mixes them.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model

import ttc.residency.resident
from experiments.standins import small_models
from experiments.standins.pretended import pretended_devices
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import build, deep, prompt
from tests.helpers.tiers import slow
from tests.helpers.tokenizers import Letters
from tests.ttc.model.loading.test_loading import save_tokenizer
from ttc import (
    EarlyExit,
    Engine,
    ExitReport,
    InvalidInput,
    Paged,
    Resident,
    Streamed,
    UnsupportedModel,
)
from ttc.memory.manager import Memory

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch")


def places(model: Any) -> dict[str, str]:
    """The first half of the layers, and what is no layer, on the first device, the other half on
    the second."""
    first, second = pretended_devices()
    layers = next(
        name for name, part in model.named_modules() if isinstance(part, torch.nn.ModuleList)
    )
    count = len(model.get_submodule(layers))
    found = {f"{layers}.{n}": first if n < count // 2 else second for n in range(count)}
    others = [name for name, part in model.named_modules() if name and not any(part.children())]
    return found | {name: first for name in others if not name.startswith(f"{layers}.")}


def spread(model: Any, **changes: str) -> Any:
    return dispatch_model(model, places(model) | changes)


def saved(folder: Path) -> Any:
    model = deep(2, 2, 64)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def kv_devices(memory: Memory) -> list[set[str]]:
    """Of each layer, where its keys and values lie."""
    layers = zip(*(storage.device for storage in memory.live), strict=True)
    return [
        {str(tensor.device) for copy in copies if copy for tensor in copy.both} for copies in layers
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", slow("gpt_oss")])
def test_a_tree_over_two_devices_equals_plain_transformers(family: str) -> None:
    plain = build(family)
    engine = Engine(spread(copy.deepcopy(plain)), Letters(), prefill_tokens=5)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    assert kv_devices(engine.memory) == [{"pretend:0"}, {"pretend:1"}]
    ids = torch.tensor([prompt(1, 9)])
    with engine.lent() as model, torch.inference_mode():
        assert torch.allclose(
            model(ids.to(model.device)).logits.cpu(), plain(ids).logits, atol=1e-4
        )
    engine.release(branches)
    assert engine.kv_bytes() == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", [slow("qwen3_next"), "gemma4_text: shared KV"])
def test_recurrent_states_and_shared_kv_lie_with_their_layers_too(family: str) -> None:
    plain = small_models.build(family)
    engine = Engine(spread(copy.deepcopy(plain)), Letters())
    root = engine.root(prompt(1, 18))
    branches = engine.fork(root, 2)
    engine.extend(branches[:1], [prompt(2, 3)]).result()
    engine.generate(branches, 3, sampling=GREEDY)
    for branch in branches:
        assert_like_plain(plain, branch)
    if (shape := engine.memory.states.shape) is not None:
        held = {part.layer: device for part, (_, _, device) in shape.parts.items()}
        assert {str(device) for layer, device in held.items() if layer < 2} <= {"pretend:0"}
        assert {str(device) for layer, device in held.items() if layer >= 2} <= {"pretend:1"}
        assert held


@pytest.mark.parametrize(
    "elsewhere", [["model.norm", "lm_head"], ["model.layers.0", "model.layers.1"]]
)
def test_the_end_of_the_model_or_all_layers_may_lie_elsewhere_than_its_beginning(
    elsewhere: list[str],
) -> None:
    plain, (_, second) = deep(2, 2, 64), pretended_devices()
    engine = Engine(spread(copy.deepcopy(plain), **dict.fromkeys(elsewhere, second)), Letters())
    root = engine.root(prompt(1, 12))
    engine.generate([root], 5, sampling=GREEDY)
    assert_like_plain(plain, root)


@pytest.mark.slow
def test_scores_and_early_exits_are_those_of_one_device() -> None:
    plain = deep(4, 2, 64)
    engines = [
        Engine(copy.deepcopy(plain), Letters()),
        Engine(spread(copy.deepcopy(plain)), Letters()),
    ]
    found, exits = [], []
    for engine in engines:
        root = engine.root(prompt(1, 12))
        found.append(engine.score([root], [[prompt(2, 3), [5], [6]]]).result()[0])
        report = ExitReport()
        exits.append(
            engine.score(
                [root], [[[5], [6]]], exit=EarlyExit(theta=10.0, eps=10.0), report=report
            ).result()[0]
        )
        assert report.depths == [2]
    for values in (found, exits):
        for one, other in zip(*values, strict=True):
            assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.slow
def test_a_model_is_read_straight_to_its_devices(tmp_path: Path) -> None:
    plain = saved(tmp_path)
    engine = Engine.from_pretrained(tmp_path, device_map=places(plain), dtype="float32")
    assert {str(w.device) for w in engine.model.parameters()} == {"pretend:0", "pretend:1"}
    assert engine.model.model.layers[1].self_attn.q_proj.weight.device == torch.device("pretend:1")
    root = engine.root(prompt(1, 9))
    engine.generate([root], 4, sampling=GREEDY)
    assert_like_plain(plain, root)


def test_what_moves_kv_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    device_map = places(saved(tmp_path))
    (tmp_path / "model.safetensors").write_text("not weights")
    with pytest.raises(InvalidInput, match=r"Paged\(\) moves.*memory=resident"):
        Engine.from_pretrained(tmp_path, device_map=device_map, memory=Paged())
    with pytest.raises(
        InvalidInput, match=r"memory=auto decides.*device_map names several devices"
    ):
        Engine.from_pretrained(tmp_path, device_map=device_map, memory="auto")
    with pytest.raises(InvalidInput, match=r"Streamed\(\) decides"):
        Engine.from_pretrained(tmp_path, device_map=device_map, placement=Streamed())


@pytest.mark.parametrize(
    ("case", "error", "reason"),
    [
        (
            "nemotron_h",
            UnsupportedModel,
            "a NemotronHForCausalLM has a least time step.* a device_map of one device",
        ),
        (
            "zamba2",
            UnsupportedModel,
            "a Zamba2ForCausalLM has a least time step.* a device_map of one device",
        ),
        ("zamba", InvalidInput, "on different devices, and these are one tensor"),
    ],
)
def test_a_family_that_cannot_be_spread_is_refused_before_weights_are_read(
    case: str, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    model = small_models.build(case)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    (tmp_path / "model.safetensors").write_text("not weights")
    with pytest.raises(error, match=reason):
        Engine.from_pretrained(tmp_path, device_map=places(model), dtype="float32")
    with pytest.raises(UnsupportedModel, match=r"cannot load the model.*files hold 11 bytes"):
        Engine.from_pretrained(tmp_path, device_map="cpu", dtype="float32")


@pytest.mark.slow
def test_layers_that_share_weights_lie_on_one_device() -> None:
    plain, (first, second) = small_models.build("zamba"), pretended_devices()
    # layers 1 and 3 attend by the same ones
    at = {f"model.layers.{n}": second if n == 2 else first for n in range(4)}
    engine = Engine(spread(copy.deepcopy(plain), **at), Letters())
    branches = engine.fork(engine.root(prompt(1, 12)), 2)
    engine.extend(branches[:1], [prompt(2, 3)]).result()
    engine.generate(branches, 3, sampling=GREEDY)
    for branch in branches:
        assert_like_plain(plain, branch)


def test_a_model_that_is_there_already_keeps_its_kv_resident() -> None:
    with pytest.raises(
        InvalidInput, match=r"Paged\(\) moves keys and values between one device and the host"
    ):
        Engine(spread(build("llama")), Letters(), memory=Paged())


def test_the_first_full_device_says_how_much_kv_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = {"pretend:0": 9000, "pretend:1": 1200}
    monkeypatch.setattr(
        ttc.residency.resident, "free_device_bytes", lambda device: free[str(device)]
    )
    plain, (_, second) = deep(4, 2, 64), pretended_devices()
    engine = Engine(spread(plain, **{"model.layers.1": second}), Letters())
    bytes_of_a_layer = 2 * 2 * 8 * 4  # keys and values of 2 heads of 8 numbers in float32
    assert engine.memory.bytes_per_token == 4 * bytes_of_a_layer
    assert engine.residency.fits(10, 7) == pytest.approx(1200 / (10 * 3 * bytes_of_a_layer))
    given = Engine(spread(deep(2, 2, 64)), Letters(), memory=Resident(budget_gib=1))
    assert given.residency.fits(10, 7) == 2**30 / (10 * 2 * bytes_of_a_layer)


def test_pretended_devices_refuse_what_mixes_them() -> None:
    first, second = pretended_devices()
    one, other = torch.ones(2, 3, device=first), torch.ones(2, 3, device=second)
    for wrong in (other, torch.ones(2, 3)):
        with pytest.raises(RuntimeError, match="got tensors on pretend:0 and on"):
            one + wrong
    with pytest.raises(RuntimeError, match="got tensors on"):
        one[:, torch.tensor([0], device=second)]
    assert (one + torch.tensor(1.0)).tolist() == [[2.0] * 3] * 2
    assert one[:, torch.tensor([0, 2])].shape == (2, 2)
    one[0].copy_(other[0] * 5)
    assert one.cpu().tolist() == [[5.0] * 3, [1.0] * 3]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("by_name", [True, False])
def test_a_tree_over_two_gpus_equals_plain_transformers(tmp_path: Path, by_name: bool) -> None:
    plain = saved(tmp_path)
    device_map: Any = "balanced"
    if by_name:
        device_map = {
            name: place.replace("pretend", "cuda") for name, place in places(plain).items()
        }
    engine = Engine.from_pretrained(tmp_path, device_map=device_map, dtype="float32")
    for branch in grow(engine):
        assert_like_plain(plain, branch)
    assert kv_devices(engine.memory) == [{"cuda:0"}, {"cuda:1"}] or not by_name
