"""The tables and figures that formulas give: values worked out by hand or printed in the papers,
and that they draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.lab.paper import capture_formulas, headinfer_speed, helm_tables, lbs
from experiments.lab.paper.command import PAPERS, module
from experiments.lab.paper.exhibit import Exhibit, Lines, draw
from experiments.lab.paper.rksc import latency
from experiments.lab.paper.rksc.latency import Costs, Exits, l_cgee


def by(rows: list[dict[str, Any]], *columns: str) -> dict[Any, dict[str, Any]]:
    """The rows by the values of these columns."""
    return {
        tuple(row[c] for c in columns) if len(columns) > 1 else row[columns[0]]: row for row in rows
    }


# ---------------------------------------------------------------- one way to print and to draw

ROWS = [{"x": "a", "ours": 1234.5, "paper": None}, {"x": "b", "ours": 0.12345, "paper": 2}]


def test_a_table_has_every_column_and_a_dash_for_nothing() -> None:
    text = Exhibit("Table 1", "example", lambda: ROWS, note="why").markdown()
    assert text.splitlines() == [
        "## Table 1: example",
        "",
        "| x | ours | paper |",
        "|---|---|---|",
        "| a | 1,234 | - |",
        "| b | 0.1235 | 2 |",
        "",
        "why",
    ]


def test_a_plot_has_our_values_and_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    draw(
        [Exhibit("Table 1", "example", lambda: ROWS, Lines("x", log="y"))],
        tmp_path / "folder" / "plot.png",
    )
    axis = pyplot.gcf().axes[0]
    drawn = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axis.get_lines()
    }
    assert drawn == {"ours": ([0, 1], [1234.5, 0.12345]), "paper": ([1], [2])}
    assert axis.get_title() == "Table 1: example" and [
        t.get_text() for t in axis.get_xticklabels()
    ] == ["a", "b"]
    assert (tmp_path / "folder" / "plot.png").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_has_one_form_and_its_figures_draw(paper: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    exhibits = module(PAPERS[paper].exhibits).EXHIBITS
    for exhibit in exhibits:
        rows = exhibit.rows()
        assert rows and all(list(row) == list(rows[0]) for row in rows), exhibit.name
        if exhibit.lines is not None:
            drawn = {exhibit.lines.x, *exhibit.lines.ours, *exhibit.lines.paper} | {
                exhibit.lines.by
            } - {None}
            assert drawn <= set(rows[0]), exhibit.name
    draw(exhibits, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------- LBS


def test_lbs_kv_is_more_of_the_memory_than_the_paper_says_at_least() -> None:
    stated = [row for row in lbs.memory_rows() if row["paper, more than"] is not None]
    assert len(stated) == 3
    for row in stated:  # 0.5 MiB a token, 2,048 tokens: 1 GiB a beam
        assert row["KV, GiB"] == row["beams"]
        assert row["paper, more than"] < row["KV, % of memory"] < row["paper, more than"] + 4


def test_lbs_measured_transfers_are_near_those_of_eq_5() -> None:
    for row in lbs.share_rows():
        assert row["charged at the start, %"] == pytest.approx(row["paper, measured, %"], rel=0.04)


# ---------------------------------------------------------------- HeadInfer


@pytest.mark.parametrize("gpu", [headinfer_speed.RTX_4090, headinfer_speed.A100])
def test_headinfers_rooflines_are_as_printed_but_for_what_the_note_says(
    gpu: headinfer_speed.Gpu,
) -> None:
    rows = headinfer_speed.roofline_rows(gpu)
    assert len(rows) == 2 * 2 * 2 * 3
    for row in rows:
        assert row["MB"] == pytest.approx(row["paper, MB"], rel=0.05)
        assert row["FLOP a byte"] == pytest.approx(row["paper, FLOP a byte"], rel=0.01)
        assert row["bound"] == row["paper, bound"]
    wrong = {
        (row["where"], row["operator"])
        for row in rows
        if row["TFLOP/s"] != pytest.approx(row["paper, TFLOP/s"], rel=0.02)
    }
    heads = {("prefill, offload", f"head-wise ({n}k)") for n in (10, 100)}
    decoding = {
        ("decode, offload", f"{name} ({n}k)")
        for name in ("flash-attn", "head-wise")
        for n in (1, 10, 100)
    }
    assert wrong == decoding | (heads if gpu is headinfer_speed.RTX_4090 else set())


def test_headinfers_prefill_is_within_an_eighth_of_the_rate_of_the_gpu() -> None:
    rows = by(headinfer_speed.prefill_rows(), "context, K")
    by_hand = 165e12 / (2 * (8_030_261_248 - 128_256 * 4096) + 4 * 32 * 4096 * 4_000_000 / 2)
    assert rows[4000]["prefill, tokens/s"] == pytest.approx(by_hand) == pytest.approx(155, abs=0.5)
    for row in rows.values():
        assert 0.86 < row["paper, HeadInfer"] / row["prefill, tokens/s"] < 1.01


def test_headinfers_decoding_is_what_the_link_and_the_memory_allow() -> None:
    for row in headinfer_speed.decode_rows():
        tokens = 1000 * row["context, K"]
        assert row["offloaded, tokens/s"] == pytest.approx(25e9 / (tokens * 2 * 32 * 8 * 128 * 2))
        assert row["paper, HeadInfer"] < row["offloaded, tokens/s"]
        if row["paper, vLLM"] is not None:
            assert row["resident, tokens/s"] == pytest.approx(row["paper, vLLM"], rel=0.15)


def test_headinfers_longest_contexts_are_of_the_papers_order() -> None:
    rows = by(headinfer_speed.context_rows(), "model", "method")
    assert rows["Llama-3-8B", "headwise"]["longest context, K"] == 4096  # 512 GiB of KV on the host
    assert rows["Llama-2-7B", "headwise"]["longest context, K"] == 1024
    for row in rows.values():
        assert 0.69 < row["longest context, K"] / row["paper"] < 2.1, row
    ruler = by(headinfer_speed.ruler_rows(), "method")
    assert [ruler[m]["ours, K"] for m in ("standard", "chunked_prefill", "headwise")] == [
        16,
        32,
        128,
    ]


# ---------------------------------------------------------------- HELM


def test_helms_streaming_attention_is_table_4_2_and_standard_attention() -> None:
    *tokens, last = helm_tables.streaming_rows()
    for row in tokens:
        assert all(row[name] == pytest.approx(row[f"paper, {name}"], abs=0.006) for name in "mso")
    assert last["o"] == pytest.approx(24.24, abs=0.01) and "24.24" in last["token"]


@pytest.mark.slow
def test_helms_throughput_is_the_roofline_with_its_delta() -> None:
    rows = by(helm_tables.throughput_rows(), "GPU, model")
    assert rows["RTX 3090, Qwen3-8B"]["HELM"] == pytest.approx(1000 / (16.3 + 36 * 0.79), rel=0.01)
    assert rows["RTX 3090, Qwen3-14B"]["HELM"] is None  # the CPU's bandwidth is not given
    eight = rows["RTX 4060, Qwen3-8B"]
    assert eight["HELM"] == pytest.approx(1000 / (207.2 + 36 * 0.14), rel=0.01)
    assert eight["HELM"] / eight["Accelerate"] > 2.5
    kernel = by(helm_tables.kernel_rows(), "model", "kernel")
    assert kernel["Qwen3-8B", "PyTorch's"]["tokens/s"] == pytest.approx(0.5, rel=0.1)


@pytest.mark.slow
def test_helms_best_split_is_the_first_that_fits() -> None:
    fits = [row["k"] for row in helm_tables.split_rows() if row["fits 7 GB"] == "yes"]
    assert fits == list(range(18, 37))
    times = [row["T_plan, ms"] for row in helm_tables.split_rows()]
    assert times == sorted(times)


@pytest.mark.slow
def test_helms_equations_of_chapter_2() -> None:
    for row in helm_tables.equation_rows():
        assert row["ours"] == pytest.approx(row["paper"], rel=0.01)


# ---------------------------------------------------------------- CAPTURE


def test_captures_table_iii_follows_from_its_first_column() -> None:
    rows = by(capture_formulas.throughput_rows(), "OPT", "cache")
    for (_, cache), row in rows.items():
        within = {"ACT only": 1e-6, "1:1": 0.08, "Algorithm 1": 0.2}[cache]
        assert row["tokens/s"] == pytest.approx(row["paper"], rel=within), row
        assert 0.69 < row["of 165 TFLOP/s"] < 0.83


def test_captures_static_rule_gives_both_kinds_the_same_memory() -> None:
    model = capture_formulas.MODELS["30B"]
    split = capture_formulas.arms(model, 130e12, 128, 250_000)["1:1"]
    assert split.act_gpu == capture_formulas.room(model)
    assert split.act_host / 2 == pytest.approx(split.kv_host, abs=1) and sum(split) == 250_000


def test_captures_footprint_and_operations_are_those_of_the_text() -> None:
    assert capture_formulas.footprint_rows()[-1]["KV, GiB"] == 168
    assert capture_formulas.breakdown_rows()[-1]["less, %"] == pytest.approx(100 * 5 / 6)
    for row in capture_formulas.recomputing_rows():
        if row["paper"] is not None:
            assert row["beside copies"] < row["paper"] < row["after copies"]


def test_captures_ratio_of_opt_30b_and_66b_is_near_the_papers() -> None:
    rows = by(capture_formulas.ratio_rows(), "model")
    assert rows["OPT-30B"]["KV : ACT"] == pytest.approx(2.0, rel=0.15)
    assert rows["OPT-66B"]["KV : ACT"] == pytest.approx(1.78, rel=0.15)


# ---------------------------------------------------------------- RKSC


def test_rkscs_latency_by_hand() -> None:
    costs = Costs(alpha=2e-6, beta=1e-3, gamma=1e-2, delta=0.5)
    assert costs.l_ref(1000, 8, 4) == pytest.approx(16 + 0.32 + 0.5)
    assert costs.l_kv(1000, 8, 4, 10) == pytest.approx(2 + 0.08 + 0.32 + 0.5)
    assert costs.s_kv(1000, 8, 4, 10) == pytest.approx(16.82 / 2.9)
    exits = Exits(rho=0.5, phi=0.5, depth=0.6)
    assert exits.saved == pytest.approx(0.5 + 0.5 * 0.5 * 0.4)
    assert l_cgee(2.9, 0.5, exits) == pytest.approx(2.6)
    assert costs.s_rksc(1000, 8, 4, 10, exits) == pytest.approx(16.82 / 2.6)
    # corollary A.2
    assert costs.s_rksc(1000, 8, 4, 10, Exits(0, 0, 0.6)) == costs.s_kv(1000, 8, 4, 10)


def test_rkscs_table_2_needs_another_delta_for_each_data_set() -> None:
    rows = latency.table_2_rows()
    assert len(rows) == 20
    qwen = [row["delta needed, ms"] for row in rows if row["model"] == "Qwen2.5-7B"]
    assert qwen[0] == pytest.approx(55 / (0.03 + 0.97 * (1 - 18.4 / 28))) and max(qwen) > 2 * min(
        qwen
    )
    assert all(row["S_RKSC"] == pytest.approx(row["paper"], rel=0.16) for row in rows)


def test_rkscs_threshold_plays_no_part_among_identical_prefixes() -> None:
    rows = latency.tau_rows()
    assert [row["tau"] for row in rows] == [0.70, 0.82, 0.90, 0.95]
    assert {row["identical prompts shared, %"] for row in rows} == {100}
