"""Compiled layers against the modules that they stand for, and when the modules run instead."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import ttc.threads
from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.model_changes import CHANGES
from tests.helpers.models import build, of_config, prompt, small
from tests.helpers.processors import passes_on, skip_unless_runs
from tests.helpers.tokenizers import Letters
from ttc import Engine, InvalidInput, UnsupportedModel
from ttc.attention.fused import SWITCH
from ttc.attention.plan import Plan, Run
from ttc.compiling import cxx, library
from ttc.memory.storage import Places, Storage
from ttc.model.compiled import layers_kernel
from ttc.model.compiled.compiled_check import Differs, check_runner
from ttc.model.compiled.fused_runner import FusedRunner
from ttc.model.compiled.llama_structure import decoder_of
from ttc.model.packed_linear import can_pack
from ttc.model.runner_choice import runner_for
from ttc.model.running.runner import HuggingFaceRunner

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
pytestmark = pytest.mark.skipif(cxx() is None, reason="there is no C++ compiler")

MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, {}),
    "biases everywhere": (hf.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "tied embeddings": (hf.LlamaConfig, {"tie_word_embeddings": True}),
    "a vocabulary that fills no vector": (hf.LlamaConfig, {"vocab_size": 131}),
    "yarn": (hf.LlamaConfig, {"rope_parameters": YARN}),
    "llama 3's rotation": (hf.LlamaConfig, {"rope_parameters": LLAMA3}),
    "qwen 2, whose projections have biases": (hf.Qwen2Config, {}),
    "qwen 3, which normalises heads": (hf.Qwen3Config, {}),
    "heads wider than the states": (hf.Qwen3Config, {"head_dim": 32, "num_key_value_heads": 1}),
    "mistral, with a window": (hf.MistralConfig, {"sliding_window": 8}),
    "rows of more than one slice": (
        hf.LlamaConfig,
        {"intermediate_size": 1600, "num_hidden_layers": 1},
    ),
    "wide rows": (
        hf.LlamaConfig,
        {"intermediate_size": 1600, "head_dim": 64, "attention_bias": True, "mlp_bias": True},
    ),
}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    config_class, settings = MODELS[name]
    model = of_config(config_class, dtype, **settings)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(".bias") or "norm" in parameter_name:  # else all 0 or 1
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def fused(model: Any) -> FusedRunner:
    runner = runner_for(model, "fused")
    assert isinstance(runner, FusedRunner)
    return runner


@pytest.mark.few
@pytest.mark.parametrize("name", MODELS)
def test_trees_by_compiled_layers_are_plain_transformers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = model_of(name)
    engine = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5, runner="fused")
    assert isinstance(engine.runner, FusedRunner)
    assert engine.runner.reason == f"compiled layers, built for {layers_kernel.processor()}"
    monkeypatch.setattr(engine.runner.modules, "forward", None)  # no pass goes through the modules
    for branch in grow(engine):
        assert_like_plain(plain, branch)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "qwen 3, which normalises heads", "biases everywhere"])
def test_bfloat16_is_rounded_where_the_modules_round(name: str) -> None:
    config = {"intermediate_size": 64, "head_dim": 64, "num_hidden_layers": 3}
    MODELS["wide"] = (MODELS[name][0], MODELS[name][1] | config)
    exact = model_of("wide")
    plain = copy.deepcopy(exact).to(torch.bfloat16)
    exact = copy.deepcopy(plain).float()
    engine = Engine(copy.deepcopy(plain), Letters(), runner="fused")
    branch = engine.root(prompt(1, 12))
    engine.generate([branch], 12)
    ids = torch.tensor([branch.tokens])
    places = slice(branch.prompt_length - 1, -1)

    def logprobs(model: Any) -> torch.Tensor:
        rows = model(ids, use_cache=False).logits[0, places].double().log_softmax(-1)
        return rows.gather(1, torch.tensor(branch.generated)[:, None])[:, 0]

    true, theirs, ours = logprobs(exact), logprobs(plain), torch.tensor(branch.logprobs).double()
    rounding = (theirs - true).abs().mean()
    assert (ours - true).abs().mean() <= 2 * rounding + 1e-3


def logits_of(runner: FusedRunner, tokens: list[int]) -> torch.Tensor:
    """Each token is a sequence of its own, so attention gives back its value."""
    storage = Storage.uncounted(runner.shapes, len(tokens), runner.dtype, runner.device)
    runs = [Run(slice(n, n + 1), [Places(storage, n, 1)]) for n in range(len(tokens))]
    return runner.forward(tokens, Plan([], [9] * len(tokens), runs))


@pytest.mark.few
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["biases everywhere", "qwen 3, which normalises heads", "rows of more than one slice"]
)
@torch.inference_mode()
def test_a_row_gives_the_same_bits_beside_any_others(name: str, threads: int) -> None:
    a_row_is_the_same_bits(name, threads)


def a_row_is_the_same_bits(name: str, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = logits_of(fused(model_of(name)), [5])
        torch.set_num_threads(threads)
        runner = fused(model_of(name))
        for others in (1, 2, 3, 6, 7, 8, 33, 200):
            assert torch.equal(logits_of(runner, [5, *prompt(2, others)])[:1], alone)
            assert torch.equal(logits_of(runner, [*prompt(2, others), 5])[-1:], alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [96, 109, 270])
@torch.inference_mode()
def test_many_rows_of_bfloat16_are_as_near_to_the_truth_as_few(rows: int) -> None:
    plain = model_of("wide rows", torch.bfloat16)
    few, many, true = fused(plain), fused(plain), fused(copy.deepcopy(plain).float())
    tokens = prompt(3, rows)
    exact = logits_of(true, tokens)
    error = (logits_of(many, tokens) - exact).abs()
    by_few = (
        torch.cat([logits_of(few, tokens[n : n + 9]) for n in range(0, rows, 9)]) - exact
    ).abs()
    assert error.mean() <= 1.2 * by_few.mean()
    assert error.max() <= 2 * by_few.max()


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_changed_after_load_runs_as_it_is_then(
    change: Callable[[Any], None],
) -> None:
    plain = small()
    engine = Engine(copy.deepcopy(plain), Letters(), runner="fused")
    for model in (engine.model, plain):
        change(model)
    branch = engine.root(prompt(1, 12))
    engine.generate([branch], 4, sampling=GREEDY)
    assert_like_plain(plain, branch)


class Cautious(nn.Linear):
    """A linear layer of another class, as quantised ones are."""


def cautious() -> Any:
    model = small()
    model.model.layers[1].mlp.up_proj.__class__ = Cautious
    return model


OTHER_KIND = r"is not the|no attribute|stands where"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        *(
            (partial(build, family), OTHER_KIND)
            for family in ("gemma2", "olmo2", "phi3", "mixtral", "gpt2", "opt")
        ),
        (cautious, "a Cautious stands where a plain Linear is expected"),
        (lambda: small().to(torch.float16), "float32 and bfloat16"),
        (lambda: small().to(torch.float64), "float32 and bfloat16"),
    ],
)
def test_other_models_run_by_their_modules(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        runner_for(make(), "fused")
    runner = runner_for(make(), "auto")
    assert isinstance(runner, HuggingFaceRunner) and re.search(reason, runner.reason)


def test_the_switch_turns_compiled_layers_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    runner = make_engine(runner="auto").runner
    assert isinstance(runner, HuggingFaceRunner) and runner.reason == f"{SWITCH}=0"
    with pytest.raises(InvalidInput, match="'quick' is unknown; use one of auto, fused, modules"):
        make_engine(runner="quick")


def test_compiled_layers_that_differ_from_the_modules_are_noticed_and_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = ttc.model.compiled.cpu_program.Program.normalise

    def wrong(self: Any, norm: Any) -> None:
        original(self, norm)
        self._rows[-1][self.at.EPSILON] = 0x3F800000  # 1.0

    monkeypatch.setattr("ttc.model.compiled.cpu_program.Program.normalise", wrong)
    with pytest.raises(Differs, match="the queries of layer 0 differ"):
        runner_for(small(), "fused")
    with pytest.warns(UserWarning, match="runs by its own modules: the queries of layer 0 differ"):
        assert isinstance(runner_for(small(), "auto"), HuggingFaceRunner)


def test_every_layer_and_the_logits_are_compared() -> None:
    for part, layer in (
        ("lm_head", "results"),
        ("model.layers.1.self_attn.k_proj", "keys of layer 1"),
    ):
        model = small()
        runner = FusedRunner(HuggingFaceRunner(model), decoder_of(model))
        check_runner(runner)
        weight = model.get_submodule(part).weight
        own = weight.detach().clone()
        forward = runner.modules.forward

        def changed(
            *arguments: Any, weight: Any = weight, own: Any = own, forward: Any = forward
        ) -> Any:
            with torch.no_grad():
                weight.mul_(1.01)
                found = forward(*arguments)
                weight.copy_(own)
            return found

        runner.modules.forward = changed  # type: ignore[method-assign]
        with pytest.raises(Differs, match=f"the {layer} differ"):
            check_runner(runner)


@pytest.mark.skipif(
    not can_pack(small().to(torch.bfloat16)), reason="this CPU has no bfloat16 kernels"
)
def test_only_models_that_run_by_their_modules_are_packed() -> None:
    model = small().to(torch.bfloat16)  # its rows of 16 numbers are half a vector
    runner_for(model, "auto", pack=True)
    assert not any(type(m) is nn.Linear for m in model.modules())
    wide = build("llama", torch.bfloat16)
    runner_for(wide, "modules", pack=True)
    assert not any(type(m) is nn.Linear for m in wide.modules())


PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("fused_runner_tests", sys.argv[1])
tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
tests.check_this_processor(*sys.argv[2:])
"""


