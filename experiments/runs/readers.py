"""What a row of a data set means: the question, the gold answer and what else is known of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.cli.settings import DatasetConfig
from experiments.runs.orders import LETTERS, lettered
from experiments.runs.rows import Row
from experiments.runs.user_code import find
from search.options import is_one
from ttc.checks import use_one_of
from ttc.errors import InvalidInput, MissingPart, refuse
from ttc.parts import handled, handler, missing_for
from ttc.results import Problem
from ttc.text.numbers import as_number

RowReader = Callable[[Row, str, DatasetConfig], Problem]


def find_reader(name: str) -> RowReader:
    """The reader of that name, or the function at a dotted path, which may lie in the folder of the
    command."""
    if name in ours():
        return READERS.get(name) or handler("reader", name)
    if gone := missing_for(f"reader={name}"):
        raise MissingPart(gone)
    if "." not in name:
        names = use_one_of(name, ours())
        raise InvalidInput(
            f"dataset.reader={name} is unknown; {names}, or the dotted path of your own function "
            "(row, id, dataset) -> Problem"
        )
    reader: RowReader = find(name, "dataset.reader")
    if not callable(reader):
        raise InvalidInput(
            f"dataset.reader={name} is a {type(reader).__name__}, not a function (row, id, dataset)"
        )
    return reader


UNREAD = {
    "gsm8k": {"solution": "dataset.fields.answer names the worked solution, with the answer in it"},
    "code": {"solution": "dataset.fields.answer names the solution"},
    "evalplus": {"solution": "dataset.fields.answer names the solution"},
    "livecodebench": {
        "answer": "its rows hold tests and no solution",
        "solution": "its rows hold tests and no solution",
    },
}
"""Names of fields that a reader has no use for, and why."""


def check_fields_are_read(config: DatasetConfig) -> None:
    """Raises InvalidInput for a field's name that would change nothing."""
    for field in ("question", "answer", "id", "solution", "source"):
        if (name := getattr(config.fields, field)) is None:
            continue
        why = UNREAD.get(config.reader, {}).get(field)
        if config.task is not None:
            why = f"dataset.task={config.task} makes its problems itself"
        if why is not None:
            raise InvalidInput(
                f"dataset.fields.{field}={name} would not be read: {why}; leave it out"
            )


def check_solution_is_there(rows: Sequence[Row], config: DatasetConfig) -> None:
    """Raises InvalidInput where no row has the field that is said to hold the worked solutions. A
    reader of your own looks for it itself."""
    name = config.fields.solution
    if name is None or config.reader not in ours():
        return
    there = {str(key): None for row in rows if isinstance(row, dict) for key in row}
    if name not in there:
        raise InvalidInput(
            f"dataset.fields.solution={name} is a field that no row has, only {', '.join(there)}; "
            "name another one, or leave it out"
        )


def own_id(problem: Problem, row: Row, config: DatasetConfig) -> Problem:
    """The problem named by the field `dataset.fields.id`, if that is given and the row has a value
    there. A reader of your own names its problems itself."""
    if config.fields.id is None or config.reader not in ours():
        return problem
    id = row[config.fields.id]
    return problem if id in (None, "") else replace(problem, id=str(id))


def text_of(row: Row, name: str) -> str:
    value = row[name]
    is_text = isinstance(value, str | int | float) and value == value  # NaN: a cell without a value
    refuse(
        {
            f"the field {name!r} is {value!r}, not text": not is_text,
            f"the field {name!r} is empty": not str(value).strip(),
        }
    )
    return str(value).strip()


def _gsm8k(row: Row, name: str, config: DatasetConfig) -> Problem:
    """The gold answer follows `####`, after the worked solution."""
    solution = text_of(row, config.fields.answer or "answer")
    _, mark, gold = solution.rpartition("####")
    if not mark or as_number(gold) is None:
        raise InvalidInput(f"the gold answer {solution[-40:]!r} has no number after ####")
    question = text_of(row, config.fields.question or "question")
    return Problem(question, name, gold.strip().replace(",", ""), {"solution": solution})


def _math500(row: Row, name: str, config: DatasetConfig) -> Problem:
    question = text_of(row, config.fields.question or "problem")
    answer = text_of(row, config.fields.answer or "answer")
    about = {"level": row.get("level"), **_solution(row, config.fields.solution or "solution")}
    return Problem(question, name, answer, about)


