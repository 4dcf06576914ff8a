"""Step-wise searches on the default model's real weights: one branch at temperature 0 is plain
greedy decoding."""

from __future__ import annotations

import pytest
import torch

from search import DVTS, REBASE, BeamSearch, ParticleFilter, ParticleGibbs, Search, solve
from ttc import Engine
from ttc.model.loading.load import load
from ttc.text.prompt import STEP_BY_STEP, PromptTemplate
from verifiers import ArithmeticVerifier

QUESTION = "Tom has 3 boxes of 4 apples. He eats 2. How many are left?"
STEPS = {"temperature": 0.0, "step_tokens": 4, "max_steps": 3, "delimiter": None}
SEARCHES: list[Search] = [
    BeamSearch(beam_size=1, beam_width=1, lookahead=1, **STEPS),  # type: ignore[arg-type]
    BeamSearch(beam_size=3, beam_width=1, verify_every=2, **STEPS),
    DVTS(subtrees=2, beam_width=1, lookahead=1, **STEPS),  # type: ignore[arg-type]
    REBASE(n=2, **STEPS),  # type: ignore[arg-type]
    ParticleFilter(n=2, **STEPS),  # type: ignore[arg-type]
    ParticleGibbs(n=2, sweeps=2, **STEPS),  # type: ignore[arg-type]
]


@pytest.mark.slow
@torch.no_grad()
def test_at_temperature_0_every_branch_is_the_greedy_one() -> None:
    model, tokenizer = load("smollm2-135m", device="cpu", dtype="float32")
    plain, _ = load("smollm2-135m", device="cpu", dtype="float32")
    engine = Engine(model, tokenizer)
    given = torch.tensor([PromptTemplate().tokens(QUESTION, tokenizer)])
    asked = [{"role": "user", "content": STEP_BY_STEP.replace("{question}", QUESTION)}]
    own = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    assert torch.equal(given, own)
    greedy = plain.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=12, do_sample=False
    )
    expected = greedy[0, given.shape[1] :].tolist()
    for search in SEARCHES:
        result = solve(search, problem=QUESTION, engine=engine, verifier=ArithmeticVerifier())
        assert result.error is None and result.branches and engine.kv_bytes() == 0
        assert all(branch.generated == expected for branch in result.branches), search
        assert all(branch.score is not None for branch in result.branches)
