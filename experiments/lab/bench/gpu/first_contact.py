"""`python -m experiments.bench gpu`: everything that a machine with a GPU can say of this project,
within a time, whatever fails.

Each part runs in a process of its own with a limit. What it has found is read when it ends, however
it ends, and the file to send is written again after each part.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from experiments.cli.output import say
from experiments.cli.output import show as show_text
from experiments.cli.tables import Table, amount
from experiments.lab.bench.gpu.machine import FAILED, LEFT_OUT, MEASURED, RIGHT, WRONG, Machine, Row
from experiments.lab.bench.gpu.parts import REHEARSAL_TIMES, Asked, Part, parts
from experiments.lab.bench.options import Model, Peer
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from ttc.errors import InvalidInput, number_of

TOO_LONG, KILLED = "too long", "killed"
GOOD = (RIGHT, MEASURED, LEFT_OUT)
MINUTES = 20.0
TAIL = 4000
"""Characters of a failed part's last words that are kept."""


def command(
    *,
    rehearse: Annotated[bool, "without a GPU: tiny, over stand-ins for one"] = False,
    model: Model = "smollm2-135m",
    peer: Peer = None,
    minutes: Annotated[float | None, "of all; default: 20, rehearsed 60"] = None,
    out: Path = Path("first_contact.json"),
    show: Annotated[Path | None, "print what such a file says, and run nothing"] = None,
) -> int:
    """First contact with a GPU."""
    if show is None:
        return run(Asked(rehearse, model, peer), minutes, out)
    show_text(report(show))
    return 0


def run(
    asked: Asked, minutes: float | None, out: Path, all_parts: Sequence[Part] | None = None
) -> int:
    """Run the parts one after the other, print a table and write the file. Returns 1 where a part
    is not as it should be, else 0.

    minutes: of all parts together, None for `MINUTES`, and longer in a rehearsal; what is not
    reached is left out. Raises InvalidInput without a GPU, unless it is a rehearsal.
    """
    Machine.of(asked.rehearse)
    if minutes is None:
        minutes = MINUTES * (REHEARSAL_TIMES if asked.rehearse else 1)
    end = time.monotonic() + 60 * minutes
    words = " ".join(["python -m experiments.bench", *sys.argv[1:]])
    simulated = "the GPU: a rehearsal" if asked.rehearse else "nothing"
    record = provenance(words, model=asked.model, simulated=simulated) | {"parts": []}
    for part in parts(asked.rehearse) if all_parts is None else all_parts:
        left = end - time.monotonic()
        if left < 5:
            record["parts"].append(_part(part, LEFT_OUT, [], 0.0, "no time was left"))
        else:
            say(f"{part.name}: {part.about}, {min(part.seconds, left):.0f} s at most")
            record["parts"].append(run_part(part, asked, min(part.seconds, left)))
            say(_line(record["parts"][-1]))
        save(record, out)
    show_text(table(record))
    say(f"send this file: {out}")
    return int(any(part["verdict"] not in GOOD for part in record["parts"]))


def run_part(part: Part, asked: Asked, seconds: float) -> dict[str, Any]:
    """What a part found, and how it ended. It and all that it started are killed after
    `seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        file, words = Path(folder) / "rows.jsonl", Path(folder) / "words"
        start = time.perf_counter()
        late, code = False, 0
        with words.open("w+", encoding="utf-8", errors="replace") as heard:
            process = subprocess.Popen(
                part.words(asked, file), stdout=heard, stderr=heard, start_new_session=True
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                _end(process)
        taken, rows = time.perf_counter() - start, read(file)
        said = words.read_text(encoding="utf-8", errors="replace")[-TAIL:].strip()
    verdict = _verdict(rows, late, code)
    why = "" if verdict in GOOD else _why(rows, said, code)
    if late:
        why = f"{said}\nended after {seconds:.0f} s, with {number_of(len(rows), 'case')} done"
        why = why.lstrip()
    return _part(part, verdict, rows, taken, why)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a part's process group; it is the part's own session, so nothing else is in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read(file: Path) -> list[Row]:
    """The rows of a file; a last line that was not finished is left out."""
    if not file.is_file():
        return []
    rows = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def _verdict(rows: Sequence[Row], late: bool, code: int) -> str:
    if late:
        return TOO_LONG
    if code < 0:
        return KILLED
    found = {row["verdict"] for row in rows}
    if WRONG in found:
        return WRONG
    if code or FAILED in found or not rows:
        return FAILED
    return next(verdict for verdict in (RIGHT, MEASURED, LEFT_OUT) if verdict in found)


def _why(rows: Sequence[Row], said: str, code: int) -> str:
    """The first bad row's error, or the last words of the process."""
    bad = next((row for row in rows if row["verdict"] in (WRONG, FAILED)), None)
    if bad is not None:
        return f"{bad['case']}: {bad.get('error', bad['verdict'])}"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}; {said}".rstrip("; ")
    return said or "it ended without a word"


def _part(part: Part, verdict: str, rows: list[Row], seconds: float, error: str) -> dict[str, Any]:
    return {
        "part": part.name,
        "about": part.about,
        "verdict": verdict,
        "seconds": round(seconds, 1),
        "error": error,
        "rows": rows,
    }


def _line(part: dict[str, Any]) -> str:
    last = part["error"].splitlines()[-1:] or [""]
    return f"{part['part']}: {part['verdict']} in {part['seconds']} s {last[0]}".rstrip()


def table(record: dict[str, Any]) -> str:
    """A line for each part, as Markdown."""
    lines = []
    for part in record["parts"]:
        counts = Counter(row["verdict"] for row in part["rows"])
        cases = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        last = part["error"].splitlines()[-1:] or [""]
        lines.append(
            [part["about"], part["verdict"], cases, f"{part['seconds']:.0f} s", last[0][:200]]
        )
    return Table("", ("part", "verdict", "cases", "time", "why"), lines).markdown()


def report(file: Path) -> str:
    """What a file that was sent says, as Markdown: where it was made, the table, and each case with
    its figures. Raises InvalidInput for another file."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        head = f"`{record['command']}`, {record['model']}, at {record['commit'][:7]}"
        parts = [f"**{p['about']}**: {p['verdict']}\n\n{_cases(p)}" for p in record["parts"]]
        return "\n\n".join([head, table(record), *parts])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{file} is no file of `bench gpu` ({error})") from error


def _cases(part: dict[str, Any]) -> str:
    lines = []
    for row in part["rows"]:
        figures = [f"{k} {_figure(v)}" for k, v in row.items() if k not in ("case", "verdict")]
        lines.append(f"- {row['case']}: {'; '.join([row['verdict'], *figures])}")
    error = [f"```\n{part['error']}\n```"] if part["error"] else []
    return "\n\n".join(["\n".join(lines), *error]).strip()


def _figure(value: Any) -> str:
    return amount(value) if isinstance(value, float) and abs(value) < 1e21 else str(value)
