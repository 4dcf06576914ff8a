"""The files of CONTRIBUTING.md work as printed: in a folder of one's own, and each alone in a copy
of this repository, where nothing else has to be touched."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hydra.utils import instantiate

from experiments.runs.build import check_backend, make_backend
from experiments.runs.data import load_task
from experiments.runs.user_classes import as_choices, checked_parts
from search import BestOfN, SelfConsistency, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.configurations import configuration
from tests.helpers.engines import make_engine
from tests.helpers.parts import Warm, only_with
from tests.helpers.searches import Costly, exactly
from tests.helpers.tiers import some_quick
from ttc import InvalidInput, Unsupported
from ttc.residency.offloading import Offloading
from ttc.text.prompt import PromptTemplate

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^python (-m experiments\.\w+ .*)$", PAGE, re.MULTILINE)
RECIPES = [command for command in COMMANDS if "=my_" not in command and "model=hf" not in command]
SAYS = {
    "first_good": r"FirstGood with ArithmeticVerifier, smollm2-135m, sums: 2 problems",
    "brevity": r"BestOfN with Brevity",
    "oldest_first": r"SelfConsistency, smollm2-135m",
    "coin": r"SelfConsistency, Coin, sums",
    "shop": r"Greedy, smollm2-135m, shop: 2 problems",
    "shortest": r"Show the shortest right text of a run\.",
}


def recipe(command: str) -> str:
    return next(name for name in SAYS if name in command)


def test_there_is_a_short_file_and_a_command_for_each_kind_of_thing() -> None:
    assert {*map(recipe, RECIPES)} == {*SAYS} and len(RECIPES) == len(SAYS)
    assert {Path(name).stem for name in FILES} == {*SAYS} and len(FILES) == len(SAYS) + 1
    for name, text in FILES.items():
        assert len([line for line in text.splitlines() if line.strip()]) <= 26, name


# ---------------------------------------------------------------- in a folder of one's own


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / Path(name).name).write_text(text)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def made(group: str, path: str, *settings: str) -> Any:
    """What a run makes of `GROUP=PATH` and its settings."""
    words = [f"{group}={path}", *(f"{group}.{setting}" for setting in settings)]
    config = checked_parts(configuration("run", "run.name=r", *as_choices(words)))
    if group == "backend":
        check_backend(config)
        return make_backend(config)
    return instantiate(config[group], _convert_="all")


def test_the_search_ends_with_the_first_that_is_good_enough(folder: Path) -> None:
    for enough, least in (0.0, 1), (2.0, 5):
        search = made("search", "first_good.FirstGood", "n=5", f"enough={enough}", "max_tokens=6")
        backend = FakeBackend()
        result = solve(search, problem="q", engine=backend, verifier=Costly(1))
        assert result.error is None and len(result.branches) == least and not backend.live
        assert result.usage.generated_tokens <= 6 * least


def test_the_verifier_prefers_what_is_short(folder: Path) -> None:
    verifier = made("verifier", "brevity.Brevity", "half=4")
    result = solve(
        BestOfN(n=6, max_tokens=12), problem="q", engine=FakeBackend(), verifier=verifier
    )
    written = [len(branch.tokens) - branch.prompt_length for branch in result.branches]
    scores = [0.5 ** (tokens / 4) for tokens in written]
    assert [branch.score for branch in result.branches] == pytest.approx(scores)
    assert len({*scores}) > 1


def test_the_policy_changes_nothing_but_where_kv_lies(folder: Path) -> None:
    policy = made("memory", "oldest_first.OldestFirst", f"budget_gib={8 / 2**20}", "block_tokens=8")
    small, large = make_engine(layers=3, memory=policy), make_engine(layers=3)
    search = SelfConsistency(n=4, max_tokens=12)
    how: Any = {"problem": "Tom has 3 boxes", "template": PromptTemplate("{question}", raw=True)}
    expected, found = (solve(search, engine=engine, **how) for engine in (large, small))
    assert found.error is None and exactly(found.tree) == exactly(expected.tree)
    link = small.memory.link
    assert link.to_host_bytes.total() > 0 < link.to_device_bytes.total()
    assert small.memory.device.peak_bytes <= 8 * 1024 and small.kv_bytes() == 0


@pytest.mark.parametrize("groups", [[[0]], [[0, 0, 1], [2, 3]], [[0, 1, 2, 3, 4]], None], ids=str)
def test_a_policy_that_leaves_a_branch_out_or_names_one_twice_is_told(groups: Any) -> None:
    class Own(Offloading):
        def groups(self, paths: Any, tokens: int) -> Any:
            return groups

    engine = make_engine(memory=Own(budget_gib=8 / 2**20, block_tokens=8))
    with pytest.raises(InvalidInput, match=r"Own\.groups gave .* each number from 0 to 3 stands"):
        engine.generate(engine.fork(engine.root([1, 2, 3]), 4), 5)


def test_the_backend_writes_what_its_streams_say_and_nothing_else(folder: Path) -> None:
    backend = made("backend", "coin.Coin", "sides=3")
    results = solve(SelfConsistency(n=9), problem=["a", "b", "c"], engine=backend)
    said = [[branch.text for branch in result.branches] for result in results]
    assert {text for texts in said for text in texts} == {f"The answer is {n}." for n in range(3)}
    assert said[0] != said[1] and results[0].usage.generated_tokens == 9 * 5
    again = solve(SelfConsistency(n=9), problem="a", engine=made("backend", "coin.Coin", "sides=3"))
    assert [branch.text for branch in again.branches] == said[0]
    with pytest.raises(Unsupported, match="Coin has no score"):
        backend.score([], []).result()


def test_the_data_set_gives_its_problems(folder: Path) -> None:
    fields = ["dataset.fields.question=asked", "dataset.fields.answer=price"]
    words = ["run.name=r", "dataset=file", "dataset.path=shop.jsonl", *fields]
    task = load_task(configuration("run", *words).dataset)
    assert [problem.answer for problem in task.problems] == ["6", "10"] and not task.failures
    assert task.is_correct(task.problems[0], "6.0")


def test_the_command_shows_the_shortest_right_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"It is 6.": True, "6": False, "6!": True}
    branches = [{"text": text, "correct": right} for text, right in texts.items()]
    command = import_module("shortest")
    for name, shown in ("right", branches), ("wrong", branches[1:2]):
        with pytest.MonkeyPatch.context() as patch:
            read = Mock(return_value=({name: {"branches": shown}}, 0))
            patch.setattr("experiments.runs.reading.read_records", read)
            command.shortest(folder)
    assert capsys.readouterr().out == "6!\nnothing was right\n"


# ---------------------------------------------------------------- in the repository


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("clone")
    skipped = shutil.ignore_patterns("__pycache__", "results")
    for name in ("ttc", "search", "verifiers", "experiments", "conf", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=skipped)
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)  # a part that was deleted
        (root / name).write_text(text)
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    process = Warm()
    yield process
    process.close()


COMMAND = """
import runpy, sys

