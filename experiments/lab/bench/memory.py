"""A step-wise beam search whose KV does not fit: bytes moved, and time, of each residency
policy."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, OPTConfig

from experiments.lab.bench.options import RESULTS
from experiments.lab.bench.prefix import prompt
from experiments.lab.records import changed_modules, save
from experiments.runs.provenance import machine, provenance
from ttc import BeamGroups, Engine, Headwise, Layerwise, Paged, Resident, Sampling
from ttc.branch import Branch
from ttc.cost_model.dims import KVShape
from ttc.cost_model.transfer import Workload, beam_scheduling_bytes, token_by_token_bytes
from ttc.errors import InvalidInput, OutOfMemory
from ttc.model.loading.load import load
from ttc.model.packed_linear import pack_linears
from ttc.residency.base import Residency
from ttc.trace import Trace

BUDGET_SHARE = 7 / 64
"""Of the KV of all beams at full length, what the device holds: LBS's 7 GiB of 64."""

LINK_GBPS = 15.75
"""LBS's link is PCIe Gen4 with eight lanes: at most so many 1e9 bytes a second."""

LINK_TO_COMPUTE = (64 * 2**30 / (LINK_GBPS * 1e9)) / ((13.4e9 + 64 * 2**30) / 1008e9)
"""Moving the KV of all beams takes about 54 times as long as a step with all of it resident: LBS's
64 GiB over its link, against reading them and the weights of OPT-6.7B at an RTX 4090's 1,008
GB/s."""

ARMS: dict[str, Callable[..., Residency]] = {
    "layerwise": lambda **o: Layerwise(shared=False, block_tokens=4096, **o),
    "inter-token": lambda **o: BeamGroups(shared=False, prefetch=False, block_tokens=4096, **o),
    "inter-token + prefetch": lambda **o: BeamGroups(
        shared=False, prefetch=True, block_tokens=4096, **o
    ),
    "+ inter-beam": lambda **o: BeamGroups(prefetch=False, **o),
    "+ prefetch": lambda **o: BeamGroups(prefetch=True, **o),
    "layerwise, shared": lambda **o: Layerwise(**o),
    "paged, shared": lambda **o: Paged(**o),
    "headwise, shared": lambda **o: Headwise(**o),
    "resident": lambda **o: Resident(),
}
"""LBS's ablation (Figure 12): its baseline, then inter-token locality, then prefetching, and
inter-beam locality with it ("+ prefetch"). "+ inter-beam" is the tree's sharing without
prefetching. The others share KV as well."""

FAIR = "layerwise, shared"
"""The baseline that a tree-shaped cache deserves: layer-wise as well, but no beam moves a copy of
what it shares."""

PRIVATE = ("layerwise", "inter-token", "inter-token + prefetch")
"""Arms that move a copy of the KV for every beam: what the beams share makes no difference to their
bytes."""

BYTES = (
    ("layerwise", 32),
    ("inter-token", 32),
    ("inter-token", 64),
    ("inter-token", 128),
    ("+ inter-beam", 32),
    ("+ prefetch", 32),
    ("layerwise, shared", 32),
)
"""Arms and step lengths whose bytes are counted."""

SWEEP = ("layerwise", "layerwise, shared", "inter-token", "+ inter-beam", "+ prefetch")
"""The baseline as the paper has it and over the shared tree, then LBS's switches, whose bytes are
counted for each of `SWEEP_BEAMS` and `SWEEP_STEPS`."""

COUNTED = (
    "a random Llama of 32 layers, 1 KV head of 4, float32; bytes are counted, times say nothing"
)
SHARE = "7/64 of the KV of all beams at full length, nothing shared"
SWEEP_BEAMS = (4, 16, 32, 64)
SWEEP_STEPS = (32, 64, 128)
SWEEP_BUDGET = (
    "the larger of 7/64 of the KV of all beams and 1.25 times that of one, at full length, nothing "
    "shared"
)


@dataclass(frozen=True)
class Case:
    """LBS's workload: `beams` branches, half of which survive each step and get two children each.

    related: whether survivors are drawn from all beams, so that beams come to share long prefixes;
    else every beam goes on by itself and only the prompt is shared.
    """

    beams: int
    prompt_tokens: int
    new_tokens: int
    step_tokens: int
    related: bool = True


