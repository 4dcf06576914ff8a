"""What the settings of each search are within a budget of tokens, and the tasks and budgets that
are measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.fit.compute_optimal import Measurements, fit
from experiments.lab.bench.word_problems import write_problems
from experiments.runs.build import resolved
from experiments.runs.schema import register
from search import ComputeOptimal, Search
from ttc.errors import InvalidInput
from ttc.results import Problem

LEAST = 17
"""The smallest budget: budget forcing keeps 16 tokens for the answer."""

STRATEGIES = ("best_of_n", "self_consistency", "beam_search", "rebase", "mcts")
"""What compute-optimal search chooses from."""

BINS = 5
"""Its bins of difficulty."""

Figures = dict[str, Any]
Part = tuple[Search, Sequence[Problem]]
"""A search, and the problems that it solves."""


@dataclass(frozen=True)
class Allowance:
    """What the settings of a search follow from.

    tokens: the budget of a problem. answer: the mean length of a sampled answer. longest, steps:
    the most tokens and the most steps of one answer.
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
    def first(self) -> int:
        """The samples that difficulty is estimated from."""
        return max(1, self.answers // 4)

    @property
    def samples(self) -> str:
        """Whole answers: more than the budget pays for on average, so that the budget ends the
        search."""
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
        f"search.beam_size=1 search.beam_width={a.width} search.max_steps={a.tokens} "
        f"search.finish={a.tokens}"
    ),
    "tree_of_thoughts": lambda a: (
        f"search.beam_width={a.width} search.max_depth={a.steps} search.max_states={a.tokens} "
        "search.threshold=0.3"
    ),
    "revision": lambda a: (
        f"search.n={a.answers // a.width} search.attempts={a.width} search.max_tokens={a.longest}"
    ),
    "particle_gibbs": lambda a: (
        f"search.n={(a.answers + 2) // 2} search.sweeps=2 search.max_steps={a.steps}"
    ),
    "diverse_prompts": lambda a: a.samples,
    "self_refine": lambda a: (
        f"search.attempts={a.answers} search.max_tokens={a.longest} search.feedback_tokens=32"
    ),
    "budget_forcing": lambda a: (
        f"search.waits={a.answers} search.thinking_tokens={a.tokens - 16} search.answer_tokens=16"
    ),
    "certainty_probe": lambda a: (
        f"search.max_tokens={a.tokens} search.every=16 search.probe_tokens=12"
    ),
    "mur": lambda a: (
        f"search.beam_width={a.answers} search.max_steps={a.steps} search.step_tokens=32"
    ),
    "phi_decoding": lambda a: (
        f"search.beam_size={max(1, a.answers // 8)} search.beam_width={a.width} "
        f"search.max_steps={a.steps} search.step_tokens=32 search.finish_tokens={a.longest}"
    ),
    "compute_optimal": lambda a: "",
}
"""The settings of each search within an allowance; the others are those of its configuration. The
ones that answer most questions come first. What follows a "+" names a variant of a search."""


