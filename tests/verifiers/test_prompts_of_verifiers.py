"""The tokens that each verifier sends, against the code that its model was published with, over
tokenizers of several kinds. Step by step the same is tested in test_reward_models.py and
test_other_models.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf

from tests.helpers.backends import FakeBackend
from tests.helpers.chats import CHATS, QUESTION, Chat, tokenizer
from tests.helpers.models import small
from ttc import Engine
from ttc.branch import Branch
from ttc.text.conversation import Talk
from verifiers import (
    LLMJudge,
    OutcomeReward,
    QwenPRM,
    RLHFlowPRM,
    SelfVerifier,
    ThinkPRM,
)
from verifiers.self_verifier import GRADER

STEPS = ["2 + 2 = 4.", "So four."]
NO_BOS = CHATS["llama_3_1"].template.replace("{{ bos_token }}", "")
"""Llama 3.1's template without the first token, which the tokenizer puts before raw texts alone."""


def own(kind: Any, tokens: Any, **settings: Any) -> Any:
    """A verifier with a tokenizer, and of its model the configuration alone."""
    model = SimpleNamespace(config=hf.LlamaConfig())
    verifier = kind((model, tokens), **settings)
    verifier._parts = model, tokens
    return verifier


def llama(template: str | None = None) -> Any:
    chat = CHATS["llama_3_1"]
    return tokenizer(
        chat.tokens, chat.kind, chat.bos, chat.eos, chat.before, (), template or chat.template
    )


@pytest.mark.parametrize("template", [None, NO_BOS], ids=["with_bos", "without_bos"])
def test_rlhflow(template: str | None) -> None:
    """RLHFlow/RLHF-Reward-Modeling, math-rm/prm_evaluate.py: apply_chat_template(conversation,
    return_tensors="pt")."""
    words = llama(template)
    verifier = own(RLHFlowPRM, words)
    verifier.check_tokenizer()
    conversation = [
        {"role": "user", "content": f"{QUESTION} {STEPS[0]}"},
        {"role": "assistant", "content": "+"},
        {"role": "user", "content": STEPS[1]},
        {"role": "assistant", "content": "+"},
    ]
    expected = words.apply_chat_template(conversation, return_tensors="pt", return_dict=False)[
        0
    ].tolist()
    assert expected.count(words.bos_token_id) == (template is None)
    assert verifier.closed(QUESTION, STEPS) == expected
    layout = verifier.laid_out(QUESTION, STEPS, None)
    assert layout.tokens == expected and layout.reads[-1] == len(expected) - 3
    before = verifier.opened(QUESTION, STEPS)
    assert expected[: len(before)] == before


@pytest.mark.parametrize("name", ["llama_3", "llama_3_1", "qwen_2_5", "qwen_3", "gemma_2"])
def test_outcome_models(name: str) -> None:
    """Skywork-Reward's cards: the template's text without its first token, then tokenizer(text).
    Qwen2.5-Math-RM's card: tokenizer.encode(text, add_special_tokens=False). For their tokenizers
    both give the same."""
    words = CHATS[name].tokenizer
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "four"}]
    text = words.apply_chat_template(chat, tokenize=False)
    skywork = text.removeprefix(words.bos_token) if words.bos_token else text
    expected = words.encode(text, add_special_tokens=False)
    assert words(skywork)["input_ids"] == expected
    assert own(OutcomeReward, words).closed(QUESTION, ["four"]) == expected


def test_an_outcome_model_gets_no_first_token_that_its_template_leaves_out() -> None:
    zephyr = CHATS["zephyr"]
    text = "<|user|>\n2 + 2?</s>\n<|assistant|>\nfour</s>\n"
    assert own(OutcomeReward, zephyr.tokenizer).closed(QUESTION, ["four"]) == zephyr.ids(text)


