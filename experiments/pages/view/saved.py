"""Results that a program has saved, as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ttc.drawing import written
from ttc.errors import refusing
from ttc.results import BranchRecord, Result
from ttc.text.encodable import encodable

HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 1.5em; color: #1c2128; background: #fff }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f7f9; border-radius: 4px;
      padding: .6em }}
pre.thought {{ color: #57606a; font-style: italic }}
</style>
</head>
<body>
"""


def results_of(file: Path) -> list[Result]:
    """The results in a file of JSON: what `Result.to_dict` returned, or a list of these. Raises
    InvalidInput."""
    with refusing(
        (ValueError, RecursionError),
        f"{file} is no JSON ({{error}}); save a result by json.dump(result.to_dict(), file), or "
        "give a run's folder",
    ):
        values = encodable(json.loads(file.read_text(encoding="utf-8")))
    return [Result.from_dict(each) for each in (values if isinstance(values, list) else [values])]


def results_page(results: Sequence[Result], title: str) -> str:
    parts = [HEAD.format(title=written(title))]
    for result in results:
        parts.append(result._repr_html_())
        parts += [_candidate(branch) for branch in result.branches]
    return "\n".join([*parts, "</body>", "</html>", ""])


def _parts(branch: BranchRecord) -> str:
    if not branch.thought:
        return f"<pre>{written(branch.text)}</pre>"
    answer = "" if branch.answer_text is None else f"<pre>{written(branch.answer_text)}</pre>"
    return f'<pre class="thought">{written(branch.thought)}</pre>{answer}'


def _candidate(branch: BranchRecord) -> str:
    score = "no score" if branch.score is None else f"score {branch.score:.3g}"
    end = branch.finish_reason or "unfinished"
    place = ".".join(map(str, branch.path))
    return f"<details><summary>branch {place}: {score}, {end}</summary>{_parts(branch)}</details>"
