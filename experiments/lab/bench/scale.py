"""The driver and the remote batch at scale, without a model: servers that answer after a drawn time.

Requests are those of `RemoteBatch`; the clock is virtual and moves to the next answer whenever the
batch waits. So what is measured in seconds of this processor is the client's own work, and what is
measured in virtual seconds is how it schedules.
"""

from __future__ import annotations

import heapq
import json
import multiprocessing
import resource
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles
from threading import RLock
from typing import Annotated, Any
from weakref import WeakSet

from experiments.cli.output import say, show
from experiments.cli.tables import Table
from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import machine, provenance
from search import BeamSearch, BestOfN, Search
from search.solving import solve_each
from ttc.model.generation_settings import GenerationSettings
from ttc.model.limits import ModelLimits
from ttc.remote.backend import RemoteBackend
from ttc.remote.batch import RemoteBatch
from ttc.remote.capabilities import Capabilities
from ttc.remote.client import Client
from ttc.remote.endpoint import Endpoint
from ttc.remote.replies import Expected, Reply
from ttc.remote.server import Server
from ttc.results import Problem
from ttc.sampling import Sampling
from ttc.tree.branch import MOST_ROWS

COMMAND = "python -m experiments.bench scale"
SIMULATED = "servers that answer after a drawn time"

SLOTS = 64
"""Requests that one server answers at a time."""
TOKEN_S = 0.02
"""Of one branch on a server, on average."""
SLOW, SLOW_TIMES = 0.01, 10
"""This share of requests takes so many times as long."""
FAILED = 0.01
"""This share of requests fails, after the time that its answer would have taken, and is repeated."""
VOCABULARY = 1000


