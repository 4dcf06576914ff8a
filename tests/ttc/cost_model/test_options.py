"""Every way to run a search: times and bytes by hand on numbers that are easy to divide, and what
does not fit."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiers import examples
from ttc.cost_model.device_profile import RUN, DeviceProfile, LinkProfile
from ttc.cost_model.options import PLACEMENTS, Machine, Option, best, options, pipelined
from ttc.cost_model.policies import (
    CAPTURE_TOKENS,
    MINI_BATCH_TOKENS,
    POLICIES,
    Cache,
    Steps,
    StreamedRead,
    capture_times,
    segments,
)
from ttc.cost_model.unit import Pass, Unit
from ttc.errors import OutOfMemory
from ttc.tree.branch import MOST_ROWS

DEVICE = DeviceProfile(name="device", bandwidth=100, flops={1: 1e12})
LINK = LinkProfile(to_device_bandwidth=10, to_host_bandwidth=10)
BLOCK = Unit(
    name="b",
    param_bytes=1000,
    multiplied=500,
    hidden=8,
    kv_elements=5,
    score_elements=10,
    is_block=True,
)
STATES = replace(BLOCK, name="r", kv_elements=0, score_elements=0, state_bytes=7)
EMBEDDING = Unit(name="e", param_bytes=300, multiplied=0, hidden=0)
OUTPUT = Unit(name="o", param_bytes=400, multiplied=200, hidden=0)
UNITS = (EMBEDDING, *[BLOCK] * 4, OUTPUT)
SEARCH = Steps(prompt_tokens=10, output_tokens=12, branches=2, step_tokens=4)
# A token takes 10 bytes of KV in a layer. Half way a branch has 4 + 2 tokens; a pass reads 10 + 2 *
# 7.
ATTENDED = (10 + 2 * 7) * 10 / 100
LAYER_S, OUTPUT_S = 1000 / 100 + ATTENDED, 400 / 100
WEIGHTS, KV = 4700, 4 * 10 * (10 + 2 * (12 + 4))


def machine(device_bytes: int | None = None, host_bytes: int | None = None) -> Machine:
    return Machine(
        compiled=DEVICE,
        modules=replace(DEVICE, block_overhead_s=1),
        host=replace(DEVICE, name="host", bandwidth=50),
        link=LINK,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
    )


def plan(
    on: Machine | int | None = None,
    search: Steps = SEARCH,
    units: tuple[Unit, ...] = UNITS,
    **asked: object,
) -> dict[tuple[str, str], Option]:
    """The options by placement and memory. on: a machine, or the bytes of its device."""
    there = on if isinstance(on, Machine) else machine(on)
    found = options(units, asked.pop("kv_heads", 1), there, search, **asked)  # type: ignore[arg-type]
    return {(option.placement, option.memory): option for option in found}


def test_what_fits_takes_the_time_of_its_passes() -> None:
    found = plan(WEIGHTS + KV)
    assert list(found) == [(placement, memory) for placement in PLACEMENTS for memory in POLICIES]
    for memory in ("resident", "beam_groups", "paged", "layerwise"):
        option = found["resident", memory]
        assert option.step_s == pytest.approx(4 * (4 * LAYER_S + OUTPUT_S))
        assert (option.device_bytes, option.link_bytes) == (WEIGHTS + KV, 0)
    assert best(list(found.values())) is found["resident", "resident"]


def test_a_split_has_just_so_many_units_on_the_host_as_it_must_and_waits_for_one_copy() -> None:
    # without the embedding it is one byte too much
    slow = replace(machine(WEIGHTS + KV - 301), link=replace(LINK, to_device_latency_s=3))
    found = plan(slow)["split", "resident"]
    assert found.number == 2
    on_host = 1000 / 50 + (10 + 2 * 7) * 10 / 50
    pass_s = on_host + (3 + 2 * 8 * 2 / 10) + 3 * (LAYER_S + 1) + OUTPUT_S
    assert found.step_s == pytest.approx(4 * pass_s)
    assert found.host_bytes == 300 + 1000 + KV // 4
    assert plan(WEIGHTS + KV - 300)["split", "resident"].number == 1


def test_streamed_layers_come_while_others_compute() -> None:
    found = plan(WEIGHTS + KV - 1000)["streamed", "resident"]
    assert found.number == 1  # of four layers, three come through the room of two
    # each takes 100 s to come and 14 to be computed
    assert found.step_s == pytest.approx(4 * 3 * 1000 / 10)
    assert (found.host_bytes, found.link_bytes) == (3000, 4 * 3000)
    assert plan(WEIGHTS + KV - 1001)["streamed", "resident"].number == 0
    # over a link so fast that nothing waits for it, a fetch takes the device a time of its own
    fast = replace(machine(WEIGHTS + KV - 1000), link=replace(LINK, to_device_bandwidth=1e9))
    fetching = replace(fast, modules=replace(fast.modules, fetch_s=2))
    quick, slow = (plan(each, number=1)["streamed", "resident"].step_s for each in (fast, fetching))
    assert slow - quick == pytest.approx(4 * 3 * 2)


def test_pages_that_do_not_fit_cross_in_every_pass_and_are_attended_one_by_one() -> None:
    """Room for two buffers of 10 tokens, the tails, and nothing else: the prompt and 4 tokens of
    each branch are read, in three pieces."""
    room = 2 * 10 * 10 + 2 * 4 * 40
    pieces = replace(machine(WEIGHTS + room), compiled=replace(DEVICE, piece_s=100, fetch_s=7))
    found = plan(pieces)["resident", "paged"]
    assert found.link_bytes == 4 * 4 * 18 * 10
    assert found.step_s == pytest.approx(4 * (4 * (LAYER_S + 3 * 107) + OUTPUT_S))
    assert plan(pieces)["resident", "resident"].reason == "KV does not fit"


def test_heads_and_layers_that_do_not_fit_cross_in_every_pass() -> None:
    found = plan(WEIGHTS + 4 * 10 * 25)
    headwise = found["resident", "headwise"]
    crossing = 4 * (10 + 2 * 4) * 10  # the tokens of earlier steps, of every layer
    assert headwise.link_bytes == 4 * crossing
    assert headwise.step_s == pytest.approx(4 * crossing / 10, rel=0.05)
    # of three layers that fit two are buffers; half way a branch has written 2 tokens more
    layerwise = plan(WEIGHTS + 3 * 10 * 26)["resident", "layerwise"]
    assert layerwise.feasible and layerwise.link_bytes == 4 * 3 * (10 + 2 * 6) * 10


def test_a_layers_weights_come_before_the_first_of_its_heads() -> None:
    """Two heads come one after the other, in 0.9 each. The weights of the next layer, with its
    first head, come while a layer is computed; the second head comes while the first is attended,
    which takes next to nothing."""
    room = 2 * 34 * 10 // 2 + 2 * 4 * 40  # two buffers of a head of all tokens, and what is written
    fast = replace(machine(2 * 1000 + 700 + room), link=replace(LINK, to_device_bandwidth=100))
    found = plan(fast, number=0, kv_heads=2)["streamed", "headwise"]
    assert found.feasible and LAYER_S + 1 > 1000 / 100 + 0.9
    assert found.step_s == pytest.approx(4 * (4 * (LAYER_S + 1 + 0.9) + OUTPUT_S))


def test_layers_whose_weights_stream_run_by_plain_modules() -> None:
    slow = replace(machine(WEIGHTS + KV - 1000), plain=replace(DEVICE, bandwidth=2))
    found = plan(slow)
    plain_s = 4 * (4 * LAYER_S + OUTPUT_S) * 100 / 2
    assert found["streamed", "resident"].step_s == pytest.approx(plain_s, rel=0.1)
    split = plan(WEIGHTS + KV - 1000)["split", "resident"]
    assert found["split", "resident"].step_s == split.step_s


# -------------------------------------------------------------------- capture

# A token takes 16 bytes of KV in a layer, and 4 bytes of activations.
WIDE = replace(BLOCK, hidden=2, kv_elements=8, score_elements=8)
RATES = DeviceProfile(
    name="d",
    bandwidth=100,
    flops={1: 50, MINI_BATCH_TOKENS: 800},
    block_overhead_s=3,
    pass_overhead_s=7,
    piece_s=0.5,
)
ONE = replace(SEARCH, branches=1)
READ = StreamedRead(0, shared_tokens=10, own_tokens=4, shared_pieces=1, own_pieces=1)
# 1,000 products at 50 a second; 17 tokens attended at 16 each, 272 at 50; two pieces. A pass's
# overhead is no layer's.
FORWARD_S = 20 + 272 / 50 + 3 + 2 * 0.5


def wide(search: Steps = ONE, weight_bytes: int = 0) -> Cache:
    return Cache([WIDE] * 2, search, 1, RATES, LINK, weight_bytes)


def test_captures_times_come_from_the_profile() -> None:
    times = capture_times(wide(weight_bytes=1000), READ, ONE.work_of(1))
    # 2 H multiply-adds for each number of K and V, and a copy of these; a block's calls at most
    assert times.kv_gen.slope == pytest.approx(2 * 2 * 8 / 800 + 2 * 16 / 100)
    assert times.kv_gen.intercept == 3
    assert (times.load_kv.slope, times.load_act.slope) == pytest.approx((16 / 10, 4 / 10))
    assert (times.load_w, times.forward_s) == pytest.approx((1000 / 10, FORWARD_S))


def test_capture_keeps_kv_alone_where_it_would_lose_by_its_own_model() -> None:
    """14 tokens take 22.4 as KV blocks, and what else a layer computes takes 29.4."""
    for room in (inf, 1000):
        reads = POLICIES["capture"].traffic(wide(), room).reads
        assert [(r.load_bytes, r.generate_s) for r in reads if r] == [(14 * 16, 0)] * 2


def test_capture_keeps_activations_while_weights_cross() -> None:
    """Weights take 50, in which 14 tokens are generated in 5.04 and a call; on the device nothing
    of them crosses. Little room there takes them in parts: 3 x 14 x 16 bytes through 80."""
    for room, crossing, batches in ((inf, 0, 1), (ONE.step_tokens * (16 + 4) * 2, 14 * 4, 9)):
        read = POLICIES["capture"].traffic(wide(weight_bytes=500), room).reads[0]
        assert read is not None and (read.load_bytes, read.fetches) == (crossing, batches)
        assert read.generate_s == pytest.approx(14 * 0.36 + batches * 3)


def test_capture_balances_what_crosses_and_what_is_computed() -> None:
    """Of a prompt of 1,000 tokens, with the device full: T_PCIe 1.6 KV + 0.4 ACT is T_Computation,
    but for a token."""
    # generating takes 2 and a copy 0.32, a call 3
    rates = replace(RATES, flops={1: 2000, MINI_BATCH_TOKENS: 16})
    slow = replace(wide(replace(ONE, prompt_tokens=1000)), rates=rates)
    read = POLICIES["capture"].traffic(slow, ONE.step_tokens * (16 + 4) * 2).reads[0]
    assert read is not None and read.fetches == 603  # 3 x 1,004 x 16 bytes through 80
    act = (read.generate_s - 603 * 3) / 2.32
    kv = 1004 - act
    assert read.load_bytes == pytest.approx(16 * kv + 4 * act) and 0 < act < 1004
    pieces = 1000 // CAPTURE_TOKENS + 1 + 1
    forward_s = (
        max(1000 / 2000, 1000 / 100) + max(16 * 1007 / 2000, 1007 * 16 / 100) + 3 + pieces * 0.5
    )
    assert 1.6 * kv + 0.4 * act == pytest.approx(forward_s + 3 + 2.32 * act, abs=1.6 + 2.32)


def test_activations_are_kept_where_they_are_smaller() -> None:
    found = plan(WEIGHTS + 1000, units=(EMBEDDING, *[WIDE] * 4, OUTPUT))
    assert all(found[placement, "capture"].feasible for placement in ("resident", "split"))
    assert plan()["resident", "capture"].reason == "an ACT block is no smaller (16 bytes, KV 10)"


# -------------------------------------------------------------------- groups and problems


def test_what_a_window_hides_does_not_cross() -> None:
    units = (EMBEDDING, BLOCK, replace(BLOCK, window=600), OUTPUT)
    search = replace(SEARCH, prompt_tokens=2048)
    room = 2 * 512 * 10 + 2 * 4 * 20
    found = plan(2700 + room, search, units)["resident", "paged"]
    whole, seen = 2048 + 2 * 4, 2048 - 2 * 512 + 2 * 4  # of four blocks of 512 tokens the last two
    assert found.link_bytes == 4 * (whole + seen) * 10


def test_what_is_read_in_pieces_takes_longer_than_what_is_there() -> None:
    rates = replace(DEVICE, attention_flops={1: 100}, streamed_flops={1: 50}, piece_s=3)
    work, group = Pass(2, own_tokens=9, shared_tokens=9), BLOCK.group / 2
    shared = {"shared_tokens": 10, "shared_pieces": 1}
    read = StreamedRead(0, own_tokens=0, own_pieces=0, **shared)
    longer_s = 2 * 10 * 2 * 10 * (1 / 50 - 1 / 100)
    assert group == 1 and read.piecemeal_s(BLOCK, rates, work) == pytest.approx(longer_s + 3)
    # a piece holds `RUN` tokens of a branch, as it was measured
    own = StreamedRead(0, own_tokens=RUN, own_pieces=1, **shared)
    assert own.piecemeal_s(BLOCK, rates, work) == pytest.approx(longer_s + 3 * 3)
    longer = StreamedRead(0, own_tokens=RUN + 10, own_pieces=1, **shared)
    assert longer.piecemeal_s(BLOCK, rates, work) == pytest.approx(2 * longer_s + 3 * 3)


@pytest.mark.parametrize(
    ("branches", "room", "rounds", "step_tokens", "ahead_tokens"),
    [
        # two of 4 tokens grow to 8 each beside the prompt's 10, with room for 3 more; of 34 tokens
        # the first group is there, so 16 come, 3 of them are there as well
        (6, 29, 3, 16 - 3, 3),
        # the second group is the last
        (4, 29, 2, 8 - 3, 0),
        # one branch, with room for 7 more; but the group before it leaves 4 tokens of its own
        (6, 25, 6, 5 * 4 - 4, (6 - 2) * 4),
    ],
)
def test_groups_move_once_a_step_and_the_room_beside_one_takes_what_comes_ahead(
    branches: int, room: int, rounds: int, step_tokens: int, ahead_tokens: int
) -> None:
    cache = Cache([BLOCK], replace(SEARCH, branches=branches), 1, DEVICE, LINK)
    traffic = POLICIES["beam_groups"].traffic(cache, room * 10)
    moved = traffic.rounds, traffic.step_bytes, traffic.ahead_bytes
    assert moved == (rounds, step_tokens * 10, ahead_tokens * 10)


def test_each_group_takes_its_passes_a_beginning_and_an_end() -> None:
    room = 4 * 10 * 25  # groups of one branch, as two with what they write take 26 tokens
    slow = replace(machine(WEIGHTS + room), compiled=replace(DEVICE, step_s=100))
    alone = 4 * (10 + (10 + 7) * 10 / 100) + OUTPUT_S
    found = plan(slow)["resident", "beam_groups"]
    assert found.step_s == pytest.approx(2 * (4 * alone + 100))  # what comes fits beside a group
    # what comes ahead is hidden no longer than other groups decode
    slowest = replace(LINK, to_device_bandwidth=0.01)
    many = replace(machine(WEIGHTS + 4 * 10 * 32), link=slowest)  # two of six at a time
    found = plan(many, replace(SEARCH, branches=6))["resident", "beam_groups"]
    assert found.step_s - found.link_bytes / 0.01 == pytest.approx(4 * (4 * LAYER_S + OUTPUT_S))


def test_a_branch_has_its_tokens_in_so_many_segments_as_storages_have_room_for() -> None:
    # each step has a storage of its own; of 256 tokens at once: five times 32, 40, and the rest
    cases = {(0, 16, 512): 0, (16, 16, 512): 1, (64, 16, 512): 4, (48, 48, 32): 2}
    for case, count in (cases | {(256, 256, 512): 7}).items():
        assert segments(*case) == count


def test_problems_side_by_side_read_a_prompt_each_and_all_of_their_branches() -> None:
    option = plan(problems=3)["resident", "resident"]
    attended = 3 * (10 + 2 * 7) * 10 / 100
    assert option.step_s == pytest.approx(4 * (4 * (1000 / 100 + attended) + OUTPUT_S))
    assert (option.problems, option.problem_s) == (3, option.step_s / 3)
    assert option.device_bytes == WEIGHTS + 3 * KV
    tight = plan(WEIGHTS + 2 * KV, problems=3)["resident", "resident"]
    assert tight.reason == "KV does not fit"
    groups = plan(WEIGHTS + 4 * 10 * 63, problems=3)["resident", "beam_groups"]
    # 4 branches with 8 tokens on two prompts fit, so there are 2 rounds of 3, which leave room for
    # 63 - 20 - 3 * 8
    assert groups.link_bytes == 10 * 4 * (3 * 10 + 6 * 4 - (2 * 10 + 3 * 4) - 19)


def test_a_run_that_is_not_told_begins_as_many_problems_as_half_of_its_memory_holds() -> None:
    first = 4 * 10 * (10 + 2 * 2 * 4)  # bytes of the prompt, and of what two branches write, twice
    room = machine(WEIGHTS + 6 * first)

    def problems(
        on: Machine,
        memory: str = "resident",
        search: Steps = SEARCH,
        units: tuple[Unit, ...] = UNITS,
    ) -> int:
        option = plan(on, search, units, problems=None)["resident", memory]
        assert option.feasible
        return option.problems

    assert problems(room) == 3
    assert problems(room, "beam_groups") == problems(machine()) == MOST_ROWS // 2
    assert problems(replace(room, kv_bytes=10 * first), "beam_groups") == 5
    long = replace(SEARCH, output_tokens=400)  # what begins could not be ended
    assert problems(machine(WEIGHTS + 4 * 10 * 1700), search=long) == 2
    states = machine(WEIGHTS + 4 * 7 * (2 * 2 + 1) * 8)
    assert problems(states, units=(EMBEDDING, *[STATES] * 4, OUTPUT)) == 4


def test_tokens_are_drawn_between_passes() -> None:
    drawing = replace(machine(), compiled=replace(DEVICE, row_s=5, logit_s=0.1))
    units = (*UNITS[:-1], replace(OUTPUT, hidden=2))  # logits of 100 tokens
    found = plan(drawing, units=units)["resident", "resident"]
    assert found.step_s == pytest.approx(4 * (4 * LAYER_S + OUTPUT_S + 2 * (5 + 100 * 0.1)))


def test_recurrent_states_stay_with_their_layer() -> None:
    """Of two branches before and after a step, and where they part."""
    hybrid = (EMBEDDING, STATES, STATES, BLOCK, BLOCK, OUTPUT)
    found = plan(units=hybrid)
    assert found["resident", "resident"].device_bytes == WEIGHTS + KV // 2 + 5 * 2 * 7
    assert plan(units=hybrid, number=2)["split", "paged"].host_bytes == 1300 + 5 * 7
    # keys and values, and three states
    assert found["resident", "headwise"].host_bytes == 2 * 10 * (10 + 2 * 12) + 3 * 14


def test_recurrent_states_leave_for_the_host_where_they_do_not_fit() -> None:
    units = (EMBEDDING, *[STATES] * 4, OUTPUT)  # 28 bytes a branch

    def found(room: int) -> dict[str, Option]:
        return {
            o.memory: o for o in plan(WEIGHTS + room, units=units, placements=["resident"]).values()
        }

    # two branches before and after a step, and where they part
    for name, option in found(5 * 28).items():
        assert option.reason == ("there is no KV" if name == "capture" else "")
    whole, both, one = (found(n * 28)["paged"] for n in (5, 2, 1))
    assert (whole.device_bytes, whole.host_bytes) == (WEIGHTS + 5 * 28, 0)
    assert (both.device_bytes, both.host_bytes) == (WEIGHTS + 2 * 28, 3 * 28)
    assert both.step_s == pytest.approx(whole.step_s + 2 * 28 / 10)
    assert (one.device_bytes, one.host_bytes) == (WEIGHTS + 28, 3 * 28)
    assert one.step_s > 1.8 * both.step_s
    too_small = found(27)
    assert not any(option.feasible for option in too_small.values())
    assert too_small["paged"].device_bytes == WEIGHTS + 28
    assert found(5 * 28 - 1)["resident"].device_bytes == WEIGHTS + 5 * 28


@settings(max_examples=examples(30))
@given(budget=st.integers(0, WEIGHTS + KV))
def test_what_does_not_fit_names_the_bytes_with_which_it_would(budget: int) -> None:
    for key, option in plan(budget).items():
        if option.feasible:
            assert option.device_bytes <= budget
        elif option.device_bytes:
            assert option.device_bytes > budget
            assert plan(option.device_bytes)[key].feasible


def test_where_nothing_fits_the_least_that_would_is_named() -> None:
    short = plan(machine(WEIGHTS + KV - 1000, host_bytes=2999))["streamed", "resident"]
    assert (short.reason, short.host_bytes) == ("the host is too small", 3000)
    least = r"need least, [\d,]+ bytes on the device and [\d,]+ on the host"
    with pytest.raises(OutOfMemory, match=least):
        best(list(plan(100).values()))


def test_one_placement_and_one_number_may_be_asked_for() -> None:
    found = plan(placements=["split"], number=3)
    assert {key[0] for key in found} == {"split"} and found["split", "resident"].number == 3
    few = plan(units=(EMBEDDING, BLOCK, BLOCK, OUTPUT))["streamed", "paged"]
    assert few.reason == "too few layers"


def test_a_layer_waits_for_what_the_one_before_it_left_time_for() -> None:
    assert pipelined([1, 1, 1], [0, 0, 0], rest_s=2) == 5
    assert pipelined([1, 1, 1], [0, 3, 3]) == 6  # the link never rests
    assert pipelined([2, 2, 2], [0, 3, 3]) == 7  # it rests while the first layer computes
    assert pipelined([2, 2, 2], [1, 1, 1], rest_s=1) == 7
    assert pipelined([2, 2, 2], [0, 3, 3], buffers=1) == 12


@given(
    layers=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=6),
    rest=st.floats(0, 5),
)
def test_copies_hide_no_more_than_either_takes(
    layers: list[tuple[float, float]], rest: float
) -> None:
    computing, loads = zip(*layers, strict=True)
    seconds, whole = pipelined(computing, loads, rest), sum(computing) + rest
    assert max(whole, sum(loads)) - 1e-9 <= seconds <= whole + sum(loads) + 1e-9
