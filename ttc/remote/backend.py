"""The same searches on a server: branches are kept here, and their tokens come over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from threading import RLock
from typing import Any
from weakref import WeakSet

from ttc.backend import Backend, Need, Purpose, Tokens
from ttc.branch import Branch
from ttc.checks import check_is
from ttc.errors import InvalidInput, RemoteError, Unsupported, on_failure, refusing
from ttc.model.generation_settings import GenerationSettings
from ttc.model.limits import ModelLimits
from ttc.passes.arguments import (
    checked_continuations,
    checked_extensions,
    checked_prompts,
    checked_side_prompts,
    checked_variants,
)
from ttc.remote.batch import LOOK_S, RemoteBatch
from ttc.remote.endpoint import Endpoint
from ttc.remote.replies import TOKEN_ID, Reply
from ttc.remote.server import Server
from ttc.sampling import GREEDY, SAMPLED, Sampling
from ttc.step import step_of
from ttc.task import Task, check_interrupt, one_at_a_time
from ttc.text.special_tokens import SplitSpecialTokens
from ttc.tree.branch import MOST_ROWS, check_live

CHOSEN_AT_ONCE = 16
"""Tokens whose log-probabilities are asked for in one request."""


class RemoteBackend(Backend):
    """Branches of a model that a server runs.

    A branch's tokens are kept here and sent with every request, so what branches share is computed
    once only where the server keeps the beginnings of texts (vLLM, SGLang and llama.cpp do).

    endpoint: where the server is. tokenizer: that of the model it serves.
    capabilities: what the server can do. Searches and verifiers that need more are refused by name.
    settings: of the model's generation_config, None for none. Requests ask for its repetition
    penalty; other settings raise InvalidInput.

    `Usage` holds what the server counts: `prompt_tokens` are all tokens that were sent, less those
    that it found in its cache (`shared_tokens`). Forward passes and bytes moved are not known.
    Raises RemoteError where the server cannot be reached or used, InvalidInput for a model that it
    does not serve and for a tokenizer that is not its model's.
    """

    limits: ModelLimits

    def __init__(
        self, endpoint: Endpoint, tokenizer: Any, settings: GenerationSettings | None = None
    ):
        check_is("endpoint", endpoint, Endpoint, "a ttc.Endpoint(base_url=...)")
        self.server = Server.connect(endpoint, tokenizer, settings or GenerationSettings())
        self.tokenizer = tokenizer
        self.capabilities = self.server.can
        self.limits = self.server.limits
        self.live: WeakSet[Branch] = WeakSet()  # branches that were not released
        self.batches: WeakSet[RemoteBatch] = WeakSet()
        self.lock = RLock()

    @classmethod
    def connect(
        cls,
        base_url: str,
        *,
        tokenizer: str,
        generation_settings: bool = True,
        split_special_tokens: bool = False,
        **options: Any,
    ) -> RemoteBackend:
        """A backend over a server.

        tokenizer: its alias ("smollm2-135m"), folder or hub id. generation_settings: whether
        requests ask for what the generation_config beside it does. split_special_tokens: as of an
        `Engine`. options: of the `Endpoint`.
        """
        from ttc.model.loading.load import load_tokenizer

        endpoint = Endpoint(base_url, **options)
        loaded = load_tokenizer(tokenizer)
        settings = settings_beside(tokenizer, loaded) if generation_settings else None
        asks = SplitSpecialTokens(loaded) if split_special_tokens else loaded
        return cls(endpoint, asks, settings)

    @property
    def generation_settings(self) -> GenerationSettings:
        return self.server.settings

    @property
    def served(self) -> Mapping[str, str]:
        can = self.capabilities
        served = {"served": f"{can.model}, context {can.context_length}"}
        if settings := self.generation_settings.describe():
            served["generation settings"] = settings
        return served

    @property
    def lacks(self) -> Mapping[Need, str]:
        return self.capabilities.lacks

    keeps_to = ("schema",)

    @property
    def writes_ahead(self) -> bool:
        """Whether texts may go on beyond the marks of a thought, which the server cannot stop
        at."""
        can = self.capabilities
        return not (can.stops and can.prompt_tokens and can.reply_tokens)

    @property
    def most_rows(self) -> int:
        """A request each, where the server answers so many at once."""
        return max(MOST_ROWS, self.server.client.endpoint.concurrency)

    def close(self) -> None:
        for batch in list(self.batches):
            batch.close()
        self.server.client.close()

    # ---------------------------------------------------------------- branches

    def roots(
        self, prompts: Sequence[Tokens], *, seeds: Sequence[int] | None = None
    ) -> Task[list[Branch]]:
        """See `Backend.roots`. Nothing is sent before a branch grows."""
        prompts, seeds = checked_prompts(self.limits, prompts, seeds)
        return self._hold(super().roots(prompts, seeds=seeds))

    def variants(
        self, root: Branch, prompts: Sequence[Tokens], suffixes: Sequence[Tokens] | None = None
    ) -> Task[list[Branch]]:
        """See `Backend.variants`. Raises InvalidInput if `root` has generated anything."""
        return super().variants(root, *checked_variants(self.limits, root, prompts, suffixes))

    def side_branches(
        self, branches: Sequence[Branch], prompts: Sequence[Tokens]
    ) -> Task[list[Branch]]:
        prompts = checked_side_prompts(self.limits, branches, prompts, grow=True)
        return self._hold(super().side_branches(branches, prompts))

    def fork(self, branch: Branch, n: int, keep: int | None = None) -> list[Branch]:
        children = super().fork(branch, n, keep)
        with self.lock:
            self.live.update(children)
        return children

    def extend(
        self,
        branches: Sequence[Branch],
        tokens_per_branch: Sequence[Tokens],
        *,
        purpose: Purpose = "prompt",
    ) -> Task[None]:
        added = checked_extensions(self.limits, branches, tokens_per_branch, purpose)
        return super().extend(branches, added, purpose=purpose)

    @one_at_a_time
    def release(self, branches: Iterable[Branch]) -> None:
        """Let go of branches and break off requests for them."""
        gone = list(branches)
        for batch in list(self.batches):
            batch.forget(gone)
        super().release(gone)
        self.live.difference_update(gone)

    @one_at_a_time
    def _hold(self, task: Task[list[Branch]]) -> Task[list[Branch]]:
        self.live.update(task.branches)
        return task

    # ---------------------------------------------------------------- generation

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
        """Continue each branch by one step, in place, as `Engine.generate` does.

        statistics: also keep the mean log-probability of the 20 likeliest tokens
        (`branch.top_k_logprobs`); the others need a whole distribution, and stay NaN.
        """
        step, limits = step_of(max_tokens, stop, end, statistics)
        self._write(branches, step, limits, sampling)

    def running_batch(self, max_rows: int | None = None) -> RemoteBatch:
        batch = RemoteBatch(self.server, max_rows)
        self.batches.add(batch)
        return batch

    # ---------------------------------------------------------------- scoring

    def score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Sequence[Tokens]],
        *,
        given: Sequence[Tokens] | None = None,
        exit: Any = None,
        report: Any = None,
    ) -> Task[list[list[list[float]]]]:
        """See `Engine.score`. Counted as verifier tokens: what a branch has already is none."""
        check_live(branches)
        self.check_no_exit(exit)
        if "score" in self.lacks:
            raise Unsupported(f"score: {self.lacks['score']}")
        between, groups = checked_continuations(self.limits, branches, continuations, given, False)
        before = [[*branch.tokens, *more] for branch, more in zip(branches, between, strict=True)]
        can = self.capabilities
        single = [can.chosen and all(len(tokens) == 1 for tokens in group) for group in groups]
        if not all(single) and not can.echo:
            raise InvalidInput(
                "the server gives log-probabilities of single tokens alone; score continuations of "
                "one token, or use a server that echoes a prompt's log-probabilities (vLLM)"
            )
        rows = list(zip(before, groups, single, strict=True))
        answers = [
            self._ask_single(tokens, group) if one else self._ask_echo(tokens, group)
            for tokens, group, one in rows
        ]
        scores = []
        for branch, (tokens, group, one), futures in zip(branches, rows, answers, strict=True):
            replies = self._replies(branch, futures)
            branch.usage.verifier_tokens += len(tokens) - len(branch.tokens) + 1
            if one:
                scores.append(_read_single(group, replies))
            else:
                scores.append(_read_echo(len(tokens), group, replies))
                branch.usage.verifier_tokens += sum(len(tokens) - 1 for tokens in group)
        return Task.made(scores)

    def _ask_single(self, before: Tokens, group: list[list[int]]) -> list[Future[Reply]]:
        tokens = list(dict.fromkeys(token for (token,) in group))
        return [
            self._ask(before, logprob_token_ids=tokens[i : i + CHOSEN_AT_ONCE])
            for i in range(0, len(tokens), CHOSEN_AT_ONCE)
        ]

    def _ask_echo(self, before: Tokens, group: list[list[int]]) -> list[Future[Reply]]:
        return [
            self._ask([*before, *tokens], echo=True, return_token_ids=False) for tokens in group
        ]

    def _ask(self, tokens: Tokens, **more: Any) -> Future[Reply]:
        return self.server.complete(tokens, 1, 0, GREEDY, logprobs=1, **more)

    def _replies(self, branch: Branch, futures: list[Future[Reply]]) -> list[Reply]:
        with on_failure(lambda: [future.cancel() for future in futures]):
            while wait(futures, LOOK_S).not_done:
                check_interrupt()
        replies = [future.result() for future in futures]
        for reply in replies:
            self.server.count_prompt(branch.usage, reply)
        return replies


def _read_single(group: list[list[int]], replies: list[Reply]) -> list[list[float]]:
    logprobs: dict[str, float] = {}
    for reply in replies:
        logprobs |= reply.figures[0].likeliest if reply.figures else {}
    with refusing(
        KeyError,
        "the server left out the log-probability of {error}, which was asked for",
        RemoteError,
    ):
        return [[logprobs[f"{TOKEN_ID}{token}"]] for (token,) in group]


def _read_echo(start: int, group: list[list[int]], replies: list[Reply]) -> list[list[float]]:
    rows = []
    for tokens, reply in zip(group, replies, strict=True):
        end = start + len(tokens)
        if len(reply.figures) < end:
            raise RemoteError(
                f"the server gave log-probabilities of {len(reply.figures)} of the {end} tokens "
                "that were sent"
            )
        rows.append([figures.logprob for figures in reply.figures[start:end]])
    return rows


def settings_beside(name: str, tokenizer: Any, **source: Any) -> GenerationSettings:
    """What the generation_config beside a tokenizer asks for. source: where it is read from, as for
    the tokenizer."""
    from ttc.model.loading.load import load_generation_config

    return GenerationSettings.of(load_generation_config(name, **source), len(tokenizer))
