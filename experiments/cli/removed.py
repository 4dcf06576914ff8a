"""Choices and settings that earlier versions had, and what to use in their place."""

from __future__ import annotations

REMOVED: dict[str, tuple[str, str]] = {
    "memory=rkv": (
        "ttc.RKV",
        "use memory=quantized_kv, which keeps KV in half the bytes, or memory=paged, which moves "
        "it to the host",
    ),
    "search=fork_think": ("search.ForkThink", "use search=self_consistency, whose samples vote"),
    "search=early_answer": (
        "search.EarlyAnswer",
        "use search=certainty_probe, which ends a chain once its answers stay the same",
    ),
    "search=parallel_probe": (
        "search.ParallelProbe",
        "use search=deep_conf, which stops unsure samples, or search=certainty_probe for one chain",
    ),
    "search=tree_rollouts": (
        "search.TreeRollouts",
        "use search=self_consistency, and python -m experiments.export to train on its samples",
    ),
}
"""By the choice: the path of its class, and what to do instead."""

REMOVED_SETTINGS = {
    "search.sigma_rate": "phi_decoding leaves out steps below one standard deviation, as its paper",
    "search.draw_temperature": "phi_decoding draws at 0.1, as its paper",
    "search.stop_share": "phi_decoding stops where 70% of the foresights agree, as its paper",
    "verifier.credit": "an equation that holds takes a score 0.3 of the way to 1",
}
"""By the setting: what is done now."""


def removal(group: str, name: str) -> str | None:
    """What to tell of a choice, by its name or the path of its class; None if it was not
    removed."""
    for choice, (path, instead) in REMOVED.items():
        of, _, old = choice.partition("=")
        if of == group and name in (old, path):
            return f"{group}={name} was removed; {instead}"
    return None


def removed_setting(key: str) -> str | None:
    """What to tell of a setting; None if it was not removed."""
    now = REMOVED_SETTINGS.get(key)
    return now and f"{key} was removed: {now}; leave it out"
