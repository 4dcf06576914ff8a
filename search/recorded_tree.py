"""The tree that a search's result shows: a node for each branch that ever was."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from search.selection import answer_of
from ttc.branch import Branch
from ttc.errors import InvalidInput
from ttc.protocols import Extract
from ttc.results import Node, Status
from ttc.text.thinking_models import ends_some_thought
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
        logprobs = branch.logprobs[max(0, node.start - branch.prompt_length) :]
        missing = [None] * (branch.prompt_length - node.start)
        node.logprobs = [*missing, *(None if math.isnan(v) else v for v in logprobs)]


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


def pruned(
    branches: Mapping[Branch, bool],
    candidates: Collection[Branch],
    extract: Extract,
    own_marks: bool,
) -> dict[str, int]:
    """How many branches the search let go of, and how many of them ended as they should not; only
    what is not 0.

    A branch counts that has written something and that no other continues; the user's next words
    end it, too. early: those that could have gone on, and those that a gate stopped. Of the others
    it is counted where they have no end, a thought that was cut, or no answer; of all, loops,
    thoughts closed at their limit, and ends of thoughts that are no marks of the model's.
    branches: all that ever were, each with whether it answers the question itself, and not later
    words, as those that ask for a critique: no answer is looked for there.
    own_marks: whether thoughts are told by the model's own marks, not by those of the user.
    """
    parents = [branch.parent for branch in branches if not _begins_turn(branch)]
    continued = {*parents, *candidates}
    replied = {branch.parent for branch in branches if _begins_turn(branch)}
    counts = Counter[str]()
    for branch, answers in branches.items():
        if branch in continued or {*branch.step_reasons} <= {"interrupted"}:
            continue
        counts["count"] += 1
        counts["thoughts_unknown"] += own_marks and ends_some_thought(branch.answer_text)
        counts["looped"] += "looped" in (branch.thought_closed, *branch.step_reasons)
        over = (branch.finished or branch in replied) and not branch.gated
        counts["early"] += not over
        cut = over and branch.answer_text is None
        counts["thoughts_cut"] += cut
        counts["thoughts_closed_by_limit"] += branch.thought_closed == "limit" and not cut
        if over:
            counts["without_an_end"] += branch.finish_reason in (None, "context", "looped")
            counts["no_answer_read"] += answers and _answer(branch, extract) is None
    return {name: count for name, count in counts.items() if count}


def _begins_turn(branch: Branch) -> bool:
    """Whether it begins with words of the user, after an answer."""
    above = branch.parent
    if above is None or above.model != branch.model:
        return False
    return branch.prompt_length > len(above.tokens) > above.prompt_length


def _answer(branch: Branch, extract: Extract) -> str | None:
    try:
        return answer_of(branch, extract)
    except InvalidInput:  # of the user's own grader
        return None
