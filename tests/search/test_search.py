"""Algorithms and driver over a backend of plain Python: no model, every text a hash of the branch's
stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from search import (
    BeamSearch,
    BestOfN,
    DiversePrompts,
    Greedy,
    Problem,
    Result,
    SelfConsistency,
    solve,
)
from search.rating import aggregate
from search.selection import vote
from tests.helpers.backends import FakeBackend
from tests.helpers.tokenizers import Letters
from ttc import InvalidInput, Sampling
from ttc.sampling import random_key
from ttc.text.prompt import PromptTemplate
from ttc.tree.branch import Branch
from ttc.usage import Usage

PLAIN = PromptTemplate("{question}")


def digits() -> FakeBackend:
    """Its texts are digits."""
    return FakeBackend("0123456789", longest=2000)


class DigitSum:
    """Each step scores the sum of its digits."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        return [[float(sum(map(int, step))) for step in b.steps] for b in branches]


def run(search: Any, problem: Any, **options: Any) -> Any:
    backend = options.pop("engine", None) or digits()
    result = solve(
        search,
        engine=backend,
        verifier=options.pop("verifier", DigitSum()),
        problem=problem,
        **options,
    )
    assert not backend.live
    return result


def continuation(key: int, start: int, limit: int) -> str:
    """What the fake backend writes for a stream."""
    text = ""
    while len(text) < limit and not text.endswith("0"):
        text += str(random_key(key, start + len(text)) % 10)
    return text


def root_of(result: Result, seed: int = 0) -> tuple[int, int]:
    """The key of a result's root and the length of its prompt."""
    length = len(PromptTemplate().tokens(result.problem.question, Letters()))
    return random_key(random_key(seed, result.problem.id or result.problem.question)), length


def test_greedy_is_one_branch() -> None:
    result = run(Greedy(max_tokens=12), "q", verifier=None)
    key, length = root_of(result)
    assert [b.text for b in result.branches] == [continuation(random_key(key, 0), length, 12)]
    assert result.best is result.branches[0]


def test_best_of_n_takes_the_best_rated() -> None:
    result = run(BestOfN(n=6, max_tokens=9), "q")
    key, length = root_of(result)
    texts = [continuation(random_key(key, i), length, 9) for i in range(6)]
    scores = [sum(map(int, t)) for t in texts]
    assert result.best.text == texts[scores.index(max(scores))]
    assert [b.score for b in result.branches] == sorted(map(float, scores), reverse=True)


def test_beam_search_against_a_reference() -> None:
    size, width, tokens, steps = 3, 2, 3, 4
    result = run(
        BeamSearch(beam_size=size, beam_width=width, step_tokens=tokens, max_steps=steps), "q"
    )
    key, length = root_of(result)
    beams = [(0.0, key, "")]
    for step in range(steps):
        kept = [b for b in beams if b[2].endswith("0")]
        going = [b for b in beams if not b[2].endswith("0")]
        if not going:
            break
        new = []
        for _, parent, text in going:
            for i in range(size * width if step == 0 else width):
                part = continuation(random_key(parent, i), length + len(text), tokens)
                new.append((float(sum(map(int, part))), random_key(parent, i), text + part))
        beams = sorted(kept + new, key=lambda b: -b[0])[:size]
    assert [(b.score, b.text) for b in result.branches] == [
        (score, text) for score, _, text in beams
    ]


def test_beam_search_rates_equally_many_each_step_and_prunes() -> None:
    backend = digits()
    result = run(
        BeamSearch(beam_size=2, beam_width=3, step_tokens=1, max_steps=3), "q", engine=backend
    )
    assert backend.calls[0] == 6
    assert all(n <= 6 for n in backend.calls)
    nodes = {n.id: n for n in result.tree}
    assert nodes[0].status == "root" and nodes[0].parent is None
    assert sum(n.status in ("kept", "finished") for n in result.tree) == len(result.branches) == 2
    for node in result.tree[1:]:
        assert nodes[node.parent].path == node.path[:-1]
        assert node.score == node.step_scores[-1]


def branch(text: str, score: float) -> Branch:
    made = Branch([ord("p")], None, 0, Usage(), lambda tokens: "".join(map(chr, tokens)))
    made.tokens += map(ord, text)
    made.score = score
    return made


