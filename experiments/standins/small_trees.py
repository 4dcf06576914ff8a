"""A small tree of greedy branches, and what transformers makes of each: its `generate`, and one run
over the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from experiments.standins.small_models import tokens
from ttc.branch import Branch
from ttc.engine import Engine
from ttc.sampling import Sampling

PREFIX = 40


def grow(engine: Engine) -> list[Branch]:
    """Three ragged branches over a prefix longer than any window, two of them forked again."""
    greedy = Sampling(temperature=0)
    root = engine.root(tokens(1, PREFIX), seed=1)
    level = engine.fork(root, 3)
    engine.release([root])
    engine.extend(level[:2], [tokens(2, 5), tokens(3, 1)]).result()
    engine.generate(level, [6, 3, 9], sampling=greedy)
    last = engine.fork(level[0], 2) + engine.fork(level[1], 2) + level[2:]
    engine.release(level[:2])
    engine.extend([last[1], last[3]], [tokens(4, 2), tokens(5, 3)]).result()
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


def references(engine: Engine) -> dict[str, Callable[[Any, Branch], Tensor]]:
    """What the engine's log-probabilities are compared with: what `generate` computes, and one run
    over the whole, unless the two differ by transformers' own design (a least time step)."""
    recurrent = engine.runner.recurrent
    ways: dict[str, Callable[[Any, Branch], Tensor]] = {"generate": generated_logits}
    if recurrent is None or not recurrent.knows_opening:
        ways[ONE_RUN] = plain_logits
    return ways
