"""The confidence gate by hand-made branches, as a property, and in searches of several steps on a
small model."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import BeamSearch, BestOfN, solve
from tests.helpers.engines import numbers_engine
from tests.helpers.tiers import examples
from ttc import Engine, InvalidInput, Usage, VerifierError
from ttc.branch import Branch
from ttc.calibration.gate_calibration import Observation, calibrate
from verifiers import ConfidenceGatedVerifier
from verifiers.confidence_gated import confidence, gap_ratio

NAN = math.nan


def branch(top1: Sequence[float], usage: Usage, root_id: int | None = None) -> Branch:
    made = Branch([1], None, 0, usage, lambda tokens: "", root_id)
    made.tokens += [2] * len(top1)
    made.top1 = list(top1)
    return made


def problem(*top1: Sequence[float]) -> list[Branch]:
    """Branches of one root."""
    root = branch([], Usage())
    return [branch(values, root.usage, root.root_id) for values in top1]


class Inner:
    """Two step scores per branch, far from any p; `asked` lists the sizes of its calls."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        self.asked.append(len(branches))
        return [
            [-5.0, 1000.0 + len(b.tokens) + len(q)]
            for b, q in zip(branches, questions, strict=True)
        ]


def rate(verifier: Any, *problems: list[Branch]) -> list[Any]:
    branches = [b for group in problems for b in group]
    questions = ["q" * i for i, group in enumerate(problems) for _ in group]
    return list(verifier.rate(branches, questions, None))


# ---------------------------------------------------------------- p and the gap


@pytest.mark.parametrize(
    ("p", "gap"),
    [
        ([0.8, 0.6, 0.2], 0.25),
        ([0.2, 0.6, 0.8], 0.25),
        ([0.94, 0.22], 0.766),  # RKSC, worked example in the appendix
        ([0.61, 0.54], 0.1148),  # and its second
        ([0.8, 0.8, 0.1], 0.0),
        ([0.5], 1.0),
        ([0.0], 0.0),
        ([0.0, 0.0], 0.0),
        ([0.5, 0.0], 1.0),
    ],
)
def test_the_gap(p: list[float], gap: float) -> None:
    assert gap_ratio(p) == pytest.approx(gap, abs=1e-4)


# ---------------------------------------------------------------- one request


def test_problems_may_be_interleaved_and_share_a_question() -> None:
    clear, unsure = problem([1.0], [0.5]), problem([0.5], [0.1, 0.1])
    inner = Inner()
    mixed = [unsure[0], clear[0], unsure[1], clear[1]]
    found = ConfidenceGatedVerifier(inner).rate(mixed, ["same"] * 4, None)  # type: ignore[arg-type]
    assert found == [[-5, 1006], [1.0], [-5, 1007], [0.5]]
    assert inner.asked == [2]


def test_thresholds_are_reached_when_equal() -> None:
    at: dict[str, Any] = {"tau_conf": 0.8, "r_gap": 0.25}
    assert rate(ConfidenceGatedVerifier(Inner(), **at), problem([0.8], [0.6])) == [[0.8], [0.6]]
    for change in ({"tau_conf": 0.81}, {"r_gap": 0.26}):
        assert (
            rate(ConfidenceGatedVerifier(Inner(), **at | change), problem([0.8], [0.6]))[0][0] == -5
        )


probabilities = st.lists(st.one_of(st.just(NAN), st.floats(0, 1)), max_size=4)
sets = st.lists(st.lists(probabilities, min_size=1, max_size=4), min_size=1, max_size=4)


@given(sets, st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=examples(100))
def test_against_the_equation(
    values: list[list[list[float]]], tau_conf: float, r_gap: float
) -> None:
    problems = [problem(*group) for group in values]
    gate = ConfidenceGatedVerifier(Inner(), tau_conf, r_gap)
    found = iter(rate(gate, *problems))
    expected = []
    for i, group in enumerate(values):
        own = [[v for v in row if not math.isnan(v)] for row in group]
        p = [sum(row) / len(row) if row else 0.0 for row in own]
        second = max([v for j, v in enumerate(p) if j != p.index(max(p))], default=0.0)
        decisive = max(p) >= tau_conf and (
            max(p) - second >= r_gap * max(p) if max(p) else r_gap == 0
        )
        margin = abs(max(p) - second - r_gap * max(p))
        scores = [next(found) for _ in group]
        if margin > 1e-12 or max(p) == 0:  # closer than that, rounding decides
            assert scores == (
                [[v] for v in p] if decisive else [[-5, 1001 + len(row) + i] for row in group]
            )
        expected.append(scores == [[v] for v in p])
    assert gate.calls == len(problems) and gate.skips == sum(expected)
    assert [g[0].usage.verifications_skipped for g in problems] == list(map(int, expected))
    rest = sum(len(group) for group, skipped in zip(values, expected, strict=True) if not skipped)
    assert gate.inner.asked == ([rest] if rest else [])  # type: ignore[attr-defined]


# ---------------------------------------------------------------- the first decision holds


