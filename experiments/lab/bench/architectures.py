"""Every causal language model of transformers that a small configuration builds: exact, refused, or
wrong?

Each model has windows and chunks of 16 tokens, and grows a small tree of greedy branches that are
longer than those. Every branch is then compared with transformers' `generate` on the same weights,
with its cache, and with one plain run.
"""

from __future__ import annotations

import copy
import logging
import multiprocessing
import re
import signal
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, Any

import torch

from experiments.lab.bench.options import RESULTS
from experiments.lab.records import save
from experiments.runs.provenance import provenance
from experiments.standins.pretended import NAME, pretended_devices
from experiments.standins.small_models import (
    CANNOT_BUILD,
    WINDOW,
    Characters,
    build,
    cases,
    is_decoder,
    model_class,
)
from experiments.standins.small_trees import ONE_RUN, difference, grow, references
from ttc.engine import Engine
from ttc.errors import UnsupportedModel
from ttc.model.check.model_check import WAY_OUT

SECONDS = 180
CHUNKED = 2.0
"""How many times as far as another model one with recurrent layers may be from one run over the
whole. Transformers computes that in chunks, and `generate` and the engine go token by token."""


class TookTooLong(BaseException):
    """A case ran out of time; not an `Exception`, so that nothing on the way takes it for an error
    of the model."""


def examine(case: str, window: int = WINDOW, device: str = "cpu") -> dict[str, Any]:
    """One row of the table: {case, model, verdict, ...}; the verdict is exact, refused, wrong or
    not built. device: where the engine runs the model; transformers runs it on the CPU."""
    row: dict[str, Any] = {"case": case, "model": model_class(case)}
    try:
        model = build(case, window)
    except Exception as error:
        reason = (
            f"{CANNOT_BUILD[case]} ({_short(error)})" if case in CANNOT_BUILD else _short(error)
        )
        return row | {"verdict": "not built", "reason": reason}
    try:
        engine = Engine(copy.deepcopy(model).to(device), Characters(), prefill_tokens=16)
    except UnsupportedModel as error:
        return row | {"verdict": "refused", "reason": _short(error)}
    except Exception as error:
        return row | {
            "verdict": "wrong",
            "reason": f"neither accepted nor refused, but {type(error).__name__}: {error}",
        }
    try:
        branches = grow(engine)
        if any(branch.usage.recomputed_tokens for branch in branches):
            return row | {"verdict": "wrong", "reason": "its own passes count as changes of it"}
        ways = references(engine)
        gaps = {way: difference(model, branches, logits_of) for way, logits_of in ways.items()}
        if ONE_RUN in gaps and engine.runner.recurrent is not None:
            worst, allowed = gaps[ONE_RUN]
            gaps[ONE_RUN] = worst, allowed * CHUNKED
    except Exception as error:
        return row | {
            "verdict": "wrong",
            "reason": f"accepted, then {type(error).__name__}: {_short(error)}",
        }
    exact = all(worst <= allowed for worst, allowed in gaps.values())
    worst, allowed = max(gaps.values(), key=lambda gap: gap[0] / gap[1])
    found = {"worst_nats": worst, "allowed_nats": allowed, "compared_with": list(gaps)}
    return row | {"verdict": "exact" if exact else "wrong"} | found


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:900] or type(error).__name__


def _examine_quietly(case: str, device: str) -> dict[str, Any]:
    def late(*_: Any) -> None:
        raise TookTooLong

    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # a GPU's results are compared with a CPU's
    if device.startswith(NAME):
        pretended_devices()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        return examine(case, device=device)
    finally:
        signal.alarm(0)


def sweep(names: Iterable[str], device: str = "cpu") -> Iterator[dict[str, Any]]:
    """A row for each case. Another process computes them, so that a model that crashes it does not
    end the sweep. device: as in `examine`, also one of `experiments.standins.pretended`."""
    pool: ProcessPoolExecutor | None = None
    for case in names:
        pool = pool or ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        lost = {"case": case, "model": model_class(case), "verdict": "wrong"}
        try:
            yield pool.submit(_examine_quietly, case, device).result()
        except BrokenProcessPool:
            pool = None
            yield lost | {"reason": "the process died"}
        except TookTooLong:
            yield lost | {"reason": f"took longer than {SECONDS} s"}
    if pool is not None:
        pool.shutdown()


