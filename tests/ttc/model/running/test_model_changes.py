"""What of a model's changes is noticed, and what is no change."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.llama import modeling_llama

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.model_changes import CHANGES, a_scale, a_weight_in_place
from tests.helpers.models import build, prompt, small
from tests.helpers.parts import installed
from tests.helpers.tokenizers import Letters
from ttc import Capture, Engine, Step
from ttc.attention.hf_hook import install, lent
from ttc.model.running.model_changes import Watch


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_once(change: Callable[[Any], None]) -> None:
    model = small()
    watch = Watch(model)
    assert watch.unchanged() and watch.unchanged()
    change(model)
    assert not watch.unchanged()
    assert watch.unchanged()


def test_a_part_of_a_dictionary_counts_too() -> None:
    model = small()
    model.model.scales = {"one": 1.0}
    watch = Watch(model)
    model.model.scales["one"] = 2.0
    assert not watch.unchanged()


@pytest.mark.parametrize("name", ["LlamaMLP", "LlamaAttention"])
def test_code_that_is_replaced_for_a_whole_class_is_noticed(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, kind = Watch(small()), getattr(modeling_llama, name)
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *args, **options: forward(*args, **options))
    assert not watch.unchanged()
    assert not watch.as_at_load


def test_numbers_that_change_leave_the_structure_as_it_was() -> None:
    model = small()
    watch = Watch(model)
    a_weight_in_place(model)
    assert not watch.unchanged()
    assert watch.as_at_load
    a_scale(model)
    assert not watch.unchanged()
    assert not watch.as_at_load
    model.model.layers[1].self_attn.scaling /= 2
    assert not watch.unchanged()
    assert watch.as_at_load


@pytest.mark.parametrize("drafts", [None, *installed("speculation", "prompt_lookup")])
@pytest.mark.parametrize("runner", ["modules", "fused"])
def test_a_change_between_two_tokens_counts_from_the_next_request_or_where_it_is_told(
    runner: Any, drafts: Any
) -> None:
    speculation = drafts and drafts()
    engine = Engine(small(2, 128), Letters(), runner=runner, speculation=speculation)
    changed = small(2, 128)
    branch, other = engine.root(prompt(1, 12)), engine.root(prompt(2, 7))
    batch = engine.running_batch()
    batch.add([branch], Step(30), GREEDY)
    for _ in range(3):
        batch.step()
    for model in (engine.model, changed):
        a_weight_in_place(model)
        model.model.layers[1].self_attn.scaling *= 2
    for look in (lambda: batch.add([other], Step(4), GREEDY), engine.model_changed):
        before, already = branch.usage.recomputed_tokens, len(branch.tokens)
        look()
        batch.step()
        assert branch.usage.recomputed_tokens == before + already - 1
        new = len(branch.tokens) - already
        with torch.no_grad():
            logits = changed(torch.tensor([branch.tokens[:-1]])).logits[0]
        assert logits[-new:].argmax(-1).tolist() == branch.tokens[-new:]
        for model in (engine.model, changed):
            model.model.layers[0].mlp.down_proj.weight.data[0] *= 30  # seen by no look


def test_what_changes_while_the_model_is_lent_counts_at_once() -> None:
    engine = make_engine()
    branch = engine.root(prompt(1, 12))
    batch = engine.running_batch()
    batch.add([branch], Step(9), GREEDY)
    batch.step()
    with engine.lent() as model:
        a_weight_in_place(model)
    batch.step()
    assert branch.usage.recomputed_tokens == 12


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_a_weight_is_equal_to_itself_whatever_its_numbers_are(value: float) -> None:
    model = small()
    with torch.no_grad():
        model.lm_head.weight.fill_(value)
    watch = Watch(model)
    assert watch.unchanged()


def test_weights_of_many_types_and_made_in_inference_mode_are_followed() -> None:
    with torch.inference_mode():
        model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3).bfloat16()])
    model.register_buffer("eight", torch.ones(3).to(torch.float8_e4m3fn))
    model.register_buffer("empty", torch.ones(0))
    watch = Watch(model)
    assert watch.unchanged()
    with torch.inference_mode():
        model[1].weight.mul_(2)
    assert not watch.unchanged()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss"])
def test_calls_of_an_engine_and_lending_the_model_are_no_changes(family: str) -> None:
    model = build(family)
    install(model)
    engine = make_engine()
    engine = type(engine)(model, engine.tokenizer)
    watch = engine.runner.watch
    branch = engine.root(prompt(1, 12))
    engine.generate([branch], 3, sampling=GREEDY)
    assert watch.unchanged()
    with lent(model):
        ids = torch.tensor([prompt(1, 12)])
        model.generate(ids, max_new_tokens=2, attention_mask=torch.ones_like(ids))
    assert watch.unchanged()


def test_what_a_forward_calls_in_its_class_and_file_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A helper method of the class, and a function that is called by a function that the forward
    calls."""
    for family, owner, name in (
        ("gemma2", modeling_gemma2.Gemma2RMSNorm, "_norm"),
        ("llama", modeling_llama, "rotate_half"),
    ):
        watch, own = Watch(build(family)), getattr(owner, name)
        assert watch.unchanged()
        monkeypatch.setattr(owner, name, lambda *args, own=own: 2 * own(*args))
        assert not watch.unchanged() and not watch.may_leave_out_modules()
        assert watch.unchanged()


