"""Intervals, tests of paired answers, and estimates over subsets of samples."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from statistics import NormalDist, mean, stdev, variance

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.runs.stats import (
    accuracy,
    correlation,
    detectable_effect,
    holm,
    maj_at_k,
    mcnemar,
    paired,
    pass_at_k,
    standard_error,
    tango,
    unpaired,
    wilson,
)
from tests.helpers.tiers import examples

few = settings(max_examples=examples(60))
marks = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from([0, 1])), min_size=2, max_size=30
)


def test_wilson() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(8, 20) == pytest.approx((0.2188, 0.6134), abs=1e-4)  # published example values
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def rejected(only_a: int, only_b: int, total: int, delta: float) -> bool:
    """Whether the score test rejects a difference, its likeliest shares by trying them all."""
    agree = total - only_a - only_b
    shares = np.linspace(0, 1, 40001)[1:-1]  # of those that B alone gets right
    possible = (shares + delta > 0) & (2 * shares + delta < 1)
    shares = shares[possible]
    likelihood = (
        only_a * np.log(shares + delta)
        + only_b * np.log(shares)
        + agree * np.log(1 - 2 * shares - delta)
    )
    share = shares[np.argmax(likelihood)]
    variance = 2 * share + delta - delta * delta
    return (only_a - only_b - total * delta) ** 2 > 1.959963984540054**2 * total * variance


def test_mcnemar_by_its_formula() -> None:
    assert mcnemar(0, 0) == mcnemar(4, 4) == 1.0
    assert mcnemar(1, 7) == mcnemar(7, 1) == pytest.approx(0.0339, abs=5e-5)  # Fagerland, 2013
    assert mcnemar(6, 16) == pytest.approx(0.033006, abs=5e-7)  # cavo_2012 in R's contingencytables
    assert mcnemar(59, 6) == pytest.approx(2 * (1 - NormalDist().cdf(53 / math.sqrt(65))))
    assert mcnemar(0, 125) == pytest.approx(5.0895e-29, rel=1e-4)  # R's 2 * pnorm(-sqrt(125))


def test_tango_as_it_is_published() -> None:
    # the two examples of Fagerland, Lydersen and Laake ("Statistical Analysis of Contingency
    # Tables", chapter 8): airway hyper-responsiveness of 21 children, and complete response of 161
    # patients as R's contingencytables, which they wrote, prints it
    assert tango(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert tango(6, 16, 161) == pytest.approx((-0.1240, -0.0054), abs=5e-5)
    none = 1.959963984540054**2 / (10 + 1.959963984540054**2)
    assert tango(0, 0, 10) == pytest.approx((-none, none))
    assert tango(10, 0, 10)[1] == 1.0 and tango(0, 10, 10)[0] == -1.0


@pytest.mark.parametrize("table", [(1, 7, 21), (8, 2, 50), (0, 3, 12), (40, 20, 160), (5, 5, 11)])
def test_tango_holds_the_differences_that_the_score_test_keeps(table: tuple[int, int, int]) -> None:
    low, high = tango(*table)
    middle = (low + high) / 2
    for end in (low, high):
        assert not rejected(*table, end + 0.002 * math.copysign(1, middle - end))
        assert rejected(*table, end - 0.002 * math.copysign(1, middle - end))


def test_mcnemars_p_and_tangos_interval_agree_on_every_small_table() -> None:
    for total in range(1, 26):
        for only_a in range(total + 1):
            for only_b in range(total + 1 - only_a):
                low, high = tango(only_a, only_b, total)
                assert (mcnemar(only_a, only_b) < 0.05) == (not low <= 0 <= high)
                assert low <= (only_a - only_b) / total <= high


def test_holm_as_r_adjusts() -> None:
    assert holm([]) == []
    # p.adjust(..., "holm")
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.5, 0.001, 0.6]) == pytest.approx([1.0, 0.003, 1.0])


def test_the_error_of_a_mean_over_questions() -> None:
    values = [0.25, 0.5, 1.0, 0.0, 0.75]
    assert standard_error(values) == pytest.approx(stdev(values) / math.sqrt(5))
    assert math.isnan(standard_error([0.5]))
    assert math.isnan(standard_error([0.5, 0.2], ["one", "one"]))


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=2, max_size=20))
@few
def test_the_clustered_error_sums_over_pairs_of_a_cluster(rows: list[tuple[float, int]]) -> None:
    values, clusters = [v for v, _ in rows], [c for _, c in rows]
    centre, n, groups = mean(values), len(rows), len(set(clusters))
    # Miller, Section 2.2
    pairs = sum((v - centre) * (w - centre) for v, c in rows for w, d in rows if c == d)
    if groups > 1:
        wanted = math.sqrt(max(0.0, pairs) * groups / (groups - 1)) / n
        assert standard_error(values, clusters) == pytest.approx(wanted, abs=1e-9)
    assert standard_error(values, range(n)) == pytest.approx(standard_error(values))


def test_questions_of_a_few_sources_are_less_certain() -> None:
    values = [1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    plain, clustered = accuracy(values), accuracy(values, [i // 3 for i in range(12)])
    assert plain.mean == clustered.mean == 0.5
    assert (plain.low, plain.high) == wilson(6, 12)
    # four sources, each all right or all wrong
    assert clustered.error == pytest.approx(0.5 / math.sqrt(3))
    assert clustered.low == 0.0 and clustered.high == 1.0  # half a +- 1.96 errors, cut


def test_repeated_runs_have_the_error_of_their_questions_means() -> None:
    found = accuracy([0.25, 0.5, 1.0, 0.0, 0.75])
    error = stdev([0.25, 0.5, 1.0, 0.0, 0.75]) / math.sqrt(5)
    assert (found.mean, found.error) == pytest.approx((0.5, error))
    assert (found.low, found.high) == pytest.approx(
        (0.5 - 1.959964 * error, 0.5 + 1.959964 * error)
    )
    same = accuracy([0.5, 0.5, 0.5, 0.5])
    assert found.interval == "standard error" and same.interval == "Wilson"
    # no width would claim too much
    assert (same.error, same.low, same.high) == (0.0, *wilson(2, 4))


@given(marks)
@few
def test_a_paired_difference_knows_what_both_got_right(rows: list[tuple[int, int]]) -> None:
    a, b = [x for x, _ in rows], [y for _, y in rows]
    found = paired(a, b)
    gaps = [x - y for x, y in rows]
    assert found.test == "McNemar" and found.p == mcnemar(gaps.count(1), gaps.count(-1))
    assert found.difference.mean == pytest.approx(mean(gaps))
    error = math.sqrt(variance(gaps) / len(gaps))
    assert found.difference.error == pytest.approx(error)
    ends = (found.difference.low, found.difference.high)
    assert ends == tango(gaps.count(1), gaps.count(-1), len(gaps))
    back = paired(b, a)
    assert (back.p, back.difference.mean) == pytest.approx((found.p, -found.difference.mean))
    if (r := correlation(a, b)) is not None:  # the more alike, the smaller the error
        parts = variance(a) + variance(b) - 2 * r * stdev(a) * stdev(b)
        assert variance(gaps) == pytest.approx(parts, abs=1e-9)
    if found.detectable is not None:
        assert found.detectable == pytest.approx(2.8015852 * error)


def test_repeated_runs_are_compared_by_the_differences_of_questions() -> None:
    a, b = [0.5, 1.0, 0.75, 0.0, 1.0, 0.25], [0.25, 0.5, 0.75, 0.25, 0.5, 0.0]
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    found = paired(a, b)
    z = sum(gaps) / math.sqrt(sum(gap * gap for gap in gaps))
    assert (found.test, found.p) == ("z", pytest.approx(2 * (1 - NormalDist().cdf(z))))
    for end in (found.difference.low, found.difference.high):  # where the same test gives 0.05
        moved = [gap - end for gap in gaps]
        z = sum(moved) / math.sqrt(sum(gap * gap for gap in moved))
        assert abs(z) == pytest.approx(1.959964)
    assert paired(a, a).p == 1.0 and paired(a, a).detectable is None


def test_the_test_of_several_runs_is_mcnemars_for_single_ones() -> None:
    a, b = [1, 1, 1, 1, 0, 1, 0, 1], [0, 0, 0, 1, 0, 0, 1, 0]
    halves = [0.5 * x for x in a], [0.5 * y for y in b]  # as if a second run had all wrong
    assert paired(*halves).test == "z" and paired(a, b).test == "McNemar"
    assert paired(*halves).p == pytest.approx(paired(a, b).p)


def test_differences_that_are_all_alike_have_an_interval_with_a_width() -> None:
    same = paired([0.25] * 20, [0.25] * 20)
    assert (same.p, same.difference.low, same.difference.high) == (1.0, *tango(0, 0, 20))
    more = paired([0.5] * 40, [0.25] * 40)
    ends = (more.difference.low, more.difference.high)
    assert more.p == mcnemar(10, 0) and ends == tango(10, 0, 40)


def test_questions_that_depend_on_each_other_are_tested_as_their_sources() -> None:
    a, b = [1, 1, 1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0]
    sources = ["u", "u", "v", "v", "w", "w", "x", "x"]
    sums = [2, 2, -1, 2]
    found = paired(a, b, sources)
    z = sum(sums) / math.sqrt(sum(s * s for s in sums))
    assert (found.test, found.p) == ("z", pytest.approx(2 * (1 - NormalDist().cdf(z))))
    assert paired(a, b).p < 0.06 < found.p


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=40
    ),
    st.booleans(),
)
@settings(max_examples=examples(400))
def test_p_and_interval_of_several_runs_agree(
    rows: list[tuple[int, int, int]], clustered: bool
) -> None:
    found = paired(
        [a / 3 for a, _, _ in rows],
        [b / 3 for _, b, _ in rows],
        [source for _, _, source in rows] if clustered else None,
    )
    low, high = found.difference.low, found.difference.high
    assert (found.p < 0.05) == (not low <= 0 <= high)
    assert -1 <= low <= found.difference.mean + 1e-12 and found.difference.mean - 1e-12 <= high <= 1
    assert high - low > 0.001


def test_rows_on_different_questions_differ_by_newcombes_interval() -> None:
    # Newcombe's first example
    found = unpaired(accuracy([1] * 56 + [0] * 14), accuracy([1] * 48 + [0] * 32))
    ends = (found.difference.low, found.difference.high)
    assert ends == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert found.difference.mean == pytest.approx(0.2) and found.p < 0.05
    assert unpaired(accuracy([1, 0]), accuracy([0, 1])).p == 1.0


@given(marks)
@few
def test_p_and_interval_of_an_unpaired_difference_agree(rows: list[tuple[int, int]]) -> None:
    found = unpaired(accuracy([a for a, _ in rows]), accuracy([b for _, b in rows]))
    shows = not found.difference.low <= 0 <= found.difference.high
    assert shows == (found.p < 0.05) or math.isclose(found.p, 0.05)


def test_the_detectable_effect_of_millers_example() -> None:
    # Section 5: 969 questions for 3 points
    assert detectable_effect(1 / 9, 969) == pytest.approx(0.03, abs=1e-5)
    spread = 1 / 9 + 1 / 6 / 4 + 1 / 8 / 2
    z = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
    assert z**2 * spread / detectable_effect(spread, 500) ** 2 == pytest.approx(500)


@given(st.integers(1, 7), st.data())
@few
def test_pass_at_k_counts_subsets(n: int, data: st.DataObject) -> None:
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    hits = [any(i < correct for i in subset) for subset in itertools.combinations(range(n), k)]
    assert math.isclose(pass_at_k(n, correct, k), sum(hits) / len(hits))


@given(
    st.lists(st.sampled_from(["7", "7", "8", "9", "14/2", None]), min_size=1, max_size=9), st.data()
)
@few
def test_maj_at_k_counts_subsets_and_splits_ties(
    answers: list[str | None], data: st.DataObject
) -> None:
    """Two of the answers are right, so that one may lose to the other."""
    k = data.draw(st.integers(1, len(answers)))
    shares = []
    for subset in itertools.combinations(answers, k):
        counts = Counter(answer for answer in subset if answer is not None)
        winners = [answer for answer in counts if counts[answer] == max(counts.values())]
        shares.append(mean(answer in ("7", "14/2") for answer in winners) if winners else 0.0)
    counts = Counter(answers)
    invalid = counts.pop(None, 0)
    votes = [(count, answer in ("7", "14/2")) for answer, count in counts.items()]
    assert maj_at_k(votes, invalid, k) == pytest.approx(mean(shares), abs=1e-9)


@pytest.mark.few
@pytest.mark.parametrize("n", [4096, 3072])
@pytest.mark.parametrize("k", [1, 512, 1024, None])
def test_shares_of_thousands_of_samples_are_exact(n: int, k: int | None) -> None:
    """No sum of whole numbers is too large, whatever n and k are."""
    k = n if k is None else k
    half = n // 2
    assert maj_at_k([(half, True), (half, False)], 0, k) == pytest.approx(0.5)
    assert maj_at_k([(half, True)], half, k) == pytest.approx(1 if k > 1 else 0.5)
    assert maj_at_k([(half, False)], half, k) == maj_at_k([], n, k) == 0
    alone = maj_at_k([(1, True), *[(1, False)] * 15], n - 16, k)
    drawn = exact_maj(1, 15, n - 16, k)
    assert alone == pytest.approx(drawn, abs=1e-9)
    assert pass_at_k(n, 1, k) == pytest.approx(k / n)
    for count in (1, half, n):
        assert 0 <= maj_at_k([(count, True), (n - count, False)], 0, k) <= 1


def exact_maj(right: int, wrong: int, invalid: int, k: int) -> float:
    """Of answers that have a sample each, in whole numbers."""
    share = Fraction(0)
    for others in range(min(wrong, k - right) + 1):
        rest = math.comb(wrong, others) * math.comb(invalid, k - right - others)
        share += Fraction(rest, (others + 1) * math.comb(right + wrong + invalid, k))
    return float(share)
