"""The seams: what a search asks for, and what a backend and a verifier must offer.

A search is a generator that yields `Vary`, `Expand`, `Append`, `Handoff`, `Rate` and `Release` and
returns its chosen branches; it owns no model and no batching. A driver (`search.solve`) merges the
requests of many searches and sends them to a `Backend`. What comes back is in `ttc.results`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, Protocol, runtime_checkable

from ttc.backend import Backend
from ttc.branch import Branch
from ttc.checks import check_is, check_whole
from ttc.errors import InvalidInput, number_of
from ttc.sampling import SAMPLED, Sampling
from ttc.step import Step

Aggregation = Literal["min", "product", "last", "mean"]


@dataclass(frozen=True)
class Vary:
    """Start `n` branches of the root's problem from prompts of their own. Answer: the branches.

    phrasings: instructions, `{question}` in them; branch i asks by the i-th, then from the first
    again; none for the template's own. hints: likewise, words that the answer is made to start
    with. Both are part of the prompt.
    questions: likewise, texts that are asked in the question's place; none for the question itself.
    plain: without the template's solved examples, and but for a raw prompt without its instruction.
    Where the model's context has no room for a prompt and one token after it, ContextExceeded is
    raised at the `yield`.
    """

    root: Branch
    n: int
    phrasings: Sequence[str] = ()
    hints: Sequence[str] = ()
    questions: Sequence[str] = ()
    plain: bool = False


@dataclass(frozen=True)
class Expand:
    """Fork each branch `n` times and let every child generate one step. Answer: the children,
    branch by branch.

    n: one number for all branches, or one for each; 0 makes no child. Where the budget has too few
        tokens left, only the first children are made, and the last of them may get a shorter step;
        `child.parent` says whose each one is. A rated branch that gets no child then stays among
        the candidates, also when the search releases it.
    Once nothing is left the driver raises BudgetExceeded at the `yield`: a search may catch it and
        return what it has, and need not.
    """

    branches: Sequence[Branch]
    n: int | Sequence[int]
    step: Step
    sampling: Sampling = SAMPLED

    def parents(self) -> list[Branch]:
        """The parent of each child that is asked for, in order."""
        check_is("Expand.n", self.n, Integral | Iterable, "a whole number, or one each")
        numbers = [self.n] * len(self.branches) if isinstance(self.n, int | Integral) else self.n
        counts = [check_whole("Expand.n", count, 0) for count in numbers]
        if len(counts) != len(self.branches):
            raise InvalidInput(
                f"Expand has {number_of(len(self.branches), 'branch', 'branches')} and "
                f"{number_of(len(counts), 'number')}; give one each"
            )
        return [
            branch
            for branch, count in zip(self.branches, counts, strict=True)
            for _ in range(count)
        ]


@dataclass(frozen=True)
class Append:
    """Put given text after each branch. Answer: one child per branch, with the text in it; the
    branches stay.

    text: one text for all, or one for each.
    turn: the text is the user's next message. The child's prompt is the whole chat as the chat
        template writes it, which may leave out thoughts of earlier answers; `text`, `steps` and
        ratings are those of the new answer alone. Without `turn` the text goes on with the model's
        words. An end-of-sequence token before it is left out; the template writes its own.
    ends_thinking: the words ask for the answer, so that what stands from them on is answer, and no
        thought.
    drop: a text that gives way to the new one where the branch's words end with it ("</think>", to
        think on). At most one token is taken back, `drop` with blanks before it or an
        end-of-sequence token; a `drop` that would take more is refused.
    The children can go on, whatever finished the branches. The text counts as prompt tokens, not as
    generated ones.
    Where the model's context has no room for a text and one token after it, ContextExceeded is
    raised at the `yield`; where a `drop` is refused, InvalidInput. A search may catch either and go
    on; else this problem has failed.
    """

    branches: Sequence[Branch]
    text: str | Sequence[str]
    turn: bool = False
    drop: str = ""
    ends_thinking: bool = False

    def texts(self) -> list[str]:
        texts = [self.text] * len(self.branches) if isinstance(self.text, str) else list(self.text)
        if len(texts) != len(self.branches):
            raise InvalidInput(
                f"Append has {number_of(len(self.branches), 'branch', 'branches')} and "
                f"{number_of(len(texts), 'text')}; give one each"
            )
        if not all(texts):
            raise InvalidInput("Append has an empty text; leave its branch out")
        if self.turn and self.drop:
            raise InvalidInput(
                f"drop={self.drop!r} goes with the model's own words, not with a turn; leave turn "
                "out"
            )
        return texts


@dataclass(frozen=True)
class Rate:
    """Rate branches with the verifier. Answer: one float per branch, also left in
    `branch.score`."""

    branches: Sequence[Branch]
    aggregation: Aggregation = "last"


@dataclass(frozen=True)
class Handoff:
    """Have another model go on with each branch. Answer: one child per branch; the branches stay.

    model: its name, one of `Case.models`. The child is the same conversation as that model reads
        it, in its own tokens and under its own chat template: all that was written so far is
        computed there as a prompt, and shares what that model has of it already.
    """

    branches: Sequence[Branch]
    model: str


@dataclass(frozen=True)
class Release:
    """Branches that are no longer needed. Their KV is freed at once. Answer: None."""

    branches: Sequence[Branch]


class Verifier(Protocol):
    """Rates branches. Process verifiers return one score per step, outcome verifiers a list of one.

    `questions[i]` belongs to `branches[i]`. Scores are finite and higher is better; they need not
    lie in [0, 1]. Model-based verifiers work through `backend`, on the branch's KV, and leave the
    branches as they were.
    """

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> Sequence[Sequence[float]]: ...


@runtime_checkable
class Forgets(Protocol):
    """A verifier that keeps something for each branch, as a reward model keeps keys and values. It
    is told when a search lets branches go; `branch.parent` says what a branch was forked from."""

    def released(self, branches: Sequence[Branch]) -> None: ...


@runtime_checkable
class Priced(Protocol):
    """A verifier that knows what a rating costs before it is made, so that a budget of tokens is
    never passed.

    Where the price depends on a branch's text or on what is rated together, it also has
    `children_price(parent, question, backend, tokens, count)`: the most verifier tokens that rating
    `count` children together takes, each of which has `tokens` more than its parent; not fewer for
    more of them.
    """

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        """The most verifier tokens that rating these branches takes."""
        ...


def score_range(verifier: object) -> tuple[float, float] | None:
    """The smallest and the largest score of a verifier that says so by `score_range`, as those must
    whose scores leave [0, 1]: searches that cannot use them refuse it at the start."""
    return getattr(verifier, "score_range", None)


def misfit(verifier: object, kind: str) -> str | None:
    """Why a verifier, or a part of one, says little about answers of a kind; None where it may rate
    them. One that rates some kinds alone names these as `answer_kinds`."""
    parts = [getattr(verifier, "inner", None), *(getattr(verifier, "parts", None) or ())]
    for part in (verifier, *parts):
        kinds = getattr(part, "answer_kinds", None)
        if kinds is not None and kind not in kinds:
            return (
                f"{type(part).__name__} rates answers of the kind {' or '.join(kinds)}, and these "
                f"are of the kind {kind}, so that its scores say little about them; use "
                "another (SelfVerifier rates all kinds), or a search that votes"
            )
    return None


def children_price(
    verifier: object, parent: Branch, question: str, backend: Backend, tokens: int, count: int
) -> int:
    """What a verifier's `children_price` says; where it is only `Priced`, the price of the parent
    for each child, and 0 for any other."""
    if (own := getattr(verifier, "children_price", None)) is not None:
        price: int = own(parent, question, backend, tokens, count)
        return price
    if isinstance(verifier, Priced):
        return count * verifier.price([parent], [question], backend)
    return 0


Extract = Callable[[str], str | None]
