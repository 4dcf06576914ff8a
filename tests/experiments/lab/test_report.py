"""The tables of the documents are those of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.lab.report import docstrings
from experiments.lab.report.tables import RESULTS, TABLES, filled

ROOT = Path(__file__).parents[3]


@pytest.mark.few(12)
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
