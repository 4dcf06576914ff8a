"""Engines of a draw."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import transformers as hf

from experiments.lab.bench.combinations import models
from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.letters import tokenizer_of
from ttc import (
    BeamGroups,
    BlockCache,
    Capture,
    DecodeGate,
    DraftModel,
    Engine,
    Headwise,
    Layerwise,
    Paged,
    PromptLookup,
    QuantizedKV,
    Resident,
    Sharing,
    Split,
    Streamed,
)

ENDS = {"eos_token_id": [3, 22, 41, 60, 79, 98]}
GENERATION: dict[str | None, dict[str, Any]] = {
    None: {},
    "ends": ENDS,
    "ends_late": ENDS | {"min_new_tokens": 4, "exponential_decay_length_penalty": [5, 1.2]},
    "no_repeat": {"no_repeat_ngram_size": 2, "suppress_tokens": [8, 16, 24]},
    "biased": {"sequence_bias": [[[33], 4.0], [[34, 35], 6.0]], "begin_suppress_tokens": [5, 33]},
}
"""Settings of a model's generation_config."""
MEMORIES: dict[str, Any] = {
    "resident": Resident,
    "layerwise": Layerwise,
    "beam_groups": BeamGroups,
    "unshared_groups": partial(BeamGroups, shared=False),
    "paged": Paged,
    "headwise": Headwise,
    "capture": Capture,
}
"""Policies that change no result."""
APPROXIMATE_MEMORIES: dict[str, Any] = {
    "quantized": QuantizedKV,
    "streaming_heads": partial(
        Headwise,
        streaming_heads=str(Path(__file__).parent.with_name("streaming_heads.json")),
        sink_tokens=2,
        window_tokens=8,
    ),
}
"""Policies that no draw has."""
SHARINGS = {
    "exact": Sharing("exact"),
    "none": Sharing("none"),
    "similar": Sharing("similar", tau=0.5, probe_layers=1, same_numbers=False),
}
PLACEMENTS: dict[str, Any] = {
    "streamed": Streamed(),
    "split": Split(k=1),
    "split_layer": Split(k=2),
}


def memory_of(c: Combination, budget_gib: float | None, host_budget_gib: float | None) -> Any:
    sizes: dict[str, Any] = {}
    if c.memory not in ("resident", "quantized"):
        sizes = {"block_tokens": c.block_tokens, "prefetch": c.prefetch}
        sizes["host_budget_gib"] = host_budget_gib
    return (MEMORIES | APPROXIMATE_MEMORIES)[c.memory](budget_gib, **sizes)


def second_of(
    c: Combination, budget_gib: float | None = None, host_budget_gib: float | None = None
) -> Engine:
    """A model beside the first one, for whatever needs one: it drafts, rates or writes. Where it
    writes, its memory is as the first one's."""
    runner = models.runner_of("llama", c.compiled, True)
    runner.model.generation_config = generation_of(c)
    memory = memory_of(c, budget_gib, host_budget_gib) if c.writers else None
    return Engine(runner.model, tokenizer_of("llama", c), memory=memory, runner=runner)


def engine_of(
    c: Combination,
    budget_gib: float | None,
    host_budget_gib: float | None,
    second: Engine | None = None,
) -> Engine:
    options: dict[str, Any] = {}
    if c.placement is not None:
        model = copy.deepcopy(models.model_of(c.model, c.compiled))
        runner = PLACEMENTS[c.placement].place(model, "cpu")
    elif c.another == "adapter":
        runner = models.new_runner(c.model, c.compiled)
    else:
        runner = models.runner_of(c.model, c.compiled, False)
    model = runner.model
    model.generation_config = generation_of(c)
    if c.cache is not None:
        options["cache"] = BlockCache(c.capacity, block_tokens=4, order=c.cache)
    if c.speculation == "prompt_lookup":
        options["speculation"] = PromptLookup(max_rows=16)
    if c.speculation == "draft_model":
        options["speculation"] = DraftModel(model=second or second_of(c), max_rows=16)
    engine = Engine(
        model,
        tokenizer_of(c.model, c),
        memory=memory_of(c, budget_gib, host_budget_gib),
        sharing=SHARINGS[c.sharing],
        gate=DecodeGate(theta=0.1, r_gap=0.02, min_tokens=3) if c.gate else None,
        prefill_tokens=c.prefill_tokens,
        runner=runner,
        **options,
    )
    if c.context is not None:
        engine.limits.context_length = c.context + c.prompt_tokens + (30 if c.chats else 105)
    return engine


def generation_of(c: Combination) -> hf.GenerationConfig:
    return hf.GenerationConfig(**GENERATION[c.generation])
