"""Search algorithms over branches, and the driver that runs them."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

if TYPE_CHECKING:
    from search.adaptive_consistency import AdaptiveConsistency
    from search.base import Case, Search, SearchSteps
    from search.beam_search import BeamSearch
    from search.best_first import BestFirst
    from search.best_of_n import BestOfN
    from search.diverse_prompts import DiversePrompts
    from search.dvts import DVTS
    from search.greedy import Greedy
    from search.particle_filter import ParticleFilter
    from search.particle_gibbs import ParticleGibbs
    from search.rating import try_verifier
    from search.rebase import REBASE
    from search.self_consistency import SelfConsistency
    from search.solving import solve, stream
    from ttc.protocols import Append, Expand, Rate, Release, Step, Vary
    from ttc.results import Problem, Progress, Result

__all__ = [
    "DVTS",
    "REBASE",
    "AdaptiveConsistency",
    "Append",
    "BeamSearch",
    "BestFirst",
    "BestOfN",
    "Case",
    "DiversePrompts",
    "Expand",
    "Greedy",
    "ParticleFilter",
    "ParticleGibbs",
    "Problem",
    "Progress",
    "Rate",
    "Release",
    "Result",
    "Search",
    "SearchSteps",
    "SelfConsistency",
    "Step",
    "Vary",
    "solve",
    "stream",
    "try_verifier",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdaptiveConsistency": "search.adaptive_consistency",
        "Append": "ttc.protocols",
        "BeamSearch": "search.beam_search",
        "BestFirst": "search.best_first",
        "BestOfN": "search.best_of_n",
        "Case": "search.base",
        "DVTS": "search.dvts",
        "DiversePrompts": "search.diverse_prompts",
        "Expand": "ttc.protocols",
        "Greedy": "search.greedy",
        "ParticleFilter": "search.particle_filter",
        "ParticleGibbs": "search.particle_gibbs",
        "Problem": "ttc.results",
        "Progress": "ttc.results",
        "REBASE": "search.rebase",
        "Rate": "ttc.protocols",
        "Release": "ttc.protocols",
        "Result": "ttc.results",
        "Search": "search.base",
        "SearchSteps": "search.base",
        "SelfConsistency": "search.self_consistency",
        "Step": "ttc.protocols",
        "Vary": "ttc.protocols",
        "solve": "search.solving",
        "stream": "search.solving",
        "try_verifier": "search.rating",
    },
)
