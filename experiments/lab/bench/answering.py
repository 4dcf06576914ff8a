"""A server that answers every completion with the same tokens at once, for `scale`: what a request
costs its client is measured, and nothing of a model."""

from __future__ import annotations

import asyncio
import json
import sys


def answer(tokens: int) -> bytes:
    """A whole HTTP answer, as vLLM gives it, with so many tokens."""
    ids = list(range(1, tokens + 1))
    choice = {"index": 0, "text": "", "token_ids": ids, "finish_reason": "length"}
    usage = {"prompt_tokens": 500, "completion_tokens": tokens}
    body = json.dumps({"object": "text_completion", "choices": [choice], "usage": usage}).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def serve(tokens: int) -> None:
    reply = answer(tokens)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next(line for line in lines if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
