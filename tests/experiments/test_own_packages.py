"""Packages of the same names: another project's, or files of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import experiments

ROOT = Path(experiments.__file__).parents[1]


def command(folder: Path, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m experiments.run --help` in `folder`, with this project on the path, and `first` before it."""
    path = os.pathsep.join(map(str, [*([first] if first else []), ROOT]))
    words = [sys.executable, "-m", "experiments.run", "--help"]
    return subprocess.run(words, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)


@pytest.mark.parametrize("file", ["search.py", "search/__init__.py", "verifiers/__init__.py", "conf/__init__.py"])
def test_a_file_of_the_users_that_takes_our_name_is_named(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("print('not to be run')")
    done = command(tmp_path)
    assert done.returncode != 0 and "not to be run" not in done.stdout
    assert f"`{Path(file).parts[0].removesuffix('.py')}` is found in {tmp_path / file}" in done.stderr
    assert "run the command from another folder" in done.stderr


def test_another_projects_package_is_named_with_the_way_out(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (site / "verifiers").mkdir(parents=True)
    (site / "verifiers" / "__init__.py").write_text("__version__ = '0.1'\n")
    (site / "verifiers" / "self_verifier.py").write_text("")  # as if both had been installed into one folder
    done = command(tmp_path, first=site)
    assert done.returncode != 0 and "an environment of its own" in done.stderr.splitlines()[-1]


def test_folders_of_configuration_without_code_are_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("mine: 1\n")
    (tmp_path / "experiments").mkdir()
    done = command(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dataset" in done.stdout
