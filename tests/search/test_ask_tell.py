"""Searches that are asked for trials and told what came of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import (
    BeamSearch,
    BestOfN,
    DeepConf,
    Greedy,
    SelfConsistency,
    SelfRefine,
    ask_tell,
    solve,
)
from search.asking import AskTell, Trial
from search.base import Search
from tests.helpers.backends import FakeBackend
from tests.helpers.scripted import Scores
from tests.helpers.searches import all_searches
from tests.helpers.tiers import examples
from ttc import Branch, InvalidInput, Problem
from ttc.results import Result
from ttc.sampling import random_key
from ttc.text.word_tokenizer import WordTokenizer
from verifiers import ArithmeticVerifier, SelfVerifier

ended = AskTell.result
"""Waits for nothing, other than the `result` of a thread's work."""
SEARCHES = [search for search in all_searches() if not search.needs]


def words_of(path: str) -> str:
    """What is written by the branch at a path: words and commas, drawn from its name."""
    random = Random(path)
    return "".join(
        random.choice([" 7", " so", " then,", " it is 12,"]) for _ in range(random.randint(1, 9))
    )


def score_of(text: str) -> float:
    return random_key(text) % 101 / 100


def outcome(trial: Trial) -> str | float:
    kind, _, path = trial.id.partition(" ")
    return words_of(path) if kind == "text" else score_of(trial.text)


def run(asking: AskTell, order: Random | None = None, most: int | None = None) -> list[Trial]:
    """Tell trials, in the order of a random choice, until the search is done or `most` are told."""
    told = list[Trial]()
    while not asking.done and len(told) != most:
        asking.ask()
        trial = (order.choice if order else lambda trials: trials[0])(asking.open)
        asking.tell(trial, outcome(trial))
        told.append(trial)
    return told


def outline(result: Result) -> Any:
    """All of a result but times and token numbers."""
    tree = [(n.path, n.text, n.score, n.status, n.parent, n.tokens) for n in result.tree]
    ends = [(branch.text, branch.steps, branch.step_reasons) for branch in result.branches]
    return tree, ends, result.answer, result.stopped, result.error


class ByWords(FakeBackend):
    """A backend that writes `words_of` each branch, a word at a time."""

    def __init__(self) -> None:
        super().__init__(longest=100_000)
        self.tokenizer = WordTokenizer()  # type: ignore[assignment]

    def write_step(
        self, branch: Branch, limit: int, stop: Sequence[str], end: Sequence[str]
    ) -> None:
        start, reason = len(branch.tokens), "length"
        rest = self.encode(words_of(".".join(map(str, branch.path))))
        while len(branch.tokens) - start < limit and reason == "length":
            branch.append(rest.pop(0) if rest else 0, -1.0, 1.0)
            branch.usage.generated_tokens += branch.tokens[-1] != 0
            said = self.decode(branch.tokens[start:]).lstrip()
            if branch.tokens[-1] == 0:
                reason = branch.finish_reason = "eos"
            elif any(string in said for string in stop):
                reason = "delimiter"
        branch.end_step(reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("search", SEARCHES, ids=repr)
def test_a_search_that_is_told_does_what_it_does_on_a_backend(search: Search) -> None:
    asking = ask_tell(search, problem="q", seed=3)
    run(asking)
    verifier = Scores(lambda branch: score_of(branch.text)) if search.needs_verifier else None
    expected = solve(search, problem="q", engine=ByWords(), verifier=verifier, seed=3)
    assert outline(ended(asking)) == outline(expected)


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "It is 2."},
    {"role": "user", "content": "And 2 more?"},
]
BUDGETS: list[dict[str, Any]] = [
    {"max_generated_tokens": 40},
    {"max_tokens": 60, "reserve": 9, "final_text": " so"},
    {"max_calls": 3, "reserve": 5},
]


@settings(max_examples=examples(30), deadline=None)
@given(
    st.sampled_from(SEARCHES),
    st.fixed_dictionaries(
        {
            "seed": st.integers(0, 99),
            "problem": st.sampled_from(["q", TALK]),
            "models": st.sampled_from([(), ("a", "b")]),
            "budget": st.sampled_from(BUDGETS),
        }
    ),
    st.integers(0, 25),
    st.randoms(),
)
def test_another_order_and_a_stop_in_between_change_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    search: Search,
    options: dict[str, Any],
    most: int,
    order: Random,
) -> None:
    file = tmp_path_factory.mktemp("state") / "state.json"
    options |= options.pop("budget")
    plain = ask_tell(search, **options)
    trials = {trial.id: trial for trial in run(plain)}

    begun = ask_tell(search, checkpoint=file, **options)
    run(begun, order, most)
    resumed = ask_tell(search, checkpoint=file, **options)
    assert resumed.open == begun.open and resumed.done == begun.done
    later = [*run(resumed, order), *resumed.open]
    assert all(trials[trial.id] == trial for trial in later)
    assert outline(ended(resumed)) == outline(ended(plain))
    assert ended(resumed).usage.generated_tokens == ended(plain).usage.generated_tokens