def _tested(verifier: str, a: Allowance) -> str:
    """Programs for a third of the budget: the tests that the model writes take most of the rest."""
    n = max(2, a.answers // 3)
    return f"search.n={n} search.max_tokens={a.longest} verifier={verifier}"


CODE_SEARCHES: dict[str, Callable[[Allowance], str]] = {
    "greedy": SEARCHES["greedy"],
    "self_consistency": SEARCHES["self_consistency"],
    "best_of_n+execution": lambda a: f"{a.samples} verifier=execution",
    **{
        f"best_of_n+{verifier}": partial(_tested, verifier)
        for verifier in ("codet", "mbr_exec", "s_star")
    },
}
"""The searches for programs: samples that run the tests which are shown, or tests that the model
writes."""

FUNCTIONS = Path(__file__).parents[3] / "examples" / "functions.jsonl"
"""Ten easy functions and their tests."""


def _beams(kept: str, a: Allowance) -> str:
    """As many continuations in each step as the budget pays for answers."""
    return (
        f"search.{kept}={a.answers // a.width} search.beam_width={a.width} "
        f"search.max_steps={a.steps}"
    )


@dataclass(frozen=True)
class Setting:
    """A task, the budgets on it, and the searches that are tried with their settings. words: what
    its configuration sets."""

    name: str
    words: tuple[str, ...]
    budgets: tuple[int, ...]
    answer: int
    longest: int
    steps: int
    searches: Mapping[str, Callable[[Allowance], str]] = field(default_factory=SEARCHES.copy)

    def allowance(self, tokens: int) -> Allowance:
        return Allowance(tokens, self.answer, min(self.longest, tokens), self.steps)

    def config(self, name: str, tokens: int, model: str) -> DictConfig:
        """The configuration of a search within a budget."""
        words = ["run.name=bench", f'model.name="{model}"']
        chosen = [
            f"search={name.partition('+')[0]}",
            *self.searches[name](self.allowance(tokens)).split(),
        ]
        register()
        with initialize_config_module("conf", version_base="1.3"):
            return resolved(compose("config", overrides=[*words, *self.words, *chosen]))

    def search(self, name: str, tokens: int, model: str) -> Search:
        found: Search = instantiate(self.config(name, tokens, model).search, _convert_="all")
        return found

    def parts(
        self,
        name: str,
        tokens: int,
        model: str,
        problems: Sequence[Problem],
        rows: Sequence[Figures],
    ) -> list[Part]:
        """The search of all problems; of compute-optimal search, one for each half, fitted on the
        other half's rows."""
        if name != "compute_optimal":
            return [(self.search(name, tokens, model), problems)]
        table, allowance = self._table(tokens, rows), self.allowance(tokens)
        left = max(LEAST, tokens - allowance.first * self.answer)
        strategies = [self.search(strategy, left, model) for strategy in STRATEGIES]
        parts: list[Part] = []
        for own, other in ((0, 1), (1, 0)):
            choice = fit(table.rows(np.arange(other, len(problems), 2)), BINS, math.inf)
            chosen = tuple(strategies[place] for place in choice.strategies)
            search = ComputeOptimal(
                n=allowance.first,
                max_tokens=allowance.longest,
                edges=tuple(choice.edges),
                strategies=chosen,
            )
            parts.append((search, problems[own::2]))
        return parts

    def _table(self, tokens: int, rows: Sequence[Figures]) -> Measurements:
        """What the strategies did at this budget."""
        known = {
            row["search"]: row
            for row in rows
            if (row["task"], row["budget"]) == (self.name, tokens)
        }
        if missing := [name for name in STRATEGIES if name not in known]:
            raise InvalidInput(
                f"compute_optimal is fitted on {','.join(missing)} at {tokens} tokens; measure "
                "them too"
            )
        found = [known[name] for name in STRATEGIES]
        ease = np.array(known["best_of_n"]["first_scores"])
        correct = np.array([[float(one) for one in row["outcomes"]] for row in found]).T
        used = np.array([row["generated_tokens"] + row["verifier_tokens"] for row in found])
        return Measurements(ease, np.zeros(len(ease)), correct, np.tile(used, (len(ease), 1)))


def default_task(problems: int, budgets: Sequence[int]) -> Setting:
    """The default task. An answer takes 19 tokens on average."""
    return Setting(
        "default task",
        (f"dataset.size={problems}",),
        tuple(budgets),
        answer=20,
        longest=64,
        steps=8,
    )


WORD_EXAMPLES = (
    ("Rosa has 4 bags with 6 eggs each. Then Rosa finds 5 more eggs.", "4 * 6 = 24", "24 + 5 = 29"),
    (
        "Jack has 3 jars with 7 balls each. Then Jack buys 2 more balls.",
        "3 * 7 = 21",
        "21 + 2 = 23",
    ),
    ("Lily has 3 boxes with 9 hats each. Then Lily gets 2 more hats.", "3 * 9 = 27", "27 + 2 = 29"),
)


def word_problems(file: Path, problems: int, budgets: Sequence[int]) -> Setting:
    """Word problems of two steps, which are written to a file. In a trial of 60 with one wording,
    answers took 41 tokens and greedy decoding solved 42%. Sums and differences in the same form
    were solved less often (8% to 17%), two additions more often (57%)."""
    write_problems(file, problems)
    words = (
        "dataset=file",
        "dataset.name=words",
        f'dataset.path="{file}"',
        "dataset.answer_kind=number",
        "dataset.chat=false",
        'dataset.instruction="{question}"',
        'dataset.end=["\\n\\n"]',
        f"dataset.examples=[{','.join(starmap(_example, WORD_EXAMPLES))}]",
    )
    return Setting("word problems", words, tuple(budgets), answer=40, longest=96, steps=6)


def _example(story: str, first: str, second: str) -> str:
    name, things, result = story.split()[0], story.rstrip(".").split()[-1], second.split()[-1]
    lines = [
        f"{name} has {first} {things}.",
        f"Then {name} has {second} {things}.",
        f"The answer is {result}.",
    ]
    question = f"{story} How many {things} does {name} have now?"
    answer = "".join(f"\\n{line}" for line in lines)
    return f'{{question: "{question}", answer: "{answer}"}}'


def gsm8k(data: Path, problems: int, budgets: Sequence[int]) -> Setting:
    """GSM8K's rows of a file, of which the default model solves a few in a hundred."""
    words = ("dataset=gsm8k", f'dataset.path="{data}"', f"dataset.limit={problems}")
    return Setting("GSM8K", words, tuple(budgets), answer=160, longest=256, steps=24)


def programs(budgets: Sequence[int]) -> Setting:
    """Ten easy functions to write. A program takes 70 tokens on average."""
    return Setting(
        "programs",
        ("dataset=code", f'dataset.path="{FUNCTIONS}"'),
        tuple(budgets),
        answer=70,
        longest=160,
        steps=8,
        searches=CODE_SEARCHES,
    )
