"""Tools are told where no system can speak."""

from __future__ import annotations

import pytest

from tests.helpers.chats import tokenizer
from tests.ttc.text.test_roles import ASSISTANT, TEMPLATES
from ttc import Tools
from ttc.text.prompt import PromptTemplate
from ttc.tools.chat import ToolChat


@pytest.mark.parametrize("name", ["no system", "system left out", "roles in turn, no system"])
def test_tools_are_told_where_no_system_can_speak(name: str) -> None:
    own = tokenizer((), "bytes", None, "</s>", template=TEMPLATES[name] + ASSISTANT)
    schema = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    for system in (None, "Be brief."):
        told = ToolChat.of(Tools([schema]), PromptTemplate("{question}", system=system), own)
        text = told.template.text("Wet?", own)
        assert text.count('"name": "weather"') == text.count("Wet?") == 1
        assert text.startswith("<user>") and (system or "") in text
        after = told.after(told.calls('<tool_call>{"name": "weather"}</tool_call>'), ["dry"], "")
        assert after.count("dry") == 1 and after.endswith("<assistant>")
