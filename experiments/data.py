"""Data sets: rows from the hub, from a file or from reasoning-gym become problems."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.schema import DatasetConfig
from ttc.errors import InvalidInput
from ttc.protocols import Problem, Result
from ttc.text.answers import as_number, extract_answer, same_answer

Row = dict[str, Any]
FILLER = (
    "This paragraph is background and has no bearing on the question that follows it. The library opens in the morning "
    "and closes in the evening. Visitors leave their coats at the entrance and speak quietly in the reading room. On "
    "some days the windows are open, and the sound of the street comes in. "
)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Task:
    """Problems with their scorer. failures: (id, reason) of rows that could not become problems."""

    problems: list[Problem]
    failures: list[tuple[str, str]]
    is_correct: Callable[[Problem, str | None], bool]


def graded(task: Task, result: Result, kind: str) -> dict[str, Any]:
    """A result's answer and whether it is right, also if only a number that is stated outright counts."""
    strict = result.answer
    if kind == "number" and result.best is not None:
        strict = extract_answer(result.best.text, "strict")
    return {
        "answer": result.answer,
        "correct": task.is_correct(result.problem, result.answer),
        "correct_strict": task.is_correct(result.problem, strict),
    }


def load_task(config: DatasetConfig) -> Task:
    """The problems that `config` describes. A row that cannot be used is a failure of that one problem."""
    task = _load(config)
    padded = [replace(p, question=_padded(p.question, config.pad_chars)) for p in task.problems]
    return replace(task, problems=padded)


