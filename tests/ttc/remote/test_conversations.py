"""Conversations that a server's model answers."""

from __future__ import annotations

from search import solve
from tests.helpers.servers import ServedModel, connected
from tests.search.test_conversations import SHORT, TALK


def test_a_server_gets_the_tokens_of_the_prompt_that_the_result_shows() -> None:
    served = ServedModel()
    with connected(served) as backend:
        backend.tokenizer.chat_template = "made by apply_chat_template"
        backend.tokenizer.apply_chat_template = lambda messages, tokenize=True, **_: "".join(
            f"{m['role'][0]}:{m['content']}\n" for m in messages
        )
        result = solve(SHORT, problem=TALK, engine=backend)
        prompt = served.requests[0]["prompt"]
    assert result.prompt == "u:What is 3 + 4?\na:7\nu:And 2 more?\n"
    assert prompt == list(map(ord, result.prompt))
