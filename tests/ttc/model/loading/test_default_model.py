"""The default model's real weights against plain transformers."""

from __future__ import annotations

import pytest
import torch

from ttc import Engine, Sampling
from ttc.model.loading.load import load
from ttc.text.prompt import PromptTemplate


@pytest.mark.slow
@torch.no_grad()
def test_the_default_models_real_weights() -> None:
    model, tokenizer = load("smollm2-135m", device="cpu", dtype="float32")
    assert len(tokenizer.encode("1234")) == 4  # SmolLM2 splits numbers into digits
    plain, _ = load("smollm2-135m", device="cpu", dtype="float32")
    engine = Engine(model, tokenizer)
    tokens = PromptTemplate().tokens(
        "Tom has 3 boxes of 4 apples. He eats 2. How many are left?", tokenizer
    )
    root = engine.root(tokens)
    branches = engine.fork(root, 3)
    engine.extend(
        branches[:2], [engine.encode("First, 3 * 4 ="), engine.encode("There are")]
    ).result()
    engine.generate(branches, [6, 9, 12], sampling=Sampling(0))
    grown = engine.fork(branches[0], 2) + branches[1:]
    engine.release(branches[:1])
    engine.generate(grown, 6, sampling=Sampling(0))
    for branch in grown:
        given = torch.tensor([branch.tokens[: branch.prompt_length]])
        expected = plain.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=18, do_sample=False
        )
        assert expected[0].tolist()[: len(branch.tokens)] == branch.tokens
        logits = plain(torch.tensor([branch.tokens])).logits[0]
        rows = logits[branch.prompt_length - 1 : -1].log_softmax(-1)
        wanted = rows.gather(-1, torch.tensor(branch.generated)[:, None])[:, 0].tolist()
        assert branch.logprobs == pytest.approx(wanted, abs=1e-4 + 1e-5 * float(logits.abs().max()))
