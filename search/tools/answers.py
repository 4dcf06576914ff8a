"""Branches that wait for the answers of tools while others decode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search.active_search import ActiveSearch
from search.thinking import Phases, PlainStep
from search.tools.runs import ToolRuns
from search.tools.steps import ToolStep
from ttc.protocols import Backend, Step
from ttc.tools.chat import ToolChat
from ttc.tree.branch import Branch

LOOK_S = 0.02
"""Seconds after which it is seen whether tools have answered, where nothing decodes meanwhile."""


@dataclass
class ToolAnswers:
    """The branches that have called tools, each with its step, and the calls of all of them."""

    calling: dict[Branch, ToolStep] = field(default_factory=dict)
    runs: ToolRuns = field(default_factory=ToolRuns)

    def step(
        self,
        child: Branch,
        step: Step,
        thinking: Phases | None,
        chat: ToolChat,
        backend: Backend,
        max_tokens: int,
    ) -> ToolStep:
        """A step in which the branch may call tools. thinking: as it thinks and answers, None where
        nothing limits its thoughts."""
        plain = PlainStep(child, step, backend.tokenizer, max_tokens)
        return ToolStep(thinking or plain, chat, backend)

    def call(self, active: ActiveSearch, child: Branch) -> None:
        """Have the calls of a branch answered; equal calls of a problem are made once."""
        step = active.phases[child]
        assert isinstance(step, ToolStep)
        for call in step.calls:
            if (run := active.tool_runs.get(call.key)) is None or call.error:
                run = self.runs.start(step.chat.tools, call)
            step.runs.append(run if call.error else active.tool_runs.setdefault(call.key, run))
        self.calling[child] = step

    def answered(
        self, searches: Mapping[Branch, ActiveSearch]
    ) -> dict[ActiveSearch, dict[Branch, ToolStep]]:
        """The branches whose calls have all been answered."""
        taken: dict[ActiveSearch, dict[Branch, ToolStep]] = defaultdict(dict)
        if self.calling:
            self.runs.look()
        for child, step in list(self.calling.items()):
            if step.answered:
                taken[searches[child]][child] = self.calling.pop(child)
        return taken

    def wait(self) -> None:
        self.runs.wait(LOOK_S)

    def forget(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            if (step := self.calling.pop(branch, None)) is not None:
                self.runs.drop(step.runs)
