"""A reward model whose KV follows the search's tree, against rating whole texts at every step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Model

from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.build import make_template
from experiments.runs.data import load_task
from experiments.runs.provenance import provenance
from experiments.runs.schema import register
from search import BeamSearch, solve
from ttc import Backend, Branch, Engine, Result, Sharing
from ttc.model.loading.load import load_tokenizer
from ttc.model.loading.reward_heads import HeadedModel
from verifiers import QwenPRM
from verifiers.reward_model_pass import Layout

SEARCH = BeamSearch(beam_size=4, beam_width=4, step_tokens=32, max_steps=8, temperature=1.0)
SIZES: dict[str, dict[str, Any]] = {
    "policy": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    "reward model": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8},
}


class Timed(QwenPRM):
    """Knows how long its ratings took."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        start = time.perf_counter()
        try:
            return super().rate(branches, questions, backend)
        finally:
            self.seconds = getattr(self, "seconds", 0.0) + time.perf_counter() - start


class WholeTexts(Timed):
    """Computes the whole text of each branch at each rating: what ends an open step is a part of
    the one pass."""

    def layout(self, branch: Branch, question: str) -> Layout:
        layout = super().layout(branch, question)
        return Layout(layout.tokens + layout.suffix, layout.places, [])

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        try:
            return super().rate(branches, questions, backend)
        finally:
            self.mirror(backend).clear()

    def _engine(self, backend: Backend) -> Engine:
        return Engine(*self.parts, sharing=Sharing("none"))


WAYS = {"whole texts": WholeTexts, "mirrored tree": Timed}


def run(*, problems: int = 4, out: Path = RESULTS / "reward_model.json") -> None:
    """Solve the same problems with both, print a table and write the figures."""
    tokenizer = load_tokenizer("smollm2-135m")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra_0>"]})
    torch.manual_seed(0)
    policy = Qwen2ForCausalLM(_config(tokenizer, "policy")).eval()
    body = Qwen2Model(_config(tokenizer, "reward model")).eval().requires_grad_(False)
    width = body.config.hidden_size
    head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)).requires_grad_(
        False
    )
    register()
    with initialize_config_module("conf", version_base="1.3"):
        config = compose("config", overrides=[f"dataset.size={problems}", "run.name=bench"])
    options: dict[str, Any] = {
        "problem": load_task(config.dataset).problems,
        "template": make_template(config),
        "seed": 0,
    }
    rows, texts = [], []
    for name, way in WAYS.items():
        verifier = way((HeadedModel(body, head), tokenizer))
        engine = Engine(policy, tokenizer)
        results: list[Result] = solve(
            SEARCH, engine=engine, verifier=verifier, concurrency=4, **options
        )
        if errors := [result.error for result in results if result.error]:
            raise RuntimeError(errors[0])
        tokens = sum(result.usage.verifier_tokens for result in results)
        rows.append({"way": name, "tokens": tokens, "seconds": verifier.seconds})
        texts.append([branch.text for result in results for branch in result.branches])
    shapes = "; ".join(f"{name}: {size}" for name, size in SIZES.items())
    result = provenance(
        f"python -m experiments.bench reward_model --problems {problems}",
        model="policy and reward model of Qwen2's architecture with random weights, float32 "
        f"({shapes})",
    )
    result |= {
        "problems": problems,
        "search": repr(SEARCH),
        "rows": rows,
        "same_texts": texts[0] == texts[1],
    }
    save(result, out)
    print(table(result))


def _config(tokenizer: Any, name: str) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        **SIZES[name],
    )


def table(result: dict[str, Any]) -> str:
    """Tokens that the reward model computes and the time of all ratings, as a Markdown table."""
    lines = [
        "| rating | tokens computed | fewer | time of the ratings | faster |",
        "|---|---|---|---|---|",
    ]
    base = result["rows"][0]
    for row in result["rows"]:
        fewer, faster = base["tokens"] / row["tokens"], base["seconds"] / row["seconds"]
        lines.append(
            f"| {row['way']} | {row['tokens']:,} | {fewer:.1f}x | {row['seconds']:.1f} s | "
            f"{faster:.1f}x |"
        )
    return "\n".join(lines)
