"""Tools in a step: a branch is told what it asked for and goes on, whatever searches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch

from search import (
    BeamSearch,
    BestOfN,
    Case,
    Expand,
    Greedy,
    Search,
    SearchSteps,
    SelfConsistency,
    solve,
    solve_each,
)
from search.selection import by_path
from tests.helpers.engines import make_engine
from tests.helpers.models import small
from tests.helpers.scripted import Scripted
from tests.helpers.searches import Costly, RandomTree, all_searches
from tests.helpers.tiers import some_quick
from tests.helpers.tools import Letter, counting, letter, tool
from tests.search.test_conversations import SHORT, WITH_SYSTEM, engine
from ttc import Branch, InvalidInput
from ttc.results import Result
from ttc.tool_calls import Written
from ttc.tools.base import Tools
from ttc.tools.chat import ToolChat
from ttc.tools.formats import from_json

SEARCHES = all_searches()
WAIT_S = 60.0
"""Longer than any machine takes, where a test would else wait for ever."""


def says(*texts: str) -> Scripted:
    """Each child of the root writes its own text, whatever it is told in between; a 0 ends it."""

    def rest(branch: Branch) -> str:
        written = sum(logprob == logprob for logprob in branch.logprobs)  # else it was told
        return texts[branch.path[0] % len(texts)][written:]

    return Scripted(rest, longest=2000)


def of_two() -> Scripted:
    """For the problem "x" a tool is called, for others none."""

    def script(branch: Branch) -> str:
        calls = "x" in "".join(map(chr, branch.tokens[: branch.prompt_length]))
        return ("0" if branch.tool_calls else "a7") if calls else "b0"

    return Scripted(script)


def run(backend: Any, tools: Any, search: Search | None = None, **options: Any) -> Result:
    search = search or SelfConsistency(n=2, max_tokens=20)
    options = {"extract": lambda text: text} | options
    result = solve(search, problem="q", engine=backend, tools=tools, **options)
    assert not getattr(backend, "live", None)
    return result


# ---------------------------------------------------------------- a branch


def test_a_branch_is_told_the_answer_and_goes_on() -> None:
    result = run(says("ab7cd0", "x0"), counting())
    first, second = by_path(result.branches)
    assert first.text == "ab7[2]cd0" and second.text == "x0"
    assert first.answer_text == "abcd0" and second.answer_text == "x0"
    (call,) = first.tool_calls
    assert (call.name, call.arguments, call.answer) == ("count", {"text": "ab"}, "2")
    assert first.tokens[call.start : call.told] == [ord("7")]
    assert first.tokens[call.told : call.end] == list(map(ord, "[2]"))
    assert not call.failed and not second.tool_calls
    assert result.tree[1].tool_calls == [call] and result.usage.tool_calls == 1
    assert result.usage.generated_tokens == 8 and first.step_reasons == ["eos"]
    again = Result.from_dict(result.to_dict())
    assert again.branches[0].tool_calls == result.branches[0].tool_calls


def test_what_a_step_may_write_counts_over_its_calls() -> None:
    result = run(says("ab7cdefgh"), counting(), Greedy(max_tokens=6))
    (branch,) = result.branches
    assert branch.text == "ab7[2]cde" and branch.step_reasons == ["length"]
    assert result.usage.generated_tokens == 6


def test_no_more_calls_than_allowed_are_answered() -> None:
    result = run(says("a7b7c7d0"), counting(calls_per_branch=2), Greedy())
    assert result.branches[0].text == "a7[1]b7[1]c7d0"
    assert result.usage.tool_calls == 2


def test_a_long_answer_is_cut() -> None:
    result = run(says("a70"), counting(lambda text: "x" * 99, answer_tokens=5), Greedy())
    assert result.branches[0].text == "a7[xxxxx ... (cut)]0"


def raises(text: str) -> str:
    raise ValueError("no \ude00")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda text: "a\ud800b", "a\ufffdb"),
        (lambda text: "\ud83d\ude00", "\U0001f600"),
        (lambda text: text + "\udfff", "a\ufffd"),
        (raises, "Error: ValueError: no \ufffd"),
    ],
)
def test_half_of_a_pair_in_an_answer_is_a_character_that_is_not_known(
    answer: Any, told: str
) -> None:
    result = run(says("a70"), counting(answer), Greedy())
    assert result.branches[0].tool_calls[0].answer == told
    assert result.branches[0].text == f"a7[{told}]0"


def test_half_of_a_pair_in_a_tools_schema_is_refused() -> None:
    with pytest.raises(InvalidInput, match="half of a surrogate pair"):
        tool(len, name="count", **{"te\ud800xt": "string"})


def test_where_nothing_is_called_all_is_as_without_tools() -> None:
    def drawn(**options: Any) -> list[str]:
        search = SelfConsistency(n=6, max_tokens=12)
        result = solve(search, problem="q", engine=RandomTree(), **options)
        return [branch.text for branch in result.branches]

    called = counting().tools[0]
    never = type("Never", (Letter,), {"calls": lambda self, text: []})()
    assert drawn(tools=Tools([called], format=never)) == drawn()


def test_log_probabilities_are_those_of_plain_hugging_face_after_a_tools_answer() -> None:
    """And nothing is computed again: the answers' tokens are all that is prefilled."""
    engine = make_engine(context=160)
    search = SelfConsistency(n=4, max_tokens=20)
    drawn = solve(search, problem="1 + 1", engine=engine)
    end = max(drawn.branches[0].text[:12], key=drawn.branches[0].text.count)
    tools = counting(lambda text: f"<{len(text)}>", format=letter(end), answer_tokens=30)
    result = solve(search, problem="1 + 1", engine=engine, tools=tools)
    model, calls = small(2, 160), 0
    for branch in result.branches:
        logits = model(torch.tensor([branch.tokens]), use_cache=False).logits[0].detach()
        expected = logits.double().log_softmax(-1)
        given = {place for call in branch.tool_calls for place in range(call.start + 1, call.end)}
        for place, logprob in enumerate(branch.logprobs, branch.prompt_length):
            assert (place in given) == (logprob != logprob)
            if place not in given:
                assert abs(float(expected[place - 1, branch.tokens[place]]) - logprob) < 1e-4
        calls += len(given)
    prompt = result.branches[0].prompt_length - 1  # the last token is fed when it goes on
    assert calls and result.usage.prompt_tokens == prompt + calls


