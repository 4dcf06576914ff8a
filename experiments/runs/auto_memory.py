"""`memory=auto` in a run: the search that is planned for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from search import Search
from search.base import Case
from ttc.branch import Branch
from ttc.placement.auto import Auto
from ttc.protocols import Expand, Rate, Vary
from ttc.usage import Usage


def is_auto(config: DictConfig) -> bool:
    return bool(config.memory._target_ == "ttc.Auto")


def auto_of(config: DictConfig) -> Auto:
    """`memory=auto` as configured, planning for what the search asks for where the configuration
    leaves that open."""
    auto = instantiate(config.memory)
    needs: dict[str, Any] = search_needs(instantiate(config.search, _convert_="all"))
    return replace(auto, **{name: n for name, n in needs.items() if getattr(auto, name) is None})


def search_needs(search: Search) -> dict[str, int]:
    """branches, step_tokens and output_tokens: of the first step that a search asks for, and of as
    many as it makes. Nothing for a search that looks at what a model has written before it asks."""
    root = Branch([0], None, 0, Usage(), lambda tokens: "")
    steps = search.run(root, Case())
    answer: Any = None
    with suppress(Exception):
        while not isinstance(request := steps.send(answer), Expand):
            answer = [root.child() for _ in range(request.n)] if isinstance(request, Vary) else None
            if isinstance(request, Rate):
                answer = [0.0 for _ in request.branches]
        tokens = request.step.max_tokens
        steps.close()
        last = getattr(search, "finish_tokens", 0) or tokens
        output = tokens * (getattr(search, "max_steps", 1) - 1) + last
        return {"branches": len(request.parents()), "step_tokens": tokens, "output_tokens": output}
    return {}
