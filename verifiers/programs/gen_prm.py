"""GenPRM (Zhao et al., 2025, arXiv 2504.00891): it analyzes each step, runs code to check it, and
judges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, ClassVar

from torch import Tensor

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import NonNegativeFloat, NonNegativeInt, PositiveInt
from ttc.engine import Engine
from ttc.execution.programs import Limits, ProgramMiB, ProgramSeconds, check_sandbox, run_program
from ttc.passes.ratings import pass_by_pass
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Passes
from verifiers.programs.execution_verifier import MIB, runs_of_each
from verifiers.reward_model import MAX_REMEMBERED, RewardModel, check_room
from verifiers.side_branches import (
    counted_as_verifier,
    rated_text,
    reopen,
    spellings,
    word_shares,
    written,
)

SYSTEM = (
    "You are a math teacher. Your task is to review and critique the paragraphs in solution step "
    "by step."
)
ANALYZE = "<analyze>\nLet's analyze the Paragraph {} step by step: "
END_OF_ANALYSIS = "</analyze>"
VERIFY = "\n<verify>\nLet's use python code to find any potential error:\n```python\n"
END_OF_CODE = "\n```\n"
CODE_OUTPUT = "[Code Output]\n\n```\n{}\n```\n"
OUTPUT = "<output>"
JUDGEMENT = "\n**Judgement**: $\\boxed{"
MARK = "---8<--- the block to show ---8<---"
"""Printed before the last block of a program, whose output alone is shown."""
LINE = re.compile(r" \(line \d+\)$")
"""Where an error arose, which would mislead: lines of earlier blocks count too."""
CODE = re.compile(r"```python(.*?)```", re.DOTALL)

Key = tuple[str, tuple[str, ...]]
"""A question, and the steps up to the one that is judged."""


@dataclass(frozen=True)
class Review:
    """What the model wrote about a step, and P(yes) against P(no) in the place of its judgement."""

    text: str
    score: float


@dataclass(eq=False)
class GenPRM(RewardModel):
    """For each step P(yes) against P(no), once the model has analyzed it and seen what its code
    prints.

    A step is a turn of a chat, and so is the review of each step before it. The model's code runs
    in the sandbox, after that of earlier reviews of the solution; what it prints, or its error,
    goes into the review. A step is reviewed once, however often it is rated.
    max_tokens: of a review, what its code prints included. rounds: how often code is run in it.
    temperature: of what is written; the authors' 0.6. time_s, memory_mib: as for
        `ExecutionVerifier`.

    Rates: each step: P(yes) by GenPRM-1.5B to -32B, after an analysis and code that it runs.
    Cost: for each new step the chat so far and a review of up to `max_tokens`; running code.
    Use it where: branches are few, and code can check the steps.
    """

    model: Any = "GenPRM/GenPRM-1.5B"
    max_tokens: PositiveInt = 2048
    rounds: NonNegativeInt = 3
    temperature: NonNegativeFloat = 0.6
    time_s: ProgramSeconds = 5.0
    memory_mib: ProgramMiB = 1024
    headed: ClassVar[bool] = False
    rates_steps: ClassVar[bool] = False
    writes: ClassVar[bool] = True

    _reviews: dict[Key, Review] = field(init=False, repr=False, default_factory=dict)

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        """The tokens of the chat up to the review of the last step."""
        messages = [{"role": "system", "content": SYSTEM}]
        for place, step in enumerate(steps):
            content = f"{question}\n{step}" if not place else step
            messages.append({"role": "user", "content": content})
            before = self._reviews.get((question, tuple(steps[: place + 1])))
            if place < len(steps) - 1 and before is not None:
                messages.append({"role": "assistant", "content": before.text})
        begun = ANALYZE.format(len(steps))
        return self.templated(self.chat(messages, answer=True) + begun)

    def score(self, output: Tensor) -> float:
        raise NotImplementedError("no output of the text is read: `rate` asks after a review")

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Passes[list[list[float]]]:
        check_sandbox()
        engine = self.mirror(backend).engine
        rows = [self._keys(*pair) for pair in zip(branches, questions, strict=True)]
        for depth in range(max(map(len, rows), default=0)):
            new: dict[Key, Branch] = {}
            for keys, branch in zip(rows, branches, strict=True):
                if depth < len(keys) and keys[depth] not in self._reviews:
                    new.setdefault(keys[depth], branch)
            if new:
                self._reviews |= yield from self._review(engine, new)
        scores = [[self._reviews[key].score for key in keys] or [0.5] for keys in rows]
        while len(self._reviews) > MAX_REMEMBERED:
            del self._reviews[next(iter(self._reviews))]
        return scores

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        review = self._review_cost(backend)
        rows = zip(branches, questions, strict=True)
        new = dict.fromkeys(key for row in rows for key in self._keys(*row))
        return sum(
            len(self.closed(*key)) + len(key[1]) * review for key in new if key not in self._reviews
        )

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        keys = self._keys(parent, question)
        review = self._review_cost(backend)
        chat = len(self.closed(question, keys[-1][1] if keys else ("",)))
        return count * (self.price([parent], [question], backend) + chat + tokens + 2 * review)

    def _review_cost(self, backend: Backend) -> int:
        _ = self.mirror(backend)
        return self.max_tokens + len(self.encode(OUTPUT + JUDGEMENT)) + 8

    def _keys(self, branch: Branch, question: str) -> list[Key]:
        steps, rest = self.split(rated_text(branch, self.thoughts), branch.finished)
        whole = (*steps, rest) if rest else tuple(steps)
        return [(question, whole[: place + 1]) for place in range(len(whole))]

    # ---------------------------------------------------------------- a review

    def _review(self, engine: Engine, new: dict[Key, Branch]) -> Passes[dict[Key, Review]]:
        branches = list(new.values())
        word_tokens = spellings(engine, "yes", "no")
        with counted_as_verifier(branches):
            prompts = [self.closed(*key) for key in new]
            texts = yield from engine.side_branches(branches, prompts).passes()
            try:
                yield from self._write(engine, texts, (END_OF_ANALYSIS,))
                yield from self._give(engine, texts, _missing(END_OF_ANALYSIS, texts), VERIFY)
                yield from self._check_by_code(engine, list(new), texts)
                yield from self._give(engine, texts, _missing(OUTPUT, texts), JUDGEMENT)
                rows = yield from word_shares(engine, texts, word_tokens)
            finally:
                engine.release(texts)
        reviews = {}
        for key, text, (score, _) in zip(new, texts, rows, strict=True):
            verdict = "Yes" if score >= 0.5 else "No"
            begun = ANALYZE.format(len(key[1]))
            reviews[key] = Review(f"{begun}{text.text}{verdict}}}$\n</output>", score)
        return reviews

    def _check_by_code(
        self, engine: Engine, keys: Sequence[Key], texts: Sequence[Branch]
    ) -> Passes[None]:
        """Let each review go on, and run its code, up to its output or the last round."""
        going = list(zip(keys, texts, strict=True))
        for left in reversed(range(self.rounds + 1)):
            going = [(key, text) for key, text in going if self._room(engine, text) > 0]
            if not going:
                return
            writing = [text for _, text in going]
            yield from self._write(engine, writing, (END_OF_CODE, OUTPUT))
            going = [(key, text) for key, text in going if text.text.rstrip().endswith("```")]
            if not left or not going:
                return
            programs = [self._program(key, text) for key, text in going]
            printed = yield from runs_of_each(self._run, programs)
            outputs = [CODE_OUTPUT.format(printed[program]) for program in programs]
            yield from self._give(engine, [text for _, text in going], outputs, "")

    def _program(self, key: Key, text: Branch) -> str:
        """The code of the reviews so far, with a mark before the last block of this one."""
        question, steps = key
        reviews = [self._reviews[question, steps[:k]].text for k in range(1, len(steps))]
        blocks = [block.strip() for review in reviews for block in CODE.findall(review)]
        own = [b.strip() for b in CODE.findall(f"```python\n{text.text.partition(VERIFY)[2]}")]
        blocks += own[:-1]
        return "\n".join([*blocks, f"print({MARK!r})", own[-1] if own else ""])

    def _run(self, program: str, stop: Event) -> str:
        if stop.is_set():
            return ""
        limits = Limits(self.time_s, self.memory_mib * MIB)
        outcome = run_program(program, limits=limits)
        printed = str(outcome.value).rpartition(f"{MARK}\n")[2].strip()
        return f"{printed}\n{LINE.sub('', outcome.error or '')}".strip()

    def _room(self, engine: Engine, text: Branch) -> int:
        ends = len(self.encode(END_OF_ANALYSIS + VERIFY)) + len(self.encode(OUTPUT + JUDGEMENT)) + 1
        room = self.max_tokens - len(text.generated)
        left = engine.context_left(text)
        return room if left is None else min(room, left - ends)

    def _write(self, engine: Engine, texts: Sequence[Branch], end: tuple[str, ...]) -> Passes[None]:
        room = [self._room(engine, text) for text in texts]
        check_room(engine, room, "a review")
        step = Step(max(room), end=end)
        yield from written(engine, texts, step, Sampling(self.temperature), room)
        reopen(texts)

    def _give(
        self, engine: Engine, texts: Sequence[Branch], words: Sequence[str], last: str
    ) -> Passes[None]:
        """Append words to each review, and what is `last` for all; without it, cut to the room that
        there is."""
        tokens = [self.encode(f"{own}{last}") for own in words]
        if not last:
            room = [max(0, self._room(engine, text)) for text in texts]
            tokens = [row[:most] for row, most in zip(tokens, room, strict=True)]
        yield from engine.extend(texts, tokens, purpose="verifier").passes()


def _missing(ending: str, texts: Sequence[Branch]) -> list[str]:
    """The ending for each text that does not have it, "" for the others."""
    return ["" if ending in text.text else ending for text in texts]
