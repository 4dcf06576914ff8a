"""What clients of OpenAI's protocol send as it is: fields that ask for nothing, log-probabilities,
prompts as tokens, efforts, and searches that are cut off."""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import torch

from experiments.server.logprobs import TokensSoFar, TokenTexts, of_completion, token_bytes
from experiments.server.requests import ChatBody, CompletionBody
from search import BestOfN
from tests.helpers.chat_server import served
from tests.helpers.models import small
from tests.helpers.own_server import ENDLESS, Running, make_engine, running, said, solved_here
from tests.helpers.thinking import TURNS, thinker
from tests.helpers.tokenizers import EOS

# ---------------------------------------------------------------- fields that ask for nothing

DEFAULTS: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "top_k": -1,
    "logprobs": False,
    "min_p": 0.0,
    "top_p": 1.0,
    "n": 1,
    "stop": [],
    "user": "someone",
    "request_id": "7",
    "store": False,
    "metadata": {},
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "response_format": {"type": "text"},
    "prompt_logprobs": None,
    "guided_json": None,
}
DEFAULTS_OF_CHATS = {
    "tool_choice": "auto",
    "top_logprobs": 0,
    "chat_template_kwargs": {"enable_thinking": False},
}
CASES = [
    *(
        ("completions", {name: value})
        for name, value in (CompletionBody.nothing | DEFAULTS).items()
    ),
    *(("chat/completions", {name: value}) for name, value in (ChatBody.nothing | DEFAULTS).items()),
    *(("chat/completions", {name: value}) for name, value in DEFAULTS_OF_CHATS.items()),
]


def test_each_value_that_asks_for_nothing_changes_nothing(shared: Running) -> None:
    prompts: dict[str, Any] = {
        "chat/completions": {"messages": said("go")},
        "completions": {"prompt": "go"},
    }
    asked = {"seed": 1, "max_tokens": 5}
    plain = {path: shared.posted(path, **body, **asked) for path, body in prompts.items()}

    def choices(case: tuple[str, dict[str, Any]]) -> Any:
        path, more = case
        return shared.posted(path, **prompts[path], **asked, **more)["choices"]

    with ThreadPoolExecutor(16) as pool:
        for (path, more), found in zip(CASES, pool.map(choices, CASES), strict=True):
            assert found == plain[path]["choices"], more


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
ASKED = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 5, "temperature": 0}
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "go"}]}]}
TYPED = {"messages": [{"role": "user", "content": "go", "type": "text"}]}
AS_SENT: dict[str, tuple[str, dict[str, Any]]] = {
    # as these clients' sources have it
    "vllm bench serve, openai": (
        "completions",
        STREAMED | {"prompt": "go", "temperature": 0.0, "max_tokens": 5, "logprobs": None},
    ),
    "vllm bench serve, openai-chat": (
        "chat/completions",
        STREAMED | PARTS | {"max_completion_tokens": 5, "ignore_eos": False, "temperature": 0.0},
    ),
    "langchain-openai": ("chat/completions", ASKED | STREAMED | {"temperature": 0.7}),
    "litellm": ("chat/completions", ASKED | {"frequency_penalty": 0, "user": ""}),
    "lm-eval local-completions": (
        "completions",
        {"prompt": [[103, 111], [97, 98, 99]], "stop": ["Question:", "</s>"], "seed": 1234},
    ),
    "lm-eval local-chat-completions": (
        "chat/completions",
        ASKED | TYPED | {"stop": ["Question:"], "seed": 1234},
    ),
}


@pytest.mark.parametrize("client", AS_SENT)
def test_what_clients_send_by_default_is_answered(shared: Running, client: str) -> None:
    path, body = AS_SENT[client]
    reply = httpx2.post(f"{shared.url}/v1/{path}", json={"model": "tiny"} | body, timeout=60)
    assert reply.status_code == 200, reply.text
    if body.get("stream"):
        assert '"usage"' in reply.text and reply.text.endswith("data: [DONE]\n\n")
    else:
        prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [""]
        assert len(reply.json()["choices"]) == len(prompts)


# ---------------------------------------------------------------- unknown fields, and the log


def test_unknown_fields_pass_where_the_server_is_told_so_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "ttc.serve")
    with running() as found:
        ask: dict[str, Any] = {"prompt": "go", "seed": 1, "max_tokens": 5}
        plain = found.posted("completions", **ask)["choices"]
        found.api.ignore_unknown = True
        assert found.posted("completions", **ask, temprature=2, zebra=[1])["choices"] == plain
        assert any("passed over" in m and "temprature, zebra" in m for m in caplog.messages)
        assert found.posted("responses", input="go", max_output_tokens=3, zebra=1)["output"]
        # what is known and not served is refused all the same
        with pytest.raises(openai.BadRequestError, match="min_tokens=3: not offered"):
            found.client().post(
                "/completions", body={"model": "tiny", **ask, "min_tokens": 3}, cast_to=object
            )


