"""The same searches on a server: a backend whose branches are kept here, and whose tokens come over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from threading import RLock
from typing import Any
from weakref import WeakSet

from ttc.checks import check_kind
from ttc.errors import InvalidInput, RemoteError
from ttc.locking import one_at_a_time
from ttc.lookout import look_up
from ttc.model.generation_settings import GenerationSettings
from ttc.passes.arguments import (
    checked_extensions,
    checked_prompts,
    checked_side_prompts,
    checked_variants,
    forked,
    step_of,
)
from ttc.protocols import Need, Purpose
from ttc.remote.batch import LOOK_S, RemoteBatch
from ttc.remote.endpoint import Endpoint
from ttc.remote.replies import TOKEN_ID, Reply
from ttc.remote.server import Server
from ttc.sampling import SAMPLED, Sampling, random_key
from ttc.tree.branch import Branch, check_live
from ttc.tree.segment import Segment
from ttc.usage import Usage

GREEDY = Sampling(temperature=0)
CHOSEN_AT_ONCE = 16
"""Tokens whose log-probabilities are asked for in one request."""


class RemoteBackend:
    """Branches of a model that a server runs.

    A branch's tokens are kept here and sent again with every request, so what branches share is computed once only
    where the server keeps the beginnings of texts (vLLM, SGLang and llama.cpp do). Branches cost nothing until they
    grow, and nothing once they are released.

    endpoint: where the server is. tokenizer: that of the model it serves; prompts and steps are cut with it.
    capabilities: what the server can do, as it was found out when this backend was made. Searches and verifiers that
    need more are refused by name (`lacks`).
    settings: of the model's generation_config, None for none. Requests ask for its repetition penalty; other settings
    raise InvalidInput.

    `Usage` holds what the server counts: `prompt_tokens` are all tokens that were sent, less those that it says it
    found in its cache (`shared_tokens`; vLLM says so with --enable-prompt-tokens-details). Forward passes and bytes
    moved are not known.
    Raises RemoteError where the server cannot be reached or used, InvalidInput for a model that it does not serve and
    for a tokenizer that is not its model's.
    """

    def __init__(self, endpoint: Endpoint, tokenizer: Any, settings: GenerationSettings | None = None):
        check_kind("endpoint", endpoint, isinstance(endpoint, Endpoint), "a ttc.Endpoint(base_url=...)")
        self.server = Server.connect(endpoint, tokenizer, settings or GenerationSettings())
        self.tokenizer, self.capabilities, self.limits = tokenizer, self.server.can, self.server.limits
        self.live: WeakSet[Branch] = WeakSet()  # branches that were not released
        self.batches: WeakSet[RemoteBatch] = WeakSet()
        self.lock = RLock()

    @classmethod
    def connect(
        cls, base_url: str, *, tokenizer: str, generation_settings: bool = True, **options: Any
    ) -> RemoteBackend:
        """A backend over a server, with a tokenizer by alias ("smollm2-135m"), folder or hub id. `options` go to the
        `Endpoint`.

        generation_settings: whether requests ask for what the generation_config beside that tokenizer does.
        """
        from ttc.model.loading import load_tokenizer

        endpoint, loaded = Endpoint(base_url, **options), load_tokenizer(tokenizer)
        return cls(endpoint, loaded, settings_beside(tokenizer, loaded) if generation_settings else None)

    @property
    def generation_settings(self) -> GenerationSettings:
        """What requests ask for, of the model's generation_config."""
        return self.server.settings

    @property
    def lacks(self) -> Mapping[Need, str]:
        """What the server cannot do, and why, with the way out (see `ttc.Limited`)."""
        return self.capabilities.lacks

    def close(self) -> None:
        """Break off what is under way, and close the connections."""
        for batch in list(self.batches):
            batch.close()
        self.server.client.close()

    # ---------------------------------------------------------------- branches

    def root(self, tokens: Sequence[int], *, seed: int = 0) -> Branch:
        """A branch that holds a prompt. Nothing is sent before it grows."""
        return self.roots([tokens], seeds=[seed])[0]

    def roots(self, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None = None) -> list[Branch]:
        """Many prompts, each the start of its own random stream."""
        return self._hold(
            [
                Branch(prompt, _trunk(), random_key(seed), Usage(), self.decode)
                for prompt, seed in zip(*checked_prompts(self.limits, prompts, seeds), strict=True)
            ]
        )

    def variants(
        self, root: Branch, prompts: Sequence[Sequence[int]], suffixes: Sequence[Sequence[int]] | None = None
    ) -> list[Branch]:
        """Children of `root`, one per prompt, that start from prompts of their own instead of the root's.

        suffixes: tokens that follow each prompt. Raises InvalidInput when `root` has generated anything.
        """
        wanted, after = checked_variants(self.limits, root, prompts, suffixes)
        children = [root.child() for _ in wanted]
        for child, prompt, suffix in zip(children, wanted, after, strict=True):
            child.tokens = prompt + suffix
            child.prompt_length = child.given_end = len(child.tokens)
        return self._hold(children)

    def side_branches(self, branches: Sequence[Branch], prompts: Sequence[Sequence[int]]) -> list[Branch]:
        """New branches with these prompts on the usage meters of `branches`, counted as verifier tokens; the caller
        releases them."""
        wanted = checked_side_prompts(self.limits, branches, prompts, grow=True)
        for branch, prompt in zip(branches, wanted, strict=True):
            branch.usage.verifier_tokens += len(prompt) - 1
        return self._hold(
            [
                Branch(prompt, _trunk(), branch.key, branch.usage, self.decode, branch.root_id)
                for branch, prompt in zip(branches, wanted, strict=True)
            ]
        )

    def fork(self, branch: Branch, n: int, keep: int | None = None) -> list[Branch]:
        """`n` children that continue `branch`, each with its own random stream; see `Engine.fork`."""
        return self._hold(forked(branch, n, keep))

    def extend(
        self, branches: Sequence[Branch], tokens_per_branch: Sequence[Sequence[int]], *, purpose: Purpose = "prompt"
    ) -> None:
        """Append given tokens to each branch; they are sent when it grows. purpose: "verifier" counts them as such."""
        added = checked_extensions(self.limits, branches, tokens_per_branch, purpose)
        for branch, tokens in zip(branches, added, strict=True):
            branch.give(tokens)
            if purpose == "verifier":
                branch.usage.verifier_tokens += len(tokens)

    @one_at_a_time
    def release(self, branches: Iterable[Branch]) -> None:
        """Let go of branches; requests for them are broken off. Tokens and scores stay readable."""
        gone = list(branches)
        for batch in list(self.batches):
            batch.forget(gone)
        for branch in gone:
            branch.detach()
            self.live.discard(branch)

    @one_at_a_time
    def _hold(self, branches: list[Branch]) -> list[Branch]:
        self.live.update(branches)
        return branches

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

        statistics: also keep the mean log-probability of the 20 likeliest tokens (`branch.top_k_logprobs`); the other
        statistics need a whole distribution, and stay NaN.
        """
        step, limits = step_of(max_tokens, stop, end, statistics)
        batch = self.running_batch()
        batch.add(branches, step, sampling, limits)
        try:
            while len(batch):
                batch.step()
                look_up()
        finally:
            batch.close()  # breaks off what an error has left

    def running_batch(self, max_rows: int | None = None) -> RemoteBatch:
        """A batch that branches join and leave while others grow, at most `max_rows` at once (see `RunsBatches`)."""
        batch = RemoteBatch(self.server, max_rows)
        self.batches.add(batch)
        return batch

    # ---------------------------------------------------------------- scoring

    def score(
        self, branches: Sequence[Branch], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[list[float]]]:
        """Log-probabilities of given continuations: `[i][j][t]` for token t of continuation j of branch i.

        The branches stay as they are. Counted as verifier tokens, as an engine counts them: what a branch has already
        is not the verifier's.
        """
        check_live(branches)
        if "score" in self.lacks:
            raise InvalidInput(f"score: {self.lacks['score']}")
        if len(continuations) != len(branches):
            raise InvalidInput(f"{len(branches)} branches came with continuations for {len(continuations)}")
        wanted = [[self.limits.checked(tokens, "continuation") for tokens in group] for group in continuations]
        for branch, group in zip(branches, wanted, strict=True):
            self.limits.check_context(len(branch.tokens) + max(map(len, group), default=0))
        single = [all(len(tokens) == 1 for tokens in group) and self.capabilities.chosen for group in wanted]
        if not all(single) and not self.capabilities.echo:
            raise InvalidInput(
                "the server gives log-probabilities of single tokens alone; score continuations of one token, or use "
                "a server that echoes a prompt's log-probabilities (vLLM)"
            )
        asked = [
            self._ask_single(branch, group) if one else self._ask_echo(branch, group)
            for branch, group, one in zip(branches, wanted, single, strict=True)
        ]
        return [
            self._read_single(branch, group, futures) if one else self._read_echo(branch, group, futures)
            for branch, group, futures, one in zip(branches, wanted, asked, single, strict=True)
        ]

    def _ask_single(self, branch: Branch, group: list[list[int]]) -> list[Any]:
        tokens = list(dict.fromkeys(token for (token,) in group))
        return [
            self.server.complete(
                branch.tokens, 1, 0, GREEDY, logprobs=1, logprob_token_ids=tokens[i : i + CHOSEN_AT_ONCE]
            )
            for i in range(0, len(tokens), CHOSEN_AT_ONCE)
        ]

    def _read_single(self, branch: Branch, group: list[list[int]], futures: list[Any]) -> list[list[float]]:
        found: dict[str, float] = {}
        for reply in self._replies(branch, futures):
            found |= reply.figures[0].likeliest if reply.figures else {}
        branch.usage.verifier_tokens += 1
        try:
            return [[found[f"{TOKEN_ID}{token}"]] for (token,) in group]
        except KeyError as error:
            raise RemoteError(f"the server left out the log-probability of {error}, which was asked for") from error

    def _ask_echo(self, branch: Branch, group: list[list[int]]) -> list[Any]:
        more: dict[str, Any] = {"echo": True, "return_token_ids": False}
        return [self.server.complete([*branch.tokens, *tokens], 1, 0, GREEDY, logprobs=1, **more) for tokens in group]

    def _read_echo(self, branch: Branch, group: list[list[int]], futures: list[Any]) -> list[list[float]]:
        start, rows = len(branch.tokens), list[list[float]]()
        for tokens, reply in zip(group, self._replies(branch, futures), strict=True):
            row = [figures.logprob for figures in reply.figures[start : start + len(tokens)]]
            if len(row) != len(tokens):
                raise RemoteError(
                    f"the server gave log-probabilities of {len(reply.figures)} tokens, {start + len(tokens)} were sent"
                )
            rows.append(row)
        branch.usage.verifier_tokens += 1 + sum(len(tokens) - 1 for tokens in group)
        return rows

    def _replies(self, branch: Branch, futures: list[Any]) -> list[Reply]:
        try:
            while wait(futures, LOOK_S).not_done:
                look_up()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        replies: list[Reply] = [future.result() for future in futures]
        for reply in replies:
            self.server.count_prompt(branch.usage, reply)
        return replies

    # ---------------------------------------------------------------- text

    def encode(self, text: str) -> list[int]:
        """Text to tokens, with no special tokens added."""
        return self.server.encode(text)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Tokens to text, special tokens left out unless `special`."""
        return self.server.decode(tokens, special=special)

    def context_left(self, branch: Branch) -> int | None:
        """How many tokens a branch can still grow by, None for no known limit."""
        return self.limits.left(len(branch.tokens))


def settings_beside(name: str, tokenizer: Any, **source: Any) -> GenerationSettings:
    """What the generation_config beside a tokenizer asks for. source: where it is read from, as for the tokenizer."""
    from ttc.model.loading import load_generation_config

    return GenerationSettings.of(load_generation_config(name, **source), len(tokenizer))


def _trunk() -> Segment:
    """Where a branch stands that keeps no keys and values here."""
    return Segment([], None, None)
