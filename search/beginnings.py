"""Problems that begin: their prompts are computed together, and their searches started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from search.active_search import ActiveSearch, Chat, steps_of
from search.config import SearchConfig
from search.under_way import PassEvents, UnderWay
from ttc.backend import Backend
from ttc.errors import InvalidInput
from ttc.origin import error_text
from ttc.results import Problem, Progress, Result, Stopped
from ttc.task import Task
from ttc.tree.branch import Branch


@dataclass
class Beginnings:
    """Problems that begin together, by their numbers.

    strict, contained: as the driver has them.
    prompts: of those that can be used. failed: the ends of the others.
    """

    engine: Backend
    under_way: UnderWay
    problems: Mapping[int, tuple[Problem, SearchConfig]]
    strict: bool
    contained: bool
    prompts: dict[int, list[int]] = field(default_factory=dict)
    failed: list[tuple[int, Progress]] = field(default_factory=list)

    def task(self) -> PassEvents:
        """Let the problems begin, and say why those fail whose prompts cannot be used."""
        for index in self.problems:
            self._read_prompt(index)
        prompts = self._roots()
        roots = [root for task in prompts for root in task.branches]
        begun = self._start_searches(dict(zip(self.prompts, roots, strict=True)))
        try:
            yield from self.failed
            for task in prompts:
                yield from task.passes()
        finally:
            for task in prompts:
                task.close()
        for active in begun:
            if not active.over:
                active.begin()

    def _read_prompt(self, index: int) -> None:
        problem, config = self.problems[index]
        if config.options.cancel is not None and config.options.cancel.is_set():
            self.failed.append((index, _unsolved(problem, config, stopped="cancelled")))
            return
        try:
            tokens = config.template.tokens(problem.question, self.engine.tokenizer)
        except InvalidInput as error:
            self._refuse(index, error)
        else:
            self.prompts[index] = tokens

    def _refuse(self, index: int, error: InvalidInput) -> None:
        if self.strict:
            raise error
        self.failed.append((index, _unsolved(*self.problems[index], error_text(error))))

    def _roots(self) -> list[Task[list[Branch]]]:
        """What makes a root for each prompt. Where one is refused, they are tried one by one, and
        the unusable ones are taken out of `prompts`."""
        seeds = {}
        for index in self.prompts:
            problem, config = self.problems[index]
            seeds[index] = config.seed_of(problem)
        try:
            return [self.engine.roots(list(self.prompts.values()), seeds=list(seeds.values()))]
        except InvalidInput:
            begun = list[Task[list[Branch]]]()
        try:
            for index, tokens in list(self.prompts.items()):
                try:
                    begun.append(self.engine.roots([tokens], seeds=[seeds[index]]))
                except InvalidInput as error:
                    del self.prompts[index]
                    self._refuse(index, error)
        except BaseException:
            self.engine.release([root for task in begun for root in task.branches])
            raise
        return begun

    def _start_searches(self, roots: Mapping[int, Branch]) -> list[ActiveSearch]:
        begun = list[ActiveSearch]()
        try:
            for index, root in roots.items():
                problem, config = self.problems[index]
                case = config.case(problem)
                steps = steps_of(config.search, root, case)
                active = ActiveSearch(
                    problem, index, root, case, steps, config, contained=self.contained
                )
                active.record(root, None)
                chat = Chat(config.template, (), len(root.tokens))
                active.begin_turn(root, chat, self.engine.tokenizer)
                self.under_way.enter(active)
                begun.append(active)
        except BaseException:
            self.engine.release(list(roots.values())[len(begun) :])
            raise
        return begun


def _unsolved(
    problem: Problem, config: SearchConfig, error: str | None = None, stopped: Stopped | None = None
) -> Progress:
    result = Result.unsolved(problem, config.options.seed, error, stopped)
    return Progress(problem, 0, "finished", [], result.usage, result)
