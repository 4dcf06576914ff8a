"""Verifiers of a draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from experiments.lab.bench.combinations.combination import Combination
from experiments.lab.bench.combinations.letters import Letters, letters
from experiments.lab.bench.combinations.models import reward_model
from ttc import Branch, EarlyExit, Engine
from ttc.passes.ratings import pass_by_pass
from ttc.protocols import Verifier
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Passes
from verifiers.confidence_verifier import ConfidenceVerifier
from verifiers.elsewhere import Elsewhere
from verifiers.reward_model import MARK, RewardModel
from verifiers.side_branches import written

VERIFIERS = ("at_once", "pass_by_pass", "elsewhere", "confidence", "writes", "reward", "fails")


@dataclass(frozen=True)
class PassByPass:
    """Rates a branch by a hash of its tokens, and by what the model says after them: on the
    branch's KV, and on a branch beside it. Others may use the engine between two passes. exact:
    whether what the model says is the same to 6 places."""

    exact: bool

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> Passes[list[list[float]]]:
        call = backend.score(branches, [[[65], [66, 67]]] * len(branches))
        logprobs = yield from call.passes()
        call = backend.side_branches(branches, [branch.tokens[-9:] for branch in branches])
        try:
            yield from call.passes()
        finally:
            backend.release(call.branches)
        return self.scores(branches, logprobs)

    def scores(self, branches: Sequence[Branch], logprobs: Any) -> list[list[float]]:
        said = [round(sum(rows[1]) % 1, 6) if self.exact else 0.0 for rows in logprobs]
        sums = [sum(i * t for i, t in enumerate(branch.tokens)) % 101 for branch in branches]
        return [[(part + number) / 102] for part, number in zip(sums, said, strict=True)]


class AtOnce(PassByPass):
    """Rates likewise, with nobody between."""

    def rate(self, *what: Any) -> list[list[float]]:
        return super().rate(*what)


class Writes(PassByPass):
    """Rates by what the model writes beside a branch."""

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> Passes[list[list[float]]]:
        call = backend.side_branches(branches, [branch.tokens[-9:] for branch in branches])
        yield from call.passes()
        texts = [text for beside in call.branches for text in backend.fork(beside, 2)]
        try:
            yield from written(backend, texts, Step(5), Sampling(0.7))
            sums = [sum(text.tokens) % 101 / 102 for text in texts]
        finally:
            backend.release([*call.branches, *texts])
        return [[*pair] for pair in zip(sums[::2], sums[1::2], strict=True)]


@dataclass(eq=False)
class Rewards(RewardModel):
    """Rates each step by a model whose keys and values have the search's budget."""

    separator: str = "a"
    headed = False

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        text = question + "".join(f"{step}~" for step in steps)
        return self.encode(text.partition(MARK)[0])

    def score(self, output: torch.Tensor) -> float:
        return float(output.softmax(-1)[:50].sum())


class Fails(PassByPass):
    """Raises at some branches."""

    def scores(self, branches: Sequence[Branch], logprobs: Any) -> list[list[float]]:
        if any(sum(branch.tokens) % 13 == 0 for branch in branches):
            raise ValueError("13")
        return super().scores(branches, logprobs)


class LeavesEarly(PassByPass):
    """Rates likewise, by a pass that branches leave before the last layer."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        exit = EarlyExit(rule="ranking", l_min=1, patience=1)
        logprobs = backend.score(branches, [[[65], [66]]] * len(branches), exit=exit).result()
        return self.scores(branches, logprobs)


def verifier_of(c: Combination, second: Engine) -> Verifier | None:
    if c.verifier is None:
        return None
    if c.verifier == "elsewhere":
        return Elsewhere(PassByPass(exact=not c.rounded), second)
    if c.verifier == "confidence":
        return ConfidenceVerifier()
    if c.verifier == "reward":
        return Rewards((reward_model(c.compiled), letters(Letters, None)))
    kinds = {"at_once": AtOnce, "pass_by_pass": PassByPass, "writes": Writes, "fails": Fails}
    return (kinds | {"leaves_early": LeavesEarly})[c.verifier](exact=not c.rounded)
