"""The packages' public names: loaded when they are used, and listed once for the reader, mypy and
`import *` alike."""

import ast
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

import pytest

from experiments.cli.choices import choices, written
from experiments.runs.schema import GROUPS
from tests.helpers.configurations import configuration
from tests.helpers.processes import finished
from ttc.lazy import FOLDERS, public_classes

PACKAGES = ("ttc", "search", "verifiers")


SHARED_NAMES = {
    "Request": "in the batch what vLLM calls so, in a search what it yields (docs/architecture.md)",
    "Row": "of a batch and of a table, in packages that do not know each other",
}
"""Types of one name in several files, and why."""


def types_by_name() -> dict[str, dict[Path, bool]]:
    """The files that define each public type, and whether it is a protocol there. The laboratory's
    files are left out: each is a command by itself."""
    found: dict[str, dict[Path, bool]] = {}
    for package in (*PACKAGES, "experiments"):
        folder = Path(str(importlib.import_module(package).__file__)).parent
        for file in folder.rglob("*.py"):
            if file.is_relative_to(folder / "lab"):
                continue
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                names = {ast.unparse(target) for target in getattr(node, "targets", ())}
                if isinstance(node, ast.ClassDef):
                    names = {node.name}
                protocol = isinstance(node, ast.ClassDef) and "Protocol" in map(
                    ast.unparse, node.bases
                )
                for name in names:
                    if re.fullmatch("[A-Z][a-z][A-Za-z0-9]*", name):
                        found.setdefault(name, {})[file] = protocol
    return found


def test_a_type_has_a_name_of_its_own() -> None:
    """But for what a part gives to the core: there it has the name of the core's protocol."""
    several = {
        name for name, files in types_by_name().items() if len(files) - any(files.values()) > 1
    }
    assert several == {*SHARED_NAMES} and len(several) <= 10


@pytest.mark.parametrize("name", PACKAGES)
def test_importing_a_package_loads_no_torch(name: str) -> None:
    code = (
        f"import sys, {name}; print([m for m in ('torch', 'transformers', 'numpy') if m in "
        "sys.modules])"
    )
    assert finished([sys.executable, "-c", code], check=True).stdout == "[]\n"


def test_an_error_can_be_imported_without_torch() -> None:
    code = "import sys; from ttc import InvalidInput, Usage; print('torch' in sys.modules)"
    assert finished([sys.executable, "-c", code], check=True).stdout == "False\n"


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_the_one_that_type_checkers_see(name: str) -> None:
    package = importlib.import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text())
    seen = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*seen} == {*package.__all__} - {"__version__"}
    for public, module in seen.items():
        assert getattr(package, public) is getattr(importlib.import_module(str(module)), public)
        assert public in dir(package)


def test_a_search_verifier_policy_or_backend_is_a_choice_by_the_name_of_its_file() -> None:
    """So that a new one is written down in its file, and nowhere else."""
    for group, folder in FOLDERS.items():
        known, found = GROUPS[group], public_classes(folder)
        assert {*found} <= {*known.choices} <= {*choices(group)}
        for choice, place in found.items():
            target = known.choices[choice]
            assert place == f"{target.__module__}:{target.__name__}"
            assert place.startswith(f"{folder}.{choice}")
            assert known.base is None or issubclass(target, known.base)
        assert known.base is None or forgotten(folder, known.base, found.values()) == []
    assert not {"base", "driver", "reward_model"} & {
        *choices("search"),
        *choices("verifier"),
        *choices("memory"),
    }


def forgotten(folder: str, base: type, found: Collection[str]) -> list[str]:
    """The classes that are of this kind, can be made, and say nowhere where to use them."""
    file = importlib.import_module(folder).__file__
    modules = [f"{folder}.{path.stem}" for path in Path(str(file)).parent.glob("[!_]*.py")]
    others = {
        "ttc.residency.base:Residency",
        "ttc.residency.offloading:Offloading",
        "ttc.remote.backend:RemoteBackend",
    }
    return [
        place
        for module in modules
        for name, kind in vars(importlib.import_module(module)).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind.__module__ == module
        if not inspect.isabstract(kind) and (place := f"{module}:{name}") not in {*others, *found}
    ]


def test_a_choice_needs_no_file_in_conf() -> None:
    assert "greedy" not in written("search") and "beam_search" in written("search")
    config = configuration("run", "run.name=r", "search=greedy", "verifier=self")
    assert (
        config.search._target_ == "search.Greedy"
        and config.verifier._target_ == "verifiers.SelfVerifier"
    )


def test_a_name_that_does_not_exist_is_an_ordinary_attribute_error() -> None:
    import ttc

    with pytest.raises(AttributeError, match="module 'ttc' has no attribute 'Enginee'"):
        _ = ttc.Enginee  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="Enginee"):
        from ttc import Enginee  # type: ignore[attr-defined]  # noqa: F401


def test_the_distribution_has_a_name_of_its_own_and_the_packages_version(
    pytestconfig: pytest.Config,
) -> None:
    about = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text(encoding="utf-8"))
    assert about["project"]["name"] == "ttc-tree"  # "ttc" is another project's on PyPI
    assert about["tool"]["hatch"]["version"]["path"] == "ttc/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", importlib.import_module("ttc").__version__)
