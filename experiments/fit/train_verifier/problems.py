"""The problems to train on, to choose settings by and to test on: no question is in two of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.fit.train_verifier.settings import LEAST
from experiments.runs.config_values import as_dict
from experiments.runs.data import load_task
from experiments.runs.grading import AnswerReading, IsCorrect
from experiments.runs.orders import check_one_order
from ttc.errors import InvalidInput, number_of
from ttc.results import Problem

FAR = 1_000_000
"""reasoning-gym makes problem i of a seed from seed + i, so that near seeds make the same
problems."""


@dataclass(frozen=True)
class ProblemSet:
    """Some problems. is_correct: their grader, of a problem and an answer. reading: how answers are
    read."""

    problems: list[Problem]
    is_correct: IsCorrect
    reading: AnswerReading

    def is_right(self, problem: Problem, text: str) -> bool:
        return self.grades(problem, self.reading.voting(problem)(text))

    def grades(self, problem: Problem, answer: str | None) -> bool:
        """Whether an answer is right. One that a grader of one's own fails on is nothing to
        learn."""
        try:
            return self.is_correct(problem, answer)
        except InvalidInput:
            return False


@dataclass(frozen=True)
class Problems:
    """source: how the settings of the problems to train on differ from the test set's. dropped: how
    many of them were left out, as their questions are in the test set or came before."""

    train: ProblemSet
    validation: ProblemSet
    test: ProblemSet
    source: str
    dropped: int

    @property
    def parts(self) -> dict[str, ProblemSet]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


def load_problems(config: DictConfig) -> Problems:
    """The test problems are those of `dataset`; those to train on come from `train.data`, or from
    `source`.

    Raises InvalidInput where no source is known, and where too few problems are left.
    """
    settings, data = config.train, config.dataset
    check_one_order(data.orders, "training")
    tested = load_task(data)
    changes: dict[str, Any] = as_dict(settings.data, resolve=True) or source(data)
    limit = settings.problems + len(tested.problems)  # some will be in the test set too
    merged: Any = OmegaConf.merge(data, {"limit": limit, "name": f"{data.name}-train"}, changes)
    trained = load_task(merged)
    usable = unseen(trained.problems, tested.problems)
    dropped = len(trained.problems) - len(usable)
    usable = usable[: settings.problems]
    if len(usable) < LEAST:
        raise InvalidInput(
            f"of {number_of(len(trained.problems), 'problem')} to train on {len(usable)} may be "
            "used, as the others are in the test set or come twice; at least "
            f"{LEAST} are needed, so name others in train.data"
        )
    train, validation = split(usable, settings.validation, config.run.seed)
    return Problems(
        ProblemSet(train, trained.is_correct, trained.reading),
        ProblemSet(validation, trained.is_correct, trained.reading),
        ProblemSet(tested.problems, tested.is_correct, tested.reading),
        " ".join(f"dataset.{name}={value}" for name, value in changes.items()),
        dropped,
    )


def source(dataset: DictConfig) -> dict[str, Any]:
    """How the training problems' settings differ from the test set's, where the user has not
    said."""
    if dataset.task is not None:
        return {"seed": dataset.seed + FAR}
    if dataset.path is None and dataset.shots_split not in (None, dataset.split):
        return {"split": dataset.shots_split, "offset": 0}
    raise InvalidInput(
        f"the data set {dataset.name} names no other problems to train on; give the settings that "
        "differ, as in +train.data.path=train.jsonl, +train.data.split=train or "
        "+train.data.offset=200"
    )


def unseen(problems: Iterable[Problem], others: Iterable[Problem]) -> list[Problem]:
    """The problems whose questions are not among the others', each once. Blanks and capital letters
    are no difference."""
    seen = {_plain(problem.whole_question) for problem in others}
    new = []
    for problem in problems:
        if (question := _plain(problem.whole_question)) not in seen:
            seen.add(question)
            new.append(problem)
    return new


def _plain(question: str) -> str:
    return " ".join(question.casefold().split())


def split(problems: list[Problem], share: float, seed: int) -> tuple[list[Problem], list[Problem]]:
    """(to train on, to choose settings by): whole problems, drawn by the seed, at least one of
    each."""
    shuffled = problems[:]
    random.Random(seed).shuffle(shuffled)
    count = min(max(1, round(share * len(shuffled))), len(shuffled) - 1)
    return shuffled[count:], shuffled[:count]
