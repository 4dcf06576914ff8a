"""The self-verifier on prompts of its own: what it asks, what it costs, and that exits don't change
what is asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import verifiers.self_verifier
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import words_engine
from tests.helpers.tokenizers import KnownWords, words
from ttc import EarlyExit, Engine, InvalidInput
from ttc.branch import Branch
from verifiers import SelfVerifier
from verifiers.self_verifier import GRADER

FRESH = SelfVerifier("is it right ?", fresh=True)
PROBLEMS = ["a b c is a b", "a b c is a b", "is it a"]


@pytest.fixture
def engine() -> Engine:
    return words_engine(KnownWords)


def answered(engine: Engine) -> list[Branch]:
    """Two branches of one problem and one of another, as a search leaves them."""
    first, second = engine.roots([[9, 10, 11], [11, 10, 9]]).result()
    branches = engine.fork(first, 2) + engine.fork(second, 1)
    engine.generate(branches, 3)
    engine.release([first, second])
    return branches


def prompt(branch: Branch, problem: str, chat: bool) -> list[int]:
    """What the test's tokenizer of words makes of the text that is asked."""
    asked = words(GRADER) + words(problem) + words(branch.text) + words("is it right ?")
    return [*asked, 0, 9, 10] if chat else asked


@pytest.mark.parametrize("chat", [False, True])
@torch.no_grad()
def test_it_equals_a_plain_forward(engine: Engine, chat: bool) -> None:
    engine.tokenizer.chat_template = "yes" if chat else None
    branches = answered(engine)
    before, spent = engine.kv_bytes(), [branches[i].usage.verifier_tokens for i in (0, 2)]
    tokens = [b.tokens[:] for b in branches]
    found = FRESH.rate(branches, PROBLEMS, engine)
    profiles = SelfVerifier("is it right ?", fresh=True).profiles(branches, PROBLEMS, engine)
    assert engine.kv_bytes() == before and [b.tokens for b in branches] == tokens
    engine.model.set_attn_implementation("sdpa")
    for branch, problem, (score,), profile in zip(branches, PROBLEMS, found, profiles, strict=True):
        probs = (
            engine.model(torch.tensor([prompt(branch, problem, chat)])).logits[0, -1].softmax(-1)
        )
        yes, no = float(probs[1] + probs[3]), float(probs[2] + probs[4])
        assert score == pytest.approx(yes / (yes + no), abs=1e-5)
        assert profile.p[-1] == pytest.approx(score, abs=1e-5)
    assert spent == [0, 0]
    assert all(b.usage.verifier_tokens > 0 for b in branches)
    assert engine.kv_bytes() == before


def test_every_token_is_charged_to_the_branchs_problem(engine: Engine) -> None:
    branches = answered(engine)
    prompts = [prompt(b, p, False) for b, p in zip(branches, PROBLEMS, strict=True)]
    generated = [b.usage.generated_tokens for b in branches]
    FRESH.rate([branches[2]], PROBLEMS[2:], engine)  # alone, it shares with nobody
    assert branches[2].usage.verifier_tokens == len(prompts[2])
    shared = branches[0].usage.shared_tokens
    FRESH.rate(branches[:2], PROBLEMS[:2], engine)
    saved = branches[0].usage.shared_tokens - shared
    # the last of them is fed to both
    assert saved + 1 >= len(words(GRADER)) + len(words(PROBLEMS[0])) > 8
    assert branches[0].usage.verifier_tokens + saved == len(prompts[0]) + len(prompts[1])
    assert [b.usage.generated_tokens for b in branches] == generated


def test_an_exit_asks_the_same(engine: Engine) -> None:
    branches = answered(engine)
    expected = FRESH.rate(branches, PROBLEMS, engine)
    spent = [branches[i].usage.verifier_tokens for i in (0, 2)]
    before = engine.kv_bytes()
    found = SelfVerifier("is it right ?", EarlyExit(theta=0), fresh=True).rate(
        branches, PROBLEMS, engine
    )
    assert [score for (score,) in found] == pytest.approx(
        [score for (score,) in expected], abs=1e-5
    )
    # the siblings share the grader, the problem and more; of the other problem everything is in the
    # pass
    assert branches[2].usage.exit_layer_rows == 2 * len(prompt(branches[2], PROBLEMS[2], False))
    assert 0 < branches[0].usage.exit_layer_rows <= 2 * 2 * (1 + 3 + len(words("is it right ?")))
    # where the prompts part, each computes a token again
    assert branches[0].usage.verifier_tokens <= 2 * spent[0] + 1
    early = SelfVerifier("is it right ?", EarlyExit("ranking", l_min=1, patience=1), fresh=True)
    scores = early.rate(branches, PROBLEMS, engine)
    profiles = FRESH.profiles(branches, PROBLEMS, engine)
    assert [s for (s,) in scores] == pytest.approx(
        [q.p[0] for q in profiles[:2]] + [profiles[2].p[1]], abs=1e-5
    )
    assert engine.kv_bytes() == before


def test_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers.self_verifier, "spellings", lambda backend, *words: [[3], [2]])
    backend = FakeBackend(longest=20_000)
    branch = backend.root([ord("?")])
    branch.tokens += map(ord, " 6 + 2 = 8\nThe answer is 8.")
    problem = "long " * 2_000 + "end {question} \x00?"
    SelfVerifier(fresh=True).rate([branch], [problem], backend)
    asked = backend.decode(*backend.scored)
    assert asked.startswith("Here is a problem and a proposed solution.")
    places = [
        asked.index(s)
        for s in (problem, "6 + 2 = 8\nThe answer is 8.", SelfVerifier().question, "\nAnswer:")
    ]
    assert places == sorted(places)
    assert backend.live == {id(branch): branch}


def test_a_prompt_beyond_the_context_is_refused(engine: Engine) -> None:
    branches = answered(engine)
    before: Any = engine.kv_bytes()
    for verifier in (FRESH, SelfVerifier("is it right ?", EarlyExit(theta=0), fresh=True)):
        with pytest.raises(InvalidInput, match="context of 64"):
            verifier.rate(branches, [*PROBLEMS[:2], "a b " * 40], engine)
    assert engine.kv_bytes() == before
