"""Halves of a pair of surrogates in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.pages.view import command as views
from tests.experiments.test_half_surrogates import HALVES, broken
from tests.helpers.run_files import record, save


@pytest.fixture(params=HALVES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    records = [record("p", True), record("q", False)]
    return save(tmp_path, [broken(one, request.param) for one in records])


def test_a_view_of_halves_can_be_written(folder: Path) -> None:
    views.view(views.parsed([str(folder)]))
    page = (folder / "view.html").read_text(encoding="utf-8")
    assert "\ufffd" in page or r"\ufffd" in page
