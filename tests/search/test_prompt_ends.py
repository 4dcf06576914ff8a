"""Prompts without a chat template end at the next question that the model would invent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.runs.problem_loop import run
from search import (
    BeamSearch,
    Case,
    Expand,
    Greedy,
    Search,
    SearchSteps,
    SelfConsistency,
    Step,
    solve,
)
from search.config import SearchConfig
from search.options import SolveOptions
from tests.helpers.chains import chain
from tests.helpers.chats import CHATS, tokenizer
from tests.helpers.runs import composed, save_rows
from tests.helpers.scripted import Scores, Scripted
from tests.helpers.tokenizers import Ascii
from ttc import Append, Engine
from ttc.text.prompt import PromptTemplate

WRITES = " 5\nQuestion"
"""After each colon: so "Answer:" is followed by an answer and the next question, and that by
another answer."""
ONCE = len(" 5\nQuestion:")
PLAIN = PromptTemplate("{question}")
LONG = Greedy(max_tokens=30)


def local() -> Engine:
    return Engine(chain(WRITES, Ascii()), Ascii())


@pytest.mark.parametrize("options", [{}, {"end": ["xyz", "Question:"]}])
@pytest.mark.parametrize("search", [SelfConsistency(n=3, max_tokens=30, temperature=1.0), LONG])
def test_an_answer_ends_before_the_next_question(search: Search, options: Any) -> None:
    options |= {"template": PLAIN, "answer_kind": "text"}
    result = solve(search, problem="2 + 3?", engine=local(), **options)
    assert result.answer == "5" and result.usage.generated_tokens == ONCE * len(result.branches)
    for branch in result.branches:
        assert branch.text == " 5\n" and branch.steps == [" 5\n"]
        assert branch.finish_reason == "end" and len(branch.generated) == ONCE
    assert {node.text for node in result.tree if node.parent is not None} == {" 5\n"}


@pytest.mark.parametrize(
    "template", [PromptTemplate("{question}:", raw=True), PLAIN], ids=["raw", "chat"]
)
def test_prompts_of_another_form_go_on(template: PromptTemplate) -> None:
    engine = local()
    if not template.raw:
        engine.tokenizer.chat_template = "turns"
        engine.tokenizer.apply_chat_template = lambda messages, **_: messages[0]["content"] + ":"
    result = solve(LONG, problem="2 + 3?", engine=engine, template=template)
    assert result.best is not None and len(result.best.generated) == 30
    assert result.best.text.startswith(" 5\nQuestion: 5\nQuestion:")
    assert SearchConfig.of(LONG, engine, SolveOptions(template=template)).end == ()


def test_steps_of_a_search_and_what_a_verifier_reads_leave_it_out() -> None:
    seen = list[str]()
    search = BeamSearch(beam_size=1, beam_width=1, step_tokens=4, max_steps=9, delimiter="")
    rated = {"verifier": Scores(lambda branch: seen.append(branch.text) or 1.0)}
    options: Any = {"template": PLAIN, "answer_kind": "text", **rated}
    result = solve(search, problem="2 + 3?", engine=local(), **options)
    assert result.best.finish_reason == "end"
    assert seen[-1] == " 5\n" and (result.best.text, result.answer) == (" 5\n", "5")


def test_a_text_that_was_given_does_not_end_an_answer() -> None:
    class Given(Search):
        needs_verifier = False

        def run(self, root: Any, case: Case) -> SearchSteps:
            (first,) = yield Expand([root], 1, Step(1), self.sampling)
            (told,) = yield Append([first], "Question: and")
            return (yield Expand([told], 1, Step(4, end=(*case.end, "x")), self.sampling))

    backend = Scripted(lambda branch: "yyyx")
    (result,) = solve(Given(), problem=["2 + 3?"], engine=backend, template=PLAIN)
    assert result.best.text.startswith("yQuestion: andy")


def test_the_users_next_words_follow_the_question_that_the_model_has_begun() -> None:
    class Twice(Search):
        needs_verifier = False

        def run(self, root: Any, case: Case) -> SearchSteps:
            first = yield Expand([root], 1, Step(30, end=case.end), self.sampling)
            told = yield Append(first, "Sure?", turn=True)
            return (yield Expand(told, 1, Step(30, end=case.end), self.sampling))

    result = solve(Twice(), problem=["2 + 3?"], engine=local(), template=PLAIN)[0]
    whole = Ascii().decode(result.best.tokens)
    assert whole == "Question: 2 + 3?\nAnswer: 5\nQuestion: Sure?\nAnswer: 5\nQuestion:"
    assert result.best.text == " 5\n"


@pytest.mark.slow
def test_records_of_a_run_hold_the_answer_alone(tmp_path: Path) -> None:
    chat = CHATS["zephyr"]
    words = tokenizer(chat.tokens, "bytes", None, None)
    words.save_pretrained(tmp_path / "model")
    chain(WRITES, words).save_pretrained(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", [{"question": "2 + 3?", "answer": "5"}])
    settings = ["search.max_tokens=30", "dataset.answer_kind=text", "run.show_example=false"]
    assert run(composed(tmp_path, *settings))["accuracy"] == 1.0
    (line,) = (tmp_path / "outputs" / "r" / "records.jsonl").read_text().splitlines()
    assert '"text": " 5\\n"' in line and line.count("Question:") == 1  # in the prompt
