"""Published process reward models that rate by tokens or a head, written as options of `TokenPRM`
alone: the scores are those of the code on their cards, over plain transformers.

Each card is written down again on a small random model with a tokenizer of the model's kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.runs.build import make_verifier, resolved
from tests.helpers.configurations import configuration as configured
from tests.helpers.reward_models import (
    CHATML,
    HEADERS,
    IM,
    LLAMA3,
    WORDS,
    close_to,
    configuration,
    grown,
    head_at,
    logits_at,
    policy,
    seeded,
    sentence_tokenizer,
)
from ttc import UnsupportedModel
from ttc.model.loading.reward_heads import HeadedModel
from verifiers import TokenPRM

LLAMA3_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3's and Qwen2's tokenizers cut a text before they look for tokens."""

Score = Callable[[str, Sequence[str]], list[float]]


def learnt(pieces: Sequence[str], special: Sequence[str], template: str | None = None) -> Any:
    """A tokenizer of Llama 3's kind in whose vocabulary the pieces are, as words of a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    often = [f"x{piece}" for piece in pieces for _ in range(400)]
    tokenizer.train_from_iterator([*WORDS * 3, *often], trainer)
    tokenizer.add_special_tokens(list(special))
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template)


def causal(tokenizer: Any) -> Any:
    return seeded(hf.LlamaForCausalLM, configuration("llama", tokenizer))


@dataclass
class Card:
    """options: of `TokenPRM`. score: as the card has it."""

    model: Any
    tokenizer: Any
    options: dict[str, Any]
    score: Score


def med_prm() -> Card:
    """dmis-lab/llama-3.1-medprm-reward-v1.0: " +" and " -" at each " ки" in the user's message."""
    tokenizer = learnt([" ки", " +", " -"], HEADERS, LLAMA3)
    model = causal(tokenizer)
    system = "If the reasoning contains errors, output - after that step. Else output + after it."

    def score(question: str, steps: Sequence[str]) -> list[float]:
        said = "".join(f"Step {n}: {step} ки " for n, step in enumerate(steps, start=1)).strip()
        chat = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Question: {question}\n\nExplanation: {said}"},
        ]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        encoded = tokenizer(text, return_offsets_mapping=True)
        (plus,), (minus,) = (tokenizer(t)["input_ids"] for t in (" +", " -"))
        logits = logits_at(model, encoded["input_ids"])
        places = [i for i, (s, e) in enumerate(encoded["offset_mapping"]) if text[s:e] == " ки"]
        return logits[places][:, [plus, minus]].softmax(-1)[:, 0].tolist()

    options = {
        "mark": " ки",
        "good": [" +"],
        "bad": [" -"],
        "template": [
            {"role": "system", "content": system},
            {"role": "user", "content": "Question: {question}\n\nExplanation: {steps}"},
        ],
        "step": "Step {number}: {step}{mark} ",
    }
    return Card(model, tokenizer, options, score)


def versa_prm() -> Card:
    """UW-Madison-Lee-Lab/VersaPRM and Llama-PRM800K: + and - at each " \\n\\n\\n\\n"."""
    tokenizer = learnt([" \n\n\n\n", "+", "-"], HEADERS)
    model = causal(tokenizer)

    def score(question: str, steps: Sequence[str]) -> list[float]:
        text = question + " \n\n" + " \n\n\n\n".join(steps) + " \n\n\n\n"
        tokens = tokenizer.encode(text)
        candidates = [tokenizer.encode(sign)[-1] for sign in "-+"]
        scores = logits_at(model, tokens)[:, candidates].softmax(-1)[:, 1]
        return scores[torch.tensor(tokens) == tokenizer.encode(" \n\n\n\n")[0]].tolist()

    options = {
        "mark": " \n\n\n\n",
        "template": "{question} \n\n{steps}",
        "step": "{step}{mark}",
    }
    return Card(model, tokenizer, options, score)


