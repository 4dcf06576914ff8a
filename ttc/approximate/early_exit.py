"""CGEE level 2 (RKSC, section 2.3): branches leave a scoring pass at the layer where their score is
settled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ttc.branch import Branch
from ttc.checks import NonNegativeFloat, Options, PositiveInt
from ttc.errors import InvalidInput
from ttc.passes.new_tokens import batches, one_pass
from ttc.passes.runtime import Runtime
from ttc.passes.shrinking import LayerWatch, ShrinkingPass
from ttc.task import Passes
from ttc.tree.branch import by_problem
from ttc.usage import count_pass

ExitRule = Literal["entropy", "ranking"]


@dataclass(frozen=True)
class EarlyExit(Options):
    """When a branch leaves a scoring pass. Approximate: it is scored by the lens after that layer,
    which is what the model does after its last one (the paper's lacks the final norm).

    rule="entropy", the paper's (Eq. 5, Algorithm 3): a branch leaves after the first layer l >=
    l_min (they count from 1) at which H_l < theta and |H_l - H_(l-1)| < eps, H being the entropy of
    the lens at its last token in nats, and H_0 infinite. common_depth: all branches of a problem
    leave after the layer at which the last of them met the rule, so that their scores compare.

    rule="ranking": the branches of a problem leave together once their order by P has been the same
    after `patience` layers running, all of them >= l_min. P is the probability of a branch's first
    `positive` continuations over that of all that it was given: P(yes) / (P(yes) + P(no)). Scores
    of different calls do not compare.

    The paper calibrates theta and eps per model and data set. With 0 nothing exits.
    """

    rule: ExitRule = "entropy"
    l_min: PositiveInt = 2
    theta: NonNegativeFloat = 2.0
    eps: NonNegativeFloat = 0.1
    common_depth: bool = False
    patience: PositiveInt = 3
    positive: PositiveInt = 1

    @property
    def first_look(self) -> int:
        return max(1, self.l_min - 1) if self.rule == "entropy" else self.l_min

    @property
    def together(self) -> bool:
        """Whether the branches of a problem leave at one depth, and so must be in one pass."""
        return self.common_depth or self.rule == "ranking"


@dataclass
class ExitReport:
    """What a call of `Engine.score` with an exit computed.

    depths: the layers that each branch went through. rows: the rows that each layer computed.
    lens_rows: rows that went through norm and head to be looked at. watch: given by the caller;
    called at every look, with the places of the call's branches.
    """

    depths: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    lens_rows: int = 0
    watch: LayerWatch | None = field(default=None, repr=False, compare=False)

    def begin(self, branches: int, layers: int) -> None:
        self.depths = [0] * branches
        self.rows = [0] * layers
        self.lens_rows = 0

    @property
    def layer_rows(self) -> int:
        """Rows x layers that were computed."""
        return sum(self.rows)


# -------------------------------------------------------------------- the rules


def entropy(logits: Tensor) -> Tensor:
    """H of RKSC's Eq. 5 in nats: (rows, vocab) -> (rows,)."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).nan_to_num(0.0).sum(-1)  # a token of probability 0 adds nothing


def positive_share(logits: Tensor, tokens: Sequence[int], positive: int) -> float:
    """P: the probability of the first `positive` of `tokens` over that of all; logits (vocab,)."""
    return float(logits[list(tokens)].softmax(-1)[:positive].sum())


class EntropyRule:
    """RKSC's Algorithm 3, per branch; with `common_depth` per problem. problems: branches of
    each."""

    def __init__(self, exit: EarlyExit, problems: Sequence[Sequence[int]]):
        self.exit = exit
        self.problems = problems
        self.before: dict[int, float] = {}
        self.settled: set[int] = set()

    def __call__(self, depth: int, live: Sequence[int], logits: Tensor) -> set[int]:
        return self.leaving(depth, dict(zip(live, entropy(logits).tolist(), strict=True)))

    def leaving(self, depth: int, entropies: Mapping[int, float]) -> set[int]:
        for i, h in entropies.items():
            steady = abs(h - self.before.get(i, math.inf)) < self.exit.eps
            if depth >= self.exit.l_min and h < self.exit.theta and steady:
                self.settled.add(i)
            self.before[i] = h
        leaving = self.settled
        if self.exit.common_depth:
            whole = [rows for rows in self.problems if self.settled.issuperset(rows)]
            leaving = {i for rows in whole for i in rows}
        return leaving & entropies.keys()


class RankingRule:
    """The branches of a problem leave when their order has held. tokens: each one's
    continuations."""

    def __init__(
        self,
        exit: EarlyExit,
        problems: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]] = (),
    ):
        self.exit = exit
        self.problems = problems
        self.tokens = tokens
        self.order: list[list[int]] = [[] for _ in problems]
        self.streaks = [0] * len(problems)  # layers running

    def __call__(self, depth: int, live: Sequence[int], logits: Tensor) -> set[int]:
        shares = {
            i: positive_share(row, self.tokens[i], self.exit.positive)
            for i, row in zip(live, logits, strict=True)
        }
        return self.leaving(depth, shares)

    def leaving(self, depth: int, shares: Mapping[int, float]) -> set[int]:
        leaving = set[int]()
        for n, rows in enumerate(self.problems):
            if len(rows) > 1 and rows[0] in shares:
                order = sorted(rows, key=shares.__getitem__, reverse=True)
                self.streaks[n] = self.streaks[n] + 1 if order == self.order[n] else 1
                self.order[n] = order
                if self.streaks[n] >= self.exit.patience:
                    leaving.update(rows)
        return leaving


