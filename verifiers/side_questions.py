"""Questions that a verifier asks the search's own model beside the search, to be answered by one of
a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ttc.backend import Backend, Need
from ttc.branch import Branch
from ttc.checks import NonNegativeFloat, NonNegativeInt, Options, PositiveInt
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Passes
from ttc.text.thoughts import Thoughts
from verifiers.side_branches import (
    counted_as_verifier,
    reopen,
    side_tokens,
    spellings,
    word_shares,
    written,
)


@dataclass(eq=False, kw_only=True)
class SideQuestions(Options):
    """What asks such questions.

    repeats: how often each question is asked. max_tokens: of the text that the model writes before
        it answers, 0 to answer at once. temperature: of the texts.
    thoughts: show a model's thoughts too, and not its answer alone.
    cue: what comes before the answer.
    """

    needs: ClassVar[tuple[Need, ...]] = ("score",)
    cue: ClassVar[str]

    repeats: PositiveInt = 1
    max_tokens: NonNegativeInt = 0
    temperature: NonNegativeFloat = 0.8
    thoughts: bool = False

    def refusals(self) -> Mapping[str, object]:
        same = not self.max_tokens or not self.temperature
        return {
            f"repeats={self.repeats} would all be the same with max_tokens={self.max_tokens} and "
            f"temperature={self.temperature}; give max_tokens=256 and temperature=0.8": (
                self.repeats > 1 and same
            )
        }

    def question_tokens(
        self, text: str, backend: Backend, thoughts: Thoughts | None = None
    ) -> list[int]:
        """A question's tokens, up to where the model writes. thoughts: of the branch that it is
        about."""
        thinks = self.max_tokens > 0
        tokens = side_tokens(text, backend, "\n", thinks=thinks, thoughts=thoughts)
        return tokens if thinks else [*tokens, *backend.encode(self.cue)]

    def _closing(self, thoughts: Thoughts | None) -> str:
        return self.cue if thoughts is None else f"\n{thoughts.marks.closing}\n{self.cue}"

    def longest_cost(
        self, prompts: Sequence[Sequence[int]], backend: Backend, thoughts: Thoughts | None
    ) -> int:
        """The most verifier tokens that asking these questions takes. thoughts: of the branches
        that they are about."""
        closing = self._closing(thoughts or Thoughts.of_model(backend.tokenizer))
        text = self.max_tokens + len(backend.encode(closing)) + 1
        more = self.repeats * text if self.max_tokens else 1
        return sum(len(prompt) + more for prompt in prompts)

    def answer_shares(
        self, backend: Backend, questions: Sequence[tuple[Branch, list[int]]], words: Sequence[str]
    ) -> Passes[list[list[float]]]:
        """The probability of each word among all of them, for each question: `[question][word]`;
        the mean over the repeats. All of it counts as verifier tokens.

        questions: the branch that pays for each, and its `question_tokens`. Raises UnsupportedModel
        where a word is no single token.
        """
        word_tokens = spellings(backend, *words)
        payers = [branch for branch, _ in questions]
        with counted_as_verifier(payers):
            prompts = [prompt for _, prompt in questions]
            branches = yield from backend.side_branches(payers, prompts).passes()
            try:
                texts = branches
                if self.max_tokens:
                    texts = [text for one in branches for text in backend.fork(one, self.repeats)]
                    branches = [*branches, *texts]
                    about = [payer.thoughts for payer in payers for _ in range(self.repeats)]
                    yield from self._reason(backend, texts, about)
                rows = yield from word_shares(backend, texts, word_tokens)
            finally:
                backend.release(branches)
        count = self.repeats if self.max_tokens else 1
        groups = [rows[start : start + count] for start in range(0, len(rows), count)]
        return [[sum(column) / count for column in zip(*group, strict=True)] for group in groups]

    def _reason(
        self, backend: Backend, texts: Sequence[Branch], about: Sequence[Thoughts | None]
    ) -> Passes[None]:
        """Let the model write, and put the cue after each text, behind an end of its thought where
        that is open."""
        yield from written(backend, texts, Step(self.max_tokens), Sampling(self.temperature))
        reopen(texts)
        own = Thoughts.of_model(backend.tokenizer)
        cues = []
        for text, thoughts in zip(texts, about, strict=True):
            marks = thoughts or own
            thinks = marks is not None and text.thinks(marks)
            cues.append(backend.encode(self._closing(marks if thinks else None)))
        yield from backend.extend(texts, cues, purpose="verifier").passes()
