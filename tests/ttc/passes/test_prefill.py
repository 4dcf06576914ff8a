"""Prefill: what is computed for a prompt, and what a failure leaves."""

from __future__ import annotations

import pytest

from tests.helpers.engines import GREEDY, fail_at, forked, make_engine
from tests.helpers.ownership import assert_whole
from ttc import OutOfMemory
from ttc.residency.resident import Resident


@pytest.mark.parametrize("call", [1, 2])
def test_a_failed_extend_leaves_the_branches_as_they_were(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(prefill_tokens=16)
    branches = forked(engine, 2)
    added = [[*range(10, 30), 7], [*range(10, 30), 8, 9]]
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "forward", fail_at(engine, call))
        with pytest.raises(RuntimeError, match="device lost"):
            engine.extend(branches, added).result()
    assert [b.tokens for b in branches] == [[1, 2, 3]] * 2
    assert_whole(engine, branches)
    engine.generate(branches, 6, sampling=GREEDY)
    whole = make_engine()
    plain = whole.root([1, 2, 3])
    whole.generate([plain], 6, sampling=GREEDY)
    assert [b.tokens for b in branches] == [plain.tokens] * 2


def test_a_refused_extend_leaves_the_branch_as_it_was() -> None:
    engine = make_engine(memory=Resident(26 * make_engine().memory.bytes_per_token / 2**30))
    first, second = forked(engine, 2)
    engine.extend([first], [[*range(10, 30), 7]]).result()
    with pytest.raises(OutOfMemory):
        # it shares what the first has, the rest is too much
        engine.extend([second], [[*range(10, 30), *[8] * 15]]).result()
    assert_whole(engine, [first, second])