def _padded(question: str, chars: int) -> str:
    """The question after as much of FILLER, over and over, as makes `chars` characters of both."""
    missing = chars - len(question) - 2
    if missing <= 0:
        return question
    return (FILLER * (1 + missing // len(FILLER)))[:missing] + "\n\n" + question


def _load(config: DatasetConfig) -> Task:
    if config.offset < 0 or (config.limit is not None and config.limit < 1):
        raise InvalidInput(f"dataset.offset={config.offset} must be 0 or more, dataset.limit={config.limit} at least 1")
    extract_answer("", config.answer_kind)  # refuses an unknown kind
    stop = None if config.limit is None else config.offset + config.limit
    if config.task is not None:
        if config.path is not None or config.hub is not None:
            raise InvalidInput(
                f"dataset.task={config.task} makes its problems itself, so {config.path or config.hub} would not be "
                "read; for a file: dataset=file dataset.path=FILE"
            )
        return _reasoning_gym(config, config.offset, stop)
    rows = list(_rows(config))
    if not rows[config.offset :]:
        raise InvalidInput(
            f"the data set {config.name} has {len(rows)} rows, none after dataset.offset={config.offset}"
        )
    if config.reader not in READERS:
        raise InvalidInput(f"dataset.reader={config.reader} is unknown; use one of {', '.join(READERS)}")
    read, problems, failures = READERS[config.reader], dict[str, Problem](), []
    for number, row in list(enumerate(rows))[config.offset : stop]:
        name = f"{config.name}-{number}"
        try:
            problem = read(row, name, config)
            if problem.id in problems:
                raise InvalidInput(f"the id {problem.id!r} stands on an earlier row already")
            problems[problem.id] = problem
        except (InvalidInput, KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"the row has no field {error}" if isinstance(error, KeyError) else str(error)
            failures.append((name, f"{type(error).__name__}: {reason}"))
    if not problems:
        raise InvalidInput(
            f"none of the {len(failures)} rows of {config.name} can be used as dataset.reader={config.reader}; "
            f"{failures[0][0]}: {failures[0][1]}"
        )
    return Task(list(problems.values()), failures, partial(_same, kind=config.answer_kind))


def _same(problem: Problem, answer: str | None, kind: str) -> bool:
    return problem.answer is not None and same_answer(problem.answer, answer, kind)


# ---------------------------------------------------------------- where rows come from


def _rows(config: DatasetConfig) -> Iterable[Row]:
    if config.path is not None:
        path = Path(config.path).expanduser()
        if not path.is_file():
            raise InvalidInput(f"dataset.path={config.path} is not a file")
        kinds = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
        if path.suffix not in kinds:
            raise InvalidInput(f"dataset.path={config.path} ends in {path.suffix!r}; use one of {', '.join(kinds)}")
        if kinds[path.suffix] == "json":
            return _json_rows(path)
        try:
            return _csv_rows(path) if path.suffix == ".csv" else _parquet_rows(path)
        except Exception as error:
            raise InvalidInput(f"dataset.path={config.path} cannot be read: {error}") from error
    if config.hub is None:
        raise InvalidInput(
            f"the data set {config.name} names no source; give dataset.path, dataset.hub or dataset.task"
        )
    import datasets

    try:
        return datasets.load_dataset(config.hub, config.subset, split=config.split)
    except Exception as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise InvalidInput(
            f"cannot load {config.hub} from the hub ({reason[0]}); check the name, your network and, for gated data, "
            "`hf auth login`, or give a local copy: dataset.path=FILE"
        ) from error


def _json_rows(path: Path) -> list[Row]:
    import json

    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text ({error}); convert it, as with iconv -t utf-8") from error
    if path.suffix == ".json":
        try:
            rows = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidInput(f"{path} is not JSON: {error}") from error
        if not isinstance(rows, list):
            raise InvalidInput(f"{path} holds a {type(rows).__name__}; a .json data set is a list of objects")
        return rows
    rows = []
    for line in filter(str.strip, text.split("\n")):  # other separators may stand inside a string
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            rows.append({"unreadable line": str(error)})
    return rows


def _csv_rows(path: Path) -> Iterable[Row]:
    import datasets

    found: Iterable[Row] = datasets.Dataset.from_csv(str(path), keep_default_na=False)  # "None" may be a choice
    return found


def _parquet_rows(path: Path) -> list[Row]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


# ---------------------------------------------------------------- what a row means


def _text(row: Row, name: str) -> str:
    value = row[name]
    if not isinstance(value, str | int | float) or not str(value).strip():
        raise InvalidInput(f"the field {name!r} is {value!r}, not text")
    return str(value).strip()


def _gsm8k(row: Row, name: str, config: DatasetConfig) -> Problem:
    """The gold answer follows `####`."""
    solution = str(row["answer"])
    _, mark, gold = solution.rpartition("####")
    if not mark or as_number(gold) is None:
        raise InvalidInput(f"the gold answer {solution[-40:]!r} has no number after ####")
    return Problem(_text(row, "question"), name, gold.strip().replace(",", ""))


def _math500(row: Row, name: str, config: DatasetConfig) -> Problem:
    return Problem(_text(row, "problem"), name, _text(row, "answer"), {"level": row.get("level")})


def _arc(row: Row, name: str, config: DatasetConfig) -> Problem:
    choices, labels = row["choices"]["text"], list(map(str, row["choices"]["label"]))
    gold = str(row["answerKey"])
    if gold not in labels:
        raise InvalidInput(f"the gold answer {gold!r} is none of the choices {labels}")
    return Problem(with_choices(_text(row, "question"), choices), name, LETTERS[labels.index(gold)])


def _gpqa(row: Row, name: str, config: DatasetConfig) -> Problem:
    """The right answer comes first in the file; the order is shuffled by a seed and the question itself."""
    columns = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    question, choices = _text(row, "Question"), [_text(row, column) for column in columns]
    order = list(range(len(choices)))
    random.Random(f"{config.shuffle_seed}:{question}").shuffle(order)
    return Problem(with_choices(question, [choices[i] for i in order]), name, LETTERS[order.index(0)])


def _plain(row: Row, name: str, config: DatasetConfig) -> Problem:
    """Fields `question` and `answer`, and an `id` if there is one."""
    given = row.get("id")
    return Problem(_text(row, "question"), name if given in (None, "") else str(given), _text(row, "answer"))


READERS: dict[str, Callable[[Row, str, DatasetConfig], Problem]] = {
    "plain": _plain,
    "gsm8k": _gsm8k,
    "math500": _math500,
    "arc_challenge": _arc,
    "gpqa": _gpqa,
}


def with_choices(question: str, choices: list[str]) -> str:
    """A question followed by its lettered choices."""
    return "\n".join([question, *(f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False))])


# ---------------------------------------------------------------- reasoning-gym


def _import_reasoning_gym() -> Any:
    """The package, also where its pycosat, which takes a compiler to install and which one task uses, is missing."""
    try:
        import pycosat  # noqa: F401
    except ImportError:
        sys.modules["pycosat"] = ModuleType("pycosat")
    try:
        import reasoning_gym
    except ImportError as error:
        raise InvalidInput(f"generated problems need reasoning-gym ({error}): pip install 'ttc[tasks]'") from error
    return reasoning_gym


def _reasoning_gym(config: DatasetConfig, start: int, stop: int | None) -> Task:
    """Generated problems with the task's own scorer; correct means a full score of 1."""
    reasoning_gym = _import_reasoning_gym()
    stop = config.size if stop is None else stop
    if stop <= config.offset:
        raise InvalidInput(
            f"dataset.task={config.task} is made dataset.size={config.size} times, none after "
            f"dataset.offset={config.offset}; give dataset.limit, or a larger size"
        )
    params = {str(k): v for k, v in config.params.items()}
    try:
        made = reasoning_gym.create_dataset(config.task, size=stop, seed=config.seed, **params)
    except (ValueError, TypeError, AssertionError) as error:
        raise InvalidInput(f"reasoning-gym refuses dataset.task={config.task} with {params}: {error}") from error
    try:
        entries = {f"{config.name}-{i}": made[i] for i in range(start, stop)}
    except AttributeError as error:
        if "pycosat" in str(error):
            raise InvalidInput(
                f"dataset.task={config.task} needs pycosat: pip install pycosat (and a C compiler)"
            ) from error
        raise
    problems = [Problem(re.sub(r"\s+$", "", e["question"]), name, str(e["answer"])) for name, e in entries.items()]

    def is_correct(problem: Problem, answer: str | None) -> bool:
        return answer is not None and made.score_answer(answer, entries[problem.id]) >= 1.0

    return Task(problems, [], is_correct)
