"""Drivers whose steps a test takes one by one."""

from __future__ import annotations

from typing import Any

from search import Problem, Search
from search.admission import ProblemAdmission
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions


def driver_of(engine: Any, **options: Any) -> Driver:
    return Driver(engine, ProblemAdmission.of(engine), **options)


def add(driver: Driver, search: Search, question: str, **options: Any) -> int:
    """Let a problem begin; options: as of `solve`. Returns its number."""
    config = SearchConfig.of(search, driver.engine, SolveOptions.of(**options))
    return driver.add(Problem(question), config)


def run(driver: Driver, steps: int = 10_000) -> dict[int, Any]:
    """Take so many steps, or fewer where there is nothing left to do. Returns the results that
    there were, by their numbers."""
    results: dict[int, Any] = {}
    for _ in range(steps):
        if driver.busy:
            results |= {number: said.result for number, said in driver.step() if said.result}
    return results
