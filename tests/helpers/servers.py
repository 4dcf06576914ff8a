"""A server of completions over a tiny model, by plain Hugging Face, that can be told how to
misbehave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

import torch
from transformers import RepetitionPenaltyLogitsProcessor

from tests.helpers.models import small
from tests.helpers.tokenizers import EOS, Ascii
from ttc import Endpoint, RemoteBackend
from ttc.model.generation_settings import GenerationSettings

Fault = Callable[["Handler", dict[str, Any]], None]


@dataclass
class ServedModel:
    """What the server can do. stop: what becomes of a stop string, "kept", "named", "trimmed" or
    "ignored".

    logprobs: of how many tokens it gives at most. scaled: they follow the temperature. cached: as
    many prompt tokens are said to be known. faults: what it does to completion requests before it
    behaves, from the first on. touchy: what it does, every time, to those whose prompt holds a
    string. end: the token that ends its texts.
    requests: the bodies that came. most: the most requests that were under way at once.
    """

    ids_in: bool = True
    ids_out: bool = True
    extras: bool = True
    logprobs: int = 20
    scaled: bool = False
    seeds: bool = True
    varied: bool = True
    stop: str = "kept"
    echo: bool = True
    chosen: bool = True
    context: int | None = None
    extra_token: int = 0
    cached: int = 0
    key: str | None = None
    pause_s: float = 0.0
    end: int = EOS
    models: tuple[str, ...] = ("tiny",)
    faults: list[Fault] = field(default_factory=list)
    touchy: dict[str, Fault] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0
    _under_way: int = 0
    _unseeded: int = 1000

    def __post_init__(self) -> None:
        self.model, self.tokenizer, self.lock = small(context=1024), Ascii(), Lock()

    def touched(self, body: dict[str, Any]) -> Fault | None:
        prompt = body["prompt"]
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        return next((fault for string, fault in self.touchy.items() if string in text), None)

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Of every place, (tokens, vocab)."""
        logits: torch.Tensor = self.model(torch.tensor([tokens])).logits[0].float()
        return logits

    def complete(self, body: dict[str, Any]) -> dict[str, Any] | int:
        """The answer, or the status of a refusal."""
        prompt = body["prompt"]
        if isinstance(prompt, list) and not self.ids_in:
            return 400
        if (not self.extras and "top_k" in body) or body.get("logprobs", 0) > self.logprobs:
            return 400
        tokens = list(prompt) if isinstance(prompt, list) else self.tokenizer.encode(prompt)
        with self.lock:
            return self.reply(tokens, body)

    def reply(self, tokens: list[int], body: dict[str, Any]) -> dict[str, Any]:
        temperature, texts = body["temperature"], self.tokenizer.decode
        self._unseeded += 1
        seed = (body["seed"] if self.varied else 0) if self.seeds else self._unseeded
        generator = torch.Generator().manual_seed(seed)
        own, rows, ended, stopped_by = list[int](), list[torch.Tensor](), "length", None
        for _ in range(body["max_tokens"]):
            logits = self.logits([*tokens, *own])[-1]
            drawn_by = penalised(logits, [*tokens, *own], body.get("repetition_penalty", 1.0))
            hot = drawn_by / temperature if temperature else drawn_by
            token = (
                torch.multinomial(hot.softmax(-1), 1, generator=generator)
                if temperature
                else drawn_by.argmax()
            )
            own.append(int(token))
            rows.append((hot if self.scaled else logits).log_softmax(-1))
            found = (
                [s for s in body.get("stop", []) if s in texts(own)]
                if self.stop != "ignored"
                else []
            )
            if own[-1] == self.end or found:
                ended, stopped_by = "stop", found[0] if found else None
                break
        text = texts(own, skip_special_tokens=True)
        if stopped_by is not None and not (
            self.stop == "kept" and body.get("include_stop_str_in_output")
        ):
            text = text.partition(stopped_by)[0]
            if self.stop == "trimmed":
                own, rows = own[: len(text)], rows[: len(text)]
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": ended}
        if self.stop in ("kept", "named"):
            choice["stop_reason"] = stopped_by
        if self.ids_out and body.get("return_token_ids"):
            choice["token_ids"] = own
        if self.logprobs and body.get("logprobs"):
            shown, of = own, rows
            if body.get("echo") and self.echo:
                before = list(self.logits(tokens).log_softmax(-1))
                shown, of = [*tokens, *own], [None, *before[:-1], *rows]  # type: ignore[list-item]
            choice["logprobs"] = self._logprobs(shown, of, body)
        usage = {"prompt_tokens": len(tokens) + self.extra_token, "completion_tokens": len(own)}
        if self.cached:
            usage["prompt_tokens_details"] = {"cached_tokens": min(self.cached, len(tokens))}
        return {"choices": [choice], "usage": usage}

    def _logprobs(self, tokens: list[int], rows: list[Any], body: dict[str, Any]) -> dict[str, Any]:
        names = (lambda t: f"token_id:{t}") if body.get("return_tokens_as_token_ids") else chr
        wanted = body.get("logprob_token_ids") if self.chosen else None
        tops = [
            None
            if row is None
            else {
                names(int(t)): float(row[t]) for t in (wanted or row.topk(body["logprobs"]).indices)
            }
            for row in rows
        ]
        values = [
            None if row is None else float(row[t]) for t, row in zip(tokens, rows, strict=True)
        ]
        return {
            "tokens": [names(t) for t in tokens],
            "token_logprobs": values,
            "top_logprobs": tops,
        }


