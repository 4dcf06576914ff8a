"""The command line before anything is run: the first line, the help page, Ctrl-C."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

import experiments.run
from experiments import schema
from experiments.help import choices, page
from tests.helpers.configurations import configuration


def test_the_command_answers_before_it_imports_what_takes_seconds() -> None:
    code = "import sys, experiments.run, experiments.help; experiments.help.page(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_the_first_line_comes_before_the_job_is_launched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []

    def launch() -> int:
        said.append(capsys.readouterr().err)
        return 0

    monkeypatch.setattr(experiments.run, "launch", launch)
    monkeypatch.setattr(sys, "argv", ["run", "search=greedy", "run.seed=3"])
    experiments.run.main()
    assert said == ["starting: search=greedy run.seed=3\n"]


def test_ctrl_c_before_the_run_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def launch() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiments.run, "launch", launch)
    monkeypatch.setattr(sys, "argv", ["run"])
    with pytest.raises(SystemExit) as stopped:
        experiments.run.main()
    assert stopped.value.code == 130
    assert "nothing is lost\nrun the same command to go on" in capsys.readouterr().err


def test_the_help_page_names_every_choice_and_only_settings_that_exist() -> None:
    text = page()
    assert "_schema" not in text and max(map(len, text.splitlines())) <= 120
    for group, targets in (("search", schema.SEARCHES), ("verifier", schema.VERIFIERS), ("memory", schema.POLICIES)):
        assert set(targets) <= set(choices(group))
        assert all(re.search(rf"\b{name}\b", text) for name in targets)
    assert "beam_search*" in text and "sums*" in text and "smollm2*" in text
    config = configuration("run", "run.name=r", "search=best_of_n")
    keys = set(re.findall(r"^  (run\.\w+)=", text, re.MULTILINE)) | {"search.n", "dataset.limit", "model.name"}
    assert len(keys) > 8
    for key in keys:
        assert OmegaConf.select(config, key, default="absent") != "absent", key


def test_every_example_of_the_help_page_can_be_composed() -> None:
    lines = [line.split()[3:] for line in page().splitlines() if line.startswith("  python -m experiments.run")]
    assert len(lines) == 6
    for arguments in lines[1:]:
        if "--cfg" in arguments:
            continue
        plain = [re.sub(r"(=\w+),.*", r"\1", a) for a in arguments if a != "-m"]
        configuration("run", "run.name=r", *plain)
