"""The attention kernel spills nothing on the GPUs that it is for, and fits their
multiprocessors."""

from __future__ import annotations

import json
import os
import sys

import pytest

from experiments.lab.bench.gpu_resources import DTYPES, Variant, variants
from tests.helpers.processes import finished

CODE = """
import json, sys
from dataclasses import asdict
import torch
from experiments.lab.bench.gpu_resources import Variant, compiled, read
capability, dtype, dim, queries = json.loads(sys.argv[1])
variant = Variant(capability, getattr(torch, dtype), dim, queries)
made = compiled(variant)
ptx = made.asm["ptx"]
print(json.dumps(asdict(read(made, variant)) | {
    "products": ptx.count("mma"), "copies": ptx.count("cp.async.cg.shared.global")
}))
"""
"""In a process of its own, where kernels are compiled rather than interpreted."""


@pytest.mark.slow
@pytest.mark.parametrize("variant", variants())
def test_a_variant_spills_nothing_and_shares_its_multiprocessor(variant: Variant) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    dtype = str(variant.dtype).removeprefix("torch.")
    case = json.dumps([variant.capability, dtype, variant.dim, variant.queries])
    call = [sys.executable, "-c", CODE, case]
    taken = json.loads(finished(call, env=environment, check=True).stdout)
    assert taken["spilled"] == 0
    assert taken["programs"] >= 2
    if DTYPES[variant.dtype] == "bf16":  # matrix products, fed 16 bytes at a time
        assert taken["products"] > 0 and taken["copies"] > 0
