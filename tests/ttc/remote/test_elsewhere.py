"""A small model writes here, and a large one on a server rates it or goes on with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from search import BestOfN, Case, Search, SearchSteps, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.chats import CHATS
from tests.helpers.engines import bytes_engine, make_engine
from tests.helpers.servers import ServedModel, connected
from tests.helpers.thinking import TURNS, thinker
from tests.search.test_conversations import TALK
from ttc import Branch, InvalidInput, Step
from ttc.backend import Backend, Need
from ttc.protocols import Expand, Handoff
from ttc.sampling import Sampling
from ttc.text.prompt import PromptTemplate
from verifiers import SelfVerifier
from verifiers.elsewhere import Elsewhere


class EndsWithE:
    """Rates a branch by how likely it goes on with an e."""

    needs: ClassVar[tuple[Need, ...]] = ("score",)

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
    ) -> list[list[float]]:
        rows = backend.score(branches, [[[ord("e")]]] * len(branches)).result()
        return [[scores[0][0]] for scores in rows]


@dataclass(frozen=True)
class HandedOn(Search):
    """Eight tokens of the small model, then four of the large one."""

    @property
    def needs_verifier(self) -> bool:
        return False

    def run(self, root: Branch, case: Case) -> SearchSteps:
        greedy = Sampling(temperature=0)
        (begun,) = yield Expand([root], 1, Step(8), greedy)
        (handed,) = yield Handoff([begun], "large")
        return (yield Expand([handed], 1, Step(4), greedy))


def test_a_server_rates_what_an_engine_here_writes() -> None:
    served, engine = ServedModel(), make_engine(context=300)
    with connected(served) as large:
        verifier = Elsewhere(EndsWithE(), large)
        result = solve(BestOfN(n=3, max_tokens=9), problem="1", engine=engine, verifier=verifier)
        assert not large.live
    prompt = PromptTemplate().tokens("1", served.tokenizer)
    for branch in result.branches:
        tokens = [*prompt, *served.tokenizer.encode(branch.text)]
        logprobs = torch.log_softmax(served.logits(tokens)[-1], -1)
        assert branch.score == pytest.approx(float(logprobs[ord("e")]), abs=1e-4)
    assert result.usage.verifier_tokens >= 3 and result.usage.generated_tokens == 27
    assert engine.kv_bytes() == 0


def test_a_server_goes_on_with_what_an_engine_here_has_begun() -> None:
    served, engine = ServedModel(), make_engine(context=300)
    with connected(served) as large:
        models = {"small": engine, "large": large}
        results = solve(HandedOn(), problem=["1", "2"], engine=models)
        assert not large.live and engine.kv_bytes() == 0
    for result in results:
        assert result.best is not None and result.best.model == "large"
        for place in range(-4, 0):
            logits = served.logits(result.best.tokens[:place])[-1]
            assert int(logits.argmax()) == result.best.tokens[place]
        tokens = {name: used.generated_tokens for name, used in result.usage_by_model.items()}
        assert tokens == {"small": 8, "large": 4}


def test_what_cannot_rate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="verifier=1 is of type int"):
        Elsewhere(1, FakeBackend())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="backend='x' is of type str"):
        Elsewhere(SelfVerifier(), "x")  # type: ignore[arg-type]
    message = "SelfVerifier needs log-probabilities of given"
    bare = ServedModel(echo=False, chosen=False)
    with connected(bare) as server, pytest.raises(InvalidInput, match=message):
        Elsewhere(SelfVerifier(), server)


def test_a_conversation_is_a_chat_of_the_other_model() -> None:
    here, there = bytes_engine(thinker(TURNS)), bytes_engine(CHATS["qwen_2_5"].tokenizer)
    read = list[list[int]]()

    class Reads(EndsWithE):
        def rate(
            self, branches: Sequence[Branch], questions: Sequence[str], backend: Backend
        ) -> list[list[float]]:
            read.extend(list(branch.tokens) for branch in branches)
            return super().rate(branches, questions, backend)

    verifier = Elsewhere(Reads(), there)
    result = solve(BestOfN(n=1, max_tokens=9), problem=TALK, engine=here, verifier=verifier)
    text = there.tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    assert read == [there.encode(text + result.branches[0].text)]