def test_the_log_of_a_refused_request_names_the_field_and_not_what_it_holds(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ttc.serve")
    for path, body, field in [
        ("chat/completions", {"messages": said("zebra"), "temprature": 1}, "temprature"),
        ("completions", {"prompt": "zebra", "search": {"name": "best_of_n", "n": 0}}, "search.n"),
        ("responses", {"input": "zebra", "max_output_tokens": "zebra"}, "max_output_tokens"),
    ]:
        caplog.clear()
        httpx2.post(f"{shared.url}/v1/{path}", json={"model": "tiny"} | body, timeout=60)
        shared.wait_until(lambda: any(path in line for line in caplog.messages))  # noqa: B023
        (line,) = [line for line in caplog.messages if f"/v1/{path}" in line]
        assert f"refused for '{field}'" in line and " 400 " in line and "zebra" not in line


# ---------------------------------------------------------------- sampling


def test_a_repetition_penalty_is_that_of_hugging_face(shared: Running) -> None:
    model, prompt = small(context=1024, eos=EOS), "12 + 3 is 15 "
    tokens = torch.tensor([[ord(c) for c in prompt]])
    ends = {"repetition_penalty": 1.7, "eos_token_id": EOS, "pad_token_id": 0}
    out = model.generate(tokens, max_new_tokens=20, do_sample=False, **ends)
    expected = make_engine().decode(out[0, tokens.shape[1] :].tolist())
    ask: dict[str, Any] = {"prompt": prompt, "temperature": 0, "max_tokens": 20}
    reply = shared.posted("completions", **ask, repetition_penalty=1.7)
    assert reply["choices"][0]["text"] == expected
    assert shared.posted("completions", **ask)["choices"][0]["text"] != expected
    right: Any = solved_here(BestOfN(n=3, max_tokens=12, repetition_penalty=1.7), "1")
    penalty: Any = {"extra_body": {"repetition_penalty": 1.7}}
    found = shared.chat("1", "tiny+best_of_n", seed=7, **penalty)
    assert found.choices[0].message.content == right.best.text


def test_prompts_may_be_the_numbers_of_tokens(shared: Running) -> None:
    ask: dict[str, Any] = {"seed": 3, "max_tokens": 9}
    for texts in (["abc"], ["abc", "xyz\x00"]):
        numbers = [[ord(letter) for letter in text] for text in texts]
        whole = shared.complete(texts, **ask, n=2)
        by_tokens = shared.complete(numbers[0] if len(numbers) == 1 else numbers, **ask, n=2)
        assert by_tokens.choices == whole.choices and by_tokens.usage == whole.usage
    (reply,) = shared.complete([97, 98], "tiny+best_of_n", seed=1).choices
    (text,) = shared.complete("ab", "tiny+best_of_n", seed=1).choices
    assert reply.text == text.text
    parts = shared.complete([97, 98, 99], stream=True, **ask)
    (whole_text,) = shared.complete("abc", **ask).choices
    assert "".join(part.choices[0].text for part in parts) == whole_text.text


# ---------------------------------------------------------------- log-probabilities


def model_logprobs(prompt: list[int], generated: list[int]) -> np.ndarray:
    """(tokens, vocab), by plain Hugging Face."""
    with torch.no_grad():
        logits = small(context=1024)(torch.tensor([prompt + generated])).logits[0].double()
    found: np.ndarray = logits.log_softmax(-1)[len(prompt) - 1 : -1].numpy()
    return found


@pytest.mark.parametrize("model", ["tiny", "tiny+best_of_n", "tiny+beam_search"])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_a_chat_are_the_models_own(
    shared: Running, model: str, stream: bool
) -> None:
    """Of the winner's tokens, with the likeliest ones in each place; they do not depend on
    filters, and the texts of the tokens are the answer."""
    ask: Any = {"text": "12 + 3", "model": model, "seed": 5, "top_p": 0.9}
    ask |= {"logprobs": True, "top_logprobs": 3, "max_tokens": 12}
    if stream:
        chunks = list(shared.chat(**ask, stream=True))
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        text = "".join(choice.delta.content or "" for choice in choices)
        told = [t for c in choices if c.logprobs for t in c.logprobs.content or []]
        if model == "tiny":
            assert sum(bool(c.logprobs and c.logprobs.content) for c in choices) > 1
    else:
        choice = shared.chat(**ask).choices[0]
        text, told = choice.message.content, choice.logprobs.content
    assert text == "".join(token.token for token in told) != ""
    assert text.encode() == bytes(byte for token in told for byte in token.bytes)
    prompt = [ord(letter) for letter in "s:be kind\nu:12 + 3\na:"]
    expected = model_logprobs(prompt, [ord(letter) for letter in text])
    for place, token in enumerate(told):
        assert token.logprob == pytest.approx(expected[place, ord(token.token)], abs=1e-4)
        likeliest = np.sort(expected[place])[::-1][:3]
        np.testing.assert_allclose(
            [top.logprob for top in token.top_logprobs], likeliest, atol=1e-4
        )


def test_log_probabilities_of_completions_have_the_older_form(shared: Running) -> None:
    ask: Any = {"prompt": ["abc", "xy"], "n": 2, "seed": 5, "max_tokens": 8}
    plain = shared.complete(**ask)
    for count in (0, 2):
        reply = shared.complete(**ask, logprobs=count)
        assert [c.text for c in reply.choices] == [c.text for c in plain.choices]
        for choice in reply.choices:
            told = choice.logprobs
            assert told is not None and "".join(told.tokens) == choice.text
            assert told.text_offset == list(np.cumsum([0, *map(len, told.tokens)])[:-1])
            for token, logprob, top in zip(
                told.tokens, told.token_logprobs, told.top_logprobs, strict=True
            ):
                assert top[token] == logprob <= 0 and count <= len(top) <= count + 1
                assert logprob <= max(top.values())
    assert plain.choices[0].logprobs is None


def test_a_backend_that_tells_of_no_other_tokens_refuses_them_alone() -> None:
    with served(["The answer is 18."], thinker(TURNS)) as client:
        ask: Any = {"model": "m", "prompt": "go", "max_tokens": 90}
        choice = client.completions.create(**ask, logprobs=0).choices[0]
        assert choice.logprobs is not None and choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens) == choice.text == "The answer is 18."
        with pytest.raises(openai.BadRequestError, match="tells nothing of other tokens") as no:
            client.completions.create(**ask, logprobs=2)
        assert no.value.param == "logprobs"