# -------------------------------------------------------------------- scoring


@torch.inference_mode()
def score_with_exit(
    runtime: Runtime,
    branches: Sequence[Branch],
    contexts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    exit: EarlyExit,
    report: ExitReport,
    first: int = 0,
) -> Passes[list[list[list[float]]]]:
    """See `Engine.score`. tokens[i]: the single-token continuations of branch i after
    `contexts[i]`.
    first: the place of branch 0 in the call of the report."""
    layers = len(runtime.lens.layers)
    if exit.l_min > layers:
        raise InvalidInput(
            f"l_min={exit.l_min} is more than the model's {layers} layers; use {layers} or less"
        )
    fewest = min(map(len, tokens), default=math.inf)
    if exit.rule == "ranking" and fewest <= exit.positive:
        raise InvalidInput(
            f"positive={exit.positive} leaves none of {fewest} continuations to compare with; "
            "give more"
        )
    runs = [[b.tokens[-1], *more] for b, more in zip(branches, contexts, strict=True)]
    passes = list[ShrinkingPass]()
    scores: list[list[list[float]]] = [[] for _ in branches]
    for together in batches(runtime, branches, runs, exit.together):
        chosen = [i for i in together if not branches[i].released]
        if not chosen:
            continue
        of = [branches[i] for i in chosen]
        openings = [runtime.opening(branches[i], len(runs[i]) - 1) for i in chosen]
        going = one_pass(runtime, of, [runs[i] for i in chosen], openings)
        # the pass is left early, so that what it writes is incomplete
        with runtime.metered(of), going as (packed, _):
            chosen = [chosen[n] for n in packed.order]
            problems = by_problem([branches[i] for i in chosen])
            rule: EntropyRule | RankingRule = EntropyRule(exit, problems)
            if exit.rule == "ranking":
                rule = RankingRule(exit, problems, [tokens[i] for i in chosen])
            watch = _watch_of(report.watch, [first + i for i in chosen])
            done = ShrinkingPass(runtime.lens, packed.plan, rule, exit.first_look, watch)
            done.run(runtime.runner, packed.tokens)
        count_pass(branch.usage for branch in of)
        for n, i in enumerate(chosen):
            depth, logits = done.results[n]
            logprobs = logits.log_softmax(-1)[list(tokens[i])].tolist()
            scores[i] = [[logprob] for logprob in logprobs]
            report.depths[first + i] = depth
            usage = branches[i].usage
            usage.verifier_tokens += len(runs[i])
            usage.exit_layer_rows += len(runs[i]) * depth
            usage.exit_layer_rows_saved += len(runs[i]) * (layers - depth)
            usage.lens_rows += depth - exit.first_look + 1
        passes.append(done)
        yield
    report.rows = [
        sum(rows) for rows in zip(report.rows, *(done.rows for done in passes), strict=True)
    ]
    report.lens_rows += sum(done.lens_rows for done in passes)
    return scores


def _watch_of(watch: LayerWatch | None, chosen: Sequence[int]) -> LayerWatch | None:
    return watch and (lambda live, *look: watch([chosen[n] for n in live], *look))
