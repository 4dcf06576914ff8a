"""The seams: what a search asks for, and what a backend and a verifier must offer.

A search is a generator that yields `Vary`, `Expand`, `Append`, `Handoff`, `Rate` and `Release` and
returns its chosen branches; it owns no model and no batching. A driver (`search.solve`) merges the
requests of many searches and sends them to a `Backend`. What comes back is in `ttc.results`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ttc.checks import check_is, check_whole
from ttc.errors import InvalidInput
from ttc.results import Problem as Problem
from ttc.results import Result as Result
from ttc.sampling import SAMPLED, Sampling
from ttc.tree.branch import Branch
from ttc.wording import number_of

if TYPE_CHECKING:
    from ttc.model.limits import ModelLimits

Tokens = Sequence[int]
Aggregation = Literal["min", "product", "last", "mean"]
Purpose = Literal["prompt", "verifier", "recompute"]
Need = Literal["logprobs", "top_logprobs", "statistics", "score"]
"""What not every backend offers: log-probabilities of the tokens that it wrote and of the likeliest
one in each place, those of the 20 likeliest, all statistics of `Step.statistics`, and
`Backend.score`."""

NEEDS: dict[Need, str] = {
    "logprobs": "log-probabilities of the tokens",
    "top_logprobs": "log-probabilities of the 20 likeliest tokens",
    "statistics": "entropies and self-certainties",
    "score": "log-probabilities of given tokens",
}


@dataclass(frozen=True)
class Thinking:
    """How long a model may think before its answer, and where a step ends meanwhile.

    tokens: the most generated tokens of one answer's thought. Where they are spent, the model's
        end of thinking is put in and `final` after it, and the answer follows. The thought also
        ends early enough that the model's context has room for the answer's step. None: the limits
        of steps count thoughts too, and only a thought that goes in circles is ended.
    final: words that ask for the answer, "" for none.
    step: None lets a step go on through the whole thought and to the end of the answer's step
        behind it. A number ends it after so many tokens of a thought, a string or several end it
        where they come; then the end of the thought ends it too.
    """

    tokens: int | None
    final: str = ""
    step: int | tuple[str, ...] | None = None


@dataclass(frozen=True)
class Step:
    """One unit of expansion: at most `max_tokens` tokens, or up to and including `delimiter`.

    delimiter: a string, or several of which the first to come counts; leading blanks of the step
        are left out.
    end: strings that finish the branch, as the model's end-of-sequence token does.
    statistics: keep each token's entropy, the mean log-probability of the likeliest tokens and the
        self-certainty, as in `Engine.generate`; the backend must offer it.
    thinking: what is thought has limits of its own, and only what is answered counts to
        `max_tokens`, ends at `delimiter` and is finished by `end`. None treats both alike. A driver
        keeps it (`search.solve`), a batch does not.
    stop_loops: end the step as "looped" where the branch's last tokens repeat. A driver sets it
        (see `search.base.Search`).
    Each child says in `step_reasons[-1]` why its step ended.
    """

    max_tokens: int
    delimiter: str | tuple[str, ...] | None = None
    end: tuple[str, ...] = ()
    statistics: bool = False
    thinking: Thinking | None = None
    stop_loops: bool = False

    @property
    def delimiters(self) -> tuple[str, ...]:
        if self.delimiter is None or isinstance(self.delimiter, str):
            return (self.delimiter,) if self.delimiter else ()
        return tuple(self.delimiter)


@dataclass(frozen=True)
class Vary:
    """Start `n` branches of the root's problem from prompts of their own. Answer: the branches.

    phrasings: instructions, `{question}` in them; branch i asks by the i-th, then from the first
    again; none for the template's own. hints: likewise, words that the answer is made to start
    with. Both are part of the prompt.
    """

    root: Branch
    n: int
    phrasings: Sequence[str] = ()
    hints: Sequence[str] = ()


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
        given = [self.n] * len(self.branches) if isinstance(self.n, int | Integral) else self.n
        counts = [check_whole("Expand.n", count, 0) for count in given]
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


@runtime_checkable
class Backend(Protocol):
    """Where branches live. `ttc.Engine` is one."""

    tokenizer: Any

    def root(self, tokens: Tokens, *, seed: int = 0) -> Branch: ...

    def roots(
        self, prompts: Sequence[Tokens], *, seeds: Sequence[int] | None = None
    ) -> list[Branch]: ...

    def variants(
        self, root: Branch, prompts: Sequence[Tokens], suffixes: Sequence[Tokens] | None = None
    ) -> list[Branch]: ...

    def fork(self, branch: Branch, n: int, keep: int | None = None) -> list[Branch]: ...

    def extend(
        self,
        branches: Sequence[Branch],
        tokens_per_branch: Sequence[Tokens],
        *,
        purpose: Purpose = "prompt",
    ) -> None: ...

    def generate(
        self,
        branches: Sequence[Branch],
        max_tokens: int | Sequence[int],
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
    ) -> None: ...

    def score(
        self, branches: Sequence[Branch], continuations: Sequence[Sequence[Tokens]]
    ) -> list[list[list[float]]]: ...

    def release(self, branches: Sequence[Branch]) -> None: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Tokens) -> str: ...


class Batch(Protocol):
    """Branches that decode together; others join and leave at any token. What each decodes is what
    `Backend.generate` would make of it."""

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        """Let branches decode one step, all of them from the same token on, as soon as there is
        room.

        limits: the most tokens of each branch, where these differ; else `step.max_tokens` of every
        branch.
        """
        ...

    def step(self) -> list[Branch]:
        """Decode a token, or more, for those who have room. Returns the branches whose step is
        over.

        Raises BranchRefused for a branch that cannot go on, for what is in it; the others stay.
        """
        ...

    def close(self) -> None:
        """Break off whatever is under way; the branches keep what they have decoded."""
        ...

    def fits(self, tokens: int, states: int) -> float:
        """How many times over the memory has room for the keys and values of so many tokens and for
        so many recurrent states, inf where that is not known."""
        ...

    def __len__(self) -> int:
        """The branches whose step is not over."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A backend that says what its model can hold."""

    @property
    def limits(self) -> ModelLimits: ...


