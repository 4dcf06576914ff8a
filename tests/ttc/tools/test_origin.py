"""A tool that raises names its line to its user."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from search import Greedy, solve
from tests.helpers.scripted import Scripted
from tests.helpers.tools import counting
from tests.ttc.test_origin import OWN


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("own_parts")
    del sys.modules["own_parts"]


def test_a_tool_names_its_line_to_its_user_and_not_to_the_model(
    own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Scripted(lambda branch: "0" if branch.tool_calls else "a7", longest=2000)
    tools = counting(own.tool)
    result = solve(Greedy(max_tokens=9), problem="q", engine=backend, tools=tools)
    (call,) = result.best.tool_calls if result.best else ()
    assert str(call.error).endswith("(own_parts.py:9)") and "own_parts" not in str(call.answer)
    assert [record.getMessage().count("own_parts.py:9") for record in caplog.records] == [1]
