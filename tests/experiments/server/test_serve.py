"""The server, by real HTTP on this machine: what clients get, alone and in a crowd."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import torch

from search import BestOfN, SelfConsistency
from tests.helpers.models import small
from tests.helpers.own_server import SEARCHES, Running, running, said, solved_here
from tests.helpers.tokenizers import EOS, Chatting
from ttc.text.prompt import PromptTemplate

PROMPT = "s:be kind\nu:12 + 3\na:"


# ---------------------------------------------------------------- answers


def test_the_plain_model_at_temperature_0_writes_what_hugging_face_does(shared: Running) -> None:
    model, tokens = small(context=1024), torch.tensor([[ord(c) for c in PROMPT]])
    ends = {"eos_token_id": EOS, "pad_token_id": 0}
    out = model.generate(tokens, max_new_tokens=20, do_sample=False, **ends)
    expected = Chatting().decode(out[0, tokens.shape[1] :].tolist(), skip_special_tokens=True)
    reply = shared.chat("12 + 3", temperature=0, max_tokens=20)
    assert reply.choices[0].message.content == expected
    raw = shared.complete(PROMPT, temperature=0, max_tokens=20)
    assert raw.choices[0].text == expected and raw.usage.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("name", ["best_of_n", "beam_search"])
def test_a_search_answers_as_the_library_does_and_says_what_it_cost(
    shared: Running, name: str
) -> None:
    right: Any = solved_here(SEARCHES[name], "12 + 3")
    by_name = shared.chat("12 + 3", f"tiny+{name}", seed=7)
    by_field = shared.chat("12 + 3", seed=7, extra_body={"search": name})
    for reply in (by_name, by_field):
        assert reply.choices[0].message.content == right.best.text
        usage, search = reply.usage.to_dict(), reply.model_extra["search"]
        assert usage["completion_tokens"] == right.usage.generated_tokens
        assert usage["verifier_tokens"] == right.usage.verifier_tokens > 0
        thought = right.usage.generated_tokens - len(right.best.generated)
        assert usage["completion_tokens_details"]["reasoning_tokens"] == thought
        assert (search["name"], search["seed"], search["score"]) == (name, 7, right.best.score)
        assert (search["nodes"], search["branches"]) == (len(right.tree), len(right.branches))


def test_a_search_takes_settings_and_a_budget_from_the_request(shared: Running) -> None:
    limits: Any = {"search": {"n": 5, "max_tokens": 6}, "max_generated_tokens": 20}
    reply = shared.chat("1", "tiny+best_of_n", seed=1, top_p=0.9, extra_body=limits)
    search = BestOfN(n=5, max_tokens=6, top_p=0.9)
    right: Any = solved_here(search, "1", seed=1, max_generated_tokens=20)
    assert right.stopped == reply.model_extra["search"]["stopped"] == "max_generated_tokens"
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == (right.best.text, "length")


@pytest.mark.slow
def test_a_seed_fixes_the_answer_and_without_one_answers_differ(shared: Running) -> None:
    def ask(**options: Any) -> tuple[str, int]:
        reply = shared.complete("abc", max_tokens=30, **options)
        return reply.choices[0].text, reply.model_extra["search"]["seed"]

    assert ask(seed=5) == ask(seed=5) != ask(seed=6)
    text, seed = ask()
    assert ask()[0] != text and ask(seed=seed)[0] == text  # the seed that was chosen is told


def test_samples_and_prompts_are_choices_in_order(shared: Running) -> None:
    reply = shared.complete(["abc", "xyz"], n=2, seed=3, max_tokens=9)
    search = SelfConsistency(n=2, max_tokens=9, temperature=1.0)
    raw: Any = {"template": PromptTemplate("{question}", raw=True), "seed": 3, "verifier": None}
    expected = [b for prompt in ("abc", "xyz") for b in solved_here(search, prompt, **raw).branches]
    assert [choice.text for choice in reply.choices] == [branch.text for branch in expected]


def test_samples_that_a_limit_left_out_are_empty_choices_in_their_places(shared: Running) -> None:
    ask: Any = {"n": 2, "seed": 3, "max_tokens": 9}
    limited: Any = ask | {"extra_body": {"max_generated_tokens": 9}}
    whole = shared.complete(["abc", "xyz"], **ask)
    cut = shared.complete(["abc", "xyz"], **limited)
    assert [choice.index for choice in cut.choices] == [0, 1, 2, 3]
    for choice, full in zip(cut.choices, whole.choices, strict=True):
        assert full.text.startswith(choice.text)
    assert [choice.text for choice in cut.choices].count("") == 2
    assert cut.model_extra["search"]["stopped"] is not None
    chunks = list(shared.complete("abc", stream=True, **limited))
    ended = {c.choices[0].index: c.choices[0].finish_reason for c in chunks if c.choices}
    assert ended == {0: "length", 1: "length"}


def test_a_stop_string_ends_an_answer_and_is_left_out(shared: Running) -> None:
    """With its tokens."""
    ask: Any = {"prompt": "abc", "temperature": 0, "max_tokens": 40, "logprobs": 1}
    whole = shared.complete(**ask).choices[0]
    stop = whole.text[10:12]
    cut = shared.complete(**ask, stop=stop).choices[0]
    assert (whole.finish_reason, cut.finish_reason) == ("length", "stop")
    assert cut.text == whole.text[: whole.text.index(stop)] == "".join(cut.logprobs.tokens)
    parts = list(shared.complete(**ask, stop=[stop, "never"], stream=True))
    assert "".join(part.choices[0].text for part in parts) == cut.text
    told = [t for part in parts if (of := part.choices[0].logprobs) for t in of.tokens]
    assert told == cut.logprobs.tokens


# ---------------------------------------------------------------- streams


def test_a_stream_gives_the_same_text_in_pieces_and_then_the_usage(shared: Running) -> None:
    ask: Any = {"text": "go", "seed": 4, "max_tokens": 200, "n": 2}
    whole = shared.chat(**ask)
    chunks = list(shared.chat(**ask, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        pieces = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert len(pieces) > 5 and pieces[0].delta.role == "assistant"
        ends = [piece.finish_reason for piece in pieces if piece.finish_reason]
        assert ends == [choice.finish_reason]
    assert not chunks[-1].choices and chunks[-1].usage == whole.usage


def test_the_stream_of_a_search_tells_its_progress_in_chunks_without_text() -> None:
    with running(pass_s=0.01) as found:
        whole = found.chat("go", "tiny+beam_search", seed=4)
        chunks = list(found.chat("go", "tiny+beam_search", seed=4, stream=True))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        assert text == whole.choices[0].message.content
        told = [c.model_extra["progress"] for c in chunks if "progress" in (c.model_extra or {})]
        assert {"expanded", "rated"} <= {progress["did"] for progress in told}
        spent = [progress["generated_tokens"] for progress in told]
        assert 0 < spent[0] <= spent[-1] <= whole.usage.completion_tokens
        assert chunks[-1].model_extra["search"] == whole.model_extra["search"]
        parts = list(found.complete("go", "tiny+beam_search", seed=4, stream=True))
        assert any("progress" in (part.model_extra or {}) for part in parts)
        assert all(part.choices[0].text is not None for part in parts)


def test_models_health_and_metrics_can_be_asked_for(shared: Running) -> None:
    names = [model.id for model in shared.client().models.list()]
    assert names == ["tiny", *(f"tiny+{name}" for name in SEARCHES)]
    assert shared.client().models.retrieve("tiny+beam_search").id == "tiny+beam_search"
    assert httpx2.get(f"{shared.url}/health").json() == {"status": "ok", "model": "tiny"}
    shared.complete("go", "tiny+best_of_n", seed=1)
    shared.wait_until_free()
    lines = httpx2.get(f"{shared.url}/metrics").text.splitlines()
    counts = {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }
    for name in ("kv_bytes", "problems_open", "branches_decoding"):
        assert counts[f"ttc_{name}"] == 0
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
