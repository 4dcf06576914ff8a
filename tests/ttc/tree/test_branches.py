"""What branches own and share, and the text of their steps."""

from __future__ import annotations

from hypothesis import settings
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.helpers.engines import make_engine
from tests.helpers.ownership import Ownership
from tests.helpers.tiers import examples
from ttc.branch import Branch
from ttc.usage import Usage

TestOwnership = Ownership.TestCase
TestOwnership.settings = settings(max_examples=examples(25), stateful_step_count=20)


def test_a_shared_prefix_is_stored_once_however_many_branches() -> None:
    engine = make_engine()
    root = engine.root(list(range(1, 41)))
    before = engine.kv_bytes()
    assert before == 39 * engine.memory.bytes_per_token
    children = engine.fork(root, 32)
    assert engine.kv_bytes() == before
    engine.generate(children, 2)
    assert engine.kv_bytes() == before + 32 * 2 * engine.memory.bytes_per_token


def test_prompts_share_their_longest_common_prefix() -> None:
    engine = make_engine()
    first = engine.root(list(range(1, 31)))
    second = engine.root([*range(1, 21), 99, 98])
    assert (first.usage.prompt_tokens, second.usage.prompt_tokens, second.usage.shared_tokens) == (
        29,
        1,
        20,
    )
    assert sorted(len(s.tokens) for s in engine.tree.segments()) == [1, 9, 20]
    batch = (
        make_engine()
        .roots([list(range(1, 31)), [*range(1, 21), 99, 98], list(range(1, 31))])
        .result()
    )
    assert [b.usage.prompt_tokens for b in batch] == [29, 1, 0]


def test_of_prompts_that_begin_alike_the_one_that_is_all_there_is_shared() -> None:
    """A short beginning of another one is not worth a split."""
    engine, start = make_engine(), list(range(1, 21))
    texts = [[*start, 30], [*start, 50, 51, 52, 53, 30], [*start, 50, 51, 30], [*start, 50, 51, 40]]
    found = [engine.root(text).usage.shared_tokens for text in texts]
    assert found == [0, 20, 20, 22]


def test_hints_that_branches_share_are_computed_once() -> None:
    engine = make_engine()
    children = engine.fork(engine.root([1, 2, 3]), 2)
    engine.extend(children, [[*range(10, 30), 7], [*range(10, 30), 8]]).result()
    assert [c.usage.shared_tokens for c in children] == [21, 21]  # one meter: they share a root
    assert children[0].usage.prompt_tokens == 2 + 21


def test_steps_together_are_the_text() -> None:
    """With a decoder that strips a leading space, as those of Llama 2, a step alone would lose its
    own."""
    pieces = [
        "\u2581There",
        "\u2581are",
        "\u25813",
        "\u2581",
        "1",
        "2",
        "\u2581packs",
        "<0xC3>",
        "<0xA9>",
    ]
    backend = Tokenizer(
        models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=pieces[0])
    )
    strip = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(strip)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    branch = Branch([0], None, 0, Usage(), tokenizer.decode)
    branch.tokens += [0, 1, 2, 3, 4, 5, 6, 7, 8, 6]
    branch.step_ends = [4, 7, 9, 11]
    assert branch.text == "There are 3 12 packs\u00e9 packs"
    assert branch.steps == ["There are 3", " 12", " packs", "\u00e9 packs"]
    branch.step_ends = []
    assert branch.steps == []
