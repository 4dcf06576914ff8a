"""Choosing the next token from logits, with random numbers that depend on the branch and the
position alone."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ttc.compiling import library_or_warning
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.sampling import GREEDY, Sampling
from ttc.threads import COUNTERS_APART, function_address, run, threads_for

SOURCE = Path(__file__).with_name("sampling_kernel.cpp")

HEAD = 10.0
"""Tokens that are exp(HEAD) times less likely than the likeliest, or less, take part in a draw as
one; if it wins, it is drawn among them."""

TAIL = 2**40
"""The number under which they do: no token's."""

SORTED_TOKENS = 1024
"""Likeliest tokens that top-p looks at on a GPU; rows where they have too little probability are
done again."""

CHUNK, CHUNK_ON_CPU = 2**22, 2**18
"""Logits that PyTorch works on at a time: temporary memory stays below some 200 MB, and in a
processor's cache."""

ROWS_PER_THREAD = 4
"""Fewer rows are not worth a thread: a row takes about 0.1 ms."""

NOT_FINITE, UNSURE = -1, -2

NO_TOKEN = -1
"""What fills the front of a row where its text is shorter than the longest one's."""


class Draws(NamedTuple):
    """What was drawn: one entry a row. All figures are the model's: temperature 1, no filter,
    and nothing of what its generation settings change. So they mean the same in every search, as in
    `Engine.score` and on a server, and a token that a setting forced may be unlikely by them."""

    tokens: list[int]
    logprobs: list[float]
    """Log-probability of the token."""
    top1: list[float]
    """Probability of the likeliest token."""
    entropy: list[float] | None = None
    """Of the next token, in nats."""
    top_logprob: list[float] | None = None
    """Mean log-probability of the k likeliest tokens; DeepConf's token confidence (Fu et al., 2025)
    is its negative."""
    self_certainty: list[float] | None = None
    """Divergence of the model's distribution from the uniform one, in nats: minus the mean
    log-probability over the vocabulary, minus the log of its size (Kang et al., 2025). Infinite
    where a token is impossible."""


# ---------------------------------------------------------------- random numbers


