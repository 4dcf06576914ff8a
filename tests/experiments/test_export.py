"""`python -m experiments.export`: trees as trajectories, TRL's data sets, and what `datasets` reads
of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM

from experiments.eval.export.command import export, parsed
from experiments.eval.export.trajectories import branch_key
from experiments.runs.problem_loop import run
from tests.helpers.engines import make_engine
from tests.helpers.records import candidate
from tests.helpers.records import records as records_of
from tests.helpers.run_files import node, record, save
from tests.helpers.runs import ROWS, composed
from ttc import InvalidInput
from ttc.sampling import random_key

BEAMS = [
    *("search=beam_search", "search.beam_size=2", "search.beam_width=2"),
    *("search.step_tokens=2", "search.max_steps=3"),
]


def exported(folder: Path, *words: str) -> Any:
    """What `datasets` reads of the file."""
    arguments = parsed([str(folder), *words])
    export(arguments)
    form = arguments.format
    name = f"{arguments.type}.jsonl" if form == "trl" else f"trajectories.{form}"
    cache = str(folder.parent / "cache")
    kind = "parquet" if form == "parquet" else "json"
    return load_dataset(kind, data_files=str(folder / name), split="train", cache_dir=cache)


def test_trajectories_hold_what_the_model_saw_and_wrote(place: Path) -> None:
    more = ("verifier=confidence", "run.record_tokens=true", "run.seed=3")
    run(composed(place, *more, search=BEAMS))
    folder = place / "outputs" / "r"
    rows = exported(folder, "--format", "parquet")
    assert exported(folder, "--format", "jsonl")[:] == rows[:]
    records = records_of(place)
    leaves = sum(len(r["tree"]) - len({n["parent"] for n in r["tree"]} - {None}) for r in records)
    assert len(rows) == leaves > len(ROWS) * 2
    model = AutoModelForCausalLM.from_pretrained(place / "model").eval()
    for row in rows:
        prompt, own = row["prompt_ids"], row["completion_ids"]
        logits = model(torch.tensor([prompt + own])).logits[0, len(prompt) - 1 : -1].float()
        plain = logits.log_softmax(-1)[range(len(own)), own]
        assert row["logprobs"] == pytest.approx(plain.tolist(), abs=1e-4)
        steps = len(row["nodes"])
        assert row["step_ends"] == list(range(2, 2 * steps + 1, 2)) and 2 * steps == len(own)
        assert len(row["scores"]) == steps and None not in row["scores"] and row["seed"] == 3
        assert row["branch_key"] == f"{branch_key(3, row['problem_id'], row['path']):016x}"
        assert (row["correct"] is None) == (row["status"] == "pruned")
    for r in records:
        (chosen,) = [row for row in rows if row["problem_id"] == r["id"] and row["chosen"]]
        assert all(chosen[name] == r[name] for name in ("answer", "correct", "prompt"))
        (text,) = [b["text"] for b in r["branches"] if b["path"] == chosen["path"]]
        assert chosen["completion"] == text


def test_the_key_of_a_branch_is_that_of_its_random_stream() -> None:
    engine = make_engine()
    root = engine.root([1, 2, 3], seed=random_key(5, "p"))
    *_, second = engine.fork(root, 2)
    *_, third = engine.fork(second, 3)
    assert branch_key(5, "p", third.path) == third.key and third.path == (1, 2)


def test_stepwise_supervision_says_which_steps_lead_to_a_right_answer(tmp_path: Path) -> None:
    folder = save(tmp_path, [record("p0", True, "one\n"), record("p1", False)])
    rows = exported(folder, "--format", "trl", "--type", "stepwise-supervision")
    steps = {"completions": ["first one", "worse"], "labels": [True, False], "values": [0.5, 0.0]}
    assert rows[0] == {"prompt": "Question: p0", "id": "p0"} | steps
    assert rows["completions"][1] == ["first one", "better"]
    assert rows["labels"] == [[True, False], [True, True], [False] * 2, [False] * 2]


def test_preferences_are_pairs_of_one_problem(tmp_path: Path) -> None:
    texts = [("a", False, 0.9), ("b", True, 0.2), ("c", True, 0.7)]
    texts += [("c", True, 0.8), ("d", False, 0.1), ("e", False, None)]
    branches = [candidate(i, "7", ok, text=t, score=s) for i, (t, ok, s) in enumerate(texts)]
    told = record("p0", True, branches=branches)
    folder = save(tmp_path, [told, record("p1", False), record("p2", False, prompt=None)])
    pairs = exported(folder, "--format", "trl", "--type", "preference")
    assert [(row["chosen"], row["rejected"]) for row in pairs] == [("c", "a"), ("b", "d")]
    assert pairs.column_names == ["prompt", "chosen", "rejected", "id"]
    assert set(pairs["prompt"]) == {"Question: p0"}
    right = exported(folder, "--format", "trl", "--type", "prompt-completion")
    assert [row["completion"] for row in right] == ["c", "b"]
    marked = exported(folder, "--format", "trl", "--type", "unpaired-preference")
    assert [(row["completion"], row["label"]) for row in marked][:5] == [
        ("a", False), ("c", True), ("b", True), ("d", False), ("e", False)
    ]  # fmt: skip


ROOT = node(0, None, [], "", None, "root") | {"token_ids": [1], "logprobs": [None]}


@pytest.mark.parametrize("tree", [[], [ROOT]])
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_run_whose_problems_all_failed_has_nothing_to_write(
    tmp_path: Path, tree: list[Any], form: str
) -> None:
    failed = record("p0", False, error="ContextExceeded: too long", tree=tree, branches=[])
    with pytest.raises(InvalidInput, match="has a branch, so there is nothing to write; `error`"):
        export(parsed([str(save(tmp_path, [failed])), "--format", form]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"records in .* that hold no token ids: 1 of 1; .*run\.record_tokens=true"),
        (["--type=preference"], "give --format trl too"),
        (["--format=trl", "--type=prompt-completion"], "no problem in .* has a prompt and a right"),
        (["--format=trl", "--type=preference"], "both a right and a wrong candidate"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        export(parsed([str(save(tmp_path, [record("p0", False)])), *words]))


def test_token_ids_of_private_questions_are_not_kept(place: Path) -> None:
    why = r"run\.record_tokens=true would keep the questions.*dataset\.private=true"
    with pytest.raises(InvalidInput, match=why):
        run(composed(place, "run.record_tokens=true", "dataset.private=true"))
    folder = save(place, [record("p0", False)])
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("dataset:", "dataset:\n  private: true"))
    with pytest.raises(InvalidInput, match="keeps no tokens and no texts") as refused:
        export(parsed([str(folder)]))
    assert "record_tokens" not in str(refused.value)
