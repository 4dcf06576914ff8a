"""Functions of one's own that read and grade answers, and what is noticed of a change in their
code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.cli.settings import DatasetConfig
from experiments.eval.compare.rows import check_comparable, load_rows
from experiments.eval.predictions import predictions_of
from experiments.eval.select import load, score
from experiments.runs.data import load_task
from experiments.runs.problem_loop import run
from experiments.runs.problem_record import votes_by_path
from experiments.runs.summary import pass_share, votes
from experiments.runs.user_classes import checked_parts
from experiments.runs.user_code import code_files, code_fingerprint
from search.selection import all_rules
from tests.helpers.configurations import configuration
from tests.helpers.records import records
from tests.helpers.runs import composed, save_rows
from ttc import InvalidInput
from ttc.results import Problem

FUNCTIONS = """
import sys
from pathlib import Path

import numpy as np

from my_words import first_word

def extract(text):
    return first_word(text)

def same_length(gold, answer):
    with Path("asked.txt").open("a") as file:
        file.write(f"{gold} {answer}\\n")
    return len(answer) == len(gold)

def of_numpy(gold, answer):
    return np.bool_(True)

def share(gold, answer):
    return 0.5

def of_one(answer):
    return True

def breaks(gold, answer):
    raise ValueError("no such unit")

def dislikes(gold, answer):
    if gold == "2" and answer != gold:
        raise ValueError("no such unit")
    return True

def leaves(gold, answer):
    if gold == "2" and answer != gold:
        sys.exit(0)
    return True

def lengths(text):
    return len(text)

def needs_words(text):
    return text.split()[0]

def dislikes_and(text):
    if "and" in text:
        raise LookupError("and?")
    return text
"""
WORDS = """
def first_word(text):
    words = text.split()
    return words[0] if words else None
