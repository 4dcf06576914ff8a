"""Clients of others against the server, unchanged: what each call gets, or why it is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from experiments.cli.output import say
from experiments.lab.bench.client_calls import CALLS
from experiments.lab.bench.options import RESULTS, Model
from experiments.lab.bench.serve import NAME, servers, started
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.errors import TTCError

PROGRAM = Path(__file__).with_name("client_calls.py")


def run(
    *,
    python: Annotated[str, "the python of an environment with the clients"],
    model: Model = "smollm2-135m",
    out: Path = RESULTS / "clients.json",
) -> None:
    """Make every call in a process of its own, print what came of it and write the record."""
    with started(servers(model, None)["ttc"]) as running:
        cases = []
        for call in CALLS:
            cases.append(called(python, f"{running.url}/v1", NAME, call))
            say(json.dumps(cases[-1], ensure_ascii=False))
    command = f"python -m experiments.bench clients --python {python}"
    record = provenance(command, model=f"{model}, bfloat16") | {"cases": cases}
    save(record, out)
    print(table(record))


def called(python: str, url: str, model: str, call: str) -> dict[str, Any]:
    """What came of a call (`client_calls.outcome`). Raises TTCError where its program fails."""
    words = [python, "-I", str(PROGRAM), url, model, call]
    said = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd="/")
    if said.returncode:
        raise TTCError(f"the call {call!r} failed: {said.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return row


def table(record: Mapping[str, Any]) -> str:
    """The record in a few words: each client, how many of its calls passed, and what was refused."""
    clients: dict[str, list[Mapping[str, Any]]] = {}
    for case in record["cases"]:
        clients.setdefault(case["call"].partition(" ")[0], []).append(case)
    parts = []
    for name, cases in clients.items():
        passed = sum(case["outcome"] == "passed" for case in cases)
        parts.append(f"{name} {cases[0].get('version')} ({passed} of {len(cases)})")
    return f"{', '.join(parts)}."
