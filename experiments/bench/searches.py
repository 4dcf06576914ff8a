"""Every search at equal token budgets: accuracy, tokens and time, and which differences are more than chance.

Each row of the record, one search at one budget, is written as soon as it is measured, so that the command can be
stopped; when it is given again, it measures what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.build import make_engine, make_template, make_verifier, resolved
from experiments.data import Task, graded, load_task
from experiments.fingerprint import data_fingerprint, model_fingerprint
from experiments.provenance import commit, provenance
from experiments.schema import register
from experiments.significance import holm, mcnemar
from experiments.summary import failed, wilson
from search import Search, SelfConsistency, solve
from ttc.errors import InvalidInput
from ttc.protocols import Problem, Result

IN_FLIGHT = 64
"""Problems that are solved at once."""

LEAST = 17
"""The smallest budget: budget forcing keeps 16 tokens for the answer."""

BASELINES = ("best_of_n", "self_consistency")
"""What each search is compared with."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Allowance:
    """What the settings of a search follow from.

    tokens: the budget of a problem. answer: the mean length of a sampled answer. longest, steps: the most tokens and
    the most steps of one answer.
    """

    tokens: int
    answer: int
    longest: int
    steps: int

    @property
    def answers(self) -> int:
        """How many answers the budget pays for on average."""
        return max(2, self.tokens // self.answer)

    @property
    def width(self) -> int:
        """Continuations of a branch."""
        return 4 if self.answers >= 16 else 2

    @property
    def samples(self) -> str:
        """Whole answers: more than the budget pays for on average, so that the budget ends the search."""
        return f"search.n={2 * self.answers} search.max_tokens={self.longest}"


SEARCHES: dict[str, Callable[[Allowance], str]] = {
    "best_of_n": lambda a: a.samples,
    "self_consistency": lambda a: a.samples,
    "greedy": lambda a: f"search.max_tokens={a.longest}",
    "beam_search": lambda a: _beams("beam_size", a),
    "mcts": lambda a: (
        f"search.iterations={a.tokens} search.beam_width={a.width} search.max_depth={a.steps} "
        f"search.rollout_tokens={a.longest}"
    ),
    "particle_filter": lambda a: f"search.n={a.answers} search.max_steps={a.steps}",
    "rebase": lambda a: f"search.n={a.answers} search.max_steps={a.steps}",
    "dvts": lambda a: _beams("subtrees", a),
    "adaptive_consistency": lambda a: a.samples,
    "deep_conf": lambda a: f"{a.samples} search.window=8",
    "ab_mcts": lambda a: f"search.iterations={2 * a.answers} search.max_tokens={a.longest}",
    "best_first": lambda a: (
        f"search.beam_size=1 search.beam_width={a.width} search.max_steps={a.tokens} search.finish={a.tokens}"
    ),
    "tree_of_thoughts": lambda a: (
        f"search.beam_width={a.width} search.max_depth={a.steps} search.max_states={a.tokens} search.threshold=0.3"
    ),
    "revision": lambda a: f"search.n={a.answers // a.width} search.attempts={a.width} search.max_tokens={a.longest}",
    "particle_gibbs": lambda a: f"search.n={(a.answers + 2) // 2} search.sweeps=2 search.max_steps={a.steps}",
    "diverse_prompts": lambda a: a.samples,
    "self_refine": lambda a: f"search.attempts={a.answers} search.max_tokens={a.longest} search.feedback_tokens=32",
    "budget_forcing": lambda a: (
        f"search.waits={a.answers} search.thinking_tokens={a.tokens - 16} search.answer_tokens=16"
    ),
    "certainty_probe": lambda a: f"search.max_tokens={a.tokens} search.every=16 search.probe_tokens=12",
}
"""The settings of each search within an allowance; the others are those of its configuration. The ones that answer most
questions come first."""


def _beams(kept: str, a: Allowance) -> str:
    """As many continuations in each step as the budget pays for answers."""
    return f"search.{kept}={a.answers // a.width} search.beam_width={a.width} search.max_steps={a.steps}"


@dataclass(frozen=True)
class Setting:
    """A task, the budgets on it, and the searches that are tried. words: what its configuration sets."""

    name: str
    words: tuple[str, ...]
    budgets: tuple[int, ...]
    answer: int
    longest: int
    steps: int
    searches: tuple[str, ...] = tuple(SEARCHES)

    def overrides(self, name: str, tokens: int) -> list[str]:
        """What is set of a search within a budget."""
        return SEARCHES[name](Allowance(tokens, self.answer, min(self.longest, tokens), self.steps)).split()

    def config(self, name: str, tokens: int, model: str) -> DictConfig:
        """The configuration of a search within a budget."""
        words = ["run.name=bench", f'model.name="{model}"']
        chosen = [f"search={name}", *self.overrides(name, tokens)]
        register()
        with initialize_config_module("conf", version_base="1.3"):
            return resolved(compose("config", overrides=[*words, *self.words, *chosen]))


def default_task(problems: int, budgets: Sequence[int]) -> Setting:
    """The default task. An answer takes 19 tokens on average."""
    return Setting("default task", (f"dataset.size={problems}",), tuple(budgets), answer=20, longest=64, steps=8)


def gsm8k(data: Path, problems: int, budgets: Sequence[int]) -> Setting:
    """GSM8K's rows of a file, of which the default model solves a few in a hundred: one budget and some searches."""
    words = ("dataset=gsm8k", f'dataset.path="{data}"', f"dataset.limit={problems}")
    searches = ("best_of_n", "self_consistency", "greedy", "beam_search", "mcts", "particle_filter")
    return Setting("GSM8K", words, tuple(budgets), answer=160, longest=256, steps=24, searches=searches)


# ---------------------------------------------------------------- measuring


def run(
    problems: int,
    budgets: Sequence[int],
    data: Path | None,
    data_problems: int,
    data_budgets: Sequence[int],
    searches: Sequence[str],
    model: str,
    out: Path,
) -> None:
    """Measure what the record lacks, the cheapest budgets first, and write it after each search.

    budgets: tokens of a problem, on `problems` problems of the default task. data: a file with GSM8K's rows, whose first
    `data_problems` are solved within `data_budgets`.
    """
    if unknown := [name for name in searches if name not in SEARCHES]:
        raise InvalidInput(f"the search {unknown[0]!r} is unknown; use some of {','.join(SEARCHES)}")
    if few := [tokens for tokens in (*budgets, *data_budgets) if tokens < LEAST]:
        raise InvalidInput(f"a budget of {few[0]} tokens has no room for an answer; give {LEAST} or more")
    settings = [default_task(problems, budgets)]
    command = f"searches --problems {problems} --budgets {','.join(map(str, budgets))}"
    if data is not None:
        settings.append(gsm8k(data, data_problems, data_budgets))
        command += f" --data {data.name} --data-problems {data_problems}"
        command += f" --data-budgets {','.join(map(str, data_budgets))}"
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    tasks = {s.name: load_task(s.config("greedy", s.budgets[0], model).dataset) for s in settings}
    jobs = [(setting, tokens) for setting in settings for tokens in setting.budgets]
    jobs.sort(key=lambda job: job[1] * len(tasks[job[0].name].problems))
    warm = False
    for setting, tokens in jobs:
        task = tasks[setting.name]
        for name in (name for name in setting.searches if name in searches):
            config = setting.config(name, tokens, model)
            search = instantiate(config.search, _convert_="all")
            place = {"task": setting.name, "budget": tokens, "search": name}
            known = place | {"fingerprint": fingerprint(config, search, task.problems)}
            if any(known.items() <= row.items() for row in rows):
                continue
            if not warm:  # first-use set-up is not counted
                solved(config, SelfConsistency(n=2, max_tokens=4), task.problems[:1], tokens)
                warm = True
            about = {"settings": setting.overrides(name, tokens), "commit": commit()}
            row = known | about | measure(config, search, task, tokens)
            rows = [other for other in rows if not place.items() <= other.items()] + [row]
            write(rows, command, model, out)
            print(f"{setting.name}, {tokens} tokens, {name}: {row['accuracy']:.1%}, {row['seconds']:.0f} s", flush=True)


def fingerprint(config: DictConfig, search: Search, problems: Sequence[Problem]) -> str:
    """A short hash of what a row depends on: the search, the verifier, the seed, the prompt, the problems, the model."""
    parts = [search, config.verifier, config.run.seed, config.dataset.instruction, config.dataset.examples]
    known = [*map(str, parts), data_fingerprint(problems, []), model_fingerprint(config.model.name)]
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def solved(config: DictConfig, search: Search, problems: Sequence[Problem], tokens: int) -> list[Result]:
    """The problems' results, each within a budget of so many generated and verifier tokens."""
    return solve(
        search,
        problem=list(problems),
        engine=make_engine(config),
        verifier=make_verifier(config) if search.needs_verifier else None,
        seed=config.run.seed,
        template=make_template(config),
        answer_kind=config.dataset.answer_kind,
        end=tuple(config.dataset.end),
        max_tokens=tokens,
        concurrency=IN_FLIGHT,
    )


def measure(config: DictConfig, search: Search, task: Task, tokens: int) -> Figures:
    """One search within one budget on all problems, tokens and seconds as means over them.

    outcomes: for each problem in its order 1 where it was solved, else 0.
    """
    start = time.perf_counter()
    results = solved(config, search, task.problems, tokens)
    seconds = time.perf_counter() - start
    kind, usages = config.dataset.answer_kind, [result.usage for result in results]
    errors = [failed({"error": result.error}) for result in results]
    right = [graded(task, r, kind)["correct"] and not error for r, error in zip(results, errors, strict=True)]
    return {
        "verifier": config.verifier._target_ if search.needs_verifier else None,
        "problems": len(results),
        "accuracy": fmean(right),
        "accuracy_95": wilson(sum(right), len(right)),
        "generated_tokens": fmean(usage.generated_tokens for usage in usages),
        "verifier_tokens": fmean(usage.verifier_tokens for usage in usages),
        "prompt_tokens": fmean(usage.prompt_tokens for usage in usages),
        "ended_by_the_budget": sum(result.stopped == "budget" for result in results),
        "failures": sum(errors),
        "seconds": seconds,
        "outcomes": "".join("01"[one] for one in right),
    }


# ---------------------------------------------------------------- the record


def write(rows: Sequence[Figures], command: str, model: str, out: Path) -> None:
    """The record: the rows, and each search compared with the baselines at its budget; a kill leaves the old one."""
    record = provenance(f"python -m experiments.bench {command}", model=f"{model}, bfloat16, its real weights")
    record |= {"rows": rows, "comparisons": comparisons(rows)}
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_suffix(".json.new")
    new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(new, out)


def comparisons(rows: Sequence[Figures]) -> list[Figures]:
    """Each row against each baseline's with the same problems and budget, by McNemar's exact test.

    gained, lost: the problems that only the search solves, and only the baseline. p_holm: corrected for all comparisons
    of the task with that baseline, over all budgets.
    """
    found: list[Figures] = []
    for baseline in BASELINES:
        base = {(row["task"], row["budget"]): row["outcomes"] for row in rows if row["search"] == baseline}
        for task in dict.fromkeys(row["task"] for row in rows):
            family = [row for row in rows if row["task"] == task and row["search"] != baseline]
            family = [row for row in family if len(base.get((task, row["budget"]), "")) == row["problems"]]
            tests = [_test(row["outcomes"], base[task, row["budget"]]) for row in family]
            corrected = holm([test["p"] for test in tests])
            for row, test, p in zip(family, tests, corrected, strict=True):
                place = {key: row[key] for key in ("task", "budget", "search")}
                found.append(place | {"baseline": baseline} | test | {"p_holm": p})
    return found


def _test(own: str, base: str) -> Figures:
    pairs = list(zip(own, base, strict=True))
    gained, lost = pairs.count(("1", "0")), pairs.count(("0", "1"))
    return {"difference": (gained - lost) / len(pairs), "gained": gained, "lost": lost, "p": mcnemar(gained, lost)}
