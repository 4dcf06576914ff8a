"""Models that think, by their tokenizers and by what they are told to write."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.helpers.backends import FakeBackend
from ttc.branch import Branch
from ttc.model.limits import ModelLimits
from ttc.model.loading.default_model import smollm2_folder
from ttc.sampling import SAMPLED, Sampling
from ttc.step import Step

EOS = "<eos>"
TURNS = (
    "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}<eos>{% endfor %}<turn>assistant\n"
)
"""A chat template that has no marks, with one special token at the head of each turn."""

OPENING = TURNS + "<think>\n{# </think> #}"
"""As DeepSeek-R1 and Qwen3-Thinking have it: the prompt begins the thought."""

SWITCHED = TURNS + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
"""As Qwen3 has it: without thinking, the prompt holds an empty thought."""


@cache
def thinker(
    template: str | None = None, special: tuple[str, ...] = (), plain: tuple[str, ...] = ()
) -> Any:
    """A tokenizer of Hugging Face's kind: a token for each byte, `<turn>`, `<eos>`, and these
    tokens. special: they are left out of texts; plain: they are not."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(
        [AddedToken(token, special=True) for token in (EOS, "<turn>", *special)]
    )
    inner.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=EOS)
    tokenizer.chat_template = template
    return tokenizer


class Thinking(FakeBackend):
    """Branches write what they are told in a tokenizer's own tokens, and then end.

    says: the text of each child of the root, or a function of a branch that gives all that it would
    go on to write.
    """

    def __init__(
        self, says: Sequence[str] | Callable[[Branch], str], tokenizer: Any, longest: int = 4000
    ) -> None:
        super().__init__(longest=longest)
        self.says, self.tokenizer = says, tokenizer
        self.unsaid: dict[Branch, list[int]] = {}
        self.limits_asked: list[int] = []

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=not special))

    def write_step(
        self, branch: Branch, limit: int, stop: Sequence[str], end: Sequence[str]
    ) -> None:
        self.limits_asked.append(limit)
        if callable(self.says):
            goes_on = branch.given_end < len(branch.tokens)
            unsaid = self.unsaid.pop(branch, None) if goes_on else None
            rest = self.encode(self.says(branch)) if unsaid is None else unsaid
        else:
            rest = self.encode(self.says[branch.path[0]])[len(branch.generated) :]
        reason, start = "eos" if len(rest) < limit else "length", len(branch.tokens)
        for token in rest[:limit]:
            branch.append(token, -1.0, 0.5)
            branch.usage.generated_tokens += 1
            if any(string in self.decode(branch.tokens[start:], special=True) for string in stop):
                reason = "delimiter"
                break
            if any(string in self.decode(branch.tokens[start:]) for string in end):
                reason = branch.finish_reason = "end"
                break
        self.unsaid[branch] = rest[len(branch.tokens) - start :]
        if reason == "eos":
            branch.append(self.tokenizer.eos_token_id, -1.0, 0.5)
            branch.usage.generated_tokens += 1
            branch.finish_reason = "eos"
        branch.end_step(reason)  # type: ignore[arg-type]

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(
            len(self.tokenizer), self.longest, frozenset({self.tokenizer.eos_token_id})
        )

    def kv_bytes(self) -> int:
        return 0


class Slowly:
    """A batch whose branches write a token each time (see `ttc.backend.Batch`). pause_s: how long
    a token takes."""

    def __init__(self, backend: Thinking, pause_s: float):
        self.backend, self.pause_s = backend, pause_s
        self.limits: dict[Branch, int] = {}

    def add(
        self,
        branches: Sequence[Branch],
        step: Step,
        sampling: Sampling = SAMPLED,
        limits: Sequence[int] | None = None,
    ) -> None:
        self.limits |= {branch: len(branch.tokens) + step.max_tokens for branch in branches}

    def step(self) -> list[Branch]:
        time.sleep(self.pause_s)
        ended = []
        for branch, limit in list(self.limits.items()):
            self.backend.write_step(branch, 1, (), ())
            if branch.finished or len(branch.tokens) >= limit:
                ended.append(branch)
                del self.limits[branch]
        return ended

    def close(self) -> None:
        self.limits = {}

    def forget(self, branches: Sequence[Branch]) -> None:
        self.limits = {
            branch: limit for branch, limit in self.limits.items() if branch not in branches
        }

    def fits(self, tokens: int, states: int) -> float:
        return inf

    def __len__(self) -> int:
        return len(self.limits)


class Written(Thinking):
    """The same, a token at a time, so that whoever follows sees texts grow."""

    def running_batch(self, max_rows: int | None = None) -> Slowly:
        return Slowly(self, 0.002)


QWEN3 = """{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
"""What Qwen3's chat template writes of texts: no thoughts of earlier turns, and an empty one where
thinking is off."""

QWEN3_THINKING = QWEN3.replace(
    "{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}"
)
"""That of Qwen3-Thinking-2507, where the prompt begins the thought."""


def save_qwen3(folder: Path, template: str = QWEN3_THINKING) -> str:
    """A small Qwen3 of random weights, with Qwen3's special tokens and marks."""
    tokenizer = thinker(template, ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>"))
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=512,
        initializer_range=0.3, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_smollm2(folder: Path, template: str = QWEN3_THINKING) -> str:
    """SmolLM2 with its real weights, and a chat template that has marks; these are several tokens
    each."""
    folder.mkdir()
    for file in smollm2_folder().iterdir():
        if file.suffix != ".jinja":
            (folder / file.name).symlink_to(file)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").unlink()
    settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


def circling(words: str, tokenizer: Any, answer: str = "7") -> LlamaForCausalLM:
    """A model that writes `words` again and again, whatever is drawn. After ":" it writes `answer`
    and ends, or goes in circles again where `answer` is "". No letter may stand twice."""
    ids = tokenizer.encode(words, add_special_tokens=False)
    eos, colon = tokenizer.eos_token_id, tokenizer.encode(":", add_special_tokens=False)[0]
    after = torch.full((len(tokenizer),), ids[0])
    for token, following in pairwise([*ids, ids[0]]):
        after[token] = following
    if answer:
        said = tokenizer.encode(answer, add_special_tokens=False)
        for token, following in pairwise([colon, *said, eos]):
            after[token] = following
    width = 4 * -(-len(tokenizer) // 4)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=4, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=4, max_position_embeddings=4096,
        eos_token_id=eos, bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        everyone = torch.arange(len(tokenizer))
        model.model.embed_tokens.weight[everyone, everyone] = 1.0
        model.lm_head.weight[after, everyone] = 10.0
    return model
