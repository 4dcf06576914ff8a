"""Reward models as published: rated step by step along a tree, the scores are those of the whole
text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from tests.helpers.engines import make_engine
from tests.helpers.reward_models import (
    CHATML,
    HEADERS,
    IM,
    LLAMA3,
    byte_tokenizer,
    close_to,
    configuration,
    grown,
    head_at,
    logits_at,
    policy,
    seeded,
    sentence_tokenizer,
)  # fmt: skip
from ttc import InvalidInput, UnsupportedModel
from ttc.model.loading.reward_heads import HeadedModel
from verifiers import MathShepherd, QwenPRM, RLHFlowPRM, SkyworkPRM, TokenPRM, ValueHead
from verifiers.reward_model import RewardModel, split_steps

QUESTION = "Tom has 3 boxes of 4 apples. He eats 2. How many are left?"
Whole = Callable[[str, Sequence[str]], list[float]]
"""The published way: the scores of a question and steps, all ended, from passes over the whole
text."""


def qwen() -> tuple[RewardModel, Whole]:
    tokenizer = byte_tokenizer(["<extra_0>", *IM], CHATML)
    head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    model = seeded(lambda: HeadedModel(hf.Qwen2Model(configuration("qwen2", tokenizer)), head))

    def whole(question: str, steps: Sequence[str]) -> list[float]:
        messages = [
            {
                "role": "system",
                "content": "Please reason step by step, and put your final answer within "
                "\\boxed{}.",
            },
            {"role": "user", "content": question},
            {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
        ]
        tokens = tokenizer.encode(
            tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False
        )
        outputs = head_at(model, tokens).softmax(-1)[:, 1]
        return outputs[
            torch.tensor(tokens) == tokenizer.convert_tokens_to_ids("<extra_0>")
        ].tolist()

    return QwenPRM((model, tokenizer)), whole


def skywork() -> tuple[RewardModel, Whole]:
    tokenizer = byte_tokenizer(IM, bos="<|im_start|>")
    model = seeded(
        lambda: HeadedModel(hf.Qwen2Model(configuration("qwen2", tokenizer)), nn.Linear(32, 1))
    )

    def whole(question: str, steps: Sequence[str]) -> list[float]:
        tokens = tokenizer.encode("<|im_start|>" + question + "\n", add_special_tokens=False)
        ends = []
        for step in steps:
            tokens += (
                tokenizer.encode(step.replace("\n", " "), add_special_tokens=False)
                + tokenizer.encode("\n")[-1:]
            )
            ends.append(len(tokens) - 1)
        return head_at(model, tokens).sigmoid()[ends, 0].tolist()

    return SkyworkPRM((model, tokenizer), separator="\n\n"), whole


def math_shepherd() -> tuple[RewardModel, Whole]:
    tokenizer = sentence_tokenizer(["▁ки", "▁+", "▁-"])
    model = seeded(hf.MistralForCausalLM, configuration("mistral", tokenizer, sliding_window=None))

    def whole(question: str, steps: Sequence[str]) -> list[float]:
        output = "\n".join(
            f"Step {number}: {step} ки" for number, step in enumerate(steps, start=1)
        )
        tokens = tokenizer.encode(f"{question} {output}")
        candidates = tokenizer.encode("+ -")[1:]
        assert len(candidates) == 2
        scores = logits_at(model, tokens)[:, candidates].softmax(-1)[:, 0]
        return scores[torch.tensor(tokens) == tokenizer.encode("ки")[-1]].tolist()

    return MathShepherd((model, tokenizer)), whole


def rlhflow() -> tuple[RewardModel, Whole]:
    tokenizer = byte_tokenizer(HEADERS, LLAMA3, bos="<|begin_of_text|>")
    model = seeded(hf.LlamaForCausalLM, configuration("llama", tokenizer))
    signs = [tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]]

    def whole(question: str, steps: Sequence[str]) -> list[float]:
        messages: list[dict[str, str]] = []
        scores = []
        for place, step in enumerate(steps):
            messages.append({"role": "user", "content": step if place else f"{question} {step}"})
            messages.append({"role": "assistant", "content": "+"})
            tokens = tokenizer.encode(
                tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False
            )
            scores.append(float(logits_at(model, tokens)[-3, signs].softmax(-1)[0]))
        return scores

    return RLHFlowPRM((model, tokenizer)), whole


def value_head() -> tuple[RewardModel, Whole]:
    tokenizer = byte_tokenizer(HEADERS, bos="<|begin_of_text|>")
    model = seeded(hf.LlamaForTokenClassification, configuration("llama", tokenizer, num_labels=2))
    headed = HeadedModel.of(model)

    def encode(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    # as TRL's PRMTrainer.tokenize_row
    def whole(question: str, steps: Sequence[str]) -> list[float]:
        tokens, ends = [tokenizer.bos_token_id, *encode(question)], []
        for completion in [encode(step) + encode("\n\n") for step in steps]:
            tokens += completion
            ends.append(len(tokens) - 1)
        return head_at(headed, tokens).softmax(-1)[ends, 1].tolist()

    return ValueHead((model, tokenizer), separator="\n\n"), whole


def marked() -> tuple[RewardModel, Whole]:
    """A text in which each step ends with a mark and a line break, at which it is read; several
    tokens are good."""
    tokenizer = byte_tokenizer(["<step>"], bos="<step>")
    model = seeded(hf.LlamaForCausalLM, configuration("llama", tokenizer))
    signs = [tokenizer.encode(sign)[-1] for sign in "+1-0?"]

    def whole(question: str, steps: Sequence[str]) -> list[float]:
        text = f"Q: {question}\nA:"
        scores = []
        for place, step in enumerate(steps, start=1):
            own = "" if step.startswith("(") else f"({place}) "
            text += f" {own}{step}<step>\n"
            values = logits_at(model, tokenizer.encode(text))[-1, signs]
            scores.append(float(values.exp()[:2].sum() / values.exp().sum()))
        return scores

    verifier = TokenPRM(
        (model, tokenizer),
        mark="<step>",
        good=["+", "1"],
        bad=["-", "0", "?"],
        template="Q: {question}\nA:{steps}",
        step=" ({number}) {step}{mark}\n",
        read="after",
    )
    return verifier, whole


def headed_turns() -> tuple[RewardModel, Whole]:
    """Each step is a message that is answered, and a head of three labels is read there."""
    tokenizer = byte_tokenizer(["<yes>", *IM], CHATML)
    model = seeded(hf.Qwen2ForTokenClassification, configuration("qwen2", tokenizer, num_labels=3))
    headed = HeadedModel.of(model)

    def whole(question: str, steps: Sequence[str]) -> list[float]:
        text, scores = f"<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n{question}\n", []
        for step in steps:
            text += f"{step}<|im_end|>\n<|im_start|>assistant\n<yes>"
            tokens = tokenizer.encode(text, add_special_tokens=False)
            shares = head_at(headed, tokens)[-1].softmax(-1)
            scores.append(float(shares[2] + shares[0]))
            text += "<|im_end|>\n<|im_start|>user\n"
        return scores

    verifier = TokenPRM(
        (model, tokenizer),
        mark="<yes>",
        good=[2, 0],
        bad=[1],
        template=[
            {"role": "system", "content": "Judge."},
            {"role": "user", "content": "{question}\n{steps}"},
        ],
        step="{step}{mark}",
        turns=True,
    )
    return verifier, whole


MODELS = {
    "marked": marked,
    "headed_turns": headed_turns,
    "qwen": qwen,
    "skywork": skywork,
    "math_shepherd": math_shepherd,
    "rlhflow": rlhflow,
    "value_head": value_head,
}


@pytest.fixture(params=MODELS)
def made(request: Any) -> tuple[RewardModel, Whole]:
    return MODELS[request.param]()


def test_a_ragged_forked_tree_over_two_problems_rates_like_the_whole_texts(
    made: tuple[RewardModel, Whole],
) -> None:
    model, whole = made
    engine = policy()
    first, second = engine.roots([[1, 2], [1, 3]]).result()
    level = grown(engine, first, "Tom has 12.\n\n", "He has 3\n\nand 4\n\n", "3 * 4")
    level += grown(engine, second, "Seven.\n\n")
    questions = [QUESTION] * 3 + ["Seven?"]
    texts = [["Tom has 12."], ["He has 3", "and 4"], ["3 * 4"], ["Seven."]]
    for scores, question, steps in zip(
        model.rate(level, questions, engine), questions, texts, strict=True
    ):
        assert scores == close_to(whole(question, steps))
    engine.release([first, second, level[2]])
    model.released([first, second, level[2]])
    last = grown(engine, level[0], " Then 10\n\n", " Then 10 are left.", finished=True)
    last += grown(engine, level[1], "x\n\ny")
    engine.release(level)
    model.released(level)
    texts = [
        ["Tom has 12.", "Then 10"],
        ["Tom has 12.", "Then 10 are left."],
        ["He has 3", "and 4", "x", "y"],
    ]
    for scores, steps in zip(model.rate(last, [QUESTION] * 3, engine), texts, strict=True):
        assert scores == close_to(whole(QUESTION, steps))
    model.released([*level, *last])
    assert not model.mirror(engine).engine.memory.live and not model.mirror(engine).mirrors


def test_a_step_cut_by_length_is_rated_as_it_is_and_goes_on_without_its_end(
    made: tuple[RewardModel, Whole],
) -> None:
    model, whole = made
    engine = policy()
    (branch,) = grown(engine, engine.root([1, 2]), "Tom has 3 boxes.\n\n3 * 4 = 1")
    for more, steps in (
        ("", ["Tom has 3 boxes.", "3 * 4 = 1"]),
        ("2 app", ["Tom has 3 boxes.", "3 * 4 = 12 app"]),
        ("les\n", ["Tom has 3 boxes.", "3 * 4 = 12 apples"]),
        ("\nTen", ["Tom has 3 boxes.", "3 * 4 = 12 apples", "Ten"]),
    ):
        (branch,) = grown(engine, branch, more)
        (scores,) = model.rate([branch], [QUESTION], engine)
        assert scores == close_to(whole(QUESTION, steps)), steps


def test_steps_that_are_alike_are_computed_once(made: tuple[RewardModel, Whole]) -> None:
    model, whole = made
    engine = policy()
    root = engine.root([1, 2])
    twins = grown(engine, root, "3 * 4 = 12\n\n", "3 * 4 = 12\n\n", "3 * 4 = 13\n\n")
    one, two, three = model.rate(twins, [QUESTION] * 3, engine)
    assert one == two == close_to(whole(QUESTION, ["3 * 4 = 12"]))
    assert three == close_to(whole(QUESTION, ["3 * 4 = 13"]))
    layout = model.layout(twins[0], QUESTION)
    assert root.usage.verifier_tokens < len(layout.tokens) + 30


def test_a_rating_costs_the_new_tokens_alone_and_its_price_says_so(
    made: tuple[RewardModel, Whole],
) -> None:
    model, _ = made
    engine = policy()
    (branch,) = grown(engine, engine.root([1, 2]), "Tom has 3 boxes of 4 apples, all whole.\n\n")
    before = last = 0
    for _ in range(3):
        price = model.price([branch], [QUESTION], engine)
        model.rate([branch], [QUESTION], engine)
        length = len(model.layout(branch, QUESTION).tokens)
        assert price == branch.usage.verifier_tokens - before == length - last
        assert model.price([branch], [QUESTION], engine) == 0
        before, last = branch.usage.verifier_tokens, length
        (branch,) = grown(engine, branch, "And 3 * 4 = 12 of these.\n\n")


def test_threads_that_share_a_reward_model_have_one_engine_of_it() -> None:
    verifier, _ = qwen()
    engine, together, mirrors = make_engine(), Barrier(2), list[Any]()

    def mirror() -> None:
        together.wait(timeout=60)
        mirrors.append(verifier.mirror(engine))

    threads = [Thread(target=mirror) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(mirrors) == 2 and mirrors[0] is mirrors[1]


def test_texts_are_cut_into_steps_at_the_separator() -> None:
    assert split_steps("a\n\nb\n\n", "\n\n", False) == (["a", "b"], None)
    assert split_steps("a\n\n\n b", "\n\n", False) == (["a"], "b")
    assert split_steps("a\n\nb", "\n\n", True) == (["a", "b"], None)
    assert split_steps(" \n\n", "\n\n", True) == ([], "")
    assert split_steps("a\nb\ufffd", "\n", False) == (["a"], "b")
    with pytest.raises(InvalidInput, match="separator is empty"):
        QwenPRM((None, None), separator="")


def lines_read(model: SkyworkPRM, text: str) -> list[float]:
    """Skywork's own scores of a text: each line apart from the others and a line break after it,
    which is read."""
    headed, tokenizer = model.parts
    (line_break,) = tokenizer.encode("\n", add_special_tokens=False)
    tokens = tokenizer.encode("<|im_start|>" + QUESTION + "\n", add_special_tokens=False)
    ends = []
    for line in text.split("\n"):
        tokens = [
            *tokens,
            *(tokenizer.encode(line, add_special_tokens=False) if line else []),
            line_break,
        ]
        ends.append(len(tokens) - 1)
    return head_at(headed, tokens).sigmoid()[ends, 0].tolist()


def by_lines() -> SkyworkPRM:
    return SkyworkPRM(skywork()[0].model)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a\n\nb\n\nc", 5),
        ("  3 * 4\n    = 12  \nso 12", 3),
        ("\n\nx", 3),
        ("x\n", 2),
        ("a\x0bb", 1),
    ],
)
def test_skywork_reads_every_line_as_it_is_written_and_empty_ones_too(
    text: str, count: int
) -> None:
    model, engine = by_lines(), policy()
    (branch,) = grown(engine, engine.root([1, 2]), text, finished=True)
    (scores,) = model.rate([branch], [QUESTION], engine)
    assert scores == close_to(lines_read(model, text)) and len(scores) == count


def test_skywork_rates_lines_that_come_one_by_one_like_the_whole_text() -> None:
    model, engine = by_lines(), policy()
    branch, text = engine.root([1, 2]), ""
    for piece in ("a\n", "\n", "  b = 1", "2\n\n", "c"):
        (branch,) = grown(engine, branch, piece)
        text += piece
        (scores,) = model.rate([branch], [QUESTION], engine)
        # a line that has not begun is no step
        assert scores == close_to(lines_read(model, text.removesuffix("\n")))


def test_a_text_beyond_the_reward_models_context_is_refused_before_any_work(
    made: tuple[RewardModel, Whole],
) -> None:
    model, _ = made
    engine = policy()
    (branch,) = grown(engine, engine.root([1, 2]), " ".join(map(str, range(400))))
    with pytest.raises(InvalidInput, match="more than the model's context of 512"):
        model.rate([branch], [QUESTION], engine)
    assert branch.usage.verifier_tokens == 0 and not model.mirror(engine).mirrors


def test_a_tokenizer_without_the_formats_tokens_is_refused() -> None:
    model = HeadedModel(hf.Qwen2Model(configuration("qwen2", byte_tokenizer(IM))), nn.Linear(32, 2))
    engine = policy()
    with pytest.raises(UnsupportedModel, match="no token '<extra_0>'"):
        QwenPRM((model, byte_tokenizer(IM, CHATML))).mirror(engine)
    with pytest.raises(UnsupportedModel, match="chat template"):
        QwenPRM((model, byte_tokenizer(["<extra_0>", *IM]))).mirror(engine)
    with pytest.raises(UnsupportedModel, match="no bos_token"):
        SkyworkPRM((model, byte_tokenizer(IM))).mirror(engine)
    language = hf.LlamaForCausalLM(configuration("llama", byte_tokenizer(IM)))
    with pytest.raises(UnsupportedModel, match="no token 'ки'"):
        MathShepherd((language, byte_tokenizer(IM))).mirror(engine)
    silent = CHATML.replace("m['content']", "(m['content'] if m['role'] == 'user' else '')")
    with pytest.raises(UnsupportedModel, match="leaves it out, so that RLHFlowPRM cannot read"):
        RLHFlowPRM((language, byte_tokenizer(IM, silent))).mirror(engine)


def test_a_model_without_a_reward_head_is_refused() -> None:
    tokenizer = byte_tokenizer(["<extra_0>", *IM], CHATML)
    with pytest.raises(UnsupportedModel, match="has no reward head"):
        QwenPRM((hf.Qwen2ForCausalLM(configuration("qwen2", tokenizer)), tokenizer)).mirror(
            policy()
        )
