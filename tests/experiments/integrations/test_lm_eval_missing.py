"""lm-evaluation-harness where it is not installed, or too old."""

from __future__ import annotations

import sys

import pytest

from experiments.integrations import lm_eval
from ttc.errors import InvalidInput

INSTALL = r"pip install -e '\.\[eval\]'"


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(lm_eval, "find_spec", lambda name: None if version is None else name)
    monkeypatch.setattr(lm_eval, "version", lambda name: version)


def test_help_is_shown_without_the_harness(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, None)
    monkeypatch.setattr(sys, "argv", ["lm_eval", "--help"])
    lm_eval.main()
    page = capsys.readouterr().out
    assert page.startswith("usage: python -m experiments.lm_eval run --model ttc")
    assert "pip install -e '.[eval]'" in page


def test_what_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    with pytest.raises(InvalidInput, match=f"not installed: {INSTALL}"):
        lm_eval.evaluate()


@pytest.mark.parametrize("version", ["0.4.12", "0.4.9.1", "0.3.0"])
def test_a_release_that_is_too_old_is_named(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, version)
    with pytest.raises(
        InvalidInput, match=rf"harness {version} is too old, 0\.4\.13 or newer is needed: {INSTALL}"
    ):
        lm_eval.evaluate()


@pytest.mark.parametrize("version", ["0.4.13", "0.4.14.dev0", "0.5", "1.0.0"])
def test_newer_releases_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, version)
    lm_eval.check_installed()
