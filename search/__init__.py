"""Search algorithms over branches, and the driver that runs them."""

from typing import TYPE_CHECKING

from ttc.lazy import lazy_names

# ruff: noqa: I001 - one import of a module, however many names are exported again
if TYPE_CHECKING:
    from search.ab_mcts import ABMCTS as ABMCTS
    from search.ab_mcts_m import ABMCTSM as ABMCTSM
    from search.adaptive_consistency import AdaptiveConsistency as AdaptiveConsistency
    from search.aggregate import Aggregate as Aggregate
    from search.asking import ask_tell as ask_tell
    from search.asynchronous import asolve as asolve, astream as astream
    from search.base import Case as Case, Search as Search, SearchSteps as SearchSteps
    from search.beam_search import BeamSearch as BeamSearch
    from search.best_first import BestFirst as BestFirst
    from search.best_of_n import BestOfN as BestOfN
    from search.budget_forcing import BudgetForcing as BudgetForcing
    from search.certainty_probe import CertaintyProbe as CertaintyProbe
    from search.compute_optimal import ComputeOptimal as ComputeOptimal
    from search.deep_conf import DeepConf as DeepConf
    from search.diverse_prompts import DiversePrompts as DiversePrompts
    from search.dvts import DVTS as DVTS
    from search.greedy import Greedy as Greedy
    from search.mcts import MCTS as MCTS
    from search.mur import MUR as MUR
    from search.particle_filter import ParticleFilter as ParticleFilter
    from search.particle_gibbs import ParticleGibbs as ParticleGibbs
    from search.phi_decoding import PhiDecoding as PhiDecoding
    from search.rating import try_verifier as try_verifier
    from search.rebase import REBASE as REBASE
    from search.revision import Revision as Revision
    from search.self_consistency import SelfConsistency as SelfConsistency
    from search.self_refine import SelfRefine as SelfRefine
    from search.solving import solve as solve, solve_each as solve_each, stream as stream
    from search.tree_of_thoughts import TreeOfThoughts as TreeOfThoughts
    from ttc.protocols import (
        Append as Append,
        Expand as Expand,
        Handoff as Handoff,
        Rate as Rate,
        Release as Release,
        Vary as Vary,
    )
    from ttc.results import Problem as Problem, Progress as Progress, Result as Result
    from ttc.step import Step as Step

__getattr__, __dir__, __all__ = lazy_names(__name__)
