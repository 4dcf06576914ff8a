"""The files of docs/extending.md run as printed, in a folder outside the repository, and so do the commands below them.

And what the main job says when a part of the user's own cannot be used, or changed."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from hydra.utils import instantiate

import experiments.run
from experiments.runs.build import loaded
from experiments.runs.own_classes import code_fingerprint, with_own_classes
from search import solve
from tests.helpers.configurations import configuration
from tests.helpers.engines import make_engine
from tests.helpers.processes import finished
from tests.helpers.searches import exactly
from ttc import Engine, InvalidInput

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = {name: text for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)}
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
SAYS = {
    "my_search.py": r"4 branches|2 branches|6 branches",
    "my_verifier.py": r"^\[(0\.0|0\.5|1\.0)(, (0\.0|0\.5|1\.0)){3}\]$",
    "my_data.py": r"^shop-0 .* gold 6\nshop-1 .* gold 10$",
    "my_prompt.py": r"Q: What is 4 \+ 4\?\nA:\nResult\(",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's: every file of the page, and nothing else. It is where commands are typed."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as Python does for `python FILE` and `python -m MODULE`
    monkeypatch.setattr(Engine, "from_pretrained", _engine)
    return tmp_path


def _engine(name: str) -> Engine:
    """As `Engine.from_pretrained`, with a model that is loaded once for all."""
    model, tokenizer, runner = loaded(name, "auto", "auto")
    return Engine(model, tokenizer, runner=runner)


def test_the_page_shows_a_file_and_two_commands_for_each_part() -> None:
    assert set(FILES) == {*SAYS, "shop.jsonl"}
    assert [c for c in COMMANDS if not c.startswith("python -m ")] == [f"python {name}" for name in SAYS]
    assert len(COMMANDS) == 2 * len(SAYS)


@pytest.mark.parametrize("file", SAYS)
def test_a_file_of_the_page_runs_as_printed(file: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(file, run_name="__main__")
    said = capsys.readouterr().out.strip()
    assert re.search(SAYS[file], said, re.DOTALL | re.MULTILINE), said


@pytest.mark.parametrize("command", [c for c in COMMANDS if "-m" in c])
def test_the_main_job_takes_a_part_of_ones_own(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*shlex.split(command)[2:], "run.name=r"])
    experiments.run.main()
    shown = capsys.readouterr()
    if "run.dry" in command:
        assert re.search(r"\n\nQ: 6 \+ 2|\nQ: State the final answer.*\nA:", shown.out)
        return
    records = [json.loads(line) for line in (folder / "outputs" / "r" / "records.jsonl").read_text().splitlines()]
    assert len(records) in (2, 4) and not any(record["error"] for record in records)
    if "UntilSure" in command:
        assert {len(record["branches"]) for record in records} <= {4, 8}  # one round or two
        assert "UntilSure with ArithmeticVerifier" in shown.err
    if "my_verifier" in command:
        scores = {branch["score"] for record in records for branch in record["branches"]}
        assert scores and all(0 <= score <= 1 for score in scores)
    if "my_data" in command:
        assert [record["gold"] for record in records] == ["6", "10"]


def test_a_file_beside_the_command_is_found_by_it_in_a_process_of_its_own(folder: Path) -> None:
    words = ["-m", "experiments.run", "search._target_=my_search.UntilSure", "run.dry=true", "dataset.limit=1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = finished([sys.executable, *words], env=environment)
    assert done.returncode == 0, done.stderr
    assert "_target_: my_search.UntilSure\n" in done.stdout
    assert "name: sums-UntilSure-arithmetic-seed0" in done.stdout and "beam_size" not in done.stdout


def test_the_settings_of_ones_own_search_are_its_fields(folder: Path) -> None:
    given = ["search._target_=my_search.UntilSure", "+search.rounds=2", "search.temperature=0.5"]
    config = with_own_classes(configuration("run", "run.name=r", *given), given)
    expected = {"_target_": "my_search.UntilSure", "temperature": 0.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert config.search == expected | {"n": 4, "rounds": 2, "enough": 1.0, "max_tokens": 64}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["search._target_=my_serach.UntilSure"], "my_serach.UntilSure cannot be imported: No module named"),
        (["search._target_=my_search.Sure"], "my_search.Sure cannot be imported: .* has no attribute 'Sure'"),
        (["search._target_=my_search"], "my_search cannot be imported"),
        (["search._target_=my_verifier.UsesTheNumbers"], "is no search; make it a class that inherits"),
        (["verifier._target_=my_search.UntilSure"], "is no verifier; make it a class with a method rate"),
        (["search._target_=my_search.UntilSure", "+search.round=2"], "UntilSure: Key 'round' not in"),
        (["search._target_=my_search.UntilSure", "+search.rounds=two"], "'two' of type 'str' could not be converted"),
        (
            ["verifier._target_=my_verifier.UsesTheNumbers", "+verifier.weight=2"],
            "unexpected keyword argument 'weight'",
        ),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_by_name(given: list[str], message: str, folder: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        with_own_classes(configuration("run", "run.name=r", *given), given)


RANDOM_SEARCH = '''
from dataclasses import dataclass

from search import Append, Case, Expand, Release, Search, SearchSteps, Step
from ttc import Branch


@dataclass(frozen=True)
class SecondThoughts(Search):
    """Doubts some of its samples, drawn at random, and asks for them again."""

    doubts: int = 1

    @property
    def needs_verifier(self) -> bool:
        return False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        children = yield Expand([root], 3, Step(4, end=case.end), self.sampling)
        doubted = [children[i] for i in case.rng.choice(len(children), self.doubts, replace=False)]
        asked = yield Append(doubted, "Are you sure?", turn=True)
        yield Release(doubted)
        again = yield Expand(asked, 1, Step(4, end=case.end), self.sampling)
        return again + [child for child in children if child not in doubted]
'''


def test_a_search_of_ones_own_may_draw_at_random_and_append(folder: Path) -> None:
    (folder / "my_doubts.py").write_text(RANDOM_SEARCH)
    given = ["search._target_=my_doubts.SecondThoughts", "+search.doubts=2"]
    search = instantiate(with_own_classes(configuration("run", "run.name=r", *given), given).search)
    engine = make_engine(context=220)
    together = solve(search, problem=["1 + 1", "2", "3 - 1"], engine=engine)
    for result in together:
        alone = solve(search, problem=result.problem, engine=engine)
        assert result.error is None and exactly(alone.tree) == exactly(result.tree) and alone.answer == result.answer
        assert sorted(len(branch.path) for branch in result.branches) == [1, 3, 3]
    assert engine.kv_bytes() == 0
    assert len({tuple(b.path[0] for b in result.branches[:2]) for result in together}) > 1  # each problem's own draws


def test_code_that_changed_under_the_same_path_is_noticed(folder: Path) -> None:
    given = ["search._target_=my_search.UntilSure"]
    config = with_own_classes(configuration("run", "run.name=r", *given), given)
    before = code_fingerprint(config)
    (folder / "my_search.py").write_text(FILES["my_search.py"].replace("self.enough", "2"))
    assert before.keys() == {"my_search.UntilSure"} != code_fingerprint(config)
    assert before != code_fingerprint(config)
    assert code_fingerprint(configuration("run", "run.name=r")) == {}
