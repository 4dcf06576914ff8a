"""The log of a server."""

from __future__ import annotations

import pytest

from experiments.server.access import log, show_log


@pytest.mark.parametrize("private", [True, False])
def test_the_log_of_a_server_repeats_a_question_only_if_it_may(
    private: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", True)
    show_log(private)
    log.info("'127.0.0.1' asked for %r", "/v1/models")
    try:
        raise ValueError("Which zebra?")
    except ValueError:
        log.exception("the problem is to blame that begins with %r", "Which zebra?")
    shown = capsys.readouterr().err
    assert "'/v1/models'" in shown and "to blame that begins with" in shown
    assert ("zebra" in shown) is not private
