"""Head-wise offloading: what it holds, and how large its groups are. (HeadInfer)"""

from __future__ import annotations

import pytest
import torch

from tests.helpers.engines import GREEDY
from tests.helpers.exactness import assert_same
from tests.helpers.models import deep, prompt
from tests.helpers.offloading import KIB
from tests.helpers.tokenizers import Letters
from ttc import Engine, Headwise


@pytest.mark.few(2)
@pytest.mark.parametrize("group", [1, 3])
def test_headwise_holds_two_head_groups_and_the_tails(group: int) -> None:
    """HeadInfer Eq. 8: a 1 / (layers x heads) share of the KV, twice for ping-pong."""
    model, tokens, new = deep(layers=6, heads=4, context=1024), 801, 2
    plain = Engine(model, Letters())
    expected = plain.root(prompt(3, tokens))
    plain.generate([expected], new, sampling=GREEDY)
    engine = Engine(model, Letters(), memory=Headwise(head_group=group))
    branch, policy = engine.root(prompt(3, tokens)), engine.residency
    total = (tokens - 1) * engine.memory.bytes_per_token
    assert isinstance(policy, Headwise)
    assert policy.buffer_bytes([branch.leaf.path()]) == group * total // (6 * 4)
    engine.generate([branch], new, sampling=GREEDY)
    tails = new * engine.memory.bytes_per_token
    assert engine.memory.device.peak_bytes == 2 * group * total // (6 * 4) + tails
    assert_same([branch], [expected])


@pytest.mark.parametrize(("budget", "size"), [(1, 4), (2 * 2.5, 2), (2 * 1.3, 1)])
def test_headwise_adapts_its_group_to_the_budget(budget: float, size: int) -> None:
    """400 tokens of one head of one layer take 25 KiB: 16 numbers of float32."""
    policy = Headwise(None if budget == 1 else budget * 25 * KIB).bind(
        Engine(deep(2, 4, 64), Letters()).memory.shapes, torch.float32, torch.device("cpu")
    )
    assert policy.group_size(0, 400) == size