module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", some_quick(RECIPES, RECIPES[:1]))
def test_a_file_alone_makes_the_command_below_it_work(
    command: str, clone: Path, warm: Warm
) -> None:
    _, *words = command.split()
    shutil.rmtree(clone / "outputs", ignore_errors=True)
    words += ["run.name=r"] if "=" in command else []
    assert warm.run(str(clone), COMMAND, words) is None
    assert re.search(SAYS[recipe(command)], (clone / "output.txt").read_text())
    if "=" in command:
        lines = (clone / "outputs" / "r" / "records.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert len(records) == 2 and not any(record["error"] for record in records)


EVERYWHERE = """
from omegaconf import OmegaConf

import search
import ttc
import verifiers
from experiments.cli.help import page
from experiments.lab.report import docstrings
from experiments.runs.data import load_task
from experiments.server.offer import offered, preset
from tests.helpers.backends import FakeBackend
from tests.helpers.configurations import configuration
from tests.helpers.searches import all_searches
from tests.ttc.residency.test_policies import POLICIES

greedy = OmegaConf.create({"search": preset("greedy")})
config = configuration("run", "run.name=r", "search=first_good", "backend=coin", "dataset=shop")
for known in (
    *(name in page() for name in ("first_good", "brevity", "oldest_first", "coin", "shop")),
    *(hasattr(search, "FirstGood"), hasattr(verifiers, "Brevity")),
    *(hasattr(ttc, "OldestFirst"), hasattr(ttc, "Coin")),
    config.search._target_ == "search.FirstGood" and config.backend._target_ == "ttc.Coin",
    "first_good" in offered(greedy, "greedy", verifiers.Brevity(), FakeBackend()),
    search.FirstGood in map(type, all_searches()),
    POLICIES["oldest_first"][0] is ttc.OldestFirst,
    "| `first_good` | At most `n` samples, until one is rated `enough` |" in docstrings.searches(),
    "| `brevity` | an answer: how few tokens it has | no tokens |" in docstrings.verifiers(),
    "| `oldest_first` | Pages leave in the order " in docstrings.policies(),
):
    print(known)
"""


@pytest.mark.slow
@only_with("command", "report")
def test_a_file_alone_is_known_everywhere(clone: Path, warm: Warm) -> None:
    assert warm.run(str(clone), EVERYWHERE, []) is None
    assert (clone / "output.txt").read_text().split() == ["True"] * 16
