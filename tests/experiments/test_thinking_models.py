"""Models that think, with real weights and random ones."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import torch

from search import BeamSearch, BestOfN, Greedy, solve, stream
from tests.helpers.thinking import save_qwen3
from ttc import Engine
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
