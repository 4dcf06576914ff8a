"""The command line before anything is run: the first line, the help page, Ctrl-C."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import experiments.run
from experiments.cli.choices import choices
from experiments.cli.command import perform
from experiments.cli.help import page
from experiments.runs import schema
from experiments.runs.sweep import for_each_job
from tests.helpers.configurations import configuration
from tests.helpers.parts import installed
from tests.helpers.processes import LIMIT_S, finished, started
from ttc.errors import InvalidInput

SLOW = {"torch", "transformers", "datasets", "scipy"}
COMMANDS = [
    ["run", "--help"],
    ["run", "search=nope"],
    ["run", "-m", "search=nope,greedy"],
    ["calibrate", "--help"],
    ["calibrate", "search=nope"],
    ["bench", "--help"],
    ["bench", "memory", "device", "--shape", "nope"],
    ["paper", "--help"],
    ["paper", "lbs"],
    ["paper", "rksc", "nope"],
    ["published", "--help"],
    ["published", "nope"],
    ["processbench", "--help"],
    ["processbench", "search=nope"],
    ["heads", "--help"],
    ["heads", "no-such-model", "no-such-text", "out"],
]
"""Each shows a page, or is refused soon after its first line."""


@pytest.mark.few
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_first_output_comes_before_slow_imports(words: list[str]) -> None:
    """It takes a fifth of a second, and importing torch alone takes several."""
    module, *arguments = words
    command = [sys.executable, "-X", "importtime", "-m", f"experiments.{module}", *arguments]
    imported = set[str]()
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()).startswith("import time:"):
            imported.add(line.rpartition("|")[2].strip())
    assert line.strip() and "os" in imported and not SLOW & imported


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("search=nope", f"search=nope is unknown; use one of {', '.join(choices('search'))}"),
        (
            "verifier/inner=x verifier=confidence_gated",
            "verifier/inner=x is unknown; use one of arithmetic, ",
        ),
        ("serch=greedy", "serch is no setting; is it search? use one of model, dataset, "),
        ("search.nope=3", "search.nope is no setting of search.BeamSearch; use one of beam_size"),
        ("+search.nope=3", "nope is no option of BeamSearch; use one of beam_size"),
        ("dataset.lim=3", "dataset.lim is no setting of dataset; is it limit? use one of name, "),
        (
            "verifier.neutral=0.3",
            "verifier.neutral cannot be set where verifier=auto chooses verifiers.Arithmetic",
        ),
        (
            "placement.k=3",
            "placement.k is no setting of the chosen placement, which has none; choose another",
        ),
        (
            "dataset=reasoning_gym dataset.params={min_numbers:3}",
            "dataset.params.min_numbers is new there; add it with a plus, as "
            "+dataset.params.min_numbers=VALUE",
        ),
        ("run.max_tokens=0", "run.max_tokens=0 must be at least 1"),
        ("search.beam_size=true", "search.beam_size=true is of type bool; give a whole number"),
        (
            "search=greedy verifier=none search.temperature=0.7",
            "temperature=0.7 samples, and greedy search",
        ),
        (
            "'dataset.instruction=Q: {question}'",
            "dataset.instruction=Q: {question} cannot be read (mismatched input",
        ),
        (
            "-m search=greedy,best_of_n search.n=4",
            "search.n is no setting of search.Greedy; use one of ",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_what_would_be_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run", *shlex.split(typed)])
    with pytest.raises(SystemExit) as refused:
        experiments.run.main()
    said = str(refused.value.code)
    assert said.startswith(f"error: {message}")
    assert "schema" not in said and len(said.splitlines()) == 1
    assert not list(tmp_path.rglob("config.yaml"))


@pytest.mark.parametrize(
    "word",
    [
        "search.max_tokens=40",
        "search.hints=[a, 'b c']",
        "search.temperature=1e-3",
        "+search.x={name: [a, b], k: 2}",
        "search.path=/a-b/rows-1.jsonl",
        "search.label='Q: {question}'",
    ],
)
def test_the_setting_of_a_swept_group_reaches_each_job_as_it_was_typed(word: str) -> None:
    parse = OverridesParser.create().parse_override
    sweep, given = for_each_job(["search=greedy,best_of_n", word])
    override = parse(given)
    assert sweep == "search=greedy,best_of_n" and override.is_sweep_override()
    (job,) = override.sweep_string_iterator()
    assert parse(f"{override.get_key_element()}={job}").value() == parse(word).value()
    assert override.get_key_element() == word.partition("=")[0]


@pytest.mark.slow
def test_a_sweep_over_searches_takes_a_setting_that_the_default_search_does_not_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = ["-m", "search=greedy,best_of_n", "search.max_tokens=40"]
    monkeypatch.setattr(sys, "argv", ["run", *sweep, "dataset.limit=1", "run.dry=true"])
    experiments.run.main()
    shown = capsys.readouterr().out
    assert shown.count("\n  max_tokens: 40\n") == 2
    assert shown.index("_target_: search.Greedy") < shown.index("_target_: search.BestOfN")


def test_other_words_of_a_sweep_stay_as_they_are() -> None:
    words = ["-m", "run.seed=0,1", "run.output_dir=o", "hydra.verbose=true"]
    words += ["~gate", "dataset.limit=3", "search.n=1,2"]
    assert for_each_job(words) == words
    values = ("null", "", "';'", "'then \\'A\\', b'", "Q: {q}")
    unsayable = ["search=a,b", *(f"search.x={value}" for value in values)]
    assert for_each_job(unsayable) == unsayable  # no sweep of Hydra's can hold these values


def test_a_sweep_over_presets_gives_every_setting_to_each_job() -> None:
    presets = "+experiment=rksc_exact,rksc_lossy"
    given = for_each_job([presets, "search.n=4", "dataset.limit=3", "run.batch=2"])
    assert given == [presets, "search.n=choice(4)", "dataset.limit=choice(3)", "run.batch=2"]


def test_what_stands_around_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line comes before it, Ctrl-C is no traceback, and an error of ours keeps its."""
    launch = Mock(side_effect=lambda: said.append(capsys.readouterr().err))
    said: list[str] = []
    monkeypatch.setattr(experiments.run, "launch", launch)
    monkeypatch.setattr(sys, "argv", ["run", "search=greedy", "run.seed=3"])
    experiments.run.main()
    assert said == ["starting: search=greedy run.seed=3\n"]
    launch.side_effect = KeyboardInterrupt
    with pytest.raises(SystemExit) as stopped:
        experiments.run.main()
    assert stopped.value.code == 130
    assert "nothing is lost\nrun the same command to go on" in capsys.readouterr().err
    launch.side_effect = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        experiments.run.main()


