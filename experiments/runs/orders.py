"""Questions with lettered choices, and the orders in which these are asked."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import factorial

from ttc.errors import InvalidInput
from ttc.results import Problem

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def lettered(
    question: str, name: str, choices: Mapping[str, str], gold: str, about: Mapping[str, object]
) -> Problem:
    """A question with its choices by their letters; `about` is what else is known of it."""
    metadata = {"choices": "".join(choices), "choice_texts": list(choices.values()), **about}
    return Problem(with_choices(question, choices), name, gold, metadata)


def with_choices(question: str, choices: Mapping[str, str]) -> str:
    return "\n".join([question, *(f"({letter}) {choice}" for letter, choice in choices.items())])


def in_orders(problem: Problem, count: int, seed: int) -> Iterator[Problem]:
    """A problem with its choices in `count` different orders, its own first, or in all that there
    are. Further ones are problems of their own, whose `order_of` is the first one's id.

    Raises InvalidInput for a problem without choices.
    """
    yield problem
    if count == 1:
        return
    letters = str(problem.metadata.get("choices") or "")
    texts = problem.metadata.get("choice_texts")
    listed = with_choices("", dict(zip(letters, texts or (), strict=False)))
    gold = problem.answer
    if not texts or gold is None or gold not in [*letters] or not problem.question.endswith(listed):
        raise InvalidInput(
            f"dataset.orders={count} is of choices, and this question has none that are known; "
            "leave it out, or give a reader that makes its problems by "
            "experiments.runs.orders.lettered"
        )
    question = problem.question.removesuffix(listed)
    rng = random.Random(f"{seed}:orders:{question}")
    right = letters.index(gold)
    for number, order in enumerate(orders_of(len(letters), count, rng)[1:], 2):
        moved = [texts[place] for place in order]
        yield replace(
            problem,
            question=with_choices(question, dict(zip(letters, moved, strict=True))),
            id=f"{problem.id}-order{number}",
            answer=letters[order.index(right)],
            metadata=problem.metadata | {"choice_texts": moved, "order_of": problem.id},
        )


def orders_of(choices: int, count: int, rng: random.Random) -> list[list[int]]:
    """Different orders of so many choices, at most all. The first is 0, 1, 2, ...; of the first
    `choices` orders, and of each further so many, each choice stands in each place once."""
    order = list(range(choices))
    orders: list[list[int]] = []
    while len(orders) < min(count, factorial(choices)):
        if order not in orders:
            orders += [order[turn:] + order[:turn] for turn in range(choices)]
        order = rng.sample(order, choices)
    return orders[:count]


def check_orders(problems: Sequence[Problem], count: int) -> None:
    """Raises InvalidInput for more orders than any of the questions has."""
    choices = max(len(str(problem.metadata.get("choices") or "")) for problem in problems)
    if count > (most := factorial(choices)):
        raise InvalidInput(
            f"dataset.orders={count} is more than the {most} orders of {choices} choices; give at "
            "most as many"
        )


def check_one_order(count: int | None, what: str) -> None:
    """Raises InvalidInput where several orders would pass for problems that are independent."""
    if (count or 1) > 1:
        raise InvalidInput(
            f"dataset.orders={count}: orders of one question are no problems of their own, as "
            f"{what} takes them; use dataset.orders=1"
        )


def same_choices(problem: Problem) -> list[str]:
    """The letters of choices whose texts are the same but for blanks and case, all but the first of
    each text; none in a question without choices."""
    letters = str(problem.metadata.get("choices") or "")
    if not letters:
        return []
    _, *parts = re.split(rf"\n\(([{re.escape(letters)}])\) ", problem.question)
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    folded = [" ".join(text.split()).casefold() for text in texts.values()]
    return [letter for at, letter in enumerate(texts) if folded[at] in folded[:at]]
