"""Every causal language model of transformers that a small configuration builds: exact, refused, or
wrong?

Each model has windows and chunks of 16 tokens, and grows a small tree of greedy branches that are
longer than those. Every branch is then compared with transformers' `generate` on the same weights,
with its cache, and with one plain run.
"""

from __future__ import annotations

import copy
import json
import logging
import multiprocessing
import re
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from experiments.lab.bench.small_models import (
    CANNOT_BUILD,
    WINDOW,
    Characters,
    build,
    cases,
    is_decoder,
    model_class,
    tokens,
)
from experiments.lab.pretended import NAME, pretended_devices
from experiments.runs.provenance import provenance
from ttc.engine import Engine
from ttc.errors import UnsupportedModel
from ttc.model.check import WAY_OUT
from ttc.sampling import Sampling
from ttc.tree.branch import Branch

PREFIX, SECONDS = 40, 180


class TookTooLong(BaseException):
    """A case ran out of time; not an `Exception`, so that nothing on the way takes it for an error
    of the model."""


def grow(engine: Engine) -> list[Branch]:
    """Three ragged branches over a prefix longer than any window, two of them forked again."""
    greedy = Sampling(temperature=0)
    root = engine.root(tokens(1, PREFIX), seed=1)
    level = engine.fork(root, 3)
    engine.release([root])
    engine.extend(level[:2], [tokens(2, 5), tokens(3, 1)])
    engine.generate(level, [6, 3, 9], sampling=greedy)
    last = engine.fork(level[0], 2) + engine.fork(level[1], 2) + level[2:]
    engine.release(level[:2])
    engine.extend([last[1], last[3]], [tokens(4, 2), tokens(5, 3)])
    engine.generate(last, 6, sampling=greedy)
    return last


class Forced(LogitsProcessor):
    """Has `generate` write given tokens, whatever the model prefers."""

    def __init__(self, tokens: list[int], start: int):
        self.tokens, self.place = tokens, start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.tokens[self.place]] = 0
        self.place += 1
        return forced


@torch.no_grad()
def plain_logits(model: Any, branch: Branch) -> Tensor:
    """The logits (tokens, vocabulary) of transformers in one run over all of a branch's tokens."""
    logits: Tensor = model(input_ids=torch.tensor([branch.tokens]), use_cache=False).logits[0]
    return logits.double()


def generated_logits(model: Any, branch: Branch) -> Tensor:
    """The logits (tokens, vocabulary) of transformers' own `generate`, with the cache that it
    makes, of all tokens before the branch's first generated one and of those that it is made to
    write. Rows before the last of the prompt are NaN: nobody reads them."""
    ids, start = torch.tensor([branch.tokens]), branch.opening
    options: dict[str, Any] = {"do_sample": False, "output_logits": True}
    options["return_dict_in_generate"] = True
    written = model.generate(
        ids[:, :start],
        attention_mask=torch.ones_like(ids[:, :start]),
        max_new_tokens=len(branch.tokens) - start,
        logits_processor=[Forced(branch.tokens, start)],
        **options,
    )
    if written.sequences[0].tolist() != branch.tokens:
        raise RuntimeError("generate wrote other tokens than it was made to")
    rows = torch.cat(written.logits).double()
    return torch.cat([rows.new_full((start - 1, rows.shape[1]), torch.nan), rows])


ONE_RUN = "one run"
CHUNKED = 2.0
"""How many times as far as another model one with recurrent layers may be from one run over the
whole. Transformers computes that in chunks, and `generate` and the engine go token by token."""


def difference(
    model: Any,
    branches: Iterable[Branch],
    logits_of: Callable[[Any, Branch], Tensor],
) -> tuple[float, float]:
    """(largest difference of a log-probability from those of `logits_of`, the difference that is
    allowed), in nats."""
    worst, allowed = 0.0, 0.0
    for branch in branches:
        logits = logits_of(model, branch)
        rows = logits.log_softmax(-1)
        largest = float(logits[branch.opening - 1 :].abs().max())
        allowed = max(allowed, 1e-4 + 1e-5 * largest)
        for place, (token, logprob) in enumerate(
            zip(branch.generated, branch.logprobs, strict=True)
        ):
            row = rows[branch.prompt_length + place - 1]
            if logprob == logprob:  # else a given token
                gap = max(abs(float(row[token]) - logprob), float(row.max() - row[token]))
                worst = max(worst, gap if gap == gap else float("inf"))
    return worst, allowed


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


def references(engine: Engine) -> dict[str, Callable[[Any, Branch], Tensor]]:
    """What the engine's log-probabilities are compared with: what `generate` computes, and one run
    over the whole, unless the two differ by transformers' own design (a least time step)."""
    recurrent = engine.runner.recurrent
    ways: dict[str, Callable[[Any, Branch], Tensor]] = {"generate": generated_logits}
    if recurrent is None or not recurrent.knows_opening:
        ways[ONE_RUN] = plain_logits
    return ways


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
    end the sweep. device: as in `examine`, also one of `experiments.lab.pretended`."""
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


def run(names: list[str], out: Path) -> None:
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
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
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
