"""Long texts of branches' own: time and memory of the engine, `generate` and vLLM.

Branches of one prompt write a fixed number of tokens each, with a limit that is higher, as nobody
knows lengths before. Each way runs in a process of its own, in turn. A row is written as soon as it
is measured, so that the command can be stopped; when it is given again at the same commit, it
measures what is missing.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from experiments.lab.bench.options import RESULTS, Model, Peer
from experiments.lab.bench.search import NO_PEER, PEER, Figures, measured
from experiments.lab.records import save
from experiments.runs.provenance import commit, provenance
from ttc.engine import Engine
from ttc.errors import InvalidInput, TTCError
from ttc.model.loading.load import load
from ttc.model.loading.model_files import local_path
from ttc.sampling import Sampling
from ttc.step import Step

CASES = ("16x4096", "64x1024")
"""Branches, and the tokens that each writes."""
PROMPT_TOKENS = 64
WAYS = ("engine", "generate")
GENERATE_S = 60.0
"""`generate` takes many times as long as the others, and is stopped after so many seconds."""


def sizes(case: str) -> tuple[int, int]:
    """Branches and tokens of a case. Raises InvalidInput."""
    parts = case.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise InvalidInput(f"the case {case!r} is no number of branches x tokens, such as 16x4096")
    return int(parts[0]), int(parts[1])


def run(
    *,
    cases: Annotated[Sequence[str], "branches x tokens, with commas"] = CASES,
    ways: Annotated[Sequence[str] | None, "default: engine,generate, and vllm with --peer"] = None,
    peer: Peer = None,
    model: Model = "smollm2-135m",
    out: Path = RESULTS / "long.json",
) -> None:
    """Measure each case in each way, write the figures as they come, and print a table.

    peer: the Python of an environment with vLLM.
    """
    ways = _checked(ways, peer)
    words = " ".join(["python -m experiments.bench", *sys.argv[1:]])
    about = f"{model}, bfloat16, its real weights; sampled tokens, no end tokens"
    rows: list[Figures] = []
    if out.exists():
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    parsed = {case: sizes(case) for case in cases}
    known = {"commit": commit(), "model": model}
    failed = list[str]()
    for (case, (branches, tokens)), way in product(parsed.items(), ways):
        place = {"case": case, "way": way}
        if any((place | known).items() <= row.items() for row in rows):
            continue
        start = time.perf_counter()
        try:
            row = _measure(way, branches, tokens, peer, model)
        except RuntimeError as error:
            failed.append(str(error))
            print(error, flush=True)
            continue
        rows = [other for other in rows if not place.items() <= other.items()]
        rows.append(place | row | known | {"process_s": time.perf_counter() - start})
        print(json.dumps(rows[-1]), flush=True)
        record = provenance(words, model=about) | {"rows": rows}
        save(record, out)
    print(table({"rows": rows}))
    if failed:
        raise TTCError(f"{failed[0]}; the figures of the others are in {out}")


def _checked(ways: Sequence[str] | None, peer: str | None) -> Sequence[str]:
    """The ways that are asked for. Raises InvalidInput."""
    if ways is None:
        ways = WAYS if peer is None else (*WAYS, PEER)
    if unknown := [way for way in ways if way not in (*WAYS, PEER)]:
        raise InvalidInput(f"the way {unknown[0]!r} is none; use some of {','.join((*WAYS, PEER))}")
    if peer is None and PEER in ways:
        raise InvalidInput(NO_PEER)
    if peer is None:
        print(NO_PEER)
    return ways


def _measure(way: str, branches: int, tokens: int, peer: str | None, model_name: str) -> Figures:
    if way != PEER or peer is None:
        case = ["long-case", way, f"{branches}x{tokens}", "--model", model_name]
        return measured([sys.executable, "-m", "experiments.bench", *case], "")
    script, folder = Path(__file__).with_name("vllm_steps.py"), local_path(model_name)
    work = {"tokens": tokens // 2, "cases": [{"prompts": [_prompt()], "branches": branches}]}
    found = measured([peer, str(script), str(folder or model_name)], json.dumps(work))
    (steps,) = found["cases"]
    step_ms = (steps["first_ms"] + steps["second_ms"]) / 2  # it writes two halves
    return {"step_ms": step_ms, "peak_bytes": found["peak_bytes"]}


def run_case(
    way: Literal["engine", "generate"], case: str, /, *, model: Model = "smollm2-135m"
) -> None:
    """Measure one case in this process, and print its figures as JSON."""
    step = {"engine": _engine, "generate": _generate}[way]
    figures = step(model, *sizes(case))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(figures | {"peak_bytes": peak}))


def _prompt() -> list[int]:
    return list(range(1000, 1000 + PROMPT_TOKENS))


class EndsAt:
    """Ends branches after so many tokens, which the engine does not know before."""

    def __init__(self, tokens: int):
        self.tokens = tokens

    def losers(self, problem: Sequence[Any]) -> list[Any]:
        return [branch for branch in problem if len(branch.generated) >= self.tokens]


def _engine(model_name: str, branches: int, tokens: int) -> Figures:
    engine = Engine.from_pretrained(model_name, dtype=torch.bfloat16, gate=EndsAt(tokens))
    engine.limits.eos_ids = frozenset()
    root = engine.root(_prompt())
    warm_up = engine.fork(root, 2)
    engine.generate(warm_up, 8)  # first-use set-up is not counted
    engine.release(warm_up)
    rows = engine.fork(root, branches)
    batch = engine.running_batch()
    batch.add(rows, Step(2 * tokens), Sampling())
    tier, entries = engine.memory.device, list[int]()
    tier.peak_bytes = tier.used_bytes
    start = time.perf_counter()
    for _ in _steps(batch):
        if batch.plan is not None:
            entries.append(len(batch.plan.pieces))
    seconds = time.perf_counter() - start
    return {
        "step_ms": seconds / tokens * 1e3,
        "kv_peak_bytes": tier.peak_bytes,
        "kv_bytes": tier.used_bytes,
        "entries": max(entries),
    }


def _steps(batch: Any) -> Iterator[None]:
    while len(batch):
        batch.step()
        yield


def _generate(model_name: str, branches: int, tokens: int) -> Figures:
    model, _ = load(model_name, dtype=torch.bfloat16)
    ids = torch.tensor([_prompt()] * branches, device=model.device)
    model.generate(
        ids[:1], attention_mask=torch.ones_like(ids[:1]), max_new_tokens=2, pad_token_id=0
    )
    start = time.perf_counter()
    texts = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=tokens,
        min_new_tokens=tokens, pad_token_id=0, max_time=GENERATE_S,
    )  # fmt: skip
    written = texts.shape[1] - ids.shape[1]
    return {"step_ms": (time.perf_counter() - start) / written * 1e3, "written": written}


def table(result: dict[str, Any]) -> str:
    """Time of a token of all branches, and the most memory, in each way. `generate` may have
    written less than the others, with shorter texts and less memory then."""
    gib = 2**30
    heads = [
        "branches x tokens",
        "way",
        "written",
        "step",
        "KV at most",
        "of what is written",
        "entries",
        "peak memory",
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in result["rows"]:
        kv = row.get("kv_peak_bytes")
        cells = [
            row["case"].replace("x", " x "),
            row["way"],
            f"{row.get('written', sizes(row['case'])[1]):,}",
            f"{row['step_ms']:.1f} ms",
            "" if kv is None else f"{kv / gib:.2f} GiB",
            "" if kv is None else f"{kv / row['kv_bytes']:.2f}x",
            str(row.get("entries", "")),
            f"{row['peak_bytes'] / gib:.2f} GiB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