# ---------------------------------------------------------------- many branches


def test_calls_of_siblings_run_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def meet(text: str) -> str:
        both.wait(WAIT_S)
        return "met"

    result = run(says("a70", "bc70"), counting(meet))
    assert [call.answer for b in result.branches for call in b.tool_calls] == ["met", "met"]


def test_equal_calls_of_a_problem_are_made_once() -> None:
    asked = list[str]()

    def ask(text: str) -> int:
        asked.append(text)
        return len(asked)

    search = SelfConsistency(n=3, max_tokens=20)
    result = run(says("a7x0", "ab7y0", "a7z0"), counting(ask), search)
    assert sorted(asked) == ["a", "ab"] and result.usage.tool_calls == 3
    first, _, third = by_path(result.branches)
    assert first.tool_calls[0].answer == third.tool_calls[0].answer


def test_other_problems_go_on_while_a_tool_runs() -> None:
    ended = threading.Event()

    def wait(text: str) -> bool:
        return ended.wait(WAIT_S)

    told, tools = dict[str, str](), counting(wait)
    for result in solve_each(Greedy(), problems=["x", "y"], engine=of_two(), tools=tools):
        told[result.problem.question] = result.branches[0].text
        ended.set()
    assert list(told.items()) == [("y", "b0"), ("x", "a7[true]0")]


@pytest.mark.parametrize(
    "search", some_quick(SEARCHES, SEARCHES[::5]), ids=lambda search: type(search).__name__
)
def test_every_search_works_with_tools(search: Search) -> None:
    """Its branches call a tool wherever a 7 comes, and no answer is read of what they are told."""
    backend, tools = RandomTree(letters="7172,37,7450"), counting(lambda text: "NOT-READ")
    verifier = Costly(1) if search.needs_verifier else None
    result = run(backend, tools, search, verifier=verifier)
    assert result.error is None
    calls = [call for node in result.tree for call in node.tool_calls]
    assert calls and result.usage.tool_calls >= len(calls)
    for call in calls:  # of this turn's words alone
        assert "7" not in call.arguments["text"] and "NOT-READ" not in call.arguments["text"]
    for branch in result.branches:
        assert "NOT-READ" not in str(branch.answer_text)
        assert branch.text.count("[NOT-READ]") <= len(branch.tool_calls)
    again = run(backend, tools, search, verifier=verifier)
    assert (again.answer, again.tree) == (result.answer, result.tree)


# ---------------------------------------------------------------- limits and ends


def test_a_budget_of_calls_ends_the_search_before_its_next_step() -> None:
    search = BestOfN(n=2, max_tokens=9)
    assert run(says("a70"), counting(), search, verifier=Costly(1), max_tool_calls=1).answer
    options = {"verifier": Costly(1), "max_tool_calls": 1}
    result = run(RandomTree(letters="77,,"), counting(), BeamSearch(max_steps=5), **options)
    assert result.stopped == "max_tool_calls" and result.usage.tool_calls >= 1


