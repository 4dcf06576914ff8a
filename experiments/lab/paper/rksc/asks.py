"""ASKS in seconds: the prefill of eight phrasings of a question, with the KV of a similar prompt and
without, for questions that grow longer, and how many answers it changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from experiments.lab.paper.rksc.phrasings import DATASET, LEVELS, ROOT, TOKENS
from experiments.lab.paper.rksc.setting import Setting, loaded
from experiments.runs.screen import with_progress
from ttc.branch import Branch
from ttc.engine import Engine
from ttc.results import Problem
from ttc.sampling import Sampling
from ttc.text.answers import extract_answer
from ttc.tree.sharing import Sharing

LENGTHS = (0, 256, 512)
"""Tokens of solved examples that stand before a question, at least."""
RULES = ("exact", "similar")


def run(
    overrides: Sequence[str], problems: int, lengths: Sequence[int] = LENGTHS
) -> Iterator[dict[str, Any]]:
    """What there is after each length."""
    sizes = [f"dataset.size={problems + 32}", "dataset.pad_chars=0"]
    setting = Setting.of("rksc_verify", [*DATASET, *overrides, *sizes])
    model, tokenizer = loaded(setting.config)
    engines = {rule: Engine(model, tokenizer, sharing=Sharing(rule)) for rule in RULES}  # type: ignore[arg-type]
    tasks, shown = setting.task.problems[:problems], setting.task.problems[problems:]
    _prefill(setting, engines, tasks[0].question, 0)  # first-use set-up is not counted
    rows = []
    for length in with_progress(lengths, "asks", "lengths"):
        pairs = [
            _prefill(setting, engines, _after(shown, task, length, tokenizer), number)
            for number, task in enumerate(tasks)
        ]
        rows.append(_row(pairs))
        yield {"rows": rows}


def _after(shown: Sequence[Problem], task: Problem, tokens: int, tokenizer: Any) -> str:
    """The question after solved examples of so many tokens."""
    text = ""
    for problem in shown:
        if len(tokenizer.encode(text)) >= tokens:
            break
        text += f"{problem.question} {problem.answer}\n"
    return text + task.question


def _prefill(
    setting: Setting, engines: dict[str, Engine], question: str, turn: int
) -> dict[str, dict[str, Any]]:
    """What each rule takes for a root and its phrasings. turn: says which is first."""
    found = {}
    for rule in RULES if turn % 2 else RULES[::-1]:
        engine = engines[rule]
        words = [ROOT, *(text for texts in LEVELS.values() for text in texts)]
        prompts = [
            setting.template.tokens(text.replace("{question}", question), engine.tokenizer)
            for text in words
        ]
        start = perf_counter()
        root = engine.root(prompts[0])
        branches = engine.variants(root, prompts[1:]).result()
        seconds = perf_counter() - start
        engine.generate(branches, TOKENS, sampling=Sampling(temperature=0))
        found[rule] = {
            "seconds": seconds,
            "tokens": len(prompts[0]),
            "substituted": [branch.substituted is not None for branch in branches],
            "answers": list(map(_answer, branches)),
        }
        engine.release([root, *branches])
    return found


def _answer(branch: Branch) -> str | None:
    return extract_answer(branch.text, "number")


def _row(pairs: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    times = {rule: [pair[rule]["seconds"] for pair in pairs] for rule in RULES}
    exact, similar = (median(times[rule]) for rule in RULES)
    changed = [
        own != its
        for pair in pairs
        for own, its, replaced in zip(
            *(pair[rule]["answers"] for rule in RULES), pair["similar"]["substituted"], strict=True
        )
        if replaced
    ]
    passed = sum(sum(pair["similar"]["substituted"]) for pair in pairs)
    return {
        "tokens": median(pair["exact"]["tokens"] for pair in pairs),
        "pairs": len(pairs),
        "seconds": times,
        "exact_s": exact,
        "similar_s": similar,
        "faster": exact / similar,
        "substituted": passed / sum(len(pair["similar"]["substituted"]) for pair in pairs),
        "answers_changed": sum(changed) / len(changed) if changed else 0.0,
    }