"""
SAMPLED = ("search=best_of_n", "search.n=4", "search.max_tokens=3", "verifier=confidence")


@pytest.fixture
def place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the commands, with a model, rows and the user's functions."""
    (place / "my_grade.py").write_text(FUNCTIONS)
    (place / "my_words.py").write_text(WORDS)
    for name in ("my_grade", "my_words", "my_memory"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    return place


def task(place: Path, **fields: Any) -> Any:
    settings = {"name": "file", "path": str(place / "rows.jsonl")} | fields
    return load_task(OmegaConf.merge(OmegaConf.structured(DatasetConfig), settings))


# ---------------------------------------------------------------- a run with them


def test_every_answer_of_a_run_is_read_and_graded_by_ones_own(place: Path) -> None:
    own = ["dataset.extract=my_grade.extract", "dataset.grader=my_grade.same_length"]
    config = composed(place, *own, search=SAMPLED)
    summary = run(config)
    found = records(place)
    assert summary["correct"] > 0 and not any(record["error"] for record in found)
    for record in found:
        for branch in record["branches"]:
            assert branch["answer"] == branch["text"].split()[0]
            assert branch["correct"] == (len(branch["answer"]) == len(record["gold"]))
        assert record["answer"] in [branch["answer"] for branch in record["branches"]]
        assert record["correct"] == record["correct_strict"]
        assert record["correct"] == (len(record["answer"]) == len(record["gold"]))
    asked = (place / "asked.txt").read_text().splitlines()
    assert len(asked) == len(set(asked))  # equal answers are graded once


@pytest.mark.parametrize(
    "why", ["dislikes raised ValueError: no such unit", "leaves raised SystemExit: 0"]
)
def test_a_problem_that_the_grader_fails_on_fails_alone(place: Path, why: str) -> None:
    grader = f"dataset.grader=my_grade.{why.partition(' ')[0]}"
    summary = run(composed(place, grader, search=SAMPLED))
    found = {record["gold"]: record for record in records(place)}
    assert summary["failures"] == 1 and summary["problems"] == 4
    reason = found["2"]["error"]
    assert reason.startswith(f"InvalidInput: dataset.grader=my_grade.{why}")
    assert "the gold answer '2' and the answer" in reason
    assert not found["2"]["correct"] and found["4"]["correct"] and found["4"]["error"] is None
    (shown,) = summary["failure_reasons"]
    assert shown["count"] == 1 and grader in shown["reason"]


def test_a_problem_that_extract_fails_on_fails_alone(place: Path) -> None:
    voted = ["search=self_consistency", "search.n=4", "search.max_tokens=2", "verifier=none"]
    run(composed(place, "dataset.extract=my_grade.dislikes_and", search=voted))
    found = records(place)
    broken = [r for r in found if any("and" in branch["text"] for branch in r["branches"])]
    assert len(found) == 4 and broken
    why = "dataset.extract=my_grade.dislikes_and raised LookupError"
    for record in found:
        assert (why in str(record["error"])) == (record["error"] is not None) == (record in broken)


def test_a_row_without_an_answer_is_wrong_and_the_grader_is_not_asked(place: Path) -> None:
    graded = task(place, grader="my_grade.same_length")
    assert not graded.is_correct(Problem("q", "p", "2"), None)
    assert (place / "asked.txt").read_text() == "0 0\n"  # tried once, with a gold answer
    assert graded.is_correct(Problem("q", "p", "2"), "9")
    assert graded.is_correct(Problem("q", "p", "2"), "9")
    assert (place / "asked.txt").read_text() == "0 0\n2 9\n"


def test_a_grader_knows_its_own_gold_answers(place: Path) -> None:
    save_rows(place / "rows.jsonl", [{"question": "a ?", "answer": '{"tests": ["f(1) == 2"]}'}])
    with pytest.raises(InvalidInput, match="is not a number"):
        task(place)
    graded = task(place, grader="my_grade.of_numpy")
    assert graded.is_correct(graded.problems[0], "def f(x): ...") is True


def test_generated_problems_can_have_another_grader(place: Path) -> None:
    settings = {"path": None, "task": "chain_sum", "size": 2}
    graded = task(place, **settings, grader="my_grade.same_length")
    problem = graded.problems[0]
    wrong = "9" * len(problem.answer)
    assert graded.is_correct(problem, wrong)
    assert not task(place, **settings).is_correct(problem, wrong)


# ---------------------------------------------------------------- what is refused


@pytest.mark.few
@pytest.mark.parametrize(
    ("setting", "path", "message"),
    [
        ("grader", "my_grade.missing", "cannot be imported: module 'my_grade' has no attribute"),
        ("grader", "no_such_module.grade", "cannot be imported: No module named"),
        ("grader", "exact", r"is no dotted path; give module\.function, \(gold, answer\) -> bool"),
        ("grader", "my_grade.of_one", r"cannot be called as \(gold, answer\) -> bool: too many"),
        ("grader", "my_grade.WORDS", "cannot be imported"),
        ("grader", "my_grade.breaks", "raised ValueError: no such unit, for the gold answer '0'"),
        ("grader", "my_grade.share", r"gave 0\.5, of type float, .*return True or False"),
        ("extract", "my_grade.missing", "cannot be imported: module 'my_grade' has no attribute"),
        ("extract", "number", r"is no dotted path; give module\.function, \(text\) -> the answer"),
        ("extract", "my_grade.same_length", r"cannot be called as \(text\)"),
        ("extract", "my_grade.needs_words", "raised IndexError: .*, for the text ''"),
        ("extract", "my_grade.lengths", "gave 0, of type int, .*return a text, or None"),
    ],
)
def test_what_cannot_grade_or_read_is_refused_before_the_run(
    place: Path, setting: str, path: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"dataset\.{setting}={path} {message}"):
        run(composed(place, f"dataset.{setting}={path}"))
    assert not (place / "outputs").exists()


@pytest.mark.slow
def test_runs_that_are_graded_otherwise_are_not_compared(place: Path) -> None:
    run(composed(place))
    run(composed(place, "dataset.grader=my_grade.same_length", "run.name=own"))
    folders = [place / "outputs" / "r", place / "outputs" / "own"]
    with pytest.raises(InvalidInput, match=r"dataset\.grader, by which .*: None -> .my_grade"):
        check_comparable(load_rows(folders))
    file = folders[1] / "fingerprint.json"
    made_from = json.loads(file.read_text())
    run(composed(place, "dataset.grader=my_grade.same_length", "run.name=later", "run.seed=1"))
    made_from["code"]["my_grade.same_length"] = "hash 0"
    file.write_text(json.dumps(made_from))
    rows = load_rows([folders[1], place / "outputs" / "later"])
    assert len(rows) == 2  # other code is another configuration, not another seed of one
    with pytest.raises(InvalidInput, match=r"the code of dataset\.grader=my_grade\.same_length"):
        check_comparable(rows)


# ---------------------------------------------------------------- code that changed


OWN = ("dataset.extract=my_grade.extract", "dataset.grader=my_grade.same_length")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "file", "named"),
    [
        (OWN, "my_grade.py", r"my_grade\.(extract|same_length)"),
        (OWN, "my_words.py", r"my_grade\.(extract|same_length)"),  # which it imports
        (("memory._target_=my_memory.Mine",), "my_memory.py", r"my_memory\.Mine"),
    ],
)
def test_edited_code_of_ones_own_gives_no_old_results(
    place: Path, words: tuple[str, ...], file: str, named: str
) -> None:
    own = "from ttc import Resident\n\nclass Mine(Resident):\n    pass\n"
    (place / "my_memory.py").write_text(own)
    for limit in (2, 3):
        run(composed(place, *words, f"dataset.limit={limit}"))
        assert len(records(place)) == limit
    (place / file).write_text((place / file).read_text() + "\n# edited\n")
    with pytest.raises(InvalidInput, match=rf"the code, {named}: hash \w+ -> hash \w+"):
        run(composed(place, *words, "dataset.limit=4"))