def test_every_trial_is_given_once_and_shows_the_whole_chat() -> None:
    asking = ask_tell(
        SelfRefine(attempts=2, feedback="Check it.", rewrite="Now better."), problem="q"
    )
    (first,) = asking.ask()
    assert asking.ask() == [] and asking.open == [first]
    assert first.messages == ({"role": "user", "content": first.messages[0]["content"]},)
    assert "q" in first.prompt and first.text == "" and first.max_tokens == 256
    asking.tell(first, "It is 4.")
    (second,) = asking.ask()
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
    assert [m["content"] for m in second.messages[1:]] == ["It is 4.", "Check it."]
    asking.tell(second, "The sum is wrong.")
    (third,) = asking.ask()
    assert [m["content"] for m in third.messages[3:]] == ["The sum is wrong.", "Now better."]
    asking.tell(third, "It is 5.")
    assert asking.done and ended(asking).answer == "5"


def test_a_text_ends_where_its_step_does() -> None:
    search = BeamSearch(beam_size=1, beam_width=6, max_steps=2, step_tokens=4, delimiter="\n")
    asking = ask_tell(search, problem="q", end=["END"])
    texts = ["one\ntwo", "a b c d e", "over", "goes on", "so END x", "\nwell\n"]
    for trial, text in zip(asking.ask(), texts, strict=True):
        assert (trial.stop, trial.end, trial.max_tokens) == (("\n",), ("END",), 4)
        asking.tell(trial, text, finished=False if text == "goes on" else None)
    rated = asking.ask()
    assert [trial.text for trial in rated] == [
        "one\n",
        "a b c d",
        "over",
        "goes on",
        "so END",
        "\nwell\n",
    ]
    for trial, score in zip(rated, (0.1, 0.1, 0.1, 0.9, 0.1, 0.1), strict=True):
        asking.tell(trial, score)
    assert {(t.text, t.messages[-1]["content"]) for t in asking.ask()} == {("goes on", "goes on")}


def test_a_generator_may_give_scores_and_tokens() -> None:
    asking = ask_tell(BestOfN(n=3), problem="q", max_tokens=1000)
    for trial, score in zip(asking.ask(), (0.2, 0.7, 0.4), strict=True):
        assert trial.kind == "text"
        asking.tell(trial, f"It is {score}", score=score, tokens=100)
    result = ended(asking)
    assert (result.answer, result.usage.generated_tokens) == ("0.7", 300)


def test_budgets_count_what_is_told() -> None:
    asking = ask_tell(BestOfN(n=4, max_tokens=50), problem="q", max_generated_tokens=120)
    sizes = []
    while not asking.done:
        for trial in asking.ask():
            sizes += [trial.max_tokens] if trial.kind == "text" else []
            asking.tell(trial, "1", tokens=50) if trial.kind == "text" else asking.tell(trial, 1)
    assert sizes == [50, 50, 20] and ended(asking).stopped == "max_generated_tokens"


def test_a_verifier_of_texts_rates_here() -> None:
    asking = ask_tell(BestOfN(n=2), problem="2 + 2?", verifier=ArithmeticVerifier())
    for trial, text in zip(asking.ask(), ("2 + 2 = 5", "2 + 2 = 4"), strict=True):
        asking.tell(trial, text)
    assert ended(asking).answer == "4"


def test_a_stopped_search_gives_what_it_has(tmp_path: Path) -> None:
    def begin() -> AskTell:
        return ask_tell(SelfConsistency(n=3), problem="q", checkpoint=tmp_path / "state")

    asking = begin()
    first, second, _ = asking.ask()
    assert asking.tell(first, "It is 4.") and not asking.tell(first, "It is 4.")
    asking.stop()
    assert not asking.tell(second, "It is 5.")  # too late
    assert ended(asking).stopped == "cancelled" and asking.done and not asking.ask()
    assert outline(ended(begin())) == outline(ended(asking))


