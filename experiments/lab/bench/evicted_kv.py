"""What R-KV's eviction loses (`memory=rkv`): along real texts, and in answers.

Texts are this project's own documentation, which an engine with all of its KV and one that drops
some are given side by side, piece by piece: the divergence of what both say of each token that
follows, and how often another token is the likeliest. Answers are those of greedy decoding on word
problems, with budgets smaller than an answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from experiments.lab.bench.budgets import Setting, word_problems
from experiments.lab.bench.searches import solved
from experiments.runs.data import Task, graded, load_task
from experiments.runs.provenance import provenance
from ttc.approximate.rkv import RKV
from ttc.engine import Engine
from ttc.errors import InvalidInput
from ttc.passes.chunks import one_chunk
from ttc.passes.segment_writer import NewRun
from ttc.results import Result
from ttc.tree.branch import Branch

PAGES = ("docs/searches.md", "docs/benchmarks.md", "docs/models.md", "docs/rksc.md")
PROMPT_TOKENS = 64
PIECE = 64
"""Tokens that are given together."""
BUDGETS = (1024, 512, 256, 128)
ANSWER_BUDGETS = (24, 16)
ANSWER_TOKENS = 96
SMALL = {"buffer_tokens": 8, "recent_tokens": 4}
"""The other settings where texts are answers of 40 tokens."""

Figures = dict[str, Any]


def run(model_name: str, texts: int, tokens: int, problems: int, out: Path) -> None:
    """Measure, print the figures as they come, and write them. texts, tokens: how many pages are
    read, and how much of each. problems: that are answered."""
    torch.set_num_threads(2)
    if not 1 <= texts <= len(PAGES):
        raise InvalidInput(f"--texts {texts} must be from 1 to {len(PAGES)}")
    figures: dict[str, list[Figures]] = {"texts": [], "answers": []}
    for budget in BUDGETS:
        if budget < tokens - PROMPT_TOKENS:
            figures["texts"].append(along_texts(model_name, PAGES[:texts], tokens, budget))
            print(json.dumps(figures["texts"][-1]), flush=True)
    figures["answers"] = answers(model_name, problems)
    print(json.dumps(figures["answers"]), flush=True)
    words = (
        f"python -m experiments.bench evicted_kv --texts {texts} --tokens {tokens} "
        f"--problems {problems}"
    )
    result = provenance(words, model=f"{model_name}, bfloat16, its real weights") | figures
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- along texts


def along_texts(model_name: str, pages: Sequence[str], tokens: int, budget: int) -> Figures:
    """The loss of one budget, over the tokens that come after the first that were dropped."""
    exact, small = (
        Engine.from_pretrained(model_name, dtype=torch.bfloat16, memory=memory)
        for memory in (None, RKV(budget_tokens=budget))
    )
    divergences, changed, evicted, kept = list[float](), list[float](), 0, 0.0
    for page in pages:
        text = exact.encode(Path(page).read_text(encoding="utf-8"))[:tokens]
        branches = [begun(engine, text[:PROMPT_TOKENS]) for engine in (exact, small)]
        for first in range(PROMPT_TOKENS, len(text), PIECE):
            piece = text[first : first + PIECE]
            one, other = (
                following(engine, branch, piece)
                for engine, branch in zip((exact, small), branches, strict=True)
            )
            if branches[1].usage.evicted_tokens:
                divergences += (one.exp() * (one - other)).sum(-1).clamp_min(0).tolist()
                changed += (one.argmax(-1) != other.argmax(-1)).float().tolist()
            for engine, branch in zip((exact, small), branches, strict=True):
                engine.extend([branch], [piece])
                engine.residency.condense([branch], engine.tree, engine.runner.forward)
        evicted += branches[1].usage.evicted_tokens
        kept += small.kv_bytes() / exact.kv_bytes() / len(pages)
        exact.release(branches[:1])
        small.release(branches[1:])
    return {
        "budget_tokens": budget,
        "text_tokens": tokens,
        "texts": len(pages),
        "scored_tokens": len(divergences),
        "evicted_tokens": evicted,
        "kv_share": kept,
        "kl": fmean(divergences),
        "changed": fmean(changed),
    }


def begun(engine: Engine, prompt: list[int]) -> Branch:
    """A branch that will be given a text, which counts as its own, and so does the prompt's last
    token."""
    branch = engine.root(prompt)
    branch.count_as_written(1)
    return branch


@torch.inference_mode()
def following(engine: Engine, branch: Branch, piece: Sequence[int]) -> Tensor:
    """The log-probabilities of all tokens in the place of each of a piece: (tokens, vocab)."""
    tokens = [branch.tokens[-1], *piece[:-1]]
    with one_chunk(engine.runtime, [NewRun(branch.leaf, tokens, branch.usage)]) as (chunk, _):
        logits = engine.runner.forward(chunk.tokens, chunk.plan)
    return logits.double().log_softmax(-1)


# ---------------------------------------------------------------- answers


def answers(model_name: str, problems: int) -> list[Figures]:
    """Greedy answers with all of their KV, and with budgets smaller than an answer."""
    rows = list[Figures]()
    with TemporaryDirectory() as folder:
        setting = word_problems(Path(folder) / "words.jsonl", problems, (ANSWER_TOKENS,))
        task = load_task(setting.config("greedy", ANSWER_TOKENS, model_name).dataset)
        whole = answered(setting, task, model_name)
        for budget in (None, *ANSWER_BUDGETS):
            found = whole
            if budget is not None:
                small = {"budget_tokens": budget} | SMALL
                words = [f"memory.{name}={value}" for name, value in small.items()]
                of = replace(setting, words=(*setting.words, "memory=rkv", *words))
                found = answered(of, task, model_name)
            rows.append(
                {
                    "budget_tokens": budget,
                    "problems": len(found),
                    "accuracy": fmean(graded(task, result)["correct"] for result in found),
                    "texts_changed": fmean(
                        text(a) != text(b) for a, b in zip(found, whole, strict=True)
                    ),
                    "answers_changed": fmean(
                        a.answer != b.answer for a, b in zip(found, whole, strict=True)
                    ),
                    "generated_tokens": fmean(r.usage.generated_tokens for r in found),
                    "evicted_tokens": fmean(r.usage.evicted_tokens for r in found),
                }
            )
    return rows


def text(result: Result) -> str:
    return "" if result.best is None else result.best.text


def answered(setting: Setting, task: Task, model_name: str) -> list[Result]:
    config = setting.config("greedy", ANSWER_TOKENS, model_name)
    search = setting.search("greedy", ANSWER_TOKENS, model_name)
    return solved(config, search, task.problems, ANSWER_TOKENS)


def table(record: dict[str, Any]) -> str:
    """Both parts, as Markdown."""
    lines = [
        "| own tokens kept | of texts of | KV | dropped, a text | KL (nats) | other likeliest token |",
        "|---" * 6 + "|",
    ]
    for row in record["texts"]:
        lines.append(
            f"| {row['budget_tokens']:,} | {row['text_tokens']:,} | {row['kv_share']:.0%} "
            f"| {row['evicted_tokens'] / row['texts']:,.0f} | {row['kl']:.3f} "
            f"| {row['changed']:.1%} |"
        )
    heads = "| own tokens kept | solved | texts changed | answers changed | tokens | dropped |"
    lines += ["", heads, "|---" * 6 + "|"]
    for row in record["answers"]:
        budget = "all" if row["budget_tokens"] is None else f"{row['budget_tokens']:,}"
        lines.append(
            f"| {budget} | {row['accuracy']:.1%} of {row['problems']} "
            f"| {row['texts_changed']:.1%} | {row['answers_changed']:.1%} "
            f"| {row['generated_tokens']:.0f} | {row['evicted_tokens']:.1f} |"
        )
    return "\n".join(lines)
