"""Where in the user's own code an error came from."""

from __future__ import annotations

import sysconfig
import traceback
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any, Literal

from ttc.errors import TTCError

OURS = ("search", "verifiers", "ttc", "experiments", "conf")
"""This project's packages."""
TYPED = ("<stdin>", "<string>", "<ipython-input")
"""How Python names code that is in no file begin."""

SourceLine = tuple[str, int]
"""A file and a line."""


def error_text(error: BaseException) -> str:
    """An error's type and message, and the place in the user's code if it came by there, as in
    `KeyError: 'x' (my_search.py:12)`."""
    message = error.msg if isinstance(error, SyntaxError) else error
    return f"{type(error).__name__}: {message}{at(origin(error))}"


def at(place: str | None) -> str:
    return "" if place is None else f" ({place})"


def origin(error: BaseException) -> str | None:
    """The file and line of the last frame that is the user's: of code that this project called, and
    that is neither its own nor a library's. None where no frame is, and for errors of this project
    that the user's code raises by itself, whose messages say enough."""
    if isinstance(error, SyntaxError) and error.filename and _whose(error.filename) == "user":
        return _text((error.filename, error.lineno or 0))
    if isinstance(error, TTCError) and raised_by_user(error):
        return None
    return _last_of_user(_places(error))


def raised_by_user(error: BaseException) -> bool:
    """Whether the user's code raised it, or a library that this code called."""
    owners = [owner for file, _ in _places(error) if (owner := _whose(file)) != "library"]
    return owners[-1:] == ["user"]


def origin_of_generator(steps: Any) -> str | None:
    """Where a generator of the user's waits at its `yield`; where its code begins if it has
    ended."""
    places: list[SourceLine] = []
    while (code := getattr(steps, "gi_code", None)) is not None:
        frame = steps.gi_frame
        line = code.co_firstlineno if frame is None else frame.f_lineno
        places.append((code.co_filename, line))
        steps = steps.gi_yieldfrom
    return _last_of_user(places)


def _places(error: BaseException) -> list[SourceLine]:
    """From the first of this project's frames on: those before it are of its callers."""
    walked = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in walked]
    return list(dropwhile(lambda place: _whose(place[0]) != "ours", places)) or places


def _last_of_user(places: list[SourceLine]) -> str | None:
    users = [place for place in places if _whose(place[0]) == "user"]
    return _text(users[-1]) if users else None


def _text(place: SourceLine) -> str:
    """The file as it is called from the current folder, if it lies there."""
    file, line = place
    path, here = Path(file), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"


def _whose(file: str) -> Literal["ours", "library", "user"]:
    if file.startswith("<"):
        return "user" if file.startswith(TYPED) else "library"
    path = Path(file)
    if any(path.is_relative_to(folder) for folder in _folders_of_project()):
        return "ours"
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return "library" if installed or path.is_relative_to(_folder_of_python()) else "user"


@cache
def _folders_of_project() -> list[Path]:
    root = Path(__file__).parent.parent
    return [root / name for name in OURS]


@cache
def _folder_of_python() -> Path:
    return Path(sysconfig.get_path("stdlib"))
