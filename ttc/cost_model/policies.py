"""What a memory policy needs on the device, and what it moves over the link while branches decode a
step.

What branches share is counted once. Sizes are bytes. A search is looked at half way for what moves,
and at its end for what has to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache as remember
from math import ceil, inf
from typing import NamedTuple, Self

from ttc.cost_model.capture import MIN_GAIN, CaptureTimes, Line, allocation
from ttc.cost_model.device_profile import BUFFERS, RUN, DeviceProfile, LinkProfile
from ttc.cost_model.roofline import roofline_time
from ttc.cost_model.split_search import Generation
from ttc.cost_model.unit import Pass, Unit
from ttc.memory.storage import room_for

PIECE_TOKENS = 512
"""The most tokens of a storage under the policies that read KV through buffers, as by default."""
CAPTURE_TOKENS = 64
"""CAPTURE's."""
MINI_BATCH_TOKENS = 8192
"""CAPTURE's, as by default."""


@dataclass(frozen=True)
class Steps(Generation):
    """A search: branches that share a prompt, and what each of them generates, `step_tokens` tokens
    at a time; or several such searches at once. problems: how many, each with a prompt and as many
    of the branches."""

    step_tokens: int = 32
    problems: int = 1

    def times(self, problems: int) -> Self:
        """So many problems like these at once."""
        return replace(self, problems=self.problems * problems, branches=self.branches * problems)

    def prompts(self, branches: int) -> int:
        """On how many prompts so many of the branches stand, those of one problem side by side."""
        return ceil(branches * self.problems / self.branches)

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV is kept in the end. Each prompt's is kept once."""
        return self.problems * self.prompt_tokens + self.branches * self.output_tokens

    @property
    def frozen_tokens(self) -> int:
        """Tokens of a branch's earlier steps, half way through the search."""
        return max(0, self.output_tokens - self.step_tokens) // 2

    @property
    def own_tokens(self) -> int:
        """Tokens of a branch's own, half way through the search and through a step."""
        return self.frozen_tokens + self.step_tokens // 2

    def work_of(self, branches: int) -> Pass:
        """A pass of so many of the branches, half way through the search and through a step."""
        return Pass(branches, 1, self.own_tokens, self.prompt_tokens, self.prompts(branches))


@dataclass(frozen=True)
class Cache:
    """What the layers of the device keep for a search. blocks: those that attend. kv_heads: of a
    layer. rates, link: what CAPTURE generates and fetches keys and values with. weight_bytes: of a
    layer, which cross in every pass."""

    blocks: Sequence[Unit]
    search: Steps
    kv_heads: int
    rates: DeviceProfile
    link: LinkProfile
    weight_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """KV of a token in all of these layers."""
        return sum(block.kv_token_bytes for block in self.blocks)

    @property
    def layer_bytes(self) -> int:
        """KV of a token in the largest of these layers."""
        return max(block.kv_token_bytes for block in self.blocks)

    @property
    def act_bytes(self) -> int:
        """What a layer's K and V projections take for a token."""
        return self.blocks[0].hidden * self.blocks[0].bytes_per_element

    @property
    def longest(self) -> int:
        """Tokens of the longest run that the branches share or have."""
        return max(self.search.prompt_tokens, self.search.step_tokens)

    @property
    def tail_bytes(self) -> int:
        """What one branch writes in a step."""
        return self.search.step_tokens * self.token_bytes

    def tokens(self, branches: int, own: int) -> int:
        """Tokens that so many branches have, what they share counted once."""
        return self.search.prompts(branches) * self.search.prompt_tokens + branches * own

    def nbytes(self, branches: int, own: int) -> int:
        """Bytes of these tokens."""
        return self.tokens(branches, own) * self.token_bytes


class StreamedRead(NamedTuple):
    """What a layer reads through buffers in every pass.

    load_bytes: what of it crosses.
    shared_tokens, own_tokens: of each prompt, and of each branch.
    shared_pieces, own_pieces: in how many runs all prompts lie, and what each branch has, on
    average; each run is attended by itself.
    fetches: how many copies are made, one after the other. generate_s: what it takes to generate
    keys and values.
    """

    load_bytes: float
    shared_tokens: float
    own_tokens: float
    shared_pieces: int
    own_pieces: float
    fetches: int = 1
    generate_s: float = 0.0

    def piecemeal_s(self, block: Unit, rates: DeviceProfile, work: Pass) -> float:
        """How much longer a layer attends what it reads through buffers than what is there, in
        seconds."""

        def longer_s(rows: int) -> float:
            """Of each token that so many rows attend together."""
            streamed = rates.p_streamed(rows, block.group)
            return 1 / streamed - 1 / rates.p_attn(rows, block.group)

        # pieces were measured with `RUN` tokens of a branch's own
        own = max(0.0, self.own_tokens - RUN * self.own_pieces)
        longer = self.shared_tokens * longer_s(work.rows_together) + own * longer_s(1)
        flops = 2 * block.score_elements * work.rows
        pieces = self.shared_pieces + work.rows * self.own_pieces
        return max(0.0, flops * longer) + rates.piece_s * pieces


