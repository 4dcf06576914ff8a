"""The main job on a server: the same records as here, and clear words on what does not apply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import experiments.runs.build as build
from experiments.runs.build import make_backend, make_engine
from experiments.runs.problem_loop import run
from tests.helpers.configurations import configuration
from tests.helpers.models import small
from tests.helpers.servers import ServedModel, serving
from tests.helpers.tokenizers import EOS, Ascii
from ttc import Engine, InvalidInput, RemoteBackend

JOB = (
    "dataset.size=3",
    "run.batch=2",
    "search=beam_search",
    "search.beam_size=2",
    "search.beam_width=2",
    "search.step_tokens=6",
    "search.max_steps=2",
    "search.temperature=0",
    "verifier=confidence",
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "load_tokenizer", lambda name, **_: Ascii())


def job(folder: Path, name: str, *more: str) -> dict[str, dict[str, Any]]:
    run(configuration("run", f"run.name={name}", f"run.output_dir={folder}", *JOB, *more))
    records = map(json.loads, (folder / name / "records.jsonl").read_text().splitlines())
    return {record["id"]: record for record in records}


@pytest.mark.slow
def test_a_run_on_a_server_has_the_records_of_a_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    parts = small(context=1024, eos=EOS), Ascii()
    monkeypatch.setattr("experiments.runs.problem_loop.make_backend", lambda config: (
        make_backend(config) if config.backend.get("_target_") else Engine(*parts)
    ))  # fmt: skip
    here = job(tmp_path, "here")
    with serving(ServedModel(key="sesame")) as url:
        remote = ("backend=openai", f"backend.base_url={url}")
        there = job(tmp_path, "there", *remote)
        with serving(ServedModel(key="sesame")) as moved:  # another address may go on with it
            assert job(tmp_path, "there", "backend=openai", f"backend.base_url={moved}") == there
        with pytest.raises(InvalidInput, match=r"backend\.context_length: None -> 200"):
            job(tmp_path, "there", *remote, "backend.context_length=200")
    for name, record in here.items():
        assert [branch["text"] for branch in there[name]["branches"]] == [
            b["text"] for b in record["branches"]
        ]
        assert [branch["score"] for branch in there[name]["branches"]] == pytest.approx(
            [branch["score"] for branch in record["branches"]], abs=1e-4
        )
        assert there[name]["usage"]["generated_tokens"] == record["usage"]["generated_tokens"]
    written = "".join(file.read_text() for file in (tmp_path / "there").iterdir() if file.suffix)
    assert "tiny" in written and "sesame" not in written
    with serving(ServedModel(models=("other",), key="sesame")) as url:
        (tmp_path / "there" / "records.jsonl").write_text(
            json.dumps(next(iter(there.values()))) + "\n"
        )
        with pytest.raises(InvalidInput, match="the model, served: tiny, context None -> other"):
            job(tmp_path, "there", "backend=openai", f"backend.base_url={url}")


@pytest.mark.slow
def test_a_refused_problem_has_its_record_and_is_asked_again_on_demand_alone(
    tmp_path: Path,
) -> None:
    with serving(ServedModel()) as url:
        whole = job(tmp_path, "whole", "backend=openai", f"backend.base_url={url}")
    name, question = next((name, record["question"]) for name, record in whole.items())
    served = ServedModel(touchy={question: lambda handler, body: handler.refuse(400)})
    with serving(served) as url:
        remote = ("backend=openai", f"backend.base_url={url}")
        records = job(tmp_path, "refused", *remote)
        assert "status 400: not like this" in records[name]["error"]
        texts = {
            name: [branch["text"] for branch in record["branches"]]
            for name, record in whole.items()
        }
        for other in whole.keys() - {name}:
            assert records[other]["error"] is None
            assert [branch["text"] for branch in records[other]["branches"]] == texts[other]
        served.requests.clear()
        assert job(tmp_path, "refused", *remote) == records and not served.requests
        served.touchy.clear()
        again = job(tmp_path, "refused", *remote, "run.retry_failed=true")
        assert again[name]["error"] is None
        assert [branch["text"] for branch in again[name]["branches"]] == texts[name]


@pytest.mark.few
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("memory=paged", "memory"),
        ("placement=streamed", "placement"),
        ("cache=lru", "cache"),
        ("sharing=none", "sharing"),
        ("gate=decode", "gate"),
        ("model.dtype=float32", "model.dtype=float32"),
        ("model.device=cpu", "model.device=cpu"),
    ],
)
def test_settings_of_the_local_engine_are_refused(tmp_path: Path, setting: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=f"the server decides about {named}; leave that out"):
        job(tmp_path, "r", "backend=openai", setting)


def test_a_key_is_no_setting(tmp_path: Path) -> None:
    for setting in ("backend.api_key=sk-secret", "+backend.api_key=sk-secret"):
        with pytest.raises(Exception) as raised:
            job(tmp_path, "r", "backend=openai", setting)
        assert "api_key" in str(raised.value) and not (tmp_path / "r").exists()
    with pytest.raises(Exception, match="holds a password, a key or a query") as raised:
        job(tmp_path, "r", "backend=openai", "backend.base_url=http://me:secret@host/v1")
    assert "secret" not in str(raised.value)


@pytest.mark.slow
def test_what_needs_the_model_here_says_so() -> None:
    with pytest.raises(InvalidInput, match="use backend=local"):
        make_engine(configuration("run", "backend=openai"))


def test_a_backend_can_be_made_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ttc.model.loading.load.load_tokenizer", lambda name: Ascii())
    with serving(ServedModel()) as url:
        backend = RemoteBackend.connect(url, tokenizer="tiny", concurrency=2)
        assert (
            backend.server.client.endpoint.concurrency == 2 and backend.capabilities.model == "tiny"
        )
        backend.close()
