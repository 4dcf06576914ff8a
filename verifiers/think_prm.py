"""ThinkPRM (Khalifa et al., 2025, "Process Reward Models That Think"): it writes, then judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import NonNegativeFloat, PositiveInt
from ttc.engine import Engine
from ttc.passes.ratings import pass_by_pass
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Passes
from verifiers.reward_model import RewardModel, check_room
from verifiers.reward_model_pass import Layout
from verifiers.side_branches import (
    counted_as_verifier,
    rated_text,
    reopen,
    spellings,
    word_shares,
    written,
)
from verifiers.token_prm import numbered

TASK = (
    "You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n{}\n\n"
    "[Solution]\n\n{}\n\n"
    "Review and critique each step in the proposed solution to determine whether each step is "
    "correct. If the solution is incomplete, only verify the provided steps."
)
BEGINNING = "\nLet's verify step by step:"
DECISION = "Is the solution correct?"
END_OF_THOUGHT = "</think>"


@dataclass(eq=False)
class ThinkPRM(RewardModel):
    """P(yes) against P(no) after "Is the solution correct?", once the model has verified in words.

    Problem and solution are shared along the tree; instruction, verification and verdict are
    computed anew at each rating. One score for the text as far as it goes.
    max_tokens: of a verification; then the verdict is asked for. samples: verifications per rating,
    whose scores are averaged. temperature: of the samples, 0 for the likeliest tokens.

    Rates: the text so far: P(yes) by ThinkPRM-1.5B to -14B, after a written verification.
    Cost: the new tokens, and a text of up to `max_tokens`.
    Use it where: branches are few, as each rating writes a text.
    """

    model: Any = "launch/ThinkPRM-1.5B"
    max_tokens: PositiveInt = 4096
    samples: PositiveInt = 1
    temperature: NonNegativeFloat = 0.0
    headed: ClassVar[bool] = False
    rates_steps: ClassVar[bool] = False
    writes: ClassVar[bool] = True

    def refusals(self) -> Mapping[str, object]:
        return {
            f"samples={self.samples} would all be the same at temperature=0; give 0.6": (
                self.samples > 1 and self.temperature == 0
            )
        }

    def layout(self, branch: Branch, question: str) -> Layout:
        steps, rest = self.split(rated_text(branch, self.thoughts), branch.finished)
        steps += [rest] if rest else []
        return self.one_rating(question, "\n".join(numbered(steps)))

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        messages = [{"role": "user", "content": TASK.format(question, "".join(steps))}]
        return self.templated(self.chat(messages, answer=True) + BEGINNING)

    def score(self, output: Tensor) -> float:
        raise NotImplementedError("no output of the text is read: `rate` asks after a verification")

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        mirror = self.mirror(backend)
        layouts = self.layouts(branches, questions)
        try:
            with mirror.reading(branches, layouts):
                rows = yield from mirror.follow(branches, layouts)
                reads = [row[-1] for row in rows]
                new = [i for i, read in enumerate(reads) if read.score is None]
                payers, prompts = [branches[i] for i in new], [layouts[i].whole for i in new]
                texts = yield from mirror.engine.side_branches(payers, prompts).passes()
            scores = yield from self._judge(mirror.engine, payers, texts)
            for i, score in zip(new, scores, strict=True):
                reads[i].score = score
        finally:
            mirror.released([])
        return [[read.score] for read in reads]

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        verification = self.samples * (self.max_tokens + len(self._verdict("")) + 1)
        return super().price(branches, questions, backend) + verification * len(branches)

    def _judge(
        self, engine: Engine, payers: Sequence[Branch], texts: list[Branch]
    ) -> Passes[list[float]]:
        """Scores of texts, which are released. payers: on whose meters the verifications count."""
        if not texts:
            return []
        word_tokens = spellings(engine, "yes", "no")
        thoughts: list[Branch] = []
        try:
            with counted_as_verifier(payers):
                for text in texts:
                    thoughts += engine.fork(text, self.samples)
                yield from self._write(engine, thoughts)
                rows = yield from word_shares(engine, thoughts, word_tokens)
        finally:
            engine.release([*texts, *thoughts])
        yes = [share for share, _ in rows]
        groups = [yes[i : i + self.samples] for i in range(0, len(yes), self.samples)]
        return [sum(group) / self.samples for group in groups]

    def _write(self, engine: Engine, thoughts: Sequence[Branch]) -> Passes[None]:
        """Let the verifications be written, each ended by the question for the verdict."""
        verdict = len(self._verdict("")) + 1
        left = map(engine.context_left, thoughts)
        most = self.max_tokens
        room = [most if tokens is None else min(most, tokens - verdict) for tokens in left]
        check_room(engine, room, "a verification")
        step = Step(max(room), end=(DECISION,))
        yield from written(engine, thoughts, step, Sampling(self.temperature), room)
        unasked = [thought for thought in thoughts if DECISION not in thought.text]
        verdicts = [self._verdict(thought.text) for thought in unasked]
        reopen(unasked)
        yield from engine.extend(unasked, verdicts, purpose="verifier").passes()

    def _verdict(self, thought: str) -> list[int]:
        end = "" if END_OF_THOUGHT in thought else f"\n{END_OF_THOUGHT}"
        return self.encode(f"{end}\n{DECISION}")
