"""Branches that wait for the answers of tools while others decode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from search.active_search import ActiveSearch
from search.tools.runs import ToolRuns
from search.tools.steps import ToolCalls
from ttc.backend import Backend
from ttc.tools.chat import ToolChat
from ttc.tree.branch import Branch

LOOK_S = 0.02
"""Seconds after which it is seen whether tools have answered, where nothing decodes meanwhile."""


@dataclass
class ToolAnswers:
    """The branches that have called tools, and the calls of all of them."""

    calling: dict[Branch, ToolCalls] = field(default_factory=dict)
    runs: ToolRuns = field(default_factory=ToolRuns)

    def calls_of(self, child: Branch, chat: ToolChat, backend: Backend) -> ToolCalls:
        """What lets a step of the branch call tools."""
        return ToolCalls(child, chat, backend)

    def call(self, active: ActiveSearch, child: Branch, asked: ToolCalls) -> None:
        """Have the calls of a branch answered; equal calls of a problem are made once."""
        for call in asked.calls:
            if (run := active.tool_runs.get(call.key)) is None or call.error:
                run = self.runs.start(asked.chat.tools, call)
            asked.runs.append(run if call.error else active.tool_runs.setdefault(call.key, run))
        self.calling[child] = asked

    def answered(
        self, searches: Mapping[Branch, ActiveSearch]
    ) -> dict[ActiveSearch, dict[Branch, ToolCalls]]:
        """The branches whose calls have all been answered."""
        taken: dict[ActiveSearch, dict[Branch, ToolCalls]] = defaultdict(dict)
        if self.calling:
            self.runs.look()
        for child, asked in list(self.calling.items()):
            if asked.done:
                taken[searches[child]][child] = self.calling.pop(child)
        return taken

    def wait(self) -> None:
        self.runs.wait(LOOK_S)

    def forget(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            if (asked := self.calling.pop(branch, None)) is not None:
                self.runs.drop(asked.runs)
