"""Whatever a request holds, its answer is a reply or a refusal that names what is wrong, and
nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.runs.schema import SEARCHES
from experiments.server.requests import ChatBody, CompletionBody
from tests.helpers.own_server import Running, running
from tests.helpers.searches import SMALL, small
from tests.helpers.tiers import examples
from ttc.backend import Backend
from ttc.branch import Branch

OFFERED = {name: small(name, SMALL) for name in SEARCHES}
"""All searches, that which is compute-optimal among them."""


class Half:
    """Rates by the length of what was written, from 0 to 1."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        return [[len(branch.generated) / 1000] for branch in branches]


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running(searches=OFFERED, verifier=Half()) as found:
        yield found
        found.wait_until_free()


NUMBERS = st.one_of(
    st.sampled_from([-(10**30), -(2**31), -1, 0, 1, 2, 3, 16, 17, 900, 901, 2**31, 2**63, 10**400]),
    st.sampled_from([-0.5, 0.0, 1e-320, 0.3, 1.0, 1e300, float("inf"), float("nan")]),
)
TEXTS = st.sampled_from(
    ["", " ", "a", "\x00", "\n\n", "abc", "min", "product", "wait", "off", "\u202e", "\ud800", "é"]
)
VALUES = st.one_of(
    NUMBERS,
    NUMBERS,
    TEXTS,
    st.sampled_from([True, False, None, [], {}, [1], ["a", "a"], {"type": "text"}]),
)


def settings_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Settings of a search, some of which it does not have."""
    names = [field.name for field in fields(OFFERED[name])]
    known = st.dictionaries(st.sampled_from([*names, "name", "nothing"]), VALUES, max_size=3)
    return known.map(lambda given: {"name": name} | given)


SEARCHED = st.sampled_from(sorted(OFFERED)).flatmap(settings_of)
CONTENTS = st.one_of(TEXTS, st.just("what is 12 + 3"), VALUES)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", ""]), "content": CONTENTS},
        optional={"name": TEXTS, "x": VALUES},
    ),
    max_size=3,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A path and a body: mostly of the right form, with a few fields of any value."""
    chat = draw(st.booleans())
    kind = ChatBody if chat else CompletionBody
    model = draw(st.sampled_from(["tiny", *(f"tiny+{name}" for name in sorted(OFFERED))]))
    body: dict[str, Any] = {"model": model, "max_tokens": 7, "max_generated_tokens": 60}
    if chat:
        body["messages"] = [{"role": "user", "content": "what is 12 + 3"}]
    else:
        body["prompt"] = "go"
    names = st.sampled_from(sorted({*kind.model_fields, *kind.nothing}))
    body |= draw(st.dictionaries(names, VALUES, max_size=2))
    if draw(st.booleans()):
        body |= {"model": "tiny", "search": draw(SEARCHED)}
    if chat and draw(st.integers(0, 3)) == 0:
        body["messages"] = draw(MESSAGES)
    return ("chat/completions" if chat else "completions"), body


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(asked=requests())
def test_a_request_of_any_values_is_answered_or_refused(
    shared: Running, asked: tuple[str, dict[str, Any]]
) -> None:
    path, body = asked
    reply = httpx2.post(
        f"{shared.url}/v1/{path}",
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    assert reply.status_code in (200, 400, 404), reply.text
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert error["message"] and error["type"]
    elif body.get("stream") is True:
        assert reply.text.endswith("data: [DONE]\n\n") and "server_error" not in reply.text
    else:
        assert reply.json()["choices"]


def test_the_compute_optimal_search_is_asked_too(shared: Running) -> None:
    body = {"model": "tiny+compute_optimal", "prompt": "go", "seed": 1}
    reply = httpx2.post(f"{shared.url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200 and reply.json()["search"]["name"] == "compute_optimal"
