"""Several models in one tree: backends side by side, each of which owns the branches it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ttc.backend import Backend, Batch, Need, Purpose, Tokens
from ttc.branch import Branch
from ttc.checks import check_is, check_kind
from ttc.errors import on_failure, refuse
from ttc.sampling import SAMPLED, Sampling
from ttc.step import Step
from ttc.task import Passes, Task
from ttc.tree.branch import by_model


class SeveralModels(Backend):
    """Backends by the names of their models. Roots are the first one's; `Handoff` gives a branch to
    another. Each call goes to the backends that own the branches.

    Texts without a branch are read by the first model's tokenizer.
    """

    def __init__(self, models: Mapping[str, Backend]):
        for name, backend in models.items():
            check_kind("a model's name", name, isinstance(name, str) and bool(name), "its name")
            check_is(f"engine[{name!r}]", backend, Backend, "a backend, as ttc.Engine(...)")
        refuse(
            {
                "engine={} names no model; give one backend, or several by name": not models,
                "one backend stands under several names; give each name a backend of its own": (
                    len({id(backend) for backend in models.values()}) < len(models)
                ),
            }
        )
        self.models = dict(models)
        self.first = next(iter(self.models.values()))
        self.tokenizer = self.first.tokenizer

    @property
    def lacks(self) -> Mapping[Need, str]:
        lacks: dict[Need, str] = {}
        for name, backend in self.models.items():
            lacks |= {need: f"{name}: {why}" for need, why in backend.lacks.items()}
        return lacks

    @property
    def writes_ahead(self) -> bool:
        return any(backend.writes_ahead for backend in self.models.values())

    @property
    def keeps_alternatives(self) -> bool:
        return all(backend.keeps_alternatives for backend in self.models.values())

    def roots(
        self, prompts: Sequence[Tokens], *, seeds: Sequence[int] | None = None
    ) -> Task[list[Branch]]:
        """Prompts of the first model."""
        return self._of_first(self.first.roots(prompts, seeds=seeds))

    def side_branches(
        self, branches: Sequence[Branch], prompts: Sequence[Tokens]
    ) -> Task[list[Branch]]:
        return self._of_first(self.first.side_branches(branches, prompts))

    def _of_first(self, task: Task[list[Branch]]) -> Task[list[Branch]]:
        for branch in task.branches:
            branch.model = next(iter(self.models))
        return task

    def variants(
        self, root: Branch, prompts: Sequence[Tokens], suffixes: Sequence[Tokens] | None = None
    ) -> Task[list[Branch]]:
        return self.models[root.model].variants(root, prompts, suffixes)

    def fork(self, branch: Branch, n: int, keep: int | None = None) -> list[Branch]:
        return self.models[branch.model].fork(branch, n, keep)

    def extend(
        self,
        branches: Sequence[Branch],
        tokens_per_branch: Sequence[Tokens],
        *,
        purpose: Purpose = "prompt",
    ) -> Task[None]:
        def extended(backend: Backend, places: list[int]) -> Task[None]:
            tokens = [tokens_per_branch[place] for place in places]
            return backend.extend([branches[place] for place in places], tokens, purpose=purpose)

        return self._each(branches, extended)

    def _each(
        self,
        branches: Sequence[Branch],
        call: Callable[[Backend, list[int]], Task[Any]],
    ) -> Task[Any]:
        """One task of a call of each backend on its own branches; it gives what they have given for
        each branch, if anything."""
        owners = self._owners(branches)
        tasks: list[Task[Any]] = []
        with on_failure(lambda: list(map(Task.close, tasks))):
            for backend, places in owners:
                tasks.append(call(backend, places))

        def passes() -> Passes[Any]:
            given: dict[int, Any] = {}
            try:
                for (_, places), task in zip(owners, tasks, strict=True):
                    rows = yield from task.passes()
                    if rows is not None:
                        given |= zip(places, rows, strict=True)
            finally:
                for task in tasks:
                    task.close()
            return [given[place] for place in sorted(given)]

        return Task(branches, passes())

    def score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Sequence[Tokens]],
        *,
        given: Sequence[Tokens] | None = None,
        exit: Any = None,
        report: Any = None,
    ) -> Task[list[list[list[float]]]]:
        def scored(backend: Backend, places: list[int]) -> Task[list[list[list[float]]]]:
            own, texts = [branches[i] for i in places], [continuations[i] for i in places]
            before = None if given is None else [given[i] for i in places]
            return backend.score(own, texts, given=before, exit=exit, report=report)

        return self._each(branches, scored)

    def release(self, branches: Iterable[Branch]) -> None:
        branches = list(branches)
        for backend, places in self._owners(branches):
            backend.release([branches[place] for place in places])

    def encode(self, text: str) -> list[int]:
        return self.first.encode(text)

    def decode(self, tokens: Tokens, *, special: bool = False) -> str:
        return self.first.decode(tokens, special=special)

    def running_batch(self, max_rows: int | None = None) -> SideBySide:
        return SideBySide(
            {name: backend.running_batch(max_rows) for name, backend in self.models.items()}
        )

    def _owners(self, branches: Sequence[Branch]) -> list[tuple[Backend, list[int]]]:
        return [(self.models[name], places) for name, places in by_model(branches).items()]


class SideBySide(Batch):
    """Batches of several models, by name, that go on in turn (see `ttc.backend.Batch`)."""

    def __init__(self, batches: Mapping[str, Batch]):
        self.batches = batches

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        for name, places in by_model(branches).items():
            row_limits = None if limits is None else [limits[place] for place in places]
            self.batches[name].add(
                [branches[place] for place in places], step, sampling, row_limits
            )

    def step(self) -> list[Branch]:
        """A token of each local model. Servers are waited for where nothing decodes here."""
        busy = [batch for batch in self.batches.values() if len(batch)]
        ready = [batch for batch in busy if batch.has_answers]
        return [branch for batch in ready or busy for branch in batch.step()]

    def close(self) -> None:
        for batch in self.batches.values():
            batch.close()

    def fits(self, tokens: int, states: int) -> float:
        return min(batch.fits(tokens, states) for batch in self.batches.values())

    def withdraw(self, branches: Sequence[Branch]) -> None:
        for batch in self.batches.values():
            batch.withdraw(branches)

    def __len__(self) -> int:
        return sum(map(len, self.batches.values()))
