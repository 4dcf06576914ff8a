"""Who asks through the server has no other ends than its own."""

from __future__ import annotations

from experiments.server.conversation import Conversation
from search.config import SearchConfig
from search.options import SolveOptions
from tests.helpers.backends import FakeBackend
from tests.search.test_prompt_ends import LONG
from ttc.text.prompt import PromptTemplate


def test_who_asks_through_the_server_has_no_other_ends_than_its_own() -> None:
    backend = FakeBackend()
    for template in (Conversation(), PromptTemplate("{question}", raw=True)):
        backend.tokenizer.chat_template = "turns"  # type: ignore[assignment]
        assert SearchConfig.of(LONG, backend, SolveOptions(template=template, end=["x"])).end == (
            "x",
        )
    assert SearchConfig.of(LONG, FakeBackend(), SolveOptions(end=["x"])).end == ("x", "Question:")
