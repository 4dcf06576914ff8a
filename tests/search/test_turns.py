"""Further turns of a search: with the prompt and the answers they are what transformers makes of the whole chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from search import Append, Case, Expand, Search, SearchSteps, Step, solve
from tests.helpers.chains import chain
from tests.helpers.chats import CHATS, QUESTION, WORDS
from ttc import Engine
from ttc.text.prompt import PromptTemplate


@dataclass(frozen=True)
class Asking(Search):
    """Three answers, each but the first after the same words of the user."""

    @property
    def needs_verifier(self) -> bool:
        return False

    def run(self, root: Any, case: Case) -> SearchSteps:
        branches = yield Expand([root], 1, Step(4, end=case.end), self.sampling)
        for _ in range(2):
            told = yield Append(branches, WORDS, turn=True)
            branches = yield Expand(told, 1, Step(2, end=case.end), self.sampling)
            branches = yield Expand(branches, 1, Step(2, end=case.end), self.sampling)  # a step is no turn
        return branches


@pytest.mark.parametrize("name", ["chatml", "smollm_2", "qwen_2_5", "stablelm_2", "alpaca", "llama_3_1", "gemma_3"])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_the_turns_of_a_search_make_the_whole_chat(name: str, system: str | None) -> None:
    words = CHATS[name].tokenizer
    engine = Engine(chain("four", words, after="\n"), words)
    template = PromptTemplate("{question}", system=system, examples=(("1 + 1?", "two"),))
    result = solve(Asking(), problem=[QUESTION], engine=engine, template=template)[0]
    assert result.error is None and result.best is not None and result.best.text == "four"
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "two"}]
    for said in (QUESTION, WORDS, WORDS):
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": "four"}]
    ids = words.apply_chat_template(messages[:-1], tokenize=True, add_generation_prompt=True, return_dict=False)
    assert result.best.tokens == [*ids, *words.encode("four", add_special_tokens=False)]
    assert engine.kv_bytes() == 0


def test_a_template_that_leaves_answers_out_fails_the_problem_and_says_what_to_do() -> None:
    chat = CHATS["chatml"]
    words = chat.tokenizer
    engine = Engine(chain("four", words, after="\n"), words)
    last = "{{ '<|im_start|>user\n' + messages[-1]['content'] + '<|im_end|>\n<|im_start|>assistant\n' }}"
    was, words.chat_template = words.chat_template, last
    try:
        result = solve(Asking(), problem=[QUESTION], engine=engine, template=PromptTemplate("{question}"))[0]
    finally:
        words.chat_template = was
    assert result.error is not None and "leaves out what the model has answered" in result.error
    assert engine.kv_bytes() == 0