class Bytes:
    """A byte-level vocabulary as GPT-2's, whose tokens are single bytes; 256 is special."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True, **_: Any) -> str:
        kept = [token for token in tokens if token < 256]
        end = "" if skip_special_tokens or len(kept) == len(tokens) else "<end>"
        return bytes(kept).decode("utf-8", "replace") + end

    def convert_ids_to_tokens(self, token: int) -> str:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        return str(bytes_to_unicode()[token])


class OfBytes:
    tokenizer = Bytes()

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)


@pytest.mark.parametrize("text", ["naïve", "日本 12", "🙂🙂!", "a\x00b", ""])
@pytest.mark.parametrize("cut", [0, 1])
def test_characters_of_several_tokens_are_told_byte_by_byte(text: str, cut: int) -> None:
    """However they come: the bytes are the text's, and a token is told once."""
    raw = text.encode()[: len(text.encode()) - cut]
    tokens = [*raw, 256]
    logprobs = [-0.5] * len(tokens)
    texts = TokenTexts(OfBytes())  # type: ignore[arg-type]
    told = []
    for count in range(1, len(tokens)):
        texts.read_on(TokensSoFar(tokens[:count], logprobs[:count]))
        told += texts.up_to(len(texts.text))
    texts.read_on(TokensSoFar(tokens, logprobs), ended=True)
    told += texts.up_to(len(OfBytes().decode(tokens)) + 1)
    assert bytes(byte for token in told for byte in token.token.bytes or []) == raw
    assert len(told) == len(raw)
    if not cut:
        assert texts.text == text
    assert token_bytes(object(), 3) is None


def test_the_likeliest_tokens_have_names_of_their_own_in_completions() -> None:
    """Parts of characters, and the end, which are no texts."""
    texts = TokenTexts(OfBytes())  # type: ignore[arg-type]
    others = [(0xC3, -0.5), (0xE6, -1.0), (0xF0, -1.5), (256, -2.0), (97, -2.5)]
    texts.read_on(TokensSoFar([0xE6], [-1.0], {0: others}))
    told = of_completion(texts.entries)
    (likeliest,) = told["top_logprobs"]
    assert list(likeliest.items())[::-1] == sorted(likeliest.items(), key=lambda pair: -pair[1])
    assert set(likeliest) == {r"bytes:\xc3", r"bytes:\xe6", r"bytes:\xf0", "<end>", "a"}
    assert likeliest[told["tokens"][0]] == told["token_logprobs"][0] == -1.0


