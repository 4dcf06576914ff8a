"""ThinkPRM (Khalifa et al., 2025, "Process Reward Models That Think"): a verifier that writes before it judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ttc.engine import Engine
from ttc.errors import InvalidInput
from ttc.protocols import Backend
from ttc.sampling import Sampling
from ttc.tree.branch import Branch
from ttc.usage import Usage
from verifiers.math_shepherd import numbered
from verifiers.reward_model import MARK, RewardModel, split_steps
from verifiers.self_verifier import spellings
from verifiers.tree_mirror import Layout

PROBLEM = (
    "You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n{}\n\n[Solution]\n\n{}"
)
TASK = (
    "\n\nReview and critique each step in the proposed solution to determine whether each step is correct. If the "
    "solution is incomplete, only verify the provided steps."
)
BEGINNING = "\nLet's verify step by step:"
DECISION = "Is the solution correct?"
END_OF_THOUGHT = "</think>"


@dataclass(eq=False)
class ThinkPRM(RewardModel):
    """P(yes) against P(no) after "Is the solution correct?", asked once the model has written its verification.

    The instruction follows the solution, so problem and solution alone are shared along the tree; instruction,
    verification and verdict are computed anew at each rating, on a fork that is dropped. One score for the text as far
    as it goes.
    max_tokens: the most tokens of a verification; then the verdict is asked for. samples: verifications per rating,
    whose scores are averaged. temperature: what they are sampled with, 0 for the likeliest tokens.
    What is written counts as verifier tokens.
    """

    model: Any = "launch/ThinkPRM-1.5B"
    max_tokens: int = 4096
    samples: int = 1
    temperature: float = 0.0
    headed: ClassVar[bool] = False
    writes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_tokens", "samples"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name}={getattr(self, name)} must be at least 1")
        if self.samples > 1 and self.temperature == 0:
            raise InvalidInput(
                f"samples={self.samples} would all be the same at temperature=0; give 0.6, as the authors do"
            )
        _ = self.sampling  # refuses a wrong temperature before any work

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature)

    def layout(self, branch: Branch, question: str) -> Layout:
        steps, rest = split_steps(branch.text, self.separator, branch.finished)
        return self.one_rating(question, "\n".join(numbered([*steps, *([rest] if rest else [])])))

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        asked = PROBLEM.format(question, "".join(steps)) + TASK
        return self.templated(self.chat([{"role": "user", "content": asked}], answer=True) + BEGINNING)

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        text = self.chat([{"role": "user", "content": PROBLEM.format(question, "".join(steps)) + MARK}])
        return self.templated(text)

    def score(self, output: Tensor) -> float:
        raise NotImplementedError("no output of the text is read: `rate` asks after a verification")

    def rate(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> list[list[float]]:
        mirror = self.mirror(backend)
        layouts = [self.layout(b, q) for b, q in zip(branches, questions, strict=True)]
        with mirror.engine.lock:
            reads = [row[-1] for row in mirror.follow(branches, layouts)]
            new = [i for i, read in enumerate(reads) if read.score is None]
            scores = self._judged(mirror.engine, [branches[i] for i in new], [layouts[i] for i in new])
            for i, score in zip(new, scores, strict=True):
                reads[i].score = score
            mirror.released([])
        return [[read.score] for read in reads]

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        after = len(self._verdict("")) + 1
        return super().price(branches, questions, backend) + self.samples * (self.max_tokens + after) * len(branches)

    def _judged(self, engine: Engine, branches: Sequence[Branch], layouts: Sequence[Layout]) -> list[float]:
        if not branches:
            return []
        yes, no = spellings(engine, "yes"), spellings(engine, "no")
        meters = {id(branch.usage): (branch.usage, replace(branch.usage)) for branch in branches}
        made = engine.side_branches(branches, [layout.tokens + layout.suffix for layout in layouts])
        try:
            thoughts = [thought for branch in made for thought in engine.fork(branch, self.samples)]
            made += thoughts
            self._write(engine, thoughts)
            found = engine.score(thoughts, [[[token] for token in (*yes, *no)]] * len(thoughts))
        finally:
            engine.release(made)
            for usage, before in meters.values():
                _as_verifier_tokens(usage, before)
        weights = torch.tensor([[row[0] for row in rows] for rows in found]).softmax(-1)[:, : len(yes)].sum(-1)
        return [float(p) for p in weights.view(-1, self.samples).mean(-1)]

    def _write(self, engine: Engine, thoughts: Sequence[Branch]) -> None:
        """Let the verifications be written, each ended by the question for the verdict."""
        verdict = len(self._verdict("")) + 1
        lefts = [engine.context_left(thought) for thought in thoughts]
        room = [self.max_tokens if left is None else min(self.max_tokens, left - verdict) for left in lefts]
        if min(room) < 1:
            raise InvalidInput(
                f"the verifier's context of {engine.limits.context_length} tokens has no room for a verification after "
                "the solution; use shorter solutions or a model with a longer context"
            )
        engine.generate(thoughts, room, end=[DECISION], sampling=self.sampling)
        asked = [(thought, self._verdict(thought.text)) for thought in thoughts if DECISION not in thought.text]
        for thought, _ in asked:
            thought.reopen(int(thought.finish_reason == "eos"))
        engine.extend([thought for thought, _ in asked], [tokens for _, tokens in asked], purpose="verifier")

    def _verdict(self, thought: str) -> list[int]:
        """What asks for the verdict after a verification."""
        return self.encode(("" if END_OF_THOUGHT in thought else f"\n{END_OF_THOUGHT}") + f"\n{DECISION}")


def _as_verifier_tokens(usage: Usage, before: Usage) -> None:
    """Count as a verifier's what was generated since `before`."""
    usage.verifier_tokens += usage.generated_tokens - before.generated_tokens
    usage.generated_tokens = before.generated_tokens
