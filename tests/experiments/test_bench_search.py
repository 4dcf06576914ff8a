"""The search benchmark: what it counts in a small search, its single steps, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.bench import search, steps
from search import BeamSearch, BestOfN
from ttc.errors import InvalidInput
from ttc.model.loading import load_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random model of two layers with the default model's tokenizer, which ends no text."""
    folder = str(tmp_path_factory.mktemp("model"))
    tokenizer = load_tokenizer("smollm2-135m")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    lines = [{"question": f"What is {n} plus {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in (3, 4, 5)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_problems_come_from_the_file_and_too_few_are_refused(rows: Path) -> None:
    problems = search.problems_of(rows, 2)
    assert [p.question for p in problems] == ["What is 3 plus 3?", "What is 4 plus 4?"]
    with pytest.raises(InvalidInput, match=r"4 problems are wanted, and .*rows.jsonl has 3"):
        search.problems_of(rows, 4)


def test_problems_are_made_where_no_file_is_given() -> None:
    problems = search.problems_of(None, 2)
    assert len({p.question for p in problems}) == 2 and all(p.answer for p in problems)


def test_a_watched_search_counts_its_steps_rows_and_entries(rows: Path, model: str) -> None:
    beams = BeamSearch(beam_size=2, beam_width=2, step_tokens=3, max_steps=2)
    found = search.solve_watched(beams, 1, 2, rows, model)
    # nothing ends within six tokens: two problems, one after the other, two steps of three tokens, four rows
    assert found["tokens"] == 2 * 2 * 3 * 4 and found["decode_steps"] == 2 * 2 * 3
    assert found["rows"] == 4 and found["rows_at_work"] == found["rows_to_the_end"] == 1
    assert 1 <= found["entries"] <= 1 + 4  # a prompt, and what each beam holds alone
    assert set(found["parts_ms"]) == {"linear layers", "attention", "sampling", "rest"}
    assert sum(found["parts_ms"].values()) == pytest.approx(found["step_ms"])
    assert min(found["parts_ms"].values()) > 0


def test_more_problems_in_flight_take_fewer_steps_of_more_rows(rows: Path, model: str) -> None:
    one, both = (search.solve_watched(BestOfN(n=2, max_tokens=3), n, 2, rows, model) for n in (1, 2))
    assert one["rows_at_work"] == both["rows_at_work"] == 1
    assert (one["decode_steps"], one["rows"]) == (6, 2) and (both["decode_steps"], both["rows"]) == (3, 4)
    assert one["tokens"] == both["tokens"] == 12


def test_every_way_takes_two_steps_of_each_case(model: str) -> None:
    cases = [{"prompts": [[504, 3575, 282], [504, 3575, 282, 260, 314]], "branches": 2}]
    engine, generate, floor = (list(way(model, cases, 3)) for way in steps.ARMS.values())
    assert all(figures[f"{step}_ms"] > 0 for (figures,) in (engine, generate, floor) for step in ("first", "second"))
    # the prompts begin alike, which is one entry; then the rest of each prompt and, in the second step, each branch
    assert engine[0]["second_entries"] == engine[0]["first_entries"] + 4


def test_medians_go_through_dictionaries_within() -> None:
    taken: list[dict[str, Any]] = [{"a": n, "parts": {"b": 10 * n}, "name": "x"} for n in (1, 5, 2)]
    assert search.medians(taken) == {"a": 2, "parts": {"b": 20}, "name": "x"}


def record(ways: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"steps": {"branches": 16, "ways": ways}}


def test_the_steps_table_gives_ratios_and_leaves_a_missing_peer_empty() -> None:
    engine = {"problems": 1, "first_ms": 20.0, "second_ms": 30.0, "first_equal_ms": 25.0}
    engine |= {"first_entries": 1, "second_entries": 17}
    other, floor = {"first_ms": 60.0, "second_ms": 60.0}, {"first_ms": 10.0, "second_ms": 10.0}
    ways = {"engine": {"cases": [engine]}, "generate": {"cases": [other]}, "floor": {"cases": [floor]}}
    *_, first, second = search.steps_table(record(ways)).splitlines()
    assert first == "| 1 x 16 | first | 1 | 20.0 ms |  | 60.0 ms | 3.00 |  |  | 10.0 ms | 2.00 |"
    assert second == "| 1 x 16 | second | 17 | 30.0 ms | 1.20 | 60.0 ms | 2.00 |  |  | 10.0 ms | 3.00 |"
    ways["vllm"] = {"cases": [{"first_ms": 30.0, "second_ms": 45.0}]}
    assert search.searches_table(record(ways)) == "Not measured yet: `python -m experiments.bench search searches`"
    assert "| 45.0 ms | 1.50 |" in search.steps_table(record(ways)).splitlines()[-1]


def test_without_a_peer_one_line_says_what_to_give(
    rows: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    case = {"first_ms": 1.0, "second_ms": 1.0}
    monkeypatch.setattr(
        search, "_measured", lambda command, work: asked.append(command) or {"cases": [case], "peak_bytes": 1}
    )
    found = search.measure_steps([1], 1, True, rows, None, model)
    assert list(found) == ["engine", "generate", "floor"] and "give --peer PYTHON" in capsys.readouterr().out
    assert found["floor"]["cases"] == [{"problems": 1} | case]
    search.measure_steps([1], 1, True, rows, "/a/python", model)
    assert asked[-1][0] == "/a/python" and asked[-1][1].endswith("vllm_steps.py")


def test_a_run_keeps_the_other_parts_figures(rows: Path, model: str, tmp_path: Path) -> None:
    out = tmp_path / "search.json"
    out.write_text(json.dumps({"steps": {"branches": 16, "ways": {"engine": {"cases": []}}}}))
    search.run("searches", [1], ["beam_search"], None, None, True, rows, None, model, out)
    written = json.loads(out.read_text())
    assert written["steps"]["branches"] == 16 and "commit" in written["searches"]
    (row,) = written["searches"]["rows"]
    assert (row["search"], row["tokens"], row["rows_at_work"]) == ("beam_search", 2 * 4 * 16, 1)
    last = search.searches_table(written).splitlines()[-1]
    assert last.startswith("| beam search | 1 of 1 | ") and " | 100% | 100% | " in last
