"""Problems that reasoning-gym makes."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from experiments.cli.settings import DatasetConfig
from experiments.runs.grading import IsCorrect
from ttc.errors import InvalidInput, refusing
from ttc.results import Problem


def _import_reasoning_gym() -> Any:
    """The package, also without pycosat, which takes a compiler to install and serves one task."""
    try:
        import pycosat  # noqa: F401
    except ImportError:
        sys.modules["pycosat"] = ModuleType("pycosat")
    with refusing(
        ImportError,
        "generated problems need reasoning-gym ({error}): pip install reasoning-gym, or "
        "without a C compiler pip install --no-deps reasoning-gym and, as they are missed, the "
        "packages that it names",
    ):
        import reasoning_gym
    return reasoning_gym


def generated_problems(config: DatasetConfig, stop: int | None) -> tuple[list[Problem], IsCorrect]:
    """Problems of `dataset.task`, from `dataset.offset` up to `stop`, and what grades them: an
    answer is right where the task's scorer gives it a full score of 1."""
    reasoning_gym = _import_reasoning_gym()
    stop = config.size if stop is None else stop
    if stop <= config.offset:
        raise InvalidInput(
            f"dataset.size={config.size} problems of dataset.task={config.task} are made, none "
            f"after dataset.offset={config.offset}; give dataset.limit, or a larger size"
        )
    params = {str(k): v for k, v in config.params.items()}
    with refusing(
        (ValueError, TypeError, AssertionError),
        f"reasoning-gym refuses dataset.task={config.task} with {params}: {{error}}",
    ):
        generated = reasoning_gym.create_dataset(config.task, size=stop, seed=config.seed, **params)
    try:
        entries = {f"{config.name}-{i}": generated[i] for i in range(config.offset, stop)}
    except AttributeError as error:
        if "pycosat" in str(error):
            raise InvalidInput(
                f"dataset.task={config.task} needs pycosat: pip install pycosat (and a C compiler)"
            ) from error
        raise
    problems = [
        Problem(e["question"].rstrip(), name, str(e["answer"])) for name, e in entries.items()
    ]

    def is_correct(problem: Problem, answer: str | None) -> bool:
        return answer is not None and generated.score_answer(answer, entries[problem.id]) >= 1.0

    return problems, is_correct
