"""Every causal language model of transformers, small and random, gets its verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

import ttc.model.check.model_check
from experiments.lab.bench import architectures
from experiments.standins import small_models
from tests.helpers.models import FAMILIES
from tests.helpers.tiers import slow
from ttc.model.check.masks import Sight
from ttc.model.running.model_changes import Watch

RECORD = Path("experiments/lab/results/architectures.json")
EXACT = [
    "afmoe",
    "bert",
    "cohere2",
    "gemma3n_text: shared KV",
    "gemma4_unified",
    "hrm_text",
    "jetmoe",
    "kimi_linear",
    "llama4",
    "minimax_m3_vl_text",
    "nemotron",
    "nemotron_h",
    "olmo3",
    "phimoe",
    "qwen2_moe",
    "zamba",
    "zaya",
]
REFUSED = [
    "bloom",
    "cpmant",
    "doge",
    "falcon",
    "gptj",
    "moshi",
    "mpt",
    "recurrent_gemma",
    "roberta",
]


def test_the_sweeps_record_holds_no_wrong_model_and_the_families_known_to_be_exact() -> None:
    verdicts = {row["case"]: row["verdict"] for row in json.loads(RECORD.read_text())["rows"]}
    assert set(verdicts) >= set(FAMILIES) - {"gemma3"} and len(verdicts) > 150
    assert "wrong" not in verdicts.values()
    assert list(verdicts.values()).count("exact") >= 145
    assert [verdict for case, verdict in verdicts.items() if small_models.is_decoder(case)].count(
        "refused"
    ) <= 25
    assert {verdicts[case] for case in (*EXACT, *FAMILIES)} == {"exact"}
    assert {verdicts[case] for case in REFUSED} == {"refused"}


def test_decoders_are_counted_apart_from_encoders() -> None:
    decoders = [
        "llama",
        "gpt2",
        "ctrl",
        "mllama",
        "qwen3_5",
        "gemma3n_text: shared KV",
        "deepseek_v32",
    ]
    others = [
        "bert",
        "roberta",
        "xlm",
        "bart",
        "prophetnet",
        "musicgen",
        "trocr",
        "whisper",
        "reformer",
    ]
    assert all(map(small_models.is_decoder, decoders)) and not any(
        map(small_models.is_decoder, others)
    )
    rows = [{"case": case, "verdict": "exact"} for case in ("llama", "qwen3", "bert")]
    summary = architectures.summary({"rows": [*rows, {"case": "bart", "verdict": "refused"}]})
    assert summary.startswith("decoders: 2 exact, 0 refused,")
    assert "encoders and encoder-decoders: 1 exact, 1 refused," in summary


@pytest.mark.parametrize(("case", "verdict"), [(EXACT[0], "exact"), (REFUSED[-1], "refused")])
def test_a_model_of_the_sweep_gets_its_verdict(case: str, verdict: str) -> None:
    row = architectures.examine(case)
    assert row["verdict"] == verdict, row
    assert ("reason" in row) == (verdict == "refused")


@pytest.mark.slow
def test_no_causal_model_of_transformers_is_accepted_and_wrong() -> None:
    rows = {row["case"]: row for row in architectures.sweep(small_models.cases())}
    assert not [row for row in rows.values() if row["verdict"] == "wrong"]
    assert {rows[case]["verdict"] for case in EXACT} == {"exact"}
    assert {rows[case]["verdict"] for case in REFUSED} == {"refused"}
    if hf.__version__ == json.loads(RECORD.read_text())["machine"]["transformers"]:
        recorded = {row["case"]: row["verdict"] for row in json.loads(RECORD.read_text())["rows"]}
        assert {case: row["verdict"] for case, row in rows.items()} == recorded


@pytest.mark.parametrize("case", ["llama4_text", slow("qwen2_moe"), slow("phimoe")])
def test_without_the_check_of_masks_the_sweep_would_call_a_model_wrong(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ttc.model.check.model_check,
        "check_masks",
        lambda calls, *_: [Sight(call.sliding_window) for call in calls],
    )
    monkeypatch.setattr(ttc.model.check.model_check, "check_windows", lambda *_: None)
    monkeypatch.setattr(ttc.model.check.model_check, "check_function", lambda *_: None)
    row = architectures.examine(case)
    assert row["verdict"] == "wrong" and row["worst_nats"] > 0.1


def test_without_the_check_of_the_caches_windows_the_sweep_would_call_a_model_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ttc.model.check.model_check, "check_windows", lambda *_: None)
    row = architectures.examine("moshi")
    assert row["verdict"] == "wrong" and row["worst_nats"] > 0.1
    assert row["compared_with"] == ["generate", "one run"]


def test_a_model_whose_own_passes_change_it_is_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changed(watch: Watch) -> bool:
        watch.changes += 1
        return False

    monkeypatch.setattr(Watch, "unchanged", changed)
    row = architectures.examine("llama")
    assert row == row | {"verdict": "wrong", "reason": "its own passes count as changes of it"}


def test_an_engine_that_fails_without_a_refusal_is_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("layer")

    monkeypatch.setattr(architectures, "Engine", fail)
    row = architectures.examine("llama")
    assert row["verdict"] == "wrong" and "KeyError" in row["reason"]


@pytest.mark.slow
def test_a_model_that_cannot_be_built_does_not_end_the_sweep() -> None:
    rows = list(architectures.sweep(["no such model", "llama"]))
    assert [row["verdict"] for row in rows] == ["not built", "exact"]
