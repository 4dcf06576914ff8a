"""Where problems come from: every source and reader of a known data set, and what cannot be
used."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import pytest
from omegaconf import OmegaConf

from experiments.cli.settings import DatasetConfig
from experiments.runs.data import load_examples, load_task
from experiments.runs.orders import with_choices
from experiments.runs.readers import READERS
from tests.helpers.configurations import configuration
from ttc import InvalidInput
from ttc.text.answers import extract_answer
from ttc.text.equality import AnswerReader

ROWS = [
    {"question": "Ann has 2 pens and buys 3. How many?", "answer": "2 + 3 = 5\n#### 5"},
    {"question": "A robe takes {2} bolts. How many?", "answer": "It takes 1,200.\n#### 1,200"},
]


def dataset(**fields: Any) -> Any:
    name = fields.setdefault("name", "gsm8k")
    return OmegaConf.structured(
        DatasetConfig(**({"reader": name if name in READERS else "plain"} | fields))
    )


def composed(choice: str, path: str) -> Any:
    """The data set that is typed as dataset=choice, read from a file."""
    return configuration("run", f"dataset={choice}", f"dataset.path={path}").dataset


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    import pandas

    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        pandas.DataFrame(rows).to_parquet(path)
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_local_file_in_every_format(tmp_path: Path, suffix: str) -> None:
    unmarked = {"question": "q", "answer": "no mark"}
    task = load_task(dataset(path=write(tmp_path / f"rows{suffix}", [*ROWS, unmarked])))
    first, second = task.problems
    assert (first.id, first.question, first.answer) == ("gsm8k-0", ROWS[0]["question"], "5")
    assert (second.id, second.question, second.answer) == ("gsm8k-1", ROWS[1]["question"], "1200")
    graded = [task.is_correct(second, answer) for answer in ("$1,200.00", "12", None)]
    assert graded == [True, False, False]
    ((name, why),) = task.failures
    assert name == "gsm8k-2" and "has no number after ####" in why


GOOD = [{"question": f"{i} + 1 = ?", "answer": f"#### {i + 1}"} for i in range(4)]


def asked(path: Path | str, **fields: Any) -> list[str]:
    return [problem.question for problem in load_task(dataset(path=str(path), **fields)).problems]


def test_a_folder_of_a_saved_data_set_is_read(tmp_path: Path) -> None:
    whole, train, test = map(datasets.Dataset.from_list, (GOOD, GOOD[:1], GOOD[1:]))
    whole.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "both")
    datasets.DatasetDict({"train": train}).save_to_disk(tmp_path / "train alone")
    questions = [row["question"] for row in GOOD]
    assert asked(tmp_path / "one") == questions
    assert asked(tmp_path / "both") == questions[1:]
    assert asked(tmp_path / "both", split="train") == questions[:1]
    assert asked(tmp_path / "train alone") == questions[:1]
    with pytest.raises(InvalidInput, match=r"no split 'dev'; use dataset.split=train or test"):
        asked(tmp_path / "both", split="dev")


@pytest.mark.parametrize(
    "name", ["{}.parquet", "{}-0000{}-of-00002.parquet", "data/{}-{}.parquet", "{}/{}.parquet"]
)
def test_a_folder_of_parquet_files_is_read_by_its_splits(name: str, tmp_path: Path) -> None:
    one_file = name.count("{}") == 1
    parts = {"test": [GOOD] if one_file else [GOOD[:2], GOOD[2:]], "train": [GOOD[1:2]]}
    for split, pieces in parts.items():
        for part, rows in enumerate(pieces):
            file = tmp_path / name.format(split, part)
            file.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_list(rows).to_parquet(str(file))
    assert asked(tmp_path) == [row["question"] for row in GOOD]
    assert asked(tmp_path, split="train") == [GOOD[1]["question"]]


def test_a_folder_without_a_data_set_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(InvalidInput, match="holds no data set; give a folder that save_to_disk"):
        asked(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "/no/such/file.jsonl"}, "is not a file"),
        ({"path": __file__}, "'.py'"),
        ({}, "names no source"),
        ({"path": __file__, "limit": 0}, "dataset.limit=0"),
        ({"path": __file__, "offset": -1}, "dataset.offset=-1"),
        ({"path": __file__, "answer_kind": "poem"}, "poem"),
        ({"task": "no_such_task"}, "no_such_task"),
        ({"task": "chain_sum", "path": "mine.jsonl"}, "mine.jsonl would not be read"),
        ({"task": "chain_sum", "size": 5, "offset": 5}, "none after dataset.offset=5"),
        ({"task": "chain_sum", "params": {"min_term": 1}}, "min_term"),
    ],
)
def test_an_unusable_source_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_task(dataset(**fields))


def test_rows_that_nothing_can_read_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(InvalidInput, match=r"no row of .* gpqa-0: .*Question"):
        load_task(dataset(name="gpqa", path=path))
    with pytest.raises(InvalidInput, match="poetry"):
        load_task(dataset(reader="poetry", path=path))
    own = load_task(dataset(name="my-gsm8k", reader="gsm8k", path=path))
    assert [p.id for p in own.problems] == ["my-gsm8k-0", "my-gsm8k-1"]


def test_ids_are_kept_once(tmp_path: Path) -> None:
    answers = (("a", "1"), (None, "2"), ("a", "3"), ("b", 4))
    rows = [{"id": i, "question": "q?", "answer": a} for i, a in answers]
    task = load_task(dataset(name="mine", path=write(tmp_path / "rows.jsonl", rows)))
    assert [(p.id, p.answer) for p in task.problems] == [("a", "1"), ("mine-1", "2"), ("b", "4")]
    assert [name for name, _ in task.failures] == ["mine-2"] and "'a'" in task.failures[0][1]


def test_text_files_are_read_as_they_are(tmp_path: Path) -> None:
    odd = "one\u2028two\x85three"
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "\ufeff" + json.dumps({"question": odd, "answer": "1"}, ensure_ascii=False) + "\n", "utf-8"
    )
    assert [p.question for p in load_task(dataset(name="mine", path=str(file))).problems] == [odd]
    file.write_bytes(b'{"question": "caf\xe9", "answer": "1"}\n')
    with pytest.raises(InvalidInput, match="not UTF-8"):
        load_task(dataset(name="mine", path=str(file)))
    table = tmp_path / "rows.csv"
    columns = ["Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3))]
    table.write_text(",".join(columns) + "\nq,None,N/A,1,2\n")
    (problem,) = load_task(dataset(name="gpqa", path=str(table), answer_kind="choice")).problems
    assert ") None" in problem.question and ") N/A" in problem.question


@pytest.mark.skipif(find_spec("pycosat") is not None, reason="pycosat is installed")
def test_the_one_task_that_needs_a_compiled_package_says_so() -> None:
    with pytest.raises(InvalidInput, match="pip install pycosat"):
        load_task(dataset(name="zebras", task="zebra_puzzles", size=1))


def test_limit_and_offset(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS * 3)
    task = load_task(dataset(path=path, offset=1, limit=2))
    assert [p.id for p in task.problems] == ["gsm8k-1", "gsm8k-2"]
    with pytest.raises(InvalidInput, match="6 rows"):
        load_task(dataset(path=path, offset=6))


def test_gpqa_choices_are_shuffled_by_question_alone(tmp_path: Path) -> None:
    choices = {"Correct Answer": "right"} | {f"Incorrect Answer {k}": f"no{k}" for k in (1, 2, 3)}
    rows = [{"Question": f"q{i}?"} | choices for i in range(40)]
    gpqa = {"name": "gpqa", "answer_kind": "choice"}
    path, turned = write(tmp_path / "a.csv", rows), write(tmp_path / "b.csv", rows[::-1])
    problems = load_task(dataset(path=path, **gpqa)).problems
    for problem in problems:
        assert f"({problem.answer}) right" in problem.question
    assert {p.answer for p in problems} == set("ABCD")
    questions = [p.question for p in problems]
    assert questions == asked(turned, **gpqa)[::-1] != asked(path, **gpqa, shuffle_seed=1)


def test_arc_and_math(tmp_path: Path) -> None:
    choices = {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}
    row = {"question": "Which?", "choices": choices, "answerKey": "3"}
    path = write(tmp_path / "arc.jsonl", [row, row | {"answerKey": "9"}])
    task = load_task(dataset(name="arc_challenge", path=path, answer_kind="choice"))
    (problem,) = task.problems
    assert (problem.answer, problem.question) == ("C", "Which?\n(A) a\n(B) b\n(C) c")
    assert len(task.failures) == 1
    path = write(tmp_path / "math.jsonl", [{"problem": "Half?", "answer": r"\frac{1}{2}"}])
    task = load_task(dataset(name="math500", path=path, answer_kind="math"))
    assert task.is_correct(task.problems[0], "0.5") and not task.is_correct(task.problems[0], "2")


@pytest.mark.few
@pytest.mark.parametrize(
    ("choice", "row", "gold"),
    [
        ("aime", {"id": 60, "problem": "Find x.", "solution": "s", "answer": "033"}, "033"),
        ("aime", {"ID": "I-1", "Problem": "Find x.", "Solution": "s", "Answer": 204}, "204"),
        ("aime", {"problem": "Find x.", "answer": "70", "id": "0"}, "70"),
        ("amc", {"id": 0, "problem": "Find x.", "answer": 142.0, "url": "u"}, "142"),
        ("amc", {"id": 1, "question": "Find x.", "answer": "2.50", "url": "u"}, "2.50"),
    ],
)
def test_competitions_in_the_layouts_of_the_hub(
    tmp_path: Path, choice: str, row: dict[str, Any], gold: str
) -> None:
    config = composed(choice, write(tmp_path / "rows.jsonl", [row, {"id": 3}]))
    task = load_task(config)
    (problem,) = task.problems
    assert (problem.question, problem.answer, len(task.failures)) == ("Find x.", gold, 1)
    said = extract_answer(f"First 5.\nSo it is \\boxed{{{float(gold):g}}}.", config.answer_kind)
    assert task.is_correct(problem, said) and not task.is_correct(problem, "5")
    assert "\\boxed{}" in config.instruction


def test_the_letters_of_the_choices_are_known_to_whoever_reads_answers(tmp_path: Path) -> None:
    """A letter beyond them is no answer, so that it has no vote."""
    columns = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    path = write(tmp_path / "rows.jsonl", [{"Question": "Which?"} | dict.fromkeys(columns, "one")])
    (problem,) = load_task(dataset(name="gpqa", path=path, answer_kind="choice")).problems
    reader = AnswerReader("choice").among(problem.metadata["choices"])
    assert reader("The answer is D.") == "D" and reader("The answer is E.") is None
    assert AnswerReader("choice")("The answer is E.") == "E"


def test_mmlu_pro_has_up_to_ten_choices_and_worked_examples(tmp_path: Path) -> None:
    row = {
        "question_id": 1,
        "question": "Which?",
        "options": ["one", "N/A", "two", "None", *"efghij"],
        "answer": "C",
        "cot_content": "A: Let's think step by step. It is two. The answer is (C).",
        "category": "law",
    }
    rows = [row, row | {"answer": "B"}, row | {"answer": "J"}]
    config = composed("mmlu_pro", write(tmp_path / "rows.parquet", rows))
    task = load_task(config)
    first, last = task.problems
    choices = {"A": "one", "C": "two", "D": "None"} | dict(zip("EFGHIJ", "efghij", strict=True))
    assert first.question == with_choices("Which?", choices)
    assert (first.answer, last.answer) == ("C", "J") and first.metadata["category"] == "law"
    assert "'B' is none of the choices A, C, D" in task.failures[0][1]
    assert task.is_correct(last, extract_answer("The answer is (J).", "choice"))
    shown = OmegaConf.merge(config, {"shots": 1, "shots_path": config.path, "offset": 2})
    (example,) = load_examples(shown)
    assert example[1] == "Let's think step by step. It is two. The answer is (C)."


def test_reasoning_gym_scores_by_its_own_rules() -> None:
    sums = {"name": "sums", "task": "chain_sum", "params": {"min_terms": 2, "max_terms": 2}}
    task = load_task(dataset(**sums, size=5))
    again = load_task(dataset(**sums, size=5, limit=2))
    assert [p.question for p in again.problems] == [p.question for p in task.problems[:2]]
    for problem in task.problems:
        assert problem.answer is not None and task.is_correct(problem, problem.answer)
        assert not task.is_correct(problem, str(int(problem.answer) + 1))
