"""Small random models that think, call a tool in any syntax and answer: what may follow what is
forced, and all that they have read decides between that."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.call_syntaxes import ASKING, CALLS
from tests.helpers.thinking import EOS, thinker
from ttc import Tool
from ttc.text.chat import chat_text
from ttc.text.prompt import PromptTemplate
from ttc.tools.base import Tools
from ttc.tools.chat import ToolChat

PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["city", "days"]}
FUNCTION = {"name": "weather", "description": "It looks.", "parameters": PARAMETERS}
WEATHER = {"type": "function", "function": FUNCTION}

CITIES = (("Rome", "Oslo", "Bern"), ("Lima", "Kyiv"))
DAYS = (("31", "4"), ("52", "6"))
"""What the first call of a turn asks for, and the second one."""
THOUGHTS = ("Hmm, ", "so: ", "let me see, ")
ANSWERS = ("It is 7.", "It is 8,", " no, 9.")
THINK = ("<think>", "</think>")


def caller(
    syntax: str, opens: bool = False, special: bool = False, cuts: int = 0
) -> tuple[Any, LlamaForCausalLM]:
    """A tokenizer and a model that calls `weather` in one of `CALLS`, thinks and answers.

    opens: the prompt opens the thought. special: the marks of thoughts are special tokens. cuts:
    where the pieces of calls are cut into tokens.
    """
    template = ASKING.replace("CALLS", CALLS[syntax]).replace("<end>", EOS) + "{# </think> #}"
    if opens:
        template = template.replace("<model>\n{% endif %}{#", "<model>\n<think>\n{% endif %}{#")
    tokens, follows = _calls(*_pieces(template), cuts)
    first = next(iter(follows))
    answers = (*ANSWERS, first)
    follows |= {
        "\n": (*THOUGHTS, "</think>") if opens else ("<think>", *answers),
        "<think>": THOUGHTS,
        **dict.fromkeys(("</think>", ":"), answers),
        **dict.fromkeys(THOUGHTS, (*THOUGHTS, "</think>", first)),
        **dict.fromkeys(ANSWERS, (*answers, EOS)),
    }
    plain = (*tokens, *THOUGHTS, *ANSWERS, *(() if special else THINK))
    tokenizer = thinker(template, THINK if special else (), plain)
    return tokenizer, forced(tokenizer, follows)


def _pieces(template: str) -> tuple[list[str], list[str]]:
    """What the template writes around the arguments of a call, and of one more in its turn."""
    own = thinker(template)
    chat = ToolChat.of(Tools([Tool(WEATHER)]), PromptTemplate("{question}"), own)

    def written(*asked: Mapping[str, Any]) -> str:
        calls = [
            {
                "type": "function",
                "id": f"call0000{place}",
                "function": {
                    "name": "weather",
                    "arguments": json.dumps(given) if chat.format.as_text else given,
                },
            }
            for place, given in enumerate(asked)
        ]
        told = {"role": "assistant", "content": "", "tool_calls": calls}
        messages = [{"role": "user", "content": "?"}, told]
        text = chat_text(messages, own, chat.template.options, begins_answer=False)
        return text.rpartition("<model>\n")[2].removesuffix("\n").removesuffix(EOS)

    def parted(text: str, values: Sequence[str]) -> list[str]:
        pieces = []
        for value in values:
            piece, _, text = text.partition(value)
            pieces.append(piece)
        return [*pieces, text]

    one, two = {"city": "CITY1", "days": 111}, {"city": "CITY2", "days": 222}
    alone = parted(written(one), ["CITY1", "111"])
    both = parted(written(one, two), ["CITY1", "111", "CITY2", "222"])
    return alone, both[2:4]


def _calls(
    alone: Sequence[str], more: Sequence[str], cuts: int
) -> tuple[list[str], dict[str, Sequence[str]]]:
    """The tokens that calls are written in, and which may follow each; the first is that with which
    a call begins."""
    draw = random.Random(cuts)
    tokens: dict[str, list[str]] = {}
    taken = {*CITIES[0], *CITIES[1], *DAYS[0], *DAYS[1], *THOUGHTS, *ANSWERS, *THINK, "\n"}
    for piece in dict.fromkeys((*alone, *more)):
        places = sorted(draw.sample(range(len(piece) + 1), min(len(piece) + 1, 2))) if cuts else []
        ends = [0, *places, len(piece)]
        parts = [piece[start:end] for start, end in pairwise(ends) if end > start]
        if len(set(parts)) < len(parts) or taken.intersection(parts):
            parts = [piece]
        taken.update(parts)
        tokens[piece] = parts
    first, between, last = alone
    again, between_too = more
    follows: dict[str, Sequence[str]] = {tokens[first][0]: ()}
    for parts in tokens.values():
        follows |= {part: (following,) for part, following in pairwise(parts)}
    follows[tokens[last][-1]] = (EOS,)
    for head, inner, place in ((first, between, 0), (again, between_too, 1)):
        follows[tokens[head][-1]] = CITIES[place]
        follows |= dict.fromkeys(CITIES[place], (tokens[inner][0],))
        known = follows.get(tokens[inner][-1], ())
        follows[tokens[inner][-1]] = (*known, *DAYS[place])
        follows |= dict.fromkeys(DAYS[place], (tokens[last][0], tokens[again][0]))
    values = (*CITIES[0], *CITIES[1], *DAYS[0], *DAYS[1])
    return [*dict.fromkeys(part for parts in tokens.values() for part in parts), *values], follows


RANDOM = 16
"""Units that all layers read and write; each token has one more, by which the next is forced."""


def forced(tokenizer: Any, follows: Mapping[str, Sequence[str]]) -> LlamaForCausalLM:
    """A model that after each of these tokens writes one of those that may follow it."""
    vocab = len(tokenizer)
    width = 4 * -(-(RANDOM + vocab) // 4)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=4096,
        initializer_range=0.3, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False).double()
    everyone = torch.arange(vocab)
    model.model.embed_tokens.weight[:, RANDOM:] = 0.0
    model.model.embed_tokens.weight[everyone, RANDOM + everyone] = 1.0
    for layer in model.model.layers:
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
            part.weight[RANDOM:] = 0.0
            part.weight *= 0.02
    model.lm_head.weight *= 0.15
    model.lm_head.weight[:, RANDOM:] = 0.0
    for token, following in follows.items():
        for other in following:
            model.lm_head.weight[_id(tokenizer, other), RANDOM + _id(tokenizer, token)] = 10.0
    return model


def _id(tokenizer: Any, token: str) -> int:
    (number,) = tokenizer.encode(token, add_special_tokens=False)
    return int(number)
