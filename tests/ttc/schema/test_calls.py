"""Calls of tools whose arguments keep to the tools' schemas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ttc
from search import BudgetForcing, SelfConsistency, solve
from search.config import SearchConfig
from search.options import SolveOptions
from tests.helpers.engines import bytes_engine
from tests.helpers.parts import only_with
from tests.helpers.schemas import filled
from tests.helpers.thinking import OPENING, TURNS, thinker
from ttc import Engine, InvalidInput, Sampling, Step
from ttc.branch import Branch
from ttc.parts import handler
from ttc.tool_calls import ToolCall

pytestmark = only_with("group", "tools")

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": [1, 2]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def schema(name: str, parameters: Any = None) -> dict[str, Any]:
    function = {"name": name} | ({} if parameters is None else {"parameters": parameters})
    return {"type": "function", "function": function}


def tools(*schemas: dict[str, Any], **options: Any) -> Any:
    given = schemas or (schema("add", ADD), schema("now"))
    return handler("group", "tools")(given, strict=True, **options)


def config(own: Engine, given: Any = None) -> SearchConfig:
    return SearchConfig.of(SelfConsistency(), own, SolveOptions(tools=given or tools()))


def letter(character: str) -> int:
    (token,) = thinker().encode(character)
    return int(token)


def wrote(own: Engine, branch: Branch, text: str, grammar: Any, vocab: int) -> None:
    for token in own.encode(text):
        assert token in filled(grammar, branch, vocab), text
        branch.append(token, 0.0, 0.0)


@pytest.mark.parametrize("special", [(), ("<tool_call>", "</tool_call>")])
def test_words_are_free_and_a_call_fits_its_tool(special: tuple[str, ...]) -> None:
    own = bytes_engine(thinker(TURNS, special=special), context=900)
    chosen = config(own)
    grammar, vocab = chosen.grammar, own.limits.vocab_size
    root = own.root([1, 2])
    wrote(own, root, "So, {<tool> [1] <tool_call>", grammar, vocab)
    assert letter("x") not in filled(grammar, root, vocab)
    branches = own.fork(root, 12)
    batch = own.running_batch()
    batch.add(branches, Step(160, ("</tool_call>",), grammar=grammar), Sampling(1.2))
    batch.finish()
    made = [branch for branch in branches if branch.step_reasons[-1] == "delimiter"]
    names = set()
    for branch in made:
        (call,) = chosen.tools.calls(own.decode(branch.tokens[2:], special=True))
        names.add(call.name)
        assert not call.error
        if call.name == "add":
            assert list(call.arguments) == ["a", "b"]
            assert 0 <= call.arguments["a"] <= 9 and call.arguments["b"] in (1, 2)
        else:
            assert call.name == "now" and call.arguments == {}
    assert names == {"add", "now"}
    (after,) = own.fork(made[0], 1)
    wrote(own, after, " and on", grammar, vocab)
    assert own.tokenizer.eos_token_id in filled(grammar, after, vocab)
    own.release([root, *branches, after])


def test_the_answer_of_a_tool_begins_the_text_anew() -> None:
    own = bytes_engine(thinker(TURNS), context=900)
    grammar, vocab = config(own).grammar, own.limits.vocab_size
    branch = own.root([1, 2])
    wrote(own, branch, '<tool_call>{"name": "now", "arguments": {}}', grammar, vocab)
    own.extend([branch], [own.encode('<tool_call>{"x')]).result()
    wrote(own, branch, "free again", grammar, vocab)
    own.release([branch])


def test_a_thought_may_hold_anything() -> None:
    own = bytes_engine(thinker(OPENING, special=("<think>", "</think>")), context=900)
    chosen = config(own)
    prompt = chosen.template.tokens("?", own.tokenizer)
    branch, vocab = own.root(prompt), own.limits.vocab_size
    wrote(own, branch, "<tool_call> is how I call</think>", chosen.grammar, vocab)
    wrote(own, branch, "Now <tool_call>", chosen.grammar, vocab)
    assert letter("i") not in filled(chosen.grammar, branch, vocab)
    own.release([branch])


def test_what_cannot_be_kept_to_is_refused() -> None:
    own = bytes_engine(thinker(TURNS), context=900)
    with pytest.raises(InvalidInput, match=r"tools.strict=True needs calls that are JSON"):
        config(own, tools(schema("add", ADD), format="lfm2"))
    with pytest.raises(InvalidInput, match=r"tools.strict=True cannot be kept to: .*not"):
        config(own, tools(schema("add", {"not": {}})))


@pytest.mark.parametrize(
    "special", [("<tool_call>", "</tool_call>"), pytest.param((), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("opens", [False, True])
def test_a_call_that_must_be_made_is_made_by_a_random_model(
    special: tuple[str, ...], opens: bool
) -> None:
    """Also behind a thought that the prompt opens, and where one call alone may be made."""
    template, strict = (OPENING if opens else TURNS), (schema("add", ADD), schema("now"))
    for choice, parallel in (("required", True), ("add", False), ("now", True)):
        own = bytes_engine(thinker(template, special=special), context=3000)
        given = handler("group", "tools")(strict, choice=choice, parallel=parallel)
        search = SelfConsistency(n=3, max_tokens=900, temperature=1.2)
        result = solve(search, problem="q", engine=own, tools=given, seed=3)
        calling = [branch for branch in result.branches if branch.tool_calls]
        assert len(calling) >= 2  # a call may come to no end within the limit
        assert parallel or all(len(branch.tool_calls) == 1 for branch in calling)
        for call in (call for branch in calling for call in branch.tool_calls):
            assert call.name == choice or choice == "required"
            if call.name == "add":
                assert 0 <= call.arguments["a"] <= 9 and call.arguments["b"] in (1, 2)
            else:
                assert call.arguments == {}


CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


@pytest.mark.parametrize("choice", ["auto", "now"])
def test_behind_the_only_call_the_answer_ends(choice: str) -> None:
    own = bytes_engine(thinker(TURNS), context=900)
    vocab, eos = own.limits.vocab_size, own.tokenizer.eos_token_id
    for parallel in (True, False):
        grammar = config(own, tools(choice=choice, parallel=parallel)).grammar
        branch = own.root([1, 2])
        wrote(own, branch, CALL, grammar, vocab)
        follows = filled(grammar, branch, vocab)
        assert eos in follows and (letter("<") in follows) is parallel
        assert (letter("a") in follows) is (choice == "auto" and parallel)
        own.release([branch])


def test_no_thought_comes_before_a_call_that_must_be_made() -> None:
    """Of a model that may open one, where the prompt says that it should not."""
    switched = TURNS + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    own = bytes_engine(thinker(switched, special=("<think>", "</think>")), context=900)
    (think,) = own.encode("<think>")
    for choice in ("auto", "required"):
        chosen = config(own, tools(choice=choice))
        branch = own.root(chosen.template.tokens("?", own.tokenizer))
        allowed = filled(chosen.grammar, branch, own.limits.vocab_size)
        assert (think in allowed) is (choice == "auto")
        own.release([branch])


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_that_had_to_call_is_free_once_it_has_been_answered(strict: bool) -> None:
    own = bytes_engine(thinker(TURNS), context=900)
    vocab = own.limits.vocab_size
    made = handler("group", "tools")([ttc.Tool(schema("now"), lambda: "8")], "auto", "now")
    chosen = config(own, replace(made, strict=strict))
    branch = own.root([1, 2])
    wrote(own, branch, CALL, chosen.grammar, vocab)
    branch.tool_calls.append(ToolCall("now", {}, "8"))
    own.extend([branch], [own.encode("8")]).result()
    assert letter("x") in filled(chosen.grammar, branch, vocab)
    wrote(own, branch, "It is 8. <tool_call>", chosen.grammar, vocab)
    assert (letter("x") in filled(chosen.grammar, branch, vocab)) is not strict
    own.release([branch])


def test_a_search_that_puts_words_into_answers_is_refused_with_calls_that_must_be_made() -> None:
    own = bytes_engine(thinker(TURNS), context=900)
    given = handler("group", "tools")([schema("now")], choice="required")
    with pytest.raises(InvalidInput, match="BudgetForcing puts words of its own"):
        SearchConfig.of(BudgetForcing(), own, SolveOptions(tools=given))


def test_without_the_mask_the_model_is_given_the_beginning() -> None:
    own = bytes_engine(thinker(TURNS), context=900)
    unkept = schema("add", {"type": "object", "not": {"required": ["a"]}})
    chosen = config(own, handler("group", "tools")([unkept], choice="required"))
    assert chosen.grammar is None and chosen.tools.opening.startswith("<tool_call>")
    kept = config(own, handler("group", "tools")([schema("add", ADD)], choice="required"))
    assert kept.grammar is not None and not kept.tools.opening
