"""Settings that fit no search are refused as it is made, by name and with the limit."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from search import (
    DVTS,
    AdaptiveConsistency,
    Aggregate,
    BeamSearch,
    BestOfN,
    BudgetForcing,
    CertaintyProbe,
    ComputeOptimal,
    DeepConf,
    DiversePrompts,
    Greedy,
    Revision,
    Search,
    SelfRefine,
)
from search.base import StepwiseSearch
from ttc import InvalidInput
from ttc.lazy import public_classes
from ttc.parts import load

TWO, THREE = (BestOfN(),) * 2, (BestOfN(),) * 3
WRONG: list[tuple[type[Search], dict[str, Any], str]] = [
    (BestOfN, {"n": True}, "n=True is of type bool"),
    (BestOfN, {"n": -1}, "n=-1 must be at least 1"),
    (BestOfN, {"top_p": 0}, "top_p=0 must be more than 0"),
    (BestOfN, {"temperature": float("nan")}, "temperature=nan must be at least 0"),
    (Greedy, {"temperature": 0.7}, "temperature=0.7 samples.*best_of_n"),
    (Greedy, {"thinking": "yes"}, "thinking='yes'"),
    (Greedy, {"stop_loops": "auto"}, "stop_loops"),
    (BeamSearch, {"aggregation": "first"}, "aggregation='first' is unknown; use one of min,"),
    (BeamSearch, {"thinking_step": 2.5}, "thinking_step"),
    (DVTS, {"thinking_step": ""}, "thinking_step"),
    (AdaptiveConsistency, {"confidence": 0.5}, "confidence=0.5 must be more than 0.5"),
    (AdaptiveConsistency, {"rule": "window"}, "block=1 makes a window of one sample"),
    (BudgetForcing, {"wait": ""}, "wait is empty; give text"),
    (BudgetForcing, {"end_of_thinking": 7}, "end_of_thinking=7 is of type int; give text or None"),
    (CertaintyProbe, {"suffix": ""}, "suffix is empty"),
    (Revision, {"feedback": "  "}, "feedback.*; give text"),
    (SelfRefine, {"done": ""}, "done is empty; give text"),
    (Aggregate, {"n": 2, "k": 3}, "k=3 is more than the n=2"),
    (Aggregate, {"n": 2, "k": 2, "m": 3}, "m=3 is more than the n=2"),
    (Aggregate, {"mode": "select", "k": 1}, "k=1 leaves nothing to select"),
    (Aggregate, {"mode": "choose"}, "mode='choose'"),
    (Aggregate, {"shown": 0}, "shown=0"),
    (Aggregate, {"shown": "half"}, "shown='half'"),
    (Aggregate, {"rounds": 0}, "rounds=0"),
    (Aggregate, {"words": " "}, "words is empty"),
    (DiversePrompts, {"phrasings": "{question}"}, "phrasings=.*; give a list of text"),
    (DiversePrompts, {"phrasings": (5,)}, "an item of phrasings=5 .*; give text"),
    (DiversePrompts, {"phrasings": ("Solve it.",)}, r"must hold \{question\}"),
    (DiversePrompts, {"hints": None}, "hints=None .*; give a list of text"),
    (DeepConf, {"mode": "online"}, "window=2048 is longer than max_tokens=256.* as window=32"),
    (DeepConf, {"mode": "online", "measure": "tail", "window": 8}, "is for mode=offline"),
    (ComputeOptimal, {}, "strategies must hold a search for each bin"),
    (ComputeOptimal, {"strategies": ("best_of_n",)}, "strategies must hold a search"),
    (ComputeOptimal, {"strategies": TWO, "edges": ()}, r"edges=\[\] must be 1 ascending scores"),
    (ComputeOptimal, {"strategies": THREE, "edges": (0.5, 0.1)}, "must be 2 ascending"),
]


@pytest.mark.parametrize(("search", "settings", "message"), WRONG)
def test_what_does_not_fit_is_refused(
    search: type[Search], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        search(**settings)


OF_ALL = {field.name for field in fields(StepwiseSearch)}


@pytest.mark.parametrize("place", public_classes("search").values())
def test_a_setting_without_its_name_is_none_that_all_searches_have(place: str) -> None:
    kind = load(place)
    parameters = inspect.signature(kind).parameters.values()
    by_place = {p.name for p in parameters if p.kind is not p.KEYWORD_ONLY}
    assert by_place and (OF_ALL.isdisjoint(by_place) or kind is BudgetForcing)


def test_a_setting_without_its_name_is_the_searchs_first() -> None:
    assert (BestOfN(4).n, BeamSearch(2, 3).beam_width, Greedy(8).max_tokens) == (4, 3, 8)
