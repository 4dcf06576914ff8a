"""How far off the passes are that a stored profile predicts, over time: as it was written, and with
memory's bandwidth as it is at the moment, as `memory=auto` and `experiments.plan` take it.

Each call adds turns to the record, with their time, machine and commit, so that turns are spread
over days and machines.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch

from experiments.lab.bench.cost_model import CONTEXT, OWN_TOKENS, SHAPES
from experiments.lab.bench.options import RESULTS
from experiments.lab.records import named, save
from experiments.runs.provenance import commit, machine, provenance
from ttc.calibration.pass_timer import PassTimer
from ttc.cost_model.bandwidth import read_bandwidth
from ttc.cost_model.profile_file import read
from ttc.cost_model.read_now import at_bandwidth
from ttc.cost_model.roofline import roofline_time
from ttc.cost_model.unit import Pass
from ttc.model.loading.partition import partition_units

DTYPE = torch.bfloat16
LAYERS, ROWS, CONTEXTS = 4, (1, 16), (128, 1024)
WAYS = {"stored": "as stored", "now": "bandwidth as now"}


def run(
    *,
    profile: Annotated[Path, "from experiments.profile"] = Path("profile.json"),
    turns: Annotated[int, "that are added to the record"] = 3,
    out: Path = RESULTS / "stored_profile.json",
) -> None:
    """Time all passes in each turn, print the table, and add the turns to the record, whichever
    profile and machine they are of. A record of other passes is begun anew."""
    stored = read(profile)
    device = stored.device("cpu bfloat16")
    settings = {"layers": LAYERS, "shapes": list(SHAPES)}
    rows = _before(out, settings)
    here = {"machine": named(machine()), "commit": commit()}
    timers = {name: _timer(name) for name in SHAPES}
    for _ in range(turns):
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        bandwidth = read_bandwidth()
        now = at_bandwidth(stored, bandwidth).device("cpu bfloat16")
        for name, timer in timers.items():
            units = partition_units(_config(name), DTYPE)
            for context in CONTEXTS:
                for count in ROWS:
                    work = Pass(count, own_tokens=OWN_TOKENS, shared_tokens=context)
                    rows.append(
                        {
                            "begun": begun,
                            **here,
                            "profile_bandwidth": device.bandwidth / 1e9,
                            "bandwidth": bandwidth / 1e9,
                            "model": name,
                            "context": context,
                            "rows": count,
                            "measured_ms": timer.seconds(count, context) * 1e3,
                            "stored_ms": roofline_time(units, device, work) * 1e3,
                            "now_ms": roofline_time(units, now, work) * 1e3,
                        }
                    )
        print(
            _line(_turns({"settings": settings, "rows": rows})[begun]), file=sys.stderr, flush=True
        )
        time.sleep(1)
    record = provenance(
        f"python -m experiments.bench {' '.join(sys.argv[1:])}", model="random weights, bfloat16"
    )
    save(record | {"settings": settings, "rows": rows}, out)
    print(table({"settings": settings, "rows": rows}))


def _before(out: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of earlier turns."""
    if not out.exists():
        return []
    record = json.loads(out.read_text(encoding="utf-8"))
    before = record["settings"].keys() & settings.keys()
    same = all(record["settings"][name] == settings[name] for name in before)
    return [row for turn in _turns(record).values() for row in turn] if same else []


def _config(name: str) -> Any:
    kind, shape = SHAPES[name]
    return kind(**shape, **CONTEXT, num_hidden_layers=LAYERS)


def _timer(name: str) -> PassTimer:
    return PassTimer(_config(name), torch.device("cpu"), DTYPE)


def _turns(record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each turn, by when it began."""
    turns: dict[str, list[dict[str, Any]]] = {}
    of_all: dict[str, Any] = {}
    if "machine" in record:  # rows that name none are of the record's, and of one profile
        bandwidth = record["settings"].get("profile_bandwidth", 0) / 1e9
        of_all = {"profile_bandwidth": bandwidth, "commit": record["commit"]}
        of_all["machine"] = named(record["machine"])
    for row in record["rows"]:
        turns.setdefault(row["begun"], []).append(of_all | row)
    return turns


def errors(rows: list[dict[str, Any]], way: str) -> list[float]:
    """Predicted over measured, less 1, without its sign, in ascending order."""
    return sorted(abs(row[f"{way}_ms"] / row["measured_ms"] - 1) for row in rows)


def table(record: Mapping[str, Any]) -> str:
    """Markdown: a line for each turn and for all turns of each machine, and how many there are over
    how long."""
    heads = [f"{name}: median error | largest" for name in WAYS.values()]
    turns = _turns(record)
    lines = [f"| machine | turn | memory, GB/s | in the profile | {' | '.join(heads)} |"]
    lines.append("|---" * 8 + "|")
    machines = list(dict.fromkeys(turn[0]["machine"] for turn in turns.values()))
    for name in machines:
        here = [turn for turn in turns.values() if turn[0]["machine"] == name]
        lines += map(_line, here)
        whole = _errors([row for turn in here for row in turn])
        lines.append(f"| {name} | all {len(here)} | | | {whole} |")
    first, last = (datetime.fromisoformat(begun) for begun in (min(turns), max(turns)))
    hours = (last - first).total_seconds() / 3600
    number = f"{len(machines)} machine{'s' if len(machines) > 1 else ''}"
    return "\n".join([*lines, "", f"{len(turns)} turns on {number}, over {hours:.1f} hours."])


def _line(rows: list[dict[str, Any]]) -> str:
    day, _, moment = rows[0]["begun"].partition("T")
    memory = f"{rows[0]['bandwidth']:.0f} | {rows[0]['profile_bandwidth']:.0f}"
    return f"| {rows[0]['machine']} | {day} {moment[:5]} | {memory} | {_errors(rows)} |"


def _errors(rows: list[dict[str, Any]]) -> str:
    """Of each way, the median and the largest."""
    cells = (errors(rows, way) for way in WAYS)
    return " | ".join(f"{median(cell):.0%} | {cell[-1]:.0%}" for cell in cells)
