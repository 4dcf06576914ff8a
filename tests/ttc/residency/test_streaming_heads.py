"""Head-wise sparsity: what streaming heads see, what they save, and how they are found."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import build, prompt
from tests.helpers.tiers import slow
from tests.helpers.tokenizers import Letters
from ttc import Engine, Headwise, InvalidInput, Sampling
from ttc.calibration.head_attention import near_attention
from ttc.residency.streaming_heads import (
    load_streaming_heads,
    save_streaming_heads,
    streaming_heads,
)

LAYERS, HEADS = 2, 2
EVERY = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def engine_with(
    plain: Any,
    path: Path,
    heads: list[tuple[int, int]],
    sink: int,
    window: int,
    budget: int | None = None,
) -> Engine:
    save_streaming_heads(path, "llama", heads)
    gib = None if budget is None else budget / 2**30
    memory = Headwise(
        gib, block_tokens=4, streaming_heads=str(path), sink_tokens=sink, window_tokens=window
    )
    return Engine(copy.deepcopy(plain), Letters(), memory=memory)


def next_logprob(engine: Engine, tokens: list[int], token: int) -> float:
    branch = engine.root(tokens)
    return engine.score([branch], [[[token]]]).result()[0][0][0]


@torch.no_grad()
def masked_logits(
    plain: Any, tokens: list[int], heads: list[tuple[int, int]], sink: int, window: int
) -> torch.Tensor:
    """Log-probabilities of plain attention (tokens, vocab), whose mask leaves `heads` sink and
    window alone."""
    count, eager = len(tokens), copy.deepcopy(plain).eval()
    eager.set_attn_implementation("eager")
    place = torch.arange(count)
    causal = place[:, None] >= place
    seen = causal & ((place < sink) | (place[:, None] - place < window))
    groups = plain.config.num_attention_heads // HEADS
    for index, layer in enumerate(eager.model.layers):
        mask = torch.stack(
            [seen if (index, head // groups) in heads else causal for head in range(groups * HEADS)]
        )
        mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))[None]
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, mask=mask: (args, {**kwargs, "attention_mask": mask}),
            with_kwargs=True,
        )
    logits: torch.Tensor = eager(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("heads", [slow(EVERY), EVERY[1:2], slow(EVERY[::2])])
@pytest.mark.parametrize("prefill_tokens", [5, 512])
def test_streaming_heads_see_sink_and_window_of_their_branch_alone(
    tmp_path: Path, heads: list[tuple[int, int]], prefill_tokens: int
) -> None:
    """Whatever is computed beside them, however a prompt is cut into chunks and a text into
    steps."""
    plain, sink, window = build("llama"), 3, 7
    engine = engine_with(plain, tmp_path / "heads.json", heads, sink, window)
    engine.runtime = replace(engine.runtime, prefill_tokens=prefill_tokens)
    first, second, third = engine.roots([prompt(3, 40), prompt(4, 11), prompt(5, 2)]).result()
    branches = [*engine.fork(first, 2), second, third]
    engine.generate(branches, [3, 12, 9, 12], sampling=GREEDY)
    engine.generate(branches, [12, 2, 9, 3], sampling=GREEDY)
    for branch in branches:
        expected = masked_logits(plain, branch.tokens, heads, sink, window)
        for place, (token, logprob) in enumerate(
            zip(branch.generated, branch.logprobs, strict=True)
        ):
            row = expected[branch.prompt_length + place - 1]
            assert token == int(row.argmax()) and logprob == pytest.approx(
                float(row[token]), abs=1e-4
            )
    scored = engine.score(branches[:1], [[[9, 8, 7]]]).result()[0][0]
    rows = masked_logits(plain, [*branches[0].tokens, 9, 8], heads, sink, window)[-3:]
    assert scored == pytest.approx(
        [float(row[t]) for row, t in zip(rows, [9, 8, 7], strict=True)], abs=1e-4
    )
    exact = masked_logits(plain, branches[0].tokens, [], sink, window)[-1]
    assert abs(scored[0] - float(exact[9])) > 1e-3  # it is an approximation


def test_streaming_heads_see_nothing_beyond_the_models_own_window(tmp_path: Path) -> None:
    """A view of everything changes nothing, not even where the model's window hides the first
    tokens."""
    plain = build("gemma3")
    config = plain.config.get_text_config()
    heads = [
        (i, j) for i in range(config.num_hidden_layers) for j in range(config.num_key_value_heads)
    ]
    engine = engine_with(plain, tmp_path / "heads.json", heads, 8, 100)
    assert any(shape.window and shape.window < 30 for shape in engine.memory.shapes)
    branches = engine.roots([prompt(3, 49), prompt(4, 20)]).result()
    engine.generate(branches, 6, sampling=GREEDY)
    for branch in branches:
        assert_like_plain(plain, branch)


def test_a_window_over_everything_is_exact_and_a_small_one_moves_less(tmp_path: Path) -> None:
    plain, tokens = build("llama"), prompt(4, 60)
    whole = next_logprob(Engine(copy.deepcopy(plain), Letters()), tokens, 5)
    wide = engine_with(plain, tmp_path / "wide.json", EVERY, 1, 60)
    assert next_logprob(wide, tokens, 5) == pytest.approx(whole, abs=1e-4)
    half = engine_with(plain, tmp_path / "half.json", EVERY[::2], 4, 8)
    next_logprob(half, tokens, 5)
    moved = [e.memory.link.to_device_bytes["stream"] for e in (wide, half)]
    token_head = half.memory.bytes_per_token // (LAYERS * HEADS)
    near = 4 + 4 + 3  # of 59 tokens in blocks of four: the first one, and those from 52 on
    assert moved == [59 * 4 * token_head, (59 + near) * 2 * token_head]


@pytest.mark.parametrize("heads", [EVERY, EVERY[::2]])
def test_sink_and_window_stay_on_the_device_for_a_step(
    tmp_path: Path, heads: list[tuple[int, int]]
) -> None:
    """What streaming heads see is fetched once, whatever the number of tokens; without room for it,
    at each pass."""
    plain, tokens, steps = build("llama"), prompt(6, 60), 8

    def decoded(budget_bytes: int | None) -> tuple[list[int], Engine]:
        engine = engine_with(plain, tmp_path / "heads.json", heads, 4, 8, budget_bytes)
        branch = engine.root(tokens)
        engine.memory.link.to_device_bytes.clear()
        engine.memory.device.peak_bytes = 0
        engine.generate([branch], steps, sampling=Sampling(temperature=0))
        return branch.generated, engine

    kept, engine = decoded(None)
    token_head = engine.memory.bytes_per_token // (LAYERS * HEADS)
    near, others = (
        (4 + 4 + 3) * len(heads) * token_head,
        59 * (len(EVERY) - len(heads)) * token_head,
    )
    moved = engine.memory.link.to_device_bytes
    # reading ahead
    assert moved["kept"] == near and moved["stream"] - steps * others in (0, others // LAYERS)
    tails = steps * engine.memory.bytes_per_token
    # one buffer, not the two that reading ahead takes
    tight, small = decoded(tails + near + 59 * token_head)
    assert tight == kept
    if len(heads) < len(EVERY):
        assert (
            small.memory.link.to_device_bytes["kept"]
            == 0
            < small.memory.link.to_device_bytes["stream"]
        )


@torch.no_grad()
def test_near_attention_is_the_models_own() -> None:
    plain = build("llama")
    tokens, sink, window = prompt(5, 30), 2, 5
    plain.set_attn_implementation("eager")
    weights = plain(torch.tensor([tokens]), use_cache=False, output_attentions=True).attentions
    place = torch.arange(30)
    near = (place[None] < sink) | (place[:, None] - place[None] < window)
    rows = place >= sink + window
    expected = [
        (layer[0] * near).sum(-1)[:, rows].mean(-1).unflatten(0, (HEADS, -1)).mean(-1)
        for layer in weights
    ]
    found = near_attention(Engine(plain, Letters()), tokens, sink, window)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other.tolist(), abs=1e-5)


def test_the_heads_that_look_least_far_stream() -> None:
    shares = [[0.9, 0.2], [0.5, 0.95]]
    assert streaming_heads(shares, 0.5) == [(0, 0), (1, 1)]
    assert streaming_heads(shares, 0) == [] and len(streaming_heads(shares, 1)) == 4
    with pytest.raises(InvalidInput, match=r"1\.5"):
        streaming_heads(shares, 1.5)


def test_a_file_for_another_model_is_refused(tmp_path: Path) -> None:
    save_streaming_heads(tmp_path / "a.json", "x", [(1, 3)])
    assert load_streaming_heads(tmp_path / "a.json", [4, 4]) == {(1, 3)}
    with pytest.raises(InvalidInput, match="head 3 of layer 1"):
        load_streaming_heads(tmp_path / "a.json", [4, 2])
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(InvalidInput, match="not a file"):
        load_streaming_heads(tmp_path / "b.json", [4])
    with pytest.raises(InvalidInput, match="too few"):
        near_attention(Engine(build("llama"), Letters()), prompt(1, 20), 8, 8)
