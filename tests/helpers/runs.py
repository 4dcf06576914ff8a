"""Short runs of a tiny model that knows a few words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.helpers.configurations import configuration

ROWS = [{"question": f"{i} and {i} ?", "answer": str(2 * i)} for i in range(4)]


def save_model(folder: Path, seed: int = 0, more: Sequence[str] = ()) -> str:
    """A tiny random model that knows a few words, and more of them."""
    torch.manual_seed(seed)
    words = ["<unk>", "</s>", "Question", "Answer", ":", "?", "and", *map(str, range(10)), *more]
    size = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    LlamaForCausalLM(LlamaConfig(vocab_size=len(words), eos_token_id=None, **size)).save_pretrained(
        folder
    )
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(folder)
    return str(folder)


def save_rows(file: Path, rows: list[dict[str, str]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


GREEDY = ("search=greedy", "search.max_tokens=3")


def composed(
    tmp_path: Path, *overrides: str, data: Sequence[str] = (), search: Sequence[str] = GREEDY
) -> Any:
    """The configuration of such a run."""
    return configuration("run", *typed(tmp_path, data, search), *overrides)


def typed(tmp_path: Path, data: Sequence[str] = (), search: Sequence[str] = GREEDY) -> list[str]:
    """A short run of the model and the rows that lie in `tmp_path`, or of other data, as one would
    type it."""
    rows = [
        "dataset=file",
        f"dataset.path={tmp_path / 'rows.jsonl'}",
        "dataset.instruction='{question}'",
    ]
    return [
        "model=hf",
        f"model.name={tmp_path / 'model'}",
        "model.dtype=float32",
        *(data or rows),
        *search,
        "run.name=r",
        f"run.output_dir={tmp_path / 'outputs'}",
    ]
