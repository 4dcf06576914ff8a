"""CGEE level 2 (RKSC, section 2.3): branches leave a scoring pass at the layer where their score is settled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from ttc.attention.kernels import Layer
from ttc.attention.plan import Entry, ExtendPlan, Piece, depth_first
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.memory.kv import KV, LayerKV
from ttc.model.check import CHECK_TOKENS
from ttc.passes.prefill import prefill_passes
from ttc.tree.branch import Branch, by_problem
from ttc.tree.tree import Segment

if TYPE_CHECKING:
    from ttc.engine import Engine

Rule = Literal["entropy", "ranking"]
Decide = Callable[[int, Sequence[int], Tensor], set[int]]
"""(layers computed, branches of the pass that are left, their lens logits (branches, vocab)) -> those that leave."""
Watch = Callable[[Sequence[int], int, Tensor, Tensor], None]
"""Sees each look: branches, layers computed, their last rows' states (branches, width), their lens logits."""


@dataclass(frozen=True)
class EarlyExit:
    """When a branch leaves a scoring pass. Approximate: it is scored by the lens after the layer at which it left.

    The lens is what the model does after its last layer (final norm, head, scaling, soft cap), applied after an earlier
    one; the paper's lacks the norm. Layers count from 1. What is left after the last one has the model's own score.
    A problem is what stands on one root: all branches that share a usage meter.

    rule="entropy", the paper's (Eq. 5, Algorithm 3): a branch leaves after the first layer l >= l_min at which
    H_l < theta and |H_l - H_(l-1)| < eps, H being the entropy of the lens at its last token, and H_0 infinite. Branches
    that left at different depths are not comparable by raw logits, their scores come from different functions; the
    paper compares them all the same.
    common_depth: a branch that has met the rule waits for the others of its problem; all leave, and are scored, after
    the layer at which the last of them met it: the least depth by which the rule has called every one settled.

    rule="ranking": the branches of a problem leave together once their order by P has been the same after `patience`
    layers running, all of them >= l_min. P is the probability of a branch's first `positive` continuations over that of
    all that it was given: P(yes) / (P(yes) + P(no)) for a self-verifier. The order alone is settled then, so scores of
    different calls do not compare. A problem's only branch has no order and runs all layers; ties that flip delay.

    theta, eps: in nats, or with `normalised` in units of ln|V|. The defaults are a start: the paper calibrates them
    per model and data set, and its values, made without the norm, say nothing about this lens.
    Raises InvalidInput, naming the value.
    """

    rule: Rule = "entropy"
    l_min: int = 2
    theta: float = 2.0
    eps: float = 0.1
    normalised: bool = False
    common_depth: bool = False
    patience: int = 3
    positive: int = 1

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise InvalidInput(f"rule={self.rule!r} is unknown; use one of {', '.join(get_args(Rule))}")
        for name in ("l_min", "patience", "positive"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name}={value!r} must be a whole number of at least 1")
        for name in ("theta", "eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise InvalidInput(f"{name}={value!r} must be 0 or more; 0 never exits")

    @property
    def first_look(self) -> int:
        """The first layer after which branches are looked at."""
        return max(1, self.l_min - 1) if self.rule == "entropy" else self.l_min

    @property
    def together(self) -> bool:
        """Whether the branches of a problem leave at one depth, so that they must be in one pass."""
        return self.common_depth or self.rule == "ranking"


@dataclass
class ExitReport:
    """What a call of `Engine.score` with an exit computed.

    depths: the layers that each branch went through. rows: the rows that each layer computed, measured there.
    lens_rows: rows that went through norm and head to be looked at, the price of the exit.
    watch: given by the caller; called at every look, with the places of the call's branches.
    """

    depths: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    lens_rows: int = 0
    watch: Watch | None = field(default=None, repr=False, compare=False)

    @property
    def layer_rows(self) -> int:
        """Rows x layers that were computed."""
        return sum(self.rows)

    @property
    def saved_layer_rows(self) -> int:
        """Rows x layers that were left out."""
        return self.rows[0] * len(self.rows) - self.layer_rows if self.rows else 0


# -------------------------------------------------------------------- the lens


class Lens:
    """A model's logits as they would be if a layer were its last one.

    The model itself runs, with its decoder layers handing the given states through; so whatever it does after them is
    done, and no list of architectures is kept. Raises UnsupportedModel unless, on a few tokens, the lens after the last
    layer gives the model's own logits, also for rows that go on alone.
    """

    def __init__(self, engine: Engine):
        self.model = engine.model
        self.layers = _decoder_layers(engine.model)
        self._check(engine)

    def logits(self, output: Any, rows: Sequence[int]) -> Tensor:
        """(rows, vocab) in at least float32, for `rows` of what a layer returned: states (1, n, width), or a tuple that
        starts with them."""
        states, others = _parts(output)
        picked = _joined(states[:, list(rows)], others)
        with self.running([lambda *_, **__: picked] * len(self.layers)):
            ids = torch.zeros(1, len(rows), dtype=torch.long, device=states.device)
            found: Tensor = self.model(input_ids=ids, position_ids=ids, use_cache=False).logits[0]
        return found.to(torch.promote_types(found.dtype, torch.float32))

    @contextmanager
    def running(self, forwards: Sequence[Callable[..., Any]]) -> Iterator[None]:
        """Let the decoder layers run `forwards` meanwhile."""
        before = [layer.__dict__.get("forward") for layer in self.layers]
        try:
            for layer, forward in zip(self.layers, forwards, strict=True):
                layer.forward = forward
            yield
        finally:
            for layer, own in zip(self.layers, before, strict=True):
                layer.__dict__.pop("forward", None)
                if own is not None:
                    layer.forward = own

    @torch.inference_mode()
    def _check(self, engine: Engine) -> None:
        name, half = type(self.model).__name__, CHECK_TOKENS // 2
        kv = KV(len(engine.memory.shapes), CHECK_TOKENS)
        kv.device = [
            LayerKV.empty(shape, CHECK_TOKENS, None, engine.dtype, engine.device, on_host=False)
            for shape in engine.memory.shapes
        ]
        pieces = [Piece(slice(n, n + half), [(kv, n, half)]) for n in (0, half)]
        plan = ExtendPlan([], [*range(half)] * 2, pieces)
        tokens = [7 * (n + 1) % engine.vocab_size for n in range(CHECK_TOKENS)]
        expected = engine.forward(tokens, plan)[half - 1 :: half].double()
        together = ExitPass(self, plan, lambda *_: set(), first_look=1)
        alone = ExitPass(self, plan, lambda depth, *_: {0} if depth == 1 else set(), first_look=1)
        try:
            together.run(engine, tokens)
            alone.run(engine, tokens)
        except Exception as error:
            raise UnsupportedModel(f"{name} cannot leave a scoring pass early: {error}") from error
        found = torch.stack([together.found[0][1], together.found[1][1], alone.found[1][1]]).double()
        gap = (found - expected[[0, 1, 1]]).abs()
        # mixture-of-experts routing may flip in 16 bits, so the mean is compared there, not the largest
        exact = engine.dtype in (torch.float32, torch.float64)
        off = float(gap.max() if exact else gap.mean())
        limit = 1e-4 + (1e-4 if exact else 5e-2) * float(expected.abs().max())
        if not off <= limit:
            raise UnsupportedModel(
                f"{name} gives other logits from its last layer's states than in one run (off by {off:.3g}, limit "
                f"{limit:.3g}), so it cannot leave a scoring pass early; score it without an exit"
            )


def _decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The modules that hold attention layer 0, 1, 2, ..., side by side in one list."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) >= count:
            layers = list(module)[:count]
            if all(any(getattr(m, "layer_idx", None) == i for m in layer.modules()) for i, layer in enumerate(layers)):
                return layers
    raise UnsupportedModel(
        f"{type(model).__name__} has no list of its {count} decoder layers, so it cannot leave a scoring pass early; "
        "score it without an exit"
    )


def _parts(output: Any) -> tuple[Tensor, tuple[Any, ...] | None]:
    """The states that a layer returned, and what came beside them (None if it returned no tuple)."""
    return (output[0], output[1:]) if isinstance(output, tuple) else (output, None)


def _joined(states: Tensor, others: tuple[Any, ...] | None) -> Any:
    return states if others is None else (states, *others)


# -------------------------------------------------------------------- a pass


class _AllOut(Exception):
    """No row is left, so the layers that follow need not run."""


class ExitPass:
    """One forward pass over the pieces of a plan, which leave it when `decide` says so.

    decide: asked after layer `first_look` and each later one but the last. found: per piece the layers that it went
    through and the logits (vocab,) of its last row there. rows: computed by each layer.
    KV that a piece which left would have written in later layers is never written: its segments must be dropped.
    """

    def __init__(self, lens: Lens, plan: ExtendPlan, decide: Decide, first_look: int, watch: Watch | None = None):
        self.lens, self.whole, self.plan, self.decide, self.first_look = lens, plan, plan, decide, first_look
        self.watch = watch
        self.live = list(range(len(plan.pieces)))
        self.kept: Tensor | None = None  # the rows that are left, once some are gone
        self.found: dict[int, tuple[int, Tensor]] = {}
        self.rows = [0] * len(lens.layers)
        self.lens_rows = 0

    def run(self, engine: Engine, tokens: Sequence[int]) -> None:
        forwards = [self._instead_of(layer.forward, depth) for depth, layer in enumerate(self.lens.layers, 1)]
        with self.lens.running(forwards), suppress(_AllOut):
            engine.forward(tokens, self.whole, keep=[0])

    def _instead_of(self, own: Callable[..., Any], depth: int) -> Callable[..., Any]:
        """What layer number `depth` runs: itself on the rows that are left, then a look at them."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.kept is not None:  # the model's loop hands the previous layer's states on, and all else unchanged
                args = (*args[:1], *self._rows_of(args[1:]))
                kwargs = {k: v if k == "hidden_states" else self._rows_of(v) for k, v in kwargs.items()}
            return self._look(depth, own(*args, **(kwargs | {"tree_plan": self.plan})))

        return forward

    def _look(self, depth: int, output: Any) -> Any:
        states = _parts(output)[0]
        self.rows[depth - 1] = states.shape[1]
        last = depth == len(self.rows)
        if depth < self.first_look and not last:
            return output
        ends = [piece.rows.stop - 1 for piece in self.plan.pieces]
        logits = self.lens.logits(output, ends)
        self.lens_rows += len(logits)
        if self.watch is not None:
            self.watch(self.live, depth, states[0, ends], logits)
        leaving = set(self.live) if last else self.decide(depth, self.live, logits)
        self.found |= {i: (depth, row) for i, row in zip(self.live, logits, strict=True) if i in leaving}
        return self.without(leaving, output)

    def without(self, leaving: set[int], output: Any) -> Any:
        """What the next layer gets of a layer's output once the pieces `leaving` are gone."""
        if not leaving:
            return output
        states, others = _parts(output)
        stay = [piece.rows for i, piece in zip(self.live, self.plan.pieces, strict=True) if i not in leaving]
        self.live = [i for i in self.live if i not in leaving]
        if not self.live:
            raise _AllOut
        self.plan = Remaining(self.whole, self.live)
        self.kept = _indices([self.whole.pieces[i].rows for i in self.live], states.device)
        return _joined(states.index_select(1, _indices(stay, states.device)), others)

    def _rows_of(self, value: Any) -> Any:
        """What is left of a layer's argument: its kept rows if it has a row for each of the pass, else all of it."""
        if isinstance(value, dict):
            return {k: self._rows_of(v) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(map(self._rows_of, value))
        if not isinstance(value, Tensor) or (dim := _row_dim(value, len(self.whole.positions))) is None:
            return value
        return value if self.kept is None else value.index_select(dim, self.kept)


class Remaining(ExtendPlan):
    """What the pieces numbered `live` still need of a plan. Its stream goes on, so entries keep their numbers."""

    def __init__(self, whole: ExtendPlan, live: Sequence[int]):
        spans = [whole.pieces[i].rows for i in live]
        kept = {row for span in spans for row in range(span.start, span.stop)}
        rank = [0, *accumulate(row in kept for row in range(len(whole.positions)))]

        def moved(rows: slice) -> slice:
            return slice(rank[rows.start], rank[rows.stop])

        super().__init__(
            [Entry(e.kv, e.start, e.length, moved(e.rows)) for e in whole.entries],
            [whole.positions[row] for row in sorted(kept)],
            [Piece(moved(whole.pieces[i].rows), whole.pieces[i].blocks) for i in live],
            whole.memory,
            whole.stream,
        )

    def _attend(self, layer: Layer, index: int, q: Tensor, copy: LayerKV, out: Tensor, lse: Tensor) -> None:
        rows = self.entries[index].rows
        if rows.start < rows.stop:
            super()._attend(layer, index, q, copy, out, lse)


def _indices(spans: Sequence[slice], device: torch.device) -> Tensor:
    return torch.tensor([row for span in spans for row in range(span.start, span.stop)], device=device)


def _row_dim(tensor: Tensor, rows: int) -> int | None:
    """The dimension that counts the pass's rows: the first such after one of 1 (one sequence), else the leading."""
    shape = tensor.shape
    after_one = (dim for dim in range(1, len(shape)) if shape[dim - 1] == 1 and shape[dim] == rows)
    return next(after_one, 0 if shape and shape[0] == rows else None)


# -------------------------------------------------------------------- the rules


def entropy(logits: Tensor) -> Tensor:
    """H of RKSC's Eq. 5 in nats: (rows, vocab) -> (rows,)."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).nan_to_num(0.0).sum(-1)  # a token of probability 0 adds nothing


def positive_share(logits: Tensor, tokens: Sequence[int], positive: int) -> float:
    """P: the probability of the first `positive` of `tokens` over that of all of them; logits (vocab,)."""
    return float(logits[list(tokens)].softmax(-1)[:positive].sum())


class EntropyRule:
    """RKSC's Algorithm 3, per branch; with `common_depth` per problem. problems: the branches of each."""

    def __init__(self, exit: EarlyExit, problems: Sequence[Sequence[int]]):
        self.exit, self.problems = exit, problems
        self.before: dict[int, float] = {}
        self.settled: set[int] = set()

    def __call__(self, depth: int, live: Sequence[int], logits: Tensor) -> set[int]:
        unit = math.log(logits.shape[-1]) if self.exit.normalised else 1.0
        return self.leaving(depth, dict(zip(live, (entropy(logits) / unit).tolist(), strict=True)))

    def leaving(self, depth: int, entropies: Mapping[int, float]) -> set[int]:
        """Which of the branches that are left leave, by their H after layer `depth`."""
        for i, h in entropies.items():
            steady = abs(h - self.before.get(i, math.inf)) < self.exit.eps
            if depth >= self.exit.l_min and h < self.exit.theta and steady:
                self.settled.add(i)
            self.before[i] = h
        if not self.exit.common_depth:
            return self.settled & entropies.keys()
        return {i for rows in self.problems if self.settled.issuperset(rows) for i in rows} & entropies.keys()


class RankingRule:
    """The branches of a problem leave when their order has held. tokens: what each branch's continuations are."""

    def __init__(self, exit: EarlyExit, problems: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]] = ()):
        self.exit, self.problems, self.tokens = exit, problems, tokens
        self.order: list[list[int]] = [[] for _ in problems]
        self.held = [0] * len(problems)  # layers running

    def __call__(self, depth: int, live: Sequence[int], logits: Tensor) -> set[int]:
        return self.leaving(
            depth,
            {i: positive_share(row, self.tokens[i], self.exit.positive) for i, row in zip(live, logits, strict=True)},
        )

    def leaving(self, depth: int, shares: Mapping[int, float]) -> set[int]:
        """Which of the branches that are left leave, by their P after layer `depth`."""
        found: set[int] = set()
        for n, rows in enumerate(self.problems):
            if len(rows) > 1 and rows[0] in shares:
                order = sorted(rows, key=shares.__getitem__, reverse=True)
                self.held[n] = self.held[n] + 1 if order == self.order[n] else 1
                self.order[n] = order
                if self.held[n] >= self.exit.patience:
                    found.update(rows)
        return found


