"""Two steps of every branch in vLLM, which gets all texts again at each step and finds their
prefixes in its cache.

Runs in vLLM's own environment, without this project: `PYTHON vllm_steps.py FOLDER`, the cases as
JSON on standard input (see `experiments.lab.bench.steps`), the figures as JSON in the last line of
the output.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# the model runs in this process, so its memory is ours
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
if "OMP_NUM_THREADS" not in os.environ:  # vLLM by itself keeps a core free
    os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def main() -> None:
    import torch
    import vllm
    from vllm import LLM, SamplingParams

    logging.disable(logging.WARNING)
    work = json.load(sys.stdin)
    prompts = [ids for case in work["cases"] for ids in case["prompts"]]
    longest = max(map(len, prompts)) + 2 * work["tokens"] + 1
    model = LLM(
        model=sys.argv[1],
        dtype="bfloat16",
        enable_prefix_caching=True,
        max_num_seqs=256,
        max_model_len=longest,
        max_num_batched_tokens=max(2048, longest),
        block_size=32,  # the smallest on a CPU, which finds the longest prefixes
        seed=0,
    )

    def answer(texts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
        """Seconds, and each text with what was sampled after it."""
        sampling = SamplingParams(
            temperature=1.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True
        )
        start = time.perf_counter()
        outputs = model.generate(
            [{"prompt_token_ids": ids} for ids in texts], sampling, use_tqdm=False
        )
        seconds = time.perf_counter() - start
        return seconds, [
            ids + list(out.outputs[0].token_ids) for ids, out in zip(texts, outputs, strict=True)
        ]

    answer([prompts[0]], 8)  # first-use set-up is not counted
    figures: list[dict[str, Any]] = []
    for case in work["cases"]:
        model.reset_prefix_cache()
        prefill, _ = answer(case["prompts"], 1)
        texts = [ids for ids in case["prompts"] for _ in range(case["branches"])]
        first, texts = answer(texts, work["tokens"])
        second, texts = answer(texts, work["tokens"])
        steps = [seconds / work["tokens"] * 1e3 for seconds in (first, second)]
        figures.append({"prefill_s": prefill, "first_ms": steps[0], "second_ms": steps[1]})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    about = {"version": vllm.__version__, "threads": torch.get_num_threads()}
    print(json.dumps({"cases": figures, "peak_bytes": peak, **about}))


if __name__ == "__main__":
    main()
