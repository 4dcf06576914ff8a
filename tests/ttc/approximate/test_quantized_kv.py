"""KV in 8 bits: how far numbers move, and that attention reads what is stored, in every way."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tests.helpers.engines import GREEDY
from tests.helpers.models import build, prompt
from tests.helpers.ownership import assert_nothing_left, assert_whole
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import Letters
from ttc import Engine, InvalidInput, QuantizedKV
from ttc.approximate.quantized_kv import Bytes
from ttc.attention.fused import SWITCH
from ttc.step import Step

KINDS: list[Any] = ["int8", "fp8"]
SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
}


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    dim=st.sampled_from([2, 16, 18]),
    size=st.floats(1e-20, 1e20),
    seed=st.integers(0, 100),
)
def test_numbers_come_back_as_near_as_8_bits_allow(
    kind: Any, dim: int, size: float, seed: int
) -> None:
    numbers = torch.randn(3, 5, dim, generator=torch.Generator().manual_seed(seed)) * size
    numbers[1, 2] = 0
    codec = Bytes(kind)
    packed = torch.empty(3, 5, dim + codec.row_bytes, dtype=torch.int8)
    codec.pack(packed, numbers)
    back = codec.unpack(packed, torch.float64)
    top = numbers.abs().amax(-1, keepdim=True)
    # half of a step: 127 even ones, or an eighth of the power of two below a number
    half = top / 254 if kind == "int8" else torch.maximum(numbers.abs() / 16, top / 448 / 2**10)
    assert ((back - numbers).abs() <= half * 1.00001).all()


def rounded(numbers: torch.Tensor, kind: str) -> torch.Tensor:
    """The nearest numbers that 8 bits hold, with a scale for each token and head."""
    scale = numbers.abs().amax(-1, keepdim=True) / (127 if kind == "int8" else 448)
    if kind == "int8":
        return (numbers / scale).round() * scale
    return (numbers / scale).to(torch.float8_e4m3fn).to(numbers.dtype) * scale


@torch.no_grad()
def expected(model: Any, tokens: list[int], more: list[int], kind: str) -> list[float]:
    """What plain transformers says of `more` once the KV before it is rounded."""
    cache = DynamicCache(config=model.config)
    model(torch.tensor([tokens[:-1]]), past_key_values=cache)
    for layer in cache.layers:
        layer.keys, layer.values = rounded(layer.keys, kind), rounded(layer.values, kind)
    logits = model(torch.tensor([[tokens[-1], *more[:-1]]]), past_key_values=cache).logits[0]
    return [float(row.log_softmax(-1)[token]) for row, token in zip(logits, more, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_prompt_is_read_as_it_is_stored(
    kind: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, str(int(compiled)))
    model = build("llama")
    engine = Engine(copy.deepcopy(model), Letters(), memory=QuantizedKV(kind=kind))
    tokens, more = prompt(1, 30), prompt(2, 9)
    root = engine.root(tokens)
    assert engine.score([root], [[more]]).result()[0][0] == pytest.approx(
        expected(model, tokens, more, kind), abs=2e-5
    )
    exact = Engine(copy.deepcopy(model), Letters())
    assert engine.score([root], [[more]]).result()[0][0] != pytest.approx(
        exact.score([exact.root(tokens)], [[more]]).result()[0][0], abs=2e-5
    )
    assert_nothing_left(engine, [root])


@pytest.mark.few
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_decodes_as_operations_do(
    kind: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches that share, fork and join segments: several blocks of keys, heads of 40, which are
    no whole vectors, and of 64, which are multiplied in pairs where the processor does that."""
    found, texts = [], []
    for compiled in (True, False):
        monkeypatch.setenv(SWITCH, str(int(compiled)))
        torch.manual_seed(0)
        head_dim = 64 if dtype == torch.bfloat16 else 40
        config = LlamaConfig(**SHAPE, head_dim=head_dim, eos_token_id=None)
        model = LlamaForCausalLM(config).to(dtype).eval()
        engine = Engine(model, Letters(), memory=QuantizedKV(kind=kind))
        root = engine.root(prompt(1, 200))
        branches = engine.fork(root, 3)
        engine.extend(branches, [prompt(3 + i, 5 + i) for i in range(3)]).result()
        scores = engine.score(branches, [[prompt(9, 3)]] * 3).result()
        engine.generate(branches, 4, sampling=GREEDY)
        first = [branch.top1[0] for branch in branches]
        found.append([first, *(score for ((score),) in scores)])
        texts.append([branch.generated for branch in branches])
        engine.generate(branches, 4, sampling=GREEDY)  # from segments that have been joined
        texts.append([branch.generated for branch in branches])
        assert_whole(engine, [*branches, root])
    short = dtype != torch.float32
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, abs=0.1 if short else 1e-4)
    assert short or texts[:2] == texts[2:]


