"""What tests of the server share. All but those of its flags need the packages of a server."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

if not all(map(find_spec, ("starlette", "uvicorn", "openai"))):
    collect_ignore_glob = ["test_serve*.py", "test_conversations.py"]


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """A server with which a module's tests leave nothing behind."""
    from tests.helpers.own_server import running

    with running() as found:
        yield found
        found.wait_until_free()
