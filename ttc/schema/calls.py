"""The grammar of a text that calls tools: free words, and calls whose arguments keep to the tools'
schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ttc.backend import Backend
from ttc.errors import InvalidInput
from ttc.schema.asked import BLANKS, EXACT, Constraint, json_rule
from ttc.schema.grammar import AnswerGrammar
from ttc.text.thoughts import Thoughts

NO_OTHERS = {"type": "object", "additionalProperties": False}


def call_grammar(chat: Any, backend: Backend, thoughts: Thoughts | None) -> AnswerGrammar:
    """For the tools of a conversation (`ttc.tools.chat.ToolChat`). Each answer of a tool begins the
    text anew. Where a call must be made (`Tools.choice`), the text before the first answer is
    nothing but calls of those tools, without a thought, and what follows is free unless
    `Tools.strict`.

    Raises InvalidInput where calls are not written as JSON behind a mark.
    """
    form = chat.format.json_call
    if form is None:
        raise InvalidInput(
            "tools.strict=True needs calls that are JSON with the name and the arguments, and this "
            "model writes them in another way; leave strict out"
        )
    blanks = f"/{BLANKS}/"
    close = _literal(form.close, backend)
    must, parallel = chat.tools.callable_names, chat.tools.parallel
    first = [f"call_{i}" for i, tool in enumerate(chat.tools.tools) if tool.name in must]
    rules = [
        "TEXT: /(.|\\n)*/",
        f"call: head {blanks} ({' | '.join(f'call_{i}' for i in range(len(chat.tools.tools)))}) "
        f"{blanks} {close}",
        _head(form.mark, backend),
    ]
    if first:
        mark = _literal(form.mark, backend)
        rules.append(f"first: {mark} {blanks} ({' | '.join(first)}) {blanks} {close} {blanks}")
    for place, tool in enumerate(chat.tools.tools):
        name = json.dumps(tool.name, ensure_ascii=False)
        # as `Tool.check` has it: no other arguments than those of the schema, unless it says so
        arguments = NO_OTHERS | (tool.schema["function"].get("parameters") or {})
        pieces = ["{", name] if not form.name else ["{", f'"{form.name}"', ":", name, ","]
        pieces += [":"] if not form.name else [f'"{form.arguments}"', ":"]
        written = f" {blanks} ".join([*map(json.dumps, pieces), f"arguments_{place}", '"}"'])
        rules += [f"call_{place}: {written}", f"arguments_{place}: {json_rule(arguments)}"]

    def beginning(start: str) -> AnswerGrammar:
        constraint = Constraint("\n".join([f"{EXACT}start: {start}", *rules, ""]))
        return AnswerGrammar.by(constraint, "grammar", "tools.strict=True", backend, thoughts)

    free = "call* TEXT" if parallel else "call | TEXT"
    if not first:
        return beginning(free)
    then = beginning(free) if chat.tools.strict else None
    return replace(beginning("first+" if parallel else "first"), must_call=True, then=then)


def _head(mark: str, backend: Backend) -> str:
    """Words before a call, and its mark. Behind the letters of one nothing but a call follows."""
    literal = _literal(mark, backend)
    lazy = "[lazy]" if literal.startswith('"') else ""
    return f"head{lazy}: TEXT {literal}"


def _literal(mark: str, backend: Backend) -> str:
    """A mark in a rule: its letters, or the number of a special token."""
    tokens = backend.encode(mark) if mark else []
    if len(tokens) == 1 and not backend.decode(tokens):
        return f"<[{tokens[0]}]>"
    return json.dumps(mark, ensure_ascii=False) if mark else ""