@pytest.mark.parametrize("kind", KINDS)
def test_segments_take_a_byte_a_number_and_four_a_row(kind: Any) -> None:
    model = build("llama")
    exact, engine = (
        Engine(copy.deepcopy(model), Letters(), memory=memory)
        for memory in (None, QuantizedKV(kind=kind))
    )
    roots = [one.root(prompt(1, 41)) for one in (exact, engine)]
    (shape, *_), layers = engine.memory.shapes, len(engine.memory.shapes)
    rows = 40 * layers * shape.kv_heads * 2
    assert exact.kv_bytes() == rows * shape.key_dim * exact.dtype.itemsize
    assert engine.kv_bytes() == rows * (shape.key_dim + 4)
    engine.generate(engine.fork(roots[1], 2), 12)
    rows += 2 * 12 * layers * shape.kv_heads * 2
    assert engine.kv_bytes() == rows * (shape.key_dim + 4)


def test_a_budget_holds_and_what_it_cannot_serve_is_refused() -> None:
    model = build("llama")
    memory = QuantizedKV(kind="int8")
    engine = Engine(copy.deepcopy(model), Letters(), memory=memory)
    token = engine.memory.bytes_per_token
    engine = Engine(model, Letters(), memory=QuantizedKV(150 * token / 2**30))
    root = engine.root(prompt(1, 20))
    branches = engine.fork(root, 4)
    engine.release([root])
    engine.generate(branches, 24)
    assert [len(b.generated) for b in branches] == [24] * 4
    assert engine.memory.device.peak_bytes <= 150 * token
    assert_nothing_left(engine, branches)
    with pytest.raises(InvalidInput, match=r"memory\.kind='int4' is unknown; is it int8"):
        QuantizedKV(kind="int4")  # type: ignore[arg-type]
    assert type(engine.residency.for_another_model()).__name__ == "Resident"


def test_layers_on_the_host_are_refused() -> None:
    engine = Engine(build("llama"), Letters(), memory=QuantizedKV())
    with pytest.raises(InvalidInput, match="memory keeps KV as int8"):
        engine.memory.fix(1, 1)


@pytest.mark.parametrize("compiled", [True, False])
def test_steps_that_end_out_of_step_are_packed_at_their_ends_alone(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever joins or leaves has the plan made again, which changes nothing for the others."""
    monkeypatch.setenv(SWITCH, str(int(compiled)))
    counts, found = [3, 9, 5, 20], []
    for together in (True, False):
        engine = Engine(build("llama"), Letters(), memory=QuantizedKV())
        root = engine.root(prompt(1, 30), seed=4)
        branches = engine.fork(root, 4)
        for part in [range(4)] if together else [[i] for i in range(4)]:
            engine.generate([branches[i] for i in part], [counts[i] for i in part])
        for branch in branches:
            _, *own = branch.leaf.path()
            assert len({segment.storage for segment in own}) == 1
            assert own[0].storage.codec is not None
        found.append([(branch.generated, branch.logprobs) for branch in branches])
        assert_whole(engine, [*branches, root])
    for (tokens, logprobs), (alone, alone_logprobs) in zip(*found, strict=True):
        assert tokens == alone
        assert logprobs == pytest.approx(alone_logprobs, abs=1e-5)


def test_a_step_whose_kv_finds_no_room_to_be_packed_is_computed_again() -> None:
    """Another model may have taken it."""
    engine = Engine(build("llama"), Letters(), memory=QuantizedKV(1))
    root = engine.root(prompt(1, 20))
    before, tier = engine.kv_bytes(), engine.memory.device
    batch = engine.running_batch()
    batch.add([root], Step(30), GREEDY)
    batch.step()
    taken = int(tier.free_bytes)
    tier.take(taken)
    batch.finish()
    tier.give(taken)
    assert engine.kv_bytes() == before
    engine.generate([root], 3, sampling=GREEDY)
    assert root.usage.recomputed_tokens == 30 and len(root.generated) == 33
    assert_nothing_left(engine, [root])


def test_who_decodes_does_not_go_on_in_what_is_packed() -> None:
    texts = []
    for length in (21, 40):  # the longer prompt leaves room where the other one ends
        engine = Engine(build("llama"), Letters(), memory=QuantizedKV())
        other, branch = engine.roots([prompt(1, length), prompt(1, 21)]).result()
        engine.release([other])
        engine.generate([branch], 6, sampling=GREEDY)
        texts.append(branch.generated)
    assert texts[0] == texts[1]


def test_branches_leave_room_to_be_packed() -> None:
    token = Engine(build("llama"), Letters(), memory=QuantizedKV()).memory.bytes_per_token
    engine = Engine(build("llama"), Letters(), memory=QuantizedKV(400 * token / 2**30))
    branches = engine.fork(engine.root(prompt(1, 20)), 5)
    for counts in ([40, 7, 20, 3, 30], [5, 25, 11, 30, 1]):
        engine.generate(branches, counts)
    assert not any(branch.usage.recomputed_tokens for branch in branches)
    assert engine.memory.device.peak_bytes > 300 * token
