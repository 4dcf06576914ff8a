"""An answer of a server ends before the next question that the model would invent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from search import solve
from tests.helpers.chains import chain
from tests.helpers.servers import ServedModel, connected
from tests.helpers.tokenizers import Ascii
from tests.search.test_prompt_ends import LONG, PLAIN, WRITES


@contextmanager
def served(**ways: Any) -> Iterator[Any]:
    server = ServedModel(**ways)
    server.model = chain(WRITES, Ascii())
    with connected(server) as backend:
        yield backend


@pytest.mark.few
@pytest.mark.parametrize(
    "ways",
    [{}, {"ids_in": False, "ids_out": False}, {"stop": "ignored"}, {"stop": "trimmed"}],
    ids=str,
)
def test_an_answer_ends_before_the_next_question_on_a_server(ways: dict[str, Any]) -> None:
    with served(**ways) as backend:
        result = solve(LONG, problem="2 + 3?", engine=backend, template=PLAIN, answer_kind="text")
    assert result.best is not None and (result.best.text, result.answer) == (" 5\n", "5")
    assert result.best.finish_reason == "end"
