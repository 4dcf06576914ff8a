"""The branch-aware engine: branches of one model over one KV tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import inf
from os import PathLike
from time import perf_counter
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from ttc.approximate.decode_gate import DecodeGate
from ttc.approximate.early_exit import EarlyExit, ExitReport, Lens, score_with_exit
from ttc.approximate.similar_prompts import share_similar
from ttc.attention.plan import Plan, depth_first
from ttc.errors import InvalidInput
from ttc.model.check import check_model, context_length
from ttc.model.packed_linear import pack_linears
from ttc.passes.decode import DecodeStep
from ttc.passes.prefill import feed
from ttc.passes.scoring import score
from ttc.protocols import Purpose
from ttc.residency.base import Residency
from ttc.residency.resident import Resident
from ttc.sampling import SAMPLED, Sampling, stream_key
from ttc.tree.branch import Branch
from ttc.tree.eviction import BlockCache
from ttc.tree.sharing import Sharing
from ttc.tree.tree import Segment, Tree
from ttc.usage import Usage


class Engine:
    """Runs a Hugging Face decoder over a tree of branches. KV of a shared prefix is stored and read once.

    model, tokenizer: loaded by the caller; the model's attention implementation is set to the engine's own.
    prefill_tokens: the most rows of one prefill pass. memory: the residency policy, `Resident()` by default.
    cache: what keeps the KV of idle branches within a number of blocks, None for no limit. sharing: what branches
    share, `Sharing("exact")` by default. gate: what stops branches that have fallen behind as they decode, None for
    nothing.
    Raises UnsupportedModel when the model's attention cannot be served exactly.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        prefill_tokens: int = 512,
        memory: Residency | None = None,
        cache: BlockCache | None = None,
        sharing: Sharing | None = None,
        gate: DecodeGate | None = None,
    ):
        if prefill_tokens < 1:
            raise InvalidInput(f"prefill_tokens={prefill_tokens} must be at least 1")
        self.model, self.tokenizer, self.prefill_tokens = model.eval(), tokenizer, prefill_tokens
        self.device, self.dtype = model.device, model.dtype
        self.residency = (memory or Resident()).bind(check_model(model), self.dtype, self.device)
        self.memory = self.residency.memory
        self.tree = Tree(self.residency)
        self.cache = None if cache is None else cache.fresh()
        self.sharing, self.gate = sharing or Sharing(), gate
        self.live: WeakSet[Branch] = WeakSet()  # branches that were not released
        self.calls = 0
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.context_length = context_length(config)
        self.eos_ids = _eos_ids(model, tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        name: str | PathLike[str],
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        **options: Any,
    ) -> Engine:
        """Load a model by alias ("smollm2-135m"), folder, .gguf file or hub id. `options` go to the constructor."""
        from ttc.model.loading import load

        model, tokenizer = load(str(name), device=device, dtype=dtype)
        pack_linears(model)
        return cls(model, tokenizer, **options)

    # ---------------------------------------------------------------- branches

    def root(self, tokens: Sequence[int], *, seed: int = 0) -> Branch:
        """A branch that holds a prompt. What the prompt shares with any live branch is not computed again."""
        return self.roots([tokens], seeds=[seed])[0]

    def roots(self, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None = None) -> list[Branch]:
        """Many prompts at once, prefilled in merged batches; each is the start of its own random stream."""
        seeds = range(len(prompts)) if seeds is None else seeds
        if len(seeds) != len(prompts):
            raise InvalidInput(f"{len(prompts)} prompts came with {len(seeds)} seeds; give one each")
        prompts = [self._checked(prompt, "prompt") for prompt in prompts]
        for prompt in prompts:
            self._check_context(len(prompt))
            if len(prompt) == self.context_length:
                raise InvalidInput(
                    f"the prompt fills the model's context of {self.context_length} tokens and leaves no room to "
                    "generate; shorten it or use a model with a longer context"
                )
        branches = [
            Branch(prompt, self.tree.hold(self.tree.trunk), stream_key(seed), Usage(), self.decode)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        return self._planted(branches, "prompt")

    def variants(
        self, root: Branch, prompts: Sequence[Sequence[int]], suffixes: Sequence[Sequence[int]] | None = None
    ) -> list[Branch]:
        """Children of `root`, one per prompt, that start from prompts of their own instead of the root's.

        suffixes: tokens that follow each prompt. Prefixes are shared as always; under `Sharing("similar")` a child may
        stand on the root's prompt in place of its own, which `branch.substituted` then tells (approximate).
        Raises InvalidInput when `root` has generated anything: its prompt could not be replaced any more.
        """
        self._check_live([root])
        if root.generated:
            raise InvalidInput(f"{root!r} has generated tokens, so its prompt cannot be varied; give the root itself")
        own = [self._checked(prompt, "prompt") for prompt in prompts]
        after = [self._checked(s, "suffix") if s else [] for s in suffixes or [[]] * len(own)]
        if len(after) != len(own):
            raise InvalidInput(f"{len(own)} prompts came with {len(after)} suffixes; give one each, [] for none")
        for prompt, suffix in zip(own, after, strict=True):
            self._check_context(len(prompt) + len(suffix) + 1)
        children = [root.child() for _ in own]
        for child in children:
            self.tree.hold(self.tree.trunk)
            child.leaf = self.tree.trunk
        self.live.update(children)
        try:
            for child, prompt in zip(children, own, strict=True):
                child.tokens = prompt
            if self.sharing.rule == "similar":
                most = self.context_length or inf
                fitting = [c for c, s in zip(children, after, strict=True) if len(root.tokens) + len(s) < most]
                with self._working([root]), self.metered(children):
                    share_similar(self, root, fitting)
            for child, suffix in zip(children, after, strict=True):
                child.tokens += suffix
                child.prompt_length = len(child.tokens)
            return self._planted(children, "prompt")
        except BaseException:
            self.release(children)
            raise

    def aside(self, branches: Sequence[Branch], prompts: Sequence[Sequence[int]]) -> list[Branch]:
        """New branches with these prompts on the usage meters of `branches`, for a verifier that asks elsewhere than on
        a branch's own KV. Counted as verifier tokens; to be released by the caller."""
        self._check_live(branches)
        if len(prompts) != len(branches):
            raise InvalidInput(f"{len(branches)} branches came with {len(prompts)} prompts; give one each")
        own = [self._checked(prompt, "prompt") for prompt in prompts]
        for prompt in own:
            self._check_context(len(prompt) + 1)
        new = [
            Branch(prompt, self.tree.hold(self.tree.trunk), branch.key, branch.usage, self.decode)
            for branch, prompt in zip(branches, own, strict=True)
        ]
        return self._planted(new, "verifier")

    def _planted(self, branches: list[Branch], purpose: Purpose) -> list[Branch]:
        """New branches with the KV of all of their tokens but the last."""
        self.live.update(branches)
        try:
            with self._working(branches, wake=False):
                if self.sharing.rule != "none" or purpose == "verifier":
                    feed(self, branches, [b.tokens for b in branches], purpose)
        except BaseException:
            self.release(branches)
            raise
        return branches

    def fork(self, branch: Branch, n: int) -> list[Branch]:
        """`n` children that continue `branch`, each with its own random stream. No KV is copied."""
        self._check_live([branch])
        if n < 1:
            raise InvalidInput(f"cannot fork a branch {n} times; n must be at least 1")
        children = [branch.child() for _ in range(n)]
        for child in children:
            if self.sharing.rule == "none":
                child.leaf = self.tree.trunk
            self.tree.hold(self.leaf(child))
        self.live.update(children)
        return children

    def extend(
        self, branches: Sequence[Branch], tokens_per_branch: Sequence[Sequence[int]], *, purpose: Purpose = "prompt"
    ) -> None:
        """Append given tokens to each branch, their KV computed in chunks; `purpose` says what they count as."""
        self._check_live(branches)
        if len(tokens_per_branch) != len(branches):
            raise InvalidInput(
                f"{len(branches)} branches came with {len(tokens_per_branch)} token lists; give one each"
            )
        added = [self._checked(tokens, "extension") for tokens in tokens_per_branch]
        for branch, tokens in zip(branches, added, strict=True):
            self._check_context(len(branch.tokens) + len(tokens))
        with self._working(branches, wake=self.sharing.rule != "none"):  # else one pass for both
            before = [self.tree.hold(self.leaf(branch)) for branch in branches]
            try:
                feed(self, branches, [b.tokens + new for b, new in zip(branches, added, strict=True)], purpose)
            except BaseException:
                for branch, leaf in zip(branches, before, strict=True):
                    self.move(branch, leaf)
                raise
            finally:
                for leaf in before:
                    self.tree.drop(leaf)
            for branch, new in zip(branches, added, strict=True):
                if branch.generated:
                    branch.logprobs += [float("nan")] * len(new)
                    branch.top1 += [float("nan")] * len(new)
                else:
                    branch.prompt_length += len(new)
                branch.tokens += new

    def release(self, branches: Iterable[Branch]) -> None:
        """Let go of branches. KV that nothing else needs is freed at once; tokens and scores stay readable."""
        for branch in branches:
            if branch.leaf is not None:
                self.tree.drop(branch.leaf)
            branch.leaf = None
            self.live.discard(branch)

    def kv_bytes(self) -> int:
        """Bytes of KV that exist now, over both tiers."""
        return self.memory.device.used_bytes + self.memory.host.used_bytes

    # ---------------------------------------------------------------- generation

    @torch.inference_mode()
    def generate(
        self,
        branches: Sequence[Branch],
        max_tokens: int | Sequence[int],
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
    ) -> None:
        """Continue each branch by one step, in place and all in one batch.

        A branch's step ends after `max_tokens` tokens (one number or one per branch), when its text since the step's
        start, leading blanks left out, holds a string of `stop`, or when the branch finishes: at an end-of-sequence
        token, at a string of `end`, or at the model's context length. KV is written in place and frozen into a
        segment at the step's end.
        """
        self._check_live(branches)
        limits = [max_tokens] * len(branches) if isinstance(max_tokens, int) else list(max_tokens)
        self._check_step(branches, limits, stop, end)
        if not branches:
            return
        room = [
            limit if (left := self.context_left(b)) is None else min(limit, left)
            for b, limit in zip(branches, limits, strict=True)
        ]
        with self._working(branches), self.metered(branches):
            order = depth_first([self.leaf(b).path() for b in branches])
            DecodeStep(self, [branches[i] for i in order], [room[i] for i in order], stop, end, sampling).run()

    # ---------------------------------------------------------------- scoring

    @torch.inference_mode()
    def score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Sequence[Sequence[int]]],
        *,
        given: Sequence[Sequence[int]] | None = None,
        exit: EarlyExit | None = None,
        report: ExitReport | None = None,
    ) -> list[list[list[float]]]:
        """Log-probabilities of given continuations: `[i][j][t]` for token t of continuation j of branch i.

        The branches stay as they are. What the continuations of a branch share is computed once; single-token
        continuations of one branch all come from one row. Counted as verifier tokens.
        given: `given[i]` stands between branch i and its continuations in this call; it is computed, not scored.
        exit: branches may leave the pass before the last layer (approximate); single-token continuations only. What it
        did is put into `report`.
        """
        self._check_live(branches)
        if len(continuations) != len(branches):
            raise InvalidInput(f"{len(branches)} branches came with {len(continuations)} lists of continuations")
        if given is not None and len(given) != len(branches):
            raise InvalidInput(f"{len(branches)} branches came with {len(given)} lists of given tokens; give one each")
        between = [self._checked(g, "list of given tokens") if g else [] for g in given or [[]] * len(branches)]
        wanted = [[self._checked(c, "continuation") for c in group] for group in continuations]
        for branch, group, tokens in zip(branches, wanted, between, strict=True):
            if not group:
                raise InvalidInput("a branch came with no continuation to score")
            longest = max(map(len, group))
            self._check_context(len(branch.tokens) + len(tokens) + longest)
            if exit is not None and longest > 1:
                raise InvalidInput(
                    f"a continuation has {longest} tokens; with an early exit only single tokens can be scored, so put "
                    "what comes before them into `given`"
                )
        with self._working(branches), self.metered(branches):
            if exit is None:
                return score(self, branches, between, wanted)
            single = [[token for (token,) in group] for group in wanted]
            return score_with_exit(self, branches, between, single, exit, report or ExitReport())

    @cached_property
    def lens(self) -> Lens:
        """The model's logits after any of its layers. Raises UnsupportedModel, at first use, where there are none."""
        return Lens(self)

    # ---------------------------------------------------------------- text

    def encode(self, text: str) -> list[int]:
        """Text to tokens, with no special tokens added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens to text, special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    # ---------------------------------------------------------------- the model

    def forward(self, tokens: Sequence[int], plan: Plan, keep: Sequence[int] | None = None) -> Tensor:
        """One pass over packed rows. Returns logits (rows, vocab) in at least float32, of the rows `keep` or of all."""
        ids = torch.tensor([list(tokens)], device=self.device)
        positions = torch.tensor([plan.positions], device=self.device)
        kept = 0 if keep is None else torch.tensor(list(keep), device=self.device)
        start = perf_counter()
        try:
            output = self.model(
                input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=kept, tree_plan=plan
            )
        finally:
            if (trace := self.memory.link.trace) is not None:
                trace.add("compute", f"{len(tokens)} rows", start, perf_counter())
        return output.logits[0].to(torch.promote_types(output.logits.dtype, torch.float32))

    @contextmanager
    def _working(self, branches: Sequence[Branch], wake: bool = True) -> Iterator[None]:
        """Keep the cache within its capacity around a call, and have the KV of `branches` there meanwhile."""
        self.calls += 1
        for branch in branches:
            branch.used_at = self.calls
        if self.cache is not None:
            self.cache.trim(self, branches)
        missing = [b for b in branches if wake and self.leaf(b).end < len(b.tokens) - 1]
        feed(self, missing, [b.tokens for b in missing], "prompt" if self.sharing.rule == "none" else "recompute")
        try:
            yield
        finally:
            if self.cache is not None:
                self.cache.trim(self)

    @contextmanager
    def metered(self, branches: Sequence[Branch]) -> Iterator[None]:
        """Charge what crosses the link meanwhile to the branches' problems, in equal parts."""
        link = self.memory.link
        before = link.to_device_bytes.total(), link.to_host_bytes.total()
        try:
            yield
        finally:
            moved = link.to_device_bytes.total() - before[0], link.to_host_bytes.total() - before[1]
            for i, branch in enumerate(branches if any(moved) else ()):
                part = [n // len(branches) + (i < n % len(branches)) for n in moved]
                branch.usage.host_to_device_bytes += part[0]
                branch.usage.device_to_host_bytes += part[1]

    @staticmethod
    def count_pass(usages: Iterable[Usage]) -> None:
        for usage in {id(u): u for u in usages}.values():
            usage.forward_passes += 1

    def move(self, branch: Branch, segment: Segment) -> Segment:
        """Let `branch` end at `segment`."""
        self.tree.hold(segment)
        self.tree.drop(self.leaf(branch))
        branch.leaf = segment
        return segment

    # ---------------------------------------------------------------- checks

    def leaf(self, branch: Branch) -> Segment:
        if branch.leaf is None:
            raise InvalidInput(f"{branch!r} was released; fork or generate before releasing it")
        return branch.leaf

    def _check_live(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            self.leaf(branch)
        if len({id(b) for b in branches}) < len(branches):
            raise InvalidInput("the same branch was given twice in one call; fork it to continue it in two ways")

    def _checked(self, tokens: Sequence[int], what: str) -> list[int]:
        tokens = list(tokens)
        if not tokens:
            raise InvalidInput(f"the {what} is empty; give at least one token")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise InvalidInput(
                f"the {what} holds token {max(tokens, key=lambda t: abs(t - self.vocab_size / 2))}, outside the "
                f"model's vocabulary of {self.vocab_size}; use the model's own tokenizer"
            )
        return tokens

    def _check_context(self, length: int) -> None:
        if self.context_length is not None and length > self.context_length:
            raise InvalidInput(
                f"{length} tokens are more than the model's context of {self.context_length}; shorten the prompt "
                "or use a model with a longer context"
            )

    def context_left(self, branch: Branch) -> int | None:
        return None if self.context_length is None else self.context_length - len(branch.tokens)

    def _check_step(
        self, branches: Sequence[Branch], limits: Sequence[int], stop: Sequence[str], end: Sequence[str]
    ) -> None:
        if len(limits) != len(branches):
            raise InvalidInput(f"{len(branches)} branches came with {len(limits)} values of max_tokens; give one each")
        if any(limit < 1 for limit in limits):
            raise InvalidInput(f"max_tokens={min(limits)} must be at least 1")
        if any(not s for s in (*stop, *end)):
            raise InvalidInput("a stop or end string is empty; leave it out to run to max_tokens")
        for branch in branches:
            if branch.finished:
                raise InvalidInput(f"{branch!r} is finished and cannot go on; leave it out")
            if self.context_left(branch) == 0:
                raise InvalidInput(f"{branch!r} fills the model's context of {self.context_length} tokens already")


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a sequence, by the model's generation config and by the tokenizer."""
    generation = getattr(model, "generation_config", None)
    found = [getattr(generation, "eos_token_id", None), getattr(tokenizer, "eos_token_id", None)]
    ids = [i for ids in found for i in (ids if isinstance(ids, list | tuple) else [ids])]
    return frozenset(int(i) for i in ids if i is not None)
