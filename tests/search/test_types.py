"""What a type checker says of calls: right options pass with their result's type, wrong ones are
found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

CALLS = """
from typing import assert_type
from search import BestOfN, asolve, solve, stream
from ttc import Backend, Problem, Result

def calls(engine: Backend, problems: list[Problem]) -> None:
    assert_type(solve(BestOfN(), problem="q", engine=engine, seed=1, max_tokens=9), Result)
    assert_type(solve(BestOfN(), problem=problems, engine=engine, on_result=print), list[Result])
    stream(BestOfN(), problem="q", engine=engine, reserve=4, max_tokens=9)
    solve(BestOfN(), problem="q", engine=engine, max_token=9)  # wrong: No overload
    solve(BestOfN(), problem="q", engine=engine, seed="1")  # wrong: No overload
    solve(BestOfN(), problem=problems, engine=engine, max_calls=1.5)  # wrong: No overload
    solve(BestOfN(), problem="q", engine=engine, verifier=len)  # wrong: No overload
    solve(BestOfN(), problem="q", engine=engine, on_step=3)  # wrong: No overload
    solve(BestOfN(), problem=7, engine=engine)  # wrong: No overload
    solve(BestOfN(), problem="q")  # wrong: No overload
    stream(BestOfN(), problem="q", engine=engine, concurrency=2)  # wrong: concurrency

async def awaited(engine: Backend) -> None:
    assert_type(await asolve(BestOfN(), problem="q", engine={"a": engine, "b": engine}), Result)
"""


@pytest.mark.slow
def test_a_type_checker_finds_wrong_options(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    cache = pytestconfig.cache.mkdir("mypy")
    # other people's packages are left out, for speed
    options = [
        "--config-file=",
        "--no-site-packages",
        "--ignore-missing-imports",
        "--follow-imports=silent",
    ]
    said, trouble, _ = api.run([*options, f"--cache-dir={cache}", str(file)])
    assert not trouble
    found: dict[int, str] = {}
    for line, text in re.findall(r"calls\.py:(\d+): error: (.*)", said):
        found[int(line)] = found.get(int(line), "") + text
    wanted = {
        i: line.partition("# wrong: ")[2]
        for i, line in enumerate(CALLS.split("\n"), 1)
        if "# wrong" in line
    }
    assert found.keys() == wanted.keys(), said
    for line, name in wanted.items():
        assert name in found[line], found[line]
