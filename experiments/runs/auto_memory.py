"""`memory=auto` in a run: the search that is planned for, and how well the time of its steps was
predicted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from search import Search
from search.base import Case
from ttc.cost_model.policies import Steps
from ttc.engine import Engine
from ttc.placement.auto import Auto
from ttc.protocols import Expand, Rate, Vary
from ttc.scheduler.batch import RunningBatch
from ttc.tree.branch import Branch
from ttc.usage import Usage


def is_auto(config: DictConfig) -> bool:
    return bool(config.memory._target_ == "ttc.Auto")


def auto_of(config: DictConfig) -> Auto:
    """`memory=auto` as configured, planning for what the search asks for where the configuration
    leaves that open."""
    auto: Auto = instantiate(config.memory)
    asked: dict[str, Any] = asked_for(instantiate(config.search, _convert_="all"))
    return replace(auto, **{name: n for name, n in asked.items() if getattr(auto, name) is None})


def asked_for(search: Search) -> dict[str, int]:
    """branches, step_tokens and output_tokens: of the first step that a search asks for, and of as
    many as it makes. Nothing for a search that looks at what a model has written before it asks."""
    root = Branch([0], None, 0, Usage(), lambda tokens: "")
    steps = search.run(root, Case())
    answer: Any = None
    with suppress(Exception):
        while not isinstance(request := steps.send(answer), Expand):
            answer = [root.child() for _ in range(request.n)] if isinstance(request, Vary) else None
            if isinstance(request, Rate):
                answer = [0.0 for _ in request.branches]
        tokens = request.step.max_tokens
        steps.close()
        last = getattr(search, "finish_tokens", 0) or tokens
        output = tokens * (getattr(search, "max_steps", 1) - 1) + last
        return {"branches": len(request.parents()), "step_tokens": tokens, "output_tokens": output}
    return {}


class StepMeter:
    """Times the decoding steps of an engine that was planned, and counts what crosses the link in
    them. Rating and prefill are not counted, as in the plan."""

    def __init__(self, engine: Engine):
        assert engine.chosen is not None
        self.chosen = engine.chosen
        self.seconds = 0.0
        self.link_bytes = 0
        self._crossed = engine.memory.link.to_device_bytes
        self.rows = 0  # tokens decoded
        # what was there at each, added up
        self.sums = dict.fromkeys(("branches", "problems", "prompt", "written"), 0)
        self._batch = engine.running_batch
        engine.running_batch = self.running_batch  # type: ignore[method-assign]

    def running_batch(self, max_rows: int | None = None) -> RunningBatch:
        batch = self._batch(max_rows)
        step = batch.step

        def timed() -> list[Branch]:
            before = {branch: len(branch.tokens) for branch in batch.branches}
            problems = len({branch.root_id for branch in before})
            start = perf_counter()
            crossed = self._crossed.total()
            try:
                return step()
            finally:
                self.seconds += perf_counter() - start
                self.link_bytes += self._crossed.total() - crossed
                for branch, tokens in before.items():
                    count = len(branch.tokens) - tokens
                    self.rows += count
                    self.sums["branches"] += count * len(before)
                    self.sums["problems"] += count * problems
                    self.sums["prompt"] += count * branch.prompt_length
                    self.sums["written"] += count * (tokens - branch.prompt_length)

        batch.step = timed  # type: ignore[method-assign]
        return batch

    def record(self) -> dict[str, Any]:
        """What was chosen and predicted, and a step's time and bytes: measured, and predicted again
        for the branches and lengths that there were on average."""
        planned, option = self.chosen.planned, self.chosen.option
        record: dict[str, Any] = {
            "chosen": self.chosen.settings,
            "planned_for": asdict(planned.search.times(option.problems)),
            "planned_step_s": option.step_s,
        }
        if not self.rows:
            return record
        step = planned.search.step_tokens
        mean = {name: max(1, round(total / self.rows)) for name, total in self.sums.items()}
        search = Steps(
            mean["prompt"], max(step, 2 * mean["written"]), mean["branches"], step, mean["problems"]
        )
        steps = self.rows / (mean["branches"] * step)
        predicted = planned.predicted(option, search)
        measured = self.seconds / steps
        record |= {"searched": asdict(search), "measured_step_s": measured}
        record["measured_step_link_bytes"] = round(self.link_bytes / steps)
        if predicted.feasible:
            record |= {
                "predicted_step_s": predicted.step_s,
                "error": predicted.step_s / measured - 1,
            }
            record["predicted_step_link_bytes"] = predicted.link_bytes
        return record