def random_states(keys: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """A 64-bit state (uint64) per key and token position, by counting: nothing is kept."""
    states = np.asarray(keys, np.uint64).view(np.int64)
    mixed: np.ndarray = _mix(states, np.asarray(positions, np.int64)).view(np.uint64)
    return mixed


def gumbels(states: Tensor, tokens: Tensor) -> Tensor:
    """A standard Gumbel number, float64, for each (state, token), both int64."""
    uniform: Tensor = (_shift(_mix(states, tokens), 11).double() + 0.5) * 2.0**-53
    return uniform.log_().neg_().log_().neg_()


def _mix(states: Any, counters: Any) -> Any:
    """SplitMix64 (Steele, Lea & Flood, 2014): output number `counters` from each of `states`, both
    tensors or both arrays, the bits of int64."""
    x = states + (counters + 1) * (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ _shift(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ _shift(x, 27)) * (0x94D049BB133111EB - 2**64)
    return x ^ _shift(x, 31)


def _shift(x: Any, bits: int) -> Any:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


# ---------------------------------------------------------------- choosing


@dataclass(eq=False, slots=True)
class QueuedDraw:
    """A draw whose work is queued on the device, and what it was asked for (see `queue_draw`).

    k: as in `queue_draw`, 0 for no statistics.
    columns: those of `Draws`, float64 (3 or 6, rows), on the device. A token is NOT_FINITE where
        there is none to draw, and UNSURE where it has to be drawn again with more tokens sorted.
    drawn_again: whether that was so for a row, once the draw was read.
    """

    logits: Tensor
    sampling: Sampling
    states: np.ndarray
    k: int
    scores: Tensor | None
    allowed: np.ndarray | None
    columns: Tensor
    drawn_again: bool = False

    @property
    def tokens(self) -> Tensor:
        """The tokens (rows,) on the device, int64; any number where a row has none yet."""
        return self.columns[0].long().clamp_min(0)


def queue_draw(  # noqa: PLR0913 - all that a draw depends on
    logits: Tensor,
    sampling: Sampling,
    states: np.ndarray,
    *,
    statistics: bool = False,
    k: int = 20,
    scores: Tensor | None = None,
    allowed: np.ndarray | None = None,
    texts: Sequence[np.ndarray] | None = None,
    sorted_tokens: int = SORTED_TOKENS,
) -> QueuedDraw:
    """Queue the work of picking a token per row: the largest sum of log-probability and Gumbel
    noise (Maddison et al., 2014, section 2). It waits for nothing: `read_draws` does. A CPU works
    at once.

    logits: (rows, vocab), of any floating type. states: one per row, of `random_states`.
    statistics: the entropy, the mean log-probability of the `k` likeliest tokens and the
        self-certainty too.
    scores: what the tokens are picked by in place of the logits, such as logits with a penalty, in
        float32 or float64; an infinite one is that of a certain token. A repetition penalty is the
        caller's to put in.
    allowed: the tokens that may be picked, uint32 (rows, words): bit t % 32 of word t // 32 stands
        for token t. They are drawn as if all others had no probability, and the filters see them
        alone. None for all.
    texts: of each row the tokens before it, int64 and contiguous, for a repetition penalty; without
        them there is none.
    sorted_tokens: how many top-p sorts at first, on a GPU.
    The noise belongs to one token at one place of one branch, so rounding changes a choice only
    where the two best are as close as the rounding. Inverting the cumulative distribution would not
    do: in its tail every rounding moves the choice on to a neighbour.
    """
    k = k if statistics else 0
    penalty = sampling.repetition_penalty or 1.0
    if scores is not None or penalty == 1:
        texts = None
    if texts is not None and kernel_for(logits) is None:
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        scores = penalised(scores, padded(texts, logits.device), penalty)
    if scores is None:
        columns = _columns(logits, sampling, states, k, sorted_tokens, allowed, texts)
    else:
        scores = _certain(scores, sampling)
        tokens = _columns(scores, sampling, states, 0, sorted_tokens, allowed)[0]
        greedy = _columns(logits, GREEDY, states, k, sorted_tokens)
        columns = _figures(tokens, logits, greedy)
    return QueuedDraw(logits, sampling, states, k, scores, allowed, columns)


def read_draws(
    queued: Sequence[QueuedDraw], columns: Sequence[np.ndarray] | None = None
) -> list[Draws]:
    """What draws from logits of one device have chosen. The processor waits for the device once,
    and again only where top-p has to sort more tokens than SORTED_TOKENS.

    columns: those of the draws on the host (`columns_on_host`), None to bring them there now.
    Raises UnsupportedModel where a row's logits hold a NaN or their largest is infinite, and
    InvalidInput where its scores, or what is allowed, leave no token.
    """
    draws = []
    for draw, its_columns in zip(queued, columns or columns_on_host(queued), strict=True):
        if (its_columns[0] < 0).any():
            draw.drawn_again = True
            its_columns = _drawn_again(draw, its_columns)
        tokens, *figures = its_columns.tolist()
        draws.append(Draws([int(token) for token in tokens], *figures))
    return draws


def columns_on_host(queued: Sequence[QueuedDraw]) -> list[np.ndarray]:
    """The columns of draws on one device as arrays, by one copy from there."""
    tensors = [draw.columns for draw in queued]
    if len(tensors) == 1:
        return [tensors[0].cpu().numpy()]
    numbers = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
    parts = numbers.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).numpy() for part, tensor in zip(parts, tensors, strict=True)]


