"""Options are checked by the hints of their fields, with one kind of message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pickle import dumps, loads
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Ge, Interval

from search import BestOfN, Case, Search, SearchSteps
from ttc import InvalidInput
from ttc.branch import Branch
from ttc.checks import (
    NonEmptyText,
    Options,
    PositiveFloat,
    PositiveInt,
    Probability,
    Share,
    Words,
    check_option,
)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (0, PositiveInt, "x=0 must be at least 1"),
        (2.5, PositiveInt, "x=2.5 is of type float; give a whole number"),
        (True, int, "x=True is of type bool; give a whole number"),
        ("9", float, "x='9' is of type str; give a number"),
        (None, float, "x=None is of type NoneType; give a number"),
        (1, bool, "x=1 is of type int; give True or False"),
        (0, PositiveFloat | None, "x=0 must be more than 0, or null"),
        (math.nan, Probability, "x=nan must be from 0 to 1"),
        (0, Share, "x=0 must be more than 0 and at most 1"),
        (1, Annotated[float, Interval(ge=0, lt=1)], "x=1 must be at least 0 and less than 1"),
        ("", NonEmptyText, "x is empty; give text"),
        ("\n", Words, "x is empty; give text"),
        ("men", Literal["mean", "min"], "x='men' is unknown; is it mean? use one of mean, min"),
        ("q", Literal["mean", "min"], "x='q' is unknown; use one of mean, min"),
        (3, Literal["mean", "min"], "x=3 is of type int; give mean or min"),
        ("one", tuple[str, ...], "x='one' is of type str; give a list of texts"),
        ([1], Sequence[str], "an item of x=1 is of type int; give text"),
        ([1, 0], tuple[PositiveInt, ...], "an item of x=0 must be at least 1"),
        ("aut", int | Literal["auto"], "x='aut' is unknown; is it auto? use one of auto"),
        (0.5, int | str | None, "x=0.5 is of type float; give a whole number or text or None"),
        (int, int, "x=int is a class; give an object, as int()"),
    ],
)
def test_a_value_that_a_hint_does_not_allow_is_refused(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_option("x", value, hint)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, PositiveInt),
        (np.int64(3), PositiveInt),
        (np.float32(0.5), Probability),
        (1, Share),
        (None, PositiveInt | None),
        (math.inf, PositiveFloat),
        ("\n", NonEmptyText),
        ([], tuple[str, ...]),
        (["a"], Sequence[NonEmptyText]),
        ("auto", int | Literal["auto"]),
        ("anything", Search | None),  # objects are not checked
        (object(), Any),
        ((("q", "a"),), tuple[tuple[str, str], ...]),
    ],
)
def test_what_a_hint_allows_is_taken(value: Any, hint: Any) -> None:
    check_option("x", value, hint)


@dataclass(frozen=True)
class Own(Search):
    """A search as a user writes it, with plain hints and one with a limit."""

    n: int = 4
    enough: Annotated[float, Interval(ge=0, le=10)] = 1.0
    rule: Literal["first", "best"] = "best"
    aggregation: str = "last"

    def run(self, root: Branch, case: Case) -> SearchSteps:
        yield from ()
        return []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": 0}, "n=0 must be at least 1"),
        ({"n": "4"}, "n='4' is of type str; give a whole number"),
        ({"enough": 11}, "enough=11 must be from 0 to 10"),
        ({"rule": "bst"}, "rule='bst' is unknown; is it best? use one of first, best"),
        ({"aggregation": "men"}, "is it mean? use one of min, product, last, mean"),
        ({"temperature": -1}, "temperature=-1 must be at least 0"),
        ({"enugh": 1}, "enugh is no option of Own; is it enough? use one of n, enough, rule"),
    ],
)
def test_a_users_own_search_gets_the_same_checks(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Own(**given)
    assert message in str(refused.value)


@dataclass(frozen=True)
class Heir(Own):
    enough: float = 2.0
    temperature: float = 1.0
    thinking_tokens: int | None = None


@pytest.mark.parametrize("given", [{"enough": 11}, {"temperature": -1}, {"thinking_tokens": -1}])
def test_a_limit_holds_where_a_class_gives_the_field_another_default(given: Any) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        Heir(**given)
    assert Heir().thinking_tokens is None


def test_a_changed_copy_is_checked_too() -> None:
    with pytest.raises(InvalidInput, match="beam is no option of BestOfN"):
        replace(BestOfN(), beam=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="n=0 must be at least 1"):
        replace(BestOfN(), n=0)
    assert copy(BestOfN(n=3)) == loads(dumps(BestOfN(n=3))) == BestOfN(n=3)


def test_options_with_parameters_of_another_kind_are_made_as_they_say() -> None:
    class Any_(Options):
        def __init__(self, **given: Any) -> None:
            self.given = given

    class Positional(Options):
        def __init__(self, least: Annotated[int, Ge(1)], /, most: int = 3) -> None:
            self.ends = least, most

    assert Any_(one=1).given == {"one": 1}
    assert Positional(1, most=2).ends == (1, 2)
    with pytest.raises(InvalidInput, match="is it most"):
        Positional(1, mst=2)  # type: ignore[call-arg]
