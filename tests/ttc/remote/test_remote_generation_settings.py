"""A model's generation_config where a server runs the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import GenerationConfig

from search import Greedy, solve
from tests.helpers.engines import GREEDY
from tests.helpers.models import VOCAB, small
from tests.helpers.servers import ServedModel, connected
from tests.helpers.tokenizers import EOS, Ascii
from ttc import Backend, Branch, Engine, InvalidInput, Sampling
from ttc.model.generation_settings import GenerationSettings
from ttc.model.loading.load import load_generation_config
from ttc.remote.backend import settings_beside

PROMPTS = [[72, 101, 108, 108, 111], [65, 66], [40, 41, 42, 43]]


def settings_of(**settings: Any) -> GenerationSettings:
    return GenerationSettings.of(GenerationConfig(**settings), VOCAB)


def in_two_steps(backend: Backend, sampling: Sampling) -> list[Branch]:
    branches = backend.roots(PROMPTS).result()
    for count in (4, 7):
        open_ones = [branch for branch in branches if not branch.finished]
        backend.generate(open_ones, count, sampling=sampling)
    return branches


def test_the_repetition_penalty_is_asked_for() -> None:
    """Texts and log-probabilities are those of an engine here, over several steps; without it none
    is asked for."""
    model = small(context=1024, eos=EOS)
    model.generation_config.repetition_penalty = 1.6
    engine = Engine(model, Ascii())
    without = Engine(small(context=1024, eos=EOS), Ascii())
    served = ServedModel()
    for settings, here in ((settings_of(repetition_penalty=1.6), engine), (None, without)):
        with connected(served, settings=settings) as there:
            written = [in_two_steps(backend, GREEDY) for backend in (here, there)]
            assert {request["repetition_penalty"] for request in served.requests} == {
                1.6 if settings else 1.0
            }
        for ours, theirs in zip(*written, strict=True):
            assert (ours.tokens, ours.finish_reason) == (theirs.tokens, theirs.finish_reason)
            np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
    assert [b.tokens for b in engine.live] != [b.tokens for b in without.live]


@pytest.mark.parametrize(
    ("settings", "served", "named"),
    [
        (
            {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3},
            ServedModel(),
            "no_repeat_ngram_size=3",
        ),
        ({"suppress_tokens": [5]}, ServedModel(), r"suppress_tokens=\[5\]"),
        ({"repetition_penalty": 1.1}, ServedModel(extras=False), r"repetition_penalty=1\.1"),
    ],
)
def test_what_a_server_cannot_be_told_is_refused(
    settings: dict[str, Any], served: ServedModel, named: str
) -> None:
    refused = pytest.raises(InvalidInput, match=f"sets {named}, .*generation_settings=false")
    with refused, connected(served, settings=settings_of(**settings)):
        pass


@pytest.mark.parametrize("ids_out", [True, False])
def test_the_server_says_where_a_text_ends(ids_out: bool) -> None:
    """The tokenizer's end token in the middle of an answer ends nothing: the server has gone on."""
    plain = Engine(small(context=1024), Ascii())
    root = plain.root(PROMPTS[0])
    plain.generate([root], 12, sampling=GREEDY)
    middle, last = root.generated[3], root.generated[9]
    assert root.generated.index(middle) == 3 and root.generated.index(last) == 9
    served = ServedModel(end=last, ids_out=ids_out)
    served.tokenizer.eos_token_id = middle
    with connected(served) as backend:
        branch = backend.root(PROMPTS[0])
        backend.generate([branch], 40, sampling=GREEDY)
        assert branch.generated[:10] == root.generated[:10]
        assert branch.finish_reason == "eos"
        until = backend.root(PROMPTS[0])
        backend.generate([until], 4, sampling=GREEDY)
        assert until.generated == root.generated[:4] and until.finish_reason is None


def test_the_generation_config_beside_a_tokenizer_is_read(tmp_path: Path) -> None:
    assert dict(settings_beside("smollm2-135m", Ascii()).honoured) == {}
    small().save_pretrained(tmp_path)
    GenerationConfig(repetition_penalty=1.05, eos_token_id=[3, 4]).save_pretrained(tmp_path)
    assert dict(settings_beside(str(tmp_path), Ascii()).honoured) == {"repetition_penalty": 1.05}
    (tmp_path / "generation_config.json").unlink()
    config = load_generation_config(str(tmp_path))
    assert config is not None and config.repetition_penalty in (None, 1.0)
    assert dict(settings_beside(str(tmp_path), Ascii()).honoured) == {}


def test_the_penalty_of_a_sampling_stands_in_for_that_of_the_files() -> None:
    asked = Sampling(0, repetition_penalty=1.3)
    served = ServedModel()
    here = Engine(small(context=1024, eos=EOS), Ascii())
    with connected(served, settings=settings_of(repetition_penalty=1.6)) as there:
        texts = [[b.tokens for b in in_two_steps(backend, asked)] for backend in (here, there)]
        assert texts[0] == texts[1]
        assert {request["repetition_penalty"] for request in served.requests} == {1.3}
    refused = pytest.raises(InvalidInput, match=r"repetition_penalty=1\.3 is not taken by this")
    with connected(ServedModel(extras=False)) as there, refused:
        there.generate(there.roots(PROMPTS).result(), 3, sampling=asked)


def test_a_server_is_not_asked_for_other_tokens() -> None:
    refused = pytest.raises(InvalidInput, match="top_logprobs=2: this backend tells nothing of")
    with connected(ServedModel()) as there, refused:
        solve(Greedy(), problem="1 + 1?", engine=there, top_logprobs=2)