Place = tuple[str, Case]
"""What tells a row of a record from the others: its arm and its workload."""


class Silent:
    """A tokenizer for random models: it is never asked for text that matters."""

    eos_token_id = None

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return ""


def tiny(layers: int = 32) -> Any:
    """A random model of as many layers as OPT-6.7B and next to no arithmetic: bytes are counted,
    time is not."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=4096,
        eos_token_id=None,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


SHAPES: dict[str, Callable[..., Any]] = {
    "opt-6.7b": lambda layers, width: OPTConfig(
        vocab_size=50272,
        hidden_size=width,
        word_embed_proj_dim=width,
        ffn_dim=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        max_position_embeddings=2048,
    ),
    "llama-2-7b": lambda layers, width: LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        num_key_value_heads=width // 128,
        max_position_embeddings=4096,
    ),
}
"""LBS's models by their dimensions; what they compute takes as long whatever their weights are."""


def shaped(shape: str, layers: int = 32, width: int = 4096) -> Any:
    """A model of this shape with random weights: in float16 on a CUDA device, else in float32."""
    if shape not in SHAPES:
        raise InvalidInput(f"the shape {shape!r} is unknown; use one of {', '.join(SHAPES)}")
    cuda = torch.cuda.is_available()
    torch.manual_seed(0)
    with torch.device("cuda" if cuda else "cpu"):
        config = SHAPES[shape](layers, width)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float16 if cuda else torch.float32
        )
    return model.eval().requires_grad_(False)


def full_bytes(engine: Engine, case: Case) -> int:
    """KV of all beams at full length, nothing shared."""
    return case.beams * (case.prompt_tokens + case.new_tokens) * engine.memory.bytes_per_token


