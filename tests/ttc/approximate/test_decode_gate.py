"""The decode gate: who stops, when, and that everybody else is left alone. (RKSC, appendix I.1)"""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.engines import make_engine
from tests.helpers.tokenizers import text
from ttc import BeamGroups, Branch, DecodeGate, Engine, InvalidInput, OutOfMemory, Paged
from ttc.approximate.branch_confidence import confidence, gap_ratio
from ttc.usage import Usage

SURE = DecodeGate(theta=0.0, r_gap=0.0)
STEPS = 12


def grown(
    gate: DecodeGate | None, seeds: tuple[int, ...] = (1,), **options: Any
) -> tuple[Engine, list[list[Branch]]]:
    engine = make_engine(4, 256, gate=gate, **options)
    roots = engine.roots([text(f"What is {s} + {s}?") for s in seeds], seeds=list(seeds)).result()
    problems = [engine.fork(root, 4) for root in roots]
    engine.generate([b for branches in problems for b in branches], STEPS)
    return engine, problems


def p_after(branches: list[Branch], tokens: int) -> list[float]:
    return [sum(b.top1[:tokens]) / tokens for b in branches]


def test_the_leader_goes_on_and_the_rest_stop_at_the_first_clear_lead() -> None:
    _, (free,) = grown(None)
    gaps = [gap_ratio(p_after(free, n)) for n in range(1, STEPS + 1)]
    r_gap = sorted(gaps[:-1])[-3]
    at = next(n for n, gap in enumerate(gaps, 1) if gap >= r_gap)
    assert at < STEPS
    _, (gated,) = grown(DecodeGate(theta=0.0, r_gap=r_gap))
    p = p_after(free, at)
    leader = p.index(max(p))
    for i, (with_gate, without) in enumerate(zip(gated, free, strict=True)):
        length, reason = (STEPS, None) if i == leader else (at, "gate")
        assert (with_gate.generated, with_gate.finish_reason) == (
            without.generated[:length],
            reason,
        )
    assert confidence(gated[leader]) == pytest.approx(confidence(free[leader]))


def rival(*top1: float) -> Branch:
    branch = Branch([1, 2], None, 0, Usage(), str)
    for p in top1:
        branch.append(3, 0.0, p)
    return branch


def test_equation_4_holds_at_both_of_its_thresholds() -> None:
    """max p is 0.75, and (0.75 - 0.375) / 0.75 is 0.5."""
    leader, trailing, done = rival(0.5, 1.0), rival(0.25, 0.5), rival(0.25, 0.25)
    done.finish_reason = "eos"
    branches = [trailing, leader, done]
    assert DecodeGate(theta=0.75, r_gap=0.5).losers(branches) == [trailing]
    for theta, r_gap in ((0.76, 0.5), (0.75, 0.51)):
        assert DecodeGate(theta=theta, r_gap=r_gap).losers(branches) == []


def test_every_rival_must_have_min_tokens_and_who_was_stopped_is_none() -> None:
    gate = DecodeGate(theta=0.5, r_gap=0.5, min_tokens=2)
    leader, trailing, short = rival(1.0, 1.0), rival(0.25, 0.25), rival(0.25)
    assert gate.losers([leader, trailing]) == [trailing]
    assert gate.losers([leader, trailing, short]) == gate.losers([short, leader]) == []
    short.finish_reason = "gate"
    assert gate.losers([leader, trailing, short]) == [trailing]
    assert gate.losers([leader, short]) == []


def test_problems_are_gated_apart() -> None:
    _, together = grown(SURE, seeds=(1, 2))
    alone = [grown(SURE, seeds=(s,))[1][0] for s in (1, 2)]
    assert [[b.tokens for b in problem] for problem in together] == [
        [b.tokens for b in problem] for problem in alone
    ]


def test_stopped_branches_are_ordinary_finished_ones() -> None:
    engine, (branches,) = grown(SURE, memory=Paged(budget_gib=1.5e-5, block_tokens=8))
    _, (resident,) = grown(SURE)
    assert [b.tokens for b in branches] == [b.tokens for b in resident]
    stopped = [b for b in branches if b.finish_reason == "gate"]
    assert len(stopped) == 3
    assert len(engine.score(stopped, [[[5]]] * 3).result()) == 3
    with pytest.raises(InvalidInput, match="is finished"):
        engine.generate(stopped, 1)
    engine.release(branches)
    assert all(b.text for b in stopped)


@pytest.mark.parametrize("policy", [Paged, BeamGroups])
def test_branches_that_cannot_decode_side_by_side_have_no_gate(policy: Any) -> None:
    with pytest.raises(OutOfMemory, match=r"room for \d of 4 branches"):
        grown(SURE, memory=policy(budget_gib=1e-5, block_tokens=8))
    _, (gated,) = grown(SURE, memory=policy(budget_gib=1, block_tokens=8))
    assert [b.finish_reason for b in gated].count("gate") == 3


@pytest.mark.parametrize("bad", [{"theta": -1}, {"r_gap": float("nan")}, {"min_tokens": 0}])
def test_settings_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        DecodeGate(**bad)
