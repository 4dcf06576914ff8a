"""`experiments.bench talks` and `orders`: their problems, and what their figures say."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.lab.bench import orders, talks
from tests.experiments.test_orders import MARKS, clustered, in_orders
from ttc.text.conversation import Talk


def test_the_last_question_goes_on_from_the_first_sum() -> None:
    made = talks.talks(40)
    assert made == talks.talks(40) and {row["alone"].split()[2] for row in made} == {"buys", "eats"}
    for row in made:
        first, answer, last = (message["content"] for message in row["question"])
        has, more = map(int, re.findall(r"\d+", first))
        (change,) = map(int, re.findall(r"\d+", last))
        assert last == row["alone"]
        assert answer.endswith(f"The answer is {has + more}.")
        assert int(row["answer"]) == has + more + (change if "buys" in last else -change)


def test_rules_choose_by_the_question_that_they_are_given() -> None:
    """Without the earlier turn the right branch's 13 comes from nowhere."""
    chat = talks.talks(1)[0]["question"]
    (after,) = re.findall(r"answer is (\d+)", chat[1]["content"])
    (change,) = re.findall(r"\d+", chat[2]["content"])
    total = int(after) + int(change)
    texts = [f"{change} + {change} = {2 * int(change)}\nThe answer is {2 * int(change)}."]
    texts.append(f"{after} + {change} = {total}\nThe answer is {total}.")
    branches = [
        {"path": [place], "text": text, "finish_reason": "eos", "correct": place == 1}
        for place, text in enumerate(texts)
    ]
    run: Any = SimpleNamespace(records={"a": {"id": "a", "branches": branches}})
    assert talks.chosen_right([run], {"a": Talk.of(chat)}) == 1


def test_figures_of_orders_are_by_question_and_by_letter() -> None:
    records = [
        record | {"gold": "ABCD"[place % 4], "answer": "A"}
        for place, record in enumerate(in_orders(MARKS))
    ]
    found = orders.figures(records)
    low, high = found["clustered_95"]
    assert (found["problems"], found["questions"]) == (24, 6)
    assert high - low == pytest.approx(2 * 1.959964 * clustered(MARKS))
    assert found["first_order"] == pytest.approx(3 / 6)
    by_letter = [sum(row[place] for row in MARKS) / 6 for place in range(4)]
    assert list(found["by_right_letter"].values()) == pytest.approx(by_letter)
    assert found["answers"] == {"A": 24, "B": 0, "C": 0, "D": 0, "None": 0}
