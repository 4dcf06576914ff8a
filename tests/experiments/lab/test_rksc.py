"""The RKSC measurements: their arithmetic, their arms' call counts, and that the tables can be
made."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.lab.paper.rksc import (
    arms,
    asks,
    command,
    phrasings,
    plots,
    prefix,
    stress,
    tables,
    verification,
)
from experiments.lab.paper.rksc.intervals import share, speedup, speedups
from experiments.lab.paper.rksc.prefix import fit
from experiments.lab.paper.rksc.setting import Setting, loaded
from tests.helpers.benches import save_tiny_model
from ttc.usage import Usage

SHORT = ["dataset.pad_chars=0"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The settings of a random model, which does all that the default one does, in a twentieth of
    its time."""
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"), context=4096, layers=4)
    return ["model=hf", f"model.name={folder}", "model.dtype=float32"]


def test_a_speedup_is_the_ratio_of_medians_and_pairs_tighten_it() -> None:
    base = [1.0, 2.0, 3.0, 4.0] * 5
    ratio, low, high = speedup(base, [b / 2 for b in base])
    assert (ratio, low, high) == pytest.approx((2.0, 2.0, 2.0))
    ratio, low, high = speedup(base, base[::-1])
    assert ratio == pytest.approx(1.0) and low < 1 < high
    assert speedup([1.0, 2.0, 90.0], [1.0, 1.0, 1.0])[0] == 2.0


def test_a_share_is_over_all_trials_and_its_interval_over_problems() -> None:
    found, low, high = share([1, 0, 3, 0] * 5, [2, 0, 4, 2] * 5)
    assert found == pytest.approx(0.5) and 0.2 < low < 0.5 < high < 0.75
    assert share([2, 1], [2, 1]) == (1.0, 1.0, 1.0)
    assert all(map(math.isnan, share([0, 0], [0, 0])))


def test_pairs_of_a_right_and_a_wrong_branch() -> None:
    assert verification.pair_wins([0.9, 0.5, 0.5, 0.1], [False, True, False, False]) == [
        0.0,
        0.5,
        1.0,
    ]
    row = {"own": [0.1, 0.2], "right": [True, False]}
    quality = verification.quality([row, {"own": [0.3, 0.2], "right": [True, False]}], "own")
    assert (quality["pairs"], quality["auc"][0], quality["accuracy"][0]) == (2, 0.5, 0.5)
    assert (quality["mean_accuracy"], quality["oracle"]) == (0.5, 1.0)


def test_figures_of_another_model_have_a_file_of_their_own() -> None:
    assert command.file_name("arms", "smollm2-135m") == "rksc_arms.json"
    assert command.file_name("arms", "Qwen/Qwen3-8B") == "rksc_arms-Qwen_Qwen3-8B.json"


def test_lists_of_plain_values_stand_on_one_line() -> None:
    value = {"a": [1, "x, \n", None], "b": [{"c": []}, {"c": [["[1.5]", 2], [3]]}]}
    text = command.as_text(value)
    assert json.loads(text) == value and '"a": [ 1, "x, \\n", null ]' in text


def test_the_fit_recovers_both_terms() -> None:
    lengths = [128, 256, 512, 1024]
    assert fit(lengths, [3e-4 * n + 2e-8 * n * n for n in lengths]) == pytest.approx((3e-4, 2e-8))


def test_n_star_is_where_both_ways_cost_the_same() -> None:
    c1, c2, branches, suffix, seconds = 3e-4, 2e-8, 8, 16, 0.2
    n = prefix.n_star(
        (c1, c2), [{"branches": branches, "suffix_tokens": suffix, "suffix_s": seconds}]
    )
    once = c1 * n + c2 * n * n
    assert branches * (once + c1 * suffix) == pytest.approx(once + seconds)
    assert (
        prefix.n_star((c1, c2), [{"branches": branches, "suffix_tokens": suffix, "suffix_s": 0.01}])
        == 0.0
    )


def test_changes_count_both_directions() -> None:
    def row(answer: str, correct: bool) -> dict[str, Any]:
        return {"answer": answer, "correct": correct}

    before = [row("1", True), row("2", False), row("3", False), row("4", True)]
    after = [row("9", False), row("5", True), row("6", False), row("4", True)]
    assert arms.changes(before, after) == {"answers": 3, "right_to_wrong": 1, "wrong_to_right": 1}


@pytest.mark.slow
def test_every_arm_runs_and_is_held_to_its_calls(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms, "REGIMES", {"t=8": arms.REGIMES["t=8"]})
    (result,) = arms.run([*tiny, *SHORT, "search.n=3"], problems=2, held_out=2)
    found = {arm["arm"]: arm for arm in result["regimes"]["t=8"]["arms"]}
    assert list(found) == list(arms.ARMS)
    usage = {name: Usage(**arm["usage"]) for name, arm in found.items()}
    assert usage["no_kv"].shared_tokens == 0 < usage["exact"].shared_tokens
    assert (
        usage["verify"].verifier_tokens
        < usage["exact"].verifier_tokens
        < usage["no_kv"].verifier_tokens
    )
    assert speedups(list(found.values()), "no_kv")[0] == pytest.approx((1.0, 1.0, 1.0))
    assert found["verify"]["changed"]["answers"] == 0
    table = tables.arms(result)
    assert table.count("\n") == 1 + len(arms.ARMS) and "+ level 2" in table
    assert tables.thresholds(result).count("\n") == 3 and "| 0 of 1 | 95% |" in tables.thresholds(
        result
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "taken_for", "message"),
    [
        ("exact", "no_kv", "every branch computed its prompt"),
        ("exact", "verify", "each branch was only asked"),
        ("verify", "exact", "verification computed the problem again"),
        ("verify", "lossy", "every row was computed in"),
    ],
)
def test_an_arm_that_does_not_do_what_it_says_is_caught(
    made: str, taken_for: str, message: str, tiny: list[str]
) -> None:
    model, tokenizer = loaded(Setting.of("rksc_verify", tiny).config)
    sizes = [*tiny, "dataset.size=1", "dataset.limit=1", "search.n=2", "search.max_tokens=4"]
    arm = arms.Arm.make(made, sizes, {}, model, tokenizer)
    (problem,) = arm.setting.task.problems
    arm.solve(problem)
    with pytest.raises(AssertionError, match=f"{taken_for}: not true that {message}"):
        replace(arm, name=taken_for).solve(problem)


