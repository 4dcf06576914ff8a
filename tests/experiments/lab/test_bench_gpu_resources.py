"""The attention kernel spills nothing on the GPUs that it is for, and fits their
multiprocessors."""

from __future__ import annotations

import json
import os
import sys

import pytest

from experiments.lab.bench.gpu_resources import DTYPES, variants
from tests.helpers.processes import finished

CODE = """
import json, sys
from dataclasses import asdict
import torch
from experiments.lab.bench.gpu_resources import Variant, compiled, read
for capability, dtype, dim, queries in json.loads(sys.argv[1]):
    variant = Variant(capability, getattr(torch, dtype), dim, queries)
    made = compiled(variant)
    ptx = made.asm["ptx"]
    print(json.dumps(asdict(read(made, variant)) | {
        "products": ptx.count("mma"), "copies": ptx.count("cp.async.cg.shared.global")
    }))
"""
"""In a process of its own, where kernels are compiled rather than interpreted."""


@pytest.mark.slow
@pytest.mark.parametrize("capability", sorted({variant.capability for variant in variants()}))
def test_a_variant_spills_nothing_and_shares_its_multiprocessor(capability: int) -> None:
    chosen = [variant for variant in variants() if variant.capability == capability]
    cases = [(capability, str(v.dtype).removeprefix("torch."), v.dim, v.queries) for v in chosen]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = finished([sys.executable, "-c", CODE, json.dumps(cases)], env=environment, check=True)
    for variant, line in zip(chosen, done.stdout.splitlines(), strict=True):
        taken = json.loads(line)
        assert taken["spilled"] == 0, variant
        assert taken["programs"] >= 2, variant
        if DTYPES[variant.dtype] == "bf16":  # matrix products, fed 16 bytes at a time
            assert taken["products"] > 0 and taken["copies"] > 0, variant
