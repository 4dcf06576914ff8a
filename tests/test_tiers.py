"""`make test` has a part of everything, and CI runs the rest too."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiers
from tests.helpers.tiers import examples, slow, some_quick

ROOT = Path(__file__).parents[1]
SLOW_FILES = {
    "tests/experiments/lab/test_bench_clients.py",
    "tests/experiments/lab/test_bench_gpu_resources.py",
    "tests/experiments/lab/test_bench_kv_storage.py",
    "tests/experiments/server/test_serve_soak.py",
    "tests/search/test_real_model.py",
    "tests/search/test_steady_token.py",
    "tests/search/test_types.py",
    "tests/ttc/model/loading/test_default_model.py",
    "tests/ttc/placement/test_placed_loading.py",
    "tests/ttc/stored/test_imports.py",
    "tests/ttc/test_tiles.py",
    "tests/verifiers/programs/test_ratings_by_pass.py",
}
"""Files whose tests are all slow: what they try needs real weights, a process of its own, or
minutes."""


def marks(case: object) -> list[str]:
    return [mark.name for mark in getattr(case, "marks", ())]


def test_some_cases_are_quick_and_the_others_slow() -> None:
    first, second = some_quick({"a": 1, "b": 2}, ["b"])
    assert (first.values, marks(first), second) == (("a",), ["slow"], "b")
    pair = slow((1, [2]))
    assert (pair.values, marks(pair)) == ((1, [2]), ["slow"])
    with pytest.raises(AssertionError, match="no such cases"):
        some_quick(["a"], ["b"])


class Case:
    """A collected case, as far as the tiers look at it."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = nodeid, {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        self.marks[name] = getattr(pytest.mark, name).mark


@pytest.mark.parametrize(
    ("marks", "cases", "quick"),
    [
        ([pytest.mark.few], 5, [0, 4]),
        ([pytest.mark.few(3)], 6, [0, 2, 5]),
        ([pytest.mark.few(3)], 2, [0, 1]),
        ([pytest.mark.few], 1, [0]),
        ([pytest.mark.few(1)], 4, [0]),
        ([], 3, [0, 1, 2]),
    ],
)
def test_few_of_the_cases_are_quick(marks: list[Any], cases: int, quick: list[int]) -> None:
    alike: list[Any] = [Case(f"a.py::test[{n}]", *marks) for n in range(cases)]
    slow_one: Any = Case("a.py::test[-]", pytest.mark.slow, *marks)
    others: list[Any] = [Case("a.py::other[0]", *marks)]
    tiers.leave_few([slow_one, *alike, *others])
    assert [n for n, case in enumerate(alike) if "slow" not in case.marks] == quick
    assert "slow" not in others[0].marks


def test_the_fast_tier_has_a_quarter_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "IS_FAST", True)
    assert (examples(400), examples(5)) == (100, 3)
    monkeypatch.setattr(tiers, "IS_FAST", False)
    assert (examples(400), examples(5)) == (400, 5)


def test_every_file_of_tests_has_one_in_the_fast_tier(request: pytest.FixtureRequest) -> None:
    option, args = request.config.option, request.config.args
    is_a_tier = option.markexpr in ("", "not slow") and args == request.config.getini("testpaths")
    if option.keyword or not is_a_tier:
        pytest.skip("only a part of the tests is run")
    here = {file for file in SLOW_FILES if (ROOT / file).exists()}  # others are of a missing part
    assert {str(file.relative_to(ROOT)) for file in tiers.ALL_SLOW} == here


def test_ci_runs_every_test() -> None:
    makefile = (ROOT / "Makefile").read_text()
    fast, every = (
        makefile.partition(f"\n{name}:")[2].splitlines()[1] for name in ("test", "test-all")
    )
    assert fast == f'{every} -m "not slow"' and every.endswith("python -m pytest")
    assert "make test-all" in (ROOT / ".ci/run").read_text().splitlines()
