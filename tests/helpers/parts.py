"""Parts of the project that can be deleted, and the project without one of them.

`python -m tests.helpers.parts NAME` copies the project, deletes a part there with those that need
it, and tries what is left: its layers, the imports of all modules and tests, and a search.
`--types` and `--tests` add mypy and the fast tests; `--guards` counts instead what stands outside
each part for it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ttc.parts import PACKAGES, handled, load, table

ROOT = Path(__file__).parents[2]

SEARCH = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.runs.hydra_command import composed
from search import BeamSearch, solve
from tests.helpers.tokenizers import Letters
from ttc import Engine
from verifiers import ArithmeticVerifier

composed(["search=best_of_n"])
sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_key_value_heads=1, **sizes)).eval()
search = BeamSearch(step_tokens=8, max_steps=3)
for engine in (Engine(model, Letters()), Engine(model, Letters(), runner="fused")):
    result = solve(search, problem="1+1", engine=engine, verifier=ArithmeticVerifier())
    assert result.branches and result.usage.generated_tokens
"""

NAMES = """
import sys

import ttc
from ttc.errors import MissingPart
from ttc.lazy import listed_names, public_names
from ttc.parts import handled, handler, table

for package in ("ttc", "search", "verifiers"):
    module = __import__(package)
    for name in listed_names(package).keys() - public_names(package).keys():
        try:
            getattr(module, name)
            sys.exit(f"{package}.{name} is still there")
        except MissingPart as error:
            print(error)
for entry in table().values():
    for kind, _, name in (what.partition("=") for what in entry["handles"]):
        try:
            handler(kind, name)
        except MissingPart as error:
            print(error)
"""

IMPORTS = """
import importlib, pathlib, sys

packages = sys.argv[1:]
failed = []
for package in packages:
    for file in sorted(pathlib.Path(package).rglob("*.py")):
        if file.name == "__main__.py":
            continue
        name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # what is not installed here is not looked for
            if str(error.name).split(".")[0] in packages:
                failed.append(f"{name}: {error}")
        except ImportError as error:
            failed.append(f"{name}: {error}")
if failed:
    sys.exit("\\n".join(failed))
"""

COLLECTING = """
import pytest

sys.exit(pytest.main(["-n", "0", "--collect-only", "-qq"]))
"""

WARM = """
import importlib, json, os, sys, traceback

for name in json.loads(sys.stdin.readline()):
    try:
        importlib.import_module(name)
    except Exception:
        pass
for line in sys.stdin:
    folder, program, arguments = json.loads(line)
    if not (child := os.fork()):
        os.chdir(folder)
        output = os.open("output.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.path.insert(0, folder)
        sys.argv[1:] = arguments
        code = 1
        try:
            exec(program, {"__name__": "__main__"})
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else print(end.code) or 1
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def installed(kind: str, name: str) -> list[Any]:
    """What handles this, alone in a list; nothing where its part was deleted."""
    place = handled().get(kind, {}).get(name)
    return [] if place is None else [load(place)]


def only_with(kind: str, name: str) -> Any:
    """The mark of a test that needs what handles this, whose part may be deleted."""
    return pytest.mark.skipif(not installed(kind, name), reason=f"the part of {kind} is deleted")


# ---------------------------------------------------------------- which files are whose


def users(part: str) -> set[str]:
    """The part, and those that cannot be without it."""
    found = {part}
    while (
        more := {name for name, entry in table().items() if found & set(entry.get("needs", ()))}
        - found
    ):
        found |= more
    return found


def paths(parts: Iterable[str]) -> list[str]:
    return [path for part in sorted(parts) for path in table()[part]["paths"]]


def is_in(file: Path, paths: Iterable[str]) -> bool:
    return any(file == Path(path) or Path(path) in file.parents for path in paths)


def sources(*folders: str) -> Iterator[Path]:
    """The Python files of these folders, relative to the project's."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield file.relative_to(ROOT)


