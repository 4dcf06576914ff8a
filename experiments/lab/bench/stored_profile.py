"""How far off the passes are that a stored profile predicts, over time: as it was written, and with
memory's bandwidth as it is at the moment, as `memory=auto` and `experiments.plan` take it.

Each call adds turns to the record, so that turns can be spread over a day.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.lab.bench.cost_model import CONTEXT, OWN_TOKENS, SHAPES
from experiments.runs.provenance import machine, provenance
from ttc.calibration.pass_timer import PassTimer
from ttc.cost_model.bandwidth import read_bandwidth
from ttc.cost_model.profile_file import read
from ttc.cost_model.read_now import at_bandwidth
from ttc.cost_model.roofline import roofline_time
from ttc.cost_model.unit import Pass
from ttc.model.partition import partition_units

DTYPE = torch.bfloat16
LAYERS, ROWS, CONTEXTS = 4, (1, 16), (128, 1024)
WAYS = {"stored": "as stored", "now": "bandwidth as now"}


def run(profile: Path, turns: int, out: Path) -> None:
    """Time all passes in each turn, print the table, and add the turns to the record, whichever
    profile they are predicted from. A record of another machine is begun anew."""
    stored = read(profile)
    device = stored.device("cpu bfloat16")
    settings = {"layers": LAYERS, "shapes": list(SHAPES)}
    rows = _before(out, settings)
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
    out.write_text(
        json.dumps(record | {"settings": settings, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    print(table({"settings": settings, "rows": rows}))


def _before(out: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of earlier turns."""
    if not out.exists():
        return []
    record = json.loads(out.read_text(encoding="utf-8"))
    before = record["settings"].keys() & settings.keys()
    same = all(record["settings"][name] == settings[name] for name in before)
    same = same and record["machine"] == machine()
    return [row for turn in _turns(record).values() for row in turn] if same else []


def _config(name: str) -> Any:
    kind, shape = SHAPES[name]
    return kind(**shape, **CONTEXT, num_hidden_layers=LAYERS)


def _timer(name: str) -> PassTimer:
    return PassTimer(_config(name), torch.device("cpu"), DTYPE)


def _turns(record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    turns: dict[str, list[dict[str, Any]]] = {}
    of_all = record["settings"].get("profile_bandwidth", 0)  # where all are of one profile
    for row in record["rows"]:
        turns.setdefault(row["begun"], []).append({"profile_bandwidth": of_all / 1e9} | row)
    return turns


def errors(rows: list[dict[str, Any]], way: str) -> list[float]:
    """Predicted over measured, less 1, without its sign, in ascending order."""
    return sorted(abs(row[f"{way}_ms"] / row["measured_ms"] - 1) for row in rows)


def table(record: Mapping[str, Any]) -> str:
    """Markdown: a line for each turn, and all of them."""
    heads = [f"{name}: median error | largest" for name in WAYS.values()]
    turns = _turns(record)
    rows = [row for turn in turns.values() for row in turn]
    whole = [
        f"{median(found):.0%} | {found[-1]:.0%}" for found in (errors(rows, way) for way in WAYS)
    ]
    return "\n".join(
        [
            f"| turn | memory, GB/s | in the profile | {' | '.join(heads)} |",
            "|---" * 7 + "|",
            *map(_line, turns.values()),
            f"| all {len(turns)} | | | {' | '.join(whole)} |",
        ]
    )


def _line(rows: list[dict[str, Any]]) -> str:
    cells = [
        f"{median(found):.0%} | {found[-1]:.0%}" for found in (errors(rows, way) for way in WAYS)
    ]
    day, _, moment = rows[0]["begun"].partition("T")
    memory = f"{rows[0]['bandwidth']:.0f} | {rows[0]['profile_bandwidth']:.0f}"
    return f"| {day} {moment[:5]} | {memory} | {' | '.join(cells)} |"
