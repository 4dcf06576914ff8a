"""Objects through clients of others, each in a process of its own over the real model: openai's
parse, instructor and LangChain.

TTC_CLIENTS_PYTHON names the python of an environment that has them; without it this one's is asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")

from tests.helpers.chat_server import serving
from tests.helpers.schema_clients import CLIENTS
from ttc import Engine
from ttc.model.loading.default_model import smollm2_folder

PYTHON = os.environ.get("TTC_CLIENTS_PYTHON", sys.executable)
PROGRAM = Path(__file__).parents[2] / "helpers" / "schema_clients.py"
PACKAGES = {"openai": "openai", "instructor": "instructor", "langchain": "langchain_openai"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Engine.from_pretrained(smollm2_folder()), longest=400) as client:
        yield str(client.base_url)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_gets_its_object(url: str, client: str) -> None:
    package = PACKAGES[client.partition(".")[0]]
    words = [PYTHON, "-c", f"import {package}"]
    asked = subprocess.run(words, capture_output=True, timeout=300)
    if asked.returncode:
        pytest.skip(f"{package} is not there")
    words = [PYTHON, str(PROGRAM), url, "m", client]
    said = subprocess.run(words, capture_output=True, text=True, timeout=500, cwd="/")
    assert said.returncode == 0, said.stderr[-2000:]
    found = json.loads(said.stdout)
    if client == "instructor.JSON":  # which asks for any object
        assert isinstance(found, dict)
    else:
        assert 1 <= found["rooms"] <= 999 and 1 <= found["stars"] <= 5
