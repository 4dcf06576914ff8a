"""Results as values that JSON holds, and as pictures."""

from __future__ import annotations

import json
import math
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import BeamSearch, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.tiers import examples
from ttc import InvalidInput, Problem
from ttc.drawing import tree_svg
from ttc.results import BranchRecord, Node, Result
from ttc.tree.branch import Substitution
from ttc.usage import Usage

texts = st.text(max_size=8)
numbers = st.floats(allow_nan=False)
figures = st.lists(st.one_of(st.floats(), st.just(math.nan)), max_size=3)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts), lambda s: st.lists(s, max_size=2)
)


@st.composite
def records(draw: st.DrawFn) -> BranchRecord:
    text = draw(texts)
    return BranchRecord(
        tokens=draw(st.lists(st.integers(0, 99), max_size=5)),
        prompt_length=draw(st.integers(0, 5)),
        text=text,
        steps=draw(st.lists(texts, max_size=2)),
        logprobs=draw(figures),
        top1=draw(figures),
        entropies=draw(figures),
        top_k_logprobs=draw(figures),
        self_certainties=draw(figures),
        step_ends=draw(st.lists(st.integers(0, 9), max_size=2)),
        step_reasons=draw(st.lists(st.sampled_from(["eos", "length"]), max_size=2)),
        path=tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
        root_id=draw(st.integers(0, 9)),
        finish_reason=draw(st.sampled_from([None, "eos"])),
        substituted=draw(
            st.one_of(
                st.none(), st.builds(Substitution, st.lists(st.integers(), max_size=2), numbers)
            )
        ),
        score=draw(st.one_of(st.none(), numbers)),
        step_scores=draw(st.lists(numbers, max_size=2)),
        thought=draw(st.sampled_from(["", "so"])),
        answer_text=draw(st.one_of(st.none(), st.just(text), texts)),
        thinking_tokens=draw(st.integers(0, 9)),
    )


nodes = st.builds(
    Node,
    id=st.integers(0, 9),
    parent=st.one_of(st.none(), st.integers(0, 9)),
    path=st.lists(st.integers(0, 9), max_size=3),
    text=texts,
    tokens=st.integers(0, 99),
    score=st.one_of(st.none(), numbers),
    step_scores=st.lists(numbers, max_size=2),
    status=st.sampled_from(["root", "expanded", "pruned", "kept", "finished"]),
    start=st.integers(0, 9),
    token_ids=st.lists(st.integers(0, 99), max_size=3),
    logprobs=st.lists(st.one_of(st.none(), numbers), max_size=3),
)


@settings(max_examples=examples(25))
@given(st.data())
def test_a_result_is_the_same_after_json(data: st.DataObject) -> None:
    branches = data.draw(st.lists(records(), max_size=3, unique_by=lambda record: record.path))
    result = Result(
        Problem(
            data.draw(texts),
            data.draw(texts),
            data.draw(st.one_of(st.none(), texts)),
            {"more": data.draw(values)},
        ),
        data.draw(st.sampled_from([None, *branches])),
        branches,
        data.draw(st.one_of(st.none(), texts)),
        data.draw(st.builds(Usage, st.integers(0), wall_s=st.floats(0, 9))),
        data.draw(st.lists(nodes, max_size=3)),
        data.draw(st.integers()),
        data.draw(st.one_of(st.none(), texts)),
        data.draw(st.sampled_from([None, "max_tokens", "cancelled"])),
    )
    text = json.dumps(result.to_dict(), allow_nan=False)
    again = Result.from_dict(json.loads(text))
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    assert (again.problem, again.answer, again.usage, again.tree) == (
        result.problem, result.answer, result.usage, result.tree,
    )  # fmt: skip
    assert (again.seed, again.error, again.stopped) == (result.seed, result.error, result.stopped)
    for one, other in zip(again.branches, result.branches, strict=True):
        assert repr(vars(one)) == repr(vars(other))  # which shows types, and NaN as it is
    assert (again.best is None) == (result.best is None)
    if result.best is not None and again.best is not None:
        assert again.best is again.branches[result.branches.index(result.best)]