@pytest.mark.slow
def test_every_place_that_can_name_ones_own_code_is_seen(place: Path) -> None:
    (place / "my_rows.py").write_text("def read(row, id, dataset): ...\n")
    words = ["dataset.reader=my_rows.read", "dataset.grader=my_grade.breaks"]
    words += ["verifier=ensemble", "verifier.parts=[{_target_: my_grade.of_one}]"]
    found = code_fingerprint(configuration("run", "run.name=r", *words))
    assert found.keys() == {"my_rows.read", "my_grade.breaks", "my_grade.of_one"}
    assert code_fingerprint(configuration("run", "run.name=r", "dataset.reader=gsm8k")) == {}


def test_a_part_of_any_group_that_cannot_be_imported_is_named(place: Path) -> None:
    config = configuration("run", "run.name=r", "gate._target_=my_gaet.Mine")
    with pytest.raises(InvalidInput, match=r"gate=my_gaet\.Mine cannot be imported: No module"):
        checked_parts(config)


def test_the_code_is_that_of_the_users_files_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = place / "my_package"
    (package / "deep").mkdir(parents=True)
    texts = {
        "__init__.py": "from .gate import Mine\n",
        "gate.py": "import torch, ttc\nfrom . import tools\nfrom my_package.deep.more import "
        "x\nMine = x\n",
        "tools.py": "import json\n",
        "deep/__init__.py": "",
        "deep/more.py": "from ..tools import json\nx = 1\n",
        "unused.py": "",
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    __import__("my_package")
    names = [str(file.relative_to(package)) for file in code_files("my_package")]
    assert names == ["__init__.py", "deep/__init__.py", "deep/more.py", "gate.py", "tools.py"]
    assert code_files("math") == []
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        monkeypatch.delitem(sys.modules, name)


# ---------------------------------------------------------------- votes


VOTING = """
def read(text):
    return text.strip() or None

def same_tone(gold, answer):
    return len(answer) % 2 == len(gold) % 2

def third_like_first(gold, answer):
    return abs(len(gold) - len(answer)) <= 1
"""


@pytest.mark.slow
def test_a_grader_of_ones_own_groups_the_votes_of_a_whole_run(place: Path) -> None:
    """Search, records, maj@k, the rules of select and the leaderboard's predictions count one
    answer in all spellings that the grader calls the same."""
    (place / "my_votes.py").write_text(VOTING)
    sampled = ["search=self_consistency", "search.n=6", "search.max_tokens=4", "verifier=none"]
    own = ["dataset.extract=my_votes.read", "dataset.grader=my_votes.same_tone"]
    summary = run(composed(place, *own, search=sampled))
    found = records(place)
    unlike = 0
    for record in found:
        branches = sorted(record["branches"], key=lambda branch: branch["path"])
        tones = [len(branch["answer"]) % 2 for branch in branches]
        majority_tone = max(tones, key=tones.count)  # the first of equals
        assert len(record["answer"]) % 2 == majority_tone
        assert len({branch["vote"] for branch in branches}) == len(set(tones))
        unlike += len({branch["answer"] for branch in branches}) > len(set(tones))
        share = tones.count(len(record["gold"]) % 2) / len(tones)
        counts = {(count, right) for count, right in votes(branches)[0]}
        assert counts == {(tones.count(tone), tone == len(record["gold"]) % 2) for tone in tones}
        assert pass_share(record, 1) == pytest.approx(share)
        assert record["correct"] == (majority_tone == len(record["gold"]) % 2)
    assert unlike  # some answers are spelt in several ways
    majority = [rule for rule in all_rules() if rule.name == "majority"]
    rows = score(load(place / "outputs" / "r"), majority)
    assert rows[-2]["n"] == 6 and rows[-2]["accuracy"] == summary["accuracy"]
    for record in found:
        first = sorted(record["branches"], key=lambda branch: branch["path"])[:4]
        tones = [len(branch["answer"]) % 2 for branch in first]
        right = max(tones, key=tones.count) == len(record["gold"]) % 2
        assert predictions_of(record)["pred_maj@4"][1] == right


def test_records_group_votes_in_the_order_of_the_paths(place: Path) -> None:
    """Where equality is not transitive, the order decides: the search's, and not that of the
    scores."""
    (place / "my_votes.py").write_text(VOTING)
    graded = task(place, extract="my_votes.read", grader="my_votes.third_like_first")
    # 22 is like the two others, which are unlike each other
    by_score = [((1,), "22"), ((2,), "333"), ((0,), "1")]
    branches = [SimpleNamespace(path=path) for path, _ in by_score]
    result = SimpleNamespace(problem=graded.problems[0], branches=branches)
    assert votes_by_path(result, graded, [answer for _, answer in by_score]) == ["1", "333", "1"]
