"""Log-probabilities by llama.cpp, where its package is installed (`pip install xllamacpp`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def server(file: Path, context: int = 256) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = context
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.fit_params = False
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.verbosity = 0
    return xllamacpp.Server(params)


def logprobs(served: Any, tokens: list[int], vocab: int) -> Tensor:
    """The log-probability of each token of the vocabulary after these."""
    asked = {
        "prompt": tokens,
        "n_predict": 1,
        "logprobs": vocab,
        "temperature": 0.0,
        "cache_prompt": False,
    }
    reply = served.handle_completions(asked)
    found = torch.full((vocab,), torch.nan)
    for entry in reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
        found[entry["id"]] = entry["logprob"]
    return found
