"""Blocks kept as activations: exact, within the budgets, and counted where they are copied."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import settings

from tests.helpers.clocks import link_clock
from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_like_plain, grow
from tests.helpers.models import COMMON, FAMILIES, FEW, build, deep, prompt
from tests.helpers.ownership import Ownership, assert_nothing_left
from tests.helpers.placements import deeper
from tests.helpers.tiers import examples, some_quick
from tests.helpers.tokenizers import Letters
from ttc import Capture, Engine, InvalidInput, OutOfMemory, Streamed
from ttc.attention.reader import Reads
from ttc.branch import Branch
from ttc.cost_model.capture import CaptureTimes, Line
from ttc.memory.link import DryLink
from ttc.memory.storage import Storage
from ttc.step import Step
from ttc.tree.segment import Segment


def multi_head(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of a family with as many KV heads as heads: its inputs are smaller than its keys and
    values."""
    kind, extra = FAMILIES[family]
    torch.manual_seed(0)
    config = kind(**(COMMON | extra | {"num_key_value_heads": 4}))
    model = hf.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def engine_of(plain: Any, **options: Any) -> Engine:
    return Engine(
        copy.deepcopy(plain), Letters(), prefill_tokens=5, memory=Capture(block_tokens=8, **options)
    )


def streamed(plain: Any, **options: Any) -> Engine:
    """An engine over four layers, weights of which cross in every pass."""
    model = copy.deepcopy(plain)
    runner, memory = Streamed(link_gbps=1.0).place(model, "cpu"), Capture(block_tokens=8, **options)
    return Engine(model, Letters(), prefill_tokens=5, runner=runner, memory=memory)


def capture(engine: Engine) -> Capture:
    assert isinstance(engine.residency, Capture)
    return engine.residency


def block(policy: Capture, path: Sequence[Storage] = ()) -> Storage:
    """A new one of eight tokens, as of a prompt, after those of a path."""
    leaf = Segment([])
    for storage in path:
        leaf = Segment([0] * storage.filled, storage, 0, leaf)
    new = policy.begin(leaf, 8, one_each=False)
    new.filled = 8
    policy.leave([new])
    return new


@pytest.mark.few(1)
@pytest.mark.parametrize("family", some_quick([*FEW, "opt", "phi3", "gpt_oss"], FEW))
def test_every_family_gives_what_plain_transformers_gives(family: str) -> None:
    """Forks, a three-level tree, ragged branches, half of the blocks as activations, on the device
    and on the host."""
    plain = multi_head(family)
    resident = Engine(copy.deepcopy(plain), Letters(), prefill_tokens=5)
    grow(resident)
    budget = 0.7 * resident.memory.device.peak_bytes
    engine = engine_of(plain, act_share=0.5, budget_gib=budget / 2**30)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    near, far, kv = capture(engine).counts()
    assert near and kv and abs(near + far - kv) <= 2 * 8 * len(branches)
    moved = engine.memory.link.to_device_bytes
    assert moved["kv"] > 0 and (
        moved["act"] > 0 or any(shape.window for shape in engine.memory.shapes)
    )
    assert engine.memory.device.peak_bytes <= budget
    assert_nothing_left(engine, branches)


def test_activations_alone_need_no_keys_and_values_anywhere() -> None:
    plain = multi_head("opt")
    engine = engine_of(plain, act_share=1)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    live = engine.memory.live
    assert live and all(kv.is_resident and len(kv.acts) == len(kv.device) for kv in live)
    tokens = sum(kv.filled for kv in engine.memory.live)
    assert engine.memory.device.used_bytes == tokens * engine.memory.bytes_per_token // 2
    assert not engine.memory.host.used_bytes and not engine.memory.link.to_device_bytes
    assert_nothing_left(engine, branches)


def test_inputs_beside_keys_and_values_count_in_the_budget() -> None:
    engine = engine_of(multi_head("opt"), act_share=1)
    memory = engine.memory
    memory.device.budget_bytes = 8 * memory.bytes_per_token
    with pytest.raises(OutOfMemory):
        capture(engine).begin(engine.tree.trunk, 8, one_each=True)
    assert not memory.device.used_bytes and not memory.live


