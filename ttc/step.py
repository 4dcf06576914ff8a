"""A step: how far a branch goes on at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ttc.checks import check_is, check_whole
from ttc.errors import InvalidInput
from ttc.text.encodable import check_encodable

if TYPE_CHECKING:
    import numpy as np

    from ttc.branch import Branch


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


class Grammar(Protocol):
    """What an answer has to be, for the tokens of one model (`ttc.schema` makes them).

    request_fields: the same as the fields of a request to a server.
    """

    @property
    def request_fields(self) -> Mapping[str, Any]: ...

    def fill(self, branch: Branch, allowed: np.ndarray) -> None:
        """Set the bits of the tokens that the branch may go on with, of uint32 (words,). The end of
        the sequence is one of them only where the answer is complete."""
        ...

    def reads(self, text: str) -> bool:
        """Whether a text of a server may be such an answer."""
        ...


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
    is_answer: whether what is written is a part of an answer, and no question of the search's own
        about it, as a critique. grammar: what answers have to be; a driver sets it for these.
    top_logprobs: keep so many of the likeliest tokens in each place (`Branch.alternatives`), where
        the backend `keeps_alternatives`. A driver sets it (see `search.solve`).
    Each child says in `step_reasons[-1]` why its step ended.
    """

    max_tokens: int
    delimiter: str | tuple[str, ...] | None = None
    end: tuple[str, ...] = ()
    statistics: bool = False
    thinking: Thinking | None = None
    stop_loops: bool = False
    is_answer: bool = True
    grammar: Grammar | None = None
    top_logprobs: int = 0

    @property
    def delimiters(self) -> tuple[str, ...]:
        if self.delimiter is None or isinstance(self.delimiter, str):
            return (self.delimiter,) if self.delimiter else ()
        return tuple(self.delimiter)


def step_of(
    max_tokens: int | Sequence[int],
    stop: Sequence[str],
    end: Sequence[str],
    statistics: bool = False,
) -> tuple[Step, list[int] | None]:
    """The options of `Backend.generate` as what `Batch.add` takes: the step, and the limit of each
    branch where `max_tokens` is one each."""
    check_strings("stop", stop)
    check_strings("end", end)
    if isinstance(max_tokens, Iterable):
        limits = [check_whole("max_tokens", limit, 1) for limit in max_tokens]
        longest = max(limits, default=1)
    else:
        limits = None
        longest = check_whole("max_tokens", max_tokens, 1)
    return Step(longest, tuple(stop), tuple(end), statistics), limits


def check_strings(name: str, strings: Sequence[str]) -> None:
    """Refuse what is no list of strings, and an empty string in it."""
    if isinstance(strings, str):
        raise InvalidInput(
            f"{name}={strings!r} is one string, which would be read as letters; give a list"
        )
    check_is(name, strings, Iterable, "a list of strings")
    for string in strings:
        check_is(f"a string of {name}", string, str, "text")
        if not string:
            raise InvalidInput(f"a {name} string is empty; leave it out to run to max_tokens")
        check_encodable(string, f"a string of {name}")
