"""What an answer is asked to be: a JSON schema or a grammar, as text for llguidance and for a
server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ttc.errors import InvalidInput
from ttc.text.encodable import encodable

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

BLANKS = r"( |\n[ \t]{0,40})?"
"""What may stand between the parts of a JSON text: nothing, a blank, or a line break with what
indents the next line. So no model fills an answer with blanks."""

EXACT = '%llguidance {"no_forcing": true}\n'
"""Without it llguidance allows one way alone to cut into tokens what has to follow."""


@dataclass(frozen=True)
class Constraint:
    """What an answer has to be. rules: in llguidance's form of Lark's grammars. schema: the JSON
    schema that they are of, None for another grammar."""

    rules: str
    schema: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, schema: Any, grammar: Any) -> Constraint:
        """Raises InvalidInput for both at once, and for what is neither a JSON schema nor text."""
        if schema is not None and grammar is not None:
            raise InvalidInput("schema and grammar are both given; give one of them")
        if grammar is None:
            read = as_schema(schema)
            return cls(f"{EXACT}start: {json_rule(read)}\n", read)
        if not isinstance(grammar, str) or not grammar.strip():
            raise InvalidInput(
                f"grammar={grammar!r:.80} is no grammar; give its rules as a text, as "
                "'start: /[0-9]+/'"
            )
        return cls(grammar if grammar.lstrip().startswith("%llguidance") else EXACT + grammar)


def as_schema(value: Any) -> Mapping[str, Any]:
    """A JSON schema from what users give: True for any object, a mapping, or a model class of
    pydantic."""
    if value is True:
        return ANY_OBJECT
    make = getattr(value, "model_json_schema", None)
    schema = make() if callable(make) else value
    if not isinstance(schema, Mapping):
        raise InvalidInput(
            f"schema={value!r:.80} is no JSON schema; give a dictionary, a pydantic model class, "
            "or True for any JSON object"
        )
    return schema


def json_rule(schema: Mapping[str, Any]) -> str:
    """The right side of a rule for JSON by a schema."""
    try:
        return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": BLANKS}})
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the schema cannot be written as JSON: {error}") from error


def json_answer(text: str) -> str | None:
    """The JSON of a text in one spelling, by which votes are counted; None where it is cut off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return str(encodable(json.dumps(value, ensure_ascii=False, sort_keys=True)))
