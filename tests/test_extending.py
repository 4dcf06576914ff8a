"""The files of docs/extending.md run as printed, in a folder outside the repository, and so do the
commands below them.

And what the main job says when a part of the user's own cannot be used, or changed."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

import experiments.run
from experiments.cli.refusals import reason
from experiments.runs.build import engine_options, loaded
from experiments.runs.user_classes import as_choices, checked_parts
from experiments.runs.user_code import code_fingerprint
from search import solve
from tests.helpers.configurations import configuration
from tests.helpers.engines import make_engine
from tests.helpers.processes import finished
from tests.helpers.searches import exactly
from tests.helpers.tiers import some_quick
from ttc import Engine, InvalidInput

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES = {
    name: text
    for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
}
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
JOBS = [command for command in COMMANDS if "-m" in command]
SAYS = {
    "my_search.py": r"4 branches|2 branches|6 branches",
    "my_verifier.py": r"^\[(0\.0|0\.5|1\.0)(, (0\.0|0\.5|1\.0)){3}\]$",
    "my_data.py": r"^shop-0 .* gold 6\nshop-1 .* gold 10$",
    "my_grade.py": r"^9\.5 True\n7 False\nNone False$",
    "my_memory.py": r"[1-9]\d* bytes left, [1-9]\d* were read$",
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


def _engine(name: str, dtype: str = "auto", **options: Any) -> Engine:
    """As `Engine.from_pretrained`, with a model that is loaded once for all."""
    model, tokenizer, runner = loaded(name, "auto", dtype)
    return Engine(model, tokenizer, runner=runner, **options)


def test_the_page_shows_a_file_and_two_commands_for_each_part() -> None:
    assert set(FILES) == {*SAYS, "shop.jsonl"}
    assert {c for c in COMMANDS if not c.startswith("python -m ")} == {
        f"python {name}" for name in SAYS
    }
    assert len(COMMANDS) == 2 * len(SAYS)


def test_the_memory_policy_of_the_page_changes_nothing_but_where_kv_lies(folder: Path) -> None:
    policy = runpy.run_path(str(folder / "my_memory.py"))["LRUPages"]

    def decoded(engine: Engine) -> list[list[int]]:
        branches = engine.fork(engine.root(list(range(1, 41))), 4)
        engine.generate(branches, 16)
        engine.generate(branches[::2], 7)
        return [branch.tokens for branch in branches]

    engine = make_engine(layers=3, memory=policy(8 / 2**20, block_tokens=8))
    assert decoded(engine) == decoded(make_engine(layers=3))
    link, device = engine.memory.link, engine.memory.device
    assert link.to_host_bytes.total() > 0 < link.to_device_bytes.total()
    assert device.peak_bytes <= 8 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "dtype"),
    [
        *((file, "auto") for file in SAYS),
        ("my_memory.py", "bfloat16"),  # KV of half the size must not fit its budget either
        ("my_memory.py", "float32"),
    ],
)
def test_a_file_of_the_page_runs_as_printed(
    file: str,
    dtype: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Engine, "from_pretrained", partial(_engine, dtype=dtype))
    runpy.run_path(file, run_name="__main__")
    said = capsys.readouterr().out.strip()
    assert re.search(SAYS[file], said, re.DOTALL | re.MULTILINE), said


@pytest.mark.slow
@pytest.mark.parametrize("command", some_quick(JOBS, JOBS[:1]))
def test_the_main_job_takes_a_part_of_ones_own(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*shlex.split(command)[2:], "run.name=r"])
    experiments.run.main()
    shown = capsys.readouterr()
    if "run.dry" in command:
        assert re.search(r"\n\nQ: 6 \+ 2|\nQ: State the final answer.*\nA:", shown.out)
        return
    records = [
        json.loads(line)
        for line in (folder / "outputs" / "r" / "records.jsonl").read_text().splitlines()
    ]
    assert len(records) in (2, 4) and not any(record["error"] for record in records)
    if "UntilSure" in command:
        assert {len(record["branches"]) for record in records} <= {4, 8}  # one round or two
        assert "UntilSure with ArithmeticVerifier" in shown.err
    if "my_verifier" in command:
        scores = {branch["score"] for record in records for branch in record["branches"]}
        assert scores and all(0 <= score <= 1 for score in scores)
    if "my_data" in command:
        assert {record["gold"] for record in records} == {"6", "10"}


@pytest.mark.slow
def test_a_file_beside_the_command_is_found_by_it_in_a_process_of_its_own(folder: Path) -> None:
    words = [
        "-m",
        "experiments.run",
        "search=my_search.UntilSure",
        "run.dry=true",
        "dataset.limit=1",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = finished([sys.executable, *words], env=environment)
    assert done.returncode == 0, done.stderr
    assert "_target_: my_search.UntilSure\n" in done.stdout
    assert "name: sums-UntilSure-arithmetic-seed0" in done.stdout and "beam_size" not in done.stdout


def composed(*given: str) -> Any:
    """The configuration of a run with these words."""
    return checked_parts(configuration("run", "run.name=r", *as_choices(given)))


UNTIL_SURE = "search=my_search.UntilSure"
USES = "verifier=my_verifier.UsesTheNumbers"


@pytest.mark.parametrize("given", [UNTIL_SURE, "search._target_=my_search.UntilSure"])
def test_the_settings_of_ones_own_search_are_its_fields(given: str, folder: Path) -> None:
    config = composed(given, "search.rounds=2", "search.temperature=0.5")
    expected = {
        "_target_": "my_search.UntilSure",
        "temperature": 0.5,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": None,
        "thinking": "auto",
        "thinking_tokens": 4096,
        "final": "Final Answer:",
        "stop_loops": None,
    }
    assert config.search == expected | {"n": 4, "rounds": 2, "enough": 1.0, "max_tokens": 64}
    assert instantiate(config.search, _convert_="all").rounds == 2


OTHERS = '''
from dataclasses import dataclass, field

from ttc import BlockCache, Resident


class Weighs:
    """No dataclass: what it takes are its constructor's arguments."""

    def __init__(self, weight: float, words=("yes", "no"), how: "str" = "mean", judge=len):
        self.weight, self.words, self.how, self.judge = weight, words, how, judge

    def rate(self, branches, questions, backend):
        return [[self.weight]] * len(branches)


