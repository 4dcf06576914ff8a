"""The benchmark of shared prefixes: what transformers' continuous batching is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.lab.bench import prefix


class Model:
    """Answers with three tokens a request, a second apart, the later requests half a second later.
    forks: whether it takes num_return_sequences."""

    def __init__(self, forks: bool):
        self.forks, self.asked = forks, list[tuple[int, int]]()

    def generate_batch(
        self, inputs: list[list[int]], generation_config: Any, **_: Any
    ) -> dict[str, Any]:
        copies = generation_config.num_return_sequences or 1
        self.asked.append((len(inputs), copies))
        count = len(inputs) * (copies if self.forks else 1)
        times = [[100 + n / 2 + token for token in range(3)] for n in range(count)]
        return {str(n): SimpleNamespace(timestamps=stamps) for n, stamps in enumerate(times)}


@pytest.mark.parametrize(("forks", "asked"), [(True, [(1, 4)]), (False, [(1, 4), (4, 1)])])
def test_one_request_is_forked_where_that_can_be_and_repeated_where_not(
    forks: bool, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix.time, "perf_counter", lambda: 90.0)
    model = Model(forks)
    figures = prefix.ARMS["generate_batch"](model, None, [5] * 20, 4)
    assert model.asked[1:] == asked  # the first warms up
    # of the last request that begins
    assert figures == {"prefill_s": 11.5, "step_ms": 1000, "kv_bytes": None}


def test_the_table_of_another_processor_has_both_types_beside_generate() -> None:
    steps = {
        ("generate", "float32"): 90.0,
        ("engine", "float32"): 30.0,
        ("engine", "bfloat16"): 45.0,
    }
    rows = [
        {"tokens": 1024, "branches": 8, "arm": arm, "dtype": dtype, "step_ms": step}
        for (arm, dtype), step in steps.items()
    ]
    last = prefix.avx2_table({"rows": rows}).splitlines()[-1]
    assert last == "| 1,024 | 8 | 90 ms | 30 ms (3.0x) | 45 ms (2.0x) |"
