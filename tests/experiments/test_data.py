"""Data sets of one's own: names of fields, readers, gold answers, bad rows, solved examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.cli.settings import DatasetConfig
from experiments.runs.build import make_template, resolved
from experiments.runs.data import load_examples, load_task
from tests.helpers.configurations import configuration
from tests.helpers.tokenizers import Letters
from ttc import InvalidInput
from ttc.results import Problem

WORKED = {
    "Ann has 2 pens and buys 3. How many?": "2 + 3 = <<2+3=5>>5 pens.\n#### 5",
    "Bob has 4 pens and loses 1. How many?": "4 - 1 = <<4-1=3>>3 pens.\n#### 3",
    "Cy buys 600 pens twice. How many?": "600 x 2 = 1,200 pens.\n#### 1,200",
}
GSM8K = [{"question": question, "answer": answer} for question, answer in WORKED.items()]


def dataset(**fields: Any) -> Any:
    return OmegaConf.merge(OmegaConf.structured(DatasetConfig), {"name": "file"} | fields)


def jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def composed(*overrides: str) -> Any:
    """The configuration of `python -m experiments.run` with these words typed after it."""
    return resolved(configuration("run", *overrides))


# ---------------------------------------------------------------- gold answers


def test_whole_solutions_as_gold_answers_are_refused_with_the_reader_that_helps(
    tmp_path: Path,
) -> None:
    path = jsonl(tmp_path / "test.jsonl", GSM8K)
    why = r"no row of .*\(3\).*file-0: .*whole solution.*reader=gsm8k.*\n  3 x .*whole"
    with pytest.raises(InvalidInput, match=why):
        load_task(dataset(path=path))
    task = load_task(dataset(path=path, reader="gsm8k"))
    assert [p.answer for p in task.problems] == ["5", "3", "1200"] and not task.failures


@pytest.mark.parametrize(
    ("kind", "gold", "fits"),
    [
        ("number", "5", True),
        ("number", 5, True),
        ("number", "$1,200.50", True),
        ("number", "3/4", True),
        ("number", r"\frac{3}{4}", True),
        ("number", "5 apples", True),
        ("number", "five", False),
        ("strict", "five", False),
        ("choice", "B", True),
        ("choice", "b", False),
        ("choice", "AB", False),
        ("choice", "the second", False),
        ("math", r"x^2 + 1", True),
        ("math", "so x = 2\n#### 2", False),
        ("text", "five apples", True),
        ("text", "so it is\n#### five", False),
    ],
)
def test_a_gold_answer_that_nothing_can_equal_fails_alone(
    tmp_path: Path, kind: str, gold: Any, fits: bool
) -> None:
    good = {"number": "1", "strict": "1", "choice": "A", "math": "1", "text": "1"}[kind]
    rows = [{"question": "q", "answer": good}, {"question": "r", "answer": gold}]
    task = load_task(dataset(path=jsonl(tmp_path / "rows.jsonl", rows), answer_kind=kind))
    assert [p.id for p in task.problems] == ["file-0", "file-1"][: 1 + fits]
    if not fits:
        ((name, reason),) = task.failures
        assert name == "file-1" and "the gold answer" in reason and f"answer_kind={kind}" in reason


# ---------------------------------------------------------------- bad rows


def test_a_bad_row_never_has_the_id_of_a_problem(tmp_path: Path) -> None:
    rows = [{"id": "file-1", "question": "q?", "answer": "1"}, {"question": "q?"}]
    rows.append({"id": "file-1-row", "question": "q?", "answer": "1"})
    task = load_task(dataset(path=jsonl(tmp_path / "rows.jsonl", rows)))
    assert [p.id for p in task.problems] == ["file-1", "file-1-row"]
    assert [name for name, _ in task.failures] == ["file-1-row-row"]


QUESTION = '{"question": "a", "answer": "1", '
BAD_LINES = [
    ("{question: q}", "the line is not JSON: Expecting property name"),
    (QUESTION + '"question": "r"}', "not JSON: the field 'question' stands there twice"),
    ("[" * 100_000, "the line is not JSON: maximum recursion"),
    ('{"question": "a", "answer": %s}' % ("9" * 5000), "not JSON: Exceeds the limit (4300 digits)"),
    ("[1, 2]", "the row is [1, 2], of type list; give an object with fields"),
    ("null", "the row is None, of type NoneType; give an object with fields"),
    ('{"question": " ", "answer": "1"}', "the field 'question' is empty"),
    ('{"question": ["q"], "answer": "1"}', "the field 'question' is ['q'], not text"),
    ('{"question": null, "answer": "1"}', "the field 'question' is None, not text"),
    ('{"question": NaN, "answer": "1"}', "the field 'question' is nan, not text"),
    ('{"question": "q", "answer": NaN}', "the field 'answer' is nan, not text"),
    (
        '{"question": "q"}',
        "has no field 'answer', only question; name the field as in dataset.fields.answer=NAME",
    ),
    ('{"\\udcff": "a"}', "the row has no field 'question', only \udcff"),
    ('{"question": "\\ud83d", "answer": "1", "from": "b"}', "the question holds '\\ud83d'"),
    ('{"question": "q", "answer": "\\udc00", "from": "b"}', "the gold answer holds '\\udc00'"),
    (QUESTION + '"from": "b", "id": "\\ud800"}', "the id holds '\\ud800'"),
    (QUESTION + '"from": "\\ud800"}', "the source holds '\\ud800'"),
    (QUESTION + '"from": "b", "solution": "\\ud800"}', "the solution holds '\\ud800'"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=[why for _, why in BAD_LINES])
def test_a_bad_row_fails_alone_with_the_reason(tmp_path: Path, line: str, reason: str) -> None:
    good = '{"question": "2 + 2", "answer": "4", "from": "b"}\n'
    (tmp_path / "rows.jsonl").write_text(f"{good}{line}\n{good}")
    task = load_task(dataset(path=str(tmp_path / "rows.jsonl"), fields={"source": "from"}))
    assert [problem.id for problem in task.problems] == ["file-0", "file-2"]
    ((name, why),) = task.failures
    assert name == "file-1" and reason in why
    json.dumps(task.failures, ensure_ascii=True)  # what a record can hold


def test_a_row_can_name_the_source_that_its_question_shares(tmp_path: Path) -> None:
    rows = [{"question": "1 ?", "answer": "1", "passage": "p"}, {"question": "2 ?", "answer": "2"}]
    path = jsonl(tmp_path / "rows.jsonl", rows)
    task = load_task(dataset(path=path, fields={"source": "passage"}))
    assert task.problems[0].metadata["source"] == "p"
    assert "no field 'passage'" in task.failures[0][1]


def test_fields_have_the_names_that_are_given(tmp_path: Path) -> None:
    rows = [{"prompt": "q?", "target": "7", "key": "first"}]
    path = jsonl(tmp_path / "rows.jsonl", rows)
    names = {"question": "prompt", "answer": "target", "id": "key"}
    assert load_task(dataset(path=path, fields=names)).problems == [Problem("q?", "first", "7")]
    why = r"no field 'question', only prompt, target, key; .*dataset\.fields\.question"
    with pytest.raises(InvalidInput, match=why):
        load_task(dataset(path=path))


def test_a_reader_of_ones_own_is_found_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_readers.py").write_text(
        "from ttc import Problem\n\n\n"
        "def backwards(row, id, dataset):\n    return Problem(row['q'][::-1], id, "
        "str(row['a'][0]))\n\n\n"
        "def forgets(row, id, dataset):\n    return row['q'], row['a']\n"
    )
    monkeypatch.chdir(tmp_path)
    path = jsonl(tmp_path / "rows.jsonl", [{"q": "abc", "a": [4]}, {"q": "def", "a": []}])
    task = load_task(dataset(path=path, reader="my_readers.backwards"))
    assert task.problems == [Problem("cba", "file-0", "4")]
    assert task.failures == [("file-1", "IndexError: list index out of range (my_readers.py:5)")]
    for reader, message in (
        ("my_readers.forgets", "gave a tuple, not a ttc Problem"),
        ("my_readers.missing", "cannot be imported"),
        ("no_such_module.read", "cannot be imported"),
        ("my_readers.Problem.__doc__", "cannot be imported"),
        ("poetry", "is unknown; use one of plain"),
    ):
        with pytest.raises(InvalidInput, match=message):
            load_task(dataset(path=path, reader=reader))


@pytest.mark.parametrize(
    ("name", "text", "questions", "reasons"),
    [
        (
            "rows.csv",
            "question,answer\nTom has 3 apples, eats 1. How many?,2\nWhat is 1 + 1?,2\n",
            ["What is 1 + 1?"],
            ["file-0: InvalidInput: line 2 has 3 fields, and the header names 2"],
        ),
        (
            "rows.tsv",
            'question\tanswer\n\nWhat\tis 1?\t1\n2?\t2\n3?\n"a\nb"\t4\n5?\t\t5\n',
            ["2?", "a\nb"],
            ["file-0: InvalidInput: line 3 has 3 fi", "line 5 has 1 fi", "line 8 has 3 fi"],
        ),
        (
            "rows.csv",
            'question,answer\r\n"Tom has 3, eats 1",2\r\n"a" b,3\r\nc,4',
            ["Tom has 3, eats 1", "c"],
            ["line 3 cannot be read: ',' expected after '\"'"],
        ),
        (
            "rows.csv",
            '\n\nquestion, answer\n"3, eats 1?", "2, 3"\n a,\t3\nb, c, 4\n',
            ["3, eats 1?", "a"],
            ["line 6 has 3 fields, and the header names 2 (question, answer)"],
        ),
    ],
)
def test_lines_of_tables_whose_fields_are_not_the_headers_are_bad_rows(
    tmp_path: Path, name: str, text: str, questions: list[str], reasons: list[str]
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    task = load_task(dataset(path=str(tmp_path / name), answer_kind="text"))
    assert [problem.question for problem in task.problems] == questions
    assert len(task.failures) == len(reasons)
    for failure, reason in zip(task.failures, reasons, strict=True):
        assert reason in ": ".join(failure)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("question,answer\n1 + 1?,2,\n2 + 2?,4,\n", r"no row .* line 2 has 3 fields.*line's end"),
        ('question,answer\n1,1\n"2,2\n3,3\n', "line 3 opens a quote that nothing closes"),
        ("question,answer,answer\n1,1,1\n", "two columns are called 'answer'"),
        ("question,answer, answer\n1,1,1\n", "two columns are called 'answer'"),
        ("question,answer\na\0b,2\n", "not UTF-8 text .*the byte 0"),
        ("question,answer\n", "has 0 rows"),
        ("", "has 0 rows"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(InvalidInput, match=reason):
        load_task(dataset(path=str(tmp_path / "rows.csv")))


def test_a_data_set_of_the_hub_is_refused_at_once_without_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"waited {seconds} s"))
    why = r"no-such-set \(the hub cannot be reached.*dataset\.path=FILE"
    with pytest.raises(InvalidInput, match=why):
        load_task(dataset(name="mine", hub="no-such-org/no-such-set"))


# ---------------------------------------------------------------- solved examples and prompts


def test_solved_examples_come_before_the_question_as_in_lm_eval(tmp_path: Path) -> None:
    test = jsonl(tmp_path / "test.jsonl", GSM8K[2:])
    train = jsonl(tmp_path / "train.jsonl", GSM8K[:2])
    data = ("dataset=gsm8k", f"dataset.path={test}", "dataset.shots=2", "dataset.raw=true")
    words = r'dataset.instruction="Question: {question}\nAnswer:"'
    config = composed(*data, f"dataset.shots_path={train}", words)
    (problem,) = load_task(config.dataset).problems
    chat = Letters()
    chat.chat_template = "not used"
    *shots, asked = (f"Question: {row['question']}\nAnswer: {row['answer']}" for row in GSM8K)
    whole = "\n\n".join([*shots, asked.partition(" 600 x 2")[0]])
    assert make_template(config).text(problem.question, chat) == whole


def test_examples_without_a_solution_state_the_answer(tmp_path: Path) -> None:
    rows = [{"question": "a?", "answer": "1"}, {"question": "b?", "answer": "2", "why": "Two."}]
    path = jsonl(tmp_path / "rows.jsonl", [*rows, {"question": "c?"}])
    config = dataset(shots=2, shots_path=path, fields={"solution": "why"})
    two = "Two.\nThe answer is 2."
    assert load_examples(config) == [("a?", "The answer is 1."), ("b?", two)]
    rows = [{"question": f"{i}?", "answer": str(i)} for i in range(20)]
    many = dataset(shots=5, shots_path=jsonl(tmp_path / "many.jsonl", rows))
    drawn = [load_examples(OmegaConf.merge(many, {"shots_seed": seed})) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and all(len(set(examples)) == 5 for examples in drawn)


@pytest.mark.parametrize(
    ("instruction", "end"),
    [
        (None, "5 pens.\nThe answer is 5."),
        ("{question} End with \\boxed{}.", "5 pens.\nThe answer is \\boxed{5}."),
        ("{question}", "5 pens.\n#### 5"),
        ("{question}\nThe answer is wanted after ####.", "5 pens.\n#### 5"),
    ],
)
def test_worked_examples_end_as_the_instruction_asks(
    tmp_path: Path, instruction: str | None, end: str
) -> None:
    path = jsonl(tmp_path / "rows.jsonl", GSM8K)
    words = {} if instruction is None else {"instruction": instruction}
    ((_, answer),) = load_examples(dataset(shots=1, shots_path=path, reader="gsm8k", **words))
    assert answer == f"2 + 3 = <<2+3=5>>{end}"


@pytest.mark.parametrize(
    ("kind", "rows", "answers"),
    [
        ("number", ["So the answer is 4.", "2 + 2 = 4"], [0, "2 + 2 = 4\nThe answer is 4."]),
        ("math", ["So \\boxed{4}.", "2 + 2 = 4"], [0, "2 + 2 = 4\nThe answer is \\boxed{4}."]),
        ("math", [None], ["The answer is \\boxed{4}."]),
        ("choice", ["As said."], ["As said.\nThe answer is A."]),
        ("text", ["As said.", None], [0, "The answer is 4."]),
        ("code", [None], ["```python\n4\n```"]),
    ],
)
def test_worked_examples_of_every_kind_of_answer(
    tmp_path: Path, kind: str, rows: list[str | None], answers: list[Any]
) -> None:
    gold = "A" if kind == "choice" else "4"
    made = [
        {"question": f"{i}?", "answer": gold, "solution": why, "tests": ["assert 1"]}
        for i, why in enumerate(rows)
    ]
    path = jsonl(tmp_path / "rows.jsonl", made)
    reader = "code" if kind == "code" else "plain"
    config = dataset(shots=len(rows), shots_path=path, reader=reader, answer_kind=kind)
    expected = [rows[i] if text == 0 else text for i, text in enumerate(answers)]
    assert [answer for _, answer in load_examples(config)] == expected


def test_tasks_without_a_solution_are_no_examples(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"question": "q?", "tests": ["assert 1"]}])
    with pytest.raises(InvalidInput, match=r"1 examples are wanted, and .* are 0"):
        load_examples(dataset(shots=1, shots_path=path, reader="code", answer_kind="code"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shots": 4}, "4 examples are wanted, and .* are 3"),
        ({"shots": -1}, r"dataset\.shots=-1"),
        ({"shots": 1}, "file-0 is among the"),
        ({"shots": 1, "shots_path": None}, r"dataset\.shots_path=FILE"),
        ({"shots": 1, "shots_path": "/no/x.jsonl"}, r"dataset\.shots_path=/no/x\.jsonl is not a"),
        ({"shots": 1, "path": None, "task": "chain_sum"}, r"dataset\.examples"),
    ],
)
def test_examples_that_cannot_be_had_are_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    path = jsonl(tmp_path / "rows.jsonl", GSM8K)
    with pytest.raises(InvalidInput, match=message):
        load_task(dataset(**({"path": path, "shots_path": path, "reader": "gsm8k"} | fields)))


def test_line_breaks_typed_in_a_shell_reach_the_model_and_the_search() -> None:
    data = (r'dataset.instruction="Q: {question}\nA:"', r'dataset.end=["\n\n","Q:"]')
    config = composed(*data, "search=beam_search", r'search.delimiter="\n\n"')
    assert config.dataset.instruction == "Q: {question}\nA:"
    assert list(config.dataset.end) == ["\n\n", "Q:"]
    assert config.search.delimiter == "\n\n"
    assert make_template(config).instruction == "Q: {question}\nA:"
