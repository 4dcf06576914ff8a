"""docs/papers.md lists every table, figure, equation and algorithm of each paper, and its commands
exist."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.lab.paper.rksc.command import PARTS

TEXT = Path("docs/papers.md").read_text(encoding="utf-8")
KINDS = ("Table", "Figure", "Equation", "Algorithm")


def counted(last: int, before: str = "") -> set[str]:
    return {f"{before}{n}" for n in range(1, last + 1)}


NUMBERS = {
    "Locality-aware beam scheduling": (counted(1), counted(13), counted(5), counted(1)),
    "HeadInfer": (counted(15), counted(11), counted(8), set[str]()),
    "HELM": (
        counted(2, "4.") | counted(5, "6."),
        {"1.1"} | counted(6, "4.") | counted(2, "6."),
        counted(7, "2.") | counted(20, "4."),
        counted(3),
    ),
    "CAPTURE": ({"I", "II", "III"}, counted(10), counted(7), counted(1)),
    "Reasoning-aware KV cache sharing": (counted(11), counted(1), counted(10), counted(4)),
}
"""Read in the papers: the numbers of their tables, figures, equations and algorithms."""


HEAD = "| in the paper | here |\n|---|---|\n"


def section_of(name: str) -> str:
    match = re.search(
        rf"^## {re.escape(name)}.*?(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE | re.IGNORECASE
    )
    assert match, name
    return match[0]


def rows_of(section: str) -> list[tuple[str, str]]:
    """The list of a section: what it is about, and what is said of it."""
    listed = section_of(section).split(HEAD, 1)[1].split("\n\n", 1)[0]
    return [
        (name.strip(), said.strip())
        for name, said in re.findall(r"^\| ([^|]+) \| (.+) \|$", listed, re.MULTILINE)
    ]


def names_of(cell: str) -> tuple[str, list[str]]:
    """("Figure", ["1", "2", "5"]) for "Figures 1, 2, 5", with every number of a range such as
    "4.1-4.3"."""
    kind, numbers = cell.split(" ", 1)
    found = list[str]()
    for part in numbers.split(", "):
        first, _, last = part.partition("-")
        if not last:
            found.append(first)
            continue
        chapter, dot, number = first.rpartition(".")
        found += [
            f"{chapter}{dot}{n}" for n in range(int(number), int(last.rpartition(".")[2]) + 1)
        ]
    return kind.removesuffix("s"), found


@pytest.mark.parametrize("section", NUMBERS)
def test_every_number_of_a_paper_is_listed_once(section: str) -> None:
    listed: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for cell, _ in rows_of(section):
        kind, numbers = names_of(cell)
        listed[kind] += numbers
    for kind, numbers in zip(KINDS, NUMBERS[section], strict=True):
        assert sorted(listed[kind]) == sorted(numbers), f"{kind}s of {section}"


@pytest.mark.parametrize("section", NUMBERS)
def test_what_is_said_is_one_of_five_things(section: str) -> None:
    words = r"\b(reproduced|compared|implemented|needs? a GPU|left out)\b"
    above = section_of(section).split(HEAD, 1)[0].rpartition("\nCommand")[2]
    assert "`python -m experiments." in above, "a line that names no command has the one above"
    for cell, said in rows_of(section):
        assert re.search(words, said), cell
        if "compared" in said:
            assert re.search(r"\d times|no times to state", said), f"{cell} says not by how much"
        if said.startswith("left out"):
            assert re.match(r"left out: \w", said), f"{cell} gives no reason"


@pytest.mark.parametrize(
    ("section", "name", "times"),
    [
        ("HELM", "Table 6.2", 214.6 / 63.5),
        ("HELM", "Figure 6.1", 32 / 4),
        ("HeadInfer", "Table 2", 92.6 / 45),
        ("HeadInfer", "Table 7", 64 / 32),
        ("CAPTURE", "Figure 10", 12.6 / 2.48),
    ],
)
def test_a_figure_that_differs_is_compared_and_says_how_far(
    section: str, name: str, times: float
) -> None:
    """Figures that the commands print, ours and the paper's."""
    kind, number = name.split()
    (said,) = [
        said
        for cell, said in rows_of(section)
        if names_of(cell)[0] == kind and number in names_of(cell)[1]
    ]
    assert said.startswith("compared") and re.search(rf"\b{times:.2g}\b", said), said


def test_a_part_of_rksc_that_a_line_names_is_one() -> None:
    said = " ".join(said for _, said in rows_of("Reasoning-aware KV cache sharing"))
    named = re.findall(r"\(`(\w+)`", said)
    assert len(named) > 5 and set(named) <= set(PARTS)


def commands() -> list[str]:
    return sorted(set(re.findall(r"`python -m experiments\.([^`]+)`", re.sub(r"\s+", " ", TEXT))))


@pytest.mark.parametrize("command", commands())
def test_a_command_that_is_named_exists(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, *words = shlex.split(command.replace("PAPER", "lbs"))
    assert find_spec(f"experiments.{module}") is not None
    if module in ("paper", "bench"):
        monkeypatch.setattr(sys, "argv", [module, *words, "--help"])
        with pytest.raises(SystemExit) as end:
            runpy.run_module(f"experiments.{module}", run_name="__main__")
        assert end.value.code == 0
    if words[:1] == ["rksc"]:
        assert all(word in PARTS for word in words[1:] if not word.startswith("-"))


def test_the_lists_name_commands() -> None:
    assert len(commands()) > 10