def run(
    names: Annotated[Sequence[str], "the models to try; default: all"] = (),
    /,
    *,
    out: Path = RESULTS / "architectures.json",
) -> None:
    """Sweep, print the table and write it; exit with an error if a model is wrong."""
    rows = []
    for row in sweep(names or cases()):
        rows.append(row)
        found = row.get("reason") or f"off by {row['worst_nats']:.1e} nats at most"
        print(f"{row['case']:26} {row['verdict']:9} {found}", flush=True)
    command = " ".join(["python -m experiments.bench architectures", *names])
    result = provenance(
        command, model="every causal language model of transformers, small, random weights, float32"
    )
    result |= {"rows": rows}
    save(result, out)
    print(summary(result))
    if wrong := [row["case"] for row in rows if row["verdict"] == "wrong"]:
        raise SystemExit(f"wrong: {', '.join(wrong)}")


def summary(result: dict[str, Any]) -> str:
    """How many models got each verdict, decoders first, then encoders and encoder-decoders."""
    count = Counter((row["verdict"], is_decoder(row["case"])) for row in result["rows"])
    kinds = {"decoders": True, "encoders and encoder-decoders": False}
    verdicts = ("exact", "refused", "wrong", "not built")
    return "; ".join(
        f"{kind}: " + ", ".join(f"{count[verdict, decoder]} {verdict}" for verdict in verdicts)
        for kind, decoder in kinds.items()
    )


def table(result: dict[str, Any]) -> str:
    """The decoders by verdict, in Markdown."""
    rows: dict[str, list[str]] = {}
    for row in result["rows"]:
        if is_decoder(row["case"]):
            reached = (
                row["verdict"] != "refused" or "does not dispatch attention" not in row["reason"]
            )
            rows.setdefault(row["verdict"] if reached else "not reached", []).append(row["case"])
    kinds = {
        "exact": "exact",
        "refused": "refused, each for a reason of its own",
        "not reached": "refused: attention does not go through transformers' `AttentionInterface`",
        "wrong": "wrong",
        "not built": "not tried: no small configuration builds it",
    }
    lines = ["| verdict | how many | decoders |", "|---|---|---|"]
    for kind, words in kinds.items():
        names = rows.get(kind, [])
        lines.append(f"| {words} | {len(names)} | {', '.join(names)} |")
    return "\n".join([*lines, "", f"Tried with transformers {result['machine']['transformers']}."])


def refusals(result: dict[str, Any]) -> str:
    """Why models are refused or were not tried, and the verdicts of encoders, in Markdown."""
    rows = {verdict: list[dict[str, Any]]() for verdict in ("exact", "refused", "not built")}
    for row in result["rows"]:
        rows.setdefault(row["verdict"], []).append(row)
    encoders = [row["case"] for row in rows["exact"] if not is_decoder(row["case"])]
    decoders = [row for row in rows["refused"] if is_decoder(row["case"])]
    others = [row for row in rows["refused"] if not is_decoder(row["case"])]
    lines = [
        f"{summary(result)}.",
        "",
        f"Exact encoders and encoder-decoders: {', '.join(encoders)}.",
        *_reasons("refused decoder", decoders),
        *_reasons("refused encoder or encoder-decoder", others),
        *_reasons("not tried", rows["not built"]),
    ]
    return "\n".join(lines)


def _reasons(title: str, rows: list[dict[str, Any]]) -> list[str]:
    """A table with a line for each reason, without the error that transformers raised."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        reason = row["reason"]
        if row["verdict"] == "refused":
            reason = (reason.partition(": ")[2] or reason).removesuffix(WAY_OUT)
            reason = re.split(r"; the model ignores| \(it ends a text|\. If no window", reason)[0]
        else:
            reason = reason.partition(" (")[0]
        cases.setdefault(reason.replace("|", "/"), []).append(row["case"])
    lines = [f"| {', '.join(names)} | {reason} |" for reason, names in cases.items()]
    return ["", f"| {title} | reason |", "|---|---|", *lines]
