"""What a token of a search costs in Python, where neither rows nor the tree change."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from search import BeamSearch, solve
from search.driver import Driver
from ttc import Engine
from ttc.model.compiled.fused_runner import FusedRunner
from verifiers import ArithmeticVerifier

ROOT = Path(__file__).parents[2]
ROOMS = tuple(str(ROOT / name) for name in ("ttc", "search", "verifiers"))


class Calls:
    """The Python functions that each call of `Driver.decode` calls, and how many rows decode
    in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.steps: list[tuple[int, list[str]]] = []
        self.names: set[str] = set()
        decode = Driver.decode

        def counted(driver: Driver) -> Any:
            rows, files = len(driver.decoding), list[str]()

            def note(frame: FrameType, event: str, _: Any) -> None:
                if event == "call":
                    files.append(frame.f_code.co_filename)
                    self.names.add(frame.f_code.co_qualname)

            sys.setprofile(note)
            try:
                return decode(driver)
            finally:
                sys.setprofile(None)
                self.steps.append((rows, files))

        monkeypatch.setattr(Driver, "decode", counted)

    def steady(self, rows: int) -> list[str]:
        """The files of the functions in the most frequent kind of step with so many rows."""
        steps = [files for count, files in self.steps if count == rows]
        (length, times), *_ = Counter(map(len, steps)).most_common(1)
        assert times > 2, "no token was like another"
        return next(files for files in steps if len(files) == length)


@pytest.mark.slow
def test_a_steady_token_of_a_beam_search_is_few_calls_as_the_drawing_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine.from_pretrained("smollm2-135m", device="cpu", dtype="float32")
    if not isinstance(engine.runner, FusedRunner):
        pytest.skip(f"layers are not compiled here: {engine.runner.reason}")
    calls = Calls(monkeypatch)
    search = BeamSearch(beam_size=4, beam_width=4, max_steps=2, step_tokens=24, temperature=0.6)
    solve(
        search, engine=engine, verifier=ArithmeticVerifier(), problem="What is 3 * 4 - 2?", seed=0
    )
    files = calls.steady(16)
    assert len(files) <= 187
    assert len({file for file in files if file.startswith(ROOMS)}) <= 16
    text = (ROOT / "docs" / "architecture.md").read_text()
    (drawing,) = re.findall(r"## The walk of a token.*?```(.*?)```", text, re.DOTALL)
    named = set(re.findall(r"\b(?:[A-Z]\w+\.\w+|draw_tokens|queue_draw|draw_compiled)\b", drawing))
    outside = {"Driver.events", "Driver.step", "Driver.decode"}  # they call what is counted
    assert len(named) > 12 and named - outside <= calls.names
