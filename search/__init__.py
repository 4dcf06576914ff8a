"""Search algorithms over branches, and the driver that runs them."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

if TYPE_CHECKING:
    from search.ab_mcts import ABMCTS
    from search.adaptive_consistency import AdaptiveConsistency
    from search.base import Case, Search, SearchSteps
    from search.beam_search import BeamSearch
    from search.best_first import BestFirst
    from search.best_of_n import BestOfN
    from search.budget_forcing import BudgetForcing
    from search.certainty_probe import CertaintyProbe
    from search.compute_optimal import ComputeOptimal
    from search.deep_conf import DeepConf
    from search.diverse_prompts import DiversePrompts
    from search.dvts import DVTS
    from search.greedy import Greedy
    from search.mcts import MCTS
    from search.particle_filter import ParticleFilter
    from search.particle_gibbs import ParticleGibbs
    from search.rating import try_verifier
    from search.rebase import REBASE
    from search.revision import Revision
    from search.self_consistency import SelfConsistency
    from search.self_refine import SelfRefine
    from search.solving import solve, stream
    from search.tree_of_thoughts import TreeOfThoughts
    from ttc.protocols import Append, Expand, Rate, Release, Step, Vary
    from ttc.results import Problem, Progress, Result

__all__ = [
    "ABMCTS",
    "DVTS",
    "MCTS",
    "REBASE",
    "AdaptiveConsistency",
    "Append",
    "BeamSearch",
    "BestFirst",
    "BestOfN",
    "BudgetForcing",
    "Case",
    "CertaintyProbe",
    "ComputeOptimal",
    "DeepConf",
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
    "Revision",
    "Search",
    "SearchSteps",
    "SelfConsistency",
    "SelfRefine",
    "Step",
    "TreeOfThoughts",
    "Vary",
    "solve",
    "stream",
    "try_verifier",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdaptiveConsistency": "search.adaptive_consistency",
        "ABMCTS": "search.ab_mcts",
        "MCTS": "search.mcts",
        "Append": "ttc.protocols",
        "BeamSearch": "search.beam_search",
        "BestFirst": "search.best_first",
        "BestOfN": "search.best_of_n",
        "BudgetForcing": "search.budget_forcing",
        "Case": "search.base",
        "CertaintyProbe": "search.certainty_probe",
        "ComputeOptimal": "search.compute_optimal",
        "DeepConf": "search.deep_conf",
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
        "Revision": "search.revision",
        "Search": "search.base",
        "SearchSteps": "search.base",
        "SelfConsistency": "search.self_consistency",
        "SelfRefine": "search.self_refine",
        "Step": "ttc.protocols",
        "TreeOfThoughts": "search.tree_of_thoughts",
        "Vary": "ttc.protocols",
        "solve": "search.solving",
        "stream": "search.solving",
        "try_verifier": "search.rating",
    },
)
