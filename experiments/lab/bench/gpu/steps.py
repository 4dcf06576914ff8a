"""Steps of the engine beside `generate` and vLLM, each way in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from experiments.lab.bench.gpu.machine import FAILED, LEFT_OUT, MEASURED, Machine, Row
from experiments.lab.bench.long import sizes
from experiments.lab.bench.search import NO_PEER, PEER, measured
from ttc.model.loading.model_files import local_path

CASES = ((1, 16, 512), (16, 16, 512), (1, 8, 4096))
"""Problems, branches of each, and tokens of their prompts."""
TOKENS, OWN = 32, "16x4096"
WAYS = ("engine", "generate")
TINY_CASES, TINY_TOKENS, TINY_OWN = ((1, 2, 16), (2, 2, 16)), 4, "2x16"


def rows(machine: Machine, model: str, peer: str | None) -> Iterator[Row]:
    """A row for each case and way: milliseconds for a token of every branch, in a first step and in
    a second."""
    cases = TINY_CASES if machine.rehearsed else CASES
    tokens = TINY_TOKENS if machine.rehearsed else TOKENS
    work = json.dumps({"tokens": tokens, "cases": [_case(*case) for case in cases]})
    commands = {
        way: [sys.executable, "-m", "experiments.lab.bench.steps", way, model] for way in WAYS
    }
    if peer is None:
        yield {"case": PEER, "verdict": LEFT_OUT, "reason": NO_PEER}
    else:
        commands[PEER] = _peer(peer, model)
    for way, command in commands.items():
        try:
            found = measured(command, work)["cases"]
        except RuntimeError as error:
            yield {"case": way, "verdict": FAILED, "error": str(error)}
            continue
        for (problems, branches, prompt), figures in zip(cases, found, strict=True):
            name = f"{problems} x {branches} on {prompt:,}, {way}"
            yield {"case": name, "verdict": MEASURED} | figures


def own(machine: Machine, model: str, peer: str | None) -> Iterator[Row]:
    """Branches that write thousands of tokens of their own (`bench long`)."""
    case = TINY_OWN if machine.rehearsed else OWN
    branches, tokens = sizes(case)
    commands = {
        way: (
            [sys.executable, "-m", "experiments.bench", "long-case", way, case, "--model", model],
            "",
        )
        for way in WAYS
    }
    if peer is not None:
        prompt = {"prompts": [_prompt(64, 0)], "branches": branches}
        work = json.dumps({"tokens": tokens // 2, "cases": [prompt]})
        commands[PEER] = (_peer(peer, model), work)
    for way, (command, work) in commands.items():
        name = f"{branches} x {tokens:,} own, {way}"
        try:
            yield {"case": name, "verdict": MEASURED} | measured(command, work)
        except RuntimeError as error:
            yield {"case": name, "verdict": FAILED, "error": str(error)}


def _peer(peer: str, model: str) -> list[str]:
    script = Path(__file__).parents[1] / "vllm_steps.py"
    return [peer, str(script), str(local_path(model) or model)]


def _case(problems: int, branches: int, tokens: int) -> Row:
    return {"prompts": [_prompt(tokens, seed) for seed in range(problems)], "branches": branches}


def _prompt(tokens: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, 40_000, (tokens,), generator=generator).tolist()
