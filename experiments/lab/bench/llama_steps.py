"""Steps of llama.cpp: sequences of one context that share the cells of their prefix.

Runs in an environment of its own with llama-cpp-python, without this project: `PYTHON
llama_steps.py FILE`, asked as `quantized_way.py` is. Nothing is drawn from its logits.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp as llama

THREADS = 2
SEQUENCES = 64
CELLS = 2048
"""Of the cache: the prefix once, and what sequences write."""


def main() -> None:
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(
        sys.argv[1].encode(), llama.llama_model_default_params()
    )
    way = Context(model)
    print(json.dumps({"version": llama.__version__}), flush=True)
    for line in sys.stdin:
        ms = way.measure(json.loads(line)) * 1e3
        print(json.dumps({"ms": ms, "peak_bytes": peak_bytes()}), flush=True)


def peak_bytes() -> int:
    """The most memory of this process; `getrusage` would count that of its parent too."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


class Context:
    """A context and its sequences, the first of which holds the prefix."""

    def __init__(self, model: Any):
        settings = llama.llama_context_default_params()
        settings.n_ctx = CELLS
        settings.n_batch = settings.n_ubatch = 512
        settings.n_seq_max = SEQUENCES
        settings.n_threads = settings.n_threads_batch = THREADS
        settings.kv_unified = True
        self.context = llama.llama_init_from_model(model, settings)
        if not self.context:
            raise SystemExit("llama.cpp made no context")
        self.prefilled = self.length = 0
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(512, 0, 1)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def measure(self, asked: dict[str, Any]) -> float:
        """The seconds of a prefill, or of a step of so many branches of what was prefilled last."""
        if asked["figure"] == "prefill" or not self.prefilled:
            llama.llama_memory_clear(self.memory, True)
            self.length = self.prefilled = asked["prefix"]
            start = time.perf_counter()
            self._decode([(n, 0, n == self.length - 1) for n in range(self.length)])
            if asked["figure"] == "prefill":
                return time.perf_counter() - start
        for sequence in range(1, SEQUENCES):
            llama.llama_memory_seq_rm(self.memory, sequence, -1, -1)
        llama.llama_memory_seq_rm(self.memory, 0, self.prefilled, -1)
        self.length = self.prefilled
        if asked["figure"].isdecimal():
            return self._branches(int(asked["figure"]), asked["tokens"])
        return self._beams(asked["beam_steps"], asked["beam_tokens"])

    def _branches(self, count: int, tokens: int) -> float:
        for sequence in range(1, count):
            llama.llama_memory_seq_cp(self.memory, 0, sequence, -1, -1)
        self._step(range(count), 1)
        start = time.perf_counter()
        self._step(range(count), tokens)
        return (time.perf_counter() - start) / tokens

    def _beams(self, steps: int, tokens: int) -> float:
        """A token of a beam search 4 x 4: 16 sequences write and four of them take the places of
        all."""
        start = time.perf_counter()
        for sequence in range(1, 16):
            llama.llama_memory_seq_cp(self.memory, 0, sequence, -1, -1)
        for _ in range(steps):
            self._step(range(16), tokens)
            for sequence in range(4, 16):
                llama.llama_memory_seq_rm(self.memory, sequence, -1, -1)
                llama.llama_memory_seq_cp(self.memory, sequence % 4, sequence, -1, -1)
        return (time.perf_counter() - start) / (steps * tokens)

    def _step(self, sequences: range, tokens: int) -> None:
        for _ in range(tokens):
            self._decode([(self.length, sequence, True) for sequence in sequences])
            self.length += 1

    def _decode(self, rows: list[tuple[int, int, bool]]) -> None:
        """One pass over rows: (position, sequence, whether its logits are asked for)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for n, (position, sequence, logits) in enumerate(rows):
            batch.token[n] = (7919 * position + 31 * sequence) % self.vocabulary
            batch.pos[n] = position
            batch.n_seq_id[n] = 1
            batch.seq_id[n][0] = sequence
            batch.logits[n] = logits
        if (code := llama.llama_decode(self.context, batch)) != 0:
            raise SystemExit(f"llama_decode gave {code}")
        llama.llama_synchronize(self.context)
        llama.llama_get_logits(self.context)


if __name__ == "__main__":
    main()