def check_this_processor(kind: str, *names: str) -> None:
    """The sweep over models and types, for a process that is told of another processor."""
    assert kind in layers_kernel.processor()
    with torch.inference_mode():
        for name in names:
            a_row_is_the_same_bits(name, 2)
    for name in names:
        with pytest.MonkeyPatch.context() as patch:
            test_trees_by_compiled_layers_are_plain_transformers(name, patch)
    test_bfloat16_is_rounded_where_the_modules_round(names[0])
    test_many_rows_of_bfloat16_are_as_near_to_the_truth_as_few(109)


@pytest.mark.parametrize(
    ("processor", "kind"),
    [("haswell", "AVX2"), ("x86-64", "vectors of 4"), ("skylake-avx512", "AVX-512")],
)
@pytest.mark.slow
def test_other_processors_compute_the_same(processor: str, kind: str) -> None:
    skip_unless_runs(processor)
    names = ("qwen 3, which normalises heads", "a vocabulary that fills no vector")
    passes_on(processor, PROGRAM, __file__, kind, *names)


def test_without_a_compiler_modules_run_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_kernel, "kernel", lambda: None)
    runner = runner_for(small(), "auto")
    assert isinstance(runner, HuggingFaceRunner)
    assert runner.reason == "there is no C++ compiler; install g++ or clang++, or name one by CXX"
    with pytest.raises(UnsupportedModel, match=r"install g\+\+ or clang"):
        runner_for(small(), "fused")


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("TTC_CACHE", str(tmp_path))
    library.cache_clear()
    try:
        runner = runner_for(small(), "auto")
    finally:
        library.cache_clear()
    assert isinstance(runner, HuggingFaceRunner)
    assert "cannot compile cpu_layers.cpp" in runner.reason
