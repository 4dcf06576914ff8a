"""What is told of the branches that a search let go of: those among its candidates say it
themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from search.selection import answer_of
from ttc.errors import InvalidInput
from ttc.protocols import Extract
from ttc.tree.branch import Branch


def pruned(
    branches: Mapping[Branch, bool], candidates: Collection[Branch], extract: Extract
) -> dict[str, int]:
    """How many branches the search let go of, and how many of them ended as they should not; only
    what is not 0.

    A branch counts that has written something and that no other continues; the user's next words
    end it, too. early: those that could have gone on, and those that a gate stopped. Of the others
    it is counted where they have no end, a thought that was cut, or no answer; of all, loops and
    thoughts closed at their limit.
    branches: all that ever were, each with whether it answers the question itself, and not later
    words, as those that ask for a critique: no answer is looked for there.
    """
    parents = [branch.parent for branch in branches if not _begins_turn(branch)]
    continued = {*parents, *candidates}
    asked_on = {branch.parent for branch in branches if _begins_turn(branch)}
    counts = Counter[str]()
    for branch, answers in branches.items():
        if branch in continued or {*branch.step_reasons} <= {"interrupted"}:
            continue
        counts["count"] += 1
        counts["looped"] += "looped" in (branch.thought_closed, *branch.step_reasons)
        over = (branch.finished or branch in asked_on) and not branch.gated
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
