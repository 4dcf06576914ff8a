"""What long prompts cost others on the server: the first token of a short request meanwhile, how
soon the memory of clients that leave is free, and how soon the server ends."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from experiments.cli.output import say
from experiments.lab.bench.serve import NAME, Load, Running, Server, servers, started
from experiments.runs.provenance import provenance
from ttc.errors import TTCError

CLIENTS, TOKENS = 8, 8000
"""Clients with a long prompt, and the tokens of each."""

SHORT = 5
"""Short requests, one after the other."""

SHUTDOWN_S = 5
AIMS = {
    "first token of a short request": 1.0,
    "rows and KV of clients that left are free": 1.0,
    "exit after SIGTERM": SHUTDOWN_S + 2.0,
}
"""Seconds at most."""

METRICS = ("ttc_problems_open", "ttc_branches_decoding", "ttc_kv_bytes")
ANSWER = 16
"""Tokens of an answer to a long prompt."""

BUSY_S, LOOK_S, ANSWER_S = 1.0, 0.02, 600


def run(rounds: int, model: str, out: Path) -> None:
    """Measure each aim in some rounds, a server for each, and write the record."""
    import experiments.server.fair_driver  # noqa: F401 - its code and the engine's are measured

    own = servers(model, None)["ttc"]
    command = [*own.command[:-1], f"serve.shutdown_s={SHUTDOWN_S}", own.command[-1]]
    server = Server(command, own.environment, True)
    seconds: dict[str, list[float]] = {name: [] for name in AIMS}
    for _ in range(rounds):
        with started(server) as running:
            for name, values in asyncio.run(_round(running)).items():
                seconds[name] += values
                say(f"{name}: {', '.join(f'{value:.2f} s' for value in values)}")
    record = provenance(
        f"python -m experiments.bench serve_aims --rounds {rounds}",
        model=f"{model}, bfloat16, its real weights",
    )
    record |= {"clients": CLIENTS, "prompt_tokens": TOKENS, "seconds": seconds}
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record))


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = ["| | aim | median | longest |", "|---|---|---|---|"]
    for name, values in record["seconds"].items():
        lines.append(
            f"| {name} | {AIMS[name]:.0f} s | {median(values):.2f} s | {max(values):.2f} s |"
        )
    return "\n".join(lines)


async def _round(running: Running) -> dict[str, list[float]]:
    """The seconds of each aim, on a server that has just started."""
    url = running.url
    async with httpx2.AsyncClient(timeout=ANSWER_S, limits=httpx2.Limits()) as client:
        free = await _held(client, url)
        long = await _long_prompts(client, url)
        load = Load(url, True, itertools.count(1))
        for _ in range(SHORT):
            await load.chat(client, 0)
        if any(task.done() for task in long):
            raise TTCError("a long prompt was answered before the short ones: nothing to see")
        began = time.perf_counter()
        for task in long:
            task.cancel()
        while await _held(client, url) != free:
            await asyncio.sleep(LOOK_S)
        left = time.perf_counter() - began
        long = await _long_prompts(client, url)
        began = time.perf_counter()
        running.process.terminate()
        while running.process.poll() is None:
            await asyncio.sleep(LOOK_S)
        ended = time.perf_counter() - began
        await asyncio.gather(*long, return_exceptions=True)
    return dict(zip(AIMS, (load.first_s, [left], [ended]), strict=True))


async def _long_prompts(client: httpx2.AsyncClient, url: str) -> list[asyncio.Task[Any]]:
    """Requests with long prompts that share nothing, a second after they were sent."""
    asked = [
        {"model": NAME, "prompt": f"{number}{' the' * (TOKENS - 1)}", "max_tokens": ANSWER}
        for number in range(1, CLIENTS + 1)
    ]
    long = [asyncio.create_task(client.post(f"{url}/v1/completions", json=body)) for body in asked]
    await asyncio.sleep(BUSY_S)
    return long


async def _held(client: httpx2.AsyncClient, url: str) -> dict[str, float]:
    """What the server has under way and in memory, by its metrics."""
    text = (await client.get(f"{url}/metrics")).text
    found = dict(re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE))
    return {name: float(found[name]) for name in METRICS}
