"""Searches of a draw, and their settings."""

from __future__ import annotations

from typing import Any

from experiments.standins.mixed_search import Mixed, MixedWords
from search import (
    ABMCTS,
    ABMCTSM,
    DVTS,
    MCTS,
    MUR,
    REBASE,
    AdaptiveConsistency,
    Aggregate,
    BeamSearch,
    BestFirst,
    BestOfN,
    BudgetForcing,
    CertaintyProbe,
    DeepConf,
    DiversePrompts,
    Greedy,
    ParticleFilter,
    ParticleGibbs,
    PhiDecoding,
    Revision,
    Search,
    SelfConsistency,
    SelfRefine,
    TreeOfThoughts,
)

STEPS: dict[str, Any] = {"step_tokens": 6, "max_steps": 3, "delimiter": "a"}
"""Steps end at a letter, so that searches are soon out of step with each other."""
WORDS = "aha"
SEARCHES: dict[str, Search] = {
    "greedy": Greedy(max_tokens=10),
    "best_of_n": BestOfN(n=4, max_tokens=12),
    "self_consistency": SelfConsistency(n=3, max_tokens=10),
    "adaptive_consistency": AdaptiveConsistency(n=5, block=2, max_tokens=9),
    "beam_search": BeamSearch(beam_size=2, beam_width=2, **STEPS),
    "dvts": DVTS(subtrees=2, beam_width=2, **STEPS),
    "best_first": BestFirst(
        beam_size=1, beam_width=3, step_tokens=6, max_steps=4, finish=3, delimiter="a"
    ),
    "mcts": MCTS(
        iterations=3, beam_width=2, step_tokens=6, max_depth=3, rollout=False, delimiter="a"
    ),
    "ab_mcts": ABMCTS(iterations=4, max_tokens=6, feedback=WORDS),
    "tree_of_thoughts": TreeOfThoughts(beam_width=2, step_tokens=6, max_depth=3, max_states=5),
    "rebase": REBASE(n=4, **STEPS),
    "particle_filter": ParticleFilter(n=4, **STEPS),
    "particle_gibbs": ParticleGibbs(n=3, sweeps=2, **STEPS),
    "phi_decoding": PhiDecoding(
        beam_size=2, beam_width=2, clusters=2, least_steps=1, finish_tokens=7, **STEPS
    ),
    "mur": MUR(beam_width=2, finish_tokens=7, **STEPS),
    "revision": Revision(n=2, attempts=3, memory=1, max_tokens=6, feedback=WORDS),
    "self_refine": SelfRefine(
        attempts=3, max_tokens=6, feedback_tokens=5, feedback=WORDS, rewrite=WORDS, done="ab"
    ),
    "budget_forcing": BudgetForcing(
        waits=2, thinking_tokens=12, answer_tokens=5, wait=WORDS, final=WORDS
    ),
    "certainty_probe": CertaintyProbe(max_tokens=14, every=5, probe_tokens=3, suffix=WORDS),
    "deep_conf": DeepConf(
        mode="online", n=6, max_tokens=12, window=4, warmup=2, block=2, least_votes=2, step_tokens=4
    ),
    "diverse_prompts": DiversePrompts(
        n=4, max_tokens=9, phrasings=("a {question} a", "b {question} bc"), hints=("a", "bc", "d")
    ),
    "mixed": Mixed(),
    "mixed_words": MixedWords(),
    "aggregate_write": Aggregate(n=4, k=2, rounds=2, max_tokens=7, words=WORDS),
    "aggregate_select": Aggregate(mode="select", n=4, k=2, m=2, max_tokens=7, words=WORDS),
    "ab_mcts_m": ABMCTSM(iterations=4, max_tokens=6, feedback=WORDS),
}
HANDED_ON = ("ab_mcts", "ab_mcts_m", "mixed")
"""Searches that have another model go on, where there are two."""
BUDGETS: dict[str, dict[str, Any]] = {
    "tokens": {"max_tokens": 25},
    "tokens_reserve": {"max_tokens": 40, "reserve": 9, "final_text": WORDS},
    "generated": {"max_generated_tokens": 25},
    "generated_reserve": {"max_generated_tokens": 25, "reserve": 6},
    "calls": {"max_calls": 2},
    "tool_calls": {"max_tool_calls": 1},
    "calls_reserve": {"max_calls": 3, "reserve": 6, "final_text": WORDS},
}
SAMPLINGS: dict[str | None, dict[str, Any]] = {
    None: {},
    "greedy": {"temperature": 0.0},
    "filters": {"top_k": 24, "top_p": 0.9, "min_p": 0.02},
    "penalty": {"repetition_penalty": 1.3},
}
VARIANTS: dict[str | None, dict[str, Any]] = {
    None: {},
    "looks_ahead": {"lookahead": 2, "rollout": True, "rollout_tokens": 7, "aggregation": "mean"},
    "rarely_rates": {"verify_every": 2, "resampling": "systematic", "ess_threshold": 0.6},
    "thinks_in_steps": {"thinking_step": 3, "thoughts": True},
    "long": {"max_tokens": 40, "step_tokens": 20, "finish_tokens": 30},
    "watches_loops": {"stop_loops": True, "statistics": True, "weighted": True},
}
"""Settings of searches, each of those that have it."""
CALLS = {"max_tokens": 90, "step_tokens": 30, "finish_tokens": 90}
"""There is room for a call in JSON."""