def _drawn_again(draw: QueuedDraw, columns: np.ndarray) -> np.ndarray:
    """The columns of a draw that has rows without a token, those that were unsure with one."""
    unsure = np.flatnonzero(columns[0] == UNSURE)
    if len(unsure):
        rows = torch.as_tensor(unsure, device=draw.logits.device)
        again = queue_draw(
            draw.logits[rows],
            draw.sampling,
            draw.states[unsure],
            statistics=draw.k > 0,
            k=draw.k,
            scores=None if draw.scores is None else draw.scores[rows],
            allowed=None if draw.allowed is None else draw.allowed[unsure],
            sorted_tokens=draw.logits.shape[-1],
        )
        columns[:, unsure] = again.columns.cpu().numpy()
    if (columns[0] >= 0).all():
        return columns
    if draw.scores is not None or draw.allowed is not None:
        greedy = _columns(draw.logits, GREEDY, draw.states, 0, SORTED_TOKENS)
        if bool((greedy[0] >= 0).all()):
            if draw.allowed is not None:
                raise InvalidInput(
                    "the model gives no token any probability that may follow by the answer's "
                    "grammar; leave the grammar or schema out, or some of the generation settings"
                )
            raise InvalidInput(
                "the generation settings of the model leave no token to choose; leave some of them "
                "out"
            )
    raise UnsupportedModel(
        "the model's logits are not finite; load it in another dtype, as dtype=float32"
    )


def _columns(
    logits: Tensor,
    sampling: Sampling,
    states: np.ndarray,
    k: int,
    sorted_tokens: int,
    allowed: np.ndarray | None = None,
    texts: Sequence[np.ndarray] | None = None,
) -> Tensor:
    """texts: for a repetition penalty, which is the kernel's to put in."""
    kernel = kernel_for(logits)
    if kernel is not None:
        return draw_compiled(kernel, logits, sampling, states, k, allowed, texts)
    return draw_with_torch(logits, sampling, states, k, sorted_tokens, allowed)