@pytest.mark.parametrize("name", ["deepseek_r1_distill", "qwen_2_5"])
def test_think_prm(name: str) -> None:
    """launch/ThinkPRM-1.5B's card: the template's text and the first words of the verification. The
    first token comes once, as where the authors' code asks for the verdict
    (add_special_tokens=False)."""
    chat = CHATS[name]
    verifier = own(ThinkPRM, chat.tokenizer)
    tokens = verifier.closed(QUESTION, ["Step 1: 2 + 2 = 4."])
    asked = (
        "You are given a math problem and a proposed step-by-step solution:\n\n[Math "
        "Problem]\n\n2 + 2?\n\n[Solution]"
        "\n\nStep 1: 2 + 2 = 4.\n\nReview and critique each step in the proposed solution to "
        "determine whether each step is correct. If the solution is incomplete, only verify the "
        "provided steps."
    )
    text = chat.prompt.replace(QUESTION, asked) + "\nLet's verify step by step:"
    assert tokens == chat.ids(text)
    if chat.bos is not None:
        assert tokens.count(chat.tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("name", ["zephyr", "llama_2", "llama_3_1", "glm_4", "smollm_2"])
def test_the_judge_asks_as_transformers_would(name: str) -> None:
    chat = CHATS[name]
    judge = own(LLMJudge, chat.tokenizer, rubric="Be strict.", grades=3)
    asked = (
        "Be strict.\n\nProblem:\n2 + 2?\n\nSolution:\nfour\n\nReply with one number from 1 (worst) "
        "to 3 (best)."
    )
    tokens = judge.closed(QUESTION, ["four"])
    assert tokens == prompt(chat.tokenizer, asked) == chat.ids(chat.prompt.replace(QUESTION, asked))


def test_the_judge_without_a_chat_template_asks_with_the_tokenizers_special_tokens() -> None:
    glm = CHATS["glm_4"]
    words = tokenizer(glm.tokens, "bytes", None, glm.eos, glm.before)
    judge = own(LLMJudge, words, rubric="Be strict.", grades=3)
    text = (
        "Be strict.\n\nProblem:\n2 + 2?\n\nSolution:\nfour\n\n"
        "Reply with one number from 1 (worst) to 3 (best).\nGrade:"
    )
    tokens = judge.closed(QUESTION, ["four"])
    assert tokens == words(text)["input_ids"] == glm.ids("[gMASK]<sop>" + text)


# ---------------------------------------------------------------- conversations

TALK = (
    {"role": "user", "content": "Ann has 7."},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": QUESTION},
)


@pytest.mark.parametrize("kind", [LLMJudge, OutcomeReward, ThinkPRM, QwenPRM, RLHFlowPRM])
def test_a_reward_model_reads_the_whole_conversation(kind: Any) -> None:
    chat = CHATS["qwen_2_5"]
    words = tokenizer(
        (*chat.tokens, "<extra_0>", "+", "-"), "bytes", None, chat.eos, (), (), chat.template
    )
    text = words.decode(own(kind, words).closed(Talk.of(TALK), STEPS))
    places = [text.index(said["content"]) for said in TALK]
    assert places == sorted(places) and text.rindex(QUESTION) < text.index(STEPS[0])


@pytest.mark.parametrize("system", [None, "Be fair."])
@pytest.mark.parametrize("name", ["llama_3_1", "qwen_2_5", "gemma_2"])
def test_an_outcome_model_gets_a_conversation_as_a_chat(name: str, system: str | None) -> None:
    """Gemma's template has no system role: its words go into the user's first turn."""
    words = CHATS[name].tokenizer
    whole = [{"role": "system", "content": "Count."}, *TALK]
    given = {"role": "assistant", "content": "four"}
    chat: list[Any] = [*([{"role": "system", "content": system}] if system else []), *whole, given]
    if name == "gemma_2":
        first = "\n\n".join(m["content"] for m in chat[: -len(TALK)])
        chat = [{"role": "user", "content": first}, *chat[-len(TALK) :]]
    expected = words.encode(
        words.apply_chat_template(chat, tokenize=False), add_special_tokens=False
    )
    verifier = own(OutcomeReward, words, system=system)
    assert verifier.closed(Talk.of(whole), ["four"]) == expected


# ---------------------------------------------------------------- the self-verifier


class Asked(FakeBackend):
    """Knows yes and no as the tokens 0 and 1."""

    def __init__(self, words: Any):
        super().__init__(longest=5_000)
        self.tokenizer = words

    def encode(self, text: str) -> list[int]:
        known = {"yes": [0], "no": [1]}.get(text.strip().lower())
        return known or list(self.tokenizer.encode(text, add_special_tokens=False))


def answered(backend: FakeBackend, chat: Chat, ended: bool) -> Branch:
    """A branch with an answer of the model, and the end of its turn."""
    branch = backend.root(chat.ids(chat.prompt))
    start = len(branch.tokens)
    for token in chat.ids(chat.prompt + chat.said)[start:]:
        branch.append(token, -1.0, 0.5)
    if ended:
        branch.append(chat.tokenizer.eos_token_id, -1.0, 0.5)
        branch.finish_reason = "eos"
    return branch


KEEPING = [name for name, chat in CHATS.items() if not chat.rewrites and not chat.options]
"""A verifier does not know the options of a prompt."""


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("name", KEEPING)
def test_the_self_verifier_goes_on_as_the_whole_chat_does(name: str, ended: bool) -> None:
    chat = CHATS[name]
    backend = Asked(chat.tokenizer)
    branch = answered(backend, chat, ended)
    SelfVerifier("Sure?").rate([branch], [QUESTION], backend)
    assert backend.scored == [chat.ids(chat.turned)]


@pytest.mark.parametrize(
    "name", ["zephyr", "llama_2", "llama_3_1", "glm_4", "smollm_2", "qwen_2_5"]
)
def test_a_fresh_prompt_is_what_transformers_makes_of_it(name: str) -> None:
    """Of a question, and of a conversation as one text."""
    chat = CHATS[name]
    talk = Talk.of(TALK)
    told = f"User: Ann has 7.\n\nAssistant: I see.\n\nUser: {QUESTION}"
    for question, text in ((QUESTION, QUESTION), (talk, told)):
        backend = Asked(chat.tokenizer)
        branch = answered(backend, chat, False)
        SelfVerifier("Sure?", fresh=True).rate([branch], [question], backend)
        asked = f"{GRADER}\n\nProblem:\n{text}\n\nSolution:\nfour\n\nSure?"
        assert backend.scored == [prompt(chat.tokenizer, asked)]


def test_a_question_without_a_chat_template_follows_the_one_that_the_model_has_begun() -> None:
    words = tokenizer(("<s>", "</s>"), "pieces", "<s>", "</s>", ("<s>",))
    backend = Asked(words)
    branch = backend.root(words("Question: 2 + 2?\nAnswer:")["input_ids"])
    start = len(branch.tokens)
    for token in words("Question: 2 + 2?\nAnswer: four\nQuestion:")["input_ids"][start:]:
        branch.append(token, -1.0, 0.5)
    branch.finish_reason = "end"
    branch.leave_out(["Question:"])
    assert branch.text == "four\n"
    SelfVerifier("Sure?").rate([branch], [QUESTION], backend)
    whole = words("Question: 2 + 2?\nAnswer: four\nQuestion: Sure?\nAnswer:")["input_ids"]
    assert backend.scored == [whole]


def test_the_engine_asks_after_an_answer_that_ended_otherwise_than_the_template_ends_it() -> None:
    """Llama 2's template puts a blank before the end of a turn, which the model does not write."""
    chat = CHATS["llama_2"]
    words = tokenizer(
        (*chat.tokens, "Yes", "No"), chat.kind, chat.bos, chat.eos, chat.before, (), chat.template
    )
    engine = Engine(small(context=256), words)
    question, answer = prompt(words, QUESTION), words.encode("four", add_special_tokens=False)
    root = engine.root(question)
    (branch,) = engine.fork(root, 1)
    engine.extend([branch], [answer]).result()
    branch.append(words.eos_token_id, -1.0, 0.5)
    branch.finish_reason = "eos"
    whole = prompt(words, QUESTION, "four", "Sure?")
    before = engine.kv_bytes()
    ((score,),) = SelfVerifier("Sure?").rate([branch], [QUESTION], engine)
    assert engine.kv_bytes() == before and branch.tokens == [*question, *answer, words.eos_token_id]
    plain = small(context=256)
    with torch.no_grad():
        p = plain(torch.tensor([whole])).logits[0, -1].softmax(-1)
    yes, no = (words.convert_tokens_to_ids(word) for word in ("Yes", "No"))
    assert score == pytest.approx(float(p[yes] / (p[yes] + p[no])), abs=1e-5)
    engine.release([root, branch])


def prompt(words: Any, *said: str) -> list[int]:
    """A chat of user and assistant in turn, up to the assistant's next turn."""
    roles = ["user", "assistant"] * len(said)
    chat = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    tokens: list[int] = words.apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    return tokens
