"""GenPRM: what it reads, what its code prints into its review, and where its judgement is read."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers as hf

from tests.helpers.reward_models import (
    CHATML,
    IM,
    byte_tokenizer,
    configuration,
    grown,
    policy,
    seeded,
)
from ttc import InvalidInput
from ttc.execution.sandbox import protections
from verifiers import GenPRM
from verifiers.side_branches import spellings

pytestmark = pytest.mark.skipif(not protections(), reason="programs cannot be confined here")

QUESTION = "Tom has 3 boxes of 4 apples. How many?"
SYSTEM = (
    "You are a math teacher. Your task is to review and critique the paragraphs in solution step "
    "by step."
)
VERIFY = "\n<verify>\nLet's use python code to find any potential error:\n```python\n"


class Dictated:
    """A batch whose branches write what a test has written down, one text after the other."""

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        self.texts, self.tokenizer = list(texts), tokenizer

    def add(self, branches: Any, step: Any, sampling: Any, limits: Sequence[int]) -> None:
        for branch, limit in zip(branches, limits, strict=True):
            said = self.texts.pop(0)
            for token in self.tokenizer.encode(said)[:limit]:
                branch.append(token, -1.0, 0.5)
                branch.usage.generated_tokens += 1
            if any(end in said for end in step.end):
                branch.finish_reason = "end"

    def __len__(self) -> int:
        return 0


class Case:
    """A verifier over a small model, which writes what a test has written down."""

    def __init__(self, *texts: str, **settings: Any) -> None:
        self.tokenizer = byte_tokenizer(IM, CHATML)
        forms = [word for yes in ("yes", "no") for word in (yes, yes.capitalize(), yes.upper())]
        self.tokenizer.add_tokens([f"{space}{form}" for form in forms for space in ("", " ")])
        sizes = {"initializer_range": 0.1, "max_position_embeddings": 8192}
        model = seeded(hf.Qwen2ForCausalLM, configuration("qwen2", self.tokenizer, **sizes))
        self.reference = copy.deepcopy(model)
        self.verifier = GenPRM((model, self.tokenizer), **settings)
        self.policy = policy()
        self.engine = self.verifier.mirror(self.policy).engine
        batch: Any = Dictated(texts, self.tokenizer)
        self.engine.running_batch = lambda *_: batch  # type: ignore[method-assign]

    def rate(self, text: str) -> list[float]:
        (branch,) = grown(self.policy, self.policy.root([1, 2]), text, finished=True)
        price = self.verifier.price([branch], [QUESTION], self.policy)
        (scores,) = self.verifier.rate([branch], [QUESTION], self.policy)
        assert branch.usage.generated_tokens == 0
        assert branch.usage.verifier_tokens <= price
        assert not self.engine.live
        return list(scores)

    def chance(self, turns: Sequence[str], review: str) -> float:
        """P(yes) against P(no) after a chat, its user's turns first, and a review."""
        roles = ["user", "assistant"]
        chat = [{"role": "system", "content": SYSTEM}]
        chat += [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        with torch.no_grad():
            tokens = torch.tensor([self.tokenizer.encode(text + review)])
            p = self.reference(tokens).logits[0, -1].double().softmax(-1)
        yes, no = (float(p[tokens].sum()) for tokens in spellings(self.engine, "yes", "no"))
        return yes / (yes + no)


def analyzed(step: int) -> str:
    return f"<analyze>\nLet's analyze the Paragraph {step} step by step: "


def test_each_step_is_judged_after_its_code_has_run() -> None:
    first = ["It multiplies.\n</analyze>", "x = 3 * 4\nprint(x)\n```\n", "12 is right.\n<output>"]
    second = ["It names x.</analyze>", "print(x + 1)\n```\n", "Fine.<output>"]
    case = Case(*first, *second)
    scores = case.rate("3 * 4 = 12\n\nThe answer is 12.")
    judgement = "\n**Judgement**: $\\boxed{"
    output = "[Code Output]\n\n```\n12\n```\n"
    review = f"{analyzed(1)}{first[0]}{VERIFY}{first[1]}{output}{first[2]}{judgement}"
    asked = [f"{QUESTION}\n3 * 4 = 12"]
    assert scores[0] == pytest.approx(case.chance(asked, review), abs=1e-4)
    verdict = "Yes" if scores[0] >= 0.5 else "No"
    asked += [f"{review}{verdict}}}$\n</output>", "The answer is 12."]
    # the code of the second review knows the names of the first one
    review = (
        f"{analyzed(2)}{second[0]}{VERIFY}{second[1]}[Code Output]\n\n```\n13\n```\n{second[2]}"
        f"{judgement}"
    )
    assert scores[1] == pytest.approx(case.chance(asked, review), abs=1e-4)
    # what was reviewed is not reviewed again
    assert case.rate("3 * 4 = 12\n\nThe answer is 12.") == scores


def test_what_the_model_leaves_out_is_put_in() -> None:
    case = Case("It", "1 / 0\n```\n", "and on and on", max_tokens=400, rounds=1)
    (score,) = case.rate("3 * 4 = 12")
    error = "[Code Output]\n\n```\nZeroDivisionError: division by zero\n```\n"
    review = (
        f"{analyzed(1)}It</analyze>{VERIFY}1 / 0\n```\n{error}and on and on<output>"
        "\n**Judgement**: $\\boxed{"
    )
    assert score == pytest.approx(case.chance([f"{QUESTION}\n3 * 4 = 12"], review), abs=1e-4)


def test_a_text_without_a_step_is_neither_right_nor_wrong() -> None:
    assert Case().rate("") == [0.5]


@pytest.mark.parametrize(
    "setting", [{"max_tokens": 0}, {"rounds": -1}, {"temperature": -1}, {"time_s": -1}]
)
def test_wrong_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        GenPRM(**setting)
