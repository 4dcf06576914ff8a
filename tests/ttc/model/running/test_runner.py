"""Running the model: a model whose attention was set elsewhere is noticed, and lending one out is
safe."""

from __future__ import annotations

import copy
import threading

import pytest
import torch

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import prompt, small
from tests.helpers.tokenizers import Letters
from ttc import Engine, UnsupportedModel


def test_a_model_that_was_set_to_another_attention_is_refused_at_the_next_pass() -> None:
    engine = make_engine()
    branch = engine.root(prompt(1, 12))
    engine.generate([branch], 4, sampling=GREEDY)
    before = list(branch.tokens)
    engine.model.set_attn_implementation("sdpa")
    calls = [
        lambda: engine.generate([branch], 4, sampling=GREEDY),
        lambda: engine.root(prompt(2, 9)),
        lambda: engine.score([branch], [[[3, 4]]]).result(),
        lambda: engine.extend([branch], [[1, 2, 3]]).result(),
    ]
    for call in calls:
        with pytest.raises(UnsupportedModel, match=r"'sdpa' now.*engine\.lent\(\)"):
            call()
    assert branch.tokens == before
    engine.model.set_attn_implementation("ttc_tree")
    engine.generate([branch], 4, sampling=GREEDY)
    plain = small()
    assert_like_plain(plain, branch)


@torch.no_grad()
@pytest.mark.parametrize("own", ["sdpa", "eager"])
def test_a_lent_model_is_the_plain_model_and_comes_back(own: str) -> None:
    plain = small()
    plain.set_attn_implementation(own)
    engine = Engine(copy.deepcopy(plain), Letters())
    branch = engine.root(prompt(1, 12))
    engine.generate([branch], 3, sampling=GREEDY)
    given = torch.tensor([prompt(3, 20)])
    expected = plain.generate(given, max_new_tokens=8, do_sample=False)
    for _ in range(2):
        with engine.lent() as model:
            assert model is engine.model
            assert model.config._attn_implementation == own
            assert torch.equal(model.generate(given, max_new_tokens=8, do_sample=False), expected)
            with pytest.raises(UnsupportedModel, match="engine's"):
                engine.generate([branch], 1)
        engine.generate([branch], 3, sampling=GREEDY)
    assert len(branch.generated) == 9
    assert_like_plain(plain, branch)


def test_a_lent_model_comes_back_after_an_error_and_whatever_was_set_meanwhile() -> None:
    engine = make_engine()
    with pytest.raises(KeyboardInterrupt), engine.lent() as model:
        model.set_attn_implementation("eager")
        raise KeyboardInterrupt
    branch = engine.root(prompt(1, 12))
    engine.generate([branch], 3, sampling=GREEDY)
    assert_like_plain(small(), branch)


def test_two_engines_share_one_model() -> None:
    model = small()
    first, second = Engine(model, Letters()), Engine(model, Letters())
    branches = [first.root(prompt(1, 9)), second.root(prompt(2, 9))]
    with second.lent():
        pass
    for engine, branch in zip((first, second), branches, strict=True):
        engine.generate([branch], 3, sampling=GREEDY)
        assert_like_plain(small(), branch)


def test_another_thread_waits_while_the_model_is_lent() -> None:
    engine = make_engine()
    branch = engine.root(prompt(1, 9))
    work = threading.Thread(target=lambda: engine.generate([branch], 3, sampling=GREEDY))
    with engine.lent():
        work.start()
        work.join(0.05)
        assert branch.generated == []
    work.join(300)
    assert not work.is_alive()
    assert_like_plain(small(), branch)
