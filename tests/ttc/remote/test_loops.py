"""A thought that loops on a server."""

from __future__ import annotations

from search import Greedy
from tests.helpers.servers import ServedModel, connected
from tests.helpers.thinking import circling
from tests.search.test_loops import LETTERS, R1, solved


def test_a_server_that_tells_its_tokens_is_cut_at_the_same_place() -> None:
    served = ServedModel(end=R1.eos_token_id)
    served.tokenizer, served.model = R1, circling(LETTERS, R1)
    search = Greedy(thinking_tokens=90, max_tokens=9)
    here = solved(search)
    with connected(served) as backend:
        there = solved(search, backend)
    assert [b.text for b in there.branches] == [b.text for b in here.branches]
    assert {b.thought_closed for b in there.branches} == {"looped"} and there.answer == "7"
    assert there.usage.generated_tokens == 90 + 2  # the server has written all of it