def test_a_step_that_has_written_nothing_leaves_no_room_for_inputs_behind() -> None:
    engine = engine_of(multi_head("opt"), act_share=1)
    branch = engine.root(prompt(1, 17))
    batch = engine.running_batch()
    batch.add([branch], Step(8))
    batch.schedule()
    assert any(storage.inputs for storage in engine.memory.live)
    batch.close()
    assert_nothing_left(engine, [branch])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["opt", "gemma3", "deepseek_v3"])
def test_weights_that_are_streamed_are_there_when_keys_and_values_are_generated(
    family: str,
) -> None:
    plain = deeper(family, num_key_value_heads=4)
    engine = streamed(plain, act_share=0.5)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    assert_nothing_left(engine, branches)


@pytest.mark.slow
def test_what_the_next_layer_needs_gives_way_to_the_layer_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a layer computes, the next one's weights and its first two mini-batches are asked
    for."""
    plain = deeper("opt", num_key_value_heads=4)
    engine = streamed(plain, act_share=0.5, mini_batch_tokens=16, budget_gib=24 / 2**20)
    branch, link, seen = engine.root(prompt(1, 129)), engine.memory.link, list[tuple[str, bool]]()
    fetch = link.fetch

    def watched(copies: Any, cause: str, after: Any = (), later: bool = False) -> Any:
        seen.append((cause, later))
        return fetch(copies, cause, after, later)

    monkeypatch.setattr(link, "fetch", watched)
    engine.generate([branch], 2, sampling=GREEDY)
    assert_like_plain(plain, branch)
    weights, units = (
        [later for cause, later in seen if cause == each] for each in ("weights", "kv")
    )
    assert weights and all(weights) and sum(units) == 2 * len(weights)
    assert len(units) > 2 * sum(units)  # those of the layer at work do not wait


def test_t_load_w_is_what_a_layers_weights_take_over_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes of a layer over 2 MB a second; its biases and norms are padded to 64 bytes."""
    link_clock(monkeypatch)
    model = deeper("opt", num_key_value_heads=4)
    layer_bytes = sum(4 * weight.numel() for weight in model.model.decoder.layers[0].parameters())
    engine = Engine(
        model, Letters(), runner=Streamed(link_gbps=0.002).place(model, "cpu"), memory=Capture()
    )
    times = capture(engine).times
    assert times is not None and times.load_w == pytest.approx(layer_bytes / 0.002e9, rel=0.01)


def test_the_ratio_is_that_of_all_tokens_that_are_expected_from_the_first_block_on() -> None:
    """Loading 80 KV blocks takes 240 and all else 120: #KV 50 and #ACT 30, as 3 x 50 is 120 + 30.
    Of 40 tokens alone nothing would be an ACT block, as loading them takes 120 as well."""
    engine = engine_of(multi_head("opt"))
    residency = capture(engine)
    residency.times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0), forward_s=120)
    assert (residency.allocation(40), residency.allocation(80)) == ((0, 40), (30, 50))
    branch = engine.root(prompt(1, 81))
    acts = tokens = 0
    for segment in branch.leaf.path():
        tokens += segment.storage.filled
        acts += segment.storage.filled if segment.storage.acts else 0
        assert abs(acts - tokens * 30 / 80) <= 8
    assert tokens == 80


@pytest.mark.filterwarnings("ignore:memory=capture makes no ACT blocks for now")
@pytest.mark.parametrize(("forward_s", "act"), [(200, 0), (160, 20)])
def test_there_are_no_act_blocks_where_they_gain_less_than_a_quarter(
    forward_s: float, act: int
) -> None:
    """80 KV blocks take 240. With 10 ACT blocks a layer takes 210, a gain of 1.14x, and with 20 it
    takes 180: 1.33x."""
    residency = capture(engine_of(multi_head("opt")))
    residency.times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0), forward_s=forward_s)
    assert residency.allocation(80) == (act, 80 - act)
    assert ("gains less than 1.25x with them" in residency.reason) == (act == 0)