class Traffic(NamedTuple):
    """What a policy does in a step.

    reads: what each layer reads in every pass; None where all it needs is there. rounds: groups of
    branches that decode one after the other. step_bytes: what crosses once a step, `ahead_bytes` of
    it while a group decodes. buffers: 2 where a layer's bytes cross while the one before it is
    computed, else 1. device_bytes, host_bytes: of KV in each tier in the end.
    """

    device_bytes: float
    host_bytes: float = 0.0
    rounds: int = 1
    reads: Sequence[StreamedRead | None] = ()
    step_bytes: float = 0.0
    ahead_bytes: float = 0.0
    buffers: int = BUFFERS


class Policy(NamedTuple):
    """least: the bytes on the device without which nothing runs. lacks: what those are, in words.
    traffic: what crosses with so many bytes of room, at least these. by_modules: whether the
    model's own modules run it."""

    least: Callable[[Cache], float]
    lacks: str
    traffic: Callable[[Cache, float], Traffic]
    by_modules: bool = False


def _all_bytes(cache: Cache) -> int:
    """All KV at the last step, with what is written in one more."""
    search = cache.search
    return cache.nbytes(search.branches, search.output_tokens + search.step_tokens)


def _resident(cache: Cache, room: float) -> Traffic:
    return Traffic(_all_bytes(cache))


def _beam_groups(cache: Cache, room: float) -> Traffic:
    """LBS: a group's KV is on the device for a whole step, so what is not there crosses once a step
    (Eq. 4). The shared prompt stays; so does what the last group of the step before has read, which
    is used first, and what there is room for beside it. From the third group on, that room takes
    what comes ahead."""
    search = cache.search
    if _all_bytes(cache) <= room:
        return _resident(cache, room)
    whole = search.frozen_tokens + search.step_tokens
    sizes = range(1, search.branches + 1)
    size = max((n for n in sizes if cache.nbytes(n, whole) <= room), default=1)
    rounds = ceil(search.branches / size)
    size = ceil(search.branches / rounds)
    there = cache.nbytes(size, search.frozen_tokens)
    left = min(
        max(0.0, room - cache.nbytes(size, whole)), there - search.prompt_tokens * cache.token_bytes
    )
    return Traffic(
        room,
        cache.nbytes(search.branches, search.output_tokens) if rounds > 1 else 0,
        rounds,
        step_bytes=max(0.0, cache.nbytes(search.branches, search.frozen_tokens) - there - left),
        ahead_bytes=max(0, rounds - 2) * left,
    )


def _page_bytes(cache: Cache) -> int:
    """One block of one layer, the smallest that is read through a buffer."""
    return min(PIECE_TOKENS, cache.longest) * cache.layer_bytes


def _paged(cache: Cache, room: float) -> Traffic:
    """HELM: the oldest blocks leave, and cross in every pass."""
    search = cache.search
    if _all_bytes(cache) <= room:
        return _resident(cache, room)
    space = room - BUFFERS * _page_bytes(cache)
    rounds, size = _rounds(cache, space, cache.tail_bytes)
    kept = max(0.0, space - size * cache.tail_bytes)
    missing = max(
        0.0, cache.tokens(search.branches, search.frozen_tokens) - kept / cache.token_bytes
    )
    # the oldest, in whole blocks of any of the prompts
    blocks = ceil(missing / PIECE_TOKENS) * PIECE_TOKENS
    shared = min(search.prompt_tokens, blocks / search.problems)
    own = max(0.0, missing - search.problems * shared) / search.branches
    end = cache.nbytes(search.branches, search.output_tokens)
    reads = _reads(cache, size, shared, own, by_piece=True)
    return Traffic(room, max(0.0, end - kept), rounds, reads)


