"""A chat as a prompt, where the model's chat template refuses it."""

from __future__ import annotations

import pytest

from experiments.serve.conversation import Conversation
from tests.helpers.chats import tokenizer
from ttc import InvalidInput

NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


def test_the_way_out_is_none_that_was_taken_already() -> None:
    own = tokenizer((), "bytes", None, "</s>", template=NO_SYSTEM)
    asked = Conversation(earlier=({"role": "system", "content": "be short"},))
    way_out = "no system role; leave the system message and tools"
    with pytest.raises(InvalidInput, match=way_out):
        asked.text("1 + 1?", own)
    assert Conversation().way_out.startswith("send a system message first, if any")
