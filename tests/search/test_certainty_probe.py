"""Probes of a chain of thought: when they end it, what they cost, and what counts as sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from search import CertaintyProbe, solve
from search.certainty_probe import PROBE
from tests.helpers.backends import Dictated
from tests.helpers.engines import at_pass, make_engine
from ttc import Branch, Sampling

CHAIN = "so the answer is 3, let me think about it a little more"


def dictated(replies: Sequence[str], chain: str = CHAIN, suffix: str = PROBE) -> Dictated:
    """A chain whose i-th probe is answered with the i-th reply; the last one is given again and
    again."""
    seen: list[str] = []

    def says(branch: Branch) -> str:
        before, asked, said = branch.text.partition(suffix)
        if not asked:
            return chain[len(before) :]
        if before not in seen:
            seen.append(before)
        return replies[min(seen.index(before), len(replies) - 1)][len(said) :]

    return Dictated(says)


def probed(replies: Sequence[str], answer_kind: str = "number", **settings: Any) -> tuple[int, Any]:
    """How often a chain was probed, and the result."""
    backend = dictated(replies)
    search = CertaintyProbe(**({"max_tokens": 40, "every": 4} | settings))
    result = solve(search, problem="q", engine=backend, answer_kind=answer_kind)
    assert result.error is None and not backend.live
    return sum(node.text == search.suffix for node in result.tree), result


def test_the_chain_ends_when_the_last_probes_agree() -> None:
    count, result = probed(["7}", "8}", "8}", "8}", "9}"])
    assert (count, result.answer) == (4, "8")
    (branch,) = result.branches
    assert branch.text == CHAIN[:16] + PROBE + "8}"
    assert result.usage.generated_tokens == 16 + 4 * 2
    assert result.usage.prompt_tokens == 4 * len(PROBE)


def test_the_answer_is_the_probes_and_not_what_the_chain_named_before() -> None:
    assert "answer is 3" in CHAIN[:20]
    assert probed(["8}"], every=10)[1].answer == "8"


@pytest.mark.parametrize(
    ("replies", "count"),
    [
        (["8}"], 3),
        (["8}", "8.0}", "$8}"], 3),  # one number
        (["}", "}", "}", "8}"], 6),  # empty
        (["8 and so on and so on and on"], 10),  # the box is never closed
        (["8} wait, is it?", "8}"], 4),
        (["8}", "8} Hmm.", "8}"], 5),
        (["8}", "8} I know another"], 3),  # "no" is no word of it
        (["8} NO"], 10),
    ],
)
def test_only_answers_that_are_given_and_not_hedged_count(replies: list[str], count: int) -> None:
    assert probed(replies)[0] == count


def test_nested_braces_belong_to_the_answer() -> None:
    _, result = probed([r"\frac{1}{2}} so"], answer_kind="math")
    assert result.answer == r"\frac{1}{2}"


def test_a_chain_that_ends_by_itself_answers_for_itself() -> None:
    backend = dictated(["1}", "2}", "3}", "4}"], chain="the answer is 12.")
    result = solve(CertaintyProbe(every=5), problem="q", engine=backend)
    assert result.answer == "12" and result.branches[0].text == "the answer is 12."
    assert sum(node.text == PROBE for node in result.tree) == 3  # after 5, 10 and 15 of 17 tokens


def test_a_chain_without_sure_probes_goes_on_to_its_last_token() -> None:
    count, result = probed(["1}", "2}"] * 9, max_tokens=10)
    assert count == 3 and result.branches[0].text == CHAIN[:10]  # after 4, 8 and 10 tokens
    assert result.answer is None or result.answer == "3"


def test_words_of_ones_own_can_ask() -> None:
    suffix = " The answer is"
    backend = dictated([" 8."], suffix=suffix)
    result = solve(CertaintyProbe(every=4, agree=2, suffix=suffix), problem="q", engine=backend)
    assert result.answer == "8" and sum(node.text == suffix for node in result.tree) == 2


def test_a_probe_computes_its_suffix_and_its_own_tokens_alone() -> None:
    engine = make_engine(context=160)
    search = CertaintyProbe(max_tokens=12, every=4, probe_tokens=5, suffix=" so:", temperature=0.0)
    with at_pass(engine) as passes:
        result = solve(search, problem="1 + 1", engine=engine, extract=lambda text: None)
    (chain,) = result.branches
    assert result.usage.prompt_tokens == chain.prompt_length - 1 + 3 * len(" so:")
    assert result.usage.generated_tokens == 12 + 3 * 5
    assert sum(passes) == result.usage.prompt_tokens + result.usage.generated_tokens
    assert engine.kv_bytes() == 0
    plain = engine.root(chain.tokens[: chain.prompt_length])
    engine.generate([plain], 12, sampling=Sampling(temperature=0))
    assert chain.tokens == plain.tokens  # probes leave the chain as it is
