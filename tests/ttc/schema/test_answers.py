"""Answers by a schema or a grammar, as searches write them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import regex
import torch

from search import (
    BeamSearch,
    BudgetForcing,
    CertaintyProbe,
    ComputeOptimal,
    Greedy,
    Problem,
    Result,
    Search,
    SelfConsistency,
    SelfRefine,
    solve,
    solve_each,
    stream,
)
from search.admission import ProblemAdmission
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions
from tests.helpers.engines import bytes_engine
from tests.helpers.schemas import PERSON, allowed_by, token_bytes
from tests.helpers.searches import Costly, all_searches
from tests.helpers.thinking import OPENING, TURNS, thinker
from tests.helpers.tiers import some_quick
from ttc import (
    Append,
    BlockCache,
    Engine,
    Expand,
    InvalidInput,
    Paged,
    Sampling,
    Step,
    Unsupported,
)
from ttc.parts import find

NUMBERS = "[0-9]{2}(,[0-9]{2}){0,3}"
RULES = f"start: /{NUMBERS}/"


@cache
def engine() -> Engine:
    return bytes_engine()


def texts(result: Result) -> list[str]:
    return [branch.text for branch in result.branches]


# ---------------------------------------------------------------- the distribution


def chances(own: Engine, prompt: list[int], pattern: str, sampling: Sampling) -> dict[str, float]:
    """The probability of each text that fits a pattern: plain transformers, token by token, over
    what may follow."""
    tokens, eos = token_bytes(own.tokenizer), own.tokenizer.eos_token_id
    found: dict[str, float] = {}
    open_texts = [(list[int](), 1.0)]
    with own.lent() as model, torch.inference_mode():
        while open_texts:
            text, chance = open_texts.pop()
            logits = model(torch.tensor([prompt + text])).logits[0, -1].double()
            written = b"".join(tokens[token] or b"" for token in text)
            allowed = sorted(allowed_by(pattern, written, tokens, eos))
            shares = (logits[allowed] / sampling.temperature).softmax(-1).tolist()
            for token, share in zip(allowed, shares, strict=True):
                if token == eos:
                    found[written.decode()] = chance * share
                else:
                    open_texts.append(([*text, token], chance * share))
    return found


def test_texts_come_as_often_as_the_masked_distribution_has_them() -> None:
    own, pattern, count, temperature = engine(), "[ab]{1,2}c?|ca", 2500, 0.7
    search = SelfConsistency(n=count, max_tokens=8, temperature=temperature)
    result = solve(search, problem="?", engine=own, grammar=f"start: /{pattern}/", seed=3)
    prompt = own.encode(str(result.prompt))
    expected = chances(own, prompt, pattern, Sampling(temperature))
    assert sum(expected.values()) == pytest.approx(1)
    seen = Counter(texts(result))
    assert set(seen) <= set(expected) and len(expected) == 13
    squares = sum((seen[text] - count * p) ** 2 / (count * p) for text, p in expected.items())
    assert squares < 39  # of 12 degrees of freedom: once in 10,000


# ---------------------------------------------------------------- searches

SEARCHES = [s for s in all_searches(max_tokens=14, step_tokens=3, max_steps=6) if not s.puts_words]
NAMES = [type(search).__name__ for search in SEARCHES]
FIRST = [place for place, name in enumerate(NAMES) if name not in NAMES[:place]]


def solved(search: Search, own: Engine, questions: Sequence[str], **options: Any) -> list[Result]:
    if search.needs_verifier:
        options["verifier"] = Costly(0)
    return solve(search, problem=list(questions), engine=own, **options)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "place", some_quick(range(len(SEARCHES)), FIRST), ids=lambda place: NAMES[place]
)
def test_every_search_writes_answers_that_fit(place: int) -> None:
    search = SEARCHES[place]
    whole = regex.compile(NUMBERS)
    found = solved(search, engine(), ["1 + 1", "2"], grammar=RULES, answer_kind="text")
    for result in found:
        assert result.error is None and result.branches
        for branch in result.branches:
            text = branch.answer_text or ""
            hint = text if whole.fullmatch(text, partial=True) else ""
            assert hint == text, text
            if branch.finish_reason == "eos":
                assert whole.fullmatch(text)
    assert engine().kv_bytes() == 0


@pytest.mark.parametrize("budget", [{"max_tokens": 40}, {"max_generated_tokens": 25, "reserve": 9}])
def test_budgets_cut_answers_and_change_none(budget: dict[str, int]) -> None:
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=6)
    (result,) = solved(search, engine(), ["?"], grammar=RULES, answer_kind="text", **budget)
    assert result.stopped in budget and result.branches
    for text in texts(result):
        assert regex.fullmatch(NUMBERS, text, partial=True)


def test_short_steps_write_what_one_long_step_does() -> None:
    own = engine()
    (branch,) = own.fork(own.root([1, 2]), 1)
    (again,) = own.roots([[1, 2]], seeds=[0]).result()
    (again,) = own.fork(again, 1)
    grammar = SearchConfig.of(Greedy(), own, SolveOptions(grammar=RULES)).grammar
    batch = own.running_batch()
    batch.add([branch], Step(40, grammar=grammar))
    batch.finish()
    while not again.finished:
        batch.add([again], Step(3, grammar=grammar))
        batch.finish()
    assert again.text == branch.text and branch.finish_reason == "eos"
    assert regex.fullmatch(NUMBERS, branch.text)
    own.release(list(own.live))


# ---------------------------------------------------------------- company, memory, speculation


def together(own: Engine, asked: Sequence[dict[str, Any]]) -> list[Result]:
    """Problems that each have their own schema, grammar or none, in one batch."""
    driver = Driver(own, ProblemAdmission.of(own, len(asked), None))
    for place, options in enumerate(asked):
        config = SearchConfig.of(
            SelfConsistency(n=3, max_tokens=160), own, SolveOptions(seed=5, **options)
        )
        driver.add(Problem("?", id=str(place)), config)
    ended = {i: p.result for i, p in driver.events() if p.result is not None}
    assert own.kv_bytes() == 0
    return [result for place in range(len(asked)) if (result := ended[place])]


MIXED: list[dict[str, Any]] = [
    {"schema": PERSON},
    {},
    {"grammar": RULES},
    {"schema": {"enum": ["yes", "no"]}},
    {"schema": True},
]


@cache
def each_alone() -> list[list[str]]:
    return [texts(together(engine(), [{}] * i + [one])[-1]) for i, one in enumerate(MIXED)]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"memory": Paged(budget_gib=90_000 / 2**30, block_tokens=8)},
        {"cache": BlockCache(2)},
    ],
    ids=["plain", "paged", "cache"],
)
def test_problems_with_other_schemas_or_none_share_a_batch(parts: dict[str, Any]) -> None:
    alone = each_alone()
    mixed = together(bytes_engine(**parts), MIXED)
    assert [texts(result) for result in mixed] == alone
    people = [branch.text for branch in mixed[0].branches if branch.finish_reason == "eos"]
    assert people
    for text in people:
        person = json.loads(text)
        assert list(person) == ["name", "age", "tags"] and 0 <= person["age"] <= 99
        assert regex.fullmatch("[a-z]{1,6}", person["name"])
        assert len(person["tags"]) <= 2 and set(person["tags"]) <= {"red", "green"}
    assert all(regex.fullmatch(NUMBERS, text) for text in alone[2])
    assert set(alone[3]) <= {'"yes"', '"no"'}


def test_tokens_are_checked_and_refused_where_drafts_don_t_fit() -> None:
    lookup = find("speculation", "prompt_lookup")
    if lookup is None:
        pytest.skip("the part that drafts is not there")
    drafted = bytes_engine(speculation=lookup(max_rows=4))
    question = "12,34,12,34,12,34,ab,12,34"
    search = SelfConsistency(n=1, max_tokens=40)
    results = [
        solve(search, problem=question, engine=own, grammar=RULES, seed=2)
        for own in (engine(), drafted)
    ]
    assert texts(results[0]) == texts(results[1])
    assert results[1].usage.drafted_tokens > results[0].usage.drafted_tokens == 0


# ---------------------------------------------------------------- models that think


@pytest.mark.parametrize("limit", [12, None])
def test_a_thought_is_free_and_its_answer_fits(limit: int | None) -> None:
    own = bytes_engine(thinker(OPENING, special=("<think>", "</think>")))
    search = SelfConsistency(n=6, max_tokens=200, thinking_tokens=limit)
    result = solve(search, problem="?", engine=own, schema=PERSON, seed=4)
    ended = [branch for branch in result.branches if branch.finish_reason == "eos"]
    if limit is not None:
        assert len(ended) == 6
    for branch in ended:
        assert branch.thought.strip()
        assert branch.answer_text is not None
        person = json.loads(branch.answer_text)
        assert list(person) == ["name", "age", "tags"]
        assert "Final Answer" not in branch.answer_text


def test_steps_in_a_thought_go_on_to_an_answer_that_fits() -> None:
    own = bytes_engine(thinker(OPENING, special=("<think>", "</think>")))
    search = BeamSearch(
        beam_size=2, beam_width=2, step_tokens=20, max_steps=30, thinking_tokens=9, thinking_step=4
    )
    result = solve(
        search, problem="?", engine=own, verifier=Costly(0), schema={"enum": ["yes", "no"]}
    )
    answers = {branch.answer_text.strip() for branch in result.branches if branch.answer_text}
    assert answers and answers <= {'"yes"', '"no"'}
    assert result.answer in ('"yes"', '"no"')


# ---------------------------------------------------------------- what is read


def test_the_answer_is_the_json_in_one_spelling_and_votes_go_by_it() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    search = SelfConsistency(n=30, max_tokens=60)
    result = solve(search, problem="?", engine=engine(), schema=schema)
    spelt = {branch.text for branch in result.branches if branch.finish_reason == "eos"}
    assert len(spelt) > 2 and result.answer in ('{"a": 1}', '{"a": 2}')
    votes = Counter(json.loads(b.text)["a"] for b in result.branches if b.finish_reason == "eos")
    assert json.loads(result.answer)["a"] == votes.most_common(1)[0][0]
    cut = solve(SelfConsistency(n=2, max_tokens=3), problem="?", engine=engine(), schema=schema)
    assert cut.answer is None and {b.finish_reason for b in cut.branches} == {None}


def test_all_calls_take_a_schema() -> None:
    options: dict[str, Any] = {"engine": engine(), "schema": {"enum": ["yes"]}}
    *_, last = stream(Greedy(max_tokens=9), problem="?", tokens=True, **options)
    assert last.result is not None and last.result.answer == '"yes"'
    (one,) = solve_each(Greedy(max_tokens=9), problems=["?"], **options)
    assert one.answer == '"yes"'


def test_a_model_class_of_pydantic_is_a_schema() -> None:
    from pydantic import BaseModel, Field

    class Point(BaseModel):
        x: int = Field(ge=0, le=9)
        label: str = Field(max_length=4)

    search = SelfConsistency(n=3, max_tokens=80)
    result = solve(search, problem="?", engine=engine(), schema=Point)
    for branch in result.branches:
        if branch.finish_reason == "eos":
            Point.model_validate_json(branch.text)
    assert any(branch.finish_reason == "eos" for branch in result.branches)


# ---------------------------------------------------------------- refused by name


def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: One.
        b: Other.
    """
    return a + b


