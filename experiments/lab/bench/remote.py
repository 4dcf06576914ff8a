"""The same searches on a server and on the engine of this machine: accuracy, and tokens a
second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import psutil
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from experiments.cli.output import say
from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.build import make_template
from experiments.runs.data import load_task
from experiments.runs.provenance import provenance
from experiments.runs.schema import register
from experiments.runs.stats import accuracy, paired
from search import BeamSearch, BestOfN, Greedy, Search, solve
from ttc.engine import Engine
from ttc.remote.backend import RemoteBackend
from ttc.results import Problem
from verifiers import ArithmeticVerifier

SEARCHES: Mapping[str, Search] = {
    "greedy": Greedy(max_tokens=64),
    "best-of-8": BestOfN(n=8, max_tokens=64),
    "beam search, 4 x 4": BeamSearch(delimiter="\n", temperature=0.6),
}
DIGITS = "dataset.params={min_terms: 2, max_terms: 3, min_digits: 1, max_digits: 1}"
"""The default task with numbers of one digit."""
SEED = 0

Backends = Mapping[str, Engine | RemoteBackend]


def run(
    *,
    base_url: Annotated[str, "where the server is"] = "http://localhost:8000/v1",
    problems: Annotated[int, "sums of one-digit numbers"] = 20,
    model: Annotated[str, "which both run"] = "smollm2-135m",
    dtype: Annotated[str, "of the engine; give what the server computes in"] = "float32",
    server: Annotated[str, "what it is, in words, for the record"] = "",
    server_pid: Annotated[
        int | None, "its process on this machine, to measure the time it computes"
    ] = None,
    out: Path = RESULTS / "remote.json",
) -> None:
    """Measure one after the other, the server first, and write the record.

    server: what it is, in words. server_pid: its
    process, for the time that it and its children compute.
    """
    remote = RemoteBackend.connect(base_url, tokenizer=model)
    say(f"{base_url}: {remote.capabilities.describe()}")
    backends: Backends = {"server": remote, "engine": Engine.from_pretrained(model, dtype=dtype)}
    clocks = {"server": lambda: process_s(server_pid), "engine": time.process_time}
    rows = measured(backends, sums(problems), SEARCHES, clocks)
    made = provenance(
        f"python -m experiments.bench remote --problems {problems} --dtype {dtype}",
        model=f"{model}, {dtype} on the engine, its real weights",
    )
    made |= {"server": server, "offers": remote.capabilities.describe(), "rows": rows}
    save(made, out)
    remote.close()
    print(table(made))


def sums(problems: int) -> DictConfig:
    """The configuration of so many sums."""
    register()
    with initialize_config_module("conf", version_base="1.3"):
        return compose("config", overrides=[f"dataset.size={problems}", DIGITS])


def process_s(pid: int | None) -> float:
    """The seconds that processors have worked for a process and its children; NaN where it is not
    known."""
    if pid is None:
        return math.nan
    top = psutil.Process(pid)
    times = [process.cpu_times() for process in (top, *top.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def measured(
    backends: Backends,
    config: DictConfig,
    searches: Mapping[str, Search],
    clocks: Mapping[str, Callable[[], float]],
) -> list[dict[str, Any]]:
    """A row for each search, with the figures of each backend, and how the server's answers differ.

    clocks: the seconds that processors have worked for each backend.
    """
    task, rows = load_task(config.dataset), []
    for name, search in searches.items():
        row: dict[str, Any] = {"search": name, "problems": len(task.problems)}
        found: dict[str, tuple[list[float], list[str | None]]] = {}
        for where, backend in backends.items():
            _solved(search, backend, config, task.problems[:1])  # first-use set-up is not counted
            start, worked = time.perf_counter(), clocks[where]()
            results = _solved(search, backend, config, task.problems)
            seconds, cpu_s = time.perf_counter() - start, clocks[where]() - worked
            right = [float(task.is_correct(r.problem, r.answer)) for r in results]
            found[where] = right, [None if r.best is None else r.best.text for r in results]
            tokens = sum(r.usage.generated_tokens for r in results)
            share = accuracy(right)
            row[where] = {
                "accuracy": share.mean,
                "accuracy_95": [share.low, share.high],
                "generated_tokens": tokens,
                "seconds": seconds,
                "tokens_per_s": tokens / seconds,
                "tokens_per_cpu_s": None if math.isnan(cpu_s) else tokens / cpu_s,
                "failed": sum(r.error is not None for r in results),
            }
            say(f"{name}, {where}: {share.mean:.0%}, {tokens / seconds:.0f} tokens/s")
        there, here = found["server"], found["engine"]
        gap = paired(there[0], here[0])
        row["difference"] = {
            "mean": gap.difference.mean,
            "low": gap.difference.low,
            "high": gap.difference.high,
        }
        row["difference"] |= {
            "p": gap.p,
            "same_texts": sum(a == b for a, b in zip(there[1], here[1], strict=True)),
        }
        rows.append(row)
    return rows


def _solved(
    search: Search, backend: Engine | RemoteBackend, config: DictConfig, problems: list[Problem]
) -> list[Any]:
    verifier = ArithmeticVerifier() if search.needs_verifier else None
    return solve(
        search,
        problem=problems,
        engine=backend,
        verifier=verifier,
        seed=SEED,
        template=make_template(config),
        answer_kind=config.dataset.answer_kind,
        end=tuple(config.dataset.end),
    )


def table(result: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    heads = [
        "search",
        "on",
        "accuracy",
        "95% interval",
        "tokens per problem",
        "tokens/s",
        "tokens per CPU second",
    ]
    heads += ["server - engine", "p", "same answer texts"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in result["rows"]:
        gap, count = row["difference"], row["problems"]
        for where in ("server", "engine"):
            own = row[where]
            low, high = own["accuracy_95"]
            cells = [row["search"], where, f"{own['accuracy']:.0%}", f"{low:.0%} to {high:.0%}"]
            cells += [f"{own['generated_tokens'] / count:.0f}", f"{own['tokens_per_s']:.0f}"]
            cells.append(
                "" if own["tokens_per_cpu_s"] is None else f"{own['tokens_per_cpu_s']:.0f}"
            )
            both = [
                f"{gap['mean']:+.0%} ({gap['low']:+.0%} to {gap['high']:+.0%})",
                f"{gap['p']:.2g}",
            ]
            both.append(f"{gap['same_texts']} of {count}")
            lines.append(f"| {' | '.join(cells + (both if where == 'server' else [''] * 3))} |")
    return "\n".join(lines)
