"""The branch-aware engine: branches of one model over one KV tree."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ttc.attention.hf_hook import lent
from ttc.backend import Backend, Purpose, Tokens
from ttc.branch import Branch
from ttc.checks import check_flag, check_is
from ttc.errors import on_failure
from ttc.memory.manager import Memory
from ttc.model.generation_settings import GenerationSettings
from ttc.model.limits import ModelLimits
from ttc.model.runner_choice import RunnerChoice, bind_policy, runner_for
from ttc.model.running.runner import ModelRunner
from ttc.parts import handler
from ttc.passes.arguments import (
    checked_continuations,
    checked_extensions,
    checked_prompts,
    checked_side_prompts,
    checked_variants,
)
from ttc.passes.new_tokens import Outputs, prefill
from ttc.passes.runtime import Runtime, check_parts
from ttc.residency.base import Residency
from ttc.residency.resident import Resident
from ttc.sampling import SAMPLED, Sampling, random_key
from ttc.scheduler.batch import RunningBatch
from ttc.scheduler.calls import Calls
from ttc.scheduler.stops import Gate
from ttc.step import step_of
from ttc.task import Passes, Task, one_at_a_time
from ttc.tree.branch import check_branches, check_live
from ttc.tree.segment import tokens_to_read
from ttc.tree.sharing import Sharing
from ttc.tree.tree import Tree
from ttc.usage import Usage, by_meter, read_by_verifier

if TYPE_CHECKING:
    from ttc.approximate.early_exit import EarlyExit, ExitReport
    from ttc.model.loading.device_map import DeviceMap
    from ttc.model.running.lens import Lens
    from ttc.placement.auto import Auto, Chosen
    from ttc.placement.base import Placement
    from ttc.scheduler.seams import Drafts
    from ttc.trace import Trace
    from ttc.tree.eviction import BlockCache

T = TypeVar("T")


class Engine(Backend):
    """Runs a Hugging Face decoder over a tree of branches. KV of a shared prefix is stored and read
    once.

    model, tokenizer: loaded by the caller; the model's attention implementation is set to the
        engine's.
    prefill_tokens: the largest number of rows of a prefill pass.
    memory: the residency policy, `Resident()` by default.
    cache: what keeps the KV of idle branches within a number of blocks.
    sharing: what branches share, `Sharing("exact")` by default.
    gate: what stops branches that have fallen behind as they decode.
    runner: what runs the model's layers (see `ttc.model.runner_choice`).
    generation_settings: whether tokens are drawn as the model's generation_config asks, as
        transformers' `generate` does. Its end tokens count in any case.
    int8_activations: round to 8 bits what meets weights of `quantized=True`; approximate.
    split_special_tokens: read special tokens in what users and tools say as plain text; without it
        "<|im_end|>" in a question ends the turn, as in transformers and vLLM.
    speculation: what drafts tokens while few branches decode, as `PromptLookup()`. No token depends
        on it; `engine.speculation.reason` says why an engine does not speculate.
    Threads may share an engine; their calls run one after the other.
    Raises UnsupportedModel when the model's attention cannot be served exactly, and for a setting
    of its generation_config that the engine does not have.
    """

    limits: ModelLimits

    def __init__(  # noqa: PLR0913 - the engine's parts, which users name
        self,
        model: Any,
        tokenizer: Any,
        *,
        prefill_tokens: int = 512,
        memory: Residency | None = None,
        cache: BlockCache | None = None,
        sharing: Sharing | None = None,
        gate: Gate | None = None,
        runner: RunnerChoice | ModelRunner = "modules",
        generation_settings: bool = True,
        int8_activations: bool = False,
        split_special_tokens: bool = False,
        speculation: Drafts | None = None,
    ):
        check_parts(model, tokenizer, prefill_tokens, memory, cache, sharing, gate, speculation)
        check_flag("generation_settings", generation_settings)
        check_flag("int8_activations", int8_activations)
        check_flag("split_special_tokens", split_special_tokens)
        config = getattr(model, "generation_config", None) if generation_settings else None
        settings = GenerationSettings.of(config, model.config.get_text_config().vocab_size)
        self.runner: ModelRunner = runner_for(model, runner)
        if int8_activations:
            handler("int8_activations", "True")(model, self.runner)
        self.model = model
        if split_special_tokens:
            from ttc.text.special_tokens import SplitSpecialTokens

            tokenizer = SplitSpecialTokens(tokenizer)
        self.tokenizer = tokenizer
        self.device = self.runner.device
        self.dtype = self.runner.dtype
        self.limits = ModelLimits.of(model)
        self.sharing = sharing or Sharing()
        self.residency = bind_policy(memory or Resident(), self.runner)
        self.memory: Memory = self.residency.memory
        recurrent = self.runner.recurrent
        self.memory.states.use(None if recurrent is None else recurrent.shape)
        self.runner.bind(self.residency)
        self.tree = Tree(
            self.residency.begin,
            self.residency.free,
            self.residency.resume,
            None if recurrent is None else self.memory.states,
        )
        self.runtime = Runtime(
            self.runner,
            self.limits,
            self.residency,
            self.tree,
            self.sharing,
            prefill_tokens,
            self.decode,
            settings,
        )
        self.cache = None if cache is None else cache.fresh()
        self.gate = gate
        self.calls = Calls(self.runtime, self.cache)
        self.live = self.calls.live
        self.lock = self.calls.lock
        self.speculation = None if speculation is None else speculation.for_engine(self)
        self.chosen: Chosen | None = None  # what memory="auto" came to

    keeps_to = ("schema", "grammar")

    def __repr__(self) -> str:
        name = getattr(self.model.config, "name_or_path", "") or type(self.model).__name__
        kind = str(self.dtype).removeprefix("torch.")
        policy = type(self.residency).__name__
        return f"Engine({name!r}, device={str(self.device)!r}, dtype={kind!r}, memory={policy})"

    @classmethod
    def from_pretrained(  # noqa: PLR0913 - what a model is read as, each by its name
        cls,
        name: str | PathLike[str],
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        device_map: DeviceMap | None = None,
        gguf_file: str | None = None,
        trust_remote_code: bool = False,
        quantized: bool = False,
        placement: Placement | None = None,
        memory: Residency | Auto | str | None = None,
        **options: Any,
    ) -> Engine:
        """Load a model by alias ("smollm2-135m"), folder, .gguf file or hub id. `options` go to the
        constructor.

        device, dtype, gguf_file, trust_remote_code, quantized: see `ttc.model.loading.load`.
        device_map: in place of a device, as transformers takes it.
        placement: where its weights lie and its layers run, as `ttc.Streamed()`; None for all on
            the device.
        memory: as the constructor takes it, or "auto" or an `ttc.Auto` to have both chosen
            (`engine.chosen`).
        """
        from ttc.model.loading.device_map import devices_of
        from ttc.placement.auto import settled
        from ttc.placement.placed_loading import load_runner

        # a misspelt option fails before the load
        inspect.signature(cls).bind(model=None, tokenizer=None, **options)
        device, over = (device, None) if device_map is None else devices_of(device_map, device)
        source: dict[str, Any] = {
            "gguf_file": gguf_file,
            "trust_remote_code": trust_remote_code,
            "quantized": quantized,
        }
        placement, options["memory"], chosen = settled(
            memory, placement, name, device, dtype, over, **source
        )
        choice = options.pop("runner", "auto")
        source |= {"device": device, "dtype": dtype}
        model, tokenizer, runner = load_runner(name, placement, choice, over, **source)
        engine = cls(model, tokenizer, runner=runner, **options)
        engine.chosen = chosen
        return engine

    @property
    def generation_settings(self) -> GenerationSettings:
        """What tokens are drawn by, of the model's generation_config."""
        return self.runtime.settings

    @property
    def keeps_alternatives(self) -> bool:
        return True

    @property
    def lens(self) -> Lens:
        """The model's logits after any of its layers. Raises UnsupportedModel, at first use, where
        there are none."""
        return self.runtime.lens

    @property
    def trace(self) -> Trace | None:
        """Where spans of computing and copying are recorded, None for nowhere."""
        return self.runner.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.runner.trace = self.memory.link.trace = trace

    @contextmanager
    def lent(self) -> Iterator[Any]:
        """The model over its own attention; other threads wait for the engine meanwhile."""
        with self.lock:
            with lent(self.model):
                yield self.model
            self.calls.follow_model()

    # ---------------------------------------------------------------- branches

    @one_at_a_time
    def roots(
        self, prompts: Sequence[Tokens], *, seeds: Sequence[int] | None = None
    ) -> Task[list[Branch]]:
        """Many prompts, prefilled in merged batches; each is the start of its own random stream."""
        checked = zip(*checked_prompts(self.limits, prompts, seeds), strict=True)
        branches = [self._new(prompt, random_key(seed), Usage()) for prompt, seed in checked]
        return self._begin_prefill(branches, "prompt")

    @one_at_a_time
    def variants(
        self, root: Branch, prompts: Sequence[Tokens], suffixes: Sequence[Tokens] | None = None
    ) -> Task[list[Branch]]:
        """See `Backend.variants`. Under `Sharing("similar")` a child may stand on the root's
        prompt, which `branch.substituted` then tells (approximate). Raises InvalidInput when `root`
        has generated anything."""
        checked, after = checked_variants(self.limits, root, prompts, suffixes)
        children = [root.child() for _ in checked]
        for child, prompt in zip(children, checked, strict=True):
            child.leaf = self.tree.hold(self.tree.trunk)
            child.tokens = prompt
        self.live.update(children)
        with on_failure(self.release, children):
            if self.sharing.rule == "similar":
                self._share_similar(root, children, after)
            for child, suffix in zip(children, after, strict=True):
                child.tokens += suffix
                child.prompt_length = child.given_end = child.opening = len(child.tokens)
            return self._begin_prefill(children, "prompt")

    def _share_similar(
        self, root: Branch, children: Sequence[Branch], suffixes: Sequence[Sequence[int]]
    ) -> None:
        """Let children stand on the root's prompt, where the context has room for their suffix
        after it."""
        from ttc.approximate.similar_prompts import share_similar

        limit = self.limits.context_length or inf
        fitting = [
            child
            for child, suffix in zip(children, suffixes, strict=True)
            if len(root.tokens) + len(suffix) < limit
        ]
        with self.calls.present([root]), self.runtime.metered(children):
            share_similar(self.runtime, root, fitting)

    @one_at_a_time
    def side_branches(
        self, branches: Sequence[Branch], prompts: Sequence[Tokens], outputs: Outputs | None = None
    ) -> Task[list[Branch]]:
        """See `Backend.side_branches`. outputs: see `Outputs`; who asks for them counts what is
        read."""
        checked = checked_side_prompts(self.limits, branches, prompts, grow=outputs is None)
        new = [
            self._new(prompt, branch.key, branch.usage, branch.root_id)
            for branch, prompt in zip(branches, checked, strict=True)
        ]
        texts = [
            (prompt[:-1], branch.tokens) for branch, prompt in zip(branches, checked, strict=True)
        ]
        meters = by_meter(branch.usage for branch in branches) if outputs is None else []
        read = [
            (usage, tokens_to_read([texts[place] for place in places])) for usage, places in meters
        ]
        return self._begin_prefill(new, "verifier", outputs, read)

    def _new(self, prompt: list[int], key: int, usage: Usage, root_id: int | None = None) -> Branch:
        trunk = self.tree.hold(self.tree.trunk)
        return Branch(prompt, trunk, key, usage, self.decode, root_id)

    def _begin_prefill(
        self,
        branches: list[Branch],
        purpose: Purpose,
        outputs: Outputs | None = None,
        read: Sequence[tuple[Usage, int]] = (),
    ) -> Task[list[Branch]]:
        """read: see `read_by_verifier`."""
        self.live.update(branches)
        shared = self.sharing.rule != "none" or purpose == "verifier"
        outputs = outputs or Outputs.at([()] * len(branches))

        def passes(part: slice) -> Passes[None]:
            if shared:
                new = branches[part]
                chosen = outputs.of(range(len(branches))[part])
                yield from prefill(self.runtime, new, [b.tokens for b in new], purpose, chosen)

        def in_parts() -> Passes[list[Branch]]:
            with on_failure(self.release, branches), read_by_verifier(read):
                yield from self.calls.in_parts(branches, passes, wake=False)
            return branches

        return self.calls.pass_by_pass(branches, in_parts())

    @one_at_a_time
    def fork(self, branch: Branch, n: int, keep: int | None = None) -> list[Branch]:
        """See `Backend.fork`. No KV is copied."""
        children = super().fork(branch, n, keep)
        for child in children:
            kept = 0 if self.sharing.rule == "none" else max(0, len(child.tokens) - 1)
            child.leaf = self.tree.hold(self.tree.within(child.leaf, kept))
        self.live.update(children)
        return children

    @one_at_a_time
    def extend(
        self,
        branches: Sequence[Branch],
        tokens_per_branch: Sequence[Tokens],
        *,
        purpose: Purpose = "prompt",
    ) -> Task[None]:
        added = checked_extensions(self.limits, branches, tokens_per_branch, purpose)
        extended = list(branches)

        wake = self.sharing.rule != "none"  # else one pass for both

        def passes(part: slice) -> Passes[None]:
            of = extended[part]
            targets = [b.tokens + new for b, new in zip(of, added[part], strict=True)]
            yield from prefill(self.runtime, of, targets, purpose)

        read = [
            (usage, sum(len(added[place]) for place in places))
            for usage, places in by_meter(b.usage for b in extended if purpose == "verifier")
        ]

        def take_back() -> None:
            for branch in extended:
                if not branch.released:
                    self.tree.rewind(branch, len(branch.tokens) - 1)

        def in_parts() -> Passes[None]:
            with on_failure(take_back), read_by_verifier(read):
                yield from self.calls.in_parts(extended, passes, wake)
            for branch, new in zip(extended, added, strict=True):
                if not branch.released:
                    branch.give(new)

        return self.calls.pass_by_pass(extended, in_parts())

    @one_at_a_time
    def release(self, branches: Iterable[Branch]) -> None:
        """Let go of branches. KV that nothing else needs is freed at once; tokens and scores stay
        readable."""
        check_is("branches", branches, Iterable, "a list of branches")
        branches = list(branches)
        check_branches(branches)
        for batch in list(self.calls.batches):
            batch.forget(branches)
        for branch in branches:
            if (leaf := branch.detach()) is not None:
                self.tree.drop(leaf)
            self.live.discard(branch)
        if self.speculation is not None:
            self.speculation.released(branches)

    def kv_bytes(self) -> int:
        """Bytes of KV and recurrent states that exist now, on the device and the host."""
        tiers = (self.memory.device, self.memory.host, self.memory.fixed)
        return sum(tier.used_bytes for tier in tiers)

    # ---------------------------------------------------------------- generation

    @one_at_a_time
    @torch.inference_mode()
    def generate(
        self,
        branches: Sequence[Branch],
        max_tokens: int | Sequence[int],
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
        statistics: bool = False,
    ) -> None:
        """Continue each branch by one step, in place and all in one batch.

        A step ends after `max_tokens` tokens (one number, or one per branch), when its text holds a
        string of `stop`, leading blanks left out, or when the branch finishes: at an
        end-of-sequence token, a string of `end`, or the model's context length. Strings are looked
        for in the text with its special tokens. `branch.step_reasons[-1]` says why it ended.
        statistics: also keep each token's entropy, the mean log-probability of the 20 likeliest
            tokens and the self-certainty (`branch.entropies`, `branch.top_k_logprobs`,
            `branch.self_certainties`).
        """
        step, limits = step_of(max_tokens, stop, end, statistics)
        batch = self.running_batch()
        batch.add(branches, step, sampling, limits)
        batch.finish()
        self.calls.trim()

    @one_at_a_time
    def running_batch(self, max_rows: int | None = None) -> RunningBatch:
        drafts = None if self.speculation is None else self.speculation.checks(self.runtime)
        return RunningBatch(self.runtime, self.gate, self.calls, max_rows, drafts)

    # ---------------------------------------------------------------- scoring

    @one_at_a_time
    def score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Sequence[Tokens]],
        *,
        given: Sequence[Tokens] | None = None,
        exit: EarlyExit | None = None,
        report: ExitReport | None = None,
        likeliest: list[list[list[float]]] | None = None,
    ) -> Task[list[list[list[float]]]]:
        """Log-probabilities of given continuations: `[i][j][t]` for token t of continuation j of
        branch i.

        The branches stay as they are. What the continuations of a branch share is computed once,
        and single tokens all come from one row. Counted as verifier tokens.
        given: `given[i]` stands between branch i and its continuations; computed, not scored.
        exit: branches may leave the pass before the last layer (approximate), single-token
            continuations only; `report` says what it did.
        likeliest: filled, without an `exit`, with the log-probability of the likeliest token in
            each token's place.
        """
        check_live(branches)
        between, checked = checked_continuations(
            self.limits, branches, continuations, given, exit is not None
        )

        scores: list[list[list[float]]] = [[] for _ in branches]
        best: list[list[list[float]]] = [[] for _ in branches]
        if exit is None:
            from ttc.passes.scoring import score

            def passes(part: slice) -> Passes[None]:
                scores[part], best[part] = yield from score(
                    self.runtime, branches[part], between[part], checked[part]
                )
        else:
            from ttc.approximate.early_exit import ExitReport, score_with_exit

            seen = report or ExitReport()
            seen.begin(len(branches), len(self.lens.layers))

            def passes(part: slice) -> Passes[None]:
                single = [[token for (token,) in group] for group in checked[part]]
                scores[part] = yield from score_with_exit(
                    self.runtime, branches[part], between[part], single, exit, seen, part.start
                )

        def in_parts() -> Passes[list[list[list[float]]]]:
            together = exit is not None and exit.together
            yield from self.calls.in_parts(branches, passes, True, whole_problems=together)
            if likeliest is not None and exit is None:
                likeliest.extend(best)
            return scores

        return self.calls.pass_by_pass(branches, in_parts())

    # ---------------------------------------------------------------- text

    def encode(self, text: str) -> list[int]:
        """Text to tokens, with no special tokens added."""
        check_is("text", text, str, "a string")
        return super().encode(text)

    # ---------------------------------------------------------------- between calls

    @one_at_a_time
    def model_changed(self) -> None:
        """Say that the model is another one from now on, as by another adapter: its KV is computed
        again. Needed only while branches decode, or where numbers were written through
        `weight.data`: other changes are noticed when a call begins."""
        self.calls.follow_model(changed=True)

    @one_at_a_time
    def model_changes(self) -> int:
        """How often the model has changed so far: what somebody has computed with it holds while
        this number stays."""
        self.calls.follow_model()
        return self.calls.changes

    def take_turns_with(self, other: Engine) -> None:
        """Before any call: share another engine's lock, and let each make way for the other's
        passes."""
        self.calls.take_turns_with(other.calls)
        self.lock = self.calls.lock
