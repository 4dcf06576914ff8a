"""Certainty probing (Dynasor; Fu et al., 2025): ask a chain for its answer now and then, and stop
once it is sure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass

from search.base import Case, Search, SearchSteps
from search.selection import C, Winner
from ttc.branch import Branch
from ttc.checks import NonEmptyText, PositiveInt
from ttc.errors import BudgetExceeded, ContextExceeded
from ttc.protocols import Append, Expand, Extract, Release
from ttc.step import Step
from ttc.text.boxes import boxed
from ttc.text.equality import ballots_by

PROBE = "... Oh, I suddenly got the answer to the whole problem, **Final Answer**\n\n\\[ \\boxed{"
"""Dynasor's words."""

HEDGING = {"wait", "hold", "but", "okay", "no", "hmm"}
"""Whole words by which a probe shows that it is not sure."""


@dataclass(frozen=True)
class CertaintyProbe(Search):
    """One chain, ended once it gives the same answer several times.

    A probe is a fork of the chain that is asked for the answer and then dropped; it shares the
    chain's keys and values. The search ends when the last `agree` probes gave the same answer and
    none holds a word of `HEDGING`; the last one is kept as the answer. Else the answer is what the
    chain says at its end.

    max_tokens: of the chain, thoughts included. With `thinking_tokens`, thoughts are counted beside
        it, and closed at their limit.
    every: the chain is asked after every so many tokens. suffix: what asks for the answer.
        probe_tokens: the most tokens of a probe. agree: so many equal answers in a row end the
        chain.

    Tokens: max_tokens + (max_tokens / every) x probe_tokens.
    Use it where: chains think on after they have found the answer.
    """

    max_tokens: int = 1024
    every: PositiveInt = 64
    agree: PositiveInt = 3
    probe_tokens: PositiveInt = 20
    suffix: NonEmptyText = PROBE
    _: KW_ONLY
    thinking_tokens: int | None = None

    needs_verifier = False
    puts_words = True

    def run(self, root: Branch, case: Case) -> SearchSteps:
        chain = root
        answers = list[str | None]()
        probe_step = Step(self.probe_tokens, end=case.end)
        with suppress(BudgetExceeded):  # the chain as far as it came is the answer
            longest = self.max_tokens + case.thinking_tokens
            for length in range(0, longest, self.every):
                step = case.part(min(self.every, longest - length))
                (grown,) = yield Expand([chain], 1, step, self.sampling)
                yield Release([chain])
                chain = grown
                if chain.finished:
                    break
                try:
                    (prompt,) = yield Append([chain], self.suffix, ends_thinking=True)
                except ContextExceeded:
                    continue  # there is no room to ask; the chain may have some left
                (probe,) = yield Expand([prompt], 1, probe_step, self.sampling)
                yield Release([prompt])
                answers.append(self.certain_answer(probe, case.extract))
                last = ballots_by(case.extract, answers)[-self.agree :]
                if len(last) == self.agree and last[0] is not None and len(set(last)) == 1:
                    return [probe]
                yield Release([probe])
        return [chain]

    def certain_answer(self, probe: Branch, extract: Extract) -> str | None:
        """The answer of a probe; None if it gave none, or hedged."""
        text = (probe.answer_text or "").rpartition(self.suffix)[2]
        if set(re.findall(r"\w+", text.lower())) & HEDGING:
            return None
        return self.answer(text, extract)

    def answer(self, text: str, extract: Extract) -> str | None:
        """The answer in a probe's text, or in the box that the suffix opens."""
        whole = self.suffix + text
        if re.search(r"\\boxed\s*\{[^}]*$", self.suffix) is None:
            return extract(whole)
        content = boxed(whole)
        return None if content is None else extract(f"\\boxed{{{content}}}")

    def choose(self, candidates: Sequence[C], extract: Extract) -> Winner[C]:
        best, answer = super().choose(candidates, extract)
        text: str | None = None if best is None else getattr(best, "answer_text", best.text)
        if text is not None and self.suffix in text:  # the chain may name other answers before
            answer = self.answer(text.rpartition(self.suffix)[2], extract)
        return best, answer