def test_a_block_that_nobody_expected_counts_by_itself() -> None:
    residency = capture(engine_of(multi_head("opt")))
    residency.times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0), load_w=50)
    assert block(residency).acts  # all of it is generated while weights cross


@pytest.mark.parametrize(("forward_s", "act"), [(168, 24), (184, 20)])
def test_a_branch_without_act_blocks_gets_none_where_other_branches_have_them_all(
    forward_s: float, act: int
) -> None:
    """Two ACT blocks of other branches, eight KV blocks of this one, and a new block: 88 tokens, of
    which 264 - 3 act is forward_s + act. With 24 there is one block left for this branch, and with
    20 not a whole one."""
    residency = capture(engine_of(multi_head("opt")))
    residency.times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0), load_w=50)
    assert all(block(residency).acts for _ in range(2))
    residency.times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0), forward_s=1000)
    path = [block(residency) for _ in range(8)]
    assert not any(kv.acts for kv in path)
    residency.times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0), forward_s=forward_s)
    assert residency.allocation(88) == (act, 88 - act)
    assert bool(block(residency, path).acts) == (act == 24)


def test_the_device_keeps_room_for_two_buffers_and_what_is_generated() -> None:
    """Three times a mini-batch of 16 tokens of a layer, at 256 bytes. A block of 8 tokens has ACT
    blocks of 128 bytes a token in each of two layers."""
    budget = 40 * 1024
    engine = engine_of(
        multi_head("opt"), act_share=1, mini_batch_tokens=16, budget_gib=budget / 2**30
    )
    residency = capture(engine)
    for _ in range(20):
        block(residency)
    near, far, kv = residency.counts()
    assert (near, far, kv) == ((budget - 3 * 16 * 256) // (8 * 2 * 128) * 8, 20 * 8 - near, 0)


@pytest.mark.parametrize(("steps", "room", "crossed"), [(6, None, 4), (8, 3, 3 + 8 + 0.5)])
def test_act_blocks_come_for_good_as_far_as_there_is_room_and_others_once_a_token(
    steps: int, room: int | None, crossed: float
) -> None:
    """All four blocks of 2,048 bytes, or three that fill the room: two buffers and what is
    generated take 3 x 16 x 256 bytes, what is decoded 768 a token. After the last pass, the first
    of the two layers of a next one has begun to come."""
    budget = room and (room * 2048 + 3 * 16 * 256 + steps * 768) / 2**30
    engine = engine_of(multi_head("opt"), act_share=1, mini_batch_tokens=16, budget_gib=budget)
    branch = engine.root(prompt(1, 33))
    for kv in engine.memory.live:
        engine.memory.evict(kv, "test")
    assert capture(engine).counts() == (0, 32, 0)
    engine.generate([branch], steps, sampling=GREEDY)
    assert engine.memory.link.to_device_bytes["act"] == crossed * 2048
    assert_nothing_left(engine, [branch])


def prefixed(engine: Engine, branches: int, length: int = 33) -> list[Branch]:
    root = engine.root(prompt(1, length))
    forks = engine.fork(root, branches)
    engine.release([root])
    return forks


@pytest.mark.parametrize("branches", [1, 6])
def test_a_shared_prefix_crosses_and_is_regenerated_once_for_all_of_its_branches(
    branches: int,
) -> None:
    """32 tokens, in blocks of 8, half of them ACT; a pass moves each block once whatever the number
    of branches."""
    engine = engine_of(multi_head("opt"), act_share=0.5, budget_gib=13 * 1024 / 2**30)
    forks = prefixed(engine, branches)
    for kv in engine.memory.live:
        engine.memory.evict(kv, "test")
    residency, seen = capture(engine), list[int]()
    engine.memory.device.budget_bytes = None
    generate = residency.regenerate
    assert generate is not None

    def counted(layer: int, inputs: Any, positions: Any) -> Any:
        seen.append(len(inputs))
        return generate(layer, inputs, positions)

    residency.regenerate = counted
    before = dict(engine.memory.link.to_device_bytes)
    paths, ends = [b.leaf.path() for b in forks], [32] * branches
    plan = residency.stream(Reads(residency.pieces(paths, [1] * branches, ends), ends))
    assert plan is not None
    with torch.inference_mode():
        units = [list(plan.read(layer)) for layer in range(2)]
    plan.close()
    moved = {
        cause: n - before.get(cause, 0) for cause, n in engine.memory.link.to_device_bytes.items()
    }
    assert seen == [16, 16] and [len(layer) for layer in units] == [1, 1]
    assert moved == {"act": 2 * 16 * 32 * 4, "kv": 2 * 16 * 64 * 4}
    engine.release(forks)


@pytest.mark.parametrize("mine", [1, 2])  # with one block a further one makes it the ratio
@pytest.mark.parametrize("mine_are_acts", [True, False])
def test_a_branch_that_is_a_block_from_the_ratio_does_not_go_by_what_others_lack(
    mine_are_acts: bool, mine: int
) -> None:
    """Half of the tokens shall be ACT blocks. This branch has one or two blocks of one kind, and
    others four of the other kind."""
    residency = capture(engine_of(multi_head("opt"), act_share=0.5))
    residency.act_share = float(mine_are_acts)
    path = [block(residency) for _ in range(mine)]
    residency.act_share = 1.0 - mine_are_acts
    others = [block(residency) for _ in range(4)]
    assert {bool(kv.acts) for kv in path} == {mine_are_acts} != {bool(kv.acts) for kv in others}
    residency.act_share = 0.5
    assert bool(block(residency, path).acts) != mine_are_acts


def test_all_branches_together_keep_the_ratio_to_a_block() -> None:
    """Five blocks each, of which 0.7 would be 3.5."""
    engine = engine_of(multi_head("opt"), act_share=0.7)
    branches = engine.roots([prompt(n, 41) for n in range(7)]).result()
    near, far, kv = capture(engine).counts()
    assert near + far + kv == 7 * 40 and abs(near + far - 0.7 * 280) <= 8
    held = [sum(s.storage.filled for s in b.leaf.path() if s.storage.acts) for b in branches]
    assert set(held) == {24, 32}
    assert_nothing_left(engine, branches)


def test_the_ratio_is_algorithm_1s_for_the_blocks_that_there_are() -> None:
    """A KV block takes 3 to cross, an ACT block 1 to be generated: three of four are ACT blocks.
    With weights that take as long as everything, all of them are."""
    plain = multi_head("opt")
    engine = engine_of(plain)
    residency = capture(engine)
    engine.memory.device.budget_bytes = 1  # no room for ACT blocks on the device
    residency.times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0))
    assert residency.allocation(80) == (60, 20)
    residency.times = CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0), load_w=80)
    assert residency.allocation(80) == (80, 0)
    residency.times = CaptureTimes(
        kv_gen=Line(2.0), load_kv=Line(3.0), load_act=Line(1.5), load_w=20
    )
    act, kv = residency.allocation(80)
    assert (act, kv) == (40 + 34, 6)  # 20 / (2 - 1.5), then 40 blocks in the ratio 3 : 0.5


