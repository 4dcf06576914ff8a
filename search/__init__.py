"""Search algorithms over branches, and the driver that runs them."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

if TYPE_CHECKING:
    from search.base import Search
    from search.beam_search import BeamSearch
    from search.best_first import BestFirst
    from search.best_of_n import BestOfN
    from search.diverse_prompts import DiversePrompts
    from search.driver import solve
    from search.greedy import Greedy
    from search.self_consistency import SelfConsistency
    from ttc.protocols import Problem, Result

__all__ = [
    "BeamSearch",
    "BestFirst",
    "BestOfN",
    "DiversePrompts",
    "Greedy",
    "Problem",
    "Result",
    "Search",
    "SelfConsistency",
    "solve",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BeamSearch": "search.beam_search",
        "BestFirst": "search.best_first",
        "BestOfN": "search.best_of_n",
        "DiversePrompts": "search.diverse_prompts",
        "Greedy": "search.greedy",
        "Problem": "ttc.protocols",
        "Result": "ttc.protocols",
        "Search": "search.base",
        "SelfConsistency": "search.self_consistency",
        "solve": "search.driver",
    },
)
