"""Tokenizers of the kinds that reward models have, small random models for them, and trees of texts
to rate."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.helpers.engines import make_engine
from tests.helpers.tokenizers import Letters
from ttc import Engine
from ttc.branch import Branch
from ttc.model.loading.reward_heads import HeadedModel

WORDS = [
    "Tom has 3 boxes of 4 apples, so he has 3 * 4 = 12 apples.",
    "He eats 2 of the apples.\nThen 12 - 2 = 10 are left.",
    "The answer is 10. Step 1: half of the boxes are whole; Step 2: they are not.",
    "Let us begin again: 7 + 5 = 12, and the answer of the question is 12.",
]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' "
    "}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul "
    "2024\n\n<|eot_id|>' }}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + "
    "m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% "
    "endif %}"
)
IM = ["<|im_start|>", "<|im_end|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def byte_tokenizer(
    special: Sequence[str], template: str | None = None, bos: str | None = None
) -> Any:
    """Byte-level pieces learnt from WORDS, as Qwen's and Llama 3's tokenizers have. bos: put before
    every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(WORDS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    if bos is not None:
        number = tokenizer.token_to_id(bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos} $A", special_tokens=[(bos, number)]
        )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=template, bos_token=bos
    )


def sentence_tokenizer(pieces: Sequence[str]) -> Any:
    """Pieces with a dummy prefix before the whole text, as SentencePiece makes them; `pieces` are
    whole."""
    text = "".join(WORDS) + "".join(pieces)
    letters = [
        "<unk>",
        "<s>",
        *(f"<0x{n:02X}>" for n in range(256)),
        "▁",
        *sorted(set(text) - {"▁", " ", "\n"}),
    ]
    vocabulary = {token: n for n, token in enumerate(dict.fromkeys(letters))}
    merges = []
    for piece in ["▁a", "▁ap", "pl", "▁appl", "ar", "an", "▁an", "he", "▁3", *pieces]:
        for end in range(2, len(piece) + 1):
            if piece[:end] not in vocabulary:
                merges.append((piece[: end - 1], piece[end - 1]))
                vocabulary[piece[:end]] = len(vocabulary)
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>"
    )


def configuration(family: str, tokenizer: Any, **settings: Any) -> Any:
    """A configuration of tiny sizes for a tokenizer."""
    extra = {
        "num_hidden_layers": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "pad_token_id": 0,
    } | settings
    return {
        "qwen2": hf.Qwen2Config,
        "mistral": hf.MistralConfig,
        "llama": hf.LlamaConfig,
        "gemma2": hf.Gemma2Config,
    }[family](
        vocab_size=len(tokenizer) + 3,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        bos_token_id=None,
        eos_token_id=None,
        **extra,
    )


def seeded(build: Any, *arguments: Any) -> Any:
    torch.manual_seed(0)
    return build(*arguments).eval().requires_grad_(False)


def rater(
    build: Any, family: str = "qwen2", special: Sequence[str] = IM, **settings: Any
) -> tuple[Any, Any]:
    """A small random model with a tokenizer of ChatML. settings: of its configuration."""
    tokenizer = byte_tokenizer(special, CHATML)
    return seeded(build, configuration(family, tokenizer, **settings)), tokenizer


def plain(model: Any) -> Any:
    """The same weights over eager attention, apart from any engine."""
    other = type(model)(copy.deepcopy(model.config))
    other.load_state_dict(model.state_dict())
    other.set_attn_implementation("eager")
    return other.eval()


@torch.no_grad()
def logits_at(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Plain logits at all tokens."""
    logits: torch.Tensor = plain(model)(torch.tensor([tokens])).logits[0]
    return logits


@torch.no_grad()
def head_at(headed: HeadedModel, tokens: Sequence[int]) -> torch.Tensor:
    """The head's outputs at all tokens, by plain transformers."""
    outputs: torch.Tensor = headed.head(
        plain(headed.body)(torch.tensor([tokens])).last_hidden_state[0]
    )
    return outputs


def close_to(expected: Any) -> Any:
    return pytest.approx(expected, abs=1e-5, rel=1e-5)


def policy(**options: Any) -> Engine:
    """An engine whose branches' texts are written by hand, a letter a token."""
    return make_engine(1, 4096, **options)


def write(branch: Branch, text: str, finished: bool = False) -> Branch:
    """Let a branch's text go on as if the model had generated it. Its KV does not follow: no
    verifier reads it."""
    for token in Letters().encode(text):
        branch.append(token, -1.0, 0.5)
    branch.end_step("eos" if finished else "length")
    branch.finish_reason = "eos" if finished else None
    return branch


def grown(engine: Engine, parent: Branch, *texts: str, finished: bool = False) -> list[Branch]:
    """Children of a branch, one for each text."""
    return [
        write(child, text, finished)
        for child, text in zip(engine.fork(parent, len(texts)), texts, strict=True)
    ]
