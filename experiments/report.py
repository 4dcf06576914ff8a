"""`python -m experiments.report`: write the README's tables from the figures under experiments/results/."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.bench import cache, memory, prefix

RESULTS = Path(__file__).parent / "results"


def default_task(result: dict[str, Any]) -> str:
    """Searches on the default task at about one token budget."""
    lines = ["| search | verifier | accuracy | 95% interval | tokens per problem |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        low, high = row["accuracy_95"]
        lines.append(
            f"| {row['search']} | {row['verifier']} | {row['accuracy']:.1%} | {low:.1%} to {high:.1%} | "
            f"{row['generated_tokens_per_problem']:.0f} |"
        )
    return "\n".join(lines)


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "default_task": ("default_task", default_task),
    "prefix": ("prefix", prefix.table),
    "memory_bytes": ("memory", memory.bytes_table),
    "cache": ("cache", cache.table),
}
"""What stands between the README's markers of each name: (file of figures, how it becomes a table)."""


def fill(text: str, name: str, table: str) -> str:
    """Replace what stands between the markers of `name`."""
    pattern = re.compile(rf"(<!-- results:{name} -->\n).*?(<!-- /results:{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"README.md has no markers for results:{name}")
    return pattern.sub(lambda m: f"{m[1]}{table}\n{m[2]}", text)


def main() -> None:
    readme = Path("README.md")
    text = readme.read_text(encoding="utf-8")
    for name, (file, table) in TABLES.items():
        text = fill(text, name, table(json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))))
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
