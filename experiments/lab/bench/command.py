"""`python -m experiments.bench COMMAND`; `--help` names the commands, and `COMMAND --help` what one
takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from experiments.cli.command import perform
from ttc.errors import InvalidInput

COMMANDS = {
    "prefix": "decoding B branches on a shared prefix, against plain transformers",
    "search": "real searches and their steps, beside generate, vLLM and linear layers",
    "long": "branches that write long texts of their own, beside generate and vLLM",
    "hybrid": "branches of a model with recurrent layers, against plain transformers",
    "quantized": "weights as .gguf files store them, beside llama.cpp and bfloat16",
    "speculative": "prompt lookup and a draft model at 1, 2 and 4 branches",
    "schema": "answers by a schema beside free ones: a pass, and the choice of its tokens",
    "serve": "clients of the server: first tokens, tokens/s and fairness, beside vLLM's",
    "clients": "unchanged clients of others against the server: what is served, what refused",
    "remote": "searches on a server beside the engine of this machine",
    "gpu": "first contact with a GPU: what is right there, how fast, as a file to send",
    "gpu_resources": "registers, spills and shared memory of the GPU kernel; needs no GPU",
    "roofline": "a step's bytes, operations and least times on three GPUs, on paper",
    "default_task": "five searches on the default task",
    "searches": "every search at equal token budgets, and which differences are real",
    "aggregation": "searches whose model reads its own answers, beside others",
    "talks": "conversations by several searches, and on a server",
    "orders": "choices in four orders: their interval, beside that of one",
    "best_searches": "the best searches on more problems, over some seeds",
    "reward_model": "a reward model that follows the tree, against whole texts",
    "tools": "word problems with a calculator and without",
    "memory": "a beam search whose KV does not fit, under each residency policy",
    "kept": "KV at its peak, of what branches have",
    "growth": "steps in storages begun in turn, and in one",
    "cache": "RSBCM against LRU in a best-first search",
    "kv_storage": "KV in 8 bits: error of attention and scores, bytes, time of a step",
    "placement": "a model larger than the device: split, streamed, or by Accelerate",
    "cost_model": "HELM's cost model: passes predicted and measured on this CPU",
    "stored_profile": "predictions by a profile measured once, over time",
    "plan": "every placement and memory policy, predicted and measured on this CPU",
    "scale": "the driver over many servers that answer after a drawn time, no model",
    "architectures": "every causal language model of transformers: exact or refused?",
    "combinations": "features drawn at random together: as each problem alone?",
    "golden": "searches with every policy and feature: as they were recorded?",
}

IN_PROCESS = {
    "combinations": "combinations.command:run",
    "arm": "prefix:run_arm",
    "search-case": "search:run_case",
    "long-case": "long:run_case",
    "quantized-way": "quantized_way:run",
    "gpu": "gpu.first_contact:command",
    "gpu-part": "gpu.parts:command",
}
"""Where a command's function is not `run` of the module of its name. Most of these are measured in
a process of their own, which another command starts."""


def main() -> None:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        print("\n".join(f"  {name:15} {about}" for name, about in COMMANDS.items()))
    elif {"-h", "--help"} & set(words):
        measure(words)
    else:
        perform(lambda: measure(words), f"bench {' '.join(words)}")


def measure(words: Sequence[str]) -> Any:
    """Do what the words ask for. Returns the exit code of a command that has one."""
    from experiments.lab.bench.options import call

    return call(function_of(words[0]), words[1:], f"python -m experiments.bench {words[0]}")


def function_of(command: str) -> Callable[..., Any]:
    """Raises InvalidInput for a command that there is not."""
    if command not in COMMANDS | IN_PROCESS:
        raise InvalidInput(f"there is no command {command!r}; use one of {', '.join(COMMANDS)}")
    module, _, name = IN_PROCESS.get(command, f"{command}:run").partition(":")
    function: Callable[..., Any] = getattr(import_module(f"experiments.lab.bench.{module}"), name)
    return function