# -------------------------------------------------------------------- scoring


def score_with_exit(
    engine: Engine,
    branches: Sequence[Branch],
    given: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    exit: EarlyExit,
    report: ExitReport,
) -> list[list[list[float]]]:
    """See `Engine.score`. tokens[i]: the single-token continuations of branch i after `given[i]`.

    Branches that leave together are in one pass, which may then be longer than the engine's `prefill_tokens`.
    """
    lens = engine.lens
    layers = len(lens.layers)
    if exit.l_min > layers:
        raise InvalidInput(f"l_min={exit.l_min} is more than the model's {layers} layers; use {layers} or less")
    if exit.rule == "ranking" and (least := min(map(len, tokens), default=math.inf)) <= exit.positive:
        raise InvalidInput(
            f"positive={exit.positive} leaves none of a branch's {least} continuations to compare with; give more"
        )
    runs = [[b.tokens[-1], *more] for b, more in zip(branches, given, strict=True)]
    report.depths, report.rows, report.lens_rows = [0] * len(branches), [0] * layers, 0
    scores: list[list[list[float]]] = [[] for _ in branches]
    for chosen in batches(engine, branches, runs, exit.together):
        tokens_here = [tokens[i] for i in chosen]
        problems = by_problem([branches[i] for i in chosen])
        rule = EntropyRule(exit, problems) if exit.rule == "entropy" else RankingRule(exit, problems, tokens_here)
        watch = _watch_of(report.watch, chosen)
        done = _one_pass(engine, [branches[i] for i in chosen], [runs[i] for i in chosen], rule, watch)
        for n, i in enumerate(chosen):
            depth, logits = done.found[n]
            logprobs = logits.log_softmax(-1)[list(tokens[i])].tolist()
            scores[i] = [[logprob] for logprob in logprobs]
            report.depths[i] = depth
            usage = branches[i].usage
            usage.verifier_tokens += len(runs[i])
            usage.exit_layer_rows += len(runs[i]) * depth
            usage.exit_layer_rows_saved += len(runs[i]) * (layers - depth)
            usage.lens_rows += depth - exit.first_look + 1
        report.rows = [a + b for a, b in zip(report.rows, done.rows, strict=True)]
        report.lens_rows += done.lens_rows
    return scores


