"""The benchmark of shared prefixes: what transformers' continuous batching is asked for."""

from __future__ import annotations

import json
from pathlib import Path
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


@pytest.mark.parametrize(
    ("units", "named"), [(True, "bfloat16"), (False, "generate in float32 and engine in bfloat16")]
)
def test_the_short_cases_run_in_the_type_that_each_way_is_faster_in(
    units: bool, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    types = {"generate": "bfloat16" if units else "float32", "engine": "bfloat16"}
    monkeypatch.setattr(prefix, "generate_dtype", lambda: types["generate"])
    monkeypatch.setattr(prefix, "default_dtype", lambda model: types["engine"])
    asked: list[list[str]] = []

    def measured(words: list[str], environment: Any) -> dict[str, Any]:
        asked.append(words)
        return {"step_ms": 1.0, "prefill_s": 1.0, "kv_bytes": 0, "peak_bytes": 0}

    monkeypatch.setattr(prefix, "measure", measured)
    monkeypatch.setattr(prefix, "read_bandwidth", lambda: 1e9)
    weight = SimpleNamespace(numel=lambda: 1, element_size=lambda: 2)
    model = SimpleNamespace(parameters=lambda: [weight])
    monkeypatch.setattr(prefix, "load", lambda name, dtype: (model, None))
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"another processor": {"rows": []}}))
    prefix.run(short=True, model="a-model", out=file)
    assert {words[0]: words[4] for words in asked} == types
    stored = [tuple(map(int, words[1:3])) for words in asked if words[5:] == ["--quantized"]]
    assert stored == list(prefix.STORED)
    assert len(asked) == 2 * len(prefix.SHORT) + len(stored)
    records = json.loads(file.read_text())
    assert records.pop("another processor") == {"rows": []}
    (record,) = records.values()
    assert record["model"].startswith(f"a-model, {named}, its real weights")
