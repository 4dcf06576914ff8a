"""Half of a surrogate pair: refused where a user gives it, and U+FFFD where others wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import make_engine
from tests.helpers.tiers import examples
from ttc import InvalidInput
from ttc.text.chat import chat_text, encoded
from ttc.text.encodable import check_encodable, encodable, lone_surrogate
from ttc.text.prompt import PromptTemplate, raw_tokens

HALF = "a\ud800b"


@settings(max_examples=examples(200))
@given(st.text(st.characters(exclude_categories=())))
def test_what_can_be_encoded_stays(text: str) -> None:
    whole = encodable(text)
    whole.encode("utf-8")
    assert encodable(whole) == whole and lone_surrogate(whole) is None
    assert (lone_surrogate(text) is None) == (whole == text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("\ud800", "\ufffd"),
        ("a\ud800b\udfffc", "a\ufffdb\ufffdc"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\U0001f600", "\U0001f600"),
        ("", ""),
    ],
)
def test_each_half_is_one_unknown_character(text: str, read: str) -> None:
    assert encodable(text) == read
    assert encodable({text: [text, 1, None]}) == {read: [read, 1, None]}


@pytest.mark.parametrize(
    "give",
    [
        lambda tokenizer: PromptTemplate(instruction=HALF + "{question}"),
        lambda tokenizer: PromptTemplate(system=HALF),
        lambda tokenizer: PromptTemplate(examples=((HALF, "1"),)),
        lambda tokenizer: PromptTemplate().tokens(HALF, tokenizer),
        lambda tokenizer: encoded(HALF, tokenizer),
        lambda tokenizer: raw_tokens(HALF, tokenizer),
        lambda tokenizer: chat_text([{"role": "user", "content": HALF}], tokenizer),
        lambda tokenizer: check_encodable(HALF, "it"),
    ],
)
def test_what_a_user_gives_is_refused_by_name(give: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidInput, match=r"holds '\\ud800' at character \d+, half of a pair"):
        give(None)


def test_strings_that_end_a_step_are_refused_too() -> None:
    engine = make_engine()
    branch = engine.root([65, 66])
    for options in ({"stop": [HALF]}, {"end": [HALF]}):
        with pytest.raises(InvalidInput, match="half of a pair"):
            engine.generate([branch], 4, **options)
