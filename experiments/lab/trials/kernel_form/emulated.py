"""The candidates on a processor that this machine does not have: compiled for it, and run by
QEMU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from experiments.lab.trials.kernel_form import cpp, portable

EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
FEATURES = {"NEON": "+neon", "NEON BF16": "+neon,+bf16"}
"""Processors, with LLVM's words for what they have."""


def why_not(processor: str) -> str:
    """Why a processor cannot be tried here; empty if it can."""
    if cpp.compiler(processor) is None:
        return "no C++ compiler for aarch64 (Debian: g++-aarch64-linux-gnu)"
    if EMULATOR is None and os.uname().machine != "aarch64":
        return "no emulator of aarch64 (Debian: qemu-user-static)"
    return ""


def cpp_program(form: str, processor: str, dtype: torch.dtype, folder: Path) -> Path:
    """One of the C++ candidates as a program."""
    kernel = "product_bfloat16" if dtype == torch.bfloat16 else "product_float32"
    program = folder / kernel
    source = cpp.SOURCE.with_name("program.cpp")
    cpp.build(processor, program, "-static", f"-DKERNEL={kernel}", *cpp.VECTORS[form], str(source))
    return program


def numba_assembly(processor: str, dtype: torch.dtype, rows: int) -> str:
    """What LLVM makes of the portable numba candidate's tile of so many rows for a processor, as
    assembly.

    numba itself compiles for the machine that it runs on, so the rest of the candidate is not
    tried.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    kind = portable.PROCESSORS[processor]
    module = ir.Module()
    module.triple = "aarch64-linux-gnu"
    numbers = [portable.I64] * 7 + [ir.IntType(1), portable.I64]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), numbers), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    emitter = portable.Emitter(builder, kind, dtype == torch.bfloat16)
    emitter.tile(rows, kind.cells // rows, function.args)
    builder.ret_void()
    target = llvm.Target.from_triple(module.triple)
    machine = target.create_target_machine(features=FEATURES[processor], opt=3)
    compiled = llvm.parse_assembly(str(module))
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(compiled, builder)
    return str(machine.emit_assembly(compiled))


def product(program: Path, x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in float32, by a program."""
    width = x.shape[1] * x.element_size()
    sizes = np.array([len(x), len(weight), width], np.int64).tobytes()
    numbers = [tensor.view(torch.uint8).numpy().tobytes() for tensor in (x, weight)]
    words = (
        [EMULATOR, "-cpu", "max", str(program)]
        if os.uname().machine != "aarch64"
        else [str(program)]
    )
    done = subprocess.run(
        [str(word) for word in words], input=sizes + b"".join(numbers), capture_output=True
    )
    done.check_returncode()
    return torch.from_numpy(
        np.frombuffer(done.stdout, np.float32).reshape(len(x), len(weight)).copy()
    )
