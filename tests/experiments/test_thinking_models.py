"""Models that think, with real weights and random ones, through a run, the view page and the
server."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from experiments.runs.problem_loop import run
from search import BeamSearch, BestOfN, Greedy, solve, stream
from tests.experiments.test_view import written
from tests.helpers.runs import ROWS, composed, save_rows
from tests.helpers.thinking import QWEN3, save_qwen3, save_smollm2
from ttc import BeamGroups, BlockCache, Engine, Layerwise, Paged
from ttc.text.prompt import PromptTemplate
from verifiers import ConfidenceVerifier

ASKED = PromptTemplate("{question}")
CLOSING = "</think>\n\nFinal Answer:"


def test_a_closed_thought_and_its_answer_are_those_of_transformers(tmp_path: Path) -> None:
    engine = Engine.from_pretrained(save_qwen3(tmp_path / "qwen3"), dtype="float32")
    search = Greedy(thinking_tokens=9, max_tokens=7)
    result = solve(search, problem="1 + 1?", engine=engine, template=ASKED)
    assert result.best is not None and engine.kv_bytes() == 0
    prompt = ASKED.tokens("1 + 1?", engine.tokenizer)
    closing = engine.encode(CLOSING)

    def more(tokens: list[int], count: int) -> list[int]:
        with torch.inference_mode(), engine.lent() as model:
            ids = torch.tensor([tokens])
            told = model.generate(ids, max_new_tokens=count, do_sample=False)
        return list(told[0, len(tokens) :].tolist())

    thought = more(prompt, 9)
    answer = more([*prompt, *thought, *closing], 7)
    assert result.best.generated == [*thought, *closing, *answer]
    assert result.best.thinking_tokens == 9 and result.usage.thinking_tokens == 9


def test_limits_of_thoughts_change_no_token_before_them(tmp_path: Path) -> None:
    """Steps, batches and budgets part the same thoughts in other places."""
    engine = Engine.from_pretrained(save_qwen3(tmp_path / "qwen3"), dtype="float32")
    verifier = ConfidenceVerifier()
    same: dict[str, Any] = {"engine": engine, "template": ASKED, "verifier": verifier}
    search = BestOfN(n=4, thinking_tokens=40, max_tokens=4)
    alone = solve(search, problem="1 + 1?", **same)
    together = solve(search, problem=["0 + 1?", "1 + 1?", "2 + 1?"], **same)[1]
    assert [b.tokens for b in alone.branches] == [b.tokens for b in together.branches]
    shorter = solve(BestOfN(n=4, thinking_tokens=13, max_tokens=4), problem="1 + 1?", **same)
    thoughts = {branch.path: branch.thought for branch in alone.branches}
    for branch in shorter.branches:
        assert thoughts[branch.path].startswith(branch.thought.rstrip("\ufffd"))
    beams = BeamSearch(beam_size=2, beam_width=2, thinking_step=8, thinking_tokens=20, max_steps=4)
    result = solve(beams, problem="1 + 1?", **same)
    assert {b.thinking_tokens for b in result.branches if not b.finished} <= {20}
    assert engine.kv_bytes() == 0


MODELS = {"qwen3": save_qwen3, "smollm2": save_smollm2}


@pytest.mark.parametrize("kind", ["qwen3", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_a_thinking_model_goes_through_a_run_and_the_view_page(kind: str, tmp_path: Path) -> None:
    MODELS[kind](tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS[:2])
    search = ("search=best_of_n", "search.n=3", "search.max_tokens=12", "search.thinking_tokens=16")
    run(composed(tmp_path, "verifier=confidence", search=search))
    folder = tmp_path / "outputs" / "r"
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert len(records) == 2 and all(record["error"] is None for record in records)
    for record in records:
        usage, branches = record["usage"], record["branches"]
        assert 0 < usage["thinking_tokens"] <= 3 * 16 < usage["generated_tokens"] <= 3 * 28
        assert usage["thinking_tokens"] == sum(b["thinking_tokens"] for b in branches)
        assert any(CLOSING in branch["text"] for branch in branches)
        for branch in branches:
            assert branch["thought"] and branch["text"].startswith(branch["thought"])
    _, data = written(folder)
    for problem in data["problems"]:
        assert problem["usage"]["thinking_tokens"] > 0
        for node in problem["nodes"][1:]:
            assert node["thought"] and node["text"].startswith(node["thought"])
            assert "Final Answer" not in node["thought"]


@pytest.mark.parametrize("kind", ["qwen3", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_a_thinking_model_on_the_server(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    openai = pytest.importorskip("openai")
    from tests.experiments.test_serve_thoughts import GO
    from tests.helpers.chat_server import serving

    template = QWEN3 if kind == "qwen3" else None
    folder = save_qwen3(tmp_path / "model", QWEN3) if template else save_smollm2(tmp_path / "model")
    engine = Engine.from_pretrained(folder, dtype="float32")
    with serving(engine) as client:
        asked: dict[str, Any] = {"model": "m", "messages": GO, "seed": 1, "max_tokens": 8}

        def reply(**options: Any) -> Any:
            return client.chat.completions.create(**asked, extra_body=options)

        budgeted = reply(thinking_token_budget=6)
        message = budgeted.choices[0].message
        if kind == "smollm2":  # the prompt begins the thought
            assert message.reasoning_content and message.content.startswith("\n\nFinal Answer:")
            assert budgeted.usage.completion_tokens_details.reasoning_tokens == 6
            assert budgeted.usage.completion_tokens <= 14
            within = reply()  # max_tokens counts thoughts too
            assert within.choices[0].message.content is None
            assert within.usage.completion_tokens_details.reasoning_tokens == 8
        else:
            off = reply(reasoning_effort="none")
            assert getattr(off.choices[0].message, "reasoning_content", None) is None
            with pytest.raises(openai.BadRequestError, match="reasoning_effort='high' is not"):
                reply(reasoning_effort="high")
            with pytest.raises(openai.BadRequestError, match="thinking_token_budget=201"):
                reply(thinking_token_budget=201)


def test_a_search_that_is_left_while_thoughts_are_closed_frees_all(tmp_path: Path) -> None:
    engine = Engine.from_pretrained(save_qwen3(tmp_path / "qwen3"), dtype="float32")
    search = BestOfN(n=3, thinking_tokens=4, max_tokens=3)
    asked: dict[str, Any] = {"engine": engine, "template": ASKED, "verifier": ConfidenceVerifier()}
    whole = solve(search, problem="1 + 1?", **asked)
    events = len(list(stream(search, problem="1 + 1?", tokens=True, **asked)))
    assert events > 8
    for read in range(1, events):
        left = stream(search, problem="1 + 1?", tokens=True, **asked)
        for _ in range(read):
            next(left)
        left.close()  # type: ignore[attr-defined]
        assert engine.kv_bytes() == 0
        cancel = Event()
        ended = None
        for place, progress in enumerate(
            stream(search, problem="1 + 1?", tokens=True, cancel=cancel, **asked)
        ):
            if place == read:
                cancel.set()
            ended = progress.result
        assert ended is not None and ended.error is None and engine.kv_bytes() == 0
        for branch in ended.branches:
            same = next(b for b in whole.branches if b.path == branch.path)
            assert same.tokens[: len(branch.tokens)] == branch.tokens


def test_thoughts_are_the_same_under_every_memory_policy(tmp_path: Path) -> None:
    folder = save_qwen3(tmp_path / "qwen3")
    search = BeamSearch(
        beam_size=2, beam_width=2, thinking_step=6, thinking_tokens=14, max_steps=4, step_tokens=5
    )

    def written_under(**options: Any) -> list[list[int]]:
        engine = Engine.from_pretrained(folder, dtype="float32", **options)
        result = solve(
            search, problem="1 + 1?", engine=engine, template=ASKED, verifier=ConfidenceVerifier()
        )
        assert result.error is None and engine.kv_bytes() == 0
        return [branch.tokens for branch in result.branches]

    budget = {"budget_gib": 24 * 1024 / 2**30, "block_tokens": 8}
    plain = written_under()
    for policy in (BeamGroups(**budget), Paged(**budget), Layerwise(**budget)):
        assert written_under(memory=policy) == plain
    assert written_under(cache=BlockCache(2)) == plain
