"""The search benchmark: what it counts in a small search, its single steps, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.lab.bench import search, search_tables, steps
from search import BeamSearch, BestOfN
from tests.helpers.benches import save_tiny_model, write_rows
from ttc.errors import InvalidInput, TTCError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("model"), 512)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl")


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
    # nothing ends within six tokens: two problems, one after the other, two steps of three tokens,
    # four rows
    assert found["tokens"] == 2 * 2 * 3 * 4 and found["decode_steps"] == 2 * 2 * 3
    assert found["rows"] == 4 and found["rows_at_work"] == found["rows_to_the_end"] == 1
    assert 1 <= found["entries"] <= 1 + 4  # a prompt, and what each beam holds alone
    assert set(found["parts_ms"]) == {"linear layers", "attention", "sampling", "rest"}
    assert sum(found["parts_ms"].values()) == pytest.approx(found["step_ms"])
    assert min(found["parts_ms"].values()) > 0


@pytest.mark.slow
def test_more_problems_in_flight_take_fewer_steps_of_more_rows(rows: Path, model: str) -> None:
    one, both = (
        search.solve_watched(BestOfN(n=2, max_tokens=3), n, 2, rows, model) for n in (1, 2)
    )
    assert one["rows_at_work"] == both["rows_at_work"] == 1
    assert (one["decode_steps"], one["rows"]) == (6, 2) and (
        both["decode_steps"],
        both["rows"],
    ) == (3, 4)
    assert one["tokens"] == both["tokens"] == 12 and one["ended"] == both["ended"] == 2


def test_a_search_is_cut_short_when_its_time_is_up(rows: Path, model: str) -> None:
    found = search.solve_watched(BestOfN(n=2, max_tokens=3), 1, 3, rows, model, 0.0)
    assert (found["ended"], found["decode_steps"], found["tokens"], found["rows_at_work"]) == (
        1,
        3,
        6,
        1,
    )


def test_a_search_takes_the_rows_of_its_problems_and_best_of_8_fills_those_of_a_quarter() -> None:
    assert search.cases_for(["beam_search", "best_of_8"], [1, 4, 16, 64]) == [
        *(("beam_search", *counts) for counts in ((1, 4), (4, 4), (16, 16), (64, 64))),
        ("best_of_8", 16, 64),
    ]
    assert search.cases_for(["best_of_8", "best_of_16"], [1]) == [
        ("best_of_8", 1, 1),
        ("best_of_16", 1, 1),
    ]


@pytest.mark.slow
def test_every_way_takes_two_steps_of_each_case(model: str) -> None:
    cases = [{"prompts": [[504, 3575, 282], [504, 3575, 282, 260, 314]], "branches": 2}]
    engine, generate, floor = (list(way(model, cases, 3)) for way in steps.ARMS.values())
    assert all(
        figures[f"{step}_ms"] > 0
        for (figures,) in (engine, generate, floor)
        for step in ("first", "second")
    )
    # the prompts begin alike, which is one entry; then the rest of each prompt and, in the second
    # step, each branch
    assert engine[0]["second_entries"] == engine[0]["first_entries"] + 4


def engine_case(problems: int) -> dict[str, Any]:
    times = {"first_ms": 20.0, "second_ms": 30.0, "first_equal_ms": 24.0}
    return {"problems": problems, "first_entries": 1, "second_entries": 17} | times


# ---------------------------------------------------------------- the record


def measure(part: str, out: Path, rows: Path, model: str, **options: Any) -> dict[str, Any]:
    defaults = {"problems": [1], "searches": ["beam_search"], "seconds": 45.0, "quick": True}
    search.run(part, data=rows, model=model, out=out, **(defaults | options))
    return dict(json.loads(out.read_text()))


@pytest.mark.slow
def test_steps_are_written_as_they_come_and_a_way_that_fails_stops_no_other(
    rows: Path,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, asked, written = tmp_path / "search.json", list[str](), list[list[str]]()
    case = {name: value for name, value in engine_case(1).items() if name != "problems"}

    def measured(command: list[str], work: str) -> dict[str, Any]:
        asked.append(command[0] if command[0] == "/a/python" else command[3])
        written.append(list(json.loads(out.read_text())["steps"]["ways"]) if out.exists() else [])
        if asked[-1] == "generate":
            raise RuntimeError("no memory")
        return {"cases": [case], "peak_bytes": 1}

    monkeypatch.setattr(search, "measured", measured)
    with pytest.raises(
        TTCError, match=r"no memory; the figures of the others are in .*search\.json"
    ):
        measure("steps", out, rows, model, rounds=2, peer="/a/python")
    assert asked == ["engine", "generate", "floor", "/a/python", "engine", "floor", "/a/python"]
    assert written[:4] == [[], ["engine"], ["engine"], ["engine", "floor"]]
    found = json.loads(out.read_text())["steps"]
    assert (
        list(found["ways"]) == ["engine", "floor", "vllm"] and found["ways"]["floor"]["rounds"] == 2
    )
    assert (
        found["ways"]["engine"]["cases"] == [engine_case(1)]
        and "commit" in found
        and len(found["commands"]) == 1
    )
    capsys.readouterr()
    monkeypatch.setattr(search, "measured", lambda *_: {"cases": [case]})
    found = measure("steps", out, rows, model, ways=["generate"])["steps"]  # the missing one alone
    assert list(found["ways"]) == ["engine", "floor", "vllm", "generate"]
    assert "--peer" not in capsys.readouterr().out
    measure("steps", out, rows, model)
    assert "give --peer PYTHON" in capsys.readouterr().out
    with pytest.raises(InvalidInput, match="give --peer PYTHON"):
        measure("steps", out, rows, model, ways=["vllm"])
    found = measure("steps", out, rows, model, ways=["floor"], problems=[2])["steps"]
    assert list(found["ways"]) == ["floor"]  # other steps than those


def test_generate_runs_in_the_first_round_alone(
    rows: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    case = {"first_ms": 1.0, "second_ms": 1.0}
    monkeypatch.setattr(
        search, "measured", lambda command, _: asked.append(command[3]) or {"cases": [case]}
    )
    measure("steps", tmp_path / "search.json", rows, model, rounds=3, ways=["generate", "floor"])
    assert asked == ["generate", "floor", "floor", "floor"]


@pytest.mark.slow
def test_searches_join_what_the_same_code_has_measured(
    rows: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "search.json"
    out.write_text(json.dumps({"steps": {"branches": 16, "ways": {}}}))
    written = measure("searches", out, rows, model)
    assert written["steps"]["branches"] == 16 and "commit" in written["searches"]
    (row,) = written["searches"]["rows"]
    assert (row["search"], row["tokens"], row["rows_at_work"]) == ("beam_search", 2 * 4 * 16, 1)
    last = search_tables.searches_table(written).splitlines()[-1]
    assert last.startswith("| beam search | 1 | 1 | 16 | ") and " | 100% | 100% | " in last
    monkeypatch.setattr(search, "measured", lambda *_: row | {"search": "best_of_8"})
    both = measure("searches", out, rows, model, searches=["best_of_8"])["searches"]
    assert [r["search"] for r in both["rows"]] == ["best_of_8", "beam_search"] and both["rows"][
        1
    ] == row
    both["code"]["search.beam_search"] = "another"
    out.write_text(json.dumps({"searches": both}))
    alone = measure("searches", out, rows, model, searches=["best_of_8"])["searches"]
    assert [r["search"] for r in alone["rows"]] == ["best_of_8"]