def granite() -> Card:
    """ibm-granite/granite-3.3-8b-math-prm: P(Y) among all tokens as the answer to a question after
    each step."""
    tokenizer = learnt(["Y"], IM, CHATML)
    model = causal(tokenizer)
    asked = "Is this response correct so far (Y/N)?"

    def score(question: str, steps: Sequence[str]) -> list[float]:
        chat, scores = list[dict[str, str]](), []
        for n, step in enumerate(steps):
            said = f"{step} {asked}" if n else f"{question} {step} {asked}"
            chat.append({"role": "user", "content": said})
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            shares = logits_at(model, tokenizer.encode(text))[-1].softmax(-1)
            scores.append(float(shares[tokenizer.convert_tokens_to_ids("Y")]))
            chat.append({"role": "assistant", "content": "Y"})
        return scores

    options = {
        "mark": "Y",
        "good": "Y",
        "bad": [],
        "template": [{"role": "user", "content": "{question} {steps}"}],
        "step": f"{{step}} {asked}{{mark}}",
        "read": "before",
        "turns": True,
    }
    return Card(model, tokenizer, options, score)


def visual_prm() -> Card:
    """The text part of OpenGVLab/VisualPRM-8B: turns of a SentencePiece tokenizer, whose "+" in an
    answer is not its "▁+"."""
    tokenizer = sentence_tokenizer(["▁+", "▁-"])
    tokenizer.add_special_tokens({"additional_special_tokens": IM})
    tokenizer.chat_template = CHATML
    model = causal(tokenizer)
    signs = [tokenizer.convert_tokens_to_ids(sign) for sign in "+-"]
    assert tokenizer.unk_token_id not in signs
    assert signs != [tokenizer.encode(sign)[-1] for sign in "+-"]

    def score(question: str, steps: Sequence[str]) -> list[float]:
        chat, scores = [{"role": "system", "content": "Be a critic."}], []
        for n, step in enumerate(steps):
            asked = f"### Question:\n{question}\n\n### Solution Process:\n{step}"
            chat.append({"role": "user", "content": step if n else asked})
            chat.append({"role": "assistant", "content": "+"})
            text = tokenizer.apply_chat_template(chat, tokenize=False)
            tokens = tokenizer.encode(text, add_special_tokens=False)
            place = max(i for i, token in enumerate(tokens) if token == signs[0])
            logits = logits_at(model, tokens)[place - 1, signs]
            scores.append(float(logits.softmax(-1)[0]))
        return scores

    asked = "### Question:\n{question}\n\n### Solution Process:\n{steps}"
    options = {
        "mark": "+",
        "template": [
            {"role": "system", "content": "Be a critic."},
            {"role": "user", "content": asked},
        ],
        "step": "{step}{mark}",
        "read": "before",
        "turns": True,
    }
    return Card(model, tokenizer, options, score)


def pure() -> Card:
    """jinachris/PURE-PRM-7B: a token classifier at "\\n\\n", question and steps encoded apart. Its
    reward is P(right) - P(wrong)."""
    tokenizer = learnt(["\n\n"], IM)
    settings = configuration("qwen2", tokenizer, num_labels=2)
    model = seeded(hf.Qwen2ForTokenClassification, settings)
    headed = HeadedModel.of(model)

    def score(question: str, steps: Sequence[str]) -> list[float]:
        tokens, ends = tokenizer.encode(question), []
        for step in steps:
            tokens += tokenizer.encode(step) + tokenizer.encode("\n\n")
            ends.append(len(tokens) - 1)
        shares = head_at(headed, tokens)[ends].softmax(-1)
        return ((shares[:, 1] - shares[:, 0] + 1) / 2).tolist()

    options = {
        "mark": "\n\n",
        "good": 1,
        "bad": 0,
        "template": "{question}{steps}",
        "step": "{step}{mark}",
        "apart": True,
    }
    return Card(model, tokenizer, options, score)


CARDS = {card.__name__: card for card in (med_prm, versa_prm, granite, visual_prm, pure)}
QUESTION = "Tom has 3 boxes of 4 apples (Wieviel?). How many?"


@pytest.fixture(params=CARDS)
def card(request: Any) -> Card:
    made: Card = CARDS[request.param]()
    return made


def verifier_of(card: Card, **more: Any) -> TokenPRM:
    return TokenPRM((card.model, card.tokenizer), **card.options, **more)


