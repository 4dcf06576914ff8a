"""A model that is larger than the device: split over host and device, or streamed by the engine or
by Accelerate.

Host, device and link have the proportions of HELM's smallest machine (RTX 4060, Qwen3-8B), and
every arm has the same room for weights on the device. The device is this CPU. A layer takes as much
longer on the host as the paper's bandwidths say. What any arm copies to the device goes through the same `Link`: a copy is over when its bytes would have crossed a link of
the paper's proportion, real copying included.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import infer_auto_device_map
from accelerate.hooks import attach_align_device_hook_on_blocks
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen3Config

from experiments.lab.bench.options import RESULTS
from experiments.lab.paper.helm import CHAT, CPU, LINK, MACHINES, qwen3
from experiments.lab.records import save
from experiments.runs.provenance import machine, provenance
from ttc import Engine, Split, Streamed
from ttc.attention.plan import Plan
from ttc.cost_model.split_search import strategy_selector
from ttc.decoder_layers import decoder_layers
from ttc.memory.link import Link
from ttc.placement.split import SplitRunner

GPU = MACHINES["RTX 4060"].gpu
SHAPE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 36,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": 18992,
    "tie_word_embeddings": False,
}
"""Qwen3-8B's layers, with an eighth of its widths and of its vocabulary."""
VRAM_BYTES = 7 * 2**30
"""What HELM's machine has for the weights of Qwen3-8B."""
HOST_GBPS, LINK_GBPS, DEVICE_GBPS = (
    rate / 1e9 for rate in (CPU.bandwidth, LINK.to_device_bandwidth, GPU.bandwidth)
)
"""The paper's bandwidths."""
PREFIX, PASSES, BRANCHES = 128, 5, (1, 16)
SIMULATED = "the link, and how slow the host is"
ARMS = {
    "resident": "all on the device (for comparison: it does not fit)",
    "split": "`placement=split`",
    "streamed": "`placement=streamed`",
    "accelerate": "Accelerate's `device_map='auto'`",
}


def helm_split() -> Split:
    """The split that Algorithm 1 has for HELM's machine and model."""
    plan = strategy_selector(qwen3("Qwen3-8B"), CPU, GPU, LINK, VRAM_BYTES, CHAT)
    return Split(k=plan.k)


def budget_bytes(model: nn.Module) -> int:
    """What a model's weights may take on the device: the part of them that HELM's machine has room
    for."""
    whole = sum(unit.param_bytes for unit in qwen3("Qwen3-8B"))
    return VRAM_BYTES * sum(weight.nbytes for weight in model.parameters()) // whole


def run(*, out: Path = RESULTS / "placement.json") -> None:
    """Time the decoding passes of each arm, print the table, and write the figures. A record that
    broke off goes on."""
    settings = {
        "shape": SHAPE,
        "host": HOST_GBPS,
        "link": LINK_GBPS,
        "device": DEVICE_GBPS,
        "prefix": PREFIX,
    }
    settings |= {"vram_bytes": VRAM_BYTES}
    rows: list[dict[str, Any]] = []
    if out.exists():
        before = json.loads(out.read_text(encoding="utf-8"))
        whole = len(before["rows"]) == len(ARMS) * len(BRANCHES)
        if not whole and (before["settings"], before["machine"]) == (settings, machine()):
            rows = before["rows"]
    for branches in BRANCHES:
        for arm in ARMS:
            if any((row["arm"], row["branches"]) == (arm, branches) for row in rows):
                continue
            layer_s = [
                row["layer_s"]
                for row in rows
                if (row["arm"], row["branches"]) == ("resident", branches)
            ]
            rows.append(measured(arm, branches, *layer_s))
            print(rows[-1], file=sys.stderr, flush=True)
            record = provenance(
                f"python -m experiments.bench {' '.join(sys.argv[1:])}",
                model="random weights of Qwen 3's kind, float32",
                simulated=SIMULATED,
            )
            save(record | {"settings": settings, "rows": rows}, out)
    print(table({"rows": rows}))


def measured(arm: str, branches: int, layer_s: float = 0.0) -> dict[str, Any]:
    """The median pass of an arm in seconds, a layer's part of it, and the bytes that cross the link
    in it.

    layer_s: what a layer takes on the device with so many branches.
    """
    model = random_model()
    layers = decoder_layers(model)
    layer_bytes = sum(weight.numel() * weight.element_size() for weight in layers[0].parameters())
    link_gbps = layer_bytes / 1e9 / (layer_s * DEVICE_GBPS / LINK_GBPS) if layer_s else None
    engine = _engine(arm, model, link_gbps)
    if isinstance(engine.runner, SplitRunner):
        on_host, host_layer_s = layers[: engine.runner.k - 1], layer_s * DEVICE_GBPS / HOST_GBPS
        if engine.runner.host is not None:
            compiled = engine.runner.host.compiled
            slow = _slow(compiled.states, len(on_host) * host_layer_s)
            compiled.states = slow  # type: ignore[method-assign]
        for layer in on_host if engine.runner.host is None else ():
            layer.forward = _slow(layer.forward, host_layer_s)
    link = engine.memory.link if arm != "accelerate" else model.ttc_link
    link.gbps = None
    branch = engine.root([7 * (n + 1) % SHAPE["vocab_size"] for n in range(PREFIX + 1)])
    rows = engine.fork(branch, branches)
    link.gbps = link_gbps
    seconds, moved = _timed(engine, link)
    layer_seconds = _timed_layers(layers) if arm == "resident" else []
    engine.generate(rows, 1 + PASSES)
    return {
        "arm": arm,
        "branches": branches,
        "pass_s": median(seconds[1:]),
        "layer_s": median(layer_seconds[len(layers) :]) if layer_seconds else layer_s,
        "moved_bytes": int(median(moved[1:])),
        "device_bytes": getattr(
            engine.runner, "device_bytes", sum(w.nbytes for w in _on_device(model))
        ),
        "link_gbps": link_gbps,
    }