def _watch_of(watch: Watch | None, chosen: Sequence[int]) -> Watch | None:
    """`watch` for a pass of the branches at these places."""
    if watch is None:
        return None
    return lambda live, depth, states, logits: watch([chosen[n] for n in live], depth, states, logits)


def _one_pass(
    engine: Engine,
    branches: Sequence[Branch],
    runs: Sequence[list[int]],
    rule: EntropyRule | RankingRule,
    watch: Watch | None,
) -> ExitPass:
    """All of `runs`, in depth-first order, in one pass. What it wrote is incomplete and goes at once."""
    passes: list[ExitPass] = []

    def forward(rows: Sequence[int], plan: ExtendPlan) -> None:
        passes.append(ExitPass(engine.lens, plan, rule, rule.exit.first_look, watch))
        passes[-1].run(engine, rows)

    held: list[Segment] = []
    leaves, usages = [engine.leaf(b) for b in branches], [b.usage for b in branches]
    try:
        for _ in prefill_passes(engine, leaves, runs, usages, held, limit=sum(map(len, runs)), forward=forward):
            pass
    finally:
        for segment in reversed(held):
            engine.tree.drop(segment)
    (done,) = passes
    return done


def batches(
    engine: Engine, branches: Sequence[Branch], runs: Sequence[Sequence[int]], together: bool
) -> Iterator[list[int]]:
    """Which branches share a pass, in depth-first order: as many as `prefill_tokens` rows hold, problems whole."""
    paths = [engine.leaf(b).path() for b in branches]
    order = depth_first(paths)
    units = by_problem([branches[i] for i in order]) if together else [[n] for n in range(len(order))]
    batch: list[int] = []
    for unit in [[order[n] for n in rows] for rows in units]:
        if batch and sum(len(runs[i]) for i in batch + unit) > engine.prefill_tokens:
            yield [batch[n] for n in depth_first([paths[i] for i in batch])]
            batch = []
        batch += unit
    if batch:
        yield [batch[n] for n in depth_first([paths[i] for i in batch])]