def _competition(row: Row, name: str, config: DatasetConfig) -> Problem:
    """AIME and AMC, whose sets on the hub differ in names (problem, Problem, question) and write 27
    as 27.0."""
    fields = {str(key).lower(): key for key in row}
    field = config.fields.question or fields.get("problem") or fields.get("question") or "problem"
    gold = text_of(row, config.fields.answer or fields.get("answer") or "answer")
    solution = config.fields.solution or fields.get("solution")
    return Problem(text_of(row, field), name, re.sub(r"\.0+$", "", gold), _solution(row, solution))


def _mmlu_pro(row: Row, name: str, config: DatasetConfig) -> Problem:
    """Up to ten choices. Those that are N/A are left out, and the others keep their letters, which
    the worked solution uses; it begins with `A: `."""
    gold = text_of(row, config.fields.answer or "answer")
    options = zip(LETTERS, map(str, row["options"]), strict=False)
    choices = {letter: text for letter, text in options if text.strip() != "N/A"}
    _check_choice(gold, choices, "options")
    question = text_of(row, config.fields.question or "question")
    worked = _solution(row, config.fields.solution or "cot_content")
    about = {"category": row.get("category")}
    about |= {name: text.removeprefix("A:").strip() for name, text in worked.items()}
    return lettered(question, name, choices, gold, about)


def _arc(row: Row, name: str, config: DatasetConfig) -> Problem:
    labels = list(map(str, row["choices"]["label"]))
    gold = str(row[config.fields.answer or "answerKey"])
    _check_choice(gold, labels, "choices")
    question = text_of(row, config.fields.question or "question")
    solution = _solution(row, config.fields.solution)
    return _with_letters(question, name, row["choices"]["text"], labels.index(gold), solution)


def _check_choice(gold: str, choices: Collection[str], field: str) -> None:
    refuse(
        {
            f"the field {field!r} is empty": not choices,
            f"the gold answer {gold!r} is none of the choices {', '.join(choices)}": (
                gold not in choices
            ),
        }
    )


def _gpqa(row: Row, name: str, config: DatasetConfig) -> Problem:
    """The right answer comes first in the file; the order is shuffled by a seed and the question
    itself."""
    columns = [config.fields.answer or "Correct Answer"]
    columns += [f"Incorrect Answer {number}" for number in (1, 2, 3)]
    question = text_of(row, config.fields.question or "Question")
    order = list(range(len(columns)))
    random.Random(f"{config.shuffle_seed}:{question}").shuffle(order)
    choices = [text_of(row, columns[i]) for i in order]
    solution = _solution(row, config.fields.solution or "Explanation")
    return _with_letters(question, name, choices, order.index(0), solution)


def _plain(row: Row, name: str, config: DatasetConfig) -> Problem:
    """Fields `question` (a text, or a conversation as a list of messages) and `answer`, and if
    there are any, an `id` and a worked `solution`."""
    fields = config.fields
    field = fields.question or "question"
    talk = isinstance(row[field], list) and is_one(row[field])
    question: Any = row[field] if talk else text_of(row, field)
    id = row.get("id")
    about: dict[str, Any] = {
        "id": name if id in (None, "") else str(id),
        "answer": text_of(row, fields.answer or "answer"),
        "metadata": _solution(row, fields.solution or "solution"),
    }
    return Problem.of_chat(question, field, **about) if talk else Problem(question, **about)


READERS: dict[str, RowReader] = {
    "plain": _plain,
    "gsm8k": _gsm8k,
    "math500": _math500,
    "arc_challenge": _arc,
    "gpqa": _gpqa,
    "competition": _competition,
    "mmlu_pro": _mmlu_pro,
}


def ours() -> list[str]:
    """The names of all readers, with those that parts have."""
    return [*READERS, *handled().get("reader", ())]


def _solution(row: Row, name: str | None) -> dict[str, str]:
    """Nothing where the row has none: solutions are for examples alone."""
    if name is None or not str(row.get(name) or "").strip():
        return {}
    return {"solution": text_of(row, name)}


def _with_letters(
    question: str, name: str, choices: list[str], right: int, about: Mapping[str, str]
) -> Problem:
    by_letter = dict(zip(LETTERS, choices, strict=False))
    return lettered(question, name, by_letter, LETTERS[right], about)
