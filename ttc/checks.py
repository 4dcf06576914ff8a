"""What options may be, from the hints of their fields, and one way to refuse what they may not.

A dataclass that inherits from `Options` says all of an option once: its docstring what the option
means, the field its type, limit and default, as in `n: PositiveInt = 4`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, wraps
from numbers import Integral, Real
from operator import ge, gt, le, lt
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, GroupedMetadata, Gt, Interval, Predicate

from ttc.errors import InvalidInput, refuse

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Probability = Annotated[float, Interval(ge=0, le=1)]
Share = Annotated[float, Interval(gt=0, le=1)]
NonEmptyText = Annotated[str, Predicate(len)]
Words = Annotated[str, Predicate(str.strip)]
"""A text with more than blanks."""


@dataclass(frozen=True)
class Holds:
    """What a text must have in it."""

    part: str


QuestionText = Annotated[str, Holds("{question}")]

PLAIN = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    NoneType: "None",
}
"""Types whose values are checked, and what they are called in a message."""

NUMBERS: dict[type, type] = {int: Integral, float: Real}
"""What counts as a number of these types, NumPy's too."""


def is_number(value: Any, kind: type = Real) -> bool:
    """Whether a value is a number of a kind. True and False are none, though Python counts them."""
    return isinstance(value, kind) and not isinstance(value, bool)


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def check_kind(name: str, value: Any, fits: bool, right: str) -> None:
    """Raise InvalidInput for a class, and for a value that does not fit; `right` says what
    would."""
    if inspect.isclass(value):
        raise InvalidInput(
            f"{name}={value.__name__} is a class; give an object, as {value.__name__}()"
        )
    if not fits:
        shown = " ".join(repr(value).split())[:80]  # of a model it is many lines
        raise InvalidInput(f"{name}={shown} is of type {type(value).__name__}; give {right}")


def check_is(name: str, value: Any, kind: Any, right: str) -> None:
    """Raise InvalidInput for a value that is no instance of `kind`; `right` says what would be."""
    check_kind(name, value, isinstance(value, kind), right)


def check_flag(name: str, value: Any) -> None:
    """Raise InvalidInput for what is neither True nor False."""
    check_is(name, value, bool, PLAIN[bool])


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """The number. Raises InvalidInput for no whole number, and for one below `least`."""
    check_kind(name, value, is_number(value, Integral), PLAIN[int])
    if least is not None and value < least:
        raise InvalidInput(f"{name}={value} must be at least {least}")
    return int(value)


def check_one_each(count: int, things: str, counted: int, others: str, none: str = "") -> None:
    """Raise InvalidInput unless as many others were given as there are things. none: what stands
    for none of them."""
    if counted != count:
        raise InvalidInput(
            f"{things}: {count}, {others}: {counted}; give one each{none and ', '}{none}"
        )


def check_once(names: Iterable[Any], things: str, way_out: str) -> None:
    """Raise InvalidInput for a name that several things have."""
    refuse(
        {
            f"two {things} are called {name}; {way_out}": count > 1
            for name, count in Counter(names).items()
        }
    )


class Options:
    """Base of dataclasses whose fields are options: a misspelt keyword, and a value that a field's
    hint does not allow, raise InvalidInput."""

    setting_of: ClassVar[str] = ""
    """Stands before a field's name in messages, as `memory.`."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        check_names(cls.__name__, options, cls.__init__)
        return super().__new__(cls)

    common: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Hints by the names of fields, for those that state no limit of their own."""

    def __post_init__(self) -> None:
        check_options(self, self.setting_of)
        refuse(self.refusals())

    def refusals(self) -> Mapping[str, object]:
        """What does not go together: each message, with whether it is so."""
        return {}


Fits = Callable[[Any, Sequence[Any]], bool]


class Answering:
    """Base of classes that users derive their own from. What their methods give is checked,
    wherever these are called."""

    gives: ClassVar[Mapping[str, tuple[Fits, str]]] = MappingProxyType({})
    """By a method's name, whether an answer fits its arguments, and what would."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in cls.gives.keys() & vars(cls).keys():
            setattr(cls, name, _checked(name, vars(cls)[name], *cls.gives[name]))


def _checked(name: str, method: Callable[..., Any], fits: Fits, right: str) -> Callable[..., Any]:
    @wraps(method)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        answer = method(self, *arguments, **named)
        if not fits(answer, arguments):
            raise InvalidInput(f"{type(self).__name__}.{name} gave {answer!r:.80}; give {right}")
        return answer

    return checked


def check_names(owner: str, names: Iterable[str], call: Callable[..., Any]) -> None:
    """Raise InvalidInput for a keyword that a call does not take. owner: whose keyword it is."""
    if (keywords := _keywords(call)) is not None:
        for name in names:
            check_choice(name, keywords, f"{name} is no option of {owner}")


@cache
def _keywords(call: Callable[..., Any]) -> Collection[str] | None:
    """The keywords that a method takes, None for any."""
    _, *parameters = inspect.signature(call).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def check_choice(value: Any, choices: Collection[Any], what: str) -> None:
    """Raise InvalidInput for a name that is none of the known ones, with the nearest of these.
    what: how the message begins, as `x is unknown`."""
    if value not in choices:
        raise InvalidInput(f"{what}; {use_one_of(value, choices)}")


def use_one_of(name: Any, choices: Iterable[Any]) -> str:
    """What to give in place of an unknown name: the nearest, if one is near, and all."""
    from difflib import get_close_matches

    names = [str(one) for one in choices]
    nearest = "".join(f"is it {close}? " for close in get_close_matches(str(name), names, 1, 0.65))
    return f"{nearest}use one of {', '.join(names)}"


def check_options(options: Options, prefix: str = "") -> None:
    """Raise InvalidInput for a field of a dataclass whose value its hint does not allow.

    prefix: stands before a field's name in the message.
    """
    kind: Any = type(options)
    for name, hint in option_hints(kind).items():
        if hint in (int, float, str):
            hint = options.common.get(name, hint)
        check_option(prefix + name, getattr(options, name), hint)


@cache
def option_hints(kind: Any) -> dict[str, Any]:
    """The hints of a dataclass's fields, limits included; those that cannot be read are left out. A
    limit holds in classes that inherit the field, also where they give it another default."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # of a name that is imported for type checkers alone
        return {}
    bases: list[Any] = [base for base in kind.__mro__[1:] if is_dataclass(base)]
    for base in bases:
        plain = get_type_hints(base)
        same = {n: hint for n, hint in option_hints(base).items() if hints[n] == plain[n]}
        hints |= same
    return {f.name: hints[f.name] for f in fields(kind) if f.init}


