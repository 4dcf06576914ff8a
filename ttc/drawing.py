"""A search tree as a picture for a page or a notebook: SVG that needs no script and no other
file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Protocol, TypeVar

from ttc.errors import number_of

COLUMN = 190
ROW = 22
RADIUS = 6
LETTER = 6.2
"""The width of a letter, about."""
EDGE = 760
"""How far the texts of leaves may go, on the right of which is nothing, and farther in a deeper
tree."""
LOW = (230, 97, 1)
MIDDLE = (247, 247, 247)
HIGH = (33, 102, 172)


class Drawn(Protocol):
    """What is read of a node (`ttc.results.Node` has it)."""

    id: int
    parent: int | None
    path: list[int]
    text: str
    tokens: int
    score: float | None

    @property
    def status(self) -> str: ...

    @property
    def model(self) -> str: ...


N = TypeVar("N", bound=Drawn)


def alive(nodes: Sequence[N]) -> list[N]:
    """The nodes that were not pruned, and those above them."""
    kept: set[int | None] = set()
    for node in reversed(nodes):
        if node.status in ("root", "kept", "finished") or node.id in kept:
            kept |= {node.id, node.parent}
    return [node for node in nodes if node.id in kept]


def tree_svg(nodes: Sequence[Drawn], chosen: Sequence[int] | None = None) -> str:
    """The tree from left to right. Circles go from orange for the lowest score to blue for the
    highest; white is none.

    nodes: parents before their children. chosen: the path of the branch that was chosen, drawn
    bold. What was pruned is dashed. Pointing at a circle shows the whole step.
    """
    children: dict[int | None, list[Drawn]] = defaultdict(list)
    for node in nodes:
        children[node.parent].append(node)
    places = _places(children)
    on_the_way = {
        node.id
        for node in nodes
        if chosen is not None and list(chosen)[: len(node.path)] == node.path
    }
    scores = [node.score for node in nodes if node.score is not None]
    span = (min(scores), max(scores)) if scores else (0.0, 0.0)
    edge = max([EDGE, *(x + COLUMN for x, _ in places.values())])
    labels = {
        node.id: _label(node, COLUMN if node.id in children else edge - places[node.id][0])
        for node in nodes
    }
    ends = (places[id][0] + 20 + LETTER * len(label) for id, label in labels.items())
    width = max(ends, default=0)
    height = max((y for _, y in places.values()), default=0) + ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:g}" '
        'font-size="11">'
    ]
    parts += [
        _link(node, places, node.id in on_the_way) for node in nodes if node.parent is not None
    ]
    parts += [
        _circle(node, places[node.id], labels[node.id], span, node.id in on_the_way)
        for node in nodes
    ]
    return "\n".join([*parts, "</svg>"])


def _places(children: Mapping[int | None, Sequence[Drawn]]) -> dict[int, tuple[float, float]]:
    places: dict[int, tuple[float, float]] = {}
    rows = 0
    waiting = [(node, 0, False) for node in reversed(children.get(None, ()))]
    while waiting:
        node, depth, below_done = waiting.pop()
        below = children.get(node.id, ())
        x = 20 + depth * COLUMN
        if below_done:
            places[node.id] = x, (places[below[0].id][1] + places[below[-1].id][1]) / 2
        elif below:
            waiting.append((node, depth, True))
            waiting += [(child, depth + 1, False) for child in reversed(below)]
        else:
            places[node.id] = x, ROW / 2 + ROW * rows
            rows += 1
    return places


def _link(node: Drawn, places: Mapping[int, tuple[float, float]], chosen: bool) -> str:
    assert node.parent is not None
    (a, b), (x, y) = places[node.parent], places[node.id]
    style = _stroke(node, chosen, "#1c2128" if chosen else "#b3bac4", 2.5 if chosen else 1.2)
    half = (a + x) / 2
    return f'<path d="M{a:g},{b:g}C{half:g},{b:g} {half:g},{y:g} {x:g},{y:g}" fill="none" {style}/>'


def _label(node: Drawn, room: float) -> str:
    """As much of a step's text as has room between its circle and the next."""
    most = int((room - 20) / LETTER)
    words = " ".join(node.text.split())
    label = "prompt" if node.parent is None else words or "(no text)"
    return label if len(label) <= most else label[: most - 1] + "…"


def _circle(
    node: Drawn,
    place: tuple[float, float],
    label: str,
    span: tuple[float, float],
    chosen: bool,
) -> str:
    """The circle of a node and its text, whose white edge keeps lines off its letters."""
    x, y = place
    score = "" if node.score is None else f", score {node.score:.3g}"
    by = f" by {node.model}" if node.model else ""
    title = f"{node.status}, {number_of(node.tokens, 'token')}{by}{score}\n{node.text}"
    style = _stroke(node, chosen, "#1c2128", 2.5 if chosen else 1)
    colour = "#7a828d" if node.status == "pruned" else "#1c2128"
    return (
        f"<g><title>{written(title)}</title>"
        f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS}" fill="{_colour(node.score, *span)}" {style}/>'
        f'<text x="{x + 10:g}" y="{y + 3.5:g}" fill="{colour}" stroke="#fff" stroke-width="7" '
        f'paint-order="stroke">{written(label)}</text></g>'
    )


def _stroke(node: Drawn, chosen: bool, colour: str, width: float) -> str:
    dashes = ' stroke-dasharray="3 3"' if node.status == "pruned" and not chosen else ""
    return f'stroke="{colour}" stroke-width="{width:g}"{dashes}'


def _colour(score: float | None, low: float, high: float) -> str:
    if score is None:
        return "#ffffff"
    part = (score - low) / (high - low) if high > low else 1.0
    ends, place = ((LOW, MIDDLE), 2 * part) if part < 0.5 else ((MIDDLE, HIGH), 2 * part - 1)
    return "rgb({},{},{})".format(*(round(a + (b - a) * place) for a, b in zip(*ends, strict=True)))


def written(text: str) -> str:
    """Text for a page, whatever a model wrote: no tags, and nothing that cannot be seen."""
    seen = (sign if sign in "\n\t" or sign.isprintable() else " " for sign in text)
    return escape("".join(seen))