def test_a_problem_is_cancelled_while_a_tool_runs() -> None:
    cancel, called, ended = threading.Event(), threading.Event(), threading.Event()

    def wait(text: str) -> bool:
        called.set()
        cancel.set()
        return ended.wait(WAIT_S)

    result = run(says("a70"), counting(wait), cancel=cancel)
    ended.set()
    assert called.is_set() and result.stopped == "cancelled"
    assert {branch.text for branch in result.branches} == {"a7"}
    assert {branch.step_reasons[-1] for branch in result.branches} == {"interrupted"}


def test_an_answer_without_room_in_the_context_finishes_the_branch() -> None:
    engine = make_engine(context=140)
    drawn = solve(Greedy(max_tokens=20), problem="1 + 1", engine=engine)
    end = drawn.branches[0].text[0]
    tools = counting(lambda text: "x" * 40, format=letter(end))
    result = solve(Greedy(max_tokens=20), problem="1 + 1", engine=engine, tools=tools)
    (branch,) = result.branches
    assert branch.finish_reason == "context" and not branch.tool_calls


# ---------------------------------------------------------------- faults


def test_a_call_that_the_template_refuses_fails_its_problem_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> str:
        raise InvalidInput("the template takes no such call")

    monkeypatch.setattr(ToolChat, "after", refuse)

    backend, search = of_two(), SelfConsistency(n=2)
    called, other = solve(search, problem=["x", "y"], engine=backend, tools=counting())
    assert "the template takes no such call" in str(called.error) and not backend.live
    assert other.error is None and other.branches[0].text == "b0"


class Again(Greedy):
    """Asks again where its branches are refused."""

    def run(self, root: Branch, case: Case) -> SearchSteps:
        with suppress(InvalidInput):
            yield Expand([root], 2, case.step(20))
        return (yield Expand([root], 1, case.step(20)))


def test_a_call_that_was_not_waited_for_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    after, held, asked = ToolChat.after, threading.Event(), list[str]()

    def refuse(self: ToolChat, calls: Sequence[Written], *more: Any) -> str:
        if calls[0].arguments["text"] == "a":
            raise InvalidInput("the template takes no such call")
        return after(self, calls, *more)

    def slow_at_first(text: str) -> int:
        asked.append(text)
        if asked.count(text) == 1 and text == "b":
            held.wait(WAIT_S)
        return 5

    monkeypatch.setattr(ToolChat, "after", refuse)
    result = run(says("a70", "b70", "b70"), counting(slow_at_first), Again())
    held.set()
    assert sorted(asked) == ["a", "b", "b"]
    assert [branch.text for branch in result.branches] == ["b7[5]0"]


def broken(text: str) -> str:
    raise KeyError("no such city")


FAULTS: list[tuple[Tools, str]] = [
    (counting(broken), "Error: KeyError: 'no such city'"),
    (
        counting(lambda text: threading.Event().wait(WAIT_S), time_s=0.05),
        "Error: no answer came within 0.05 s",
    ),
    (
        Tools([tool(lambda number: 1, number="integer")], format=Letter()),
        "Error: the argument number is missing; count takes number",
    ),
    (
        Tools([tool(lambda text: 1, "other")], format=Letter()),
        "Error: there is no tool count; the tools are: other",
    ),
]


@pytest.mark.parametrize(("tools", "told"), FAULTS)
def test_a_call_that_fails_says_so_to_the_branch(tools: Tools, told: str) -> None:
    (branch,) = run(says("a70"), tools, Greedy()).branches
    assert branch.tool_calls[0].failed and branch.tool_calls[0].answer == told


def test_a_tool_without_a_function_is_left_to_the_caller() -> None:
    schema = counting().tools[0].schema
    result = run(says("ab7c0", "x0"), Tools([schema], format=Letter()))
    first, second = by_path(result.branches)
    assert first.text == "ab7" and first.finish_reason == "end"
    assert first.tool_calls[0].answer is None and first.answer_text == "ab"
    assert second.text == "x0" and not second.tool_calls


def add(x: int, y: int) -> int:
    """Add two numbers.

    Args:
        x: the first
        y: the second
    """
    return x + y