def test_what_was_made_of_a_model_is_let_go_at_a_change() -> None:
    model = build("llama")
    watch, seen = Watch(model), list[int]()
    watch.on_change.append(lambda: seen.append(1))
    watch.unchanged()
    a_weight_in_place(model)
    assert not watch.unchanged() and watch.unchanged() and seen == [1]
    watch.on_change.append(lambda: 1 // 0)  # its error comes at each look until it is gone
    a_weight_in_place(model)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            watch.unchanged()
    watch.on_change.pop()
    assert not watch.unchanged()


def test_an_engine_that_keeps_activations_comes_and_goes_without_a_change() -> None:
    engine = Engine(build("llama"), Letters())
    watch = engine.runner.watch
    other = Engine(engine.model, Letters(), memory=Capture(2**16 / 2**30))
    assert any(module._forward_pre_hooks for module in engine.model.modules())
    assert watch.unchanged()
    del other
    gc.collect()
    assert not any(module._forward_pre_hooks for module in engine.model.modules())
    assert watch.unchanged()


def test_a_buffer_that_each_pass_makes_again_with_the_same_numbers_is_no_change() -> None:
    """As rotary embeddings of longrope do. From then on its numbers count."""
    model = small()
    watch, rotary = Watch(model), model.model.rotary_emb
    rotary.register_buffer("inv_freq", rotary.inv_freq.clone(), persistent=False)
    assert watch.unchanged() and watch.as_at_load
    rotary.register_buffer("inv_freq", rotary.inv_freq.clone(), persistent=False)
    assert watch.unchanged() and watch.as_at_load
    rotary.register_buffer("inv_freq", 2 * rotary.inv_freq, persistent=False)
    assert not watch.unchanged() and watch.unchanged()
    model.model.norm.weight = nn.Parameter(model.model.norm.weight.clone())
    assert not watch.unchanged()  # weights are read by what was made of them at load


@pytest.mark.timeout(120)
def test_a_model_that_each_of_its_passes_changes_comes_to_an_end() -> None:
    model = small()
    model.passes = 0

    def count(module: Any, given: Any) -> None:
        module.passes += 1

    model.register_forward_pre_hook(count)
    plain = Engine(small(), Letters(), prefill_tokens=8)
    engine = Engine(model, Letters(), prefill_tokens=8)
    texts = []
    for each in (plain, engine):
        branch = each.root(list(range(1, 41)))
        each.generate([branch], 4, sampling=GREEDY)
        texts.append(branch.tokens)
    assert texts[0] == texts[1]
