"""Word problems of two steps, made by rules: their answers are longer than those of sums."""

from __future__ import annotations

import json
import random
from pathlib import Path

NAMES = ("Tom", "Anna", "Ben", "Lucy", "Sam", "Emma", "Paul", "Mary")
CONTAINERS = ("boxes", "bags", "jars")
THINGS = ("apples", "books", "coins", "cards", "pencils", "shells", "stamps", "marbles")
VERBS = ("finds", "buys", "gets")
SEED = 0


def write_problems(file: Path, count: int) -> None:
    """So many different rows with a question and its answer, as JSON lines; always the same."""
    rng = random.Random(SEED)
    rows: dict[str, int] = {}
    while len(rows) < count:
        name, things, verb = rng.choice(NAMES), rng.choice(THINGS), rng.choice(VERBS)
        containers, each, more = rng.randint(2, 9), rng.randint(4, 12), rng.randint(1, 4)
        question = (
            f"{name} has {containers} {rng.choice(CONTAINERS)} with {each} {things} each. "
            f"Then {name} {verb} {more} more {things}. How many {things} does {name} have now?"
        )
        rows[question] = containers * each + more
    lines = [json.dumps({"question": q, "answer": str(a)}) for q, a in rows.items()]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
