"""What a backend is: where branches live, and how they go on."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ttc.branch import Branch
from ttc.checks import Answering, Fits, check_whole, is_list
from ttc.errors import BranchRefused, InvalidInput, RemoteError, Unsupported, refusing
from ttc.sampling import SAMPLED, Sampling, random_key
from ttc.step import Step, step_of
from ttc.task import Task, check_interrupt
from ttc.text.chat import decoded, encoded
from ttc.tree.branch import MOST_ROWS, check_live
from ttc.tree.segment import Segment, common_prefix
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.model.limits import ModelLimits
else:
    ModelLimits = Any  # its module takes seconds; a dataclass of a backend has its hints read

Tokens = Sequence[int]
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

TOGETHER_TOKENS = 256
"""Groups that take turns on the device each decode at most so many tokens at a time."""


class Batch(ABC):
    """Branches that decode together; others join and leave at any token. What each decodes is what
    `Backend.generate` would make of it.

    has_answers: whether `step` would give something at once.
    """

    @property
    def has_answers(self) -> bool:
        return True

    @abstractmethod
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

    @abstractmethod
    def step(self) -> list[Branch]:
        """Decode a token, or more, for those who have room. Returns the branches whose step is
        over.

        Raises BranchRefused for a branch that cannot go on, for what is in it; the others stay.
        """

    @abstractmethod
    def close(self) -> None:
        """Break off whatever is under way; the branches keep what they have decoded."""

    def withdraw(self, branches: Sequence[Branch]) -> None:  # noqa: B027 - a default
        """Take branches out that will be released before the next token; only a batch that would
        decode them all the same has to."""

    def fits(self, tokens: int, states: int) -> float:
        """How many times over the memory has room for the keys and values of so many tokens and for
        so many recurrent states, inf where that is not known."""
        return inf

    @abstractmethod
    def __len__(self) -> int:
        """The branches whose step is not over."""


def _branches(place: int) -> Fits:
    """Whether a task has a branch for each item of an argument."""

    def fits(task: Any, given: Sequence[Any]) -> bool:
        if not isinstance(task, Task):
            return False
        made = task.result() if task.done else task.branches
        return is_list(made) and all(len(made) == len(items) for items in given[place : place + 1])

    return fits


def _scores(task: Any, given: Sequence[Any]) -> bool:
    """Whether a task has a row for each continuation, where it is made already."""
    if not isinstance(task, Task) or not task.done or len(given) < 2:
        return isinstance(task, Task)
    rows = task.result()
    return is_list(rows) and all(map(is_list, rows)) and [*map(len, rows)] == [*map(len, given[1])]


class Backend(Answering):
    """Where branches live. `ttc.Engine` is one, `ttc.RemoteBackend` another.

    One of your own derives from this class, and has a `tokenizer` and `generate`, or a
    `running_batch` in its place. All else it has from here: its branches are lists of tokens, and
    nothing is computed before they go on. What it does not have raises Unsupported, which names it.
    Calls that may take several passes of a model give a `ttc.Task`.

    limits: what its model can take, None where that is not known.
    models: the backends of several models, by their names; roots are of the first, and
        `branch.model` names that of each branch. Empty for one model without a name.
    most_rows: the most branches that decode at once where nothing else is asked for.
    """

    gives: ClassVar = {
        "roots": (_branches(0), "a ttc.Task of a branch for each prompt"),
        "variants": (_branches(1), "a ttc.Task of a branch for each prompt"),
        "side_branches": (_branches(1), "a ttc.Task of a branch for each prompt"),
        "new_branch": (lambda branch, _: isinstance(branch, Branch), "a ttc.Branch"),
        "fork": (
            lambda made, given: is_list(made) and all(len(made) == n for n in given[1:2]),
            "a list of so many branches",
        ),
        "extend": (lambda task, _: isinstance(task, Task), "a ttc.Task, as Task.made(None)"),
        "score": (_scores, "a ttc.Task of a row for each continuation, as Task.made(rows)"),
        "running_batch": (
            lambda batch, _: callable(getattr(batch, "step", None)),
            "a ttc.backend.Batch",
        ),
        "encode": (lambda tokens, _: is_list(tokens), "a list of tokens"),
        "decode": (lambda text, _: isinstance(text, str), "a text"),
        "of_branch": (lambda backend, _: isinstance(backend, Backend), "a backend"),
    }

    tokenizer: Any
    limits: ModelLimits | None = None
    models: Mapping[str, Backend] = MappingProxyType({})

    @property
    def lacks(self) -> Mapping[Need, str]:
        """What it does not offer, and for each why, with the way out."""
        return {}

    @property
    def keeps_to(self) -> Sequence[str]:
        """What its batches take as `Step.grammar`: what a "schema" asks for, a "grammar", or
        both."""
        return ()

    @property
    def writes_ahead(self) -> bool:
        """Whether texts may go on beyond the marks of a thought; `Step.thinking` is left out
        then."""
        return False

    @property
    def served(self) -> Mapping[str, str]:
        """What a server says of its model, and what requests ask for by themselves; empty where the
        model runs here."""
        return {}

    @property
    def most_rows(self) -> int:
        return MOST_ROWS

    @property
    def keeps_alternatives(self) -> bool:
        """Whether it can note the likeliest tokens in each place (`Step.top_logprobs`)."""
        return False

    @property
    def joins(self) -> bool:
        """Whether branches join others that decode; else all wait for the next call of
        `generate`."""
        return type(self).running_batch is not Backend.running_batch

    def close(self) -> None:
        """Break off what is under way, and the connections."""

    # ---------------------------------------------------------------- branches

    def root(self, tokens: Tokens, *, seed: int = 0) -> Branch:
        """A branch that holds a prompt."""
        return self.roots([tokens], seeds=[seed]).result()[0]

    def roots(
        self, prompts: Sequence[Tokens], *, seeds: Sequence[int] | None = None
    ) -> Task[list[Branch]]:
        """Many prompts, each the start of its own random stream."""
        seeds = range(len(prompts)) if seeds is None else seeds
        return made(
            [
                self.new_branch(prompt, random_key(seed), Usage())
                for prompt, seed in zip(prompts, seeds, strict=True)
            ]
        )

    def new_branch(
        self, prompt: Tokens, key: int, usage: Usage, root_id: int | None = None
    ) -> Branch:
        return Branch(prompt, Segment([]), key, usage, self.decode, root_id)

    def variants(
        self, root: Branch, prompts: Sequence[Tokens], suffixes: Sequence[Tokens] | None = None
    ) -> Task[list[Branch]]:
        """Children of `root`, one per prompt, that start from these prompts instead of the root's.

        suffixes: tokens that follow each prompt.
        """
        children = self.fork(root, len(prompts)) if prompts else []
        after = suffixes or [[]] * len(prompts)
        for child, prompt, suffix in zip(children, prompts, after, strict=True):
            child.tokens = [*prompt, *suffix]
            child.prompt_length = child.given_end = len(child.tokens)
        return made(children)

    def side_branches(
        self, branches: Sequence[Branch], prompts: Sequence[Tokens]
    ) -> Task[list[Branch]]:
        """New branches with these prompts on the usage meters of `branches`, for a verifier that
        asks elsewhere. What a branch has not already counts as verifier tokens. The caller releases
        them."""
        new = []
        for branch, prompt in zip(branches, prompts, strict=True):
            shared = common_prefix(branch.tokens, prompt)
            branch.usage.verifier_tokens += len(prompt) - max(1, shared)
            new.append(self.new_branch(prompt, branch.key, branch.usage, branch.root_id))
        return made(new)

    def fork(self, branch: Branch, n: int, keep: int | None = None) -> list[Branch]:
        """`n` children that continue `branch`, each with its own random stream.

        keep: how many of its first tokens they have, as their prompt; None for all of the branch as
        it is.
        """
        check_live([branch])
        check_whole("n", n, 1)
        if keep is not None and check_whole("keep", keep, 0) > len(branch.tokens):
            raise InvalidInput(
                f"keep={keep} is more than the {len(branch.tokens)} tokens of {branch!r}"
            )
        children = [branch.child() for _ in range(n)]
        for child in children:
            if keep is not None:
                child.rewind(keep)
        return children

    def extend(
        self,
        branches: Sequence[Branch],
        tokens_per_branch: Sequence[Tokens],
        *,
        purpose: Purpose = "prompt",
    ) -> Task[None]:
        """Append given tokens to each branch; those of a verifier count as such."""
        check_live(branches)
        for branch, tokens in zip(branches, tokens_per_branch, strict=True):
            branch.give(tokens)
            if purpose == "verifier":
                branch.usage.verifier_tokens += len(tokens)
        return Task.made(None, branches)

    def release(self, branches: Iterable[Branch]) -> None:
        """Let go of branches; tokens and scores stay readable."""
        for branch in branches:
            branch.detach()

    # ---------------------------------------------------------------- how they go on

    def generate(
        self,
        branches: Sequence[Branch],
        max_tokens: int | Sequence[int],
        *,
        stop: Sequence[str] = (),
        end: Sequence[str] = (),
        sampling: Sampling = SAMPLED,
    ) -> None:
        """Continue each branch by one step, in place; see `Engine.generate`."""
        self._write(branches, *step_of(max_tokens, stop, end), sampling)

    def _write(
        self, branches: Sequence[Branch], step: Step, limits: list[int] | None, sampling: Sampling
    ) -> None:
        if not self.joins:
            raise self.unsupported("generate", "or running_batch", "define one of them")
        batch = self.running_batch()
        batch.add(branches, step, sampling, limits)
        try:
            while len(batch):
                batch.step()
                check_interrupt()
        finally:
            batch.close()  # breaks off what an error has left

    def running_batch(self, max_rows: int | None = None) -> Batch:
        """A batch that branches join and leave while others decode.

        max_rows: the most that decode at once, None for no limit.
        """
        return GenerateBatch(self)

    def score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Sequence[Tokens]],
        *,
        given: Sequence[Tokens] | None = None,
        exit: Any = None,
        report: Any = None,
    ) -> Task[list[list[list[float]]]]:
        """Log-probabilities of given continuations: `[i][j][t]` for token t of continuation j of
        branch i; see `Engine.score`.

        given: what stands between branch i and its continuations. exit, report: an `EarlyExit`, and
        the `ExitReport` that says what it did.
        """
        raise self.unsupported("score", NEEDS["score"], "leave out what needs them")

    def check_no_exit(self, exit: Any) -> None:
        if exit is not None:
            raise self.unsupported("exit", "a way to leave the model between two layers")

    def unsupported(self, name: str, what: str, way_out: str = "leave it out") -> Unsupported:
        return Unsupported(
            f"{type(self).__name__} has no {name} ({what}); {way_out}, or use a ttc.Engine"
        )

    # ---------------------------------------------------------------- text

    def encode(self, text: str) -> list[int]:
        """Text to tokens, with no special tokens added."""
        return encoded(text, self.tokenizer)

    def decode(self, tokens: Tokens, *, special: bool = False) -> str:
        """Tokens to text, special tokens left out unless `special`."""
        return decoded(tokens, self.tokenizer, special=special)

    def context_left(self, branch: Branch) -> int | None:
        """How many tokens a branch can still grow by, None where there is no limit or none is
        known."""
        return None if self.limits is None else self.limits.left(len(branch.tokens))

    def of_branch(self, branch: Branch) -> Backend:
        """The backend whose tokenizer a branch's tokens are of."""
        return self.models.get(branch.model, self)