def penalised(logits: torch.Tensor, tokens: list[int], penalty: float) -> torch.Tensor:
    """As vLLM does it: transformers' rule, over prompt and answer."""
    changed: torch.Tensor = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([tokens]), logits[None]
    )[0]
    return changed


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # else an answer's body waits 40 ms for the other side to have its head
    disable_nagle_algorithm = True
    served: ServedModel

    def do_GET(self) -> None:
        about = {} if self.served.context is None else {"max_model_len": self.served.context}
        self.answer({"data": [{"id": name, **about} for name in self.served.models]})

    def do_POST(self) -> None:
        served = self.served
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if not data:
            return  # the client has left
        body = json.loads(data)
        with served.lock:
            served._under_way += 1
            served.most = max(served.most, served._under_way)
            served.requests.append(body)
            fault = served.faults.pop(0) if served.faults else served.touched(body)
        try:
            if (
                served.key is not None
                and self.headers.get("Authorization") != f"Bearer {served.key}"
            ):
                self.refuse(401)
            elif fault is not None:
                fault(self, body)
            else:
                time.sleep(served.pause_s)
                answer = served.complete(body)
                self.refuse(answer) if isinstance(answer, int) else self.answer(answer)
        except BrokenPipeError:
            pass  # the client has left
        finally:
            with served.lock:
                served._under_way -= 1

    def answer(self, data: Any) -> None:
        self.send(200, json.dumps(data).encode())

    def refuse(self, status: int, **headers: str) -> None:
        self.send(status, json.dumps({"error": {"message": "not like this"}}).encode(), **headers)

    def send(self, status: int, data: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)
        if length is not None:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(served: ServedModel) -> Iterator[str]:
    """The address of a server in a thread."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("OneHandler", (Handler,), {"served": served})
    )
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


@contextmanager
def connected(
    served: ServedModel, *, settings: GenerationSettings | None = None, **options: Any
) -> Iterator[RemoteBackend]:
    """A backend over a server that behaves while it is probed; its faults come after that."""
    faults, served.faults = served.faults, []
    with serving(served) as url:
        backend = RemoteBackend(
            Endpoint(url, **({"wait_s": 0.01} | options)), served.tokenizer, settings
        )
        served.faults = faults
        served.requests.clear()
        served.most = 0
        try:
            yield backend
        finally:
            backend.close()
