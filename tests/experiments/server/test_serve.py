"""The server, by real HTTP on this machine: what clients get, alone and in a crowd."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import torch

from search import BestOfN, SelfConsistency, solve
from tests.helpers.models import small
from tests.helpers.own_server import SEARCHES, Asks, Running, make_engine, running, said
from tests.helpers.tokenizers import EOS, Chatting
from ttc.text.conversation import Conversation
from ttc.text.prompt import PromptTemplate

PROMPT = "s:be kind\nu:12 + 3\na:"


# ---------------------------------------------------------------- answers


def test_the_plain_model_at_temperature_0_writes_what_hugging_face_does(shared: Running) -> None:
    model, tokens = small(context=1024), torch.tensor([[ord(c) for c in PROMPT]])
    out = model.generate(
        tokens, max_new_tokens=20, do_sample=False, eos_token_id=EOS, pad_token_id=0
    )
    expected = Chatting().decode(out[0, tokens.shape[1] :].tolist(), skip_special_tokens=True)
    reply = shared.client().chat.completions.create(
        model="tiny", messages=said("12 + 3"), temperature=0, max_tokens=20
    )
    assert reply.choices[0].message.content == expected
    raw = shared.client().completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=20
    )
    assert raw.choices[0].text == expected
    assert raw.usage is not None and raw.usage.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("name", ["best_of_n", "beam_search"])
def test_a_search_answers_as_the_library_does_and_says_what_it_cost(
    shared: Running, name: str
) -> None:
    template = Conversation(earlier=({"role": "system", "content": "be kind"},))
    right = solve(
        SEARCHES[name],
        problem="12 + 3",
        engine=make_engine(),
        verifier=Asks(),
        seed=7,
        template=template,
    )
    by_name = shared.client().chat.completions.create(
        model=f"tiny+{name}", messages=said("12 + 3"), seed=7
    )
    by_field = shared.client().chat.completions.create(
        model="tiny", messages=said("12 + 3"), seed=7, extra_body={"search": name}
    )
    assert right.best is not None
    for reply in (by_name, by_field):
        assert reply.choices[0].message.content == right.best.text
        assert reply.usage is not None and reply.model_extra is not None
        usage, search = reply.usage.to_dict(), reply.model_extra["search"]
        assert usage["completion_tokens"] == right.usage.generated_tokens
        assert usage["verifier_tokens"] == right.usage.verifier_tokens > 0
        details: Any = usage["completion_tokens_details"]
        assert details["reasoning_tokens"] == right.usage.generated_tokens - len(
            right.best.generated
        )
        assert (search["name"], search["seed"], search["score"]) == (name, 7, right.best.score)
        assert (search["nodes"], search["branches"]) == (len(right.tree), len(right.branches))


def test_a_search_takes_settings_and_a_budget_from_the_request(shared: Running) -> None:
    reply = shared.client().chat.completions.create(
        model="tiny+best_of_n",
        messages=said("1"),
        seed=1,
        top_p=0.9,
        extra_body={"search": {"n": 5, "max_tokens": 6}, "max_generated_tokens": 20},
    )
    search = BestOfN(n=5, max_tokens=6, top_p=0.9)
    template = Conversation(earlier=({"role": "system", "content": "be kind"},))
    options: Any = {"verifier": Asks(), "seed": 1, "template": template, "max_generated_tokens": 20}
    right = solve(search, problem="1", engine=make_engine(), **options)
    assert right.best is not None and right.stopped == "max_generated_tokens"
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == (right.best.text, "length")
    assert (reply.model_extra or {})["search"]["stopped"] == "max_generated_tokens"


@pytest.mark.slow
def test_a_seed_fixes_the_answer_and_without_one_answers_differ(shared: Running) -> None:
    def ask(**options: Any) -> tuple[str, int]:
        reply = shared.client().completions.create(
            model="tiny", prompt="abc", max_tokens=30, **options
        )
        return reply.choices[0].text, (reply.model_extra or {})["search"]["seed"]

    assert ask(seed=5) == ask(seed=5) != ask(seed=6)
    text, seed = ask()
    assert ask()[0] != text and ask(seed=seed)[0] == text  # the seed that was chosen is told


def test_samples_and_prompts_are_choices_in_order(shared: Running) -> None:
    reply = shared.client().completions.create(
        model="tiny", prompt=["abc", "xyz"], n=2, seed=3, max_tokens=9
    )
    expected = []
    for prompt in ("abc", "xyz"):
        search, template = (
            SelfConsistency(n=2, max_tokens=9, temperature=1.0),
            PromptTemplate("{question}", raw=True),
        )
        expected += solve(
            search, problem=prompt, engine=make_engine(), seed=3, template=template
        ).branches
    assert [choice.text for choice in reply.choices] == [branch.text for branch in expected]


def test_samples_that_a_limit_left_out_are_empty_choices_in_their_places(shared: Running) -> None:
    ask: Any = {"model": "tiny", "n": 2, "seed": 3, "max_tokens": 9}
    limited: Any = {"extra_body": {"max_generated_tokens": 9}}
    client = shared.client()
    whole = client.completions.create(**ask, prompt=["abc", "xyz"])
    cut = client.completions.create(**ask, prompt=["abc", "xyz"], **limited)
    assert [choice.index for choice in cut.choices] == [0, 1, 2, 3]
    for choice, full in zip(cut.choices, whole.choices, strict=True):
        assert full.text.startswith(choice.text)
    assert [choice.text for choice in cut.choices].count("") == 2
    assert cut.model_extra is not None and cut.model_extra["search"]["stopped"] is not None
    chunks = list(client.completions.create(**ask, prompt="abc", stream=True, **limited))
    ended = {c.choices[0].index: c.choices[0].finish_reason for c in chunks if c.choices}
    assert ended == {0: "length", 1: "length"}


def test_a_stop_string_ends_an_answer_and_is_left_out(shared: Running) -> None:
    ask: Any = {"model": "tiny", "prompt": "abc", "temperature": 0, "max_tokens": 40}
    whole = shared.client().completions.create(**ask).choices[0]
    stop = whole.text[10:12]
    cut = shared.client().completions.create(**ask, stop=stop).choices[0]
    assert (whole.finish_reason, cut.finish_reason) == ("length", "stop")
    assert cut.text == whole.text[: whole.text.index(stop)]
    parts = shared.client().completions.create(**ask, stop=[stop, "never"], stream=True)
    assert "".join(part.choices[0].text for part in parts) == cut.text


# ---------------------------------------------------------------- streams


def test_a_stream_gives_the_same_text_in_pieces_and_then_the_usage(shared: Running) -> None:
    ask: Any = {"model": "tiny", "messages": said("go"), "seed": 4, "max_tokens": 200, "n": 2}
    whole = shared.client().chat.completions.create(**ask)
    chunks = list(
        shared.client().chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        )
    )
    for choice in whole.choices:
        pieces = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert len(pieces) > 5 and pieces[0].delta.role == "assistant"
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [
            choice.finish_reason
        ]
    assert not chunks[-1].choices and chunks[-1].usage == whole.usage


def test_the_stream_of_a_search_tells_its_progress_in_chunks_without_text() -> None:
    body: Any = {"model": "tiny+beam_search", "messages": said("go"), "seed": 4}
    with running(pass_s=0.01) as found:
        whole = found.client().chat.completions.create(**body)
        chunks = list(found.client().chat.completions.create(**body, stream=True))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        assert text == whole.choices[0].message.content
        told = [c.model_extra["progress"] for c in chunks if "progress" in (c.model_extra or {})]
        assert {"expanded", "rated"} <= {progress["did"] for progress in told}
        spent = [progress["generated_tokens"] for progress in told]
        assert whole.usage is not None and whole.model_extra is not None
        assert 0 < spent[0] <= spent[-1] <= whole.usage.completion_tokens
        assert chunks[-1].model_extra is not None
        assert chunks[-1].model_extra["search"] == whole.model_extra["search"]
        prompts = body | {"prompt": "go"}
        del prompts["messages"]
        parts = list(found.client().completions.create(**prompts, stream=True))
        assert any("progress" in (part.model_extra or {}) for part in parts)
        assert all(part.choices[0].text is not None for part in parts)


def test_models_health_and_metrics_can_be_asked_for(shared: Running) -> None:
    names = [model.id for model in shared.client().models.list()]
    assert names == ["tiny", *(f"tiny+{name}" for name in SEARCHES)]
    assert shared.client().models.retrieve("tiny+beam_search").id == "tiny+beam_search"
    assert httpx2.get(f"{shared.url}/health").json() == {"status": "ok", "model": "tiny"}
    shared.client().completions.create(model="tiny+best_of_n", prompt="go", seed=1)
    shared.wait_until_free()
    lines = httpx2.get(f"{shared.url}/metrics").text.splitlines()
    counts = {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }
    assert (
        counts["ttc_kv_bytes"]
        == counts["ttc_problems_open"]
        == counts["ttc_branches_decoding"]
        == 0
    )
    assert counts['ttc_requests_total{search="best_of_n",status="200"}'] >= 1
    for kind in ("generated", "verifier", "prompt"):
        assert counts[f'ttc_tokens_total{{kind="{kind}",search="best_of_n"}}'] > 0


def test_replies_have_the_fields_of_the_protocol_that_hold_nothing(shared: Running) -> None:
    ask: dict[str, Any] = {"model": "tiny", "max_tokens": 3, "seed": 1}
    bodies = {"chat/completions": {"messages": said("go")}, "completions": {"prompt": "go"}}
    for path, body in bodies.items():
        url = f"{shared.url}/v1/{path}"
        (choice,) = httpx2.post(url, json=ask | body, timeout=60).json()["choices"]
        assert choice["logprobs"] is None
        assert "message" not in choice or choice["message"]["refusal"] is None
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        lines = httpx2.post(url, json=ask | body | streamed, timeout=60).text.splitlines()
        *chunks, last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert last["usage"]["completion_tokens"] and {chunk["usage"] for chunk in chunks} == {None}