def test_a_problem_keeps_its_first_decision() -> None:
    gate = ConfidenceGatedVerifier(Inner())
    verified, skipped = problem([0.5], [0.4]), problem([1.0], [0.1])
    rate(gate, verified, skipped)
    verified[0].top1 += [1.0] * 1000  # decisive by now
    for b in skipped:
        b.top1 = [0.5]  # a tie
    assert rate(gate, verified, skipped) == [[-5, 1002], [-5, 1002], [0.5], [0.5]]
    assert (gate.calls, gate.skips, gate.inner.asked) == (4, 2, [2, 2])
    assert skipped[0].usage.verifications_skipped == 2
    fresh = ConfidenceGatedVerifier(Inner())  # another gate decides anew
    assert rate(fresh, verified, skipped) == [
        [pytest.approx(1, abs=1e-3)],
        [0.4],
        [-5, 1003],
        [-5, 1003],
    ]


def test_decisions_are_forgotten_with_their_problems() -> None:
    gate = ConfidenceGatedVerifier(Inner())
    for top1 in ([1.0], [0.5]):
        for _ in range(50):
            rate(gate, problem(top1, [0.1]))
    gc.collect()
    assert gate.decisions == {}
    assert (gate.calls, gate.skips) == (100, 50)


def test_a_failed_rating_counts_nothing() -> None:
    class Fails(Inner):
        def rate(
            self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
        ) -> list[list[float]]:
            if "q" in questions:
                raise RuntimeError("no weights")
            return super().rate(branches, questions, backend)[: -1 if len(branches) > 3 else None]

    gate = ConfidenceGatedVerifier(Fails())
    clear, unsure = problem([1.0], [0.1]), problem([0.5])
    with pytest.raises(RuntimeError, match="no weights"):
        rate(gate, clear, unsure)
    with pytest.raises(VerifierError, match="Fails returned 3 ratings for 4 branches"):
        rate(gate, problem([0.5], [0.5], [0.5], [0.5]))
    assert (gate.calls, gate.skips, clear[0].usage.verifications_skipped) == (0, 0, 0)
    assert rate(gate, clear) == [[1.0], [0.1]]
    assert (gate.calls, gate.skips, clear[0].usage.verifications_skipped) == (1, 1, 1)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("name", ["tau_conf", "r_gap"])
@pytest.mark.parametrize("value", [-0.1, NAN, math.inf, "high", None])
def test_what_is_no_threshold_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{name}="):
        ConfidenceGatedVerifier(Inner(), **{name: value})


def test_a_calibration_takes_the_place_of_the_thresholds() -> None:
    found = calibrate([Observation(0.7, 0.3, True)], model="m", dataset="d")
    gate = ConfidenceGatedVerifier(Inner(), tau_conf=0.1, r_gap=0.1, calibration=found)
    assert (gate.tau_conf, gate.r_gap) == (0.7, 0.3)


# ---------------------------------------------------------------- in searches


@pytest.fixture(scope="module")
def engine() -> Engine:
    return numbers_engine()


QUESTIONS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
BEAM = BeamSearch(beam_size=3, beam_width=2, step_tokens=3, max_steps=4)


def scores(result: Any) -> list[float]:
    return [node.score for node in result.tree if node.score is not None]


def test_no_problem_of_a_beam_search_mixes_scales(engine: Engine) -> None:
    gate = ConfidenceGatedVerifier(Inner(), tau_conf=0.0, r_gap=0.05)
    results = solve(BEAM, engine=engine, verifier=gate, problem=QUESTIONS)
    steps = [max(len(node.path) for node in r.tree) for r in results]
    skipped = [r.usage.verifications_skipped for r in results]
    assert gate.calls == sum(steps) and gate.skips == sum(skipped)
    # the case is worth testing: some are, some are not
    assert 0 < sum(map(bool, skipped)) < len(results)
    for result, skips, asked in zip(results, skipped, steps, strict=True):
        assert skips in (0, asked)
        assert all(score <= 1 if skips else score >= 1000 for score in scores(result))
    together = [scores(r) for r in results]
    alone = [scores(solve(BEAM, engine=engine, verifier=gate, problem=q)) for q in QUESTIONS]
    assert [len(s) for s in alone] == [len(s) for s in together]
    # equal scores keep their order, however they were rounded
    for a, b in zip(alone, together, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize("aggregation", ["min", "product", "last", "mean"])
def test_a_skipped_problem_is_ranked_by_p_under_any_aggregation(
    engine: Engine, aggregation: Any
) -> None:
    gate = ConfidenceGatedVerifier(Inner(), tau_conf=0, r_gap=0)
    search = BestOfN(n=5, max_tokens=6, aggregation=aggregation)
    result = solve(search, engine=engine, verifier=gate, problem="p")
    p = [confidence(b) for b in result.branches]
    assert p == sorted(p, reverse=True) and [b.score for b in result.branches] == p


@pytest.mark.parametrize(
    ("inner", "expected"),
    [(None, None), ((0.2, 0.8), (0.0, 1.0)), ((-3.0, 0.5), (-3.0, 1.0)), ((0.5, 5.0), (0.0, 5.0))],
)
def test_scores_are_those_of_the_inner_verifier_or_probabilities(inner: Any, expected: Any) -> None:
    verifier = Inner()
    verifier.score_range = inner  # type: ignore[attr-defined]
    gate = ConfidenceGatedVerifier(verifier)
    assert gate.score_range == expected
    assert gate.price([], [], None) == 0  # type: ignore[arg-type]
