"""How much KV memory keeps, at its peak, for the most KV that branches have at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.lab.bench.options import RESULTS, Model
from experiments.lab.bench.search import problems_of
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from search import BeamSearch, BestOfN, Search, solve
from ttc.engine import Engine
from ttc.tree.segment import common_prefix
from verifiers import ArithmeticVerifier

SEARCHES: dict[str, Search] = {
    "best of 16": BestOfN(n=16, max_tokens=400),
    "beam search, 4 x 4, steps of 32": BeamSearch(
        beam_size=4, beam_width=4, step_tokens=32, max_steps=12, delimiter=None
    ),
}


@contextmanager
def counted(engine: Engine) -> Iterator[dict[str, int]]:
    """The most tokens that are kept at once, and the most that branches have after a pass."""
    most, forward = {"kept": 0, "written": 0}, engine.runner.forward

    def passes(*given: Any, **options: Any) -> Any:
        output = forward(*given, **options)
        texts = sorted(branch.tokens[:-1] for branch in engine.live)
        common = [common_prefix(*pair) for pair in pairwise(texts)]
        written = sum(map(len, texts)) - sum(common)
        most["written"] = max(most["written"], written)
        return output

    engine.runner.forward = passes  # type: ignore[method-assign]
    device = engine.memory.device
    device.peak_bytes = device.used_bytes
    try:
        yield most
    finally:
        most["kept"] = device.peak_bytes // engine.memory.bytes_per_token
        engine.runner.forward = forward  # type: ignore[method-assign]


def run(
    *, problems: int = 3, model: Model = "smollm2-135m", out: Path = RESULTS / "kept.json"
) -> None:
    """Measure, write the record, and print it as a table."""
    engine, verifier = Engine.from_pretrained(model), ArithmeticVerifier()
    rows = []
    for name, search in SEARCHES.items():
        for problem in problems_of(None, problems):
            with counted(engine) as most:
                solve(search, engine=engine, verifier=verifier, problem=problem, seed=0)
            rows.append({"search": name} | most)
    about = f"{model}, its real weights"
    record = provenance("python -m experiments.bench kept", model=about) | {"rows": rows}
    save(record, out)
    print(table(record))


def table(record: dict[str, Any]) -> str:
    lines = [
        "| search | problems | most written, tokens | most kept / most written, least and most |",
        "|---" * 4 + "|",
    ]
    for name in dict.fromkeys(row["search"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["search"] == name]
        ratios = [row["kept"] / row["written"] for row in rows]
        lines.append(
            f"| {name} | {len(rows)} | {max(row['written'] for row in rows):,} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} |"
        )
    return "\n".join(lines)
