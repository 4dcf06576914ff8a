"""/health answers while the server handles a prompt of 55 kB that is hard for obvious patterns."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

import verifiers
from tests.helpers.own_server import running
from tests.helpers.parts import installed
from tests.helpers.tiers import some_quick
from tests.helpers.tokenizers import Chatting

LENGTH = 55_000
HELD_S = 15
"""A pattern that is quadratic in such a text holds the server's thread for 80 s and more."""

CASES: list[tuple[Any, str]] = [(verifiers.ArithmeticVerifier(), "1 + 1 = ")]
if installed("grader", "code"):
    PROGRAMS = ("assert f(1) == ", "assert f(", "f(1) -> ", ">>> f(1)\n", "f( ", "```python\n")
    CASES = [*((verifiers.ExecutionVerifier(), loop) for loop in PROGRAMS), *CASES]


class Cut(Chatting):
    """The model reads the beginning of a text, the verifier all of it."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(super().encode(text[:200], **options))


@pytest.mark.parametrize(("verifier", "loop"), some_quick(CASES, CASES[:1]))
def test_health_answers_while_a_looping_prompt_is_handled(verifier: Any, loop: str) -> None:
    text = loop * (LENGTH // len(loop))
    with running(verifier=verifier) as found, ThreadPoolExecutor(1) as client:
        found.engine.tokenizer = Cut()
        found.api.max_body_bytes = 2 * LENGTH
        asked = client.submit(
            found.client().chat.completions.create,
            model="tiny+best_of_n",
            messages=[{"role": "user", "content": text}],
        )
        while not asked.done():
            begin = time.monotonic()
            assert httpx2.get(f"{found.url}/health", timeout=60).status_code == 200
            assert time.monotonic() - begin < HELD_S
        assert asked.result(timeout=60).choices
