"""A command's arguments are those of its function's signature."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from experiments.lab.bench.command import COMMANDS, IN_PROCESS, function_of
from experiments.lab.bench.options import call, parser_of
from ttc.errors import InvalidInput


def measured(
    part: Literal["steps", "all"] = "all",
    models: Annotated[Sequence[str], "by their names"] = (),
    /,
    *,
    problems: Annotated[int, "to solve"] = 3,
    in_flight: Sequence[int] | None = None,
    ways: Annotated[Sequence[str], "with commas"] = ("a", "b"),
    quick: Annotated[bool, "few tokens"] = False,
    out: Path = Path("x.json"),
) -> dict[str, Any]:
    """What it got.

    And no more.
    """
    return dict(locals())


DEFAULTS = {
    "part": "all",
    "models": (),
    "problems": 3,
    "in_flight": None,
    "ways": ("a", "b"),
    "quick": False,
    "out": Path("x.json"),
}


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {}),
        (["steps", "m", "n"], {"part": "steps", "models": ["m", "n"]}),
        (["--problems", "5", "--in-flight", "1,16"], {"problems": 5, "in_flight": [1, 16]}),
        (["--ways", "engine", "--quick"], {"ways": ["engine"], "quick": True}),
        (["--out", "y/z.json"], {"out": Path("y/z.json")}),
    ],
)
def test_words_become_arguments(words: list[str], given: dict[str, Any]) -> None:
    assert call(measured, words, "bench") == DEFAULTS | given


@pytest.mark.parametrize("words", [["some"], ["--problems", "x"], ["--quik"], ["--in-flight", "a"]])
def test_what_is_none_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        call(measured, words, "bench")
    assert end.value.code == 2 and words[-1] in capsys.readouterr().err


def test_help_is_the_first_paragraph_the_annotations_and_the_defaults() -> None:
    text = " ".join(parser_of(measured, "bench").format_help().split())
    assert "What it got." in text and "And no more" not in text
    assert "to solve (default: 3)" in text and "with commas (default: a,b)" in text


@pytest.mark.parametrize("command", [*COMMANDS, *IN_PROCESS])
def test_every_command_has_arguments_that_can_be_read(command: str) -> None:
    parser = parser_of(function_of(command), "bench")
    for action in parser._actions:
        if callable(action.type) and isinstance(action.default, tuple):
            words = ",".join(map(str, action.default))
            assert action.nargs == "*" or action.type(words) == list(action.default)


def test_an_unknown_command_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match="no command 'serch'; use one of prefix, search"):
        function_of("serch")
