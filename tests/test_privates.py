"""Tests use what a module offers: no private name of another module, but for those listed here."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ttc", "search", "verifiers", "experiments", "tests")
ALLOWED = {
    "verifiers/test_prompts_of_verifiers.py": 1,  # a verifier with a tokenizer and no model
}
"""How often a file uses private names of other modules. The numbers may only get smaller."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and len(name) > 1


def is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


@cache
def defined(tree: ast.AST) -> set[str]:
    """The private names that a module gives to its functions, classes, variables and attributes."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def used(tree: ast.AST) -> Iterator[str]:
    """The private names that are imported, read or set on something else than `self`, or patched by
    name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and not is_self(node):
            yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "").endswith("attr"):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            yield from (text.rpartition(".")[2] for text in texts if isinstance(text, str))


@cache
def parsed(file: Path) -> ast.AST:
    return ast.parse(file.read_text())


@cache
def project_names() -> frozenset[str]:
    """The private names of this project; those of other libraries are not counted."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return frozenset(name for file in files for name in defined(parsed(file)))


def privates_of_others(tree: ast.AST, names: frozenset[str]) -> list[str]:
    others = names - defined(tree)
    return [name for name in used(tree) if name in others]


def test_a_private_name_of_another_module_is_seen() -> None:
    source = """
from ttc.engine import _one, two
engine._three = engine.four._attn_implementation
monkeypatch.setattr("ttc.engine._five", engine._asdict())
monkeypatch.setattr(engine, "_six", 6)
class Mine:
    def __init__(self):
        self._seven = self._three
print(Mine()._seven, "_one", config._target_)
"""
    names = frozenset({"_one", "_three", "_five", "_six", "_seven"})
    assert sorted(privates_of_others(ast.parse(source), names)) == [
        "_five",
        "_one",
        "_six",
        "_three",
    ]


@pytest.mark.slow
def test_no_test_uses_private_names_of_other_modules() -> None:
    tests = ROOT / "tests"
    names = {
        str(f.relative_to(tests)): privates_of_others(parsed(f), project_names())
        for f in tests.rglob("*.py")
    }
    counts = {file: len(used) for file, used in names.items() if used}
    many = {file: used for file, used in names.items() if len(used) != ALLOWED.get(file, 0)}
    message = f"use public names, and lower the numbers of ALLOWED where there are fewer: {many}"
    assert counts == ALLOWED, message
