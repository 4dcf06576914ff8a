"""A chat as a prompt."""

from __future__ import annotations

import pytest

from search.config import SearchConfig
from search.options import SolveOptions
from tests.helpers.backends import FakeBackend
from tests.helpers.chats import tokenizer
from tests.search.test_prompt_ends import LONG
from ttc import InvalidInput
from ttc.text.conversation import Conversation
from ttc.text.prompt import PromptTemplate

NO_SYSTEM = (
    "{% for m in messages %}{% if m.role != ('user', 'assistant')[loop.index0 % 2] %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.content }}>{% endfor %}"
)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_message_goes_before_the_words_of_the_user(role: str) -> None:
    own = tokenizer((), "bytes", None, "</s>", template=NO_SYSTEM)
    earlier = ({"role": role, "content": "be short"},)
    assert Conversation(earlier=earlier).text("1 + 1?", own) == "<be short\n\n1 + 1?>"
    of_server = Conversation(system="be kind", earlier=earlier)
    assert of_server.text("1 + 1?", own) == "<be short\n\nbe kind\n\n1 + 1?>"


def test_what_stays_refused_names_a_way_out() -> None:
    own = tokenizer((), "bytes", None, "</s>", template=NO_SYSTEM)
    asked = Conversation(earlier=({"role": "assistant", "content": "hello"},))
    with pytest.raises(InvalidInput, match=r"must alternate; send .* in turn, the user's first"):
        asked.text("1 + 1?", own)


def test_who_asks_through_the_server_has_no_other_ends_than_its_own() -> None:
    backend = FakeBackend()
    for template in (Conversation(), PromptTemplate("{question}", raw=True)):
        backend.tokenizer.chat_template = "turns"  # type: ignore[assignment]
        assert SearchConfig.of(LONG, backend, SolveOptions(template=template, end=["x"])).end == (
            "x",
        )
    assert SearchConfig.of(LONG, FakeBackend(), SolveOptions(end=["x"])).end == ("x", "Question:")
