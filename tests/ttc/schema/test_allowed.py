"""The tokens that a grammar allows, against regular expressions that are matched in part."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import bytes_engine, make_engine
from tests.helpers.schemas import PERSON, allowed_by, bits, filled, token_bytes
from tests.helpers.thinking import OPENING, TURNS, thinker
from tests.helpers.tiers import examples
from ttc import Engine, InvalidInput, Unsupported
from ttc.branch import Branch
from ttc.model.loading.default_model import smollm2_folder
from ttc.model.loading.load import load_tokenizer
from ttc.schema.grammar import AnswerGrammar
from ttc.text.thoughts import Thoughts

PATTERNS = [
    r"[ab]{1,3}c?",
    r"yes|no|not at all",
    r"\{\"n\": (0|-?[1-9][0-9]{0,3}), \"s\": \"[a-z ]{0,5}\"\}",
    r"([0-9]{2}:){1,2}[0-9]{2}",
    r"(x|yy)*z",
]


@cache
def engine() -> Engine:
    return bytes_engine()


def grammar_of(schema: Any = None, pattern: str = "", thoughts: Any = None) -> AnswerGrammar:
    rules = f"start: /{pattern}/" if pattern else None
    return AnswerGrammar.of(schema, rules, engine(), thoughts)


@given(st.sampled_from(PATTERNS), st.randoms(use_true_random=False))
@settings(max_examples=examples(40))
def test_what_may_follow_is_what_a_matcher_in_part_takes(pattern: str, random: Any) -> None:
    tokens, vocab = token_bytes(engine().tokenizer), engine().limits.vocab_size
    eos = engine().tokenizer.eos_token_id
    branch, grammar, written = engine().root([1]), grammar_of(pattern=pattern), b""
    for _ in range(30):
        allowed = filled(grammar, branch, vocab)
        assert allowed == allowed_by(pattern, written, tokens, eos)
        if random.random() < 0.3:
            branch = engine().fork(branch, 1)[0]
            assert filled(grammar, branch, vocab) == allowed
        token = random.choice(sorted(allowed))
        if token == eos:
            break
        branch.append(token, 0.0, 0.0)
        written += tokens[token] or b""


@cache
def smollm2_tokens() -> Engine:
    return bytes_engine(load_tokenizer(str(smollm2_folder())))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_tokens_of_several_letters_are_allowed_too(pattern: str) -> None:
    """As SmolLM2 has them: all ways to cut a text into tokens, not one of them alone."""
    own = smollm2_tokens()
    size, eos = own.limits.vocab_size, own.tokenizer.eos_token_id
    grammar = AnswerGrammar.of(None, f"start: /{pattern}/", own, None)
    tokens = token_bytes(own.tokenizer)
    branch, written = engine().root([1]), b""
    for place in range(8):
        allowed = filled(grammar, branch, size)
        assert allowed == allowed_by(pattern, written, tokens, eos)
        going = sorted(allowed - {eos})
        if not going:
            break
        branch.append(going[(place * 7919) % len(going)], 0.0, 0.0)
        written += tokens[branch.tokens[-1]] or b""


def test_a_fork_has_a_place_of_its_own() -> None:
    branch, grammar = engine().root([1]), grammar_of(pattern="[ab]{1,3}c?")
    a, c = engine().encode("ac")
    vocab = engine().limits.vocab_size
    filled(grammar, branch, vocab)
    branch.append(a, 0.0, 0.0)
    (child,) = engine().fork(branch, 1)
    before = filled(grammar, branch, vocab)
    child.append(c, 0.0, 0.0)
    assert filled(grammar, child, vocab) == {engine().tokenizer.eos_token_id}
    assert filled(grammar, branch, vocab) == before
    assert filled(grammar, engine().fork(branch, 1)[0], vocab) == before


def test_a_thought_is_free_and_the_answer_after_it_is_not() -> None:
    own = bytes_engine(thinker(OPENING, special=("<think>", "</think>")))
    thoughts = Thoughts.of(own.tokenizer)
    assert thoughts is not None
    grammar = AnswerGrammar.of(None, "start: /[ab]+/", own, thoughts)
    begun = own.tokenizer.apply_chat_template([{"role": "user", "content": "?"}])["input_ids"]
    branch, vocab = own.root(begun), own.limits.vocab_size
    assert branch.thinks(thoughts)
    letters = set(own.encode("ab"))
    for token in own.encode('{"x"} y'):
        assert filled(grammar, branch, vocab) >= set(range(vocab))
        branch.append(token, 0.0, 0.0)
    assert filled(grammar, branch, vocab) >= set(range(vocab))
    branch.append(*own.encode("</think>"), 0.0, 0.0)
    assert filled(grammar, branch, vocab) == letters
    branch.append(min(letters), 0.0, 0.0)
    assert filled(grammar, branch, vocab) == letters | {own.tokenizer.eos_token_id}


@pytest.mark.parametrize("special", [True, False])
def test_a_model_may_open_its_thought_itself_or_answer_at_once(special: bool) -> None:
    marks = ("<think>", "</think>")
    template = TURNS + "{# <think> </think> #}"
    own = bytes_engine(thinker(template, special=marks) if special else thinker(template))
    thoughts = Thoughts.of(own.tokenizer)
    if thoughts is None:
        from ttc import ThinkingMarks

        thoughts = Thoughts.of(own.tokenizer, ThinkingMarks(*marks))
    assert thoughts is not None
    grammar = AnswerGrammar.of(None, "start: /[ab]+/", own, thoughts)
    vocab, letters = own.limits.vocab_size, set(own.encode("ab"))
    opening, ending = own.encode(marks[0]), own.encode(marks[1])
    branch = own.root([1, 2])
    assert filled(grammar, branch, vocab) == letters | {opening[0]}
    (at_once,) = own.fork(branch, 1)
    at_once.append(min(letters), 0.0, 0.0)
    assert filled(grammar, at_once, vocab) == letters | {own.tokenizer.eos_token_id}
    for place, token in enumerate(opening):
        if place:
            assert filled(grammar, branch, vocab) == {token}
        branch.append(token, 0.0, 0.0)
    for token in own.encode("{so ") + ending:
        assert filled(grammar, branch, vocab) >= set(range(vocab))
        branch.append(token, 0.0, 0.0)
    assert filled(grammar, branch, vocab) == letters


def test_an_answer_holds_no_mark_of_a_thought() -> None:
    own = bytes_engine(thinker(OPENING, plain=("<think>", "</think>")))
    thoughts = Thoughts.of(own.tokenizer)
    grammar = AnswerGrammar.of({"type": "string"}, None, own, thoughts)
    branch, vocab = own.root([1]), own.limits.vocab_size
    for token in own.encode('"so '):
        filled(grammar, branch, vocab)
        branch.append(token, 0.0, 0.0)
    marks = {*own.encode("<think>"), *own.encode("</think>")}
    assert len(marks) == 2 and not marks & filled(grammar, branch, vocab)


WRONG: list[tuple[Any, Any, str]] = [
    ({"type": "intege"}, None, "cannot be kept to: .*intege"),
    ({"not": {"type": "string"}}, None, "schema=.*cannot be kept to: .*not"),
    ({"type": "array", "uniqueItems": True}, None, "cannot be kept to: .*uniqueItems"),
    ({"x": object()}, None, "cannot be written as JSON"),
    ("integer", None, "schema='integer' is no JSON schema; give a dictionary"),
    ({}, "start: /a/", "schema and grammar are both given"),
    (None, "start: /a(/", "grammar=.start: .* cannot be kept to: "),
    (None, 7, "grammar=7 is no grammar"),
    (None, " ", "grammar=' ' is no grammar"),
]


@pytest.mark.parametrize(("schema", "grammar", "message"), WRONG)
def test_what_cannot_be_kept_to_is_refused(schema: Any, grammar: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        AnswerGrammar.of(schema, grammar, engine(), None)


def test_tokenizers_whose_bytes_are_not_known_are_refused() -> None:
    from tests.helpers.backends import FakeBackend

    with pytest.raises(InvalidInput, match=r"fast tokenizer of transformers.*Letters"):
        AnswerGrammar.of(PERSON, None, make_engine(), None)
    with pytest.raises(Unsupported, match="FakeBackend keeps to no schema"):
        AnswerGrammar.of(PERSON, None, FakeBackend(), None)


def test_bits_are_read_as_the_sampler_reads_them() -> None:
    import numpy as np

    assert bits(np.array([1 << 31 | 2, 5], np.uint32)) == {1, 31, 32, 34}
    assert isinstance(engine().root([1]), Branch)
