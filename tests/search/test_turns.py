"""Further turns of a search: with the prompt and the answers they are what transformers makes of
the whole chat."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from search import (
    Append,
    Case,
    Expand,
    Revision,
    Search,
    SearchSteps,
    SelfRefine,
    Step,
    Vary,
    solve,
)
from tests.helpers.chains import chain
from tests.helpers.chats import CHATS, QUESTION, WORDS
from tests.helpers.engines import GREEDY, random_llama
from tests.helpers.scripted import Scores
from tests.helpers.thinking import SWITCHED, Thinking, thinker
from tests.helpers.tiers import slow
from ttc import Engine, InvalidInput
from ttc.model.loading.load import load_tokenizer
from ttc.text.prompt import PromptTemplate


@dataclass(frozen=True)
class Asking(Search):
    """Three answers, each but the first after the same words of the user."""

    needs_verifier = False

    def run(self, root: Any, case: Case) -> SearchSteps:
        branches = yield Expand([root], 1, Step(4, end=case.end), self.sampling)
        for _ in range(2):
            told = yield Append(branches, WORDS, turn=True)
            branches = yield Expand(told, 1, Step(2, end=case.end), self.sampling)
            # a step is no turn
            branches = yield Expand(branches, 1, Step(2, end=case.end), self.sampling)
        return branches


@pytest.mark.few
@pytest.mark.parametrize(
    "name", ["chatml", "smollm_2", "qwen_2_5", "stablelm_2", "alpaca", "llama_3_1", "gemma_3"]
)
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
    ids = words.apply_chat_template(
        messages[:-1], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert result.best.tokens == [*ids, *words.encode("four", add_special_tokens=False)]
    assert engine.kv_bytes() == 0


def test_a_template_that_leaves_answers_out_fails_the_problem_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = CHATS["chatml"].tokenizer
    engine = Engine(chain("four", words, after="\n"), words)
    last = "{{ '<|im_start|>user\n' + messages[-1].content + '<|im_end|>\n' }}"
    last += "{{ '<|im_start|>assistant\n' }}"
    monkeypatch.setattr(words, "chat_template", last)
    (result,) = solve(Asking(), problem=[QUESTION], engine=engine, template=PLAIN)
    assert "leaves out a message of the user" in str(result.error)
    assert engine.kv_bytes() == 0


# ---------------------------------------------------------------- where the whole chat begins
# otherwise

PLAIN = PromptTemplate("{question}")
THOUGHT = "<think>\nEasy.\n</think>\n\n"


def whole(tokenizer: Any, *said: str, **options: Any) -> list[int]:
    """Transformers' own call for a chat of the user and the model in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(said)]
    ids = tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=False, **options
    )
    assert isinstance(ids, list)
    return ids


def plain_marks(name: str) -> Any:
    """A chat's tokenizer, whose marks of thoughts are no special tokens, as in the published
    ones."""
    chat, marks = CHATS[name], ("<think>", "</think>")
    if not set(marks) & set(chat.special):
        return chat.tokenizer
    return thinker(
        chat.template, tuple(token for token in chat.tokens if token not in marks), marks
    )


def revised(backend: Any, template: PromptTemplate, **settings: Any) -> Any:
    """One chain of revisions, each attempt rated by its length."""
    search = Revision(**{"n": 1, "attempts": 3, "feedback": WORDS, **settings})
    verifier = Scores(lambda branch: float(len(branch.path)))
    result = solve(search, problem=QUESTION, engine=backend, verifier=verifier, template=template)
    assert result.error is None
    return result


def sequences(result: Any) -> list[list[int]]:
    """The tokens of every node of a tree, in order of creation."""
    found: dict[int, list[int]] = {}
    for node in result.tree:
        before = [] if node.parent is None else found[node.parent]
        found[node.id] = [*before[: node.start], *node.token_ids]
    return list(found.values())


