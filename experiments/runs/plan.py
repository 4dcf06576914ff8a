"""`python -m experiments.plan`: every way to run a search with a model on this machine, and which
is the fastest.

Settings are those of a run with `memory=auto`. No weights are read.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from experiments.cli import output
from experiments.cli.command import perform_or_help
from ttc.errors import number_of


def main() -> None:
    command = " ".join(sys.argv[1:]) or "plan for the default settings; --help shows others"
    perform_or_help(launch, "plan", command)


def launch() -> None:
    from experiments.runs.hydra_command import configured

    configured("plan", show)


def show(config: Any, overrides: Sequence[str]) -> None:
    """Print the table, what is fastest, and the command that runs it. Raises OutOfMemory where
    nothing fits."""
    from experiments.runs.auto_memory import auto_of, is_auto
    from experiments.runs.build import device_of, make_placement, source_options
    from ttc.cost_model.options import best
    from ttc.errors import InvalidInput
    from ttc.placement.auto import Chosen

    if not is_auto(config):
        raise InvalidInput(
            "a plan chooses the memory policy; leave memory=... out, and give memory.budget_gib=X "
            "alone"
        )
    auto, model = auto_of(config), config.model
    planned = auto.plan(
        model.name,
        device=device_of(config),
        dtype=model.dtype,
        placement=make_placement(config),
        quantized=model.quantized,
        **source_options(config),
    )
    options = planned.options()
    output.show(table(options, planned, model.name).markdown())
    kept = [o for o in overrides if not re.match(r"\+*(memory|placement)[.=]", o)]
    words = ["python", "-m", "experiments.run", *kept, *Chosen(planned, best(options)).settings]
    output.show(f"\nfastest: {shlex.join(words)}")


def table(options: Sequence[Any], planned: Any, model: str) -> Any:
    """A line for each option: those that are possible, the fastest first, then the others with what
    they need."""
    from experiments.cli.tables import Table, amount

    lines = []
    for option in sorted(options, key=lambda option: float(f"{option.problem_s:.6g}")):
        number = "" if option.number is None else f" {option.number}"
        times = (option.step_s, option.problem_s)
        need = (option.device_bytes, option.host_bytes, option.link_bytes)
        cells = [f"{option.placement}{number}", option.memory, str(option.problems)]
        cells += [f"{s * 1e3:.1f}" if option.feasible else "-" for s in times]
        cells += [amount(n) if n else "-" for n in need]
        lines.append([*cells, option.reason])
    search, count = planned.search, planned.problems
    at_once = f"problems at once: {count}"
    if count is None:
        at_once = "as many problems at once as a run begins"
    title = (
        f"{model}: {number_of(search.branches, 'branch', 'branches')} on "
        f"{number_of(search.prompt_tokens, 'token')}, "
        f"{number_of(search.output_tokens, 'token')} each, {search.step_tokens} a step; {at_once}"
    )
    heads = (
        *("placement", "memory", "problems", "a step, ms", "for each problem, ms"),
        *("bytes on the device", "on the host", "over the link", "not possible"),
    )
    note = "Of what is not possible, the bytes are those that it needs."
    return Table(title, heads, lines, [note] if any(o.reason for o in options) else [])