def _rounds(cache: Cache, room: float, tail_bytes: float) -> tuple[int, int]:
    """In how many rounds the branches decode where what they write does not fit at once, and the
    branches of the largest."""
    branches = cache.search.branches
    at_once = branches if room == inf else min(branches, max(1, int(room // tail_bytes)))
    rounds = ceil(branches / at_once)
    return rounds, ceil(branches / rounds)


def _reads(
    cache: Cache, branches: int, shared: float, own: float, tail: int = 0, by_piece: bool = False
) -> list[StreamedRead | None]:
    """What each layer reads, with `tail` tokens that each branch has written in this step; at once,
    or piece by piece."""
    arguments = cache.search, branches, shared, own, tail, by_piece
    return [_read(block, *arguments) for block in cache.blocks]


def _read(
    block: Unit,
    search: Steps,
    branches: int,
    shared: float,
    own: float,
    tail: int,
    by_piece: bool,
) -> StreamedRead | None:
    """What a layer reads of the first `shared` tokens of each prompt and the first `own` of each
    branch, as far as its window reaches."""
    there = search.prompt_tokens + search.frozen_tokens
    hidden = 0 if block.window is None else max(0, there - block.window)  # before its window
    prompt = max(0.0, shared - min(hidden, search.prompt_tokens) // PIECE_TOKENS * PIECE_TOKENS)
    branch = max(0.0, own - max(0, hidden - search.prompt_tokens))
    if not prompt and not branch and not tail:
        return None
    prompts = search.prompts(branches)
    of_prompts, of_branches = prompts * ceil(prompt / PIECE_TOKENS), 0
    if shared < search.prompt_tokens:  # not all of each prompt: whole blocks of any
        of_prompts = ceil(prompts * prompt / PIECE_TOKENS)
    if branch:
        of_each = segments(search.frozen_tokens, search.step_tokens, PIECE_TOKENS)
        # whole runs, not of each branch one
        of_branches = ceil(branches * of_each * branch / search.frozen_tokens)
    load_bytes = (prompts * prompt + branches * (branch + tail)) * block.kv_token_bytes
    fetches = of_prompts + of_branches if by_piece else 1
    return StreamedRead(load_bytes, prompt, branch, of_prompts, of_branches / branches, fetches)


def _head_bytes(cache: Cache) -> float:
    """One head of one layer, of all tokens."""
    return cache.search.kv_tokens * cache.layer_bytes / cache.kv_heads


def _headwise(cache: Cache, room: float) -> Traffic:
    """HeadInfer: all KV on the host, head groups of one layer at a time on the device."""
    search, heads = cache.search, cache.kv_heads
    buffers = BUFFERS * _head_bytes(cache)
    rounds, size = _rounds(cache, room - buffers, cache.tail_bytes)
    reads = _reads(cache, size, search.prompt_tokens, search.frozen_tokens)
    written = size * cache.tail_bytes
    for n, read in enumerate(reads):
        if read is not None and room < inf:
            at_once = max(1, int((room - written) * heads // (BUFFERS * read.load_bytes)))
            groups = ceil(heads / at_once)
            pieces = groups * read.shared_pieces, groups * read.own_pieces
            reads[n] = read._replace(shared_pieces=pieces[0], own_pieces=pieces[1], fetches=groups)
    there = min(room, written + heads * buffers)
    return Traffic(there, search.kv_tokens * cache.token_bytes, rounds, reads)


def _charged_tokens(cache: Cache) -> int:
    """What a layer holds in the last step."""
    search = cache.search
    return cache.tokens(search.branches, search.output_tokens + search.step_tokens)


def _layerwise(cache: Cache, room: float) -> Traffic:
    """The baseline: as many whole layers as fit stay (LBS, Eq. 1), the others cross in every
    pass."""
    search, layers = cache.search, len(cache.blocks)

    def staying(tokens: int) -> tuple[int, int]:
        """Layers that stay, and buffers for the others."""
        fitting = layers if room == inf else int(room // (tokens * cache.layer_bytes))
        buffers = min(BUFFERS, fitting)
        return layers if fitting >= layers else fitting - buffers, buffers

    stay, buffers = staying(
        cache.tokens(search.branches, search.frozen_tokens + search.step_tokens)
    )
    half = search.step_tokens // 2
    reads = _reads(cache, search.branches, search.prompt_tokens, search.frozen_tokens, half)
    leaving = layers - staying(_charged_tokens(cache))[0]
    return Traffic(
        min(room, _all_bytes(cache)),
        _charged_tokens(cache) * cache.token_bytes * leaving / layers,
        reads=[*[None] * stay, *reads[stay:]],
        buffers=max(1, buffers),
    )


def _capture_least(cache: Cache) -> float:
    """A KV block and an ACT block of a layer, what is generated of the latter, and what one branch
    writes."""
    block = min(CAPTURE_TOKENS, cache.longest)
    return block * (2 * cache.layer_bytes + cache.act_bytes) + _capture_tail_bytes(cache)


def _capture_tail_bytes(cache: Cache) -> float:
    return cache.tail_bytes * (1 + cache.act_bytes / cache.layer_bytes)


def capture_times(cache: Cache, read: StreamedRead, work: Pass) -> CaptureTimes:
    """What Algorithm 1 goes by, of a layer and per token: from the profile, in a pass that reads
    this. Generating KV takes its products, a copy to where attention reads it, and as many calls as
    a block at most."""
    block, rates = cache.blocks[0], cache.rates
    load_s = 1 / cache.link.to_device_bandwidth
    layer_s = roofline_time([block], rates, work) - rates.pass_overhead_s
    products_s = 2 * block.hidden * block.kv_elements / rates.p(MINI_BATCH_TOKENS)
    copy_s = 2 * cache.layer_bytes / rates.bandwidth  # read and written
    return CaptureTimes(
        kv_gen=Line(products_s + copy_s, rates.block_overhead_s),
        load_kv=Line(cache.layer_bytes * load_s),
        load_act=Line(cache.act_bytes * load_s),
        load_w=cache.weight_bytes * load_s,
        forward_s=layer_s + read.piecemeal_s(block, rates, work),
    )


def _capture(cache: Cache, room: float) -> Traffic:
    """CAPTURE: Algorithm 1 with times from the profile, in blocks of one token. KV blocks lie on
    the host. Where it gains less than `MIN_GAIN` by these times, there are KV blocks alone."""
    search, frozen = cache.search, cache.search.frozen_tokens
    rounds, size = _rounds(cache, room, _capture_tail_bytes(cache))
    shared_pieces = search.prompts(size) * ceil(search.prompt_tokens / CAPTURE_TOKENS)
    own_pieces = segments(frozen, search.step_tokens, CAPTURE_TOKENS)
    read = StreamedRead(0, search.prompt_tokens, frozen, shared_pieces, own_pieces)
    times = capture_times(cache, read, search.work_of(size))
    tokens = cache.tokens(size, frozen)
    # two buffers and what is generated, of a layer or of a mini-batch
    of_layer, of_batch = (3 * count * cache.layer_bytes for count in (tokens, MINI_BATCH_TOKENS))
    buffers = min(of_layer, of_batch, room / 2)
    batches = ceil(of_layer / buffers)
    written = size * _capture_tail_bytes(cache)
    token_acts = cache.act_bytes * len(cache.blocks)
    near = tokens if room == inf else int(max(0.0, room - buffers - written) // token_acts)
    act_gpu, act_host, kv_host = allocation(times, near, tokens, MIN_GAIN)
    read = read._replace(
        load_bytes=kv_host * cache.layer_bytes + act_host * cache.act_bytes,
        fetches=batches,
        generate_s=batches * times.kv_gen((act_gpu + act_host) / batches),
    )
    there = min(room, written + buffers + act_gpu * token_acts)
    return Traffic(there, search.kv_tokens * cache.token_bytes, rounds, [read] * len(cache.blocks))


@remember
def segments(tokens: int, step_tokens: int, most: int) -> int:
    """In how many storages of at most `most` tokens a branch has what it made in steps."""
    count = written = 0
    while written < tokens:
        left = step_tokens - written % step_tokens
        written += min(most, room_for(left, written))
        count += 1
    return count


POLICIES = {
    "resident": Policy(_all_bytes, "KV does not fit", _resident),
    "beam_groups": Policy(
        lambda cache: cache.nbytes(1, cache.search.output_tokens),
        "one branch does not fit",
        _beam_groups,
    ),
    "paged": Policy(
        lambda cache: _page_bytes(cache) + cache.tail_bytes, "one page does not fit", _paged
    ),
    "headwise": Policy(
        lambda cache: _head_bytes(cache) + cache.tail_bytes, "one head does not fit", _headwise
    ),
    "layerwise": Policy(
        lambda cache: _charged_tokens(cache) * cache.layer_bytes,
        "one layer does not fit",
        _layerwise,
    ),
    "capture": Policy(_capture_least, "one block does not fit", _capture, by_modules=True),
}
"""By their names, from what is simplest to what is least so."""
