"""The RKSC measurements: their arithmetic, their arms' call counts, and that the tables can be made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.paper.rksc import arms, phrasings, plots, prefix, stress, tables, verification
from experiments.paper.rksc.setting import Setting, loaded
from experiments.paper.rksc.stats import fit, speedup
from ttc.usage import Usage

SHORT = ["dataset.pad_chars=0"]


def test_a_speedup_is_the_ratio_of_means_and_pairs_tighten_it() -> None:
    base = [1.0, 2.0, 3.0, 4.0] * 5
    ratio, low, high = speedup(base, [b / 2 for b in base])
    assert (ratio, low, high) == pytest.approx((2.0, 2.0, 2.0))
    ratio, low, high = speedup(base, base[::-1])
    assert ratio == pytest.approx(1.0) and low < 1 < high


def test_the_fit_recovers_both_terms() -> None:
    lengths = [128, 256, 512, 1024]
    assert fit(lengths, [3e-4 * n + 2e-8 * n * n for n in lengths]) == pytest.approx((3e-4, 2e-8))


def test_n_star_is_where_both_ways_cost_the_same() -> None:
    c1, c2, branches, suffix, seconds = 3e-4, 2e-8, 8, 16, 0.2
    n = prefix.n_star((c1, c2), [{"branches": branches, "suffix_tokens": suffix, "suffix_s": seconds}])
    once = c1 * n + c2 * n * n
    assert branches * (once + c1 * suffix) == pytest.approx(once + seconds)
    assert prefix.n_star((c1, c2), [{"branches": branches, "suffix_tokens": suffix, "suffix_s": 0.01}]) == 0.0


def test_changes_count_both_directions() -> None:
    def row(answer: str, correct: bool) -> dict[str, Any]:
        return {"answer": answer, "correct": correct}

    before = [row("1", True), row("2", False), row("3", False), row("4", True)]
    after = [row("9", False), row("5", True), row("6", False), row("4", True)]
    assert arms.changes(before, after) == {"answers": 3, "right_to_wrong": 1, "wrong_to_right": 1}


def test_every_arm_runs_and_is_held_to_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "REGIMES", {"t=8": arms.REGIMES["t=8"]})
    (result,) = arms.run([*SHORT, "search.n=3"], problems=2, held_out=2)
    found = {arm["arm"]: arm for arm in result["regimes"]["t=8"]["arms"]}
    assert list(found) == list(arms.ARMS)
    usage = {name: Usage(**arm["usage"]) for name, arm in found.items()}
    assert usage["no_kv"].shared_tokens == 0 < usage["exact"].shared_tokens
    assert usage["verify"].verifier_tokens < usage["exact"].verifier_tokens < usage["no_kv"].verifier_tokens
    assert found["no_kv"]["over_no_kv"] == pytest.approx((1.0, 1.0, 1.0))
    assert found["verify"]["changed"]["answers"] == 0
    table = tables.arms(result)
    assert table.count("\n") == 1 + len(arms.ARMS) and "+ level 2" in table
    assert tables.thresholds(result).count("\n") == 3


def test_an_arm_that_does_not_do_what_it_says_is_caught() -> None:
    setting = Setting.of("rksc_verify", SHORT)
    model, tokenizer = loaded(setting.config)
    sizes = [*SHORT, "dataset.size=1", "dataset.limit=1", "search.n=2", "search.max_tokens=4"]
    arm = arms.Arm.make("exact", sizes, {}, model, tokenizer)
    (problem,) = arm.setting.task.problems
    arm.solve(problem)
    with pytest.raises(AssertionError, match="no_kv: not true that every branch computed its prompt"):
        replace(arm, name="no_kv").solve(problem)


def test_phrasings_say_how_alike_and_what_it_costs() -> None:
    found = phrasings.run([], problems=2)
    levels = {row["kind"]: row for row in found["rows"]}
    assert levels["identical"]["matched"] == [1.0, 1.0, 1.0] and levels["identical"]["kl"] < 1e-6
    assert levels["another problem"]["matched"][2] < levels["minor rewording"]["matched"][0]
    assert [row["tau"] for row in found["taus"]] == list(phrasings.TAUS)
    assert all(0 <= row["saved_of_all"] <= row["saved_of_rest"] < 1 for row in found["taus"])
    assert "| another problem |" in tables.phrasings(found)


def test_verification_stress_and_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "DIFFICULTIES", {verification.USUAL: []})
    found = verification.run([*SHORT, "search.n=3", "search.max_tokens=16"], problems=2)
    assert [row["prompt"] for row in found["cost"]] == ["short prompt", "about 1,024 tokens"]
    assert len(found["layers"]["entropy"]) == len(found["layers"]["settled"]) == 30
    assert found["layers"]["settled"][-1] == 1.0
    assert "| asked on a fresh prompt |" in tables.verification(found)
    tight = stress.run([], problems=2)
    assert (tight["evictions"], tight["changed"]) == (tight["expected"], 0)
    assert tight["kv_of_unlimited"] < 1
    assert "| 2 | 8 | 8 |" in tables.stress(tight)
    (tmp_path / "rksc_verification.json").write_text(json.dumps(found))
    made = plots.draw(tmp_path, tmp_path)
    assert [file.name for file in made] in ([], ["rksc_verification.png"])
