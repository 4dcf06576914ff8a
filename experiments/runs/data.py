"""Data sets: the problems of a run and the solved examples before them."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from experiments.cli.settings import DatasetConfig, FieldNames
from experiments.runs.generated import generated_problems
from experiments.runs.grading import AnswerReading, IsCorrect
from experiments.runs.orders import check_one_order, check_orders, in_orders
from experiments.runs.private import LEFT_OUT, texts_left_out, without_quotes
from experiments.runs.readers import (
    check_fields_are_read,
    check_solution_is_there,
    find_reader,
    own_id,
    text_of,
)
from experiments.runs.rows import UNREADABLE, Row, rows_of_file, rows_of_hub
from experiments.runs.shards import Shard
from experiments.runs.summary import kind_line, kinds_of_errors
from ttc.checks import check_limits
from ttc.errors import InvalidInput, number_of, refuse
from ttc.origin import at, origin
from ttc.parts import handler
from ttc.results import Problem, Result
from ttc.text.answers import check_gold
from ttc.text.encodable import encodable
from ttc.text.multiple_choice import stated_choice
from ttc.text.prompt import check_text

SHOWN_KINDS = 5
"""Of the errors of rows, where none can be used."""

FILLER = (
    "This paragraph is background and has no bearing on the question that follows it. The library "
    "opens in the morning and closes in the evening. Visitors leave their coats at the entrance "
    "and speak quietly in the reading room. On some days the windows are open, and the sound of "
    "the street comes in. "
)


@dataclass(frozen=True)
class LoadedTask:
    """failures: (id, reason) of rows that could not become problems. is_correct: raises
    InvalidInput where a user's grader fails."""

    problems: list[Problem]
    failures: list[tuple[str, str]]
    reading: AnswerReading
    is_correct: IsCorrect


def graded(task: LoadedTask, result: Result) -> dict[str, Any]:
    """A result's answer, and whether it is right; also when only the asked-for form counts."""
    return {
        "answer": result.answer,
        "correct": task.is_correct(result.problem, result.answer),
        "correct_strict": task.is_correct(result.problem, task.reading.strict(result)),
    }


def load_task(config: DatasetConfig) -> LoadedTask:
    """The problems of a configuration. A row that cannot be used fails as a problem of its own."""
    task = _load(config)
    if config.pad_chars and any(problem.messages is not None for problem in task.problems):
        raise InvalidInput(
            f"dataset.pad_chars={config.pad_chars} is for questions, and there are conversations; "
            "leave it out"
        )
    padded = [replace(p, question=_padded(p.question, config.pad_chars)) for p in task.problems]
    return replace(task, problems=padded)


def shard_of(task: LoadedTask, shard: Shard | None) -> LoadedTask:
    """The problems of a shard. Raises InvalidInput for one without any."""
    if shard is None:
        return task
    mine = replace(task, problems=shard.select(task.problems), failures=shard.select(task.failures))
    if not mine.problems:
        raise InvalidInput(
            f"run.shard={shard.index}/{shard.count} is left without a problem, as there are "
            f"{len(task.problems)}; use fewer shards"
        )
    return mine


