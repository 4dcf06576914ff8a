"""A server under 64 clients, a quarter of which misbehave: right texts, and
nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections import Counter
from typing import Any

import openai
import psutil
import pytest

from experiments.server.service import Ticket
from tests.experiments.server.test_serve_faults import BAD, asked
from tests.helpers.own_server import ENDLESS, Running, running, said

SOAK_S = 8
GOOD, ROGUES = 48, 16

REQUESTS: list[dict[str, Any]] = [
    {"model": "tiny", "temperature": 0, "max_tokens": 30},
    {"model": "tiny", "seed": 1, "max_tokens": 25, "n": 3},
    {"model": "tiny+best_of_n", "seed": 2},
    {"model": "tiny+best_of_n", "seed": 3, "extra_body": {"search": {"n": 16}}},
    {"model": "tiny+beam_search", "seed": 4},
    {"model": "tiny+self_consistency", "seed": 5, "temperature": 0.5},
    {"model": "tiny", "seed": 7, "max_tokens": 12, "stop": ["a"]},
]
QUESTIONS = ["go", "what is 12 + 3", "tell me more " * 40]


def whole_texts(reply: Any) -> list[str]:
    return [choice.message.content or "" for choice in reply.choices]


async def ask(client: openai.AsyncOpenAI, body: dict[str, Any], stream: bool) -> list[str]:
    """The texts of a reply."""
    if not stream:
        return whole_texts(await client.chat.completions.create(**body))
    texts = dict.fromkeys(range(body.get("n", 1)), "")
    async for chunk in await client.chat.completions.create(**body, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    return list(texts.values())


class Soak:
    """The clients. seen: how often something happened."""

    def __init__(self, found: Running, expected: dict[tuple[int, str], list[str]]):
        self.port = int(found.url.rpartition(":")[2])
        self.url = f"{found.url}/v1"
        self.expected = expected
        self.until = time.monotonic() + SOAK_S
        self.seen: Counter[str] = Counter()

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url, api_key="unused", max_retries=0, timeout=120)

    async def run(self) -> None:
        clients = [self.good(random.Random(seed)) for seed in range(GOOD)]
        clients += [self.rogue(random.Random(seed)) for seed in range(GOOD, GOOD + ROGUES)]
        await asyncio.gather(*clients)

    async def good(self, chance: random.Random) -> None:
        """Asks again and again, and looks at what it gets."""
        async with self.client() as client:
            while time.monotonic() < self.until:
                place, question = chance.randrange(len(REQUESTS)), chance.choice(QUESTIONS)
                body = REQUESTS[place] | {"messages": said(question)}
                texts = await ask(client, body, chance.random() < 0.5)
                assert texts == self.expected[place, question], (place, question)
                self.seen["right"] += 1

    async def rogue(self, chance: random.Random) -> None:
        """Does what clients should not do."""
        deeds = [self.leave_a_stream, self.leave_at_once, self.half_open, self.garbage, self.wrong]
        while time.monotonic() < self.until:
            deed = chance.choice(deeds)
            await deed(chance)
            self.seen[deed.__name__] += 1

    async def leave_a_stream(self, chance: random.Random) -> None:
        async with self.client() as client:
            search = {"search": {"name": "best_of_n", "n": 16, "max_tokens": 900}}
            body = ENDLESS | {"prompt": chance.choice(QUESTIONS)}
            body |= {"extra_body": search} if chance.random() < 0.5 else {}
            stream = await client.completions.create(**body, stream=True)
            chunks = aiter(stream)
            for _ in range(chance.randrange(5)):
                await anext(chunks, None)
            await stream.close()

    async def leave_at_once(self, chance: random.Random) -> None:
        """Goes while its prompt is computed, or before that."""
        body = b'{"model": "tiny", "n": 8, "prompt": "%s"}' % (b"abc " * 200)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        await self.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body, chance.random())

    async def half_open(self, chance: random.Random) -> None:
        await self.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-", 3 * chance.random()
        )

    async def garbage(self, chance: random.Random) -> None:
        await self.send(chance.randbytes(2000), chance.random())

    async def send(self, data: bytes, seconds: float) -> None:
        """Bytes on a connection that is left open for some time, and broken off then."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(seconds)
        writer.transport.abort()

    async def wrong(self, chance: random.Random) -> None:
        path, body = asked(chance.choice(BAD)[0])
        async with self.client() as client:
            with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
                await client.post(path, body=body, cast_to=object)


@pytest.mark.slow
def test_64_clients_get_right_texts_and_leave_nothing() -> None:
    with running(header_s=60, max_connections=300, pass_s=0.001) as found:
        expected = {
            (place, question): whole_texts(
                found.client().chat.completions.create(**ask, messages=said(question))
            )
            for place, ask in enumerate(REQUESTS)
            for question in QUESTIONS
        }
        process, state = psutil.Process(), found.web.server_state
        gc.collect()
        files = process.num_fds()
        soak = Soak(found, expected)
        asyncio.run(soak.run())
        assert soak.seen["right"] > GOOD and len(soak.seen) == 6, soak.seen
        found.wait_until_free()
        found.wait_until(lambda: not state.connections and not state.tasks)
        driver = found.api.service.main.driver
        assert not driver.busy and not driver.origins and not driver.works and not driver.unseated
        assert not len(driver.admission.batch) and not found.api.service.suspects
        gc.collect()
        assert not len(found.engine.live) and not found.engine.runtime.under_way
        tickets = [thing for thing in gc.get_objects() if type(thing) is Ticket]
        assert len(tickets) <= 1  # the thread's last order holds one
        assert process.num_fds() <= files + 8
        counted = found.api.metrics.registry.get_sample_value
        assert (counted("ttc_requests_total", {"search": "none", "status": "499"}) or 0) > 0
        assert not counted("ttc_requests_total", {"search": "none", "status": "500"})
        assert found.client().completions.create(model="tiny", prompt="go").choices
