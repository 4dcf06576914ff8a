"""A search's tree as it stands, for a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text
from rich.tree import Tree

from experiments.cli.printable import printable
from search.active_search import ActiveSearch
from search.recorded_tree import thought_in
from ttc.results import Node, Result, comparable

SHOWN = 6
"""Branches that are shown below one node; the others are counted."""

WIDTH = 64
"""Characters of a step's text that are shown."""

THOUGHT_WIDTH = 24
"""Characters of its thought, where an answer follows that."""


@dataclass(frozen=True)
class DrawnStep:
    """A node as it is drawn. state: "growing" while its step is under way, else as `Node.status`
    has it. thought: how many characters at the beginning of the text are thought."""

    node: Node
    text: str
    state: str
    chosen: bool = False
    thought: int = 0


def steps_under_way(active: ActiveSearch) -> list[DrawnStep]:
    """The nodes of a problem under way, with what is being written."""
    growing = set(active.growing)
    steps = []
    for branch, node in active.tree.nodes.items():
        if branch in growing:
            before = "" if branch.parent is None else branch.parent.text
            text = branch.text.removeprefix(before)
            steps.append(DrawnStep(node, text, "growing", thought=thought_in(text, branch)))
        else:
            done = "finished" if branch.finished and node.status == "kept" else node.status
            steps.append(DrawnStep(node, node.text, done, thought=node.thought))
    return steps


def steps_of(result: Result) -> list[DrawnStep]:
    best = None if result.best is None else list(result.best.path)
    return [
        DrawnStep(node, node.text, node.status, node.path == best, node.thought)
        for node in result.tree
    ]


def drawn(question: str, steps: Sequence[DrawnStep]) -> Tree:
    """The tree: what is alive step by step, equal branches as one; what was pruned as a number."""
    children: dict[int | None, list[DrawnStep]] = defaultdict(list)
    for step in steps:
        children[step.node.parent].append(step)
    alive = _alive(steps)
    scores = [step.node.score for step in steps if step.node.score is not None]
    span = (min(scores), max(scores)) if scores else (0.0, 0.0)
    tree = Tree(Text(_line(question), style="bold"))
    for root in children[None]:
        _grow(tree, root.node.id, children, alive, span)
    return tree


def _alive(steps: Sequence[DrawnStep]) -> set[int]:
    """The ids of nodes that were not pruned, and of those above them."""
    alive: set[int] = set()
    for step in reversed(steps):
        if step.state in ("growing", "kept", "finished", "root") or step.node.id in alive:
            alive.add(step.node.id)
            if step.node.parent is not None:
                alive.add(step.node.parent)
    return alive


def _grow(
    tree: Tree,
    parent: int,
    children: Mapping[int | None, list[DrawnStep]],
    alive: set[int],
    span: tuple[float, float],
) -> None:
    living = [step for step in children[parent] if step.node.id in alive]
    pruned = [step for step in children[parent] if step.node.id not in alive]
    alike: dict[tuple[object, ...], list[DrawnStep]] = {}
    for step in living:
        leaf = not children[step.node.id]
        same = step.text, step.node.score, step.state, step.chosen
        alike.setdefault(same if leaf and not step.chosen else (step.node.id,), []).append(step)
    ranked = sorted(
        alike.values(), key=lambda group: (group[0].chosen, _rank(group[0])), reverse=True
    )
    for group in ranked[:SHOWN]:
        branch = tree.add(_label(group[0], len(group), span))
        if len(group) == 1:
            _grow(branch, group[0].node.id, children, alive, span)
    if hidden := sum(map(len, ranked[SHOWN:])):
        tree.add(Text(f"{hidden} more", style="dim"))
    if pruned:
        best = max(pruned, key=_rank)
        score = "" if best.node.score is None else f", the best with {best.node.score:.2f}"
        tree.add(Text(f"{len(pruned)} pruned{score}", style="dim"))


def _rank(step: DrawnStep) -> float:
    return comparable(step.node.score)


def _label(step: DrawnStep, count: int, span: tuple[float, float]) -> Text:
    label = Text(no_wrap=True, overflow="ellipsis")
    if step.node.model:
        label.append(f"{step.node.model} ", style="dim")
    if step.node.score is not None:
        low, high = span
        place = (step.node.score - low) / (high - low) if high > low else 1.0
        colour = "green" if place > 2 / 3 else "yellow" if place > 1 / 3 else "red"
        label.append(f"{step.node.score:.2f} ", style=colour)
    thought, answer = _line(step.text[: step.thought]), _line(step.text[step.thought :])
    style = "italic" if step.state == "growing" else ""
    if thought:
        text = _line(thought, THOUGHT_WIDTH) if answer else thought
        label.append(f"(thought) {text}", style=f"dim {style}".strip())
    if answer:
        label.append(f" (answer) {answer}" if thought else answer, style=style)
    elif not thought:
        label.append("...", style=style)
    if calls := step.node.tool_calls:
        names = ", ".join(dict.fromkeys(printable(call.name) for call in calls))
        label.append(f" (called {names})", style="dim")
    if step.state == "finished":
        label.append(" (end)", style="dim")
    if count > 1:
        label.append(f" ({count} times)", style="dim")
    if step.chosen:
        label.append("  <- chosen", style="bold green")
    return label


def _line(text: str, width: int = WIDTH) -> str:
    words = printable(" ".join(text.split()))
    return words if len(words) <= width else f"...{words[3 - width :]}"
