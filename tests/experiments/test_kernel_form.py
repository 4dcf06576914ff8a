"""The trial of the kernels' form: every candidate gives the product, whatever the processor."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.lab.trials.kernel_form import cpp, emulated, measure
from experiments.lab.trials.kernel_form.call import Candidate

DTYPES = [torch.float32, torch.bfloat16]
WIDTH = 1120
"""More than one slice of a row in both types, and no power of two."""


def numbers(rows: int, dtype: torch.dtype, columns: int = 80) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, WIDTH).to(dtype), torch.randn(columns, WIDTH).to(dtype)


CASES: list[Any] = [("AVX512 BF16", dtype) for dtype in DTYPES]
CASES += [pytest.param(("AVX2", dtype), marks=pytest.mark.slow) for dtype in DTYPES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernel_form")


@pytest.fixture(scope="module", params=CASES, ids=str)
def candidates(request: pytest.FixtureRequest, folder: Path) -> dict[str, Candidate]:
    processor, dtype = request.param
    if why := measure.why_not(processor):
        pytest.skip(why)
    (folder / processor).mkdir(exist_ok=True)
    return measure.candidates(processor, dtype, folder / processor)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 45])
def test_candidates_agree_with_float64(
    candidates: dict[str, Candidate], request: pytest.FixtureRequest, rows: int
) -> None:
    dtype = request.node.callspec.params["candidates"][1]
    x, weight = numbers(rows, dtype)
    for threads in (1, 2):
        for name, candidate in candidates.items():
            by = partial(candidate, threads=threads)
            error = measure.difference(by, x, weight)
            assert error < measure.TOLERANCE, name


@pytest.mark.slow
def test_a_rows_sums_do_not_depend_on_the_rows_beside_it_nor_on_the_form(
    candidates: dict[str, Candidate], request: pytest.FixtureRequest
) -> None:
    dtype = request.node.callspec.params["candidates"][1]
    x, weight = numbers(13, dtype)
    forms = list(candidates.values())
    if dtype == torch.bfloat16:  # which instructions multiply it is each form's to say
        forms = forms[-1:]
    elif (
        request.node.callspec.params["candidates"][0] == "AVX2"
    ):  # the present one has vectors of 16
        forms = forms[1:]
    first = forms[0](x, weight)
    for form in forms:
        assert torch.equal(form(x, weight), first), form.name
        assert torch.equal(torch.cat([form(row[None], weight) for row in x]), first), form.name


def test_without_a_compiler_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler" in measure.why_not("AVX2")


@pytest.mark.parametrize("processor", emulated.FEATURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_portable_vectors_become_arms_instructions(processor: str, dtype: torch.dtype) -> None:
    text = emulated.numba_assembly(processor, dtype, 8)
    pairs = dtype == torch.bfloat16 and processor == "NEON BF16"
    assert len(re.findall(r"\bbfdot\b" if pairs else r"\bfmla\b", text)) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("processor", emulated.FEATURES)
@pytest.mark.parametrize("form", cpp.VECTORS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cpp_runs_on_arm(processor: str, form: str, dtype: torch.dtype, tmp_path: Path) -> None:
    if why := emulated.why_not(processor):
        pytest.skip(why)
    program = emulated.cpp_program(form, processor, dtype, tmp_path)
    x, weight = numbers(13, dtype)
    error = measure.difference(lambda a, b: emulated.product(program, a, b), x, weight)
    assert error < measure.TOLERANCE
