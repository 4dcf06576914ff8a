"""The reward model's tree follows the search's: one account of bytes, nothing left behind, under
every policy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from search import BeamSearch, BestFirst, solve
from tests.helpers.engines import make_engine
from tests.helpers.offloading import KIB
from tests.helpers.reward_models import (
    CHATML,
    IM,
    byte_tokenizer,
    configuration,
    grown,
    policy,
    seeded,
)
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Letters
from ttc import BeamGroups, Headwise, Layerwise, OutOfMemory, Paged, Resident
from ttc.branch import Branch
from ttc.model.loading.reward_heads import HeadedModel
from verifiers import EnsembleVerifier, QwenPRM

QUESTION = "How many?"
TOKENIZER = byte_tokenizer(["<extra_0>", *IM], CHATML)
MODEL = seeded(
    lambda: HeadedModel(hf.Qwen2Model(configuration("qwen2", TOKENIZER)), nn.Linear(32, 2))
)


def prm() -> QwenPRM:
    return QwenPRM((MODEL, TOKENIZER), separator="\n")


class Lines(Letters):
    """Letters of which every fourth is a line break, so that texts of a random model have steps."""

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return "".join("\n" if token % 4 == 0 else chr(97 + token % 26) for token in tokens)


def searching(**options: Any) -> Any:
    engine = make_engine(2, 256, **options)
    engine.tokenizer = Lines()
    return engine


BEAMS = BeamSearch(beam_size=2, beam_width=3, step_tokens=5, max_steps=4, temperature=1.0)


def solved(engine: Any, verifier: Any, search: Any = BEAMS) -> list[Any]:
    return solve(search, problem=[QUESTION, "How few?"], engine=engine, verifier=verifier, seed=3)


@cache
def with_room() -> list[Any]:
    """What is found where all KV stays resident."""
    return solved(searching(), prm())


def test_a_search_rated_along_the_tree_ends_as_one_rated_by_whole_texts() -> None:
    class WholeTexts:
        """A fresh reward model for every branch."""

        def rate(
            self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
        ) -> list[list[float]]:
            return [
                prm().rate([b], [q], policy())[0] for b, q in zip(branches, questions, strict=True)
            ]

    short = replace(BEAMS, max_steps=2)
    mirrored, whole = (solved(searching(), rater, short) for rater in (prm(), WholeTexts()))
    for a, b in zip(mirrored, whole, strict=True):
        assert a.error is None and [x.text for x in a.branches] == [x.text for x in b.branches]
        for x, y in zip(a.branches, b.branches, strict=True):
            assert x.step_scores == pytest.approx(y.step_scores, abs=1e-5)
    assert 2 * mirrored[0].usage.verifier_tokens < whole[0].usage.verifier_tokens


SHARED = [
    Resident(100 * KIB),
    Layerwise(24 * KIB),
    BeamGroups(48 * KIB, block_tokens=8),
    Paged(48 * KIB, block_tokens=8),
    Headwise(48 * KIB),
]
"""A token takes 128 bytes of the policy's KV and 256 of the reward model's; together they hold up
to 90 KB."""


@pytest.mark.few
@pytest.mark.parametrize("memory", SHARED, ids=lambda memory: type(memory).__name__)
def test_policy_and_reward_model_share_one_budget_of_bytes(memory: Any) -> None:
    verifier, engine = prm(), searching(memory=memory)
    results, free = solved(engine, verifier), with_room()
    for a, b in zip(results, free, strict=True):
        assert a.error is None and [x.text for x in a.branches] == [x.text for x in b.branches]
        for x, y in zip(a.branches, b.branches, strict=True):
            assert x.step_scores == pytest.approx(y.step_scores, abs=1e-5)
    reward = verifier.mirror(engine).engine
    assert (
        type(reward.residency) is type(engine.residency)
        and reward.memory.device is engine.memory.device
    )
    assert engine.memory.device.peak_bytes <= engine.memory.device.budget_bytes
    assert engine.memory.device.used_bytes == engine.memory.host.used_bytes == 0
    if not isinstance(memory, Resident):
        assert engine.memory.link.to_host_bytes.total() > 0


def test_a_budget_too_small_for_both_is_refused_before_the_reward_model_runs() -> None:
    engine = searching(memory=Resident(18 * KIB))
    (result,) = solve(BEAMS, problem=[QUESTION], engine=engine, verifier=prm())
    assert result.error is not None and "which 2 models share, is too small" in result.error
    assert result.usage.verifier_tokens == 0 and engine.kv_bytes() == 0
    engine = searching(memory=Resident(6 * KIB))
    with pytest.raises(OutOfMemory, match=r"a budget of .* at least"):
        root = engine.root([1, 2, 3])
        prm().rate(grown(engine, root, "abc\n"), [QUESTION], engine)


def test_another_engine_gets_a_tree_of_its_own() -> None:
    verifier, first, second = prm(), policy(), policy()
    for engine in (first, second):
        verifier.rate(grown(engine, engine.root([1, 2]), "a\n"), [QUESTION], engine)
    assert verifier.mirror(second).engine.memory.device is second.memory.device
    assert first.kv_bytes() == sum(first.memory.tier_bytes(kv)[0] for kv in first.memory.live)


def test_no_score_of_a_reward_model_is_kept_that_has_changed_since() -> None:
    """Of a branch that was rated before, and of one that goes on from it."""
    body = seeded(
        lambda: HeadedModel(hf.Qwen2Model(configuration("qwen2", TOKENIZER)), nn.Linear(32, 2))
    )
    engine, verifier = policy(), QwenPRM((body, TOKENIZER), separator="\n")
    (old,) = grown(engine, engine.root([1, 2]), "a\nb\n")
    before = verifier.rate([old], [QUESTION], engine)
    (new,) = grown(engine, old, "c\n")
    with torch.no_grad():
        for weight in body.parameters():
            weight.mul_(1.5)
    assert verifier.price([old], [QUESTION], engine) > 0
    found = verifier.rate([old, new], [QUESTION] * 2, engine)
    fresh = policy()
    (again,) = grown(fresh, fresh.root([1, 2]), "a\nb\nc\n")
    expected = QwenPRM((copy.deepcopy(body), TOKENIZER), separator="\n").rate(
        [again], [QUESTION], fresh
    )[0]
    assert found[1] == pytest.approx(expected, abs=1e-5) and found[0] == pytest.approx(
        expected[:2], abs=1e-5
    )
    assert before[0] != pytest.approx(expected[:2], abs=1e-3)


def test_a_verifier_that_breaks_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, verifier = policy(), prm()
    branches = grown(engine, engine.root([1, 2]), "a\n", "b\n")
    reward = verifier.mirror(engine).engine
    forward = reward.runner.forward
    monkeypatch.setattr(
        reward.runner, "forward", lambda *a: (_ for _ in ()).throw(RuntimeError("device lost"))
    )
    with pytest.raises(RuntimeError, match="device lost"):
        verifier.rate(branches, [QUESTION] * 2, engine)
    assert not verifier.mirror(engine).mirrors and not reward.memory.live
    monkeypatch.setattr(reward.runner, "forward", forward)
    assert verifier.rate(branches, [QUESTION] * 2, engine) == prm().rate(
        branches, [QUESTION] * 2, policy()
    )


def test_an_ensemble_with_a_reward_model_tells_it_what_was_let_go() -> None:
    engine, verifier = searching(), prm()
    ensemble = EnsembleVerifier([verifier, prm()], "min", "mean")
    for result in solved(
        engine, ensemble, BestFirst(beam_width=2, step_tokens=4, max_steps=3, temperature=1.0)
    ):
        assert result.error is None
    assert engine.kv_bytes() == 0 and not verifier.mirror(engine).mirrors


TREES = st.lists(
    st.tuples(
        st.integers(0, 5), st.sampled_from(["ab", "ab\n", "c\nab", "\n", "dd\n\n"]), st.booleans()
    )
)


@pytest.mark.slow
@given(TREES.filter(len))
@settings(max_examples=examples(12))
@example([(0, "ab", True), (0, "ab", True), (2, "ab", False), (0, "ab", False)])
def test_whatever_is_forked_rated_and_released_scores_are_those_of_the_text_alone(
    tree: list[tuple[int, str, bool]],
) -> None:
    engine, verifier = policy(), prm()
    live: list[Branch] = [engine.root([1, 2])]
    for choice, text, stays in tree:
        parent = live[choice % len(live)]
        (child,) = grown(engine, parent, text)
        live.append(child)
        if not stays:
            engine.release([parent])
            verifier.released([parent])
            live.remove(parent)
        rated = live[choice % len(live)]
        price, before = verifier.price([rated], [QUESTION], engine), rated.usage.verifier_tokens
        (scores,) = verifier.rate([rated], [QUESTION], engine)
        assert rated.usage.verifier_tokens - before <= price
        (alone,) = prm().rate([rated], [QUESTION], policy())
        assert scores == pytest.approx(alone, abs=1e-5)
    engine.release(live)
    verifier.released(live)
    assert not verifier.mirror(engine).engine.memory.live


@pytest.mark.few(1)
@pytest.mark.parametrize("max_tokens", [150, 200, 260])
def test_a_budget_pays_for_the_rating_of_every_child_that_it_pays_for(max_tokens: int) -> None:
    """A child's rating costs its new tokens, which its rated parent does not show."""
    result = solve(
        BEAMS, problem=QUESTION, engine=searching(), verifier=prm(), seed=3, max_tokens=max_tokens
    )
    assert result.stopped == "max_tokens"
    assert result.usage.generated_tokens + result.usage.verifier_tokens <= max_tokens
    children = [node for node in result.tree if node.parent is not None]
    assert len(children) >= 6 and all(node.step_scores for node in children)