@dataclass
class Kept(Resident):
    pages: list[int] = field(default_factory=lambda: [1, 2])


class Last(BlockCache):
    pass
'''


@pytest.mark.slow
def test_the_settings_of_another_class_are_its_constructors_arguments(folder: Path) -> None:
    (folder / "my_others.py").write_text(OTHERS)
    config = composed("verifier=my_others.Weighs", "verifier.weight=2", "verifier.words=[a]")
    assert config.verifier == {
        "_target_": "my_others.Weighs",
        "weight": 2.0,
        "words": ["a"],
        "how": "mean",
    }
    verifier = instantiate(config.verifier, _convert_="all")
    assert (verifier.weight, verifier.words, verifier.judge) == (2.0, ["a"], len)
    assert OmegaConf.missing_keys(composed("verifier=my_others.Weighs")) == {"verifier.weight"}
    with pytest.raises(HydraException) as error:
        composed("verifier=my_others.Weighs", "verifier.weight=heavy")
    assert "; give a number" in str(reason(error.value))


def test_any_other_part_may_be_ones_own(folder: Path) -> None:
    (folder / "my_others.py").write_text(OTHERS)
    config = composed(
        "memory=my_others.Kept",
        "memory.pages=[3]",
        "cache=my_others.Last",
        "cache.order=lru",
    )
    memory = engine_options(config)["memory"]
    assert memory.pages == [3] and memory.budget_gib is None
    assert config.cache.order == "lru" and type(instantiate(config.cache)).__name__ == "Last"
    assert code_fingerprint(config).keys() == {"my_others.Kept", "my_others.Last"}


def test_a_class_of_this_project_is_its_own_choice(folder: Path) -> None:
    words = as_choices(
        ["search=search.BestOfN", "search.n=3", "verifier=verifiers.value_head.ValueHead"]
    )
    assert words == ["search=best_of_n", "search.n=3", "verifier=value_head"]
    others = ["search=mcts", "run.name=a.b", "~verifier", "-m"]
    assert as_choices(others) == others


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["search=my_search.UntilSure,search.BestOfN", "search.n=3"],
        ["search=best_of_n,my_search.UntilSure", "search.n=2,3"],
    ],
)
def test_a_sweep_may_mix_ones_own_and_others(
    words: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "-m", *words, "run.dry=true", "dataset.limit=1"])
    assert experiments.run.launch() == 0
    shown = capsys.readouterr().out
    jobs = len(words[-1].split(","))
    assert len(re.findall(r"^  _target_: my_search.UntilSure$", shown, re.MULTILINE)) == jobs
    assert len(re.findall(r"^  _target_: search.BestOfN$", shown, re.MULTILINE)) == jobs
    assert len(set(re.findall(r"^  name: (sums-\S+)$", shown, re.MULTILINE))) == 2 * jobs
    assert set(re.findall(r"^  'n': (\d)$", shown, re.MULTILINE)) == set("23"[-jobs:])


SETTINGS = (
    "n, rounds, enough, max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, "
    "thinking, thinking_tokens, final, stop_loops"
)


@pytest.mark.few
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["search=my_serach.UntilSure"],
            "my_serach.UntilSure cannot be imported: No module named",
        ),
        (
            ["search=my_search.Sure"],
            "my_search.Sure cannot be imported: .* has no attribute 'Sure'",
        ),
        (
            ["search=my_verifier.UsesTheNumbers"],
            "is no search; make it a class that inherits from search.Search$",
        ),
        (
            ["verifier=my_search.UntilSure"],
            "is no verifier; make it a class with a method rate",
        ),
        (
            [UNTIL_SURE, "search.round=2"],
            rf"^search.round is no setting of my_search.UntilSure; is it .* use one of {SETTINGS}$",
        ),
        (
            [UNTIL_SURE, "search.rounds=two"],
            "^search.rounds=two is of type str; give a whole number",
        ),
        (
            ["memory=no.Such"],
            r"^memory=no.Such cannot .* No module named 'no'; give .*or.* resident",
        ),
        (
            ["placement=no.Such"],
            "^placement=no.Such cannot be imported: No module named 'no'; give",
        ),
        (
            ["cache=no.Such"],
            "^cache=no.Such cannot be imported: No module named 'no'; give .* rsbcm",
        ),
        (
            ["gate=no.Such"],
            "^gate=no.Such cannot be imported: No module named 'no'; give .* decode",
        ),
        (
            ["gate=my_search.UntilSure"],
            "gate=my_search.UntilSure is no gate; make it a class that inherits from ttc.D",
        ),
        (["~memory"], "^~memory leaves a run without what it needs"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_by_name(
    given: list[str], message: str, folder: Path
) -> None:
    with pytest.raises((InvalidInput, HydraException)) as error:
        composed(*given)
    said = str(reason(error.value))
    assert re.search(message, said) and "\n" not in said, said


OWN_FAULTS = """\
from dataclasses import dataclass

from search import Expand, Search
from ttc import Sampling, Step


@dataclass(frozen=True)
class Late(Search):
    needs_verifier = False

    def run(self, root, case):
        yield Expand([root], 1, Step(2), Sampling())
        return [root.children[9]]  # line 13


@dataclass(frozen=True)
class Early(Search):
    def __post_init__(self):
        int("a")  # line 19

    def run(self, root, case):
        return [root]
"""


@pytest.mark.few
@pytest.mark.parametrize(
    ("file", "name", "line"),
    [
        (OWN_FAULTS, "Late", 13),
        (OWN_FAULTS, "Early", 19),
        ("import os\n\nhome = os.environ.home\n", "Mine", 3),
        ("import os\ndef f(:\n", "Mine", 2),
        ("from dataclasses import dataclass\n\n\ndataclass(frozen=3, no=1)\n", "Mine", 4),
    ],
)
def test_a_fault_of_ones_own_search_ends_a_run_with_its_line(
    file: str,
    name: str,
    line: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = f"own_{name.lower()}_{line}"
    (folder / f"{module}.py").write_text(file)
    words = [f"search={module}.{name}", "verifier=none", "dataset=sums", "dataset.size=1"]
    words += ["model=hf", "model.name=smollm2-135m", "run.name=r"]
    monkeypatch.setattr(sys, "argv", ["run", *words])
    with pytest.raises(SystemExit) as refused:
        experiments.run.main()
    assert str(refused.value.code).startswith("error: ")
    assert str(refused.value.code).endswith(f"({module}.py:{line})")


def test_a_class_within_a_part_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(InstantiationException) as error:
        instantiate(OmegaConf.create({"verifier": {"inner": {"_target_": "no.Such"}}}))
    said = (
        "verifier.inner._target_=no.Such cannot be imported: No module named 'no'; give the dotted "
        "path of a class"
    )
    assert reason(error.value) == said


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
    search = instantiate(composed("search=my_doubts.SecondThoughts", "search.doubts=2").search)
    engine = make_engine(context=220)
    together = solve(search, problem=["1 + 1", "2", "3 - 1"], engine=engine)
    for result in together:
        alone = solve(search, problem=result.problem, engine=engine)
        assert (
            result.error is None
            and exactly(alone.tree) == exactly(result.tree)
            and alone.answer == result.answer
        )
        assert sorted(len(branch.path) for branch in result.branches) == [1, 3, 3]
    assert engine.kv_bytes() == 0
    kept = [next(b.path for b in result.branches if len(b.path) == 1) for result in together]
    assert len(set(kept)) > 1  # each problem's own draws


@pytest.mark.slow
def test_code_that_changed_under_the_same_path_is_noticed(folder: Path) -> None:
    config = composed("search=my_search.UntilSure")
    before = code_fingerprint(config)
    (folder / "my_search.py").write_text(FILES["my_search.py"].replace("self.enough", "2"))
    assert before.keys() == {"my_search.UntilSure"} != code_fingerprint(config)
    assert before != code_fingerprint(config)
    assert code_fingerprint(configuration("run", "run.name=r")) == {}
