"""Answers that begin with a call of a tool."""

from __future__ import annotations

from search.base import Case, Search, SearchSteps
from ttc.branch import Branch
from ttc.protocols import Append
from ttc.tools.chat import ToolChat


def opened(search: Search, root: Branch, case: Case, chat: ToolChat) -> SearchSteps:
    """The search from a root whose text begins with the call's opening, behind the end of the
    thought that the prompt may have begun."""
    text, thoughts = chat.opening, case.thoughts
    if thoughts is not None and root.thinks(thoughts):
        text = f"{thoughts.marks.closing}\n\n{text}"
    (begun,) = yield Append([root], text, ends_thinking=True)
    begun.count_as_written(len(begun.tokens) - len(root.tokens))
    return (yield from search.run(begun, case))
