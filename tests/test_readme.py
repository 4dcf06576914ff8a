"""What the README says to type works."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.helpers.parts import is_in
from tests.helpers.processes import finished
from ttc.parts import table

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/*.md", "experiments/lab/results/*.md")


@pytest.fixture(scope="module")
def example_output() -> str:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = finished([sys.executable, "-c", example], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_readme_shows_what_the_example_prints(example_output: str) -> None:
    shown = re.search(
        r"```python\n.*?```\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert shown is not None
    assert example_output == shown[1]


def test_every_link_between_the_documents_leads_somewhere() -> None:
    for document in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("experiments/lab/results/*.md"),
    ):
        for target in re.findall(r"\]\(([^)\s]+)", document.read_text()):
            if target.startswith("https://"):
                continue
            path, _, heading = target.partition("#")
            page = document.parent / path if path else document
            if not page.exists() and is_in_a_missing_part(page):
                continue
            assert page.exists(), f"{document.name}: {target}"
            assert not heading or heading in anchors(page.read_text()), f"{document.name}: {target}"


def anchors(page: str) -> set[str]:
    """The names by which the headings of a page are linked."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_in_a_missing_part(page: Path) -> bool:
    gone = [entry["paths"] for entry in table().values() if not (ROOT / entry["paths"][0]).exists()]
    return any(is_in(Path(os.path.relpath(page, ROOT)), paths) for paths in gone)