def test_a_token_that_cannot_be_is_told_as_a_number_that_json_has() -> None:
    texts = TokenTexts(OfBytes())  # type: ignore[arg-type]
    texts.read_on(TokensSoFar([97], [-0.5], {3: [(97, -0.5), (98, float("-inf"))]}, start=3))
    ((told,), rows) = texts.entries, [token.shown() for token in texts.entries]
    assert [likely.logprob for likely in told.likeliest] == [-0.5, -9999.0]
    assert "Infinity" not in json.dumps([rows, of_completion(texts.entries)])


# ---------------------------------------------------------------- efforts


@pytest.mark.parametrize("effort", ["minimal", "xhigh"])
def test_an_effort_changes_nothing_for_a_model_that_does_not_think_and_the_log_says_so(
    shared: Running, effort: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ttc.serve")
    ask: dict[str, Any] = {"messages": said("go"), "seed": 1, "max_tokens": 5}
    plain = shared.posted("chat/completions", **ask)["choices"]
    assert shared.posted("chat/completions", **ask, reasoning_effort=effort)["choices"] == plain
    assert f"passed over reasoning_effort={effort}: the model does not think" in caplog.messages
    by_input: dict[str, Any] = {"input": "go", "reasoning": {"effort": effort}}
    assert shared.posted("responses", max_output_tokens=3, **by_input)["output"]


# ---------------------------------------------------------------- what is cut off


def test_a_time_limit_marks_its_answer() -> None:
    with running(pass_s=0.01) as found:
        ask: dict[str, Any] = {"model": "tiny+self_consistency", "seed": 2, "max_wall_s": 0.3}
        ask |= {"search": {"n": 3, "max_tokens": 900}}
        reply = found.posted("completions", prompt="go", **ask)
        assert reply["choices"][0]["finish_reason"] == "length" and reply["choices"][0]["text"]
        assert reply["search"]["stopped"] == "max_wall_s"
        response = found.posted("responses", input="go", **ask)
        assert response["status"] == "incomplete" and response["search"]["stopped"] == "max_wall_s"


@pytest.mark.parametrize("stream", [False, True])
def test_when_the_server_ends_searches_answer_with_what_they_have(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The plain model's requests are refused, as a client may ask another server."""
    caplog.set_level(logging.INFO, "ttc.serve")
    search = {"name": "self_consistency", "n": 2, "max_tokens": 900}
    body: dict[str, Any] = {"model": "tiny", "prompt": "abc", "search": search, "seed": 1}
    with running(shutdown_s=0, pass_s=0.003) as found, ThreadPoolExecutor(2) as pool:
        url = f"{found.url}/v1/completions"
        asked = pool.submit(httpx2.post, url, json=body | {"stream": stream}, timeout=300)
        plain = pool.submit(httpx2.post, url, json=ENDLESS, timeout=300)
        found.wait_until(lambda: found.api.service.decoding >= 3)
        found.wait_until(
            lambda: all(len(t.written) or not t.follow for t in found.api.service.open)
        )
        threading.Event().wait(0.1)  # some tokens
        found.web.should_exit = True
        reply = asked.result(300)
        assert reply.status_code == 200, reply.text
        if stream:
            events = [json.loads(line[6:]) for line in reply.text.splitlines() if "data: {" in line]
            assert reply.text.endswith("data: [DONE]\n\n")
            text = "".join(event["choices"][0]["text"] for event in events)
            (reason, stopped) = events[-1]["choices"][0]["finish_reason"], events[-1]["search"]
        else:
            (choice,) = reply.json()["choices"]
            text, reason, stopped = choice["text"], choice["finish_reason"], reply.json()["search"]
        assert text and (reason, stopped["stopped"]) == ("length", "cancelled")
        refused = plain.result(300)
        assert refused.status_code == 503 and "the server is stopping" in refused.text
    (line,) = [line for line in caplog.messages if line.startswith("stopping")]
    assert "2 problems waiting or under way" in line
    assert "1 of tiny+self_consistency" in line and re.search(r"1 of tiny[,)]", line)
    assert any("breaking off 2 problems" in line for line in caplog.messages)


def test_a_server_without_work_says_that_it_stops(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ttc.serve")
    with running() as found:
        found.web.handle_exit(signal.SIGTERM, None)
        found.thread.join(200)
    assert "stopping: nothing is under way" in caplog.messages
