"""A backend of plain Python for tests that need no model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.helpers.tokenizers import Letters
from ttc.backend import Backend, Purpose
from ttc.branch import Branch
from ttc.errors import ContextExceeded, InvalidInput
from ttc.sampling import SAMPLED, Sampling, random_key
from ttc.task import Task
from ttc.usage import Usage


class FakeBackend(Backend):
    """Every text is a hash of the branch's key: characters of `letters`, finished by a 0.

    `live` holds each branch that was made and not yet released. `calls` lists the sizes of the
    `generate` batches; the one numbered `fail_at` raises. Prompts longer than `longest` tokens are
    refused. `scored` lists the tokens after which something was scored.
    """

    def __init__(self, letters: str = "0123456789,,", longest: int = 500) -> None:
        self.letters, self.longest = letters, longest
        self.tokenizer = Letters()
        self.live: dict[int, Branch] = {}
        self.calls: list[int] = []
        self.scored: list[list[int]] = []
        self.fail_at: int | None = None

    def roots(
        self, prompts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None = None
    ) -> Task[list[Branch]]:
        self._check_lengths(prompts)
        return super().roots(prompts, seeds=seeds)

    def new_branch(self, *given: Any) -> Branch:
        (branch,) = self._hold([super().new_branch(*given)])
        return branch

    def variants(
        self,
        root: Branch,
        prompts: Sequence[Sequence[int]],
        suffixes: Sequence[Sequence[int]] | None = None,
    ) -> Task[list[Branch]]:
        self._check_lengths(prompts)
        return super().variants(root, prompts, suffixes)

    def fork(self, branch: Branch, n: int, keep: int | None = None) -> list[Branch]:
        self._check_live([branch])
        return self._hold(super().fork(branch, n, keep))

    def extend(
        self,
        branches: Sequence[Branch],
        tokens_per_branch: Sequence[Sequence[int]],
        *,
        purpose: Purpose = "prompt",
    ) -> Task[None]:
        self._check_live(branches)
        if any(
            len(b.tokens) + len(new) > self.longest
            for b, new in zip(branches, tokens_per_branch, strict=True)
        ):
            raise ContextExceeded(f"a branch is longer than {self.longest} tokens")
        for branch, tokens in zip(branches, tokens_per_branch, strict=True):
            branch.usage.prompt_tokens += len(tokens)
        return super().extend(branches, tokens_per_branch, purpose=purpose)

    def generate(
        self,
        branches: Sequence[Branch],
        max_tokens: int | Sequence[int],
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
    ) -> None:
        self._check_live(branches)
        self.calls.append(len(branches))
        if len(self.calls) == self.fail_at:
            raise RuntimeError("device lost")
        limits = [max_tokens] * len(branches) if isinstance(max_tokens, int) else max_tokens
        for branch, limit in zip(branches, limits, strict=True):
            assert not branch.finished
            self.write_step(branch, limit, stop, end)

    def score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Sequence[Sequence[int]]],
        *,
        given: Sequence[Sequence[int]] | None = None,
        exit: Any = None,
        report: Any = None,
    ) -> Task[list[list[list[float]]]]:
        self._check_live(branches)
        self.check_no_exit(exit)
        given = given or [()] * len(branches)
        self.scored += [[*b.tokens, *more] for b, more in zip(branches, given, strict=True)]
        return Task.made([[[-1.0] * len(tokens) for tokens in group] for group in continuations])

    def release(self, branches: Iterable[Branch]) -> None:
        branches = list(branches)
        super().release(branches)
        for branch in branches:
            self.live.pop(id(branch), None)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return self.tokenizer.decode(tokens)

    def write_step(
        self, branch: Branch, limit: int, stop: Sequence[str], end: Sequence[str]
    ) -> None:
        start = len(branch.tokens)
        for _ in range(limit):
            letter, logprob = self.next_letter(branch, start)
            branch.append(ord(letter), logprob, math.exp(logprob))
            branch.usage.generated_tokens += 1
            text = self.decode(branch.tokens[start:])
            if letter == "0":
                branch.finish_reason = "eos"
            elif any(s in branch.text for s in end):
                branch.finish_reason = "end"
            if branch.finished or any(s in text for s in stop):
                break
        delimited = any(s in self.decode(branch.tokens[start:]) for s in stop)
        branch.end_step(branch.finish_reason or ("delimiter" if delimited else "length"))

    def next_letter(self, branch: Branch, start: int) -> tuple[str, float]:
        """The next letter of a step that began at `start`, and its log-probability."""
        letter = self.letters[random_key(branch.key, len(branch.tokens)) % len(self.letters)]
        return letter, -math.log(len(self.letters))

    def _hold(self, branches: list[Branch]) -> list[Branch]:
        self.live |= {id(branch): branch for branch in branches}
        return branches

    def _check_lengths(self, prompts: Sequence[Sequence[int]]) -> None:
        if any(len(prompt) > self.longest for prompt in prompts):
            raise InvalidInput(f"the prompt is longer than {self.longest} tokens")

    def _check_live(self, branches: Sequence[Branch]) -> None:
        assert all(id(branch) in self.live for branch in branches), "a released branch was used"


class Dictated(FakeBackend):
    """Branches write what they are told, a letter each token, and then end.

    says: the text of each child of the root, or a function of a branch that gives all that it would
    go on to write.
    confidences: each token's C_t of each child of the root (DeepConf), so that steps may ask for
    statistics.
    """

    def __init__(
        self,
        says: Sequence[str] | Callable[[Branch], str],
        confidences: Sequence[Sequence[float]] | None = None,
        longest: int = 2000,
    ) -> None:
        super().__init__(longest=longest)
        self.says = (
            says if callable(says) else lambda branch: says[branch.path[0]][len(branch.generated) :]
        )
        self.confidences = confidences

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
        super().generate(branches, max_tokens, stop=stop, end=end, sampling=sampling)
        if statistics and self.confidences is not None:
            for branch in branches:
                sure = self.confidences[branch.path[0]][
                    len(branch.top_k_logprobs) : len(branch.generated)
                ]
                branch.top_k_logprobs += [-value for value in sure]

    def write_step(
        self, branch: Branch, limit: int, stop: Sequence[str], end: Sequence[str]
    ) -> None:
        rest = self.says(branch)
        branch.tokens += map(ord, rest[:limit])
        branch.usage.generated_tokens += len(rest[:limit])
        branch.finish_reason = "eos" if len(rest) <= limit else None
        branch.end_step(branch.finish_reason or "length")


class Unsure(FakeBackend):
    """Tokens whose log-probabilities differ from branch to branch and from place to place."""

    def next_letter(self, branch: Branch, start: int) -> tuple[str, float]:
        letter, _ = super().next_letter(branch, start)
        return letter, -(random_key(branch.key, start) % 100) / 60


def branch_of(text: str = "", score: float | None = None) -> Branch:
    """A branch of no backend, with what it has written and its score."""
    branch = Branch([0], None, 0, Usage(), lambda tokens: "".join(map(chr, tokens)))
    branch.tokens += map(ord, text)
    branch.score = score
    return branch