def test_times_are_measured_once_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    link_clock(monkeypatch)
    engine = engine_of(multi_head("opt"), link_gbps=0.002)
    branch = engine.root(prompt(1, 30))
    times = capture(engine).times
    assert times is not None
    per_token = 64 * 4
    assert times.load_kv.slope == pytest.approx(per_token / 0.002e9) and times.load_kv.r2 > 0.99
    assert times.load_act.slope == pytest.approx(per_token / 2 / 0.002e9)
    assert times.kv_gen(64) == 0
    assert_nothing_left(engine, [branch])


def test_with_grouped_queries_no_block_is_an_act_block_and_the_policy_says_why() -> None:
    plain = build("llama")
    with pytest.warns(UserWarning, match="grouped queries"):
        engine = engine_of(plain)
    branches = grow(engine)
    for branch in branches:
        assert_like_plain(plain, branch)
    near, far, kv = capture(engine).counts()
    assert near == far == 0 < kv and "grouped queries" in capture(engine).reason
    assert_nothing_left(engine, branches)


@pytest.mark.slow
@pytest.mark.parametrize("balanced", [True, False])
def test_mini_batches_stay_below_their_tokens(balanced: bool) -> None:
    plain = multi_head("opt")
    engine = engine_of(plain, act_share=0.5, mini_batch_tokens=24, balanced=balanced)
    branches = engine.roots([prompt(n, 30 + n) for n in range(4)]).result()
    paths, ends = [b.leaf.path() for b in branches], [len(b.tokens) for b in branches]
    pieces = engine.residency.pieces(paths, [1] * len(paths), ends)
    reader = engine.residency.stream(Reads(pieces, ends))
    assert reader is not None and len(reader.units) > 8
    assert all(sum(pieces[index].length for index in unit.pieces) <= 24 for unit in reader.units)
    for layer in range(2):
        met = [index for unit in reader.units if unit.layer == layer for index in unit.pieces]
        assert sorted(met) == list(range(len(pieces)))
    reader.close()
    engine.generate(branches, 8, sampling=GREEDY)
    for branch in branches:
        assert_like_plain(plain, branch)


