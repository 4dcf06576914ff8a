"""What the README says to type works."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from experiments.lab.report import docstrings
from experiments.lab.report.tables import RESULTS, TABLES, filled
from tests.helpers.processes import finished

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def example_output() -> str:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = finished([sys.executable, "-c", example], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("document", TABLES)
def test_the_tables_are_the_committed_figures(
    document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert filled(document) == Path(document).read_text(), "run python -m experiments.report"
    text = Path(document).read_text()
    for name, (file, _) in TABLES[document].items():
        unmeasured = f"<!-- results:{name} -->\nNot measured yet: `python -m experiments."
        assert (RESULTS / f"{file}.json").exists() or unmeasured in text


def test_a_docstring_without_its_lines_is_named() -> None:
    class Unfinished:
        """A search.

        Tokens: n L.
        """

    with pytest.raises(ValueError, match="Unfinished has no line 'Use it where'"):
        docstrings.labelled(Unfinished, "Tokens", "Use it where")


@pytest.mark.slow
def test_the_readme_shows_what_the_example_prints(example_output: str) -> None:
    shown = re.search(
        r"```python\n.*?```\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert shown is not None
    assert example_output == shown[1]


def test_every_link_between_the_documents_leads_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *RESULTS.glob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)", document.read_text()):
            if target.startswith("https://"):
                continue
            path, _, heading = target.partition("#")
            page = document.parent / path if path else document
            assert page.exists(), f"{document.name}: {target}"
            assert not heading or heading in anchors(page.read_text()), f"{document.name}: {target}"


def anchors(page: str) -> set[str]:
    """The names by which the headings of a page are linked."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