BAD: list[tuple[Callable[[AskTell, Trial], object], str]] = [
    (lambda a, t: ended(a), "waits for 2 trials"),
    (lambda a, t: a.tell(t, 0.5), "the text=0.5 is of type float"),
    (lambda a, t: a.tell(t, "", finished=False), "empty and not finished"),
    (lambda a, t: a.tell(t, "x", score=float("nan")), "must be finite"),
    (lambda a, t: a.tell(t, "x", score="good"), "score=.* give a number"),  # type: ignore[arg-type]
    (lambda a, t: a.tell(t, "x", tokens=-1), "tokens=-1 must be at least 0"),
    (lambda a, t: a.tell(t, "x", finished=1), "finished=1 is of type int"),  # type: ignore[arg-type]
    (lambda a, t: a.tell("text 0", "x"), "a trial that ask"),  # type: ignore[arg-type]
    (lambda a, t: (a.tell(t, "x"), a.tell(t, "y")), "was told .*'x'.* before"),
    (lambda a, t: a.tell(Trial("text 9", "text", "", "", (), ""), "x"), "of another search"),
    (lambda a, t: ask_tell(BestOfN(), problem=" "), "empty"),
    (lambda a, t: ask_tell(BestOfN(), problem=["q"]), "problem is of type list"),  # type: ignore[arg-type]
    (lambda a, t: ask_tell(BestOfN(), problem="q", max_wall_s=3), "no max_wall_s"),
    (lambda a, t: ask_tell(BestOfN(), problem="q", engine=1), "engine is no option of ask_tell"),  # type: ignore[call-arg]
    (lambda a, t: ask_tell(DeepConf(), problem="q"), "DeepConf needs .*texts alone"),
    (lambda a, t: ask_tell(BestOfN(), problem="q", verifier=SelfVerifier()), "SelfVerifier needs"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_what_does_not_fit_is_refused(
    wrong: Callable[[AskTell, Trial], object], message: str
) -> None:
    asking = ask_tell(BestOfN(n=2), problem="q")
    with pytest.raises(InvalidInput, match=message):
        wrong(asking, asking.ask()[0])


@pytest.mark.parametrize("outcome", ["good", [], [float("inf")], None, "0.5"])
def test_a_score_must_be_a_finite_number(outcome: Any) -> None:
    asking = ask_tell(BestOfN(n=1), problem="q")
    asking.tell(asking.ask()[0], "x")
    (trial,) = asking.ask()
    with pytest.raises(InvalidInput, match="the score="):
        asking.tell(trial, outcome)
    assert asking.open == [trial] and asking.tell(trial, [0.2, 0.4])
    assert ended(asking).tree[-1].step_scores == [0.2, 0.4]


def test_a_checkpoint_of_something_else_says_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    asking = ask_tell(BestOfN(n=2), problem="q", checkpoint=file)
    asking.tell(asking.ask()[0], "1")
    changed: list[tuple[Search, dict[str, Any], str]] = [
        (BestOfN(n=3), {}, "search.n: 2 there, 3 here"),
        (Greedy(), {}, "search.class: 'search.best_of_n.BestOfN' there"),
        (BestOfN(n=2), {"seed": 1}, "options.seed: 0 there, 1 here"),
        (BestOfN(n=2), {"problem": Problem("q", id="7")}, "problem.id: '' there, '7' here"),
        (BestOfN(n=2), {"verifier": ArithmeticVerifier()}, "options.verifier: None there"),
    ]
    for other, options, message in changed:
        with pytest.raises(InvalidInput, match=message):
            ask_tell(other, **{"problem": "q", "checkpoint": file} | options)
    values = json.loads(file.read_text())
    values["made_by"]["version"] = "0.0.1"
    file.write_text(json.dumps(values))
    with pytest.raises(InvalidInput, match=r"version: '0.0.1' there"):
        ask_tell(BestOfN(n=2), problem="q", checkpoint=file)


@pytest.mark.parametrize("text", ["", "[]", '{"told": {}}', '{"made_by": 1, "stopped": 0}'])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match="is no checkpoint of ask_tell"):
        ask_tell(BestOfN(n=2), problem="q", checkpoint=file)
    assert file.read_text() == text
    with pytest.raises(InvalidInput, match="there is no folder"):
        ask_tell(BestOfN(n=2), problem="q", checkpoint=tmp_path / "none" / "state.json")


def test_answers_that_the_search_does_not_ask_for_are_refused(tmp_path: Path) -> None:
    """As when the code of a search of one's own has changed."""
    file = tmp_path / "state.json"
    asking = ask_tell(BestOfN(n=2), problem="q", checkpoint=file)
    asking.tell(asking.ask()[0], "1")
    file.write_text(file.read_text().replace("text 0", "text 7.1"))
    with pytest.raises(InvalidInput, match=r"holds 1 answer .* 'text 7.1' among them"):
        ask_tell(BestOfN(n=2), problem="q", checkpoint=file)
