"""What is drawn."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.engines import GENERATION, MEMORIES, PLACEMENTS
from experiments.lab.bench.combinations.models import MODELS, RARE, SHARES, STATEFUL, STORED
from experiments.lab.bench.combinations.raters import VERIFIERS
from experiments.lab.bench.combinations.searches import (
    BUDGETS,
    HANDED_ON,
    SAMPLINGS,
    SEARCHES,
    VARIANTS,
)

FIXED = 200
"""Draws that tests make, which stay as they are."""
DRAWS = 16
"""Draws that have their problems and search in common, which are solved alone once."""
TOOLS = ("inline", "inline", "turns", "caller")


class Dice(random.Random):
    def perhaps(self, chance: float, *values: Any) -> Any:
        return self.choice(values) if self.random() < chance and values else None


def drawn(seed: int) -> Combination:
    """A combination at random, the same for the same seed. Rare settings are drawn often enough
    that each meets each other one in some of a few hundred draws."""
    c = _problems(seed // DRAWS)
    dice = Dice(f"settings of {seed}")
    c = replace(c, **_memory(dice), **_callers(dice, c.problems))
    return c if seed < FIXED else _with_more(c, seed)


def _with_more(c: Combination, seed: int) -> Combination:
    """What the fixed draws lack."""
    dice = Dice(f"more problems of {seed // DRAWS}")
    c = replace(
        c,
        model=dice.perhaps(0.1, *STORED) or c.model,
        gate=dice.random() < 0.2 and c.thinking is None and c.tools is None,
        verifier="leaves_early" if c.verifier and dice.random() < 0.1 else c.verifier,
    )
    similar = dice.random() < 0.1 and c.model not in STATEFUL
    tools: Any = dice.perhaps(0.5, "strict", "required")
    if c.tools and tools and not any(one.puts_words for one in c.searches):
        c = replace(c, tools=tools, chats=True, generation=None, thinking=None)
    dice = Dice(f"more settings of {seed}")
    visits = dice.perhaps(0.4, 1, 2, 5, 11)
    models = ["weights", *["adapter"] * (c.model in SHARES)]
    sharing = c.sharing if c.verifier != "leaves_early" else "exact"  # branches leave one pass
    return replace(
        c,
        sharing="similar" if similar else sharing,
        at_once=dice.random() < 0.15,
        visits=visits,
        another=visits and dice.perhaps(0.6, *models),
    )


def _problems(seed: int) -> Combination:
    dice = Dice(seed)
    problems = dice.choice([1, 2, 2, 3, 3, 4, 5])
    search = dice.choice([*SEARCHES])
    beside = dice.choice([*SEARCHES]) if problems > 1 and dice.random() < 0.5 else None
    names = {search, beside or search}
    needs_verifier = any(SEARCHES[name].needs_verifier for name in names)
    writers = dice.random() < (0.6 if names & {*HANDED_ON} else 0.1)
    models = [*MODELS, *RARE]
    (model,) = dice.choices(models, [SHARES.get(name, 0.3) for name in models])
    c = Combination(
        seed=seed,
        model=model,
        compiled=dice.choice([None, None, None, "attention", "layers", "layers"]),
        search=search,
        verifier=dice.choice([*VERIFIERS, *[None] * (not needs_verifier)]),
        problems=problems,
        prompt_tokens=dice.choice([3, 12, 20, 36]),
        spends=dice.choice([*[None] * 10, *BUDGETS]),
        sampling=dice.choice([*[None] * 4, *SAMPLINGS]),
        variant=dice.choice([*[None] * 4, *VARIANTS]),
        generation=dice.choice([*[None] * 3, *GENERATION]),
        context=dice.choice([*[None] * 6, 0, 8, 16]),
        differ=problems > 1 and dice.random() < 0.25,
        beside=beside,
        thinking=dice.choice([None, None, None, 0, 2, 5]),
        writers=writers,
    )
    tools: Any = None if writers else dice.choice([*[None] * 8, *TOOLS])
    chats = dice.choice([False, False, False, True]) or tools == "turns"
    c = replace(c, tools=tools, chats=chats, alternatives=dice.choice([0, 0, 0, 2]))
    if tools or writers or any(one.puts_words for one in c.searches):
        return c
    return replace(c, grammar=dice.choice([None, None, None, "lark", "schema"]))


def _memory(dice: Dice) -> dict[str, Any]:
    return {
        "memory": dice.choice([*MEMORIES]),
        "budget": dice.perhaps(0.6, 1.1, 1.3, 1.6, 3.0),
        "host_budget": dice.perhaps(0.15, 2.0, 4.0),
        "block_tokens": dice.choice([4, 8, 16, 32]),
        "prefetch": dice.random() < 0.8,
        "cache": dice.perhaps(0.7, "rsbcm", "lru"),
        "capacity": dice.choice([1, 2, 4, 4, 8, 8, 16, 40]),
        "sharing": dice.choice(["exact", "exact", "exact", "none"]),
        "speculation": dice.perhaps(0.3, "prompt_lookup", "draft_model"),
        "placement": dice.perhaps(0.2, *PLACEMENTS),
    }


def _callers(dice: Dice, problems: int) -> dict[str, Any]:
    return {
        "callers": dice.choice([1, 1, 1, 2]),
        "apart": dice.choice([0, 0, 1, 4]),
        "concurrency": dice.perhaps(0.3, 1, 2, 3),
        "max_rows": dice.perhaps(0.25, 3, 5, 9),
        "prefill_tokens": dice.choice([12, 64, 512, 512]),
        "watched": dice.random() < 0.3,
        "changed": dice.perhaps(0.1, 2, 5, 11),
        "cancelled": dice.perhaps(0.25, *range(problems)),
        "ended_by": dice.choice(["driver", "event", "time"]),
        "at_step": dice.randint(0, 30),
        "restarted": dice.perhaps(0.2, *range(1, problems)),
    }