def _padded(question: str, chars: int) -> str:
    missing = chars - len(question) - 2
    if missing <= 0:
        return question
    return (FILLER * (1 + missing // len(FILLER)))[:missing] + "\n\n" + question


def _load(config: DatasetConfig) -> LoadedTask:
    check_limits(config, DatasetConfig, "dataset.")
    reading = AnswerReading.of(config)
    stop = None if config.limit is None else config.offset + config.limit
    check_fields_are_read(config)
    if config.task is not None:
        check_one_order(config.orders, f"dataset.task={config.task}")
        read = config.hub if config.path is None else config.path
        refuse(
            {
                f"dataset.shots={config.shots} solved examples cannot be made for "
                f"dataset.task={config.task}; write them into dataset.examples": config.shots,
                f"dataset.task={config.task} makes its problems itself, so {read} would not be "
                "read; for a file: dataset=file dataset.path=FILE": read is not None,
            }
        )
        problems, full_score = generated_problems(config, stop)
        is_correct = reading.is_correct if config.grader else full_score
        return checked_grader(LoadedTask(problems, [], reading, is_correct))
    rows = _rows(config)
    if not rows[config.offset :]:
        raise InvalidInput(
            f"the data set {config.path or config.hub} has {number_of(len(rows), 'row')}, none "
            f"after dataset.offset={config.offset}"
        )
    if config.shots_path is None:  # else its rows alone may have solutions
        check_solution_is_there(rows, config)
    numbered = list(enumerate(rows))[config.offset : stop]
    problems, failures = _read(numbered, config, config.orders)
    if not problems:
        kinds = kinds_of_errors([reason for _, reason in failures])
        alike = [f"\n  {kind_line(kind)}" for kind in kinds[:SHOWN_KINDS] if len(failures) > 1]
        raise InvalidInput(
            f"no row of {config.name} ({len(failures)}) can be used as "
            f"dataset.reader={config.reader}; {failures[0][0]}: {failures[0][1]}{''.join(alike)}"
        )
    check_orders(problems, config.orders)
    examples = {question for question, _ in load_examples(config)}
    if both := [p.id for p in problems if p.question in examples]:
        raise InvalidInput(
            f"{both[0]} is among the dataset.shots={config.shots} solved examples, which would "
            "give its answer away; take the examples from other rows: dataset.shots_path, "
            "dataset.shots_split or dataset.offset"
        )
    is_correct = reading.is_correct
    first = problems[0]
    with texts_left_out(config.private, (first.question, first.answer, *first.metadata.values())):
        if config.answer_kind == "code" and config.grader is None:  # programs are run
            is_correct = handler("grader", "code")(problems)
        return checked_grader(LoadedTask(problems, failures, reading, is_correct))


def checked_grader(task: LoadedTask) -> LoadedTask:
    """The task, once a user's grader has graded a gold answer, so that a wrong one is known
    early."""
    if task.reading.same is not None:
        task.is_correct(task.problems[0], task.problems[0].answer)
    return task


def load_examples(config: DatasetConfig) -> list[tuple[str, str]]:
    """The `dataset.shots` solved (question, answer) pairs that stand before each question: the
    first usable rows, or drawn by `dataset.shots_seed`. An answer is the row's worked solution
    where it has one, and ends as the instruction asks."""
    if config.shots == 0:
        return []
    if config.shots_path is not None:
        split = config.shots_split or config.split
        rows = rows_of_file(config.shots_path, "dataset.shots_path", split)
    elif config.shots_split is not None and config.hub is not None and config.path is None:
        rows = rows_of_hub(config.hub, config.subset, config.shots_split)
    else:
        raise InvalidInput(
            f"dataset.shots={config.shots} solved examples come from a file, "
            "dataset.shots_path=FILE, or for a data set of the hub from dataset.shots_split=SPLIT"
        )
    check_solution_is_there(rows, config)
    usable, failures = _read(list(enumerate(rows)), config)
    usable = [p for p in usable if p.answer is not None or p.metadata.get("solution")]
    if len(usable) < config.shots:
        why = f"; {failures[0][0]}: {failures[0][1]}" if failures else ""
        raise InvalidInput(
            f"dataset.shots={config.shots} examples are wanted, and the rows that can be used are "
            f"{len(usable)}{why}"
        )
    if config.shots_seed is not None:
        random.Random(config.shots_seed).shuffle(usable)
    return [(p.question, _worked_example(p, config)) for p in usable[: config.shots]]


def _worked_example(problem: Problem, config: DatasetConfig) -> str:
    """A problem's solution, with the last line that the instruction asks for: where it is "The
    answer is N.", GSM8K's own "#### N" is replaced. Other instructions leave it as it is."""
    solution = str(problem.metadata.get("solution") or "")
    if problem.answer is None:
        return solution
    if config.answer_kind == "code" and not solution:
        return f"```python\n{problem.answer.strip()}\n```"
    end = f"The answer is {problem.answer}."
    if "\\boxed" in config.instruction:
        end = f"The answer is \\boxed{{{problem.answer}}}."
        ends_so = "\\boxed{" in solution
    else:
        asks = "the answer is" in config.instruction.lower() and "####" not in config.instruction
        last = solution.rpartition("\n")[2]
        says = "answer is" in last.lower()
        if config.answer_kind == "choice":  # an explanation may speak of another answer
            says = stated_choice(last, problem.metadata.get("choices")) == problem.answer
        ends_so = not asks or says
    if solution and ends_so:
        return solution
    before, mark, _ = solution.rpartition("####")
    return "\n".join(text for text in ((before if mark else solution).rstrip(), end) if text)


def _rows(config: DatasetConfig) -> list[Row]:
    if config.path is not None:
        return rows_of_file(config.path, split=config.split)
    if config.hub is not None:
        return rows_of_hub(config.hub, config.subset, config.split)
    raise InvalidInput(
        f"the data set {config.name} names no source; give dataset.path, dataset.hub or "
        "dataset.task"
    )


def _read(
    rows: list[tuple[int, Row]], config: DatasetConfig, orders: int = 1
) -> tuple[list[Problem], list[tuple[str, str]]]:
    """The problems of numbered rows, each in so many orders of its choices, and (name, reason) of
    each row that cannot be one."""
    read = find_reader(config.reader)
    problems: dict[str, Problem] = {}
    failures = []
    for number, row in rows:
        name = f"{config.name}-{number}"
        try:
            problem = _checked(own_id(read(_checked_row(row), name, config), row, config), config)
            if config.fields.source is not None:
                source = text_of(row, config.fields.source)
                check_text(source, "the source")
                problem = replace(problem, metadata=problem.metadata | {"source": source})
            by_id = {p.id: p for p in in_orders(problem, orders, config.shuffle_seed)}
            if twice := by_id.keys() & problems.keys():
                raise InvalidInput(f"the id {min(twice)!r} stands on an earlier row already")
            problems |= by_id
        except (Exception, SystemExit) as error:  # a reader may be anyone's; its row alone fails
            reason = str(error)
            missing = isinstance(error, KeyError)
            if missing:
                only = f", only {', '.join(map(str, row))}" if isinstance(row, dict) else ""
                reason = (
                    f"the row has no field {LEFT_OUT if config.private else error}{only}; name "
                    f"the field as in dataset.fields.{_setting(error, config)}=NAME"
                )
            reason = f"{type(error).__name__}: {reason}{at(origin(error))}"
            if config.private and not missing:
                reason = without_quotes(reason, row.values() if isinstance(row, dict) else (row,))
            failures.append((name, reason))
    return list(problems.values()), [(_unused(name, problems), why) for name, why in failures]


def _setting(error: BaseException, config: DatasetConfig) -> str:
    """Which of `FieldNames` names the field that a row lacks."""
    missing = str(*error.args[:1])
    names = {name: name for name in vars(FieldNames())}
    given = {getattr(config.fields, name): name for name in names}
    return given.get(missing) or names.get(missing.lower(), "question")


def _unused(name: str, problems: Collection[str]) -> str:
    """A row's name, lengthened until it is no problem's id."""
    while name in problems:
        name += "-row"
    return name


def _checked_row(row: Any) -> Row:
    if not isinstance(row, dict):
        raise InvalidInput(
            f"the row is {row!r:.60}, of type {type(row).__name__}; give an object with fields"
        )
    if row.keys() == {UNREADABLE}:
        raise InvalidInput(row[UNREADABLE])
    return row


def _checked(problem: Any, config: DatasetConfig) -> Problem:
    if not isinstance(problem, Problem):
        raise InvalidInput(
            f"dataset.reader={config.reader} gave a {type(problem).__name__}, not a ttc Problem"
        )
    check_text(problem.question, "the question")
    check_text(problem.id, "the id")
    if problem.answer is not None or config.answer_kind != "code":  # tests may grade it alone
        check_text(problem.answer, "the gold answer")
    if isinstance(solution := problem.metadata.get("solution"), str):
        check_text(solution, "the solution")
    for name, value in problem.metadata.items():
        if isinstance(value, str | list | dict) and encodable(value) != value:
            raise InvalidInput(
                f"{name} holds half of a pair that stands for one sign (a lone surrogate); the "
                "text was cut or decoded wrongly, so make it again"
            )
    if config.grader is None:  # which knows its own gold answers
        check_gold(problem.answer or "", config.answer_kind)
    return problem