def test_the_help_page_names_every_choice_and_only_settings_that_exist() -> None:
    text = page()
    assert "_schema" not in text and max(map(len, text.splitlines())) <= 120
    for group in ("search", "verifier"):
        targets = {*schema.GROUPS[group].choices}
        assert targets <= {*choices(group)} <= {*targets, "none", "auto"}
    for name in (*schema.SEARCHES, *schema.VERIFIERS, *schema.POLICIES):
        assert re.search(rf"\b{name}\b", text)
    assert "beam_search*" in text and "sums*" in text and "smollm2*" in text
    config = configuration("run", "run.name=r", "search=best_of_n")
    keys = {*re.findall(r"^  (run\.\w+)=", text, re.MULTILINE), "search.n", "dataset.limit"}
    assert len(keys) > 8
    for key in keys:
        assert OmegaConf.select(config, key, default="absent") != "absent", key


@pytest.mark.slow
def test_every_example_of_the_help_page_can_be_composed() -> None:
    lines = re.findall(r"^  python -m experiments\.run(.*)", page(), re.MULTILINE)
    assert len(lines) == 7
    for line in lines[1:]:
        plain = [re.sub(r"(=\w+),.*", r"\1", word) for word in line.split() if word != "-m"]
        if "--cfg" not in plain:
            configuration("run", "run.name=r", *plain)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    def write() -> None:
        (tmp_path / "none" / "out.csv").write_text("a")

    with pytest.raises(SystemExit) as refused:
        perform(write, "a command")
    assert str(refused.value.code).startswith(f"error: {tmp_path}/none/out.csv: No such file")


def test_what_a_terminal_cannot_show_is_shown_by_its_code() -> None:
    words = [sys.executable, "-m", "experiments.report", "--help"]
    program = "from experiments.cli.command import perform; perform(lambda: print('√'), 'x')"
    done = finished([sys.executable, "-c", program], env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stdout == "\\u221a\n"
    if installed("command", "report"):
        helped = finished(words, cwd=tempfile.gettempdir())
        assert helped.returncode == 0 and "Write the tables" in helped.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_an_output_that_cannot_be_written_is_named() -> None:
    words = [sys.executable, "-m", "experiments.run", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "standard output cannot be written (No space left on device)" in done.stderr


@pytest.mark.slow
def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    """As `| head` does."""
    words = [sys.executable, "-m", "experiments.published"]
    with started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == "starting: the recipes\n"
        assert process.wait(LIMIT_S) == 141


def test_one_name_for_the_jobs_of_a_sweep_is_refused_before_the_first() -> None:
    with pytest.raises(InvalidInput, match=r"differ in search.n; leave it out.*run.output_dir="):
        for_each_job(["search.n=1,2", "run.name=x"])
    for words in (["run.shard=1/2,2/2", "run.name=x"], ["run.name=x"], ["search.n=1,2"]):
        assert for_each_job(words) == words
    named = ["search.n=1,2", r"run.name='x-${search.n}'"]
    assert for_each_job(named) == named
