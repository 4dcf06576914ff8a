"""Every way to run a search: times and bytes by hand on numbers that are easy to divide, and what
does not fit."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.options import PLACEMENTS, Machine, Option, best, options, pipelined
from ttc.cost_model.policies import POLICIES, Steps, segments
from ttc.cost_model.unit import Unit
from ttc.errors import InvalidInput, OutOfMemory
from ttc.tree.branch import MOST_ROWS

FAST = {1: 1e12}
DEVICE = DeviceProfile(name="device", bandwidth=100, flops=FAST)
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
UNITS = (
    Unit(name="e", param_bytes=300, multiplied=0, hidden=0),
    *[BLOCK] * 4,
    Unit(name="o", param_bytes=400, multiplied=200, hidden=0),
)
SEARCH = Steps(prompt_tokens=10, output_tokens=12, branches=2, step_tokens=4)
# A token takes 10 bytes of KV in a layer. Half way a branch has 4 + 2 tokens; a pass reads 10 + 2 *
# 7.
ATTENDED = (10 + 2 * 7) * 10 / 100
LAYER_S, OUTPUT_S = 1000 / 100 + ATTENDED, 400 / 100
WEIGHTS, KV = 4700, 4 * 10 * (10 + 2 * (12 + 4))


def machine(device_bytes: int | None = None, host_bytes: int | None = None) -> Machine:
    by_modules = replace(DEVICE, block_overhead_s=1)
    slow = replace(DEVICE, name="host", bandwidth=50)
    return Machine(
        compiled=DEVICE,
        modules=by_modules,
        host=slow,
        link=LINK,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
    )


def plan(
    device_bytes: int | None = None, host_bytes: int | None = None, **options_: object
) -> dict[tuple[str, str], Option]:
    found = options(UNITS, 1, machine(device_bytes, host_bytes), SEARCH, **options_)
    return {(option.placement, option.memory): option for option in found}


def test_all_combinations_are_answered_in_order() -> None:
    assert list(plan()) == [(placement, memory) for placement in PLACEMENTS for memory in POLICIES]


def test_what_fits_takes_the_time_of_its_passes() -> None:
    found = plan(WEIGHTS + KV)
    assert found["resident", "resident"].step_s == pytest.approx(4 * (4 * LAYER_S + OUTPUT_S))
    assert found["resident", "resident"].device_bytes == WEIGHTS + KV
    assert {
        found["resident", memory].step_s for memory in ("beam_groups", "paged", "layerwise")
    } == {found["resident", "resident"].step_s}
    assert best(list(found.values())).placement == "resident"
    assert best(list(found.values())).memory == "resident"


def test_a_split_has_just_so_many_units_on_the_host_as_it_must() -> None:
    # without the embedding it is one byte too much
    found = plan(WEIGHTS + KV - 301)["split", "resident"]
    assert found.number == 2
    on_host = 1000 / 50 + (10 + 2 * 7) * 10 / 50
    pass_s = on_host + 2 * 8 * 2 / 10 + 3 * (LAYER_S + 1) + OUTPUT_S
    assert found.step_s == pytest.approx(4 * pass_s)
    assert found.host_bytes == 300 + 1000 + KV // 4
    assert plan(WEIGHTS + KV - 300)["split", "resident"].number == 1


def test_a_split_waits_for_one_copy() -> None:
    """The states, with what layers are given beside them."""
    slow = replace(machine(), link=replace(LINK, to_device_latency_s=3))
    found = options(UNITS, 1, slow, SEARCH, ["split"], number=2, share=0.0)[0]
    on_host = 1000 / 50 + (10 + 2 * 7) * 10 / 50
    pass_s = on_host + (3 + 2 * 8 * 2 / 10) + 3 * (LAYER_S + 1) + OUTPUT_S
    assert (found.memory, found.step_s) == ("resident", pytest.approx(4 * pass_s))


def test_a_layers_weights_come_before_the_first_of_its_heads() -> None:
    """Two heads come one after the other, in 0.9 each. The weights of the next layer, with its
    first head, come while a layer is computed; the second head comes while the first is attended,
    which takes next to nothing."""
    room = 2 * 34 * 10 // 2 + 2 * 4 * 40  # two buffers of a head of all tokens, and two tails
    fast = replace(machine(2 * 1000 + 700 + room), link=replace(LINK, to_device_bandwidth=100))
    found = {o.memory: o for o in options(UNITS, 2, fast, SEARCH, ["streamed"], number=0)}[
        "headwise"
    ]
    assert found.feasible and LAYER_S + 1 > 1000 / 100 + 0.9
    assert found.step_s == pytest.approx(4 * (4 * (LAYER_S + 1 + 0.9) + OUTPUT_S))


def test_streamed_layers_come_while_others_compute() -> None:
    found = plan(WEIGHTS + KV - 1000)["streamed", "resident"]
    assert found.number == 1  # of four layers, three come through the room of two
    # each takes 100 s to come and 14 to be computed
    assert found.step_s == pytest.approx(4 * 3 * 1000 / 10)
    assert found.host_bytes == 3000
    assert plan(WEIGHTS + KV - 1001)["streamed", "resident"].number == 0


def test_fetching_a_layers_weights_takes_the_device_a_time_of_its_own() -> None:
    """A link so fast that nothing waits for it: each of the three layers that come costs what a
    fetch does."""
    plain = replace(machine(WEIGHTS + KV - 1000), link=replace(LINK, to_device_bandwidth=1e9))
    fetching = replace(plain, modules=replace(plain.modules, fetch_s=2))
    without, with_fetches = (
        next(o for o in options(UNITS, 1, each, SEARCH, ["streamed"], 1) if o.memory == "resident")
        for each in (plain, fetching)
    )
    assert with_fetches.step_s - without.step_s == pytest.approx(4 * 3 * 2)


def test_kv_that_does_not_fit_crosses_in_every_pass_or_once_a_step() -> None:
    room = 4 * 10 * 25  # for 25 tokens of 42
    found = plan(WEIGHTS + room)
    assert found["resident", "resident"].reason == "KV does not fit"
    headwise = 4 * (10 + 2 * 4) * 10 / 10  # the tokens of earlier steps, of every layer
    assert found["resident", "headwise"].step_s == pytest.approx(4 * headwise, rel=0.05)
    # groups of one branch, as two with their tails take 26 tokens
    alone = 4 * (10 + (10 + 7) * 10 / 100) + OUTPUT_S
    # 4 tokens come ahead
    assert found["resident", "beam_groups"].step_s == pytest.approx(2 * 4 * alone)


def test_a_branch_has_its_tokens_in_so_many_segments_as_storages_have_room_for() -> None:
    assert segments(0, 16, 512) == 0
    assert segments(16, 16, 512) == 1
    assert segments(64, 16, 512) == 4  # each step has a storage of its own
    assert segments(48, 48, 32) == 2
    assert segments(256, 256, 512) == 7  # five times 32 tokens, 40, and what is left of the step


def test_problems_side_by_side_read_a_prompt_each_and_all_of_their_branches() -> None:
    found = {o.memory: o for o in options(UNITS, 1, machine(), SEARCH, ["resident"], problems=3)}
    attended = 3 * (10 + 2 * 7) * 10 / 100
    option = found["resident"]
    assert option.step_s == pytest.approx(4 * (4 * (1000 / 100 + attended) + OUTPUT_S))
    assert (option.problems, option.problem_s) == (3, option.step_s / 3)
    assert option.device_bytes == WEIGHTS + 3 * KV
    assert found["headwise"].link_bytes == 4 * 4 * 3 * (10 + 2 * 4) * 10
    room = machine(WEIGHTS + 2 * KV)
    assert options(UNITS, 1, room, SEARCH, ["resident"], problems=3)[0].reason == "KV does not fit"
    groups = options(UNITS, 1, machine(WEIGHTS + 4 * 10 * 63), SEARCH, ["resident"], problems=3)[1]
    # 4 branches with 8 tokens on two prompts fit, so there are 2 rounds of 3, which leave room for
    # 63 - 20 - 3 * 8
    assert (groups.memory, groups.link_bytes) == (
        "beam_groups",
        10 * 4 * (3 * 10 + 6 * 4 - (2 * 10 + 3 * 4) - 19),
    )


def test_a_run_that_is_not_told_begins_as_many_problems_as_half_of_its_memory_holds() -> None:
    first = 4 * 10 * (10 + 2 * 2 * 4)  # bytes of the prompt, and of two branches' tails, twice
    found = options(UNITS, 1, machine(WEIGHTS + 6 * first), SEARCH, ["resident"], problems=None)
    assert [option.problems for option in found[:2]] == [3, MOST_ROWS // 2]
    assert all(option.feasible for option in found[:2])
    few = replace(machine(WEIGHTS + 6 * first), kv_bytes=10 * first)
    assert options(UNITS, 1, few, SEARCH, ["resident"], problems=None)[1].problems == 5
    assert (
        options(UNITS, 1, machine(), SEARCH, ["resident"], problems=None)[0].problems
        == MOST_ROWS // 2
    )
    long = replace(SEARCH, output_tokens=400)  # what begins could not be ended
    grows = options(UNITS, 1, machine(WEIGHTS + 4 * 10 * 1700), long, ["resident"], problems=None)[
        0
    ]
    assert (grows.problems, grows.feasible) == (2, True)
    recurrent = (UNITS[0], *[replace(BLOCK, kv_elements=0, state_bytes=9)] * 4, UNITS[-1])
    state = machine(WEIGHTS + 4 * 9 * (2 * 2 + 1) * 8)
    assert options(recurrent, 1, state, SEARCH, ["resident"], problems=None)[0].problems == 4


def test_what_a_window_hides_does_not_cross() -> None:
    narrow = replace(BLOCK, window=600)
    units = (UNITS[0], BLOCK, narrow, UNITS[-1])
    search = Steps(prompt_tokens=2048, output_tokens=12, branches=2, step_tokens=4)
    found = {o.memory: o for o in options(units, 1, machine(), search, ["resident"])}
    whole, seen = 2048 + 2 * 4, 2048 - 2 * 512 + 2 * 4  # of four blocks of 512 tokens the last two
    assert found["headwise"].link_bytes == 4 * (whole + seen) * 10


def test_what_streams_is_attended_piece_by_piece() -> None:
    pieces = replace(machine(), compiled=replace(DEVICE, piece_s=100))
    crossing = 4 * 4 * 18 * 10 / 10
    few = options(UNITS, 1, pieces, SEARCH, ["resident"])[3]
    assert (few.memory, few.link_bytes) == ("headwise", 10 * crossing)
    # the prompt, and what each branch has
    assert few.step_s == pytest.approx(4 * (4 * (LAYER_S + 3 * 100) + OUTPUT_S))


def test_tokens_are_drawn_between_passes() -> None:
    drawing = replace(machine(), compiled=replace(DEVICE, row_s=5, logit_s=0.1))
    units = (*UNITS[:-1], replace(UNITS[-1], hidden=2))  # logits of 100 tokens
    found = options(units, 1, drawing, SEARCH, ["resident"])[0]
    assert found.step_s == pytest.approx(4 * (4 * LAYER_S + OUTPUT_S + 2 * (5 + 100 * 0.1)))


def test_what_comes_ahead_is_hidden_no_longer_than_other_groups_decode() -> None:
    search = replace(SEARCH, branches=6)  # two at a time
    link = LinkProfile(to_device_bandwidth=0.01, to_host_bandwidth=0.01)
    slow = replace(machine(WEIGHTS + 4 * 10 * 32), link=link)
    found = {o.memory: o for o in options(UNITS, 1, slow, search, ["resident"])}["beam_groups"]
    one_group_s = found.step_s - found.link_bytes / 0.01
    assert one_group_s == pytest.approx(4 * (4 * LAYER_S + OUTPUT_S))


def test_each_group_of_a_step_has_a_beginning_and_an_end() -> None:
    for memory, budget, groups in (("resident", None, 1), ("beam_groups", WEIGHTS + KV // 2, 2)):
        slow = replace(machine(budget), compiled=replace(DEVICE, step_s=100))
        found = {o.memory: o for o in options(UNITS, 1, slow, SEARCH, ["resident"])}
        quick = plan(budget)["resident", memory]
        assert found[memory].step_s == pytest.approx(quick.step_s + groups * 100)


def test_layers_whose_weights_stream_run_by_plain_modules() -> None:
    slow = replace(machine(WEIGHTS + KV - 1000), plain=replace(DEVICE, bandwidth=2))
    found = {o.placement: o for o in options(UNITS, 1, slow, SEARCH) if o.memory == "resident"}
    assert found["streamed"].step_s == pytest.approx(
        4 * (4 * LAYER_S + OUTPUT_S) * 100 / 2, rel=0.1
    )
    assert found["split"].step_s == plan(WEIGHTS + KV - 1000)["split", "resident"].step_s


def test_activations_are_kept_where_they_are_smaller() -> None:
    small = replace(BLOCK, hidden=2, kv_elements=8, score_elements=8)
    units = (UNITS[0], *[small] * 4, UNITS[-1])
    found = options(units, 1, machine(WEIGHTS + 1000), SEARCH)
    capture = {option.placement: option for option in found if option.memory == "capture"}
    assert (
        capture["resident"].feasible and capture["split"].feasible and capture["split"].step_s < inf
    )
    assert plan()["resident", "capture"].reason == "an ACT block is no smaller (16 bytes, KV 10)"


def test_recurrent_states_stay_on_the_device_of_their_layer() -> None:
    recurrent = Unit(
        name="r", param_bytes=1000, multiplied=500, hidden=8, state_bytes=7, is_block=True
    )
    units = (UNITS[0], recurrent, recurrent, BLOCK, BLOCK, UNITS[-1])
    found = {
        (o.placement, o.memory): o
        for o in options(units, 1, machine(), SEARCH, ["resident", "split"])
    }
    assert found["resident", "resident"].device_bytes == WEIGHTS + KV // 2 + (2 * 2 + 1) * 2 * 7
    assert found["split", "paged"].host_bytes == 300
    assert found["split", "resident"].host_bytes == 300


def test_recurrent_states_leave_for_the_host_where_they_do_not_fit() -> None:
    recurrent = Unit(
        name="r", param_bytes=1000, multiplied=500, hidden=8, state_bytes=7, is_block=True
    )
    units = (UNITS[0], *[recurrent] * 4, UNITS[-1])  # 28 bytes a branch

    def found(room: int) -> dict[str, Option]:
        return {
            o.memory: o for o in options(units, 1, machine(WEIGHTS + room), SEARCH, ["resident"])
        }

    # two branches before and after a step, and where they part
    for name, option in found(5 * 28).items():
        assert option.reason == ("there is no KV" if name == "capture" else "")
    whole, both, one = found(5 * 28)["paged"], found(2 * 28)["paged"], found(28)["paged"]
    assert (whole.device_bytes, whole.host_bytes) == (WEIGHTS + 5 * 28, 0)
    assert (both.device_bytes, both.host_bytes) == (WEIGHTS + 2 * 28, 3 * 28)
    assert both.step_s == pytest.approx(whole.step_s + 2 * 28 / 10)
    assert (one.device_bytes, one.host_bytes) == (
        WEIGHTS + 28,
        3 * 28,
    ) and one.step_s > 1.8 * both.step_s
    too_small = found(27)
    assert not any(option.feasible for option in too_small.values())
    assert too_small["paged"].device_bytes == WEIGHTS + 28
    assert found(5 * 28 - 1)["resident"].device_bytes == WEIGHTS + 5 * 28
    hybrid = (UNITS[0], recurrent, recurrent, BLOCK, BLOCK, UNITS[-1])
    heads = {o.memory: o for o in options(hybrid, 1, machine(), SEARCH, ["resident"])}["headwise"]
    assert heads.host_bytes == 2 * 10 * (10 + 2 * 12) + 3 * 14  # keys and values, and three states


@pytest.mark.slow
@given(budget=st.integers(0, WEIGHTS + KV))
def test_what_does_not_fit_names_the_bytes_with_which_it_would(budget: int) -> None:
    for key, option in plan(budget).items():
        if option.feasible:
            assert option.device_bytes <= budget
        elif option.device_bytes:
            assert option.device_bytes > budget
            assert plan(option.device_bytes)[key].feasible


def test_a_host_that_is_too_small_is_named() -> None:
    found = plan(WEIGHTS + KV - 1000, host_bytes=2999)["streamed", "resident"]
    assert (found.reason, found.host_bytes) == ("the host is too small", 3000)


def test_where_nothing_fits_the_least_that_would_is_named() -> None:
    with pytest.raises(
        OutOfMemory, match=r"need least, [\d,]+ bytes on the device and [\d,]+ on the host"
    ):
        best(list(plan(100).values()))


def test_one_placement_and_one_number_may_be_asked_for() -> None:
    found = plan(placements=["split"], number=3)
    assert {key[0] for key in found} == {"split"} and found["split", "resident"].number == 3
    with pytest.raises(
        InvalidInput, match=r"placement='cloud' is unknown; use one of resident, split, streamed"
    ):
        plan(placements=["cloud"])


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
    seconds = pipelined(computing, loads, rest)
    assert (
        max(sum(computing) + rest, sum(loads)) - 1e-9
        <= seconds
        <= sum(computing) + sum(loads) + rest + 1e-9
    )


def test_the_device_helps_with_a_splits_layers_where_it_is_another_processor() -> None:
    units = tuple(replace(unit, large_bytes=800 if unit is BLOCK else 0) for unit in UNITS)
    # the output, a layer with its KV, and room for buffers of 0.3 of 800 bytes
    budget = 400 + 1000 + KV // 4 + 480
    for one_processor in (False, True):
        here = replace(machine(budget), one_processor=one_processor)
        found = options(units, 1, here, SEARCH, ["split"])[0]
        assert found.number == 4 and (found.share > 0) != one_processor
        assert found.device_bytes <= budget and found.weight_bytes == 1400 + ceil(
            1600 * found.share
        )
        again = options(units, 1, here, SEARCH, ["split"], number=4, share=found.share)[0]
        assert again == found
    kept = options(units, 1, machine(), SEARCH, ["split"], number=4, share=0.25)[0]
    alone = 3 * (1000 + (10 + 2 * 7) * 10) / 50 + 2 * 8 * 2 / 10 + LAYER_S + 1 + OUTPUT_S
    assert kept.step_s == pytest.approx(4 * (alone - 0.25 * 3 * 800 / 50 + late(0.25)))


def late(share: float) -> float:
    """How much longer than the host's part the link takes, which begins when the device's own
    layers do."""
    crossing = share * 3 * 800 / 9  # nine tenths of the link
    ahead = min(LAYER_S + 1 + OUTPUT_S, crossing * 2 / 3)
    return max(0.0, crossing - ahead - (3 * (1000 + (10 + 2 * 7) * 10) / 50 - share * 3 * 800 / 50))