def test_diverse_prompts_go_round() -> None:
    backend = digits()
    search = DiversePrompts(
        n=5, max_tokens=9, phrasings=("Q: {question}", "Find {question}"), hints=(" a", " b", " c")
    )
    result = solve(search, engine=backend, verifier=DigitSum(), problem="one", template=PLAIN)
    starts = {tuple(b.path): backend.decode(b.tokens[: b.prompt_length]) for b in result.branches}
    bodies = ["Question: Q: one\nAnswer:", "Question: Find one\nAnswer:"]
    assert starts == {(i, 0): bodies[i % 2] + " " + "abc"[i % 3] for i in range(5)}
    assert result.best is not None and result.best.score == max(
        b.score or 0 for b in result.branches
    )
    assert [node.parent for node in result.tree] == [None, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]
    assert not backend.live


def test_without_phrasings_or_hints_the_prompt_is_the_templates() -> None:
    result = solve(
        DiversePrompts(n=2, hints=()),
        engine=digits(),
        verifier=DigitSum(),
        problem="one",
        template=PLAIN,
    )
    assert [bytes(b.tokens[: b.prompt_length]).decode() for b in result.branches] == [
        "Question: one\nAnswer:"
    ] * 2


def test_a_phrasing_too_long_for_the_model_stops_its_problem_alone() -> None:
    backend = digits()
    search = DiversePrompts(n=2, phrasings=("{question}" * 300,))
    results = solve(
        search, engine=backend, verifier=DigitSum(), problem=["x", "a long one"], template=PLAIN
    )
    assert [r.error for r in results] == [
        None,
        "InvalidInput: the prompt is longer than 2000 tokens",
    ]
    with pytest.raises(InvalidInput, match=r"must hold \{question\}"):
        DiversePrompts(phrasings=("Solve it.",))
    assert not backend.live


def test_votes() -> None:
    def extract(text: str) -> str | None:
        return text or None

    candidates = [
        branch("7", 0.1),
        branch("8", 0.9),
        branch("7.0", 0.2),
        branch("", 5.0),
        branch("8", 0.3),
    ]
    best, answer = vote(candidates, extract)
    # a tie goes to the answer found first, its best-scored branch
    assert (answer, best) == ("7.0", candidates[2])
    best, answer = vote(candidates, extract, weighted=True)
    assert (answer, best) == ("8", candidates[1])
    assert vote([branch("", 1.0)], extract)[1] is None
    logprobs = [branch("7", -0.2), branch("8", -0.3), branch("8", -0.4), branch("9", -2.0)]
    # their sigmoids: .43 + .40 against .45 and .12
    assert vote(logprobs, extract, weighted=True)[1] == "8"
    assert vote([], extract) == (None, None)


def test_self_consistency_answers_with_the_majority() -> None:
    result = run(SelfConsistency(n=40, max_tokens=1), "q", verifier=None)
    texts = [b.text for b in sorted(result.branches, key=lambda b: b.path)]
    assert result.answer == max(texts, key=lambda t: (texts.count(t), -texts.index(t)))


@pytest.mark.parametrize(
    ("how", "score"), [("min", 0.2), ("product", 0.05), ("last", 0.5), ("mean", 0.4)]
)
def test_aggregation(how: Any, score: float) -> None:
    assert aggregate([0.5, 0.2, 0.5], how) == pytest.approx(score)


@pytest.mark.parametrize(
    "search",
    [
        BeamSearch(beam_size=2, beam_width=2, step_tokens=3),
        BestOfN(n=3),
        SelfConsistency(n=3, weighted=True),
    ],
)
def test_company_changes_nothing(search: Any) -> None:
    def seen(result: Result) -> Any:
        return result.answer, [(b.text, b.score) for b in result.branches], result.tree

    questions = [f"question {i}" for i in range(5)]
    alone = [seen(run(search, q, seed=3)) for q in questions]
    for concurrency in (1, 2, 5):
        assert alone == [seen(r) for r in run(search, questions, seed=3, concurrency=concurrency)]
    assert alone != [seen(r) for r in run(search, questions, seed=4)]
    backend = digits()
    run(search, questions, engine=backend, concurrency=5)
    assert max(backend.calls) > 5  # the problems' requests were merged


class Sick(DigitSum):
    def __init__(self, how: str):
        self.how = how

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        scores = super().rate(branches, questions, backend)
        if "bad" in questions:
            at = list(questions).index("bad")
            if self.how == "raises":
                raise ZeroDivisionError("no such thing")
            scores[at] = {"nan": [math.nan], "none": []}.get(self.how, scores[at])
            return scores[1:] if self.how == "count" else scores
        return scores


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "ZeroDivisionError: no such thing"),
        ("nan", "nan"),
        ("none", "ratings for"),
        ("count", "ratings for"),
    ],
)
def test_a_sick_verifier_stops_its_problem_alone(how: str, words: str) -> None:
    good, bad, other = run(BestOfN(n=3), ["fine", "bad", "too"], verifier=Sick(how))
    assert bad.error is not None and words in bad.error and "Sick" in bad.error
    assert len(bad.branches) == 3
    for result, question in ((good, "fine"), (other, "too")):
        lone = run(BestOfN(n=3), question)
        assert result.error is None
        assert [(b.text, b.score) for b in result.branches] == [
            (b.text, b.score) for b in lone.branches
        ]


