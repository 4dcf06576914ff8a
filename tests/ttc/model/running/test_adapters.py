"""Adapters of peft: served, refused by name, and never on the KV of another adapter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import prompt, small
from ttc import Engine, UnsupportedModel
from ttc.branch import Branch
from ttc.model.running.adapters import check_adapters

LAYERS = ["q_proj", "v_proj", "down_proj"]


def adapted(**settings: Any) -> Any:
    """A small model with two random LoRAs, "default" and "other"."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    kind = {"task_type": "CAUSAL_LM", "r": 4, "init_lora_weights": False, "target_modules": LAYERS}
    model = peft.get_peft_model(small(2, 128), peft.LoraConfig(**kind, **settings))
    model.add_adapter("other", peft.LoraConfig(**kind))
    return model.eval()


def assert_like_now(model: Any, branch: Branch, first: int) -> None:
    """Tokens from `first` on are greedy ones of the model as it is now."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([branch.tokens]), use_cache=False).logits[0]
    assert branch.tokens[first:] == logits[first - 1 : -1].argmax(-1).tolist()


def a_continuation(engine: Engine, branch: Branch) -> None:
    """The branch goes on, and so does a new one, as the model does that is there now."""
    first = len(branch.tokens)
    engine.generate([branch], 3, sampling=GREEDY)
    new = engine.root(prompt(1, 20))
    engine.generate([new], 5, sampling=GREEDY)
    with engine.lent() as model:
        assert_like_now(model, branch, first)
        assert_like_now(model, new, 20)
    engine.release([new])


def test_lora_is_served_as_peft_computes_it() -> None:
    engine = Engine(adapted(), None)
    branch = engine.root(prompt(1, 20))
    engine.generate([branch], 8, sampling=GREEDY)
    with engine.lent() as model:
        assert_like_plain(model, branch)


def test_kv_of_one_adapter_is_never_anothers() -> None:
    """Adapters that are switched off, exchanged, merged and merged back, while a branch lives."""
    engine = Engine(adapted(), None)
    branch = engine.root(prompt(1, 20))
    a_continuation(engine, branch)
    with engine.model.disable_adapter():
        a_continuation(engine, branch)
    engine.model.set_adapter("other")
    a_continuation(engine, branch)
    engine.model.merge_adapter()
    a_continuation(engine, branch)
    engine.model.unmerge_adapter()
    engine.model.set_adapter("default")
    a_continuation(engine, branch)
    for module in engine.model.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 5.0)
    a_continuation(engine, branch)


def test_an_adapters_weights_that_are_exchanged_in_place_count_at_once() -> None:
    engine = Engine(adapted(), None)
    from peft.utils.hotswap import hotswap_adapter_from_state_dict

    branch = engine.root(prompt(1, 20))
    state = {n: w for n, w in engine.model.state_dict().items() if "lora_" in n and ".default" in n}
    swapped = {name: weight.flip(0).clone() for name, weight in state.items()}
    config = engine.model.peft_config["default"]
    hotswap_adapter_from_state_dict(engine.model, swapped, "default", config)
    a_continuation(engine, branch)


def test_an_activated_lora_inside_of_a_model_of_transformers_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="activated LoRA"):
        Engine(adapted(alora_invocation_tokens=[5, 6]).base_model.model, None)


@pytest.mark.parametrize("name", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_learned_prompts_are_refused(name: str) -> None:
    peft = pytest.importorskip("peft")
    config = getattr(peft, name)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(UnsupportedModel, match="it learns a prompt"):
        Engine(peft.get_peft_model(small(), config).eval(), None)


@pytest.mark.slow
def test_an_activated_lora_that_comes_after_load_is_refused_until_it_is_gone() -> None:
    peft = pytest.importorskip("peft")
    engine = Engine(adapted(), None)
    branch = engine.root(prompt(1, 20))
    settings = {"r": 4, "target_modules": LAYERS, "alora_invocation_tokens": [5]}
    engine.model.add_adapter("late", peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="adapter 'late'"):
            engine.root(prompt(2, 9))
    engine.model.delete_adapter("late")
    a_continuation(engine, branch)


class Holder(nn.Module):
    """Keeps configurations as peft's models do."""

    def __init__(self, **fields: Any):
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.inner.peft_config = {"mine": SimpleNamespace(**fields)}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"peft_type": "LORA", "alora_invocation_tokens": [1]}, "activated LoRA"),
        ({"peft_type": "P_TUNING", "is_prompt_learning": True}, r"learns a prompt \(P_TUNING\)"),
        ({"peft_type": "XLORA"}, "by a first pass over the whole text"),
        ({"peft_type": "POLY"}, "the number of a task"),
        ({"peft_type": "LILY"}, "it mixes its experts by a mean over all rows"),
        ({"peft_type": "LORA", "alora_invocation_tokens": None}, None),
        ({"peft_type": "IA3", "is_prompt_learning": False}, None),
    ],
)
def test_adapters_are_known_by_their_configurations(
    fields: dict[str, Any],
    reason: str | None,
) -> None:
    if reason is None:
        check_adapters(Holder(**fields))
    else:
        with pytest.raises(UnsupportedModel, match=f"Holder has the adapter 'mine', .*{reason}"):
            check_adapters(Holder(**fields))
