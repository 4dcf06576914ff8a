"""Models that think, on a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.thinking import QWEN3, save_qwen3, save_smollm2
from ttc import Engine


@pytest.mark.parametrize("kind", ["qwen3", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_a_thinking_model_on_the_server(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    openai = pytest.importorskip("openai")
    from tests.experiments.server.test_serve_thoughts import GO
    from tests.helpers.chat_server import serving

    template = QWEN3 if kind == "qwen3" else None
    folder = save_qwen3(tmp_path / "model", QWEN3) if template else save_smollm2(tmp_path / "model")
    engine = Engine.from_pretrained(folder, dtype="float32")
    with serving(engine) as client:
        asked: dict[str, Any] = {"model": "m", "messages": GO, "seed": 1, "max_tokens": 8}

        def reply(**options: Any) -> Any:
            return client.chat.completions.create(**asked, extra_body=options)

        budgeted = reply(thinking_token_budget=6)
        message = budgeted.choices[0].message
        if kind == "smollm2":  # the prompt begins the thought
            assert message.reasoning_content and message.content.startswith("\n\nFinal Answer:")
            assert budgeted.usage.completion_tokens_details.reasoning_tokens == 6
            assert budgeted.usage.completion_tokens <= 14
            within = reply()  # max_tokens counts thoughts too
            assert within.choices[0].message.content is None
            assert within.usage.completion_tokens_details.reasoning_tokens == 8
        else:
            off = reply(reasoning_effort="none")
            assert getattr(off.choices[0].message, "reasoning_content", None) is None
            with pytest.raises(openai.BadRequestError, match="reasoning_effort='high' is not"):
                reply(reasoning_effort="high")
            with pytest.raises(openai.BadRequestError, match="thinking_token_budget=201"):
                reply(thinking_token_budget=201)