def test_unusable_problems_fail_alone() -> None:
    fine, empty, long = run(Greedy(max_tokens=3), ["fine", " ", "x" * 3000], verifier=None)
    assert fine.error is None and fine.best is not None
    assert "question is empty" in empty.error and "longer than 2000 tokens" in long.error
    assert empty.branches == [] and empty.answer is None
    with pytest.raises(InvalidInput, match="empty"):
        run(Greedy(), " ", verifier=None)


def test_nothing_stays_live_after_a_failure() -> None:
    backend = digits()
    backend.fail_at = 2
    with pytest.raises(RuntimeError, match="device lost"):
        solve(
            BeamSearch(beam_size=2, beam_width=2, step_tokens=2),
            engine=backend,
            verifier=DigitSum(),
            problem=["a", "b"],
        )
    assert not backend.live

    def interrupt(result: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(Greedy(), engine=backend, problem=["a", "b", "c"], concurrency=2, on_result=interrupt)
    assert not backend.live


class Costly(Sick):
    """Spends five verifier tokens a branch."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        for branch in branches:
            branch.usage.verifier_tokens += 5
        return super().rate(branches, questions, backend)

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Any) -> int:
        return 5 * len(branches)


def test_a_neighbours_failure_costs_nothing() -> None:
    fine, bad = run(BestOfN(n=3, max_tokens=4), ["fine", "bad"], verifier=Costly("raises"))
    assert bad.error is not None
    assert (fine.error, fine.usage.verifier_tokens) == (None, 15)


def test_verifier_tokens_count_on_the_budget() -> None:
    result = run(BestOfN(n=3, max_tokens=4), "q", verifier=Costly("well"), max_tokens=20)
    # a third would leave nothing to rate it with
    assert result.stopped == "max_tokens" and len(result.branches) == 2
    assert result.best.score == max(b.score for b in result.branches)
    assert result.usage.generated_tokens + result.usage.verifier_tokens <= 20


def test_a_search_that_raises_at_once_leaks_nothing() -> None:
    class Broken(Greedy):
        def run(self, root: Branch, end: tuple[str, ...]) -> Any:
            raise ValueError("broken")
            yield

    backend = digits()
    with pytest.raises(ValueError, match="broken"):
        solve(Broken(), engine=backend, problem=["a", "b"])
    assert not backend.live


def test_usage_is_the_problems_own() -> None:
    results = run(BestOfN(n=3, max_tokens=7), ["a", "b"])
    for result in results:
        assert result.usage.generated_tokens == sum(len(b.generated) for b in result.branches)
        assert result.usage.wall_s > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BeamSearch(beam_size=0), "beam_size=0"),
        (lambda: BestOfN(n=-1), "n=-1"),
        (lambda: Greedy(max_tokens=0), "max_tokens=0"),
        (lambda: BestOfN(temperature=-1), "temperature=-1"),
        (lambda: BeamSearch(aggregation="median"), "median"),  # type: ignore[arg-type]
        (lambda: Sampling(top_p=0), "top_p=0"),
        (lambda: solve(BestOfN(), engine=digits(), problem="q"), "verifier"),
        (lambda: solve(Greedy(), engine=digits(), problem=[], concurrency=0), "concurrency=0"),
        (lambda: solve(Greedy(), engine=digits(), problem=[], end="END"), "end='END'"),
        (lambda: solve(Greedy(), engine=digits(), problem=[], answer_kind="poem"), "poem"),
    ],
)
def test_bad_parameters_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_problems_keep_their_identity() -> None:
    by_id = run(
        Greedy(max_tokens=5), [Problem("same", id="1"), Problem("same", id="2")], verifier=None
    )
    assert by_id[0].best.text != by_id[1].best.text


def test_a_problem_that_is_no_text_fails_alone() -> None:
    given: Any = [None, "fine", {"question": "q"}, "half \ud83d"]
    nothing, fine, keys, torn = run(Greedy(max_tokens=3), given, verifier=None)
    assert fine.best is not None and fine.error is None
    for failed, reason in ((nothing, "NoneType"), (keys, "dict"), (torn, "surrogate")):
        assert (
            failed.best is None
            and failed.error.startswith("InvalidInput")
            and reason in failed.error
        )


def test_greedy_that_would_sample_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"temperature=0\.7 samples.*best_of_n"):
        Greedy(temperature=0.7)
