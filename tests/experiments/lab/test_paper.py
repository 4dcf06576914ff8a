"""`python -m experiments.paper`: the tables of both papers, their deviations, and the command
line."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.lab.paper import headinfer, helm, lbs

GIB = 2**30


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """What `python -m experiments.paper` does, in this process. Returning is exit status 0."""
    monkeypatch.setattr(sys, "argv", ["experiments.paper", *arguments])
    runpy.run_module("experiments.paper", run_name="__main__")


def test_lbs_prints_figure_7(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "lbs.json"
    run(monkeypatch, "lbs", "--json", str(out))
    printed = capsys.readouterr().out
    assert "## OPT-6.7B, LLaMA-2-7B, Qwen-7B: 32 layers" in printed
    assert "| 64 | token by token | 53,012 | 100.0% | 53,012 | 100.0% | 53,012 |" in printed
    assert "| 64 | steps of 32 | 2,010 | 3.8% | 2,052 | 3.9% | 2,052 |" in printed
    assert "| 64 | steps of 128 | 480.0 | 0.9% | 540.0 | 1.0% | 540 |" in printed
    assert "| 4 | steps of 32 | 125.6 | - | 0.0 | - | - |" in printed
    assert json.loads(out.read_text())["cells"] == lbs.rows()


def moved_by_hand(beams: int, step_tokens: int | None) -> int:
    """LBS's Eqs. 1-3, and Eqs. 4-5 at the steps' ends, for 32 layers of 32 heads of 128 in 2 bytes
    and 7 GiB."""
    of_a_layer = beams * 2 * 32 * 128 * 2  # bytes of a token of every beam
    if step_tokens is None:
        lengths = range(128, 2048)
        return sum(max(0, 32 - 7 * GIB // (of_a_layer * n)) * of_a_layer * n for n in lengths)
    ends = range(128 + step_tokens, 2049, step_tokens)
    return sum(32 * of_a_layer * n for n in ends if 32 * of_a_layer * n > 7 * GIB)


def test_lbs_rows_cover_the_figure_and_agree_with_the_paper() -> None:
    rows = lbs.rows()
    assert len(rows) == 3 * 5 * 4  # models, beams, token by token and three step lengths
    for row in rows:
        assert row["end_bytes"] == moved_by_hand(row["beams"], row["step_tokens"])
    # in the paper's text, of OPT-6.7B with 64 beams
    said = {None: 53_012, 32: 2_052, 64: 1_044, 128: 540}
    stated = [row for row in rows if row["paper_gib"] is not None]
    assert {(row["model"], row["beams"]) for row in stated} == {("OPT-6.7B", 64)}
    assert {row["step_tokens"]: row["paper_gib"] for row in stated} == said
    assert {row["step_tokens"]: round(row["end_bytes"] / GIB) for row in stated} == said


def test_headinfer_prints_five_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "headinfer.json"
    run(monkeypatch, "headinfer", "--json", str(out))
    printed = capsys.readouterr().out
    assert all(f"## Table {table}: " in printed for table in (9, 10, 11, 12, 13))
    assert (
        "| headwise | 14.96 / 15.08 (-0.8%) | 3.906 / 3.91 (-0.1%) | 0.625 / 0.63 (-0.8%) "
        "| 19.49 / 19.61 (-0.6%) | 500 / 500 (+0.0%) |"
    ) in printed
    assert json.loads(out.read_text())["cells"] == headinfer.rows()


def test_headinfer_explains_exactly_the_deviations_over_two_percent() -> None:
    rows = headinfer.rows()
    assert len(rows) == 5 * 5 + 3 * 5 + 2 * 5 * 4 + 5 * 5  # Tables 11 and 12 print no total KV
    for row in rows:
        assert row["difference"] == pytest.approx(row["ours_bytes"] / GIB / row["paper_gib"] - 1)
        assert bool(row["why"]) == (abs(row["difference"]) > 0.02), row
    deviating = {(row["table"], row["quantity"]) for row in rows if row["why"]}
    parts = {
        (10, "weights"),
        (10, "kv"),
        (10, "total_kv"),
        (10, "activation"),
        (11, "activation"),
        (12, "activation"),
    }
    assert deviating == parts | {(table, "total") for table in (10, 11, 12)}


def test_headinfers_table_9_by_hand() -> None:
    """A.4 for Llama3-8B: 32 layers, 8 KV heads of 128, a hidden size of 4,096 and an MLP of 14,336,
    all in 2 bytes."""
    tokens, weights = 2**20, 2 * 8_030_261_248
    kv, activation = tokens * 32 * 128 * 8 * 2 * 2, tokens * (4096 + 2 * 14336) * 2
    chunk = activation * 10 // 1024
    by_hand = {
        "standard": (kv, activation, kv),
        "chunked_prefill": (kv, chunk, kv),
        "kv_quant_4bit": (kv // 4, activation, kv // 4),
        "layerwise_offload": (kv * 2 // 32, activation, kv),
        "headwise": (kv * 2 // 32 // 8, chunk, kv),
    }
    printed = {  # the table itself
        "standard": (15.08, 128, 64, 207, 128),
        "chunked_prefill": (15.08, 128, 0.625, 143, 128),
        "kv_quant_4bit": (15.08, 32, 64, 111, 32),
        "layerwise_offload": (15.08, 8, 64, 87, 128),
        "headwise": (15.08, 1, 0.625, 16.7, 128),
    }
    rows = [row for row in headinfer.rows() if row["table"] == 9]
    for method, (on_device, activations, in_all) in by_hand.items():
        own = [row for row in rows if row["method"] == method]
        total = weights + on_device + activations
        assert [row["ours_bytes"] for row in own] == [
            weights,
            on_device,
            activations,
            total,
            in_all,
        ]
        assert tuple(row["paper_gib"] for row in own) == printed[method]


def test_the_arithmetic_behind_the_explanations() -> None:
    cells = {(row["table"], row["method"], row["quantity"]): row for row in headinfer.rows()}
    for table, stated, hidden, mlp in ((11, 128, 5120, 13824), (12, 236, 5120, 27648)):
        activation = cells[table, "standard", "activation"]
        assert activation["ours_bytes"] == 2**20 * (hidden + 2 * mlp) * 2
        assert activation["paper_gib"] == stated == 2 * activation["ours_bytes"] / GIB


def helm_weights(hidden: int, mlp: int, heads: int) -> tuple[int, int]:
    """Bytes of a Qwen3 block and of its vocabulary's matrix, in 2 bytes: Eqs. 4.1-4.3, with the
    norms of q and k."""
    block = (
        2 * hidden * heads * 128 + 2 * hidden * 8 * 128 + 3 * hidden * mlp + 2 * hidden + 2 * 128
    )
    return 2 * block, 2 * 151936 * hidden


@pytest.fixture(scope="module")
def helm_rows() -> list[dict[str, Any]]:
    return helm.rows()


@pytest.mark.slow
def test_helm_prints_the_example_and_table_6_5(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    helm_rows: list[dict[str, Any]],
) -> None:
    monkeypatch.setattr(helm, "rows", lambda: helm_rows)
    run(monkeypatch, "helm")
    printed = capsys.readouterr().out
    assert "| W_param of a block, MB | 385.9 | 386 |" in printed
    assert "| 36 blocks | 7 GB | 18 | 155.6 | 32.1 | 187.8 |" in printed
    assert "| 38 units | 7 GiB | 21 | 172.9 | 34.3 | 207.2 |" in printed
    assert (
        "| RTX 4060 | Qwen3-8B | cpu(21)→cuda(17) | cpu(21)→cuda(17) | 0.73 to 1.09 | 207.2 |"
        in printed
    )


@pytest.mark.slow
def test_helms_k_is_18_without_the_ends_in_decimal_and_21_with_them_in_binary(
    helm_rows: list[dict[str, Any]],
) -> None:
    block, head = helm_weights(4096, 12288, 32)
    head += 2 * 4096  # the final norm
    by_hand = {
        ("36 blocks", "7 GB"): 36 - 7 * 10**9 // block,
        ("36 blocks", "7 GiB"): 36 - 7 * GIB // block,
        ("38 units", "7 GB"): 37 - (7 * 10**9 - head) // block,
        ("38 units", "7 GiB"): 37 - (7 * GIB - head) // block,
    }
    assert by_hand == {
        ("36 blocks", "7 GB"): 18,
        ("36 blocks", "7 GiB"): 17,
        ("38 units", "7 GB"): 23,
        ("38 units", "7 GiB"): 21,
    }
    assert {
        (row["split"], row["vram"]): row["k"] for row in helm_rows if row["part"] == "split"
    } == by_hand


@pytest.mark.slow
def test_helms_plans_follow_from_what_is_reserved(helm_rows: list[dict[str, Any]]) -> None:
    sizes = {
        name: (c["hidden_size"], c["intermediate_size"], c["num_attention_heads"])
        for name, c in helm.QWEN3.items()
    }
    vram = {"RTX 4060": 8 * GIB, "RTX 3090": 24 * GIB, "L40S": 48 * GIB}
    ranges: dict[str, tuple[float, float]] = dict.fromkeys(vram, (0.0, float("inf")))
    plans = [row for row in helm_rows if row["part"] == "plan"]
    assert len(plans) == 9 + 1  # Table 6.5, and the one of section 6.4.2
    for row in plans:
        block, head = helm_weights(*sizes[row["model"]])
        head += 2 * sizes[row["model"]][0]
        blocks = row["units"] - 2
        whole = (
            blocks * block
            + head
            + (0 if row["model"] == "Qwen3-4B" else head - 2 * sizes[row["model"]][0])
        )
        on_gpu = {k: head + (blocks + 1 - k) * block for k in range(1, blocks + 2)} | {0: whole}
        assert row["k"] == min(k for k, size in on_gpu.items() if size <= vram[row["gpu"]] - GIB)
        k, (least, most) = row["paper_k"], ranges[row["gpu"]]
        assert row["most_reserved_bytes"] == vram[row["gpu"]] - on_gpu[k]
        if k:
            assert row["least_reserved_bytes"] == vram[row["gpu"]] - on_gpu[k - 1]
            least = max(least, row["least_reserved_bytes"] / GIB)
        ranges[row["gpu"]] = (least, min(most, row["most_reserved_bytes"] / GIB))
    rounded = {gpu: (round(least, 2), round(most, 2)) for gpu, (least, most) in ranges.items()}
    assert rounded == {"RTX 4060": (0.88, 1.07), "RTX 3090": (1.66, 2.25), "L40S": (2.96, 3.86)}
    same = [row["k"] == row["paper_k"] for row in plans]
    assert sum(same) == 7
    assert {row["gpu"] for row, equal in zip(plans, same, strict=True) if not equal} == {
        "RTX 3090",
        "L40S",
    }


@pytest.mark.slow
def test_helms_predictions_need_other_deltas_than_it_states(
    helm_rows: list[dict[str, Any]],
) -> None:
    for row in helm_rows:
        # all weights once at M, and attention, which is little
        if row["part"] == "plan" and row["paper_k"] == 0:
            block, head = helm_weights(
                *(
                    helm.QWEN3[row["model"]][key]
                    for key in ("hidden_size", "intermediate_size", "num_attention_heads")
                )
            )
            blocks, bandwidth = row["units"] - 2, {"RTX 3090": 936e9, "L40S": 864e9}[row["gpu"]]
            assert row["roofline_ms"] == pytest.approx(
                (blocks * block + head) / bandwidth * 1e3, rel=0.02
            )
            assert row["implied_delta_ms"] == pytest.approx(
                (row["paper_predicted_ms"] - row["roofline_ms"]) / blocks
            )
            assert row["with_delta_ms"] == pytest.approx(
                row["roofline_ms"] + blocks * row["delta_ms"]
            )
    l40s = [row for row in helm_rows if row.get("gpu") == "L40S" and row["paper_k"] == 0]
    # the overhead alone is more
    assert all(36 * row["delta_ms"] > row["paper_predicted_ms"] for row in l40s)


def test_without_an_argument_it_lists_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch)
    printed = capsys.readouterr().out
    assert "lbs" in printed and "headinfer" in printed and "helm" in printed


def test_an_unknown_paper_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as exit_status:
        run(monkeypatch, "newspaper")
    assert exit_status.value.code == 2
