"""Unchanged clients of others over the real model.

TTC_CLIENTS_PYTHON names the python of an environment that has them, where each call is a process of
its own; without it the clients are those of this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from experiments.lab.bench.client_calls import CALLS, Server, outcome
from experiments.lab.bench.clients import called
from tests.helpers.chat_server import serving
from ttc import Engine
from ttc.model.loading.default_model import smollm2_folder

PYTHON = os.environ.get("TTC_CLIENTS_PYTHON")
REFUSED = {"openai completions, echo": "echo="}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Engine.from_pretrained(smollm2_folder()), longest=400) as client:
        yield str(client.base_url).rstrip("/")


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_client_gets_its_answer(url: str, call: str) -> None:
    found = called(PYTHON, url, "m", call) if PYTHON else outcome(Server(url, "m"), call)
    if found["outcome"] == "missing":
        pytest.skip(f"{call.partition(' ')[0]} is not there")
    if call in REFUSED:
        assert found["outcome"] == "refused" and REFUSED[call] in found["reason"]
    else:
        assert found["outcome"] == "passed", found
    if isinstance(found.get("answer"), dict) and call != "instructor JSON":  # any object
        assert 1 <= found["answer"]["rooms"] <= 999 and 1 <= found["answer"]["stars"] <= 5
