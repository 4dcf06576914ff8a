"""Trees written by hand: what every branch goes on with, and how every text is rated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from search import Result, Search, solve
from tests.helpers.backends import FakeBackend
from ttc.branch import Branch
from ttc.sampling import SAMPLED, Sampling


class HandMadeTree(FakeBackend):
    """The i-th child of a branch goes on with the i-th of `texts[its text]`, after the last one
    with the first again.

    At temperature 0 it is `likeliest[its text]`, or the first. A "." finishes a branch. A text
    without an entry goes on with `other`. `written` counts the tokens.
    """

    def __init__(
        self,
        texts: Mapping[str, Sequence[str]],
        likeliest: Mapping[str, str] | None = None,
        other: str = "x",
    ) -> None:
        super().__init__()
        self.texts, self.likeliest, self.other = texts, likeliest or {}, other
        self.written = 0

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
        limits = [max_tokens] * len(branches) if isinstance(max_tokens, int) else max_tokens
        for branch, limit in zip(branches, limits, strict=True):
            assert not branch.finished
            texts = self.texts.get(branch.text) or [self.other]
            text = texts[branch.path[-1] % len(texts)]
            if sampling.temperature == 0:
                text = self.likeliest.get(branch.text, texts[0])
            for letter in text[:limit]:
                branch.append(ord(letter), 0.0, 1.0)
            branch.usage.generated_tokens += len(text[:limit])
            self.written += len(text[:limit])
            branch.finish_reason = "eos" if text[:limit].endswith(".") else None
            branch.end_step(branch.finish_reason or "delimiter")


class Scores:
    """Rates each step of a branch by the text up to its end: `scores[text]`, or `other`. `asked`
    lists the texts."""

    def __init__(self, scores: Mapping[str, float], other: float = 0.5):
        self.scores, self.other, self.asked = scores, other, list[str]()

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        self.asked += [branch.text for branch in branches]
        return [[self._score(branch, end) for end in branch.step_ends] for branch in branches]

    def _score(self, branch: Branch, end: int) -> float:
        text = "".join(map(chr, branch.tokens[branch.prompt_length : end]))
        return self.scores.get(text, self.other)


def searched(
    search: Search, tree: HandMadeTree, scores: Scores | Mapping[str, float], **options: Any
) -> Any:
    """The result of a search on a tree; nothing of it stays live."""
    verifier = scores if isinstance(scores, Scores) else Scores(scores)
    options |= {"engine": tree, "verifier": verifier, "extract": lambda text: text}
    result: Any = solve(search, problem="q", **options)
    assert result.error is None and not tree.live
    assert result.usage.generated_tokens == tree.written
    return result


def texts(result: Result) -> list[str]:
    return [branch.text for branch in result.branches]