def random_model() -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE), dtype=torch.float32)
    return model.eval().requires_grad_(False)


def _engine(arm: str, model: Any, link_gbps: float | None) -> Engine:
    if arm == "split":
        placement = replace(helm_split(), link_gbps=link_gbps)
        engine = Engine(model, None, runner=placement.place(model, "cpu"))
    elif arm == "streamed":
        streamed = Streamed(budget_gib=budget_bytes(model) / 2**30, link_gbps=link_gbps)
        engine = Engine(model, None, runner=streamed.place(model, "cpu"))
    else:
        engine = Engine(model, None)
    if arm == "accelerate":
        _dispatch(model)
    engine.limits.eos_ids = frozenset()
    return engine


def _dispatch(model: Any) -> None:
    """What `device_map="auto"` does with a device that has the budget: the device is filled first,
    in order, and the other weights come to it whenever they are needed
    (`accelerate.dispatch_model`, whose device is this CPU here)."""
    places = infer_auto_device_map(
        model,
        {0: budget_bytes(model), "cpu": sys.maxsize},
        no_split_module_classes=model._no_split_modules,
    )
    model.ttc_link, cpu = Link(torch.device("cpu")), torch.device("cpu")
    attach_align_device_hook_on_blocks(
        model,
        execution_device=dict.fromkeys(["", *places], cpu),
        offload={name: place == "cpu" for name, place in places.items()},
        weights_map=_OverLink(model.state_dict(), model.ttc_link),
    )


def _on_device(model: nn.Module) -> list[Tensor]:
    """The weights that Accelerate has not taken away."""
    return [weight for weight in model.parameters() if weight.device.type != "meta"]


class _OverLink(Mapping[str, Tensor]):
    """Weights on the host, each of which crosses a link when Accelerate asks for it."""

    def __init__(self, weights: Mapping[str, Tensor], link: Link):
        self.weights, self.link = dict(weights), link

    def __getitem__(self, name: str) -> Tensor:
        copy = torch.empty_like(self.weights[name])
        self.link.wait(self.link.fetch([(copy, self.weights[name])], "weights"))
        return copy

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def _slow(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """A call that takes so long at least."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        output = call(*args, **kwargs)
        time.sleep(max(0.0, start + seconds - time.perf_counter()))
        return output

    return slow


def _timed_layers(layers: Sequence[nn.Module]) -> list[float]:
    """Seconds of each call of a layer from now on."""
    seconds: list[float] = []

    def watch(layer: nn.Module) -> None:
        forward: Callable[..., Any] = layer.forward

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = forward(*args, **kwargs)
            seconds.append(time.perf_counter() - start)
            return output

        layer.forward = timed

    for layer in layers:
        watch(layer)
    return seconds


def _timed(engine: Engine, link: Link) -> tuple[list[float], list[int]]:
    """Seconds of each decoding pass from now on, and the bytes to the device."""
    forward, seconds, moved = engine.runner.forward, list[float](), list[int]()

    def timed(
        tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        start, before = time.perf_counter(), link.to_device_bytes.total()
        logits = forward(tokens, plan, keep)
        if plan.in_storages:
            seconds.append(time.perf_counter() - start)
            moved.append(link.to_device_bytes.total() - before)
        return logits

    engine.runner.forward = timed  # type: ignore[method-assign]
    return seconds, moved


def table(record: dict[str, Any]) -> str:
    """Markdown: what a pass takes and moves, and how much faster the split is."""
    lines = [
        "| branches | where layers run | weights on the device, MB | a pass, ms | MB to the device "
        "| HELM's split is faster by |",
        "|---|---|---|---|---|---|",
    ]
    times = {(row["arm"], row["branches"]): row["pass_s"] for row in record["rows"]}
    for row in record["rows"]:
        faster, split = "-", times.get(("split", row["branches"]))
        if row["arm"] in ("streamed", "accelerate") and split:
            faster = f"{row['pass_s'] / split:.1f}"
        lines.append(
            f"| {row['branches']} | {ARMS[row['arm']]} | {row['device_bytes'] / 1e6:.0f} | "
            f"{row['pass_s'] * 1e3:.0f} | {row['moved_bytes'] / 1e6:.2f} | {faster} |"
        )
    return "\n".join(lines)
