"""Search algorithms over branches, and the driver that runs them."""

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
