"""The tree that a search's result shows: a node for each branch that ever was."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from ttc.results import Node, Status
from ttc.tree.branch import Branch
from ttc.tree.segment import common_prefix


@dataclass(eq=False)
class RecordedTree:
    """What is recorded of a search's branches.

    nodes: of each branch that ever was, in the order in which they came. parents: the ids of nodes
        with children.
    """

    nodes: dict[Branch, Node] = field(default_factory=dict)
    parents: set[int] = field(default_factory=set)

    def add(self, branch: Branch, parent: Branch | None) -> None:
        above = None if parent is None else self.nodes[parent].id
        status: Status = "root" if above is None else "kept"
        self.nodes[branch] = Node(len(self.nodes), above, list(branch.path), status=status)
        self.nodes[branch].model = branch.model
        if above is not None:
            self.parents.add(above)
        self._keep_tokens(branch)

    def wrote(self, branch: Branch, text: str) -> None:
        """What a step added to a branch."""
        node = self.nodes[branch]
        node.text, node.tokens = text, len(branch.generated)
        node.thought = thought_in(text, branch)
        earlier = 0 if branch.parent is None else len(branch.parent.tool_calls)
        node.tool_calls = branch.tool_calls[earlier:]
        self._keep_tokens(branch)

    def rated(self, branch: Branch) -> Node:
        node = self.nodes[branch]
        node.score, node.step_scores = branch.score, branch.step_scores
        return node

    def let_go(self, branch: Branch) -> None:
        """The search needs the branch no more."""
        node = self.rated(branch)
        if node.parent is not None:
            node.status = "expanded" if node.id in self.parents else "pruned"

    def end(self, branches: Iterable[Branch], candidates: Collection[Branch]) -> None:
        """The search is over, and these branches are still there."""
        for branch in branches:
            node = self.rated(branch)
            if node.parent is None:
                continue
            node.status = "finished" if branch.finished else "kept"
            if node.id in self.parents and branch not in candidates:
                node.status = "expanded"

    def copies(self, branches: Iterable[Branch]) -> list[Node]:
        return [replace(self.nodes[branch]) for branch in branches]

    def _keep_tokens(self, branch: Branch) -> None:
        node, above = self.nodes[branch], [] if branch.parent is None else branch.parent.tokens
        # a whole prompt is compared faster than it is walked
        same = branch.tokens[: len(above)] == above
        node.start = len(above) if same else common_prefix(above, branch.tokens)
        node.token_ids = branch.tokens[node.start :]
        given = [math.nan] * (branch.prompt_length - node.start)
        known = given + branch.logprobs[max(0, node.start - branch.prompt_length) :]
        node.logprobs = [None if math.isnan(value) else value for value in known]


def thought_in(text: str, branch: Branch) -> int:
    """How many characters at the beginning of a branch's last text are thought."""
    if branch.thoughts is None:
        return 0
    answer = branch.answer_text
    if answer is None or not answer:
        return len(text)
    if len(answer) >= len(text):
        return 0
    place = text.rfind(answer)
    return len(text) - len(answer) if place < 0 else place
