"""Tournaments, fine grades by criteria, and ensembles weighted by accuracy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

import pytest
import torch
import transformers as hf

from search import BestOfN, solve
from tests.helpers.reward_models import grown, policy, rater
from tests.helpers.scripted import Scripted
from ttc import Engine
from ttc.branch import Branch
from ttc.task import Task
from verifiers import EnsembleVerifier, LLMVerifier, Tournament

QUESTION = "Tom has 3 boxes of 4 apples. How many?"


class Prefers(Scripted):
    """A backend whose model says that the solution with the larger digit is better, with a
    probability of `sure`, and that A is by `bias` likelier than B whatever they are."""

    def __init__(self, solutions: Sequence[str], odds: float = 3.0, bias: float = 0.0):
        super().__init__(lambda branch: f"{solutions[branch.path[-1]]}0", longest=3000)
        self.odds, self.bias, self.asked = odds, bias, list[str]()

    def side_branches(self, *asked: Any) -> Task[list[Branch]]:
        task = super().side_branches(*asked)
        self.asked += [self.decode(branch.tokens) for branch in task.branches]
        return task

    def score(
        self, branches: Sequence[Branch], continuations: Any, **options: Any
    ) -> Task[list[list[list[float]]]]:
        rows = []
        for branch, words in zip(branches, continuations, strict=True):
            text = self.decode(branch.tokens)
            a, b = (text.partition(f"\n\n{name}:\n")[2].partition("\n\n")[0] for name in "AB")
            gain = self.bias + (self.odds if a > b else -self.odds)
            rows.append([[gain if self.decode(word).strip() == "A" else 0.0] for word in words])
        return Task.made(rows)


def played(solutions: Sequence[str], verifier: Any, **settings: Any) -> tuple[list[float], Any]:
    backend = Prefers(solutions, **settings)
    search = BestOfN(n=len(solutions), max_tokens=9)
    result = solve(search, problem="q", engine=backend, verifier=verifier)
    assert result.error is None and not backend.live
    by_path = sorted(result.branches, key=lambda branch: branch.path)
    return [float(str(branch.score)) for branch in by_path], backend


def test_a_tournament_rates_by_the_chance_of_being_better() -> None:
    scores, backend = played(["2", "3", "1", "3"], Tournament())
    p = float(torch.sigmoid(torch.tensor(3.0)))
    # equal texts are one solution
    assert scores == pytest.approx([0.5, p, 1 - p, p], abs=1e-6)
    assert len(backend.asked) == 2 * 3 and "Which of them is right" in backend.asked[0]


def test_asking_in_both_orders_takes_out_that_a_is_named_first() -> None:
    scores, _ = played(["1", "1", "2"], Tournament(), bias=2.0)
    assert scores[0] == scores[1] and scores[0] + scores[2] == pytest.approx(1)


def test_a_solution_without_an_opponent_is_not_compared() -> None:
    scores, backend = played(["1", "1"], Tournament())
    assert scores == [0.5, 0.5] and not backend.asked


def test_each_solution_meets_so_many_others() -> None:
    assert Tournament().pairs(4) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert Tournament(opponents=1).pairs(4) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert Tournament(opponents=9).pairs(3) == [(0, 1), (0, 2), (1, 2)]
    assert Tournament().pairs(1) == Tournament().pairs(0) == []


@pytest.mark.parametrize("verifier", [Tournament(), Tournament(opponents=1), LLMVerifier()])
def test_children_cost_no_more_than_is_foreseen(verifier: Tournament | LLMVerifier) -> None:
    engine, *_ = grader()
    root = engine.root([1, 2])
    foreseen = [verifier.children_price(root, QUESTION, engine, 8, n) for n in (1, 2, 3)]
    assert foreseen == sorted(foreseen)
    children = grown(engine, root, "ab", "cd", "ef")
    assert verifier.price(children, [QUESTION] * 3, engine) <= foreseen[-1]


def grader(**settings: Any) -> tuple[Engine, Any, LLMVerifier]:
    model, tokenizer = rater(hf.Qwen2ForCausalLM)
    verifier = LLMVerifier(criteria=("Is it right?", "Is it short?"), grades=5, **settings)
    reference = copy.deepcopy(model)
    return Engine(model, tokenizer), reference, verifier


@torch.no_grad()
def test_a_grade_is_the_mean_over_criteria_of_what_the_model_expects() -> None:
    engine, reference, verifier = grader()
    branches = grown(engine, engine.root([1, 2]), "a", "b")
    price = verifier.price(branches, [QUESTION] * 2, engine)
    scores = verifier.rate(branches, [QUESTION] * 2, engine)
    assert 0 < branches[0].usage.verifier_tokens <= price
    tokenizer = engine.tokenizer
    for branch, (score,) in zip(branches, scores, strict=True):
        grades = []
        for criterion in verifier.criteria:
            asked = (
                f"{QUESTION}\n\nHere is a solution, which may not be complete yet.\n\n"
                f"{branch.text.strip()}\n\n{criterion} Grade it from A (not at all) to E (fully). "
                "Reply with one letter."
            )
            chat = [{"role": "user", "content": asked}]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            tokens = torch.tensor([tokenizer.encode(text + "\nGrade:")])
            logits = reference(tokens).logits[0, -1].double()
            place = {
                token: ascii_uppercase.index(word)
                for token in range(len(tokenizer))
                if (word := tokenizer.decode([token]).strip()) in ("A", "B", "C", "D", "E")
            }
            weights = logits[list(place)].softmax(-1)
            grades.append(float((weights * torch.tensor([*place.values()])).sum()) / 4)
        assert score == pytest.approx(sum(grades) / 2, abs=1e-4)


def test_what_is_written_before_a_grade_is_counted_and_repeated() -> None:
    engine, _, verifier = grader(repeats=3, max_tokens=4)
    branches = grown(engine, engine.root([1, 2]), "a", "b")
    before, live = branches[0].usage.generated_tokens, set(engine.live)
    price = verifier.price(branches, [QUESTION] * 2, engine)
    scores = verifier.rate(branches, [QUESTION] * 2, engine)
    assert all(0 <= score <= 1 for (score,) in scores)
    usage = branches[0].usage
    assert usage.generated_tokens == before
    assert 2 * 2 * 3 * 4 < usage.verifier_tokens <= price
    assert set(engine.live) == live


# ---------------------------------------------------------------- ensembles


class Steps:
    """Rates every branch by the same scores of its steps."""

    def __init__(self, *scores: float, score_range: tuple[float, float] | None = None):
        self.scores, self.score_range = list(scores), score_range

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        return [self.scores for _ in branches]


@pytest.mark.parametrize(
    ("how", "steps", "expected"),
    [
        ("mean", "last", 0.875),  # of 0.75 and 1
        ("mean", "min", 0.375),  # of 0.25 and 0.5
        ("mean", "mean", 0.625),  # of 0.5 and 0.75
        ("min", "last", 0.75),
        ("min", "min", 0.25),
        ("min", "mean", 0.5),
    ],
)
def test_an_ensemble_joins_the_steps_of_a_part_and_then_the_parts(
    how: Any, steps: Any, expected: float
) -> None:
    engine = policy()
    branches = grown(engine, engine.root([1, 2]), "a", "b")
    ensemble = EnsembleVerifier([Steps(0.5, 0.25, 0.75), Steps(0.5, 1.0)], how, steps)
    assert ensemble.rate(branches, [QUESTION] * 2, engine) == [[expected]] * 2


def test_an_ensemble_ranges_from_the_least_to_the_most_that_a_part_says() -> None:
    assert EnsembleVerifier([Steps(), Steps()]).score_range is None
    parts = [Steps(score_range=(-2.0, 0.5)), Steps(), Steps(score_range=(0.0, 3.0))]
    assert EnsembleVerifier(parts).score_range == (-2.0, 3.0)


def test_an_ensemble_weighs_its_parts_by_the_odds_of_their_being_right() -> None:
    parts = [Steps(1.0), Steps(0.5), Steps(0.0)]
    engine = policy()
    (branch,) = grown(engine, engine.root([1, 2]), "a")
    ensemble = EnsembleVerifier(parts, accuracies=[0.9, 0.75, 0.5])
    # log 9 : log 3 : 0 is 2 : 1 : 0
    assert ensemble.weights == pytest.approx([2 / 3, 1 / 3, 0])
    assert ensemble.rate([branch], [QUESTION], engine) == [[pytest.approx(5 / 6)]]
    assert EnsembleVerifier(parts).weights == pytest.approx([1 / 3] * 3)
