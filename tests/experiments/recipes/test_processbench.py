"""ProcessBench: its files, its F1, and reward models in folders as published, read as published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from experiments.recipes.processbench.figures import (
    PUBLISHED,
    best_threshold,
    f1,
    figures_of,
    interval,
    predicted,
    table,
)
from experiments.recipes.processbench.job import run
from experiments.recipes.processbench.samples import PARTS, LabelledSample, load_samples
from tests.helpers.configurations import configuration
from tests.helpers.reward_models import HEADERS, byte_tokenizer, close_to, head_at, seeded
from tests.helpers.reward_models import configuration as model_config
from tests.helpers.tiers import some_quick
from tests.verifiers.test_other_models import published as save_published
from tests.verifiers.test_reward_models import MODELS, QUESTION
from ttc import InvalidInput
from verifiers import QwenPRM
from verifiers.qwen_prm import SYSTEM
from verifiers.reward_model import RewardModel

STEPS = ["Tom has 3 boxes.", "3 * 4 = 12,\nso 12 apples", "12 - 2 = 10"]


def row(name: str = "gsm8k-0", label: int = -1, **changes: Any) -> dict[str, Any]:
    """A row with the fields of the data set on the hub."""
    return {
        "id": name,
        "generator": "Qwen2-7B-Instruct",
        "problem": QUESTION,
        "steps": STEPS,
        "final_answer_correct": label == -1,
        "label": label,
    } | changes


def save_rows(file: Path, rows: Sequence[dict[str, Any]]) -> str:
    text = json.dumps(rows) if file.suffix == ".json" else "\n".join(map(json.dumps, rows))
    file.write_text(text + "\n")
    return str(file)


def job(place: Path, *words: str) -> dict[str, Any]:
    overrides = [*words, "run.name=bench", f"run.output_dir={place / 'outputs'}"]
    return run(configuration("processbench", *overrides))


def records(place: Path) -> list[dict[str, Any]]:
    lines = (place / "outputs" / "bench" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# ---------------------------------------------------------------- published folders


def save_folder(name: str, model: RewardModel, folder: Path) -> str:
    """A reward model's folder with the names of tensors that the published one has."""
    weights, tokenizer = model.parts
    if name in ("qwen", "skywork"):
        prefix = {"qwen": "score.", "skywork": "v_head.summary."}[name]
        head = {f"{prefix}{key}": value for key, value in weights.head.state_dict().items()}
        return save_published(folder, weights.body, tokenizer, head, binary=name == "skywork")
    weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def as_the_card_of_qwen(model: RewardModel, tokenizer: Any, steps: Sequence[str]) -> list[float]:
    """The model card's program: a chat with `<extra_0>` after each step, and the probability of the
    second label at each of them."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    masks = torch.tensor(tokens) == tokenizer.convert_tokens_to_ids("<extra_0>")
    return head_at(model.parts[0], tokens).softmax(-1)[masks, 1].tolist()


def as_prepare_input(model: RewardModel, tokenizer: Any, steps: Sequence[str]) -> list[float]:
    """SkyworkAI/skywork-o1-prm-inference: question and steps encoded apart, read at line breaks."""
    tokens = tokenizer.encode(f"<|im_start|>{QUESTION}\n", add_special_tokens=False)
    (line_break,) = tokenizer.encode("\n", add_special_tokens=False)
    flags = []
    for step in steps:
        tokens += tokenizer.encode(step.replace("\n", " "), add_special_tokens=False)
        tokens += [line_break]
        flags.append(len(tokens) - 1)
    return head_at(model.parts[0], tokens).sigmoid()[flags, 0].tolist()


CHOICES = {
    "qwen": "qwen_prm",
    "skywork": "skywork_prm",
    "math_shepherd": "math_shepherd",
    "rlhflow": "rlhflow_prm",
}
AUTHORS = {"qwen": as_the_card_of_qwen, "skywork": as_prepare_input}


@pytest.mark.parametrize("name", some_quick(CHOICES, ["qwen", "math_shepherd"]))
def test_a_published_folder_rates_steps_as_its_authors_do(name: str, tmp_path: Path) -> None:
    model, whole = MODELS[name]()
    folder = save_folder(name, model, tmp_path / "model")
    rows = [row(f"{part}-{i}", i - 1, steps=STEPS[: 1 + i]) for part in PARTS for i in range(3)]
    data = save_rows(tmp_path / "rows.jsonl", rows)
    words = [f"verifier={CHOICES[name]}", f"verifier.model={folder}", "verifier.dtype=float32"]
    summary = job(tmp_path, *words, f"processbench.data={data}", "processbench.batch=5")
    own = transformers.AutoTokenizer.from_pretrained(folder)  # of the class that the folder names
    for record, sample in zip(records(tmp_path), rows, strict=True):
        steps = sample["steps"]
        expected = AUTHORS[name](model, own, steps) if name in AUTHORS else whole(QUESTION, steps)
        assert record["scores"] == close_to(expected)
    scores = {r["id"]: r["scores"] for r in records(tmp_path)}
    for part, ours in zip(PARTS, summary["parts"], strict=True):
        hits = [predicted(scores[f"{part}-{i}"], 0.5) == i - 1 for i in range(3)]
        assert ours["right"] == hits[0] and ours["wrong"] == (hits[1] + hits[2]) / 2


def test_steps_are_taken_as_given_also_where_they_hold_the_separator() -> None:
    model, whole = MODELS["qwen"]()
    assert isinstance(model, QwenPRM)
    steps = ["a\n\nb", "c"]
    ((first, second),) = model.rate_solutions([(QUESTION, steps)])
    assert [first, second] == close_to(whole(QUESTION, steps))
    assert model.rate_solutions([]) == []


# ---------------------------------------------------------------- other verifiers


def test_a_verifier_of_texts_rates_every_beginning(tmp_path: Path) -> None:
    """Arithmetic on two sums that begin alike; the second step of one of them is wrong."""
    problem, first = "What is 2 + 2 + 1?", "2 + 2 = 4"
    rows = [
        row("gsm8k-0", 1, problem=problem, steps=[first, "4 + 1 = 7", "The answer is 7."]),
        row("gsm8k-1", -1, problem=problem, steps=[first, "4 + 1 = 5"]),
    ]
    data = save_rows(tmp_path / "rows.jsonl", rows)
    tokenizer = byte_tokenizer(HEADERS, bos="<|begin_of_text|>")
    language = seeded(transformers.LlamaForCausalLM, model_config("llama", tokenizer))
    for part in (language, tokenizer):
        part.save_pretrained(tmp_path / "model")
    words = ["verifier=arithmetic", "model=hf", f"model.name={tmp_path / 'model'}"]
    words += ["processbench.threshold=gsm8k", f"processbench.data={data}"]
    ours = job(tmp_path, *words)["parts"][0]
    wrong, right = (record["scores"] for record in records(tmp_path))
    assert wrong[0] == right[0] > wrong[1] and right[1] > wrong[1]
    assert (ours["wrong"], ours["right"], ours["f1"]) == (1, 1, 1)


def test_a_solution_that_cannot_be_rated_is_missed_and_the_others_are_rated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = MODELS["qwen"]()
    folder = save_folder("qwen", model, tmp_path / "model")
    long = " ".join(map(str, range(600)))
    rows = [row("math-0"), row("math-1", 0, steps=[long]), row("math-2", 1)]
    data = save_rows(tmp_path / "rows.json", rows)
    words = [f"verifier.model={folder}", "verifier.dtype=float32", f"processbench.data={data}"]
    ours = job(tmp_path, *words)["parts"][1]
    assert (ours["samples"], ours["unrated"]) == (3, 1)
    by_id = {r["id"]: r for r in records(tmp_path)}
    assert len(by_id["math-0"]["scores"]) == len(by_id["math-2"]["scores"]) == 3
    assert by_id["math-1"]["scores"] is None and "context of 512" in by_id["math-1"]["error"]
    assert "1 could not be rated" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_and_refuses_another_model(tmp_path: Path) -> None:
    model, _ = MODELS["qwen"]()
    folder = save_folder("qwen", model, tmp_path / "model")
    data = save_rows(tmp_path / "rows.jsonl", [row(f"omnimath-{i}", i - 1) for i in range(4)])
    words = [f"verifier.model={folder}", "verifier.dtype=float32", f"processbench.data={data}"]
    job(tmp_path, *words, "processbench.limit=2")
    before = records(tmp_path)
    job(tmp_path, *words, "processbench.threshold=omnimath")
    assert records(tmp_path)[:2] == before and len(records(tmp_path)) == 4
    head = model.parts[0].head
    with torch.no_grad():
        head[2].bias += 1
    save_folder("qwen", model, tmp_path / "other")
    for file in (tmp_path / "other").iterdir():
        file.replace(tmp_path / "model" / file.name)
    with pytest.raises(InvalidInput, match="the verifier's model"):
        job(tmp_path, *words)


# ---------------------------------------------------------------- files


def test_a_folder_of_the_four_files_is_read_in_their_order(tmp_path: Path) -> None:
    for part in reversed(PARTS):
        save_rows(tmp_path / f"{part}.json", [row(f"{part}-{i}") for i in range(3)])
    samples = load_samples(str(tmp_path), limit=2)
    assert [s.id for s in samples] == [f"{part}-{i}" for part in PARTS for i in range(2)]
    assert samples[0] == LabelledSample("gsm8k-0", "gsm8k", QUESTION, tuple(STEPS), -1)


def test_the_hubs_parquet_files_are_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    (tmp_path / "data").mkdir()
    for part in PARTS:
        rows = pa.Table.from_pylist([row(f"{part}-0", 1)])
        pyarrow.parquet.write_table(rows, tmp_path / "data" / f"{part}-00000-of-00001.parquet")
    assert [s.id for s in load_samples(str(tmp_path))] == [f"{part}-0" for part in PARTS]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": "one text"}, "no list of texts"),
        ({"steps": []}, "no list of texts"),
        ({"label": 3}, "label is 3, no index of its 3 steps"),
        ({"label": True}, "label is True"),
        ({"id": "gsm8k"}, "the id 'gsm8k' is none of gsm8k"),
    ],
)
def test_a_row_of_another_kind_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    data = save_rows(tmp_path / "rows.jsonl", [row("math-7"), row(**changes)])
    with pytest.raises(InvalidInput, match=f"row 2: .*{said}"):
        load_samples(data)


def test_wrong_files_and_settings_are_refused(tmp_path: Path) -> None:
    twice = save_rows(tmp_path / "twice.jsonl", [row(), row()])
    with pytest.raises(InvalidInput, match="two samples are called 'gsm8k-0'"):
        load_samples(twice)
    with pytest.raises(InvalidInput, match="there is no steps"):
        load_samples(save_rows(tmp_path / "a.jsonl", [{"id": "gsm8k-0", "problem": "?"}]))
    with pytest.raises(InvalidInput, match="limit=0 must be at least 1"):
        load_samples(twice, 0)
    with pytest.raises(InvalidInput, match="threshold=half is neither a number nor the part"):
        job(tmp_path, "processbench.threshold=half")
    with pytest.raises(InvalidInput, match="there is no verifier to measure"):
        job(tmp_path, "verifier=none")


# ---------------------------------------------------------------- figures


def test_f1_is_that_of_the_authors_program() -> None:
    """Two of three wrong solutions found, one of two right ones: 2ab / (a + b)."""
    samples = [
        LabelledSample(f"math-{i}", "math", "?", ("a", "b"), label)
        for i, label in enumerate([0, 1, 1, -1, -1])
    ]
    scores = {
        "math-0": [0.2, 0.1],
        "math-1": [0.9, 0.4],
        "math-2": [0.3, 0.4],
        "math-3": [0.9, 0.5],
        "math-4": [0.9, 0.49],
    }
    ours = figures_of("math", samples, scores, 0.5)
    data1 = np.mean([predicted(scores[s.id], 0.5) == s.label for s in samples if s.label != -1])
    data2 = np.mean([predicted(scores[s.id], 0.5) == s.label for s in samples if s.label == -1])
    assert (ours.wrong, ours.right) == (pytest.approx(2 / 3), 0.5) == (data1, data2)
    assert ours.f1 == pytest.approx(2 * data1 * data2 / (data1 + data2))
    assert f1(0, 0) == 0 and figures_of("gsm8k", samples, scores, 0.5).f1 is None


def test_the_interval_holds_f1_and_shrinks_with_samples() -> None:
    few, many = [True, False, True], [True, False, True] * 200
    (low, high), (low_many, high_many) = interval(few, few), interval(many, many)
    assert low < low_many < 2 / 3 < high_many < high and high_many - low_many < 0.08
    low, high = interval([True] * 50, [True] * 50)
    assert 0.9 < low < high <= 1  # nothing is certain


def test_the_best_threshold_is_found_on_one_part() -> None:
    samples = [
        LabelledSample("gsm8k-0", "gsm8k", "?", ("a",), 0),
        LabelledSample("gsm8k-1", "gsm8k", "?", ("a",), -1),
    ]
    scores: dict[str, Any] = {"gsm8k-0": [3.0], "gsm8k-1": [5.0]}
    threshold = best_threshold(samples, scores, "gsm8k")
    assert threshold == 4 and figures_of("gsm8k", samples, scores, threshold).f1 == 1
    with pytest.raises(InvalidInput, match="needs right and wrong solutions of math"):
        best_threshold(samples, scores, "math")


def test_published_rows_stand_beside_and_the_same_model_is_marked() -> None:
    for published in PUBLISHED:
        *parts, mean = published.figures
        assert abs(sum(parts) / 4 - mean) <= 0.051, published.model
    rows = [figures_of(part, [], {}, 0.5) for part in PARTS]
    lines = table("t", rows, "Qwen/Qwen2.5-Math-PRM-7B").lines
    marked = [line for line in lines if "this model" in line[0]]
    assert marked == [["Qwen2.5-Math-PRM-7B <- this model", "82.4", "77.6", "67.5", "66.3", "73.5"]]
    assert lines[0] == ["ours", "-", "-", "-", "-", "-"]
