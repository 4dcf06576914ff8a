"""A step: how far a branch goes on at once."""

from __future__ import annotations

from dataclasses import dataclass


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