@dataclass
class Servers:
    """Many servers behind one address that sends each request to the one with the fewest.

    now: the virtual time in seconds. busy_s: time that their slots have worked. coming: what will
    happen, the earliest first. most: the most requests that were under way at once.
    """

    count: int
    seed: int = 0
    now: float = 0.0
    busy_s: float = 0.0
    requests: int = 0
    repeated: int = 0
    most: int = 0
    coming: list[tuple[float, int, Future[Reply], Reply]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.free = [(0.0, slot) for slot in range(self.count * SLOTS)]
        self.ids = self.random.choices(range(1, VOCABULARY), k=20_000)  # what answers are cut from

    def complete(self, tokens: int) -> Future[Reply]:
        """A request for at most so many tokens. Its answer comes once a slot was free and has
        written them."""
        future: Future[Reply] = Future()
        start, slot = heapq.heappop(self.free)
        start = max(start, self.now)
        written = self.random.randint(max(1, tokens // 4), tokens)
        took = self._took(written)
        while self.random.random() < FAILED:
            self.repeated += 1
            took += self._took(written)
        self.busy_s += took
        self.requests += 1
        heapq.heappush(self.free, (start + took, slot))
        finish = "length" if written == tokens else "stop"
        begin = self.random.randrange(len(self.ids) - written)
        ids = self.ids[begin : begin + written]
        reply = Reply("", ids, finish, None, [], 10, 0, written)
        heapq.heappush(self.coming, (start + took, self.requests, future, reply))
        self.most = max(self.most, len(self.coming))
        return future

    def _took(self, tokens: int) -> float:
        slow = SLOW_TIMES if self.random.random() < SLOW else 1
        return slow * tokens * TOKEN_S * self.random.lognormvariate(0, 0.3)

    def next(self) -> None:
        """Let the earliest answer arrive."""
        while self.coming:
            self.now, _, future, reply = heapq.heappop(self.coming)
            if future.set_running_or_notify_cancel():
                future.set_result(reply)
                return


class Words:
    """A tokenizer of numbers: no text is measured here."""

    chat_template = None
    bos_token_id = None
    eos_token_id = 0
    all_special_ids = (0,)

    def __len__(self) -> int:
        return VOCABULARY

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1 + ord(c) % (VOCABULARY - 1) for c in text]

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def decode(self, tokens: list[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


class DrawnServer(Server):
    """A `Server` whose completions are drawn."""

    def complete(
        self, tokens: Any, max_tokens: int, seed: int, sampling: Sampling, **_: Any
    ) -> Future[Reply]:
        return self.client.complete(max_tokens)  # type: ignore[attr-defined]


class DrawnBatch(RemoteBatch):
    """A `RemoteBatch` for which waiting moves the virtual clock."""

    def answers(self) -> list[Future[Reply]]:
        self.server.client.next()  # type: ignore[attr-defined]
        return super().answers()


class DrawnBackend(RemoteBackend):
    """The remote backend over drawn servers."""

    def __init__(self, servers: Servers):
        tokenizer = Words()
        can = Capabilities("drawn", None, True, True, True, seeds=True, varied=True, stops=True)
        limits = ModelLimits(VOCABULARY, None, frozenset())
        settings = GenerationSettings()
        self.server = DrawnServer(servers, can, tokenizer, limits, settings)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.capabilities = can
        self.limits = limits
        self.live = WeakSet()
        self.batches = WeakSet()
        self.lock = RLock()

    @property
    def most_rows(self) -> int:
        servers: Servers = self.server.client  # type: ignore[assignment]
        return max(MOST_ROWS, servers.count * SLOTS)

    def running_batch(self, max_rows: int | None = None) -> RemoteBatch:
        batch = DrawnBatch(self.server, max_rows)
        self.batches.add(batch)
        return batch


class Length:
    """Rates a branch by its length: a verifier that costs nothing."""

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[len(branch.tokens) % 97 / 97] for branch in branches]


def searches(branches: int, tokens: int) -> dict[str, Search]:
    """Samples that are made once, and beams in four steps."""
    kept = max(1, branches // 4)
    return {
        f"best of {branches}": BestOfN(n=branches, max_tokens=tokens),
        f"beam search, {kept} x 4": BeamSearch(
            beam_size=kept, beam_width=4, step_tokens=max(1, tokens // 4), max_steps=4
        ),
    }


def measure(search: Search, problems: int, servers: int) -> dict[str, Any]:
    """Solve so many problems on so many servers."""
    drawn = Servers(servers)
    backend = DrawnBackend(drawn)
    asked = [Problem(f"problem {i}", f"p{i}") for i in range(problems)]
    ended, tokens, failed = [], 0, 0
    at_first = peak_mib()
    wall, cpu = time.perf_counter(), time.process_time()
    for result in solve_each(search, problems=asked, engine=backend, verifier=Length()):
        ended.append((drawn.now, int(result.problem.id[1:])))
        tokens += result.usage.generated_tokens
        failed += result.error is not None
    cpu = time.process_time() - cpu
    return {
        "problems": problems,
        "failed": failed,
        "requests": drawn.requests,
        "repeated": drawn.repeated,
        "most_requests_at_once": drawn.most,
        "tokens": tokens,
        "cpu_s": cpu,
        "wall_s": time.perf_counter() - wall,
        "us_per_token": 1e6 * cpu / tokens,
        "us_per_request": 1e6 * cpu / drawn.requests,
        "memory_mib": peak_mib() - at_first,
        "virtual_s": drawn.now,
        "slots_busy": drawn.busy_s / (drawn.now * servers * SLOTS),
        **_order(ended, drawn.now),
    }


def in_a_process_of_its_own(search: Search, problems: int, servers: int) -> dict[str, Any]:
    """`measure`, so that its memory is its own."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as pool:
        return pool.submit(measure, search, problems, servers).result()


def peak_mib() -> float:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_http(requests: int, tokens: int) -> dict[str, Any]:
    """Send so many requests of 500 tokens to a server of this machine that answers at once, as
    many at a time as one server takes. CPU time is this process's alone."""
    command = [sys.executable, "-m", "experiments.lab.bench.answering", str(tokens)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        client = Client(Endpoint(address, concurrency=SLOTS))
        body = Capabilities("drawn", extras=True).request(
            list(range(500)), tokens, 0, Sampling(), ["\n\n"], 1
        )
        try:
            read = Expected(VOCABULARY, 500, tokens).read
            client.post("completions", body, read).result()
            wall, cpu = time.perf_counter(), time.process_time()
            for future in [client.post("completions", body, read) for _ in range(requests)]:
                future.result()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        finally:
            client.close()
            server.terminate()
    return {"requests": requests, "tokens": tokens, "cpu_s": cpu, "wall_s": wall}


def _order(ended: list[tuple[float, int]], end: float) -> dict[str, float]:
    """How far problems ended from the order in which they were given: of each, how many were
    overtaken by it or overtook it, in places."""
    moved = sorted(abs(place - number) for place, (_, number) in enumerate(ended))
    return {
        "moved_median": float(median(moved)),
        "moved_p99": quantiles(moved, n=100)[98] if len(moved) > 1 else 0.0,
        "moved_most": float(moved[-1]),
    }


def run(
    *,
    problems: int = 10_000,
    branches: Annotated[int, "of a problem"] = 64,
    servers: Annotated[int, "of 64 requests at a time each"] = 100,
    tokens: Annotated[int, "the most of a branch"] = 32,
    out: Path = RESULTS / "scale.json",
) -> None:
    """Measure samples and beams at a tenth of the problems and at all of them, and what a request
    costs over HTTP. What `out` has of the same sizes is not measured again."""
    about = {"branches": branches, "servers": servers, "tokens": tokens, "slots": SLOTS}
    record = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    if record.get("about") != about or record.get("machine") != machine():
        http = measure_http(min(2000, problems), tokens)
        record = {"machine": machine(), "about": about, "http": http, "rows": []}
    done = {(row["search"], row["problems"]) for row in record["rows"]}
    samples, beams = searches(branches, tokens).items()
    few = max(1, problems // 10)
    counts = dict.fromkeys((few, problems))
    sizes = [(search, count) for search in (samples, beams) for count in counts]
    for (name, search), count in sizes:
        if (name, count) in done:
            continue
        say(f"{name}, {count} problems")
        row = {"search": name, **in_a_process_of_its_own(search, count, servers)}
        record["rows"].append(row)
        head = provenance(COMMAND, model="none", simulated=SIMULATED)
        save(record | head, out)
    show(table(record))


def table(record: dict[str, Any]) -> str:
    """A line for each search and number of problems, as Markdown."""
    rows = sorted(record["rows"], key=lambda row: (row["search"], row["problems"]))
    columns = (
        "search",
        "problems",
        "requests",
        "repeated",
        "CPU per token",
        "CPU per request",
        "memory",
        "servers busy",
        "places moved: median, 99%",
    )
    lines = [
        [
            row["search"],
            f"{row['problems']:,}",
            f"{row['requests']:,}",
            f"{row['repeated']:,}",
            f"{row['us_per_token']:.1f} us",
            f"{row['us_per_request']:.0f} us",
            f"{row['memory_mib']:,.0f} MiB",
            f"{row['slots_busy']:.0%}",
            f"{row['moved_median']:.0f}, {row['moved_p99']:.0f}",
        ]
        for row in rows
    ]
    http = record["http"]
    note = (
        f"Over HTTP, which is left out above, a request of 500 tokens and its answer of "
        f"{http['tokens']} cost the client another {1e6 * http['cpu_s'] / http['requests']:,.0f} us "
        "of CPU time."
    )
    return Table("", columns, lines, [note]).markdown()
