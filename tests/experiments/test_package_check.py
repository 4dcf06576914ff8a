"""Packages of the same names: another project's, or files of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import experiments
from tests.helpers.processes import finished

ROOT = Path(experiments.__file__).parents[1]


def command(folder: Path, *first: Path) -> subprocess.CompletedProcess[str]:
    """A command of ours in `folder`, with this project on the path, and `first` before it."""
    path = os.pathsep.join(map(str, [*first, ROOT]))
    words = [sys.executable, "-m", "experiments.run", "--help"]
    return finished(words, cwd=folder, env=os.environ | {"PYTHONPATH": path})


@pytest.mark.parametrize("file", ["search.py", "conf/__init__.py"])
def test_a_file_of_the_users_that_takes_our_name_is_named(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("print('not to be run')")
    done = command(tmp_path)
    assert done.returncode != 0 and "not to be run" not in done.stdout
    name = Path(file).parts[0].removesuffix(".py")
    assert f"`{name}` is found in {tmp_path / file}" in done.stderr
    assert "run the command from another folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_another_projects_package_is_named_with_the_way_out(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (site / "verifiers").mkdir(parents=True)
    (site / "verifiers" / "__init__.py").write_text("__version__ = '0.1'\n")
    # as if both had been installed into one folder
    (site / "verifiers" / "self_verifier.py").write_text("")
    done = command(tmp_path, site)
    assert done.returncode == 1 and done.stderr.startswith("error: `verifiers` is found in ")
    assert "an environment of its own" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_installed_command_works_in_a_folder_with_experiments_of_the_users(
    tmp_path: Path,
) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("print('not to be run')")
    script = "import sys; sys.argv[1:] = ['--help']; from experiments.run import main; main()"
    # -P: as for an installed script, the folder is not on the path
    words = [sys.executable, "-P", "-c", script]
    path = os.environ | {"PYTHONPATH": str(ROOT)}
    done = finished(words, cwd=tmp_path, env=path, check=True)
    assert done.stdout.startswith("Solve the problems of a data set")
    assert "not to be run" not in done.stdout


def test_folders_of_configuration_without_code_are_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("mine: 1\n")
    (tmp_path / "experiments").mkdir()
    done = command(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dataset" in done.stdout
