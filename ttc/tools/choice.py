"""Which format a model writes its calls in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ttc.errors import InvalidInput
from ttc.text.chat import template_text
from ttc.tools.base import Tools
from ttc.tools.formats import BY_NAME, HERMES, ResponseTemplate, ToolFormat
from ttc.tools.learning import learn

SIGNS = {
    "<|python_tag|>": "llama",  # Llama 3.1 to 3.3
    "List of tools: ": "lfm2",  # LFM2 and LFM2.5
    "<|tool_call|>": "granite3",  # Granite 3.0 to 3.3
    "<tool_call>": "hermes",  # templates that tell of Hermes' words and write no calls
}
"""What chat templates hold whose models write in this format, for templates that
write no call from which it could be learned."""

CHANNELS = ("<|channel|>", "<|call|>")
"""What gpt-oss' chat template holds. Its models write a call's header in more than one order."""


def format_of(
    tools: Tools, tokenizer: Any, options: Mapping[str, Any], described: bool = False
) -> ToolFormat:
    """The format of `tools`. "auto": by the tokenizer's `response_template`, else as the chat
    template writes calls (`ttc.tools.learning`), else by a sign of it. Templates that know no
    tools get Hermes' and Qwen's.

    options: what else the chat template takes. described: whether the template
    tells the model of tools.
    Raises InvalidInput for a chat template that tells of tools and does not show how its model
    calls them, and for one whose calls no format here reads.
    """
    if isinstance(tools.format, ToolFormat):
        return tools.format
    if tools.format != "auto":
        return BY_NAME[tools.format]
    response = getattr(tokenizer, "response_template", None)
    if isinstance(response, Mapping):
        return ResponseTemplate(response, tuple(tools.schemas))
    template = template_text(tokenizer)
    if all(sign in template for sign in CHANNELS):
        return BY_NAME["gpt_oss"]
    way_out = f"name the format (tools.format={', '.join(BY_NAME)}), or use another model"
    try:
        learned, refusal = learn(tokenizer, options) if template else (None, "")
    except InvalidInput as error:
        raise InvalidInput(f"{error}; {way_out}") from None
    if learned is not None:
        return learned
    for sign, name in SIGNS.items():
        if sign in template:
            return BY_NAME[name]
    if not described:
        return HERMES
    raise InvalidInput(
        "the chat template tells the model of tools, but does not show how the model calls them"
        f"{refusal}{_marks(template)}; {way_out}"
    )


def _marks(template: str) -> str:
    """Names the format by the marks that stand in the template."""
    marks = dict.fromkeys(re.findall(r"<[^<>\s{}]++>", template))
    likely = [mark for mark in marks if "tool_call" in mark or "function" in mark]
    return f"; its marks are {', '.join(likely[:4])}" if likely else ""