@pytest.mark.parametrize(("mini_batch_tokens", "per_batch"), [(24, (16, 8)), (48, (32, 16))])
def test_mini_batches_have_the_ratio_of_all_blocks(
    mini_batch_tokens: int, per_batch: tuple[int, int]
) -> None:
    """Four ACT blocks and two KV blocks: two to one in each mini-batch, however many it holds."""
    engine = engine_of(multi_head("opt"), act_share=2 / 3, mini_batch_tokens=mini_batch_tokens)
    branch = engine.root(prompt(1, 49))
    pieces = engine.residency.pieces([branch.leaf.path()], [1], [48])
    reader = engine.residency.stream(Reads(pieces, [48]))
    assert reader is not None
    found = [
        tuple(
            sum(pieces[i].length for i in unit.pieces if bool(pieces[i].kv.acts) is acts)
            for acts in (True, False)
        )
        for unit in reader.units
    ]
    reader.close()
    assert found == [per_batch] * (2 * 48 // mini_batch_tokens)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"act_share": 1.5}, "memory.act_share=1.5 must be from 0 to 1"),
        ({"act_share": -0.1}, "memory.act_share=-0.1"),
        ({"mini_batch_tokens": 0}, "memory.mini_batch_tokens=0"),
        ({"mini_batch_tokens": 100, "block_tokens": 64}, "at least twice memory.block_tokens=64"),
        ({"balanced": 3}, "memory.balanced"),
    ],
)
def test_bad_settings_are_refused_by_name(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Capture(**setting)


def test_a_budget_below_a_block_is_refused_with_one_that_would_do() -> None:
    engine = engine_of(multi_head("opt"), act_share=0.5, budget_gib=1024 / 2**30)
    with pytest.raises(OutOfMemory, match="at least"):
        engine.generate([engine.root(prompt(1, 40))], 4)


class Captured(Ownership):
    """The same invariants as for all policies, with blocks of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        memory = Capture(14 / 2**20, act_share=0.5, block_tokens=8)
        self.engine = Engine(deep(2, 2, 64), Letters(), memory=memory)


TestOwnership = Captured.TestCase
TestOwnership.settings = settings(max_examples=examples(8), stateful_step_count=15)


def test_times_are_measured_on_the_machine_and_not_in_a_trial() -> None:
    engine = Engine(deep(layers=3, heads=2, context=256), Letters(), memory=Capture(3e-5))
    policy, links = capture(engine), list[Any]()

    def measure(layer: int, rows: int, tokens: int) -> CaptureTimes:
        links.append(engine.memory.link)
        return CaptureTimes(kv_gen=Line(1.0), load_kv=Line(3.0))

    policy.measure = measure
    engine.generate(engine.fork(engine.root(prompt(1, 20)), 2), 4)
    assert links and not any(isinstance(link, DryLink) for link in links)