REFUSED: list[tuple[Search, dict[str, Any], str]] = [
    (Greedy(), {"end": ["\n"]}, r"end=\('\\n',\) and a schema or grammar"),
    (Greedy(), {"tools": [add]}, "tools=.* and a schema or grammar"),
    (
        Greedy(),
        {"max_tokens": 9, "reserve": 3, "final_text": "So"},
        "final_text='So' and a schema or grammar",
    ),
    (BudgetForcing(), {}, "BudgetForcing puts words of its own into answers"),
    (CertaintyProbe(), {}, "CertaintyProbe puts words of its own into answers"),
    (
        ComputeOptimal(strategies=(BudgetForcing(),)),
        {"verifier": Costly(0)},
        "ComputeOptimal puts words of its own into answers",
    ),
]


LOOP = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    "schema", [LOOP, {"enum": []}, {"$ref": "#/$defs/b"}, {"type": "integer", "minimum": 10**60}]
)
def test_what_nothing_fits_is_refused_before_anything_is_written(schema: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^schema=.* cannot be kept to: "):
        SearchConfig.of(Greedy(), engine(), SolveOptions(schema=schema))


@pytest.mark.parametrize(("search", "options", "message"), REFUSED)
def test_what_cannot_be_combined_is_refused(
    search: Search, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        solve(search, problem="?", engine=engine(), schema=PERSON, **options)


def test_several_models_and_other_backends_are_refused() -> None:
    from tests.helpers.backends import FakeBackend

    with pytest.raises(InvalidInput, match="one model's tokens; give one engine"):
        solve(Greedy(), problem="?", engine={"a": engine(), "b": bytes_engine()}, schema=PERSON)
    with pytest.raises(Unsupported, match="FakeBackend keeps to no schema"):
        solve(Greedy(), problem="?", engine=FakeBackend(), schema=PERSON)


class Puts(Search):
    needs_verifier = False

    def run(self, root: Any, case: Any) -> Any:
        (child,) = yield Expand([root], 1, Step(3), self.sampling)
        (child,) = yield Append([child], "So: ")
        return [child]


def test_words_that_a_search_puts_into_an_answer_are_refused() -> None:
    (result,) = solve(Puts(), problem=["?"], engine=engine(), schema=PERSON)
    assert "puts words into an answer that keeps to a schema" in str(result.error)
    assert engine().kv_bytes() == 0


def test_a_critique_is_free() -> None:
    own = bytes_engine(thinker(TURNS))
    search = SelfRefine(attempts=2, max_tokens=12, feedback_tokens=20, rewrite="!", feedback="Ok?")
    result = solve(search, problem="?", engine=own, grammar=RULES, answer_kind="text")
    written = [node for node in result.tree if node.tokens and node.path]
    assert regex.fullmatch(NUMBERS, texts(result)[0], partial=True)
    critiques = [n for n in written if not regex.fullmatch(NUMBERS, n.text, partial=True)]
    assert critiques


def test_where_a_grammar_gives_up_its_problem_alone_fails(monkeypatch: Any) -> None:
    import llguidance

    limits = llguidance.LLParserLimits(step_max_items=10)
    real = llguidance.LLMatcher
    rules = 'start: item+\nitem: "(" item* ")" | A | B\nA: /a+/\nB: /[ab]+/'
    asked: list[dict[str, Any]] = [{"grammar": rules}, {"grammar": RULES}, {}]
    whole = list(map(texts, together(engine(), [{}, *asked[1:]])))

    def narrow(tokens: Any, text: str, **options: Any) -> Any:
        tight = limits if "item" in text else None
        return real(tokens, text, limits=tight, **options)

    monkeypatch.setattr(llguidance, "LLMatcher", narrow)
    failed, *others = together(engine(), asked)
    assert "the answer's grammar cannot be kept to: parser error: Too many" in str(failed.error)
    assert list(map(texts, others)) == whole[1:]


# ---------------------------------------------------------------- a real model
