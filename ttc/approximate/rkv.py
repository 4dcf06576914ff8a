"""R-KV (Cai et al., 2025, arXiv 2505.24133): of what a branch has written, KV is kept of the tokens
that are attended to and say something new (approximate)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from ttc.attention.entry import depth_first, shared_entries
from ttc.attention.extend_plan import ExtendPlan, Piece
from ttc.attention.kernels import Layer, Partial
from ttc.attention.plan import Plan
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.memory.kv import KV, LayerShape
from ttc.model.runner import ModelRunner
from ttc.placement.base import PlacedRunner
from ttc.residency.resident import Resident
from ttc.tree.branch import Branch
from ttc.tree.segment import Segment
from ttc.tree.tree import Tree
from ttc.usage import count_pass


@dataclass
class RKV(Resident):
    """Everything on the device, but of a branch's own text no more than `budget_tokens` tokens
    stay, those with the best scores in each head. Prompts, and what several branches share, stay
    whole.

    A text is cut down to `budget_tokens` once it has `buffer_tokens` more, when its tail has become
    a segment. Its last `recent_tokens` always stay. The others are scored by `attention_share` x
    importance - (1 - attention_share) x redundancy:
    importance: the attention that the last tokens pay, by the largest score of a group's queries;
        the most of `pool_tokens` neighbours;
    redundancy: the softmax of a key's mean cosine with all keys, where each key leaves out the last
        one that it is more `alike` to than this.
    """

    budget_tokens: int = 1024
    buffer_tokens: int = 128
    recent_tokens: int = 8
    attention_share: float = 0.1
    alike: float = 0.5
    pool_tokens: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("budget_tokens", "buffer_tokens", "recent_tokens", "pool_tokens")
        if self.budget_tokens <= self.recent_tokens:
            raise InvalidInput(
                f"memory.budget_tokens={self.budget_tokens} leaves nothing to choose beside "
                f"memory.recent_tokens={self.recent_tokens}; give more"
            )
        for name in ("attention_share", "alike"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"memory.{name}={getattr(self, name)} must be from 0 to 1")
        if self.pool_tokens % 2 == 0:
            raise InvalidInput(
                f"memory.pool_tokens={self.pool_tokens} has no middle; give an odd number"
            )

    def bind(self, shapes: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> Self:
        if not all(shape.sees_all for shape in shapes):
            raise UnsupportedModel(
                "memory=rkv drops tokens of a text, and this model has layers that look so many "
                "tokens back; use memory=resident"
            )
        return super().bind(shapes, dtype, device)

    def for_another_model(self) -> Resident:
        return Resident(self.budget_gib)

    def check(self, runner: ModelRunner) -> None:
        """Raise UnsupportedModel for a model whose texts cannot be cut down so."""
        reason = ""
        if runner.recurrent is not None:
            reason = "this model has recurrent layers, which keep no token apart"
        elif isinstance(runner, PlacedRunner):
            reason = "with a placement some of them lie elsewhere"
        if reason:
            raise UnsupportedModel(
                f"memory=rkv drops single tokens on the device, and {reason}; use memory=resident"
            )

    @torch.inference_mode()
    def condense(
        self,
        branches: Sequence[Branch],
        tree: Tree,
        forward: Callable[[Sequence[int], Plan, Sequence[int]], object],
    ) -> None:
        """Cut down the texts that are too long, as far as there is room for what is kept. One pass
        of their last tokens tells what these look at."""
        long = [text for branch in branches if (text := self._long_text(branch)) is not None]
        texts = [long[i] for i in depth_first([text.branch.leaf.path() for text in long])]
        free_bytes = self.memory.device.free_bytes
        while texts and self.memory.bytes_of(sum(text.kept for text in texts)) > free_bytes:
            texts.pop()
        if not texts:
            return
        kvs = list[KV]()
        try:
            for text in texts:
                kvs.append(self.memory.allocate(text.kept))
            plan = Observed(self, texts, kvs)
            forward([token for text in texts for token in text.recent], plan, [0])
        except BaseException:
            for kv in kvs:
                self.memory.free(kv)
            raise
        count_pass(text.branch.usage for text in texts)
        for text, kv in zip(texts, kvs, strict=True):
            text.branch.usage.evicted_tokens += text.held - text.kept
            tree.replace(text.chain, kv)

    def _long_text(self, branch: Branch) -> Text | None:
        chain = list[Segment]()
        segment = branch.leaf
        while segment.parent is not None and segment.refs == 1:
            if segment.end <= branch.prompt_length:
                break
            chain.append(segment)
            segment = segment.parent
        if not chain:
            return None
        text = Text(branch, chain[::-1], self.recent_tokens, self.budget_tokens)
        return text if text.own >= self.budget_tokens + self.buffer_tokens else None

    @property
    def longest_tail(self) -> float:
        """As a text is cut down when its tail is full, after `buffer_tokens` more at the latest."""
        return self.buffer_tokens

    def choice(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """The tokens that stay of a text, in order, for each KV head: (kv_heads, budget_tokens).

        queries: of the last tokens, (kv_heads, groups, recent_tokens, dim). keys: (kv_heads,
            tokens, dim). scale: of attention.
        """
        recent, tokens = self.recent_tokens, keys.shape[1]
        chosen = [
            self._scores(q.float(), k.float(), scale).topk(self.budget_tokens - recent).indices
            for q, k in zip(queries, keys, strict=True)
        ]
        last = torch.arange(tokens - recent, tokens, device=keys.device)
        return torch.cat([torch.stack(chosen).sort().values, last.expand(len(keys), -1)], 1)

    def _scores(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """Of each token but the last ones, for one KV head: (tokens - recent_tokens,)."""
        past = len(keys) - self.recent_tokens
        weights = (queries @ keys[:past].T * scale).amax(0).softmax(-1)  # (recent, past)
        importance = max_pool1d(
            weights.mean(0)[None], self.pool_tokens, stride=1, padding=self.pool_tokens // 2
        )[0]
        share = self.attention_share
        return importance * share - redundancy(keys, self.alike)[:past] * (1 - share)


def redundancy(keys: Tensor, alike: float) -> Tensor:
    """How much each key (tokens, dim) says what others say: (tokens,), with a sum of 1."""
    unit = keys / keys.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(keys.dtype).tiny)
    cosines: Tensor = unit @ unit.T
    cosines.fill_diagonal_(0)
    places = torch.arange(len(keys), device=keys.device)
    last = torch.where(cosines > alike, places, -1).amax(-1)
    rows = (last >= 0).nonzero()[:, 0]
    cosines[rows, last[rows]] = 0
    return cosines.mean(0).softmax(0)


@dataclass(frozen=True)
class Text:
    """What a branch alone has written: the segments that hold it, the first of which may begin in
    the prompt, which stays. recent_tokens, budget_tokens: see `RKV`."""

    branch: Branch
    chain: list[Segment]
    recent_tokens: int
    budget_tokens: int

    @property
    def prompt(self) -> int:
        return max(0, self.branch.prompt_length - self.chain[0].start)

    @property
    def held(self) -> int:
        return sum(segment.held for segment in self.chain)

    @property
    def own(self) -> int:
        return self.held - self.prompt

    @property
    def kept(self) -> int:
        return self.prompt + self.budget_tokens

    @property
    def recent(self) -> list[int]:
        end = self.branch.leaf.end
        return self.branch.tokens[end - self.recent_tokens : end]

    def earlier(self) -> dict[KV, int]:
        lengths = dict[KV, int]()
        last = self.recent_tokens
        for segment in reversed(self.chain):
            taken = min(last, segment.held)
            lengths[segment.storage] = segment.held - taken
            last -= taken
        return lengths


class Observed(ExtendPlan):
    """A pass of the last tokens of some texts, which stores nothing new. In each layer the KV of
    the tokens that stay is put into `kvs`, one for each text."""

    def __init__(self, rule: RKV, texts: Sequence[Text], kvs: Sequence[KV]):
        self.rule, self.texts, self.kvs = rule, texts, kvs
        count = rule.recent_tokens
        self.spans = [slice(i * count, (i + 1) * count) for i in range(len(texts))]
        earlier = {kv: n for text in texts for kv, n in text.earlier().items()}
        paths = [text.branch.leaf.path() for text in texts]
        entries = [
            replace(entry, length=earlier.get(entry.kv, entry.length))
            for entry in shared_entries(paths, [count] * len(texts))
        ]
        ends = [text.branch.leaf.end for text in texts]
        super().__init__(
            [entry for entry in entries if entry.length],
            [position for end in ends for position in range(end - count, end)],
            [Piece(span, ()) for span in self.spans],
            rule.memory,
        )

    def attend(self, layer: Layer, q: Tensor, key: Tensor, value: Tensor) -> Partial:
        for text, kv, span in zip(self.texts, self.kvs, self.spans, strict=True):
            copies = [s.storage.on_device(layer.index) for s in text.chain]
            both = [torch.cat(parts, 1) for parts in zip(*(c.both for c in copies), strict=True)]
            own = both[0][:, text.prompt :]  # (kv_heads, tokens, dim)
            places = self.rule.choice(q[:, :, span], own, layer.scale) + text.prompt
            for old, new in zip(both, kv.on_device(layer.index).both, strict=True):
                new[:, : text.prompt] = old[:, : text.prompt]
                new[:, text.prompt :] = old.gather(
                    1, places[..., None].expand(-1, -1, old.shape[-1])
                )
        return super().attend(layer, q, key, value)
