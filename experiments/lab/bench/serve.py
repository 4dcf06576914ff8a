"""Clients of a server: the time to the first token, tokens a second and fairness, beside vLLM's
server on the same machine.

Clients are of four kinds in turn: one that chats, over and over; one with a long prompt; one that
wants several samples; one that wants a search. All but the first ask some times. While they are at
work the first kind is timed. vLLM has no searches: of its server those clients want as many
samples as the search has branches, of as many tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, quantiles
from typing import Annotated, Any, NamedTuple

import httpx2

from experiments.cli.output import say
from experiments.lab.bench.options import RESULTS, Model, Peer
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.errors import TTCError
from ttc.model.loading.model_files import local_path

ALONE_REQUESTS = 8
"""Requests of a client that chats where there is no other."""

CHAT_TOKENS, LONG_TOKENS, LONG_WORDS = 32, 16, 400
SAMPLES = 4
BEAMS, STEP_TOKENS, STEPS = 4, 8, 3
"""Beams, and how many go on from each."""

START_S, ANSWER_S = 180, 600
KINDS = ("chat", "long", "samples", "search")


def body(kind: str, number: int, model: str, searches: bool) -> dict[str, Any]:
    """A request, which no other has the prompt of. searches: whether the server has them."""
    question = f"({number}) What is {number} + {number % 7}? Explain it."
    if kind == "long":
        question += " Read this first." + "".join(f" {number + i}" for i in range(LONG_WORDS // 3))
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 1.0,
        "max_tokens": CHAT_TOKENS,
    }
    if kind == "chat":
        return asked | {"stream": True, "stream_options": {"include_usage": True}}
    if kind == "long":
        return asked | {"max_tokens": LONG_TOKENS}
    if kind == "samples":
        return asked | {"n": SAMPLES}
    if not searches:
        return asked | {"n": BEAMS * BEAMS, "max_tokens": STEP_TOKENS * STEPS}
    search = {"beam_size": BEAMS, "beam_width": BEAMS, "delimiter": None}
    search |= {"step_tokens": STEP_TOKENS, "max_steps": STEPS}
    del asked["max_tokens"]
    return asked | {"model": f"{model}+beam_search", "search": search}


# ---------------------------------------------------------------- servers


@dataclass(frozen=True)
class Server:
    """How a server is started. searches: whether it has them."""

    command: Sequence[str]
    environment: Mapping[str, str]
    searches: bool


def servers(model: str, peer: str | None) -> dict[str, Server]:
    """This project's server, and vLLM's if its Python is given."""
    folder, threads = str(local_path(model) or model), str(len(os.sched_getaffinity(0)))
    own = [sys.executable, "-m", "experiments.serve", "--model", model, "model.dtype=bfloat16"]
    found = {"ttc": Server([*own, f"serve.name={NAME}", "--port"], {}, True)}
    if peer is not None:
        command = [peer, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
        command += ["--served-model-name", NAME, "--dtype", "bfloat16", "--max-num-seqs", "256"]
        command += ["--max-model-len", "2048", "--block-size", "32", "--port"]
        environment = {
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        }
        found["vllm"] = Server(command, environment, False)
    return found


NAME = "model"
"""What clients call the model."""


class Running(NamedTuple):
    """A server that has started: its address, and its process."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def started(server: Server) -> Iterator[Running]:
    """A server that runs meanwhile. Raises TTCError with its last words for one that did not
    start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*server.command, port],
            env=os.environ | server.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + START_S
            while not _healthy(url):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    last = log.read().decode(errors="replace").strip().splitlines()[-1:]
                    raise TTCError(f"{' '.join(server.command)} did not start: {' '.join(last)}")
                time.sleep(0.2)
            yield Running(url, process)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _healthy(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=2).status_code == 200
    except httpx2.HTTPError:
        return False


# ---------------------------------------------------------------- clients


@dataclass
class Load:
    """What clients have measured.

    first_s: from a chat's request to its first text. gaps_s: between two of its pieces.
    tokens: that were generated. shares: those of each client that chats. numbers: tell prompts
    apart.
    """

    url: str
    searches: bool
    numbers: Iterator[int]
    model: str = NAME
    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0
    shares: dict[int, int] = field(default_factory=dict)

    def next_body(self, kind: str) -> dict[str, Any]:
        return body(kind, next(self.numbers), self.model, self.searches)

    async def ask(self, client: httpx2.AsyncClient, kind: str) -> None:
        """One request that is answered in one piece."""
        reply = await client.post(f"{self.url}/v1/chat/completions", json=self.next_body(kind))
        reply.raise_for_status()
        self.tokens += reply.json()["usage"]["completion_tokens"]

    async def chat(self, client: httpx2.AsyncClient, name: int) -> None:
        """One request that is streamed."""
        began, last = time.perf_counter(), None
        asked = self.next_body("chat")
        async with client.stream("POST", f"{self.url}/v1/chat/completions", json=asked) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk, now = json.loads(line[6:]), time.perf_counter()
                if chunk.get("usage"):
                    tokens = chunk["usage"]["completion_tokens"]
                    self.tokens += tokens
                    self.shares[name] = self.shares.get(name, 0) + tokens
                if any(choice["delta"].get("content") for choice in chunk["choices"]):
                    (self.first_s if last is None else self.gaps_s).append(now - (last or began))
                    last = now

    async def run(self, clients: int, requests: int) -> float:
        """Let so many clients ask at once, those that do not chat so many times each. Returns the
        seconds until these have ended."""
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(timeout=ANSWER_S, limits=limits) as client:
            began = time.perf_counter()
            if clients == 1:
                for _ in range(ALONE_REQUESTS):
                    await self.chat(client, 0)
                return time.perf_counter() - began
            chatting, others = list[asyncio.Task[None]](), list[asyncio.Task[None]]()
            for name in range(clients):
                kind = KINDS[name % len(KINDS)]
                if kind == "chat":
                    self.shares[name] = 0
                    chatting.append(asyncio.create_task(self._over_and_over(client, name)))
                else:
                    others.append(asyncio.create_task(self._some(client, kind, requests)))
            await asyncio.gather(*others)
            seconds = time.perf_counter() - began
            for task in chatting:
                task.cancel()
            ended = await asyncio.gather(*chatting, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error
            return seconds

    async def _over_and_over(self, client: httpx2.AsyncClient, name: int) -> None:
        while True:
            await self.chat(client, name)

    async def _some(self, client: httpx2.AsyncClient, kind: str, requests: int) -> None:
        for _ in range(requests):
            await self.ask(client, kind)


def figures(load: Load, clients: int, seconds: float) -> dict[str, Any]:
    """What a load came to. fairness: Jain's index of the tokens of clients that chat, 1 where all
    have the same."""
    shares = list(load.shares.values())
    squares = sum(share**2 for share in shares)
    return {
        "clients": clients,
        "seconds": seconds,
        "tokens": load.tokens,
        "tokens_per_s": load.tokens / seconds,
        "chats": len(load.first_s),
        "first_p50_s": percentile(load.first_s, 50),
        "first_p99_s": percentile(load.first_s, 99),
        "gap_p50_s": percentile(load.gaps_s, 50),
        "gap_p99_s": percentile(load.gaps_s, 99),
        "fairness": sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0,
        "least_share": min(shares) / mean(shares) if squares else 0.0,
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """By linear interpolation; NaN of nothing."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def run(
    *,
    clients: Annotated[Sequence[int], "at once"] = (1, 16, 64),
    requests: Annotated[int, "of each client that does not chat"] = 2,
    peer: Peer = None,
    model: Model = "smollm2-135m",
    out: Path = RESULTS / "serve.json",
) -> None:
    """Measure each server with each number of clients, and write the record as it grows.

    requests: of each client that does not chat. peer: the Python of an environment with vLLM.
    """
    import experiments.server.fair_driver  # noqa: F401 - its code and the engine's are measured

    if peer is None:
        say("vLLM's server is left out: give --peer PYTHON, as docs/benchmarks.md has it")
    rows: list[dict[str, Any]] = []
    counts = ",".join(map(str, clients))
    words = f"python -m experiments.bench serve --clients {counts} --requests {requests}"
    record = provenance(words, model=f"{model}, bfloat16, its real weights")
    record |= {"requests": requests, "rows": rows}
    for name, server in servers(model, peer).items():
        with started(server) as (url, _):
            numbers = itertools.count(1)
            warm_up = Load(url, server.searches, numbers)
            asyncio.run(warm_up.run(len(KINDS), 1))  # first-use set-up is not counted
            for count in clients:
                load = Load(url, server.searches, numbers)
                seconds = asyncio.run(load.run(count, requests))
                rows.append({"server": name} | figures(load, count, seconds))
                say(json.dumps(rows[-1]))
                save(record, out)
    print(table(record))


def table(record: Mapping[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = [
        "| clients | server | first token, median | first token, p99 | between tokens, p99 | "
        "tokens/s | fairness |",
        "|---" * 7 + "|",
    ]
    for row in sorted(record["rows"], key=lambda row: row["clients"]):
        lines.append(
            f"| {row['clients']} | {row['server']} | {row['first_p50_s']:.2f} s | "
            f"{row['first_p99_s']:.2f} s | {row['gap_p99_s']:.2f} s | {row['tokens_per_s']:.0f} | "
            f"{row['fairness']:.2f} |"
        )
    return "\n".join(lines)