@pytest.mark.parametrize(
    "given",
    [{}, {"branches": []}, {"branches": 3}, [1], {"problem": {"text": "q"}, "branches": []}],
)
def test_what_is_no_result_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="are no result"):
        Result.from_dict(given)


class Constant:
    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        return [[float(sum(branch.generated) % 7)] for branch in branches]


def solved() -> Result:
    search = BeamSearch(beam_size=2, beam_width=3, step_tokens=3, max_steps=4)
    return solve(
        search, problem="<b>2 < 3</b> & \u202e?", engine=FakeBackend(), verifier=Constant()
    )


def test_a_notebook_shows_the_tree() -> None:
    result = solved()
    html = result._repr_html_()
    assert (
        "&lt;b&gt;2 &lt; 3&lt;/b&gt; &amp;" in html and "<b>2" not in html and "\u202e" not in html
    )
    svg = ElementTree.fromstring(tree_svg(result.tree, result.best.path if result.best else None))
    space = "{http://www.w3.org/2000/svg}"
    circles = [g.find(f"{space}circle") for g in svg.iter(f"{space}g")]
    assert (
        len(circles) == len(result.tree)
        and len(list(svg.iter(f"{space}path"))) == len(result.tree) - 1
    )
    bold = [
        g for g in svg.iter(f"{space}g") if g.find(f"{space}circle").get("stroke-width") == "2.5"
    ]  # type: ignore[union-attr]
    assert result.best is not None and len(bold) == len(result.best.path) + 1
    dashed = [circle for circle in circles if circle is not None and circle.get("stroke-dasharray")]
    assert len(dashed) == sum(node.status == "pruned" for node in result.tree) > 0
    places = {(circle.get("cx"), circle.get("cy")) for circle in circles if circle is not None}
    assert len(places) == len(result.tree)  # none lies on another


def test_no_line_goes_through_a_text_and_leaves_have_the_room_beside_them() -> None:
    long = "word " * 200
    first = Node(1, 0, [0], long, status="expanded")
    leaves = [Node(2, 0, [1], long), Node(3, 1, [0, 0], long), Node(4, 1, [0, 1], "short")]
    svg = ElementTree.fromstring(tree_svg([Node(0, None, [], status="root"), first, *leaves]))
    kinds = [part.tag.rpartition("}")[2] for part in svg]
    assert kinds == ["path"] * 4 + ["g"] * 5  # texts are drawn over lines, with a white edge
    texts = [part for part in svg.iter() if part.tag.endswith("}text")]
    assert all((t.get("paint-order"), t.get("stroke")) == ("stroke", "#fff") for t in texts)
    prompt, inner, near, far, short = (t.text or "" for t in texts)
    assert (prompt, short) == ("prompt", "short")
    assert 20 < len(inner) < 30 and len(inner) < len(far) < len(near)
    width = float(str(svg.get("width")))
    right = [float(str(t.get("x"))) + 5.5 * len(t.text or "") for t in texts]
    assert width * 0.8 < max(right) <= width


def test_of_a_large_tree_what_was_pruned_is_left_out() -> None:
    root = Node(0, None, [], status="root")
    pruned = [Node(i, 0, [i], f"step {i}", status="pruned") for i in range(1, 900)]
    kept = Node(900, 0, [900], "the end", status="finished")
    result = Result(Problem("q"), None, [], None, Usage(), [root, *pruned, kept])
    html = result._repr_html_()
    assert html.count("<circle") == 2 and "899 pruned nodes left out" in html and "the end" in html


def test_a_result_without_a_tree_is_drawn_too() -> None:
    assert (
        "InvalidInput: too long"
        in Result.unsolved(Problem("q"), 0, "InvalidInput: too long")._repr_html_()
    )