@runtime_checkable
class WritesAhead(Protocol):
    """A backend that says whether it may write beyond the marks of a thought: `Step.thinking` is
    left out there."""

    @property
    def writes_ahead(self) -> bool: ...


@runtime_checkable
class RunsBatches(Protocol):
    """A backend whose branches need not wait for each other.

    max_rows: the most that decode at once, None for no limit.
    """

    def running_batch(self, max_rows: int | None = None) -> Batch: ...


class Prefill(Protocol):
    """Branches that are there, and whose keys and values are computed pass by pass. Between two
    passes its caller may do anything else with the backend. It is closed at the end.

    branches: one that is released leaves it; the others go on.
    """

    branches: list[Branch]

    def step(self) -> bool:
        """One pass of the model. True once there are no more."""
        ...

    def close(self) -> None:
        """Make no more passes."""
        ...


@runtime_checkable
class PrefillsByPass(Protocol):
    """A backend that can stop between two passes of a long prompt. Each call is that of `Backend`
    without `begin_`, and refuses at once what that one refuses. Nobody may use the branches before
    the last pass, but for releasing them."""

    def begin_roots(
        self, prompts: Sequence[Tokens], *, seeds: Sequence[int] | None = None
    ) -> Prefill: ...

    def begin_variants(
        self,
        root: Branch,
        prompts: Sequence[Tokens],
        suffixes: Sequence[Tokens] | None = None,
    ) -> Prefill: ...

    def begin_extend(
        self,
        branches: Sequence[Branch],
        tokens_per_branch: Sequence[Tokens],
        *,
        purpose: Purpose = "prompt",
    ) -> Prefill: ...


@runtime_checkable
class SideBranches(Protocol):
    """A backend that can make further branches, and charge them to the problem of a search's."""

    def side_branches(
        self, branches: Sequence[Branch], prompts: Sequence[Tokens]
    ) -> list[Branch]: ...


@runtime_checkable
class ScoresWithin(Protocol):
    """A backend whose scoring pass can hold given tokens before the continuations, and can be left
    early.

    given[i] stands between branch i and its continuations; exit is an `EarlyExit`, report its
    `ExitReport`.
    """

    def score_within(
        self,
        branches: Sequence[Branch],
        given: Sequence[Tokens],
        continuations: Sequence[Sequence[Tokens]],
        *,
        exit: Any = None,
        report: Any = None,
    ) -> list[list[list[float]]]: ...


@runtime_checkable
class ScoresByPass(Protocol):
    """A backend that can stop between two passes of `score_within` and `side_branches`, as an
    Engine can. What the calls give, and how they end, is that of `ttc.passes.pass_by_pass`."""

    def begin_score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Sequence[Tokens]],
        *,
        given: Sequence[Tokens] | None = None,
        exit: Any = None,
        report: Any = None,
    ) -> Any: ...

    def begin_side_branches(self, branches: Sequence[Branch], prompts: Sequence[Tokens]) -> Any: ...


@runtime_checkable
class OffersModels(Protocol):
    """A backend of several models: `branch.model` names the one that a branch is of.

    models: the backend of each, by its name. Roots are of the first.
    """

    @property
    def models(self) -> Mapping[str, Backend]: ...


@runtime_checkable
class Limited(Protocol):
    """A backend that does not offer everything.

    lacks: what it does not, and for each why, with the way out.
    """

    @property
    def lacks(self) -> Mapping[Need, str]: ...


@runtime_checkable
class Served(Protocol):
    """A backend whose model a server runs, so that nothing here shows which it is.

    served: what the server says of its model, and what its requests ask for by themselves.
    """

    @property
    def served(self) -> Mapping[str, str]: ...

    def close(self) -> None:
        """Break off what is under way, and the connections."""


def check_needs(user: object, backend: object) -> None:
    """Raise InvalidInput where a search or verifier `needs` what the backend lacks."""
    lacks = backend.lacks if isinstance(backend, Limited) else {}
    needs: Sequence[Need] = getattr(user, "needs", ())
    for need in needs:
        if need in lacks:
            raise InvalidInput(
                f"{type(user).__name__} needs {NEEDS[need]}, and the backend has none: "
                f"{lacks[need]}"
            )


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
    never passed."""

    def price(self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend) -> int:
        """The most verifier tokens that rating these branches takes."""
        ...


@runtime_checkable
class PricesChildren(Protocol):
    """A verifier that knows what rating a branch's children will cost, before they are written."""

    def children_price(
        self, parent: Branch, question: str, backend: Backend, tokens: int, count: int
    ) -> int:
        """The most verifier tokens that rating `count` children together takes, each of which has
        `tokens` more than its parent; not fewer for more of them."""
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
    """What `PricesChildren` says; where the verifier is only `Priced`, the price of the parent for
    each child, and 0 for any other."""
    if isinstance(verifier, PricesChildren):
        return verifier.children_price(parent, question, backend, tokens, count)
    if isinstance(verifier, Priced):
        return count * verifier.price([parent], [question], backend)
    return 0


Extract = Callable[[str], str | None]
