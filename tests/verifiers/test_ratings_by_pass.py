"""Ratings that are made pass by pass: others use the engine between two passes, and whoever began
one may close it at any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transformers as hf
from torch import nn

from search import BeamSearch, Problem, solve
from tests.helpers.engines import words_engine
from tests.helpers.reward_models import (
    CHATML,
    IM,
    byte_tokenizer,
    configuration,
    grown,
    policy,
    seeded,
)
from tests.helpers.tokenizers import KnownWords
from ttc import EarlyExit, Engine, Sharing
from ttc.branch import Branch
from ttc.model.loading.reward_heads import HeadedModel
from ttc.passes.ratings import passes_of_rating
from verifiers import (
    ConfidenceGatedVerifier,
    EnsembleVerifier,
    LLMJudge,
    OutcomeReward,
    QwenPRM,
    SelfVerifier,
    ThinkPRM,
)

ASKED = "is it right ?"
TOKENIZER = byte_tokenizer(["<extra_0>", *IM], CHATML)
SPELT = byte_tokenizer(IM, CHATML)
SPELT.add_tokens(
    [f"{space}{w}" for w in ("yes", "Yes", "YES", "no", "No", "NO") for space in ("", " ")]
)
PRM = seeded(
    lambda: HeadedModel(hf.Qwen2Model(configuration("qwen2", TOKENIZER)), nn.Linear(32, 2))
)
WRITER = seeded(hf.Qwen2ForCausalLM, configuration("qwen2", SPELT, initializer_range=0.1))
OUTCOME = seeded(hf.Qwen2ForSequenceClassification, configuration("qwen2", TOKENIZER, num_labels=1))


def prm() -> QwenPRM:
    return QwenPRM((PRM, TOKENIZER), separator="\n")


OF_WORDS: dict[str, Callable[[], Any]] = {
    "asked": lambda: SelfVerifier(ASKED),
    "fresh": lambda: SelfVerifier(ASKED, fresh=True),
    "exit": lambda: SelfVerifier(ASKED, EarlyExit(l_min=1)),
    "gated": lambda: ConfidenceGatedVerifier(SelfVerifier(ASKED)),
}
OF_TEXTS: dict[str, Callable[[], Any]] = {
    "prm": prm,
    "outcome": lambda: OutcomeReward((OUTCOME, TOKENIZER)),
    "judge": lambda: LLMJudge((WRITER, SPELT)),
    "thinks": lambda: ThinkPRM((WRITER, SPELT), max_tokens=5),
    "ensemble": lambda: EnsembleVerifier([prm(), LLMJudge((WRITER, SPELT))]),
}


def of_words() -> tuple[Engine, list[Branch], list[Branch]]:
    """An engine, branches that are rated, and others that decode meanwhile."""
    engine = words_engine(KnownWords)
    first, second, third = engine.roots([[9, 10, 11], [11, 10, 9], [5, 6]]).result()
    branches = engine.fork(first, 2) + engine.fork(second, 1)
    engine.generate(branches, 3)
    return engine, branches, engine.fork(third, 2)


def of_texts() -> tuple[Engine, list[Branch], list[Branch]]:
    engine = policy()
    root = engine.root([1, 2])
    return engine, grown(engine, root, "a b\n", "c\n", "d"), engine.fork(root, 2)


CASES = [pytest.param(of_words, make, id=name) for name, make in OF_WORDS.items()]
CASES += [pytest.param(of_texts, make, id=name) for name, make in OF_TEXTS.items()]


def parts_of(verifier: Any) -> list[Any]:
    return list(verifier.parts) if isinstance(verifier, EnsembleVerifier) else [verifier]


def few_rows(verifier: Any, engine: Engine) -> None:
    """Have passes of a few tokens, of the verifier's own engine too."""
    engine.runtime.prefill_tokens = 4
    for part in parts_of(verifier):
        if hasattr(part, "mirror"):
            part.mirror(engine).engine.runtime.prefill_tokens = 4


@pytest.mark.few(4)
@pytest.mark.parametrize(("start", "make"), CASES)
def test_others_decode_between_two_passes_and_scores_stay(start: Any, make: Any) -> None:
    others_decode_between_two_passes_and_scores_stay(start, make)