def check_limits(settings: Any, kind: Any, prefix: str) -> None:
    """Raise InvalidInput for a value beyond its limit among settings whose types are right, as
    Hydra's are. kind: the dataclass that describes them. prefix: as for `check_options`."""
    for name, hint in option_hints(kind).items():
        if any(kind.limits for kind in _kinds(hint)):
            check_option(prefix + name, getattr(settings, name), hint)


def check_option(name: str, value: Any, hint: Any) -> None:
    """Raise InvalidInput for a value that a hint does not allow.

    Numbers, texts, flags, choices (`Literal`), lists of these, and None are checked, with the
    limits of `annotated_types`. A hint with anything else in it allows all.
    """
    kinds = _kinds(hint)
    for kind in kinds:
        if kind.holds(value):
            kind.check(name, value, any(other.type is NoneType for other in kinds))
            return
    if kinds:
        choices = [choice for kind in kinds for choice in kind.choices]
        if choices and isinstance(value, str):
            check_choice(value, choices, f"{name}={value!r} is unknown")
        check_kind(name, value, False, " or ".join(kind.words for kind in kinds))


@dataclass(frozen=True)
class ValueKind:
    """One of the kinds of values that a hint allows.

    choices: the texts that are allowed, () for any. item: the hint of a list's items. limits: what
    `annotated_types` says of values of this kind.
    """

    type: Any
    limits: tuple[Any, ...] = ()
    choices: tuple[str, ...] = ()
    item: Any = None

    @property
    def words(self) -> str:
        if self.choices:
            return " or ".join(self.choices)
        if self.item is None:
            return PLAIN[self.type]
        return f"a list of {' or '.join(SEVERAL[kind.type] for kind in _kinds(self.item))}"

    def holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.item is not None:
            return isinstance(value, Sequence) and not isinstance(value, str | bytes)
        if self.type in NUMBERS:
            return is_number(value, NUMBERS[self.type])
        return isinstance(value, self.type)

    def check(self, name: str, value: Any, optional: bool) -> None:
        """Raise InvalidInput for a value of this kind that lies outside its limits. optional: None
        is allowed too."""
        if self.item is not None:
            for item in value:
                check_option(f"an item of {name}", item, self.item)
        for limit in self.limits:
            if isinstance(limit, Predicate) and not limit.func(value):
                raise InvalidInput(f"{name} is empty; give {self.words}")
            if isinstance(limit, Holds) and limit.part not in value:
                raise InvalidInput(
                    f"{name}={value!r} must hold {limit.part}, where the question goes"
                )
        if not all(FITS[end](value, limit) for end, limit in self.ends.items()):
            allowed = f"{limits_in_words(self.ends)}{', or null' * optional}"
            raise InvalidInput(f"{name}={value} must be {allowed}")

    @property
    def ends(self) -> dict[str, Any]:
        """The limits of a number."""
        each = ((end, getattr(limit, end, None)) for limit in self.limits for end in FITS)
        return {end: value for end, value in each if value is not None}


FITS: dict[str, Callable[[Any, Any], bool]] = {"ge": ge, "gt": gt, "le": le, "lt": lt}


def limits_in_words(ends: Mapping[str, Any]) -> str:
    """What a number may be, as `from 0 to 1`."""
    if ends.keys() == {"ge", "le"}:
        return f"from {ends['ge']:g} to {ends['le']:g}"
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return " and ".join(f"{words[end]} {limit:g}" for end, limit in ends.items())


def allowed(hint: Any) -> str:
    """What a hint's values may be beside their type: choices or limits; "" for anything."""
    kinds = _kinds(hint)
    parts = (", ".join(kind.choices) or limits_in_words(kind.ends) for kind in kinds)
    return " or ".join(filter(None, parts))


@cache
def _kinds(hint: Any) -> tuple[ValueKind, ...]:
    """The kinds of values that a hint allows, () where it allows what is not checked."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return (ValueKind(hint),)
    if origin is Literal and all(isinstance(choice, str) for choice in args):
        return (ValueKind(str, choices=args),)
    if origin is Annotated:
        limits = tuple(one for limit in args[1:] for one in _single(limit))
        return tuple(replace(kind, limits=limits) for kind in _kinds(args[0]))
    if origin in (Union, UnionType):
        parts = [_kinds(part) for part in args]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    listed = origin in (list, Sequence) or (origin is tuple and args[1:] == (Ellipsis,))
    items = _kinds(args[0]) if listed else ()
    plain = items and all(kind.item is None for kind in items)
    return (ValueKind(list, item=args[0]),) if plain else ()


def _single(limit: Any) -> Iterable[Any]:
    return limit if isinstance(limit, GroupedMetadata) else (limit,)


SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", bool: "flags", NoneType: "None"}