def search(engine: Engine, case: Case, tokens: list[int]) -> dict[str, float]:
    """Run the workload; returns seconds by kind (LBS Figure 11)."""
    chance = random.Random(0)
    engine.limits.eos_ids = frozenset()
    root = engine.root(tokens, seed=0)
    start = time.perf_counter()
    waited, decoding = engine.memory.link.exposed_s, 0.0
    beams = engine.fork(root, case.beams)
    engine.release([root])
    for step in range(case.new_tokens // case.step_tokens):
        if step:
            beams = _select(engine, beams, chance) if case.related else beams
        begin = time.perf_counter()
        engine.generate(beams, case.step_tokens, sampling=Sampling(temperature=1.0))
        decoding += time.perf_counter() - begin
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    total, waited = time.perf_counter() - start, engine.memory.link.exposed_s - waited
    engine.release(beams)
    return {
        "total_s": total,
        "exposed_s": waited,
        "compute_s": decoding - waited,
        "expansion_s": total - decoding,
    }


def _select(engine: Engine, beams: list[Branch], chance: random.Random) -> list[Branch]:
    kept = sorted(chance.sample(range(len(beams)), len(beams) // 2))
    children = [child for index in kept for child in engine.fork(beams[index], 2)]
    engine.release(beams)
    return children


def measure(
    model: Any,
    tokenizer: Any,
    arm: str,
    case: Case,
    link_gbps: float | None = None,
    budget: int | None = None,
) -> dict[str, Any]:
    """One arm: bytes by cause, peaks, seconds. budget: bytes of the device's KV, `BUDGET_SHARE` by
    default."""
    budget = budget_bytes(model, tokenizer, case) if budget is None else budget
    options = {} if arm == "resident" else {"budget_gib": budget / 2**30, "link_gbps": link_gbps}
    engine = Engine(model, tokenizer, memory=ARMS[arm](**options))
    tokens = [token % model.config.vocab_size for token in prompt(case.prompt_tokens)]
    memory, shape = engine.memory, engine.memory.shapes[0]
    dims = KVShape(len(memory.shapes), shape.kv_heads, shape.key_dim, memory.dtype.itemsize)
    load = Workload(case.beams, case.prompt_tokens, case.new_tokens, case.step_tokens, budget)
    # before the run, as it refuses a budget below two layers
    layerwise = token_by_token_bytes(dims, load, reserved_layers=2) if arm == "layerwise" else 0
    seconds = search(engine, case, tokens)
    row: dict[str, Any] = {
        "arm": arm,
        **vars(case),
        **seconds,
        "to_device_bytes": dict(memory.link.to_device_bytes),
        "to_host_bytes": dict(memory.link.to_host_bytes),
        "device_peak_bytes": memory.device.peak_bytes,
        "budget_bytes": memory.device.budget_bytes,
        "baseline_bytes": token_by_token_bytes(dims, load),
    }
    if arm == "layerwise":
        row["model_bytes"] = layerwise
    elif arm in PRIVATE:
        row["model_bytes"] = beam_scheduling_bytes(dims, load, charge="offloaded")
    elif isinstance(engine.residency, BeamGroups):
        row["lower_bound_bytes"] = engine.residency.needed_bytes
    return row


def budget_bytes(model: Any, tokenizer: Any, case: Case) -> int:
    """`BUDGET_SHARE` of the KV of all beams at full length, nothing shared."""
    per_token = Engine(model, tokenizer).memory.bytes_per_token
    return int(case.beams * (case.prompt_tokens + case.new_tokens) * per_token * BUDGET_SHARE)


def run(
    part: Literal["bytes", "sweep", "time", "all", "device"] = "all",
    /,
    *,
    quick: Annotated[bool, "fewer beams and tokens"] = False,
    model: Annotated[str, "what `time` runs"] = "smollm2-135m",
    shape: Annotated[
        str, "what `device` runs, random weights: opt-6.7b or llama-2-7b"
    ] = "opt-6.7b",
    beams: Annotated[int, "of `device`"] = 16,
    step: Annotated[int, "tokens, of `device`"] = 32,
    out: Path | None = None,
    trace: Annotated[Path | None, "write a timeline of one run here (Chrome trace format)"] = None,
) -> None:
    """Measure, print tables, and write the figures after each arm, so that none is lost. What the
    record has of the same command and the same code is not measured again."""
    if part == "device":
        run_device(shape, beams, step, quick, out or RESULTS / "memory_device.json")
        return
    out = out or RESULTS / "memory.json"
    result = json.loads(out.read_text()) if out.exists() else {}
    result = {
        name: found for name, found in result.items() if isinstance(found, dict) and "rows" in found
    }
    if part in ("bytes", "all"):
        _bytes(result, quick, out)
    if part in ("sweep", "all"):
        _sweep(result, quick, out)
    if part in ("time", "all"):
        _time(result, quick, model, out, trace)


def run_device(shape: str, beams: int, step_tokens: int, quick: bool, out: Path) -> None:
    """LBS's own setting on this machine's device: 7 GiB for KV, a prompt of 128 tokens and 1,920
    new ones, random weights. Nothing is simulated. quick: narrow layers, 192 new tokens and
    `BUDGET_SHARE`, to see that it runs."""
    model = shaped(shape, width=128) if quick else shaped(shape)
    case = Case(beams, 128, 192 if quick else 1920, step_tokens)
    budget = None if quick else 7 * 2**30
    result = provenance(
        f"python -m experiments.bench memory device --shape {shape} --beams {beams} --step "
        f"{step_tokens}" + (" --quick" if quick else ""),
        model=f"{shape}'s dimensions, {model.config.num_hidden_layers} layers, {model.dtype}, "
        "random weights",
    ) | {"rows": list[dict[str, Any]]()}
    for arm in ARMS:
        try:
            result["rows"].append(measure(model, Silent(), arm, case, budget=budget))
        except (OutOfMemory, torch.OutOfMemoryError) as error:
            result["rows"].append({"arm": arm, "error": str(error)})
        print(json.dumps(result["rows"][-1]), flush=True)
        _save(result, out)
    done = [row for row in result["rows"] if "error" not in row]
    print(time_table({"time": {"rows": done}}))


def _save(result: dict[str, Any], out: Path) -> None:
    save(result, out)


def _complete(
    result: dict[str, Any],
    part: str,
    command: str,
    about: dict[str, str],
    cases: Mapping[Place, Callable[[], dict[str, Any]]],
    out: Path,
    **more: Any,
) -> dict[Place, dict[str, Any]]:
    """Measure the cases that the record's part lacks, and save each; all rows by their cases.

    about: of `provenance`. more: what else the record says.
    """
    before = result.get(part, {})
    known: dict[Place, dict[str, Any]] = {}
    if _goes_on(before, command):
        known = {_place(row): row for row in before["rows"]}
    for place, measured in cases.items():
        if place not in known:
            known[place] = measured()
            print(f"{part}: {place[0]}, {known[place]['total_s']:.0f} s", flush=True)
        rows = [known[place] for place in cases if place in known]
        result[part] = provenance(command, **about) | more | {"rows": rows}
        _save(result, out)
    return known


def _goes_on(before: dict[str, Any], command: str) -> bool:
    """Whether a record is of this command, machine and code."""
    same = before.get("command") == command and before["machine"] == machine()
    return same and not changed_modules(before)


def _place(row: dict[str, Any]) -> Place:
    return row["arm"], Case(**{field.name: row[field.name] for field in fields(Case)})


def _bytes(result: dict[str, Any], quick: bool, out: Path) -> None:
    beams, new_tokens = (16, 384) if quick else (64, 1920)
    model = tiny()
    command = "python -m experiments.bench memory bytes" + (" --quick" if quick else "")
    places = [(arm, Case(beams, 128, new_tokens, step, arm not in PRIVATE)) for arm, step in BYTES]
    cases = {place: partial(measure, model, Silent(), *place) for place in places}
    _complete(result, "bytes", command, {"model": COUNTED}, cases, out, budget=SHARE)
    print(bytes_table(result))


def _sweep(result: dict[str, Any], quick: bool, out: Path) -> None:
    model = tiny()
    command = "python -m experiments.bench memory sweep" + (" --quick" if quick else "")
    cases: dict[Place, Callable[[], dict[str, Any]]] = {}
    for beams in SWEEP_BEAMS[:2] if quick else SWEEP_BEAMS:
        for step in SWEEP_STEPS:
            case = Case(beams, 128, 2 * step if quick else 384, step)
            budget = sweep_budget(model, case)
            for arm in SWEEP:
                cases[arm, case] = partial(measure, model, Silent(), arm, case, budget=budget)
    _complete(result, "sweep", command, {"model": COUNTED}, cases, out, budget=SWEEP_BUDGET)
    print(sweep_table(result))


def sweep_budget(model: Any, case: Case) -> int:
    """`SWEEP_BUDGET` in bytes: no arm keeps all it needs, and each can run."""
    share = budget_bytes(model, Silent(), case)
    return max(share, int(1.25 * share / BUDGET_SHARE / case.beams))


def _time(
    result: dict[str, Any], quick: bool, model_name: str, out: Path, trace: Path | None
) -> None:
    model, tokenizer = load(model_name, dtype=torch.bfloat16)
    pack_linears(model)
    beams, new_tokens = (16, 96) if quick else (16, 480)
    case = Case(beams, 128, new_tokens, 32)
    command = "python -m experiments.bench memory time" + (" --quick" if quick else "")
    about = {
        "model": f"{model_name}, bfloat16, its real weights, packed; random prompt and selection"
    }
    resident = "resident", case
    cases = {resident: partial(measure, model, tokenizer, *resident)}
    if not _goes_on(result.get("time", {}), command):
        _complete(result, "time", command, about, cases, out)
    row = next(row for row in result["time"]["rows"] if _place(row) == resident)
    step_s = row["total_s"] / case.new_tokens
    gbps = full_bytes(Engine(model, tokenizer), case) / (LINK_TO_COMPUTE * step_s) / 1e9
    about["simulated"] = (
        f"the link: {gbps:.3f} GB/s, over which the KV of all beams takes {LINK_TO_COMPUTE:.0f} "
        "resident steps, as in LBS's setting (PCIe Gen4 x8, RTX 4090)"
    )
    cases = {(arm, case): partial(measure, model, tokenizer, arm, case, gbps) for arm in ARMS}
    _complete(result, "time", command, about, cases, out, budget=SHARE, link_gbps=gbps)
    print(time_table(result))
    if trace is not None:
        write_trace(model, tokenizer, Case(beams, 128, 64, 32), gbps, trace)


def write_trace(model: Any, tokenizer: Any, case: Case, gbps: float, path: Path) -> None:
    """A timeline of a short run of `beam_groups` (Chrome trace format)."""
    policy = ARMS["+ prefetch"](
        budget_gib=budget_bytes(model, tokenizer, case) / 2**30, link_gbps=gbps
    )
    engine = Engine(model, tokenizer, memory=policy)
    engine.trace = trace = Trace()
    search(engine, case, prompt(case.prompt_tokens))
    trace.write(path)


def bytes_table(result: dict[str, Any]) -> str:
    """Bytes from host to device as a Markdown table."""
    lines = [
        "| way | step | to the device | of layer-wise | of layer-wise, shared | of Eqs. 1-3 | "
        "counted / model | counted / lower bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = result["bytes"]["rows"]
    bases = {row["arm"]: sum(row["to_device_bytes"].values()) for row in rows}
    for row in rows:
        moved, base = sum(row["to_device_bytes"].values()), bases["layerwise"]
        copies = "model_bytes" in row  # of the KV for every beam, as the paper has them
        model = f"{moved / row['model_bytes']:.3f}" if copies else ""
        fair = f"{moved / bases[FAIR]:.2%}" if bases.get(FAIR) and not copies else ""
        bound = _over_bound(moved, row)
        lines.append(
            f"| {row['arm']} | {row['step_tokens']} | {moved / 2**20:,.1f} MiB | "
            f"{moved / base:.2%} | {fair} | {moved / row['baseline_bytes']:.2%} | {model} | "
            f"{bound} |"
        )
    return "\n".join(lines)


def sweep_table(result: dict[str, Any]) -> str:
    """Bytes from host to device per switch, as a Markdown table: a line for each number of beams
    and step length."""
    cases: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for row in result["sweep"]["rows"]:
        cases.setdefault((row["beams"], row["step_tokens"]), {})[row["arm"]] = row
    arms = [arm for arm in SWEEP if all(arm in rows for rows in cases.values())]
    lines = [
        f"| beams | step | {' | '.join(arms)} | inter-token: counted / model | the last two: "
        "counted / lower bound |",
        "|---|---" + "|---" * (len(arms) + 2) + "|",
    ]
    for (beams, step), rows in cases.items():
        moved = {arm: sum(rows[arm]["to_device_bytes"].values()) for arm in arms}
        shares = " | ".join(f"{moved[arm] / moved['layerwise']:.2%}" for arm in arms[1:])
        model = moved["inter-token"] / rows["inter-token"]["model_bytes"]
        bounds = ", ".join(_over_bound(moved[arm], rows[arm]) for arm in arms[-2:])
        lines.append(
            f"| {beams} | {step} | {moved['layerwise'] / 2**20:,.1f} MiB | {shares} | {model:.3f} "
            f"| {bounds} |"
        )
    return "\n".join(lines)


def _over_bound(moved: float, row: dict[str, Any]) -> str:
    return f"{moved / row['lower_bound_bytes']:.3f}" if row.get("lower_bound_bytes") else ""


def time_table(result: dict[str, Any]) -> str:
    """Seconds by kind (LBS Figures 9 and 11) as a Markdown table."""
    rows = result["time"]["rows"]
    lines = [
        "| way | total | against layer-wise | and layer-wise, shared | computing | waiting for "
        "copies | selecting | device KV |",
        "|---|---|---|---|---|---|---|---|",
    ]
    total = {row["arm"]: row["total_s"] for row in rows}

    def over(arm: str, row: dict[str, Any]) -> str:
        return f"{total[arm] / row['total_s']:.2f}x" if arm in total else ""

    for row in rows:
        lines.append(
            f"| {row['arm']} | {row['total_s']:.1f} s | {over('layerwise', row)} | "
            f"{over('layerwise, shared', row)} | {row['compute_s']:.1f} s | {row['exposed_s']:.1f} "
            f"s | {row['expansion_s']:.2f} s | {row['device_peak_bytes'] / 2**20:,.0f} MiB |"
        )
    return "\n".join(lines)
