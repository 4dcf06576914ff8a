"""Decoding on the device: CUDA graphs and passes ahead, on and off, and how often a token waits."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from experiments.lab.bench.gpu.machine import FAILED, MEASURED, WRONG, Machine, Row, verdict
from experiments.standins.pretended import Waits
from experiments.standins.small_models import Characters, build, tokens
from experiments.standins.taped_graphs import StandIn
from search import BeamSearch
from search.solving import solve
from ttc import Engine, Sampling
from ttc.branch import Branch
from ttc.calibration.measure_device import WIDE
from ttc.cuda.graphs import AFTER, SWITCH, Graphs
from ttc.model.runner_choice import runner_for
from ttc.model.running.runner import HuggingFaceRunner
from ttc.results import Problem
from ttc.sampling import GREEDY
from verifiers import ConfidenceVerifier

LAYERS = 8
TINY: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256,
}  # fmt: skip


def rows(machine: Machine) -> Iterator[Row]:
    """Graphs on and off, the share of passes that are replays, waits per token, and passes ahead on
    and off."""
    for case, run in (
        ("CUDA graphs, on and off", graphs),
        ("replays of a beam search", replays),
        ("waits for the device per token", waits),
        ("passes launched ahead, on and off", passes_ahead),
    ):
        try:
            yield {"case": case} | run(machine)
        except Exception as error:
            yield {"case": case, "verdict": FAILED, "error": f"{type(error).__name__}: {error}"}


def engine_of(machine: Machine) -> Engine:
    """A random model on the device; in a rehearsal a tiny one over a stand-in for graphs, as Triton's
    interpreter takes a second for a hundred programs."""
    shape = TINY if machine.rehearsed else WIDE | {"num_hidden_layers": LAYERS}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**shape)).eval().requires_grad_(False)
    runner = runner_for(model.to(machine.kernels), "modules")
    engine = Engine(model, Characters(), runner=runner)
    engine.limits.eos_ids = frozenset()
    if machine.rehearsed and isinstance(engine.runner, HuggingFaceRunner):
        engine.runner.graphs = Graphs(engine.runner.watch, torch.device(machine.kernels), StandIn())
    return engine


def graphs_of(engine: Engine) -> Graphs:
    """Raises RuntimeError where the engine has none."""
    runner = engine.runner
    if not isinstance(runner, HuggingFaceRunner) or not isinstance(runner.graphs, Graphs):
        raise RuntimeError("the engine has no CUDA graphs")
    return runner.graphs


def graphs(machine: Machine) -> Row:
    """Branches that end at different tokens, by graphs and by the modules."""
    count, length, prompt = (2, AFTER + 3, 5) if machine.rehearsed else (16, 64, 512)
    found: dict[str, tuple[list[Branch], float]] = {}
    replayed, reason = 0, ""
    engines = {way: engine_of(machine) for way in ("graphs", "modules")}
    with machine.gpu_kernels() as recorder:
        for way, engine in engines.items():
            with patch.dict(os.environ, {SWITCH: "1" if way == "graphs" else "0"}):
                if recorder is not None:
                    graphs_of(engine).recorder = recorder
                branches = engine.fork(engine.root(tokens(1, prompt)), count)
                start = time.perf_counter()
                engine.generate(branches, length, sampling=GREEDY)
                machine.synchronize()
                found[way] = branches, (time.perf_counter() - start) / length * 1e3
                if way == "graphs":
                    replayed, reason = graphs_of(engine).replayed, graphs_of(engine).reason
    alike = [b.tokens for b in found["graphs"][0]] == [b.tokens for b in found["modules"][0]]
    row: Row = {"verdict": verdict(alike), "replayed": replayed, "passes": length}
    row |= {f"{way}_ms": milliseconds for way, (_, milliseconds) in found.items()}
    if reason or not replayed:
        return row | {"verdict": WRONG, "error": reason or "no pass was replayed"}
    return row


def replays(machine: Machine) -> Row:
    """Of the passes of a beam search 4 x 4 over 16 problems, those that were replays."""
    few = machine.rehearsed
    size, steps, problems = (1, 1, 1) if few else (4, 4, 16)
    search = BeamSearch(
        beam_size=size, beam_width=size, step_tokens=AFTER + 3 if few else 32, max_steps=steps
    )
    engine, passes = engine_of(machine), 0
    with machine.gpu_kernels() as recorder:
        if recorder is not None:
            graphs_of(engine).recorder = recorder
        forward = engine.runner.forward

        def counted(*arguments: Any) -> Any:
            nonlocal passes
            passes += 1
            return forward(*arguments)

        engine.runner.forward = counted  # type: ignore[method-assign, assignment]
        asked = [
            Problem(str(n), "".join(map(chr, tokens(n, 5 if few else 200 + n))))
            for n in range(problems)
        ]
        solve(search, problem=asked, engine=engine, verifier=ConfidenceVerifier())
        found = graphs_of(engine)
    row: Row = {"verdict": MEASURED, "passes": passes, "replayed": found.replayed}
    row["share"] = found.replayed / passes
    return row | ({"verdict": WRONG, "error": found.reason} if found.reason else {})


def passes_ahead(machine: Machine) -> Row:
    """Branches whose next pass is launched before the last token is read, and after it."""
    count, length, prompt = (2, AFTER + 3, 5) if machine.rehearsed else (16, 64, 512)
    texts, milliseconds = {}, {}
    with machine.gpu_kernels() as recorder:
        for way in ("ahead", "after"):
            engine = engine_of(machine)
            engine.runtime.run_ahead = way == "ahead"
            if recorder is not None:
                graphs_of(engine).recorder = recorder
            root = engine.root(tokens(1, prompt))
            for _ in range(1 if machine.rehearsed else 2):  # once more when all is recorded
                branches = engine.fork(root, count)
                start = time.perf_counter()
                engine.generate(branches, length, sampling=Sampling(0.8))
                machine.synchronize()
                milliseconds[f"{way}_ms"] = (time.perf_counter() - start) / length * 1e3
                texts[way] = [branch.tokens for branch in branches]
                engine.release(branches)
    return {"verdict": verdict(texts["ahead"] == texts["after"])} | milliseconds


def waits(machine: Machine) -> Row:
    """How often the processor waits for the device at each further token. One wait is right: that
    for the tokens."""
    engine = Engine(build("llama").to(machine.memory), Characters())
    engine.limits.eos_ids = frozenset()
    _waits(machine, engine, 8)  # kernels are compiled
    few, many = _waits(machine, engine, 8), _waits(machine, engine, 16)
    each = (many - few) / 8
    return {"verdict": verdict(each == 1), "waits": each}


def _waits(machine: Machine, engine: Engine, length: int) -> int:
    branches = engine.fork(engine.root(tokens(1, 12)), 4)
    sampling = Sampling(0.8, top_p=0.95)
    if machine.rehearsed:
        with Waits() as counted:
            engine.generate(branches, length, sampling=sampling)
        return counted.total
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            engine.generate(branches, length, sampling=sampling)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in found)
