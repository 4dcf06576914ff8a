"""What branches share: nothing, exact prefixes, or the KV of a similar prompt (approximate, and it
says so)."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import GREEDY, make_engine
from tests.helpers.exactness import assert_like_plain
from tests.helpers.models import small
from tests.helpers.tiers import examples
from tests.helpers.tokenizers import text
from ttc import BlockCache, Branch, Engine, InvalidInput, Paged, Sharing
from ttc.approximate.similar_prompts import CONTEXT, differing

LAYERS = 4
ROOT = "A farm has 12 hens and 3 cows. How many legs are there?"
REWORDED = "A farm has 12 hens and 3 cows. What number of legs is there?"


def goes_on_like_plain(engine: Engine, branches: list[Branch]) -> None:
    """Whatever prompt a branch says it stands on, it goes on as plain transformers would from
    there."""
    plain = small(LAYERS, 256)
    engine.generate(branches, 5, sampling=GREEDY)
    with torch.inference_mode():
        for branch in branches:
            assert_like_plain(plain, branch)


def similar(**settings: Any) -> Sharing:
    return Sharing("similar", **({"probe_layers": 2} | settings))


def varied(
    prompts: list[str], suffixes: list[str] | None = None, root: str = ROOT, **settings: Any
) -> tuple[Engine, Branch, list[Branch]]:
    """Variants of a root, where similar ones stand on its prompt."""
    engine = make_engine(LAYERS, 256, sharing=similar(**settings))
    branch = engine.root(text(root))
    own = None if suffixes is None else list(map(text, suffixes))
    return engine, branch, engine.variants(branch, list(map(text, prompts)), own).result()


# ---------------------------------------------------------------- variants


@pytest.mark.parametrize("rule", ["exact", "none"])
def test_variants_stand_on_their_own_prompts(rule: str) -> None:
    engine = make_engine(LAYERS, 256, sharing=Sharing(rule))
    root = engine.root(text(ROOT), seed=3)
    own = [text(ROOT), text(REWORDED), text("Legs?")]
    branches = engine.variants(root, own, [text(" So"), [], text(" It is")]).result()
    assert [b.tokens for b in branches] == [text(ROOT + " So"), text(REWORDED), text("Legs? It is")]
    assert [b.prompt_length for b in branches] == [len(b.tokens) for b in branches]
    assert [b.path for b in branches] == [(0,), (1,), (2,)] and len({b.key for b in branches}) == 3
    assert all(b.usage is root.usage and b.substituted is None for b in branches)
    goes_on_like_plain(engine, branches)
    engine.release([root, *branches])
    assert engine.kv_bytes() == 0


def test_variants_share_what_they_have_in_common() -> None:
    engine = make_engine(LAYERS, 256)
    root = engine.root(text(ROOT))
    engine.variants(root, [text(ROOT), text(REWORDED)], [text(" So"), text(" So")]).result()
    same = len("A farm has 12 hens and 3 cows. ")
    assert root.usage.prompt_tokens == (len(ROOT) - 1) + len(" So") + (
        len(REWORDED + " So") - 1 - same
    )
    assert root.usage.shared_tokens == len(ROOT) - 1 + same


def test_variants_refuse_what_cannot_be_varied() -> None:
    engine = make_engine(LAYERS, 256)
    root = engine.root(text(ROOT))
    with pytest.raises(InvalidInput, match="prompts: 2, suffixes: 1"):
        engine.variants(root, [text(ROOT)] * 2, [[]]).result()
    with pytest.raises(InvalidInput, match="the prompt is empty"):
        engine.variants(root, [[]]).result()
    with pytest.raises(InvalidInput, match="context of 256"):
        engine.variants(root, [text("a" * 250)], [text("b" * 10)]).result()
    engine.generate([root], 2)
    with pytest.raises(InvalidInput, match="cannot be varied"):
        engine.variants(root, [text(ROOT)]).result()
    engine.release([root])
    assert engine.kv_bytes() == 0


def test_side_branches_are_charged_to_the_branches_it_is_for() -> None:
    engine = make_engine(LAYERS, 256)
    first, second = engine.roots([text(ROOT), text("Legs?")]).result()
    before = first.usage.prompt_tokens, second.usage.prompt_tokens
    asked = engine.side_branches(
        [first, second], [text("Is it right?"), text("Is it right at all?")]
    ).result()
    assert (first.usage.prompt_tokens, second.usage.prompt_tokens) == before
    assert first.usage.verifier_tokens == len("Is it right?") - 1
    assert second.usage.verifier_tokens == len("Is it right at all?") - 1 - len("Is it right")
    goes_on_like_plain(engine, asked)
    with pytest.raises(InvalidInput, match="branches: 2, prompts: 1"):
        engine.side_branches([first, second], [text("a")]).result()
    engine.release([first, second, *asked])
    assert engine.kv_bytes() == 0


# ---------------------------------------------------------------- sharing nothing


def test_without_sharing_every_fork_computes_its_prompt() -> None:
    engine = make_engine(LAYERS, 256, sharing=Sharing("none"))
    root = engine.root(text(ROOT))
    assert engine.kv_bytes() == 0 and root.usage.prompt_tokens == 0
    branches = engine.fork(root, 3)
    goes_on_like_plain(engine, branches)
    assert root.usage.prompt_tokens == 3 * (len(ROOT) - 1) and root.usage.shared_tokens == 0
    children = engine.fork(branches[0], 2)
    engine.extend(children, [text(" Yes?")] * 2, purpose="verifier").result()
    assert root.usage.verifier_tokens == 2 * (len(children[0].tokens) - 1)
    assert root.usage.prompt_tokens == 3 * (len(ROOT) - 1)
    first, second = engine.score(children, [[[5]], [[5]]]).result()
    assert first[0] == pytest.approx(second[0], abs=1e-5)
    engine.release([root, *branches, *children])
    assert engine.kv_bytes() == 0


# ---------------------------------------------------------------- similar prompts


def test_a_similar_variant_stands_on_the_roots_prompt_and_says_so() -> None:
    engine, root, (branch,) = varied([REWORDED], [" So"], tau=-1)
    assert branch.tokens == text(ROOT + " So")
    assert branch.substituted is not None and branch.substituted.prompt == text(REWORDED)
    assert -1 <= branch.substituted.similarity <= 1
    same, rows = len("A farm has 12 hens and 3 cows. "), len(REWORDED) - 1
    assert root.usage.substituted_tokens == rows - same
    assert root.usage.prompt_tokens == len(ROOT) - 1 + len(" So")
    window = (len(ROOT) - 1) - (same - CONTEXT)
    assert root.usage.probe_layer_rows == 2 * (rows - same) + 2 * window
    assert engine.fork(branch, 1)[0].substituted == branch.substituted
    goes_on_like_plain(engine, [branch])


def test_equal_variants_are_probed_once_and_count_each() -> None:
    _, root, branches = varied([REWORDED] * 3, tau=-1)
    same, rows = len("A farm has 12 hens and 3 cows. "), len(REWORDED) - 1
    assert [branch.tokens for branch in branches] == [text(ROOT)] * 3
    assert root.usage.substituted_tokens == 3 * (rows - same)
    window = (len(ROOT) - 1) - (same - CONTEXT)
    assert root.usage.probe_layer_rows == 2 * (rows - same) + 2 * window


def test_a_refused_variant_is_exact_and_its_probe_is_its_prefill() -> None:
    engine, root, (branch,) = varied([REWORDED], [" So"], tau=2)
    assert branch.substituted is None and branch.tokens == text(REWORDED + " So")
    goes_on_like_plain(engine, [branch])
    assert root.usage.substituted_tokens == 0 and root.usage.probe_layer_rows > 0
    same = len("A farm has 12 hens and 3 cows. ")
    assert root.usage.prompt_tokens == len(ROOT) - 1 + len(REWORDED + " So") - 1 - same
    engine.release([root, branch])
    assert engine.kv_bytes() == 0


OTHERS = [ROOT[:-1] + " in all, and on the whole?", ROOT[10:], "Count the legs."]
SIGMAS = [(words, "matched", 1.5) for words in (REWORDED, *OTHERS)]
SIGMAS += [(REWORDED, "mean", 1.5), (OTHERS[1], "last", 1.5), (OTHERS[2], "matched", -6.0)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("words", "pooling", "alpha"), SIGMAS)
def test_sigma_is_equation_2_over_the_probed_layers(words: str, pooling: str, alpha: float) -> None:
    """Against the hidden states of plain transformers, of each prompt alone."""
    *_, (branch,) = varied([words], tau=-1, pooling=pooling, alpha=alpha, same_numbers=False)
    plain = small(LAYERS, 256)
    regions = differing(text(ROOT)[:-1], text(words)[:-1])
    picked = []
    for prompt, region in zip((ROOT, words), regions, strict=True):
        last = len(prompt) - 1
        region = slice(max(0, region.start - CONTEXT), min(last, region.stop + CONTEXT))
        region = slice(last - 1, last) if pooling == "last" else region
        with torch.inference_mode():
            states = plain(torch.tensor([text(prompt)]), output_hidden_states=True).hidden_states[
                1:3
            ]
        picked.append([layer[0, region] for layer in states])
    alike = []
    for root, own in zip(*picked, strict=True):
        if pooling == "matched":
            cosines = [[_cosine(a - root.mean(0), b - root.mean(0)) for b in root] for a in own]
            alike.append(
                (fmean(map(max, cosines)) + fmean(map(max, zip(*cosines, strict=True)))) / 2
            )
        else:
            alike.append(_cosine(own.mean(0), root.mean(0)))
    first, second = math.exp(alpha * 1 / LAYERS), math.exp(alpha * 2 / LAYERS)
    expected = (first * alike[0] + second * alike[1]) / (first + second)
    assert branch.substituted is not None
    assert branch.substituted.similarity == pytest.approx(expected, abs=1e-5)


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.cosine_similarity(a, b, dim=0))


def test_the_same_prompt_is_no_substitution() -> None:
    engine, root, branches = varied([ROOT, ROOT[:-1] + "!"], [" So", ""], tau=-1)
    assert [b.substituted for b in branches] == [None, None]
    assert branches[1].tokens == text(ROOT[:-1] + "!")
    assert root.usage.probe_layer_rows == 0
    goes_on_like_plain(engine, branches)


def test_the_gate_decides_each_variant_alone() -> None:
    others = [REWORDED, "Count all the legs of 12 hens, 3 cows.", "3 cows, 12 hens: legs?"]
    found = []
    for batch in ([others], [[o] for o in others]):
        branches = [b for prompts in batch for b in varied(prompts, tau=-1)[2]]
        found.append([b.substituted.similarity for b in branches if b.substituted])
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    middle = sorted(found[0])[1]
    engine, _, branches = varied([*others, others[0]], tau=middle - 1e-4)
    taken = [b.substituted is not None for b in branches]
    assert taken == [s >= middle for s in found[0]] + [found[0][0] >= middle]
    goes_on_like_plain(engine, branches)


@pytest.mark.parametrize(
    "options", [{"memory": Paged(budget_gib=1e-5, block_tokens=8)}, {"prefill_tokens": 16}]
)
def test_the_gate_works_under_any_memory(options: dict[str, Any]) -> None:
    expected = None
    for chosen in ({}, options):
        engine = make_engine(LAYERS, 256, sharing=similar(tau=-1), **chosen)
        root = engine.root(text(ROOT))
        branches = engine.variants(
            root, [text(REWORDED), text("Count all the legs of 12 hens, 3 cows.")]
        ).result()
        found = [b.substituted.similarity for b in branches if b.substituted]
        expected = expected or found
        assert found == pytest.approx(expected, abs=1e-5)
        engine.release([root, *branches])
        assert engine.kv_bytes() == 0


def test_an_evicted_root_is_there_again_for_its_variants() -> None:
    engine = make_engine(
        LAYERS, 256, sharing=similar(tau=-1), cache=BlockCache(capacity_blocks=1, block_tokens=8)
    )
    root = engine.root(text(ROOT))
    engine.root(text("Which animals have legs?"))
    assert root.leaf is engine.tree.trunk
    (branch,) = engine.variants(root, [text(REWORDED)], [text(" So")]).result()
    assert branch.substituted is not None
    assert root.usage.recomputed_tokens == len(ROOT) - 1
    assert root.usage.substituted_tokens == len("What number of legs is there?") - 1
    goes_on_like_plain(engine, [branch])


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
@settings(max_examples=examples(200))
def test_what_differs_lies_between_what_is_equal(a: list[int], b: list[int]) -> None:
    one, two = differing(a, b)
    assert a[: one.start] == b[: two.start] and a[one.stop :] == b[two.stop :]
    assert one.stop >= one.start and two.stop >= two.start
    if a[one] and b[two]:
        assert a[one.start] != b[two.start] and a[one.stop - 1] != b[two.stop - 1]


@pytest.mark.parametrize(
    "bad",
    [
        {"rule": "most"},
        {"pooling": "max"},
        {"tau": 3},
        {"tau": float("nan")},
        {"probe_layers": 0},
        {"alpha": 1e9},
    ],
)
def test_settings_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        Sharing(**bad)


def test_a_probe_of_all_layers_is_refused() -> None:
    engine = make_engine(LAYERS, 256, sharing=similar(probe_layers=LAYERS))
    root = engine.root(text(ROOT))
    with pytest.raises(InvalidInput, match="leaves none of 4 layers"):
        engine.variants(root, [text(REWORDED)]).result()
    engine.release([root])
    assert engine.kv_bytes() == 0


@pytest.mark.slow
def test_company_in_the_tree_decides_nothing() -> None:
    """A variant that shares more with another problem's refused variant than with its root is
    judged as if alone."""
    head = "Now think of this and count with care: "
    first, second = (
        "A farm has 12 hens and 3 cows. How many legs?",
        "A barn has 5 pigs and 8 owls. How many tails?",
    )
    for tau in (-1.0, 2.0):
        together = make_engine(LAYERS, 256, sharing=similar(tau=tau, same_numbers=False))
        roots = together.roots([text(first), text(second)]).result()
        company = together.root(text(head + first + " Say it."))  # stands in the tree meanwhile
        found = [
            together.variants(r, [text(head + q)]).result()[0]
            for r, q in zip(roots, (first, second), strict=True)
        ]
        alone = [
            varied([head + words], root=words, tau=tau, same_numbers=False)[2][0]
            for words in (first, second)
        ]
        assert [b.substituted is None for b in found] == [b.substituted is None for b in alone]
        for one, other in zip(found, alone, strict=True):
            assert one.tokens == other.tokens
            if one.substituted is not None and other.substituted is not None:
                assert one.substituted.similarity == pytest.approx(
                    other.substituted.similarity, abs=1e-5
                )
        goes_on_like_plain(together, [*found, company])


@pytest.mark.slow
@pytest.mark.parametrize("words", [ROOT[:30], ROOT[:1]])
def test_a_variant_that_the_root_begins_with_is_no_substitution(words: str) -> None:
    engine, _, (short, reworded) = varied([words, REWORDED], tau=-1)
    assert (short.substituted, short.tokens) == (None, text(words))
    assert reworded.substituted is not None
    goes_on_like_plain(engine, [short, reworded])
    *_, (branch,) = varied(["B farm"], root="A", tau=-1, same_numbers=False)
    assert branch.substituted is None


def test_a_prompt_that_would_not_fit_is_not_put_in_place() -> None:
    long, short = "x" * 100 + ROOT * 2 + "y" * 35, "x" * 100 + REWORDED
    ends = ["so", "therefore.."]
    engine, root, (fits, kept) = varied([short] * 2, ends, long, tau=-1, same_numbers=False)
    assert len(root.tokens) == 245
    assert fits.substituted is not None and kept.substituted is None
    assert len(fits.tokens) == 247 and len(kept.tokens) == len(short) + 11
    goes_on_like_plain(engine, [fits, kept])


def test_same_numbers_reads_whole_numbers() -> None:
    for one, other in (("1.5 l", "5.1 l"), ("-3 is it", "3 is it"), ("1,200 m", "1,002 m")):
        root, changed = (f"He has {words}. ok?" for words in (one, other))
        for same_numbers in (True, False):
            *_, (branch,) = varied([changed], root=root, tau=-1, same_numbers=same_numbers)
            assert (branch.substituted is None) == same_numbers