def others_decode_between_two_passes_and_scores_stay(start: Any, make: Any) -> None:
    engine, branches, others = start()
    questions = ["a b c"] * len(branches)
    verifier = make()
    few_rows(verifier, engine)
    expected = verifier.rate(branches, questions, engine)
    engine, branches, others = start()
    verifier = make()
    few_rows(verifier, engine)
    passes, made = passes_of_rating(verifier, branches, questions, engine), 0
    while True:
        try:
            next(passes)
        except StopIteration as end:
            found = end.value
            break
        made += 1
        if made < 8:
            engine.generate([branch for branch in others if not branch.finished], 1)
    assert made > 1
    for a, b in zip(found, expected, strict=True):
        assert list(a) == pytest.approx(list(b), abs=1e-5)


@pytest.mark.few(9)
@pytest.mark.parametrize("kept", [1, 2, 5])
@pytest.mark.parametrize(("start", "make"), CASES)
def test_a_rating_may_be_closed_at_any_pass_and_branches_may_go(
    start: Any, make: Any, kept: int
) -> None:
    a_rating_may_be_closed_at_any_pass_and_branches_may_go(start, make, kept)


def a_rating_may_be_closed_at_any_pass_and_branches_may_go(
    start: Any, make: Any, kept: int
) -> None:
    engine, branches, _ = start()
    verifier = make()
    few_rows(verifier, engine)
    passes = passes_of_rating(verifier, branches, ["a b c"] * len(branches), engine)
    for _ in range(kept):
        next(passes, None)
    if kept == 1:  # a branch goes in the middle
        engine.release(branches[:1])
        if hasattr(verifier, "released"):
            verifier.released(branches[:1])
        next(passes, None)
    passes.close()
    if hasattr(verifier, "released"):
        verifier.released(branches)
    engine.release([b for b in branches if not b.released])
    untouched, also, _ = start()
    untouched.release(also)
    assert engine.kv_bytes() == untouched.kv_bytes()
    for part in parts_of(verifier):
        assert not hasattr(part, "mirror") or not part.mirror(engine).mirrors


BEAMS = BeamSearch(beam_size=2, beam_width=2, step_tokens=4, max_steps=4, temperature=1.0)
ENGINES: dict[str, Callable[[], Engine]] = {
    **dict.fromkeys(OF_WORDS, lambda: words_engine(KnownWords)),
    **dict.fromkeys(OF_TEXTS, policy),
}
OTHER_COMPANY = [pytest.param(*case, id=case[0]) for case in (OF_WORDS | OF_TEXTS).items()]


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "make"), OTHER_COMPANY)
def test_what_a_budget_pays_for_depends_on_no_company_and_no_sharing(name: str, make: Any) -> None:
    """The prompts of verifiers begin alike, so that one problem computes what another only reads.
    The budget counts both."""
    questions = [Problem(text, id=str(n)) for n, text in enumerate(["a b c", "a b d", "a b c"])]

    def solved(rows: list[Problem], sharing: str, **budget: int) -> list[Any]:
        engine = ENGINES[name]()
        engine.sharing = Sharing(sharing)
        return solve(BEAMS, problem=rows, engine=engine, verifier=make(), seed=3, **budget)

    most = min(r.usage.budgeted_tokens for r in solved(questions, "exact")) * 2 // 3
    alone = [solved([question], "exact", max_tokens=most)[0] for question in questions]
    assert any(result.stopped == "max_tokens" for result in alone)
    for sharing in ("exact", "none"):
        for one, other in zip(solved(questions, sharing, max_tokens=most), alone, strict=True):
            assert [b.tokens for b in one.branches] == [b.tokens for b in other.branches]
            assert one.usage.generated_tokens == other.usage.generated_tokens
            assert one.usage.budgeted_tokens == other.usage.budgeted_tokens
            assert one.usage.generated_tokens + one.usage.verifier_tokens <= most or (
                sharing == "none" or name in OF_WORDS  # which cannot tell their price
            )


def test_a_verifier_of_ones_own_is_rated_by_its_rate_alone() -> None:
    class Own(SelfVerifier):
        def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
            return [[0.25] for _ in branches]

    engine, branches, _ = of_words()
    passes = passes_of_rating(Own(ASKED), branches, [""] * 3, engine)
    with pytest.raises(StopIteration) as end:
        next(passes)
    assert end.value.value == [[0.25]] * 3
