"""What goes with a kind of answer where nothing is said: the words of the prompt, the verifier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments.runs.build import make_search, make_template, resolved
from experiments.runs.hydra_command import composed
from experiments.runs.question_kind import question_kind
from search import BestOfN, solve
from tests.helpers.backends import FakeBackend
from ttc.results import Result
from ttc.text.prompt import STEP_BY_STEP, WORDS, PromptTemplate
from verifiers import ArithmeticVerifier, ConfidenceVerifier, SelfVerifier

RATERS = {
    "number": ArithmeticVerifier,
    "math": ArithmeticVerifier,
    "choice": ConfidenceVerifier,
    "text": ConfidenceVerifier,
}


@pytest.mark.few
@pytest.mark.parametrize("kind", RATERS)
def test_words_and_verifier_of_a_run_follow_the_kind(kind: str) -> None:
    check_defaults(kind, RATERS[kind])


def check_defaults(kind: str, rater: type) -> None:
    words = ["dataset=file", "dataset.path=x", f"dataset.answer_kind={kind}", "search=best_of_n"]
    config = resolved(composed(words))
    assert make_template(config).instruction == WORDS[kind]
    assert isinstance(make_search(config)[1], rater)
    with_reader = composed([*words, "dataset.extract=json.loads"])
    assert with_reader.dataset.instruction == "{question}"


@pytest.mark.parametrize("kind", WORDS)
def test_a_result_shows_the_prompt_with_the_words_of_its_kind(kind: str) -> None:
    def asked(**options: Any) -> Any:
        search, rater = BestOfN(n=2, max_tokens=4), SelfVerifier()
        return solve(search, problem="Why?", engine=FakeBackend(), verifier=rater, **options)

    for template in (None, PromptTemplate(system="Be brief.")):
        result = asked(answer_kind=kind, template=template)
        worded = replace(template or PromptTemplate(), instruction=WORDS[kind])
        assert result.prompt == worded.text("Why?", FakeBackend().tokenizer)
        assert Result.from_dict(result.to_dict()).prompt == result.prompt
    own = asked(answer_kind=kind, template=PromptTemplate(STEP_BY_STEP)).prompt
    assert own is not None and "'The answer is N.'" in own
    assert asked(extract=lambda text: text).prompt == "Question: Why?\nAnswer:"


def test_a_verifier_that_cannot_rate_the_kind_is_told() -> None:
    search, rater = BestOfN(n=2, max_tokens=4), ArithmeticVerifier()
    with pytest.warns(UserWarning, match="ArithmeticVerifier rates answers of the kind number or"):
        solve(search, problem="q", engine=FakeBackend(), verifier=rater, answer_kind="choice")


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("What is the capital of France?", "text"),
        ("Who was president in 2018-2019?", "text"),
        ("What is 17 * 23?", "number"),
        ("What is 9 - 4?", "number"),
        ("Which is larger, 9.9 or 9.11?", "number"),
        ("Tom has 3 apples. How many are left?", "number"),
    ],
)
def test_a_question_asks_for_a_number_or_not(question: str, kind: str) -> None:
    assert question_kind(question) == kind