def module(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


# ---------------------------------------------------------------- without a part


def copied(folder: Path) -> None:
    """The project's files as they are now, those that git ignores left out, and the bytecode of
    its modules, so that no copy compiles them anew."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for place in {file.parent for file in folder.rglob("*.py")}:
        if (bytecode := ROOT / place.relative_to(folder) / "__pycache__").exists():
            shutil.copytree(bytecode, place / "__pycache__")


def delete(part: str, folder: Path) -> None:
    """Take a part out of a copy of the project, with the parts that need it."""
    for path in paths(users(part)):
        target = folder / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def checks(types: bool = False, tests: bool = False) -> Iterator[tuple[str, list[str]]]:
    """What is tried without a part, by its name."""
    python = sys.executable
    bin = Path(python).parent
    yield "layers", [str(bin / "lint-imports"), "--no-cache"]
    # one process, since imports take most of the time; the search comes before all else is loaded
    together = SEARCH + NAMES + IMPORTS + COLLECTING
    yield "search, names, imports and collecting", [python, "-c", together, *PACKAGES]
    if types:
        yield "types", [python, "-m", "mypy"]
    if tests:
        yield "tests", [python, "-m", "pytest", "-m", "not slow"]


class Warm:
    """A process that has imported the packages of others that this one has. It forks for each
    program of ours, so that none imports them anew."""

    def __init__(self) -> None:
        own = {*PACKAGES, "conf", "tests", "conftest", "__main__"}
        rewritten = {"pytest", "_pytest", "hypothesis", "anyio", "xdist", "pytest_timeout"}
        others = [m for m in list(sys.modules) if m.partition(".")[0] not in own | rewritten]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WARM],
            cwd=tempfile.gettempdir(),
            env=os.environ | {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._tell(others)

    def run(self, folder: str, program: str, arguments: Sequence[str]) -> str | None:
        """Run a program in a copy of the project. Returns its output if it fails."""
        assert self.process.stdout is not None
        self._tell([folder, program, list(arguments)])
        failed = self.process.stdout.readline().strip() != "0"
        return Path(folder, "output.txt").read_text(encoding="utf-8") if failed else None

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)

    def _tell(self, value: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps(value), file=self.process.stdin, flush=True)


def tried(
    part: str, commands: Iterable[tuple[str, Sequence[str]]], warm: Warm | None = None
) -> dict[str, str]:
    """The outputs of the commands that fail without a part. warm: runs programs of Python."""
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        delete(part, folder)
        environment = os.environ | {"PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"}
        for what, command in commands:
            if warm is not None and command[1] == "-c":
                if (output := warm.run(name, command[2], command[3:])) is not None:
                    failed[what] = output
                continue
            done = subprocess.run(
                command, cwd=name, env=environment, capture_output=True, text=True, timeout=3600
            )
            if done.returncode:
                failed[what] = done.stdout + done.stderr
    return failed


# ---------------------------------------------------------------- what stands outside


IMPORT = re.compile(r"^\s*(?:import (.*)|from (\S+) import (\([^)]*\)|.*))", re.MULTILINE)


def imports(file: Path) -> Iterator[str]:
    """What a file imports, wherever in it: modules, and names of modules as "module.name"."""
    for modules, module, names in IMPORT.findall((ROOT / file).read_text(encoding="utf-8")):
        yield from re.findall(r"[\w.]+", modules)
        if module:
            yield module
            yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


def guards(part: str) -> dict[Path, int]:
    """The lines with a name of a part (`words` of the table) in each file that is not its own, nor
    of a part that needs it."""
    words = table()[part].get("words", ())
    if not words:
        return {}
    named = re.compile("|".join(words), re.IGNORECASE)
    own = paths(users(part))
    counts: dict[Path, int] = {}
    for file in sources(*PACKAGES):
        if not is_in(file, own):
            with tokenize.open(ROOT / file) as text:
                tokens = list(tokenize.generate_tokens(text.readline))
            names = (t for t in tokens if t.type == tokenize.NAME and named.search(t.string))
            if lines := {token.start[0] for token in names}:
                counts[file] = len(lines)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=list(table()))
    for flag in ("--types", "--tests", "--guards"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    parts = [options.part] if options.part else list(table())
    if options.guards:
        for part in parts:
            counts = guards(part)
            print(f"{part}: {sum(counts.values())} lines in {len(counts)} files")
            for file, lines in counts.items() if options.part else ():
                print(f"  {lines:4} {file}")
        return
    failed = {part: tried(part, checks(options.types, options.tests)) for part in parts}
    for part, outputs in failed.items():
        print(f"without {part}: {', '.join(outputs) + ' failed' if outputs else 'all is well'}")
        print(*outputs.values(), sep="\n", end="")
    sys.exit(any(failed.values()))


if __name__ == "__main__":
    main()