@pytest.mark.slow
def test_lossy_sharing_replaces_the_phrasings_that_differ(tiny: list[str]) -> None:
    model, tokenizer = loaded(Setting.of("rksc_verify", tiny).config)
    phrasings = (
        "search.phrasings=['{question} Reply with a number.','{question} Answer with a number.']"
    )
    sizes = [*tiny, "dataset.size=1", "dataset.limit=1", "search.n=2", "search.max_tokens=4"]
    sizes.append(phrasings)
    exit = {"rule": "ranking", "l_min": 4, "theta": 2.0, "eps": 0.1, "patience": 3}
    found = {"risk": {"tau_conf": 2.0, "r_gap": 0.0, "exit": exit}}
    arm = arms.Arm.make("lossy", [*SHORT, *sizes], found, model, tokenizer)
    (problem,) = arm.setting.task.problems
    assert arm.solve(problem)["usage"]["substituted_tokens"] > 0
    never = arms.Arm.make("lossy", [*SHORT, *sizes, "sharing.tau=2"], found, model, tokenizer)
    with pytest.raises(AssertionError, match="phrasings that differ were replaced"):
        never.solve(problem)


@pytest.mark.slow
def test_phrasings_say_how_alike_and_what_it_costs() -> None:
    found = phrasings.run([], problems=1)
    levels = {row["kind"]: row for row in found["rows"]}
    # bfloat16
    assert levels["identical"]["matched"] == [1.0, 1.0, 1.0] and levels["identical"]["kl"] < 0.01
    assert levels["another problem"]["matched"][2] < levels["minor rewording"]["matched"][0]
    assert [row["tau"] for row in found["taus"]] == list(phrasings.TAUS)
    assert all(0 <= row["saved_of_all"] <= row["saved_of_rest"] < 1 for row in found["taus"])
    templates = [r for r in found["records"] if r["kind"] in phrasings.LEVELS]
    roots = sum(r["tokens"] for r in templates if r["kind"] == "identical")
    # the probe's two layers of both roots, whole at most
    assert 0 < found["reference_layer_rows"] <= roots
    free = phrasings.sweep(found["records"], 30, 0)[0]
    lost = found["reference_layer_rows"] / 30 / sum(r["tokens"] for r in templates)
    assert free["saved_of_all"] - found["taus"][0]["saved_of_all"] == pytest.approx(lost)
    assert "| another problem |" in tables.phrasings(found)


@pytest.mark.slow
def test_asks_is_timed_with_and_without_in_turn(tiny: list[str]) -> None:
    *_, found = asks.run(tiny, problems=1, lengths=(0, 64))
    short, longer = found["rows"]
    assert longer["tokens"] > short["tokens"] + 63
    for row in found["rows"]:
        assert row["substituted"] > 0 and row["faster"] == row["exact_s"] / row["similar_s"]
    assert tables.asks(found).count("\n") == 3


@pytest.mark.slow
def test_verification_stress_and_plots(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "DIFFICULTIES", {verification.USUAL: []})
    settings = [*tiny, *SHORT, "search.n=3", "search.max_tokens=16"]
    found = verification.run(settings, problems=2, held_out=2)
    assert [row["prompt"] for row in found["cost"]] == ["short prompt", "about 1,024 tokens"]
    assert len(found["layers"]["entropy"]) == len(found["layers"]["settled"]) == 4
    assert found["layers"]["settled"][-1] == 1.0
    assert len(found["rows"]) == 4 and all(
        len(row["answers"]) == len(row["right"]) == 3 for row in found["rows"]
    )
    assert verification.summary(found["rows"]) == {
        k: found[k] for k in ("cost", "quality", "exit_depths", "difficulty")
    }
    assert all(
        1 <= d <= 4 for row in found["rows"] for depths in row["depths"].values() for d in depths
    )
    # they leave together
    assert all(len(set(row["depths"]["ranking"])) == 1 for row in found["rows"])
    assert "| stable ranking | ranking, l_min 2, patience 3 |" in tables.verification(found)
    assert "| asked on a fresh prompt |" in tables.verification(found)
    tight = stress.run(tiny, problems=2)
    assert (tight["evictions"], tight["changed"]) == (tight["expected"], 0)
    assert tight["kv_of_unlimited"] < 1
    assert "| 2 | 8 | 8 |" in tables.stress(tight)
    (tmp_path / "rksc_verification.json").write_text(json.dumps(found))
    made = plots.draw(tmp_path, tmp_path)
    assert [file.name for file in made] in ([], ["rksc_verification.png"])