def test_options_alone_give_the_cards_scores_step_by_step_and_in_a_batch(card: Card) -> None:
    verifier, engine = verifier_of(card), policy()
    first, second = engine.roots([[1, 2], [1, 3]]).result()
    level = grown(engine, first, "Tom has 3 boxes.\n\n", "3 * 4 = 1", "(a) 1 + 1 = 2; x - y!\n\n")
    level += grown(engine, second, "Seven.\n\nÄpfel: 三 яблока.\n\nOr 8?\n\n")
    rows = verifier.rate(level, [*[QUESTION] * 3, "Seven?"], engine)
    texts = [["Tom has 3 boxes."], ["3 * 4 = 1"], ["(a) 1 + 1 = 2; x - y!"]]
    assert rows[:3] == [close_to(card.score(QUESTION, steps)) for steps in texts]
    assert rows[3] == close_to(card.score("Seven?", ["Seven.", "Äpfel: 三 яблока.", "Or 8?"]))
    alone = [verifier_of(card).rate([one], [QUESTION], engine)[0] for one in level[:3]]
    assert alone == [pytest.approx(row, abs=1e-5) for row in rows[:3]]
    children = grown(engine, level[1], "2 apples\n\nSo 12.", " left", finished=True)
    rows = verifier.rate(children, [QUESTION] * 2, engine)
    assert rows[0] == close_to(card.score(QUESTION, ["3 * 4 = 12 apples", "So 12."]))
    assert rows[1] == close_to(card.score(QUESTION, ["3 * 4 = 1 left"]))


def test_the_models_own_marks_and_odd_texts_neither_shift_scores_nor_end_a_run(card: Card) -> None:
    """A text that ends with the mark, holds it twice in one, is empty, or has what formats use."""
    verifier, engine = verifier_of(card), policy()
    mark = card.options["mark"]
    twice = mark[:1] + mark + mark[1:]
    texts = [f"3 * 4 = 12{mark}", f"12 {twice} 13", mark * 3, "", " ", "a\0b", "{steps}{question}"]
    texts += [f"{mark}\n\nThen {mark} 12", "x.\n\n" + mark]
    branches = grown(engine, engine.root([1, 2]), *texts, finished=True)
    rows = verifier.rate(branches, [QUESTION] * len(texts), engine)
    for branch, scores in zip(branches, rows, strict=True):
        steps, rest = verifier.split(branch.text, True)
        assert len(scores) == len(steps) + (rest is not None)
    if card.options.get("read") != "before":
        assert rows[0] == close_to(card.score(QUESTION, ["3 * 4 = 12"]))
    asked = f"What does {mark} mean? \0 {{steps}} {{question}}"
    (scores,) = verifier.rate(branches[:1], [asked], engine)
    assert len(scores) == len(rows[0])


def test_a_mark_that_a_full_stop_takes_in_is_refused_at_once_and_read_apart() -> None:
    tokenizer = learnt(["\n", ".\n"], [])
    assert len(tokenizer.encode("x.\n")) == 2
    model, options = causal(tokenizer), {"mark": "\n", "step": "{step}{mark}"}
    with pytest.raises(UnsupportedModel, match=r"joins the mark '\\n' with .*or apart=true"):
        TokenPRM((model, tokenizer), **options).mirror(policy())
    (scores,) = TokenPRM((model, tokenizer), apart=True, **options).rate_solutions([("1?", ["x."])])
    tokens = [*tokenizer.encode("1?\n"), *tokenizer.encode("x."), *tokenizer.encode("\n")]
    signs = [tokenizer.encode(sign)[0] for sign in "+-"]
    assert scores == close_to([float(logits_at(model, tokens)[-1, signs].softmax(-1)[0])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_card_is_written_with_hydra_as_in_python(dtype: torch.dtype) -> None:
    card = versa_prm()
    card.model.to(dtype)
    config = configured(
        "config",
        "verifier=token_prm",
        "verifier.model=here",
        r'verifier.mark=" \n\n\n\n"',
        r'verifier.template="{question} \n\n{steps}"',
        'verifier.step="{step}{mark}"',
        "verifier.good=+",
        "verifier.bad=[-]",
    )
    verifier = make_verifier(resolved(config))
    assert isinstance(verifier, TokenPRM)
    verifier.model = (card.model, card.tokenizer)
    solution = [(QUESTION, ["3 * 4 = 12.", "So 12."])]
    (scores,) = verifier.rate_solutions(solution)
    assert scores == verifier_of(card).rate_solutions(solution)[0]
    assert scores == pytest.approx(
        card.score(*solution[0]), abs=1e-5 if dtype.itemsize > 2 else 0.02
    )