TAKES = "(self, branches, max_tokens, *, stop, end, sampling)"


@dataclass
class GenerateBatch(Batch):
    """Branches that wait for the next call of `backend.generate` (see `Batch`).

    added: branches and the limits of their tokens, by the options of the call that they will be
    part of: stop, end, sampling, statistics.
    """

    backend: Backend
    added: dict[tuple[Any, ...], list[tuple[Branch, int]]] = field(default_factory=dict)

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        """See `Batch`; steps of different lengths go together. Raises Unsupported
        where the step asks for statistics that the backend does not offer."""
        generate = self.backend.generate
        own = type(self.backend).__name__
        with refusing(TypeError, f"{own}.generate: {{error}}; take {TAKES}"):
            inspect.signature(generate).bind([], 1, stop=(), end=(), sampling=sampling)
        if step.grammar is not None:
            raise self.backend.unsupported("grammar", "answers by a schema or grammar")
        if step.statistics and "statistics" not in inspect.signature(generate).parameters:
            raise Unsupported(
                f"Step.statistics=True, and {own}.generate offers no statistics; leave it out, or "
                "use ttc.Engine"
            )
        options = step.delimiters, tuple(step.end), sampling, step.statistics
        step_tokens = [step.max_tokens] * len(branches) if limits is None else limits
        self.added.setdefault(options, []).extend(zip(branches, step_tokens, strict=True))

    def step(self) -> list[Branch]:
        """One call of `generate` for all that have the same options."""
        ended: list[Branch] = []
        while self.added:
            options = next(iter(self.added))
            stop, end, sampling, statistics = options
            entries = self.added.pop(options)
            branches = [branch for branch, _ in entries]
            limits = [limit for _, limit in entries]
            max_tokens: int | list[int] = limits[0] if len(set(limits)) == 1 else limits
            more = {"statistics": True} if statistics else {}
            # the others' step is lost with it
            with refusing(BranchRefused, "{error}", RemoteError):
                self.backend.generate(
                    branches, max_tokens, stop=stop, end=end, sampling=sampling, **more
                )
            ended += branches
        return ended

    def withdraw(self, branches: Sequence[Branch]) -> None:
        released = set(branches)
        for entries in self.added.values():
            entries[:] = [(branch, limit) for branch, limit in entries if branch not in released]

    def close(self) -> None:
        self.added.clear()

    def __len__(self) -> int:
        return sum(map(len, self.added.values()))


def made(branches: list[Branch]) -> Task[list[Branch]]:
    """The task of new branches of which nothing is computed."""
    return Task.made(branches, branches)


def check_needs(user: object, backend: Backend) -> None:
    """Raise Unsupported where a search or verifier `needs` what the backend lacks."""
    needs: Sequence[Need] = getattr(user, "needs", ())
    for need in needs:
        if need in backend.lacks:
            raise Unsupported(
                f"{type(user).__name__} needs {NEEDS[need]}, and the backend has none: "
                f"{backend.lacks[need]}"
            )
