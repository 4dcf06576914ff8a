"""Every policy gives what the engine gives with all KV on the device, within its budget, and leaves
nothing behind."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from ttc.segments.dry_run import DryRunner
from ttc.segments.engine import TreeEngine

from experiments.standins.small_models import tokens
from tests.helpers.models import build
from tests.helpers.tokenizers import Letters
from ttc import BlockCache, Engine
from ttc.residency.base import Policy
from ttc.residency.beam_groups import BeamGroups
from ttc.residency.capture import Capture
from ttc.residency.headwise import Headwise
from ttc.residency.layerwise import Layerwise
from ttc.residency.paged import Paged

POLICIES: dict[str, tuple[type[Policy], dict[str, Any], float]] = {
    "resident": (Policy, {}, 1.0),
    "layerwise": (Layerwise, {"page": 8}, 0.75),
    "layerwise, one buffer": (Layerwise, {"page": 8, "prefetch": False}, 0.6),
    "layerwise, private": (Layerwise, {"page": 8, "shared": False}, 1.2),
    "beam_groups": (BeamGroups, {"page": 8}, 0.6),
    "beam_groups, prefetch": (BeamGroups, {"page": 8, "prefetch": True}, 0.6),
    "beam_groups, private": (BeamGroups, {"page": 8, "shared": False, "prefetch": True}, 0.8),
    "paged": (Paged, {"page": 8}, 0.4),
    "paged, no prefetch": (Paged, {"page": 8, "prefetch": False}, 0.4),
    "paged, a slow link": (Paged, {"page": 8, "link_gbps": 0.05}, 0.4),
    "headwise": (Headwise, {"page": 8}, 0.5),
    "headwise, one head": (Headwise, {"page": 8, "head_group": 1}, 0.5),
    "capture": (Capture, {"page": 8, "act_share": 0.5}, 0.5),
}
FAMILIES = ("llama", "gemma3", "gpt2", "deepseek_v3")
Told = tuple[list[list[int]], list[list[float]], list[list[float]]]


def grown(engine: Any) -> Told:
    """Prompts that begin alike, forks, steps of several lengths, and scores."""
    prompts = [tokens(1, 30), tokens(1, 30)[:19] + tokens(2, 9), tokens(3, 4)]
    roots = engine.roots(prompts, seeds=[1, 2, 3])
    branches = [child for root in roots for child in engine.fork(root, 3)]
    engine.generate(branches, 7)
    engine.generate(branches[::2], 40)
    forked = [child for branch in branches[::3] for child in engine.fork(branch, 2)]
    engine.generate(forked, 20)
    everyone = branches + forked
    if isinstance(engine, TreeEngine):
        scores = engine.score(everyone, [[5, 6, 7]] * len(everyone))
    else:
        scores = [rows[0] for rows in engine.score(everyone, [[[5, 6, 7]]] * len(everyone))]
    told = [b.tokens for b in everyone], [b.logprobs for b in everyone], scores
    engine.release([*roots, *everyone])
    return told


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "capture"])
def test_a_dry_run_says_what_crosses_the_link(policy: str, dtype: torch.dtype) -> None:
    plain = build("llama").to(dtype)
    kind, options, share = POLICIES[policy]
    resident = TreeEngine(copy.deepcopy(plain), Letters())
    grown(resident)
    budget_gib = (share + 0.3) * resident.memory.device.peak_bytes / 2**30
    engine = TreeEngine(copy.deepcopy(plain), Letters(), kind(budget_gib, **options))
    grown(engine)
    vocabulary = plain.config.vocab_size
    runner = DryRunner(engine.runner.shapes, dtype, vocabulary)
    dry = TreeEngine(plain, Letters(), kind(budget_gib, **options), runner=cast("Any", runner))
    grown(dry)
    assert (sum(engine.memory.link.to_device_bytes.values()) > 0) == (policy != "resident")
    assert dry.memory.link.to_device_bytes == engine.memory.link.to_device_bytes
    assert dry.memory.link.to_host_bytes == engine.memory.link.to_host_bytes
    assert dry.memory.device.peak_bytes == engine.memory.device.peak_bytes
    assert dry.memory.host.peak_bytes == engine.memory.host.peak_bytes


@pytest.mark.parametrize("policy", ["resident", "paged"])
@pytest.mark.parametrize("order", ["rsbcm", "lru"])
def test_what_a_cache_evicts_is_computed_again(order: str, policy: str) -> None:
    plain = build("llama").to(torch.float64)
    expected = grown(Engine(copy.deepcopy(plain), Letters()))
    kind, options, _ = POLICIES[policy]
    cache = BlockCache(6, block_tokens=4, order=order)
    engine = TreeEngine(copy.deepcopy(plain), Letters(), kind(**options), cache=cache)
    texts, logprobs, _ = grown(engine)
    assert texts == expected[0]
    assert logprobs == [pytest.approx(row, abs=1e-9) for row in expected[1]]
    assert engine.cache is not None and engine.cache.evicted_tokens > 0
    assert not engine.memory.live


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_gives_what_the_engine_gives(family: str, policy: str, dtype: torch.dtype) -> None:
    plain = build(family).to(dtype)
    plain.set_experts_implementation("eager")  # the others take no float64
    resident = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=12)
    expected = grown(resident)
    kind, options, share = POLICIES[policy]
    budget_gib = share * resident.memory.device.peak_bytes / 2**30
    engine = TreeEngine(
        copy.deepcopy(plain), Letters(), kind(budget_gib, **options), prefill_tokens=12
    )
    texts, logprobs, scores = grown(engine)
    assert texts == expected[0]
    bound = 1e-9 if dtype == torch.float64 else 1e-4
    assert logprobs == [pytest.approx(row, abs=bound) for row in expected[1]]
    assert scores == [pytest.approx(row, abs=bound) for row in expected[2]]
    link, device = engine.memory.link, engine.memory.device
    assert (sum(link.to_device_bytes.values()) > 0) == (policy != "resident")
    assert device.budget_bytes is not None and device.peak_bytes <= device.budget_bytes
    assert not engine.memory.live and not device.used_bytes + engine.memory.host.used_bytes
    assert not engine.tree.segments()
