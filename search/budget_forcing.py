"""Budget forcing (s1, Muennighoff et al., 2025): a longer or a shorter time to think, by given
words."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from search.base import Case, Requests, Search, SearchSteps
from ttc.branch import Branch
from ttc.checks import NonNegativeInt, PositiveInt, Words
from ttc.errors import BudgetExceeded, ContextExceeded
from ttc.protocols import Append, Expand, Release
from ttc.step import Step


@dataclass(frozen=True)
class BudgetForcing(Search):
    """One chain of thought that is not allowed to end too early or too late.

    Where the model ends its thinking, by `end_of_thinking` or by finishing, this end is taken back
    and `wait` put in its place. After `thinking_tokens` tokens without an end, `end_of_thinking`
    and `final` follow, and the model answers. What a limit cut off is never made to wait. After the
    last wait a model that has written `end_of_thinking` goes on to its answer; one that has
    finished has given it.

    wait: what takes the place of an end. waits: how many ends it takes the place of, at most.
        answer_tokens: the most tokens of the answer.
    end_of_thinking: one token of the model's, so that it can be taken back. None for the model's
        mark (`ttc.text.thoughts`); "", or a model without such a token: then only its end counts.

    Tokens: thinking_tokens + answer_tokens.
    Use it where: the model was trained to think at length.
    """

    waits: NonNegativeInt = 2
    thinking_tokens: PositiveInt = 512
    answer_tokens: PositiveInt = 64
    wait: Words = "Wait"
    end_of_thinking: str | None = None
    final: Words = "Final Answer:"

    needs_verifier = False
    puts_words = True

    @property
    def draws(self) -> bool:
        return self.temperature > 0

    def run(self, root: Branch, case: Case) -> SearchSteps:
        chain = [root]
        with suppress(BudgetExceeded, ContextExceeded):
            yield from self._think(chain, case)
            reason = chain[-1].step_reasons[-1]
            if reason in ("length", "looped"):
                words = f"{self.mark(case)}\n\n{self.final}"
                chain += yield Append(chain[-1:], words, ends_thinking=True)
            if reason in ("length", "looped", "delimiter"):
                step = Step(self.answer_tokens, end=case.end)
                chain += yield Expand(chain[-1:], 1, step, self.sampling)
        return chain[-1:]

    def mark(self, case: Case) -> str:
        """What ends the model's thinking, "" for unknown."""
        if self.end_of_thinking is not None:
            return self.end_of_thinking
        return "" if case.thoughts is None else case.thoughts.end_token

    def _think(self, chain: list[Branch], case: Case) -> Requests[None]:
        waits = self.waits
        left = self.thinking_tokens
        mark = self.mark(case)
        while True:
            before = chain[-1]
            chain += yield Expand([before], 1, Step(left, mark or None, case.end), self.sampling)
            yield Release([before])
            left -= chain[-1].written_since(len(before.tokens))
            was_cut = chain[-1].step_reasons[-1] not in ("delimiter", "eos", "end")
            if was_cut or not waits or not left:
                return
            chain += yield Append(chain[-1:], self.wait, drop=mark)
            yield Release(chain[-2:-1])
            waits -= 1