def test_what_is_no_tool_is_refused_with_the_way_out() -> None:
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    for tools, words in [
        ([bare], "type hints"),
        ([3], "give a function"),
        ("python", "a list of functions"),
        ([{"type": "function"}], "no tool's"),
        ([add, add], "two tools are called add"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            solve(Greedy(), problem="q", engine=says("0"), tools=tools)
    for limits, words in [
        ({"format": "xml"}, "hermes"),
        ({"calls_per_branch": 0}, "at least 1"),
        ({"time_s": 0.0}, "more than 0"),
        ({"format": "calculator"}, "calls a tool of that name"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            solve(Greedy(), problem="q", engine=says("0"), tools=Tools([add], **limits))


def test_a_function_is_a_tool_by_its_hints_and_docstring() -> None:
    said = '<tool_call>{"name": "add", "arguments": {"x": 2, "y": 3}}</tool_call>'
    (branch,) = run(says(said + "5."), [add], Greedy(max_tokens=len(said) + 2)).branches
    assert branch.text == said + "\n<tool_response>\n5\n</tool_response>\n5."
    assert branch.answer_text == "5."


@pytest.mark.parametrize(
    ("how", "excluded", "best"),
    [
        ("tool_name", (), 0),
        ("tool_args", (), 2),
        ("tool_hierarchical", (), 1),
        ("tool_hierarchical", ("at",), 0),
        ("none", (), 0),
    ],
)
def test_a_vote_on_calls_is_one_on_what_is_called(
    how: Any, excluded: tuple[str, ...], best: int
) -> None:
    """Of the names, of the arguments, or first of the names; not where most call nothing."""

    class Json(Letter):
        def calls(self, text: str) -> list[Written]:
            return [from_json(text[:-1], 0)]

    said = [
        '{"name": "f", "arguments": {"x": 1, "at": 5}}',
        '{"name": "f", "arguments": {"x": 2, "at": 8}}',
        '{"name": "g", "arguments": {"x": 3, "at": 8}}',
        '{"name": "f", "arguments": {"x": 2, "at": 8}}',
        '{"name": "g", "arguments": {"x": 3, "at": 8}}',
        '{"name": "f", "arguments": {"x": 1, "at": 6}}',
        '{"name": "h", "arguments": {"x": 3, "at": 8}}',
    ]
    schemas = [tool(print, name, x="integer", at="integer").schema for name in "fgh"]
    search = SelfConsistency(n=len(said), max_tokens=60, tool_vote=how, exclude_args=excluded)
    tools = Tools(schemas, format=type("Json", (Json,), {"ends": ("7",)})())
    result = run(says(*(text + "7" for text in said)), tools, search)
    assert result.best is not None and result.best.path == (best,)
    plain = SelfConsistency(n=3, max_tokens=60, tool_vote=how)
    result = run(says(said[0] + "7", "y0", "y0"), tools, plain)
    assert result.answer == "y0"


def test_no_more_of_an_answer_is_made_tokens_than_may_be_told() -> None:
    """However long it is."""
    backend = says("a70")
    longest = [0]
    encode = backend.encode

    def encoded(text: str) -> list[int]:
        longest[0] = max(longest[0], len(text))
        return encode(text)

    backend.encode = encoded  # type: ignore[method-assign]
    for answer in ("x" * 10**6, "x" * (32 * 5 + 1), ["x" * 10**6]):
        longest[0] = 0
        result = run(backend, counting(lambda text, said=answer: said, answer_tokens=5), Greedy())
        (branch,) = result.branches
        assert branch.text.startswith("a7[") and branch.text.endswith(" ... (cut)]0")
        assert longest[0] <= 32 * 5 and len(branch.tool_calls[0].answer or "") == 5 + 10


def test_half_of_a_pair_in_what_a_model_calls_with_is_a_character_that_is_not_known() -> None:
    """JSON can spell it."""

    def calls(self: Any, text: str) -> list[Written]:
        if not text.endswith("7"):
            return []
        return [from_json('{"name": "count", "arguments": {"text": "\\ud800"}}', len(text) - 1)]

    form = type("Spelling", (Letter,), {"calls": calls})()
    result = run(says("a70"), counting(lambda text: text, format=form), Greedy())
    (call,) = result.branches[0].tool_calls
    assert call.arguments == {"text": "\ufffd"} and call.answer == "\ufffd"


def test_tools_are_told_of_in_a_conversation() -> None:
    def times(a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: one.
            b: the other.
        """
        return a * b

    result = solve(SHORT, problem=WITH_SYSTEM, engine=engine(context=4096), tools=Tools([times]))
    head, _, rest = str(result.prompt).partition("<eos>")
    assert "Be brief." in head and "Multiply two numbers." in head and "And 2 more?" in rest
