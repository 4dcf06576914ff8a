"""A conversation over HTTP is the one that Python sends."""

from __future__ import annotations

import json

from experiments.server.prepare import Preparer
from experiments.server.requests import ChatBody, read
from search import solve
from search.options import SolveOptions
from tests.search.test_conversations import CALLED, SHORT, WITH_SYSTEM, engine
from ttc.text.conversation import read_messages
from ttc.text.roles import as_text


def test_the_server_and_python_send_the_same_and_draw_the_same() -> None:
    local = engine(context=1024)
    for talk in (WITH_SYSTEM, CALLED):
        body = json.dumps({"model": "m", "messages": talk, "seed": 7}).encode()
        prepared = Preparer(local, SolveOptions()).prepare(read(ChatBody, body), "greedy", SHORT)
        ((problem, config),) = prepared.problems
        here = solve(SHORT, problem=talk, engine=local, seed=7)
        assert config.template.text(problem.question, local.tokenizer) == here.prompt
        assert config.template.question_text(problem.question) == as_text(
            read_messages(talk, "talk")
        )
        assert config.seed_of(problem) == config.seed_of(here.problem)
