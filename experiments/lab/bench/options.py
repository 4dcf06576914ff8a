"""A command's arguments, read off the signature of the function that it calls."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

RESULTS = Path("experiments/lab/results")

Model = Annotated[str, "a hub id, a folder, or the default model"]
Peer = Annotated[str | None, "the python of an environment with the peer's packages"]
Data = Annotated[Path | None, "a file with GSM8K's rows; default: problems that are made"]


def call(function: Callable[..., Any], words: Sequence[str], prog: str) -> Any:
    """Call the function with what the words say.

    Parameters before "/" are given by their place, others as --NAME VALUE. A bool is a switch, a
    sequence takes its values with commas between them, and the text of an `Annotated` is its help.
    """
    places, named = [], {}
    arguments = vars(parser_of(function, prog).parse_args(words))
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            places.append(arguments[name])
        else:
            named[name] = arguments[name]
    return function(*places, **named)


def parser_of(function: Callable[..., Any], prog: str) -> argparse.ArgumentParser:
    about = (inspect.getdoc(function) or "").partition("\n\n")[0]
    parser = argparse.ArgumentParser(prog=prog, description=about)
    types = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, text = types[name], None
        if get_origin(kind) is Annotated:
            kind, text = get_args(kind)
        needed = parameter.default is parameter.empty
        settings = _settings(kind) | {"help": text}
        if not needed:
            settings["default"] = parameter.default
            if parameter.default not in (None, False, ()) and "default:" not in (text or ""):
                settings["help"] = f"{text or ''} (default: {shown(parameter.default)})".strip()
        if parameter.kind is not parameter.POSITIONAL_ONLY:
            parser.add_argument(f"--{name.replace('_', '-')}", required=needed, **settings)
        elif get_origin(kind) is Sequence:
            parser.add_argument(name, **settings | {"nargs": "*", "type": get_args(kind)[0]})
        else:
            parser.add_argument(name, **settings | ({} if needed else {"nargs": "?"}))
    return parser


def shown(value: Any) -> str:
    """A default as one would type it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _settings(kind: Any) -> dict[str, Any]:
    """What argparse wants to know of a type."""
    optional = [part for part in get_args(kind) if part is not type(None)]
    if type(None) in get_args(kind):
        return _settings(optional[0])
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": optional}
    if get_origin(kind) is Sequence:
        return {"type": lambda text: [optional[0](part) for part in text.split(",") if part]}
    return {"type": kind}