@pytest.mark.parametrize(
    "name", ["qwen_3", "deepseek_r1_distill", "qwen_3_without_thoughts", "llama_3", "granite_3"]
)
def test_every_attempt_of_a_search_stands_on_the_whole_chat(name: str) -> None:
    chat, words = CHATS[name], plain_marks(name)
    thought = {"qwen_3": THOUGHT, "deepseek_r1_distill": "Easy.\n</think>\n\n"}.get(name, "")
    says = [f"{thought}{answer}\n" for answer in ("four", "five", "six")]
    backend = Thinking(lambda branch: says[len(branch.path) // 2], words)
    result = revised(backend, PromptTemplate("{question}", options=chat.options))
    ids = [
        whole(words, QUESTION, *later, **chat.options)
        for later in ([], [says[0], WORDS], [says[0], WORDS, says[1], WORDS])
    ]
    written = [[*backend.encode(text), words.eos_token_id] for text in says]
    expected = [tokens for i in range(3) for tokens in (ids[i], ids[i] + written[i])]
    assert sequences(result) == expected
    best = result.best
    assert best.tokens == expected[-1]
    assert best.prompt_length == len(ids[2]) and best.path == (0,) * 5
    assert best.text == says[2] and best.answer_text.strip() == "six" and best.steps == [says[2]]
    assert [node.score for node in result.tree] == [None, 1.0, None, 3.0, None, 5.0]
    assert not backend.live


def test_a_searchs_settings_may_keep_the_models_own_tokens() -> None:
    words = plain_marks("qwen_3")
    backend = Thinking(lambda branch: f"{THOUGHT}four", words)
    result = revised(backend, PromptTemplate("{question}", keep_generated=True), attempts=2)
    before = whole(words, QUESTION) + backend.encode(f"{THOUGHT}four")
    after = backend.encode(
        f"<|im_end|>\n<|im_start|>user\n{WORDS}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert sequences(result)[2] == before + after


def test_answers_that_are_put_after_the_question_anew_are_part_of_the_whole_chat() -> None:
    words = plain_marks("qwen_3")
    says = [f"{THOUGHT}{answer}" for answer in ("four", "five", "six")]
    backend = Thinking(lambda branch: next(left), words)
    left = iter(says)
    result = revised(backend, PLAIN, memory=1)
    prompt = whole(words, QUESTION, says[1], WORDS)
    assert sequences(result)[-1] == [*prompt, *backend.encode(says[2]), words.eos_token_id]


def test_a_critique_stands_on_the_whole_chat_too() -> None:
    words, seen = plain_marks("qwen_3"), list[list[int]]()
    says = [f"{THOUGHT}{text}" for text in ("four", "no", "five", "it is correct")]

    def script(branch: Any) -> str:
        seen.append(branch.tokens[: branch.prompt_length])
        return says[len(seen) - 1]

    search = SelfRefine(feedback="Check.", rewrite="Rewrite.")
    backend = Thinking(script, words)
    result = solve(search, problem=QUESTION, engine=backend, template=PLAIN)
    assert result.best.answer_text == "\n\nfive"
    later = [says[0], "Check.", says[1], "Rewrite.", says[2], "Check."]
    assert seen == [whole(words, QUESTION, *later[: 2 * turn]) for turn in range(4)]


MARKED = (
    "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}<eos>{% endfor "
    "%}<turn>assistant\n{# [/THINK] #}"
)
"""A template whose model thinks between special tokens, which texts leave out."""


def test_of_thoughts_between_special_tokens_the_answer_alone_is_sent() -> None:
    tokenizer = thinker(MARKED, ("[THINK]", "[/THINK]"))

    def says(branch: Any) -> str:
        return f"[THINK]Easy.[/THINK]{'four' if len(branch.path) == 1 else 'five'}"

    for settings in ({}, {"memory": 1}):
        result = revised(Thinking(says, tokenizer), PLAIN, attempts=2, **settings)
        prompt = result.best.tokens[: result.best.prompt_length]
        assert prompt == whole(tokenizer, QUESTION, "four", WORDS)
        assert result.best.answer_text == "five" and result.best.thought == "Easy."


@dataclass(frozen=True)
class Varied(Asking):
    """An answer to another phrasing, whose beginning is given, and one after the user's next
    words."""

    def run(self, root: Any, case: Case) -> SearchSteps:
        varied = yield Vary(root, 1, phrasings=["Solve {question}"], hints=["fo"])
        branches = yield Expand(varied, 1, Step(9, end=case.end), self.sampling)
        told = yield Append(branches, WORDS, turn=True)
        return (yield Expand(told, 1, Step(9, end=case.end), self.sampling))


def test_a_chat_goes_on_from_the_phrasing_and_the_words_that_it_began_with() -> None:
    tokenizer = CHATS["chatml"].tokenizer
    backend, template = Thinking(lambda branch: "ur", tokenizer), PromptTemplate("Q: {question}")
    result = solve(Varied(), problem=QUESTION, engine=backend, template=template)
    prompt = result.best.tokens[: result.best.prompt_length]
    assert prompt == whole(tokenizer, f"Solve {QUESTION}", "four", WORDS)


class Pieces(Thinking):
    """Writes a token for each letter."""

    def encode(self, text: str) -> list[int]:
        return [token for letter in text for token in super(Pieces, self).encode(letter)]


def test_an_answer_in_other_pieces_is_sent_in_those_of_smollm2s_tokenizer() -> None:
    tokenizer = load_tokenizer("smollm2-135m")
    backend = Pieces(lambda branch: "The answer is 4.", tokenizer)
    result = revised(backend, PLAIN, attempts=2)
    first, prompt = sequences(result)[1], result.best.tokens[: result.best.prompt_length]
    assert prompt == whole(tokenizer, QUESTION, "The answer is 4.", WORDS)
    assert prompt[: len(first) - 1] != first[:-1]
    assert tokenizer.decode(prompt).startswith(tokenizer.decode(first[:-1]))


# ---------------------------------------------------------------- on an engine


def random_engine(tokenizer: Any) -> Engine:
    model = random_llama(len(tokenizer), 1024, 0.4, eos=None)
    return Engine(model.eval(), tokenizer)


@dataclass(frozen=True)
class Greedy(Asking):
    """Two chains of greedy answers, which part by their first words."""

    def run(self, root: Any, case: Case) -> SearchSteps:
        varied = yield Vary(root, 2, hints=["a", "b"])
        branches = yield Expand(varied, 1, Step(24, end=case.end), GREEDY)
        for _ in range(2):
            told = yield Append(branches, WORDS, turn=True)
            branches = yield Expand(told, 1, Step(24, end=case.end), GREEDY)
        return branches


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen_3", "llama_3", slow("smollm2"), slow("switched")])
def test_an_engine_answers_the_whole_chat_as_a_new_prompt(name: str) -> None:
    own = {
        "smollm2": partial(load_tokenizer, "smollm2-135m"),
        "switched": partial(thinker, SWITCHED),
    }
    tokenizer = own[name]() if name in own else CHATS[name].tokenizer
    options = {"enable_thinking": False} if name == "switched" else {}
    engine = random_engine(tokenizer)
    template = PromptTemplate("{question}", options=options)
    result = solve(Greedy(), problem=QUESTION, engine=engine, template=template)
    assert result.error is None and len(result.branches) == 2
    nodes = sequences(result)
    answers = {node.path[0]: list[str]() for node in result.tree if node.path}
    for node, tokens in zip(result.tree, nodes, strict=True):
        # an answer; before it stand a hint, a first prompt or a turn
        if len(node.path) in (2, 4, 6):
            said = answers[node.path[0]]
            later = [text for answer in said for text in (answer, WORDS)]
            prompt = whole(tokenizer, QUESTION, *later, **options)
            assert tokens[: len(prompt)] == prompt
            plain = random_engine(tokenizer)
            hint = "" if said else "ab"[node.path[0]]
            root = plain.root([*prompt, *tokenizer.encode(hint, add_special_tokens=False)])
            plain.generate([root], 24, sampling=GREEDY)
            assert root.tokens == tokens
            said.append(engine.decode(tokens[len(prompt) :]))
    assert engine.kv_bytes() == 0
    assert any(node.start < len(nodes[node.parent]) for node in result.tree[1:])


def test_a_branch_may_be_forked_from_an_earlier_place() -> None:
    tokenizer = CHATS["chatml"].tokenizer
    engine, plain = random_engine(tokenizer), random_engine(tokenizer)
    prompt = list(range(5, 45))
    root = engine.root(prompt)
    engine.generate([root], 20, sampling=GREEDY)
    for keep in (0, 1, 7, 30, len(prompt), 50, len(root.tokens)):
        (child,) = engine.fork(root, 1, keep=keep)
        assert child.tokens == root.tokens[:keep] and child.prompt_length == keep
        assert (child.text, child.logprobs, child.steps, child.finish_reason) == ("", [], [], None)
        engine.extend([child], [[3, 1, 4]]).result()
        engine.generate([child], 8, sampling=GREEDY)
        expected = plain.root([*root.tokens[:keep], 3, 1, 4])
        plain.generate([expected], 8, sampling=GREEDY)
        assert child.tokens == expected.tokens
    with pytest.raises(InvalidInput, match=r"keep=61 is more than the 60 tokens"):
        engine.fork(root, 1, keep=61)