def padded(texts: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Texts as one tensor, int64 (rows, longest): each row ends in the last column, with NO_TOKEN
    before it."""
    rows = np.full((len(texts), max(map(len, texts))), NO_TOKEN)
    for place, text in enumerate(texts):
        rows[place, rows.shape[1] - len(text) :] = text
    return torch.from_numpy(rows).to(device, non_blocking=True)


def penalised(scores: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Scores (rows, vocab) with a repetition penalty on the tokens of `ids` (rows, longest), in
    place. What is no token is passed over."""
    valid = (ids >= 0) & (ids < scores.shape[-1])
    # what is no token becomes another token of the row, which gets the same value twice
    another = ids.masked_fill(~valid, NO_TOKEN).amax(1, keepdim=True).clamp_min(0)
    places = torch.where(valid, ids, another)
    before = scores.gather(1, places)
    after = torch.where(before < 0, before * penalty, before / penalty)
    kept = torch.where(valid.any(1, keepdim=True), after, before)
    return scores.scatter_(1, places, kept)


def _certain(scores: Tensor, sampling: Sampling) -> Tensor:
    """Scores whose largest is infinite, with its token as the only one. A NaN is the largest where
    sampling is greedy, as for `argmax`, by which transformers' `generate` goes on."""
    best = scores.amax(-1, keepdim=True)
    certain = best.isposinf()
    if sampling.temperature == 0:
        certain |= best.isnan()
    only = torch.full_like(scores, float("-inf")).scatter_(-1, scores.argmax(-1, keepdim=True), 0.0)
    return torch.where(certain, only, scores)


def _figures(tokens: Tensor, logits: Tensor, greedy: Tensor) -> Tensor:
    """The columns of given tokens, made of those of the greedy ones; NaN where the logits are not
    finite."""
    likeliest = _logits_at(greedy[0], logits)
    chosen = _logits_at(tokens, logits)
    columns = greedy.clone()
    columns[1] += (chosen - likeliest).double()
    columns.masked_fill_(greedy[0] < 0, math.nan)
    columns[0] = tokens
    return columns


def _logits_at(tokens: Tensor, logits: Tensor) -> Tensor:
    """Each row's logit of its token; where there is none, any logit."""
    places = tokens.long().clamp_min(0)
    return logits.gather(-1, places[:, None])[:, 0]


def draw_with_torch(
    logits: Tensor,
    sampling: Sampling,
    states: np.ndarray,
    k: int = 0,
    sorted_tokens: int = SORTED_TOKENS,
    allowed: np.ndarray | None = None,
) -> Tensor:
    """The columns of a `QueuedDraw`, on any device.

    k, allowed: as in `queue_draw`, k 0 for no statistics. sorted_tokens: how many top-p sorts.
    """
    on_device = _moved(states.view(np.int64), logits.device)
    words = None if allowed is None else _moved(allowed.view(np.int32), logits.device)
    chunk = CHUNK_ON_CPU if logits.device.type == "cpu" else CHUNK
    rows = max(1, chunk // logits.shape[-1])
    parts = [
        _draw_rows(
            logits[i : i + rows],
            sampling,
            on_device[i : i + rows],
            k,
            sorted_tokens,
            None if words is None else words[i : i + rows],
        )
        for i in range(0, len(logits), rows)
    ]
    return torch.cat(parts, 1)


def _moved(numbers: np.ndarray, device: torch.device) -> Tensor:
    on_host = torch.from_numpy(numbers)
    if device.type == "cuda":
        on_host = on_host.pin_memory()  # from other memory, a copy may wait for what is queued
    return on_host.to(device, non_blocking=True)


def _masked(logits: Tensor, words: Tensor) -> Tensor:
    """Logits with -inf for the tokens that may not be drawn. words: as `allowed`, int32."""
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    drawn = (words[:, :, None] >> bits & 1).bool().flatten(1)[:, : logits.shape[-1]]
    return logits.masked_fill(~drawn, float("-inf"))


def _draw_rows(
    logits: Tensor,
    sampling: Sampling,
    states: Tensor,
    k: int,
    sorted_tokens: int,
    words: Tensor | None,
) -> Tensor:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest, total = logits.amax(-1), logits.logsumexp(-1)
    left = logits if words is None else _masked(logits, words)
    tokens = (
        left.argmax(-1)
        if sampling.temperature == 0
        else _sample(left, sampling, states, sorted_tokens)
    )
    chosen = logits.gather(-1, tokens.clamp_min(0)[:, None])[:, 0]
    possible = largest.isfinite() & total.isfinite()
    if words is not None:
        possible &= left.amax(-1).isfinite()
    tokens = tokens.masked_fill(~possible, NOT_FINITE)
    columns = [tokens, chosen - total, (largest - total).exp()]
    if k:
        columns.append(torch.special.entr((logits - total[:, None]).exp_()).sum(-1))
        columns.append(logits.topk(min(k, logits.shape[-1])).values.mean(-1) - total)
        columns.append(total - logits.mean(-1) - np.log(logits.shape[-1]))
    return torch.stack([column.double() for column in columns])  # token ids are exact in float64


def _sample(logits: Tensor, sampling: Sampling, states: Tensor, sorted_tokens: int) -> Tensor:
    scaled, unsure = filter_logits(logits / sampling.temperature, sampling, sorted_tokens)
    top = scaled.amax(-1, keepdim=True)
    in_head, weights = scaled > top - HEAD, scaled.sub_(top)
    race = gumbels(states[:, None], torch.arange(weights.shape[-1], device=weights.device)).add_(
        weights
    )
    best, tokens = race.masked_fill(~in_head, float("-inf")).max(-1)
    tail_noise = gumbels(states, torch.full_like(states, TAIL))
    tail = weights.exp_().masked_fill_(in_head, 0).sum(-1, dtype=torch.float64).log() + tail_noise
    among_tail = race.masked_fill_(in_head, float("-inf")).argmax(-1)
    drawn = torch.where(tail > best, among_tail, tokens).masked_fill(unsure, UNSURE)
    # so low a temperature is greedy: the noise is lost in rounding
    lost = (top - HEAD >= top)[:, 0]
    return torch.where(lost, logits.argmax(-1), drawn)


def filter_logits(
    logits: Tensor, sampling: Sampling, sorted_tokens: int = SORTED_TOKENS
) -> tuple[Tensor, Tensor]:
    """Mask the tokens that `sampling` excludes with -inf. logits: (rows, vocab), already divided by
    temperature.

    Of tokens that are equally likely, top-k keeps all or none and top-p the first. Also returns the
    rows, (rows,) bool, where the `sorted_tokens` likeliest tokens have too little probability for
    top-p; they are masked wrongly.
    """
    unsure = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    if 0 < sampling.top_k < logits.shape[-1]:
        floor = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, float("-inf"))
    if sampling.top_p < 1:
        likeliest = logits.topk(min(sorted_tokens, logits.shape[-1])).values.double()
        probs = (likeliest - logits.double().logsumexp(-1, keepdim=True)).exp_()
        count = (probs.cumsum(-1) - probs < sampling.top_p).sum(-1, keepdim=True).clamp_min(1)
        if probs.shape[-1] < logits.shape[-1]:
            unsure = count[:, 0] == probs.shape[-1]
        cut = likeliest.gather(-1, count - 1).to(logits.dtype)
        equal = logits == cut
        drop = (logits < cut) | (
            equal & (equal.cumsum(-1) > count - (logits > cut).sum(-1, keepdim=True))
        )
        logits = logits.masked_fill(drop, float("-inf"))
    if sampling.min_p > 0:
        floor = logits.amax(-1, keepdim=True) + float(np.log(sampling.min_p))
        logits = logits.masked_fill(logits < floor, float("-inf"))
    return logits, unsure


# ---------------------------------------------------------------- on a CPU


FLOATS = ("temperature", "log_min_p", "head", "repetition_penalty")


class Settings(ctypes.Structure):
    """`Settings` of sampling_kernel.cpp."""

    _fields_ = [
        *((name, ctypes.c_float) for name in FLOATS),
        *((name, ctypes.c_int64) for name in ("top_k", "confidence_k")),
        ("top_p", ctypes.c_double),
        ("tail", ctypes.c_uint64),
    ]


def settings_of(sampling: Sampling, k: int) -> Settings:
    log_min_p = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
    top_k = min(sampling.top_k, 2**62)
    penalty = sampling.repetition_penalty or 1.0
    return Settings(sampling.temperature, log_min_p, HEAD, penalty, top_k, k, sampling.top_p, TAIL)


@cache
def compiled_kernel() -> ctypes.CDLL | None:
    return library_or_warning("sampling on the CPU is slow", SOURCE, "-ffp-contract=off")


def kernel_for(logits: Tensor) -> ctypes.CDLL | None:
    """The compiled functions, where these logits are drawn by them."""
    on_cpu = logits.device.type == "cpu" and logits.dtype != torch.float64
    return compiled_kernel() if on_cpu else None


def draw_compiled(
    kernel: ctypes.CDLL,
    logits: Tensor,
    sampling: Sampling,
    states: np.ndarray,
    k: int,
    allowed: np.ndarray | None = None,
    texts: Sequence[np.ndarray] | None = None,
) -> Tensor:
    """`draw_with_torch` by the compiled functions, the rows shared among as many threads as PyTorch
    uses. texts: see `queue_draw`."""
    half = logits.dtype == torch.bfloat16
    function = function_address(kernel, "draw_bfloat16" if half else "draw_float32")
    logits = (logits if half else logits.float()).contiguous()
    states = np.ascontiguousarray(states)
    words = None if allowed is None else np.ascontiguousarray(allowed)
    rows, vocab = logits.shape
    figures = torch.empty(rows, 6 if k else 3, dtype=torch.float64)
    settings = settings_of(sampling, k)
    places = np.array([text.ctypes.data for text in texts or ()], np.int64)
    lengths = np.array([len(text) for text in texts or ()], np.int64)
    threads = threads_for(rows // ROWS_PER_THREAD)
    counters = np.zeros((threads, COUNTERS_APART), np.int64)
    call = np.array(
        [
            0,
            threads,
            counters.ctypes.data,
            COUNTERS_APART,
            logits.data_ptr(),
            rows,
            vocab,
            ctypes.addressof(settings),
            states.ctypes.data,
            0 if words is None else words.ctypes.data,
            0 if words is None else words.shape[1],
            figures.data_ptr(),
            0 if texts is None else places.ctypes.data,
            lengths.ctypes.data,
        ],
        np.int64,
    )
    run(function, call.ctypes.data, threads)
    return figures.T
