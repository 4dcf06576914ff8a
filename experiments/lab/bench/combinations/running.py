"""How a draw is run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event

from experiments.lab.bench.combinations import letters, searches
from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.engines import second_of
from experiments.lab.bench.combinations.raters import verifier_of
from experiments.lab.bench.combinations.visiting import Visitor
from search import Problem, Result
from search.admission import ProblemAdmission
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions
from search.several_models import SeveralModels
from ttc import Engine
from ttc.backend import Backend
from ttc.protocols import Verifier
from ttc.results import Node


def config_of(
    c: Combination, engine: Backend, verifier: Verifier | None, besides: bool
) -> SearchConfig:
    """besides: of the problems whose search is `c.beside`."""
    others = besides and c.beside is not None
    search = searches.SEARCHES[str(c.beside) if others else c.search]
    if besides and c.differ:
        c = replace(c, sampling=None, grammar=None, alternatives=0, thinking=None, tools=None)
    settings = searches.SAMPLINGS[c.sampling] | searches.VARIANTS[c.variant]
    if c.tools in letters.JSON_TOOLS:
        settings |= searches.CALLS
    search = replace(search, **{k: v for k, v in settings.items() if hasattr(search, k)})
    if c.thinking is not None:
        search = replace(search, thinking_tokens=c.thinking)
    budget = {} if others or c.spends is None else dict(searches.BUDGETS[c.spends])
    if c.grammar is not None:
        budget.pop("final_text", None)
    options = SolveOptions.of(
        verifier=verifier,
        seed=c.seed,
        end=[] if c.grammar else ["bc"],
        top_logprobs=c.alternatives,
        **letters.GRAMMARS[c.grammar],
        **budget,
        thinking_marks=None if c.thinking is None else letters.MARKS,
        tools=letters.tools_of(c),
    )
    return SearchConfig.of(search, engine, options)


LIMIT_S = 1e6
"""Seconds that no draw takes, unless so many are counted at once."""


@dataclass
class Caller:
    """Drives the searches of some problems.

    coming: the problems that are not there yet, each with the step at which it comes. names: the
    ids of the others, by their numbers. told: what was said of each while it was written.
    between: called after each step.
    """

    c: Combination
    driver: Driver
    coming: list[tuple[int, Problem, SearchConfig]] = field(default_factory=list)
    cancel: Event = field(default_factory=Event)
    names: dict[int, str] = field(default_factory=dict)
    told: dict[int, list[Node]] = field(default_factory=lambda: defaultdict(list))
    between: Callable[[int], None] | None = None
    steps: int = 0

    @property
    def busy(self) -> bool:
        return bool(self.coming) or self.driver.busy

    @property
    def prompts(self) -> list[list[int]]:
        """Of the problems that are not there yet."""
        engine = self.driver.engine
        return [
            config.for_problem(problem, engine).template.tokens(problem.question, engine.tokenizer)
            for _, problem, config in self.coming
        ]

    def step(self) -> Iterator[tuple[str, Result]]:
        while self.coming and self.steps >= self.coming[0][0]:
            _, problem, config = self.coming.pop(0)
            if problem.id == self.c.name_cancelled:
                config = self._may_end(config)
            self.names[self.driver.add(problem, config)] = str(problem.id)
        for index, name in self.names.items():
            if self.steps == self.c.at_step and name == self.c.name_cancelled:
                self._end(index)
        for index, progress in self.driver.step():
            if progress.did == "wrote":
                self.told[index] += progress.nodes
            if progress.result is not None:
                _check_told(self.told[index], progress.result)
                yield self.names[index], progress.result
        self.steps += 1
        if self.between is not None:
            self.between(self.steps)

    def _may_end(self, config: SearchConfig) -> SearchConfig:
        options = config.options
        if self.c.ended_by == "event":
            options = replace(options, cancel=self.cancel)
        elif self.c.ended_by == "time":
            options = replace(options, budget=replace(options.budget, max_wall_s=LIMIT_S))
        return replace(config, options=options)

    def _end(self, index: int) -> None:
        if self.c.ended_by == "driver":
            self.driver.cancel(index)
        elif self.c.ended_by == "event":
            self.cancel.set()
        elif index in self.driver.active:
            self.driver.active[index].spending.started -= LIMIT_S


def _check_told(told: Sequence[Node], result: Result) -> None:
    """Raise unless what was told of steps under way is the beginning of what they came to."""
    whole = {node.id: node.text for node in result.tree}
    for node in told:
        if not whole[node.id].startswith(node.text):
            raise ValueError(f"{node.text!r} was told of {whole[node.id]!r}, at {node.path}")


def results(
    c: Combination, engine: Engine, problems: Sequence[Problem], second: Engine | None = None
) -> Generator[tuple[str, Result], None, None]:
    """Of the problems that the driver has not let go of, as they end, by their ids."""
    callers = _callers(c, engine, problems, second or second_of(c))
    visitor = Visitor(engine, c.another, [p for caller in callers for p in caller.prompts])

    def between(step: int) -> None:
        if c.changed is not None and step % c.changed == 0:
            engine.model_changed()
        if c.visits is not None and step % c.visits == 0:
            visitor.visit()

    callers[-1].between = between
    try:
        yield from (at_once if c.at_once else in_turn)(callers)
    finally:
        for caller in callers:
            caller.driver.close()
        visitor.leave()


def in_turn(callers: Sequence[Caller]) -> Iterator[tuple[str, Result]]:
    while any(caller.busy for caller in callers):
        for caller in callers:
            yield from caller.step()


def at_once(callers: Sequence[Caller]) -> Iterator[tuple[str, Result]]:
    """Each in a thread of its own, to the end."""

    def drive(caller: Caller) -> list[tuple[str, Result]]:
        found = list[tuple[str, Result]]()
        while caller.busy:
            found += caller.step()
        return found

    with ThreadPoolExecutor() as threads:
        for found in threads.map(drive, callers):
            yield from found


def _callers(
    c: Combination, engine: Engine, problems: Sequence[Problem], second: Engine
) -> list[Caller]:
    backend = SeveralModels({"first": engine, "second": second}) if c.writers else engine
    verifier = verifier_of(c, second)
    config = config_of(c, backend, verifier, False)
    apart = c.beside is not None or c.differ
    configs = [config, config_of(c, backend, verifier, True) if apart else config]
    callers = list[Caller]()
    for _ in range(c.callers):
        admission = ProblemAdmission.of(backend, c.concurrency, c.max_rows)
        callers.append(Caller(c, Driver(backend, admission, each_token=c.watched)))
    for number, problem in enumerate(problems):
        config = configs[int(str(problem.id).partition("-")[2]) % 2]
        callers[number % c.callers].coming.append((number * c.apart, problem, config))
    return callers
