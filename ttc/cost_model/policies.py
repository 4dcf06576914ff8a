"""What a memory policy needs on the device, and what it moves over the link while branches decode a
step: of the policies that a plan considers.

`headwise`, `layerwise` and `capture` are not planned: in no setting of `bench plan` was one of them
the fastest. What branches share is counted once. Sizes are bytes. A search is looked at half way
for what moves, and at its end for what has to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache as remember
from math import ceil
from typing import NamedTuple, Self

from ttc.cost_model.device_profile import BUFFERS, RUN, DeviceProfile
from ttc.cost_model.split_search import Generation
from ttc.cost_model.unit import Pass, Unit
from ttc.memory.storage import room_for

PIECE_TOKENS = 512
"""The most tokens of a storage under `paged`, as by default."""


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
        return Pass(branches, self.own_tokens, self.prompt_tokens, self.prompts(branches))


@dataclass(frozen=True)
class Cache:
    """What the layers of the device keep for a search. blocks: those that attend."""

    blocks: Sequence[Unit]
    search: Steps

    @property
    def token_bytes(self) -> int:
        """KV of a token in all of these layers."""
        return sum(block.kv_token_bytes for block in self.blocks)

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
    shared_pieces, own_pieces: in how many runs all prompts lie, and all that branches have; each
    run is fetched and attended by itself.
    """

    load_bytes: float
    shared_tokens: float
    own_tokens: float
    shared_pieces: int
    own_pieces: int

    @property
    def pieces(self) -> int:
        return self.shared_pieces + self.own_pieces

    def piecemeal_s(self, block: Unit, rates: DeviceProfile, work: Pass) -> float:
        """How much longer a layer attends what it reads through buffers than what is there, in
        seconds."""

        def longer_s(rows: int) -> float:
            """Of each token that so many rows attend together."""
            streamed = rates.p_streamed(rows, block.group)
            return 1 / streamed - 1 / rates.p_attn(rows, block.group)

        # pieces were measured with `RUN` tokens of a branch's own
        own = max(0.0, self.own_tokens - RUN * self.own_pieces / work.branches)
        longer = self.shared_tokens * longer_s(work.rows_together) + own * longer_s(1)
        flops = 2 * block.score_elements * work.branches
        return max(0.0, flops * longer) + rates.piece_s * self.pieces


class Traffic(NamedTuple):
    """What a policy does in a step.

    reads: what each layer reads in every pass; None where all it needs is there. rounds: groups of
    branches that decode one after the other. step_bytes: what crosses once a step, `ahead_bytes` of
    it while a group decodes. device_bytes, host_bytes: of KV in each tier in the end.
    """

    device_bytes: float
    host_bytes: float = 0.0
    rounds: int = 1
    reads: Sequence[StreamedRead | None] = ()
    step_bytes: float = 0.0
    ahead_bytes: float = 0.0


class Policy(NamedTuple):
    """least: the bytes on the device without which nothing runs. lacks: what those are, in words.
    traffic: what crosses with so many bytes of room, at least these."""

    least: Callable[[Cache], float]
    lacks: str
    traffic: Callable[[Cache, float], Traffic]


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
    longest = max(cache.search.prompt_tokens, cache.search.step_tokens)
    return min(PIECE_TOKENS, longest) * max(block.kv_token_bytes for block in cache.blocks)


def _paged(cache: Cache, room: float) -> Traffic:
    """HELM: the oldest blocks leave, and cross in every pass."""
    search = cache.search
    if _all_bytes(cache) <= room:
        return _resident(cache, room)
    space = room - BUFFERS * _page_bytes(cache)
    at_once = min(search.branches, max(1, int(space // cache.tail_bytes)))
    rounds = ceil(search.branches / at_once)
    size = ceil(search.branches / rounds)
    kept = max(0.0, space - size * cache.tail_bytes)
    missing = max(
        0.0, cache.tokens(search.branches, search.frozen_tokens) - kept / cache.token_bytes
    )
    # the oldest, in whole blocks of any of the prompts
    blocks = ceil(missing / PIECE_TOKENS) * PIECE_TOKENS
    shared = min(search.prompt_tokens, blocks / search.problems)
    own = max(0.0, missing - search.problems * shared) / search.branches
    end = cache.nbytes(search.branches, search.output_tokens)
    reads = [_read(block, search, size, shared, own) for block in cache.blocks]
    return Traffic(room, max(0.0, end - kept), rounds, reads)


def _read(
    block: Unit, search: Steps, branches: int, shared: float, own: float
) -> StreamedRead | None:
    """What a layer reads of the first `shared` tokens of each prompt and the first `own` of each
    branch, as far as its window reaches."""
    there = search.prompt_tokens + search.frozen_tokens
    hidden = 0 if block.window is None else max(0, there - block.window)  # before its window
    prompt = max(0.0, shared - min(hidden, search.prompt_tokens) // PIECE_TOKENS * PIECE_TOKENS)
    branch = max(0.0, own - max(0, hidden - search.prompt_tokens))
    if not prompt and not branch:
        return None
    prompts = search.prompts(branches)
    of_prompts, of_branches = prompts * ceil(prompt / PIECE_TOKENS), 0
    if shared < search.prompt_tokens:  # not all of each prompt: whole blocks of any
        of_prompts = ceil(prompts * prompt / PIECE_TOKENS)
    if branch:
        of_each = segments(search.frozen_tokens, search.step_tokens, PIECE_TOKENS)
        # whole runs, not of each branch one
        of_branches = ceil(branches * of_each * branch / search.frozen_tokens)
    load_bytes = (prompts * prompt + branches * branch) * block.kv_token_bytes
    return StreamedRead(load_bytes, prompt, branch, of_prompts, of_branches)


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
}
"""By their names, from what is simplest to what is least so."""
