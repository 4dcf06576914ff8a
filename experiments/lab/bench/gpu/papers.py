"""The settings of LBS, HELM and CAPTURE with real links and devices: their models by shape, with
weights that say nothing. Shorter than in the papers, so that each takes minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, OPTConfig, Qwen3Config
from transformers.initialization import no_init_weights

from experiments.lab.bench import memory, placement
from experiments.lab.bench.gpu.machine import FAILED, LEFT_OUT, MEASURED, Machine, Row
from experiments.lab.paper.capture import Decoding, Setting
from ttc import Capture, Engine, Sampling, Streamed
from ttc.attention.plan import Plan
from ttc.errors import OutOfMemory

QWEN3_8B: dict[str, Any] = placement.SHAPE | {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
}
TINY_QWEN: dict[str, Any] = placement.SHAPE | {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "vocab_size": 1024,
}
"""Small outside of its layers, so that two of them fit beside its embeddings."""
OPT_67B = Setting(hidden=4096, layers=32, branches=16, context=1024, turns=1)
TINY_OPT = Setting(
    hidden=64, layers=2, branches=2, context=32, block_tokens=8, mini_batch_tokens=32, turns=1
)
STEPS = 4


def lbs(machine: Machine) -> Iterator[Row]:
    """OPT-6.7B, 16 beams on 128 tokens that write 192 in steps of 32, and 7/64 of their KV on the
    device. The paper's length is `python -m experiments.bench memory device`."""
    if machine.rehearsed:
        model, case = memory.shaped("opt-6.7b", layers=6, width=128), memory.Case(2, 8, 8, 4)
    else:
        model, case = memory.shaped("opt-6.7b"), memory.Case(16, 128, 192, 32)
    model = model.to(machine.memory)
    budget = (
        None if not machine.rehearsed else memory.budget_bytes(model, memory.Silent(), case) * 5
    )
    for arm in memory.ARMS:
        yield _tried(
            arm,
            lambda arm=arm: memory.measure(model, memory.Silent(), arm, case, budget=budget),  # type: ignore[misc]
        )


def helm(machine: Machine) -> Iterator[Row]:
    """Qwen3-8B with 7 GiB of weights on the device, split and streamed, for 1 and 16 branches on 128 tokens."""
    config = Qwen3Config(**(TINY_QWEN if machine.rehearsed else QWEN3_8B))
    config.num_hidden_layers = layers_in_memory(config, config.num_hidden_layers)
    for arm in ("split", "streamed"):
        for branches in placement.BRANCHES:
            yield _tried(
                f"{arm}, {branches} branches",
                lambda arm=arm, n=branches: _placed(machine, config, arm, n),  # type: ignore[misc]
            )


def _placed(machine: Machine, config: Any, arm: str, branches: int) -> Row:
    model = constant(AutoModelForCausalLM, config, machine)
    if arm == "streamed":
        budget = placement.budget_bytes(model) / 2**30
        runner = Streamed(budget_gib=budget).place(model, machine.memory)
    else:
        split = placement.helm_split()
        k = max(2, split.k * config.num_hidden_layers // placement.SHAPE["num_hidden_layers"])
        runner = replace(split, k=min(k, config.num_hidden_layers)).place(model, machine.memory)
    engine = Engine(model, None, runner=runner)
    engine.limits.eos_ids = frozenset()
    seconds, moved = _watched(machine, engine)
    root = engine.root([7 * (n + 1) % 1000 for n in range(placement.PREFIX + 1)])
    engine.generate(
        engine.fork(root, branches), 1 + placement.PASSES, sampling=Sampling(temperature=0)
    )
    return {
        "layers": config.num_hidden_layers,
        "pass_ms": median(seconds[1:]) * 1e3,
        "moved_gb": median(moved[1:]) / 1e9,
    }


def _watched(machine: Machine, engine: Engine) -> tuple[list[float], list[int]]:
    """Seconds of each decoding pass from now on, and its bytes to the device."""
    forward, seconds, moved = engine.runner.forward, list[float](), list[int]()
    link = engine.memory.link

    def timed(
        tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        start, before = time.perf_counter(), link.to_device_bytes.total()
        logits = forward(tokens, plan, keep)
        machine.synchronize()
        if plan.in_storages:
            seconds.append(time.perf_counter() - start)
            moved.append(link.to_device_bytes.total() - before)
        return logits

    engine.runner.forward = timed  # type: ignore[method-assign]
    return seconds, moved


def capture(machine: Machine) -> Iterator[Row]:
    """OPT-6.7B whose weights and cache stream: KV only, ACT only, both 1:1, and both as Algorithm 1
    chooses; 16 branches of 1,024 tokens that share nothing."""
    setting = TINY_OPT if machine.rehearsed else OPT_67B
    arms: dict[str, float | None] = {"KV only": 0.0, "ACT only": 1.0, "both 1:1": 0.5}
    for arm, share in (arms | {"both, Algorithm 1": None}).items():
        yield _tried(arm, lambda share=share: _cached(machine, setting, share))  # type: ignore[misc]


def _cached(machine: Machine, setting: Setting, share: float | None) -> Row:
    config = OPTConfig(
        vocab_size=512, hidden_size=setting.hidden, ffn_dim=4 * setting.hidden, word_embed_proj_dim=setting.hidden,
        num_attention_heads=setting.hidden // 64, num_hidden_layers=setting.layers, max_position_embeddings=8192,
    )  # fmt: skip
    layers = layers_in_memory(config, setting.layers)
    config.num_hidden_layers = layers
    token_bytes = 2 * layers * setting.hidden * (4 if machine.rehearsed else 2)
    budget = setting.tokens * token_bytes / (2 if machine.rehearsed else 4) / 2**30
    policy = Capture(
        act_share=share,
        budget_gib=budget,
        block_tokens=setting.block_tokens,
        mini_batch_tokens=setting.mini_batch_tokens,
    )
    model = constant(AutoModelForCausalLM, config, machine)
    engine = Engine(
        model,
        None,
        runner=Streamed().place(model, machine.memory),
        memory=policy,
        prefill_tokens=2048,
    )
    engine.limits.eos_ids = frozenset()
    decoding, link = Decoding(engine, replace(setting, layers=layers), STEPS), engine.memory.link
    before = link.to_device_bytes.total()
    machine.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        decoding.step()
    machine.synchronize()
    step_s = (time.perf_counter() - start) / STEPS
    moved = (link.to_device_bytes.total() - before) / STEPS
    decoding.close()
    return {"layers": layers, "step_ms": step_s * 1e3, "moved_gb": moved / 1e9}


def constant(kind: Any, config: Any, machine: Machine) -> Any:
    """A model on the host whose weights are all one small number, in 16 bits on a real machine: no
    time depends on them, and random ones take a minute for 8B."""
    dtype = torch.float32 if machine.rehearsed else torch.bfloat16
    with no_init_weights():
        model = kind.from_config(config, dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.01)
    return model.eval().requires_grad_(False)


def layers_in_memory(config: Any, wanted: int) -> int:
    """As many layers as the host has memory for, twice: once as loaded and once pinned."""
    width = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or config.ffn_dim
    layer_bytes = 2 * (4 * width * width + 3 * width * inner)
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(1, min(wanted, int(free / 2.5 / layer_bytes)))


def _tried(case: str, run: Callable[[], Row]) -> Row:
    try:
        return {"case": case, "verdict": MEASURED} | run()
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        return {"case": case, "verdict": LEFT_OUT, "error": f"it does not fit: {error}"}
    except Exception as error:
        return {"case": case, "verdict": FAILED, "error": f"{type(error).__name__}: {error}"}
