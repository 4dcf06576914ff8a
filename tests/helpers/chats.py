"""Published chat templates, written down from their models' tokenizer_config.json, and what each
makes of a chat.

Loops and conditions are shortened to what the chats here use; what is written is as published.
`prompt` is the text for one question, `turned` that of the whole chat QUESTION, ANSWER, WORDS, both
by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

QUESTION, ANSWER, WORDS, SYSTEM = "2 + 2?", "four", "Sure?", "Be brief."
EXAMPLES = (("1 + 1?", "two"),)


@dataclass(frozen=True)
class Chat:
    """One model's chat.

    source: where its template is published. template: in Jinja. prompt, turned: see above.
    system, shot: the prompt with SYSTEM, with EXAMPLES before it; None where it is left out here.
    special: the tokens of their own, beside bos and eos. kind: of the tokenizer, see `tokenizer`.
    before: what it puts before raw texts. said: what the model writes as ANSWER, blanks and
        thoughts with it. rewrites: the whole chat does not hold it as the model wrote it; `follows`
        is what follows it then. options: what else the template takes.
    """

    source: str
    template: str
    prompt: str
    turned: str
    system: str | None = None
    shot: str | None = None
    special: tuple[str, ...] = ()
    bos: str | None = None
    eos: str = "</s>"
    kind: str = "bytes"
    before: tuple[str, ...] = ()
    said: str = ANSWER
    rewrites: bool = False
    follows: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens of their own, in the order of their numbers."""
        return tuple(
            dict.fromkeys(
                [*([self.bos] if self.bos else []), self.eos, *self.before, *self.special]
            )
        )

    @property
    def tokenizer(self) -> Any:
        return tokenizer(self.tokens, self.kind, self.bos, self.eos, self.before, (), self.template)

    def ids(self, text: str) -> list[int]:
        """By hand: the number of each token of its own, of each byte or letter between them."""
        return by_hand(text, self.tokens, self.kind)


LETTERS = "▁" + "".join(map(chr, range(33, 127))) + "\n"


@cache
def tokenizer(
    special: tuple[str, ...],
    kind: str,
    bos: str | None,
    eos: str | None,
    before: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    template: str | None = None,
) -> Any:
    """A tokenizer without merges, whose numbers can be read off.

    special: tokens of their own, numbered from 0. before, after: those that it puts around a raw
    text.
    kind: "bytes", as GPT-2, Llama 3 and Qwen; "pieces", letters with a blank put before each text
    between special tokens, as SentencePiece in Llama 2's; "first", the same at the beginning of a
    text alone, as in its newer setting.
    """
    numbers = {token: number for number, token in enumerate(special)}
    if kind == "bytes":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        inner = Tokenizer(
            models.BPE(numbers | {sign: len(special) + i for i, sign in enumerate(alphabet)}, [])
        )
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
    else:
        inner = Tokenizer(
            models.BPE(numbers | {sign: len(special) + i for i, sign in enumerate(LETTERS)}, [])
        )
        if kind == "pieces":
            inner.normalizer = normalizers.Sequence(
                [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
            )
        else:
            inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        inner.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    inner.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special]
    )
    if before or after:
        around = " ".join([*before, "$A", *after])
        pairs = [(token, numbers[token]) for token in dict.fromkeys((*before, *after))]
        inner.post_processor = processors.TemplateProcessing(around, special_tokens=pairs)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=bos, eos_token=eos, chat_template=template
    )


def by_hand(text: str, special: tuple[str, ...], kind: str) -> list[int]:
    """What `tokenizer` makes of a text, without what it puts around it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids, place, between = list[int](), 0, ""

    def settle(first: bool) -> None:
        if not between:
            return
        if kind == "bytes":
            signs = [bytes_to_sign(byte) for byte in between.encode()]
            ids.extend(len(special) + alphabet.index(sign) for sign in signs)
        else:
            put = "▁" if kind == "pieces" or (first and not between.startswith(" ")) else ""
            ids.extend(
                len(special) + LETTERS.index(sign) for sign in put + between.replace(" ", "▁")
            )

    while place < len(text):
        token = max((t for t in special if text.startswith(t, place)), key=len, default=None)
        if token is None:
            between, place = between + text[place], place + 1
            continue
        settle(not ids)
        ids.append(special.index(token))
        between, place = "", place + len(token)
    settle(not ids)
    return ids


def bytes_to_sign(byte: int) -> str:
    """GPT-2's printable sign for a byte: the byte's own where it has one, else those from U+0100
    on, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [number for number in range(256) if number not in printable]
    return chr(byte) if byte in printable else chr(256 + hidden.index(byte))


ALTERNATE = (
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') "
    "}}{% endif %}"
)
"""What several templates begin their loops with; system messages fail at it."""
IM = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
ZEPHYR = (
    "{% for m in messages %}\n{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")


def im(*turns: str, end: str = "<|im_end|>\n") -> str:
    """Turns of ChatML, each "role\\ntext", and the start of the model's."""
    return "".join(f"<|im_start|>{turn}{end}" for turn in turns) + "<|im_start|>assistant\n"


def default_system(text: str) -> str:
    """ChatML with a system text of the model's own where none is given."""
    own = f"<|im_start|>system\n{text}<|im_end|>\n"
    return f"{{% if messages[0]['role'] != 'system' %}}{{{{ {own!r} }}}}{{% endif %}}{CHATML}"


QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
SMOL_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


def llama3(*turns: tuple[str, str]) -> str:
    """Turns of Llama 3, and the start of the model's."""
    text = "".join(
        f"<|start_header_id|>{role}<|end_header_id|>\n\n{said}<|eot_id|>" for role, said in turns
    )
    return f"<|begin_of_text|>{text}<|start_header_id|>assistant<|end_header_id|>\n\n"


CHATS = {
    "llama_2": Chat(
        "meta-llama/Llama-2-7b-chat-hf",
        "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
        "{% set before = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
        "{% else %}{% set rest = messages %}{% set before = '' %}{% endif %}{% for m in rest %}"
        + ALTERNATE
        + "{% if m['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' + ((before if loop.first else '') + m['content']).strip() + ' "
        "[/INST]' }}{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% "
        "endfor %}",
        "<s>[INST] 2 + 2? [/INST]",
        "<s>[INST] 2 + 2? [/INST] four </s><s>[INST] Sure? [/INST]",
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n2 + 2? [/INST]",
        "<s>[INST] 1 + 1? [/INST] two </s><s>[INST] 2 + 2? [/INST]",
        bos="<s>",
        kind="pieces",
        before=("<s>",),
        said=" four",
    ),
    "llama_3": Chat(
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "{% for m in messages %}{% set content = '<|start_header_id|>' + m['role'] + "
        "'<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' %}{% if loop.first %}{% set "
        "content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if "
        "add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        llama3(("user", "2 + 2?")),
        llama3(("user", "2 + 2?"), ("assistant", "four"), ("user", "Sure?")),
        llama3(("system", "Be brief."), ("user", "2 + 2?")),
        llama3(("user", "1 + 1?"), ("assistant", "two"), ("user", "2 + 2?")),
        LLAMA3,
        "<|begin_of_text|>",
        "<|eot_id|>",
        before=("<|begin_of_text|>",),
    ),
    "llama_3_1": Chat(
        "meta-llama/Llama-3.1-8B-Instruct, with the date that it takes by itself",
        "{{ bos_token }}{% if not date_string is defined %}{% set date_string = '26 Jul 2024' "
        "%}{% endif %}{% if messages[0]['role'] == 'system' %}{% set system = "
        "messages[0]['content'] | trim %}{% set rest = messages[1:] %}{% else %}{% set system = "
        "'' %}{% set rest = messages %}{% endif %}"
        "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
        "2023\nToday Date: ' + "
        "date_string + '\n\n' + system + '<|eot_id|>' }}{% for m in rest %}"
        "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + "
        "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        llama3(("system", DATES), ("user", "2 + 2?")),
        llama3(("system", DATES), ("user", "2 + 2?"), ("assistant", "four"), ("user", "Sure?")),
        llama3(("system", DATES + "Be brief."), ("user", "2 + 2?")),
        llama3(("system", DATES), ("user", "1 + 1?"), ("assistant", "two"), ("user", "2 + 2?")),
        LLAMA3,
        "<|begin_of_text|>",
        "<|eot_id|>",
        before=("<|begin_of_text|>",),
    ),
    "mistral_v1": Chat(
        "mistralai/Mistral-7B-Instruct-v0.2",
        "{{ bos_token }}{% for m in messages %}" + ALTERNATE + "{% if m['role'] == 'user' %}"
        "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ m['content'] + eos_token }}{% "
        "endif %}{% endfor %}",
        "<s>[INST] 2 + 2? [/INST]",
        "<s>[INST] 2 + 2? [/INST]four</s>[INST] Sure? [/INST]",
        "<s>[INST] Be brief.\n\n2 + 2? [/INST]",
        "<s>[INST] 1 + 1? [/INST]two</s>[INST] 2 + 2? [/INST]",
        bos="<s>",
        kind="first",
        before=("<s>",),
    ),
    "mistral_v3": Chat(
        "mistralai/Mistral-7B-Instruct-v0.3: the system text stands in the last of the user's "
        "messages",
        "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% "
        "endif %}{{ bos_token }}{% for m in rest %}{% if m['role'] == 'user' %}"
        "{{ '[INST] ' + (system if loop.last else '') + m['content'] + '[/INST]' }}"
        "{% else %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}",
        "<s>[INST] 2 + 2?[/INST]",
        "<s>[INST] 2 + 2?[/INST] four</s>[INST] Sure?[/INST]",
        "<s>[INST] Be brief.\n\n2 + 2?[/INST]",
        "<s>[INST] 1 + 1?[/INST] two</s>[INST] 2 + 2?[/INST]",
        ("[INST]", "[/INST]"),
        "<s>",
        kind="first",
        before=("<s>",),
        said=" four",
    ),
    "zephyr": Chat(
        "HuggingFaceH4/zephyr-7b-beta: no beginning-of-sequence token, though the tokenizer puts "
        "one before raw texts",
        ZEPHYR,
        "<|user|>\n2 + 2?</s>\n<|assistant|>\n",
        "<|user|>\n2 + 2?</s>\n<|assistant|>\nfour</s>\n<|user|>\nSure?</s>\n<|assistant|>\n",
        "<|system|>\nBe brief.</s>\n<|user|>\n2 + 2?</s>\n<|assistant|>\n",
        "<|user|>\n1 + 1?</s>\n<|assistant|>\ntwo</s>\n<|user|>\n2 + 2?</s>\n<|assistant|>\n",
        bos="<s>",
        kind="pieces",
        before=("<s>",),
    ),
    "chatml": Chat(
        "mlabonne/OrpoLlama-3-8B (github.com/openai/openai-python/blob/v0.28.1/chatml.md)",
        CHATML,
        im("user\n2 + 2?"),
        im("user\n2 + 2?", "assistant\nfour", "user\nSure?"),
        im("system\nBe brief.", "user\n2 + 2?"),
        im("user\n1 + 1?", "assistant\ntwo", "user\n2 + 2?"),
        IM,
        eos="<|im_end|>",
    ),
    "qwen_2_5": Chat(
        "Qwen/Qwen2.5-7B-Instruct",
        default_system(QWEN_SYSTEM),
        im(f"system\n{QWEN_SYSTEM}", "user\n2 + 2?"),
        im(f"system\n{QWEN_SYSTEM}", "user\n2 + 2?", "assistant\nfour", "user\nSure?"),
        im("system\nBe brief.", "user\n2 + 2?"),
        im(f"system\n{QWEN_SYSTEM}", "user\n1 + 1?", "assistant\ntwo", "user\n2 + 2?"),
        (*IM, "<|endoftext|>"),
        eos="<|im_end|>",
    ),
    "qwen_3": Chat(
        "Qwen/Qwen3-8B: thoughts of earlier answers are left out",
        "{% for m in messages %}{% set said = m['content'].split('</think>')[-1].lstrip('\n') "
        "if m['role'] == 'assistant' else m['content'] %}"
        "{{ '<|im_start|>' + m['role'] + '\n' + said + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        "{% if enable_thinking is defined and enable_thinking is false %}{{ "
        "'<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
        im("user\n2 + 2?"),
        im("user\n2 + 2?", "assistant\nfour", "user\nSure?"),
        im("system\nBe brief.", "user\n2 + 2?"),
        im("user\n1 + 1?", "assistant\ntwo", "user\n2 + 2?"),
        (*IM, "<think>", "</think>"),
        eos="<|im_end|>",
        said="<think>\nEasy.\n</think>\n\nfour",
        rewrites=True,
        follows="<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n",
    ),
    "qwen_3_without_thoughts": Chat(
        "Qwen/Qwen3-8B, enable_thinking=False: the empty thoughts before an answer are not kept "
        "either",
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
        "'<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        "{% if enable_thinking is defined and enable_thinking is false %}{{ "
        "'<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
        im("user\n2 + 2?") + "<think>\n\n</think>\n\n",
        im("user\n2 + 2?", "assistant\nfour", "user\nSure?") + "<think>\n\n</think>\n\n",
        im("system\nBe brief.", "user\n2 + 2?") + "<think>\n\n</think>\n\n",
        im("user\n1 + 1?", "assistant\ntwo", "user\n2 + 2?") + "<think>\n\n</think>\n\n",
        (*IM, "<think>", "</think>"),
        eos="<|im_end|>",
        rewrites=True,
        follows="<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n<think>\n\n"
        "</think>\n\n",
        options={"enable_thinking": False},
    ),
    "gemma_2": Chat(
        "google/gemma-2-2b-it: no system text",
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role "
        "not supported') }}"
        "{% endif %}{% for m in messages %}"
        + ALTERNATE
        + "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + "
        "m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<start_of_turn>model\n' }}{% endif %}",
        "<bos><start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\nfour<end_of_turn>\n"
        "<start_of_turn>user\nSure?<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\nBe brief.\n\n2 + 2?<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\n1 + 1?<end_of_turn>\n<start_of_turn>model\ntwo<end_of_turn>\n"
        "<start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n",
        ("<start_of_turn>", "<end_of_turn>"),
        "<bos>",
        "<eos>",
        before=("<bos>",),
    ),
    "gemma_3": Chat(
        "google/gemma-3-4b-it: the system text stands in the user's first message",
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set before = "
        "messages[0]['content'] + '\n\n' %}{% set rest = messages[1:] %}{% else %}{% set before = "
        "'' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
        + ALTERNATE
        + "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + "
        "(before if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        "<bos><start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\n2 + 2?<end_of_turn>\n<start_of_turn>model\nfour<end_of_turn>\n"
        "<start_of_turn>user\nSure?<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\nBe brief.\n\n2 + 2?<end_of_turn>\n<start_of_turn>model\n",
        special=("<start_of_turn>", "<end_of_turn>"),
        bos="<bos>",
        eos="<eos>",
        before=("<bos>",),
    ),
    "phi_3": Chat(
        "microsoft/Phi-3-mini-4k-instruct",
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% "
        "endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        "<|user|>\n2 + 2?<|end|>\n<|assistant|>\n",
        "<|user|>\n2 + "
        "2?<|end|>\n<|assistant|>\nfour<|end|>\n<|user|>\nSure?<|end|>\n<|assistant|>\n",
        "<|system|>\nBe brief.<|end|>\n<|user|>\n2 + 2?<|end|>\n<|assistant|>\n",
        "<|user|>\n1 + 1?<|end|>\n<|assistant|>\ntwo<|end|>\n<|user|>\n2 + "
        "2?<|end|>\n<|assistant|>\n",
        (*ROLES, "<|end|>"),
        "<s>",
        "<|endoftext|>",
        "first",
    ),
    "deepseek_r1_distill": Chat(
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B: thoughts of earlier answers are left out",
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
        "{% elif m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
        "{% else %}{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + "
        "'<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<｜Assistant｜><think>\\n' }}{% endif %}",
        "<｜begin▁of▁sentence｜><｜User｜>2 + 2?<｜Assistant｜><think>\n",
        "<｜begin▁of▁sentence｜><｜User｜>2 + 2?<｜Assistant｜>four<｜end▁of▁sentence｜>"
        "<｜User｜>Sure?<｜Assistant｜><think>\n",
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>2 + 2?<｜Assistant｜><think>\n",
        "<｜begin▁of▁sentence｜><｜User｜>1 + 1?<｜Assistant｜>two<｜end▁of▁sentence｜>"
        "<｜User｜>2 + 2?<｜Assistant｜><think>\n",
        ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        before=("<｜begin▁of▁sentence｜>",),
        said="Easy.\n</think>\n\nfour",
        rewrites=True,
        follows="<｜end▁of▁sentence｜><｜User｜>Sure?<｜Assistant｜><think>\n",
    ),
    "deepseek_llm": Chat(
        "deepseek-ai/deepseek-llm-7b-chat",
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ 'User: ' + "
        "m['content'] + '\n\n' }}{% elif m['role'] == 'assistant' %}{{ 'Assistant: ' + "
        "m['content'] + eos_token }}"
        "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
        "<｜begin▁of▁sentence｜>User: 2 + 2?\n\nAssistant:",
        "<｜begin▁of▁sentence｜>User: 2 + 2?\n\nAssistant: four<｜end▁of▁sentence｜>User: "
        "Sure?\n\nAssistant:",
        "<｜begin▁of▁sentence｜>Be brief.\n\nUser: 2 + 2?\n\nAssistant:",
        "<｜begin▁of▁sentence｜>User: 1 + 1?\n\nAssistant: two<｜end▁of▁sentence｜>User: 2 + "
        "2?\n\nAssistant:",
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        before=("<｜begin▁of▁sentence｜>",),
        said=" four",
    ),
    "glm_4": Chat(
        "THUDM/glm-4-9b-chat-hf: raw texts begin with two tokens; the user's token ends an answer",
        "[gMASK]<sop>{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] }}{% "
        "endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        "[gMASK]<sop><|user|>\n2 + 2?<|assistant|>",
        "[gMASK]<sop><|user|>\n2 + 2?<|assistant|>\nfour<|user|>\nSure?<|assistant|>",
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\n2 + 2?<|assistant|>",
        "[gMASK]<sop><|user|>\n1 + 1?<|assistant|>\ntwo<|user|>\n2 + 2?<|assistant|>",
        ROLES,
        eos="<|user|>",
        before=("[gMASK]", "<sop>"),
        said="\nfour",
    ),
    "granite_3": Chat(
        "ibm-granite/granite-3.0-8b-instruct",
        "{% for m in messages %}"
        "{{ '<|start_of_role|>' + m['role'] + '<|end_of_role|>' + m['content'] + "
        "'<|end_of_text|>\n' }}{% if loop.last and add_generation_prompt %}{{ "
        "'<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}{% endfor %}",
        "<|start_of_role|>user<|end_of_role|>2 + "
        "2?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
        "<|start_of_role|>user<|end_of_role|>2 + "
        "2?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>four"
        "<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Sure?<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>",
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>2 + "
        "2?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
        special=("<|start_of_role|>", "<|end_of_role|>"),
        bos="<|end_of_text|>",
        eos="<|end_of_text|>",
    ),
    "command_r": Chat(
        "CohereForAI/c4ai-command-r-v01",
        "{{ bos_token }}{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|>' + {'system': "
        "'<|SYSTEM_TOKEN|>', 'user': '<|USER_TOKEN|>', 'assistant': "
        "'<|CHATBOT_TOKEN|>'}[m['role']] + m['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}{% "
        "endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' "
        "}}{% endif %}",
        "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>2 + 2?<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>2 + 2?<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>four<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Sure?<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>2 + "
        "2?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        special=(
            "<|START_OF_TURN_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
        ),
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
        before=("<BOS_TOKEN>",),
        said=" four",
        rewrites=True,
        follows="<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Sure?<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    "stablelm_2": Chat(
        "stabilityai/stablelm-2-zephyr-1_6b",
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor "
        "%}",
        "<|user|>\n2 + 2?<|endoftext|>\n<|assistant|>\n",
        "<|user|>\n2 + 2?<|endoftext|>\n<|assistant|>\nfour<|endoftext|>\n"
        "<|user|>\nSure?<|endoftext|>\n<|assistant|>\n",
        "<|system|>\nBe brief.<|endoftext|>\n<|user|>\n2 + 2?<|endoftext|>\n<|assistant|>\n",
        bos="<|endoftext|>",
        eos="<|endoftext|>",
    ),
    "olmo_2": Chat(
        "allenai/OLMo-2-1124-7B-Instruct",
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}"
        "{{ '<|assistant|>\n' + m['content'] + eos_token + ('' if loop.last else '\n') }}"
        "{% else %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '\n' }}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor "
        "%}",
        "<|endoftext|><|user|>\n2 + 2?\n<|assistant|>\n",
        "<|endoftext|><|user|>\n2 + "
        "2?\n<|assistant|>\nfour<|endoftext|>\n<|user|>\nSure?\n<|assistant|>\n",
        "<|endoftext|><|system|>\nBe brief.\n<|user|>\n2 + 2?\n<|assistant|>\n",
        bos="<|endoftext|>",
        eos="<|endoftext|>",
    ),
    "smollm_2": Chat(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        default_system(SMOL_SYSTEM),
        im(f"system\n{SMOL_SYSTEM}", "user\n2 + 2?"),
        im(f"system\n{SMOL_SYSTEM}", "user\n2 + 2?", "assistant\nfour", "user\nSure?"),
        im("system\nBe brief.", "user\n2 + 2?"),
        im(f"system\n{SMOL_SYSTEM}", "user\n1 + 1?", "assistant\ntwo", "user\n2 + 2?"),
        (),
        "<|im_start|>",
        "<|im_end|>",
    ),
    "smollm_3": Chat(
        "HuggingFaceTB/SmolLM3-3B with /no_think, the date given",
        "{{ '<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: ' + "
        "today + "
        "'\nReasoning Mode: /no_think\n\n<|im_end|>\n' }}{% for m in messages %}{% if m['role'] "
        "== 'assistant' %}"
        "{{ '<|im_start|>assistant\n<think>\n\n</think>\n' + m['content'].lstrip('\n') + "
        "'<|im_end|>\n' }}"
        "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% "
        "endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n' }}{% "
        "endif %}",
        "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: 8 July "
        "2025\n"
        "Reasoning Mode: /no_think\n\n<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n",
        "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: 8 July "
        "2025\n"
        "Reasoning Mode: /no_think\n\n<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\nfour<|im_end|>\n<|im_start|>user\n"
        "Sure?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n",
        special=(*IM, "<think>", "</think>"),
        eos="<|im_end|>",
        options={"today": "8 July 2025"},
    ),
    "vicuna": Chat(
        "lmsys/vicuna-7b-v1.5 "
        "(github.com/lm-sys/FastChat/blob/main/docs/vicuna_weights_version.md)",
        f"{{{{ {VICUNA!r} }}}}" + "{% for m in messages %}{% if m['role'] == 'user' %}{{ ' USER: "
        "' + m['content'] }}{% else %}{{ ' ASSISTANT: ' + m['content'] + eos_token }}{% endif "
        "%}{% endfor %}{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}",
        f"{VICUNA} USER: 2 + 2? ASSISTANT:",
        f"{VICUNA} USER: 2 + 2? ASSISTANT: four</s> USER: Sure? ASSISTANT:",
        None,
        f"{VICUNA} USER: 1 + 1? ASSISTANT: two</s> USER: 2 + 2? ASSISTANT:",
        bos="<s>",
        kind="first",
        before=("<s>",),
        said=" four",
    ),
    "alpaca": Chat(
        "github.com/vllm-project/vllm/blob/main/examples/template_alpaca.jinja: plain text, no "
        "special tokens at all",
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ '### Instruction:\n' + "
        "m['content'] + '\n\n' }}"
        "{% elif m['role'] == 'assistant' %}{{ '### Response:\n' + m['content'] + '\n\n' }}"
        "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}",
        "### Instruction:\n2 + 2?\n\n### Response:\n",
        "### Instruction:\n2 + 2?\n\n### Response:\nfour\n\n### Instruction:\nSure?\n\n### "
        "Response:\n",
        "Be brief.\n\n### Instruction:\n2 + 2?\n\n### Response:\n",
        "### Instruction:\n1 + 1?\n\n### Response:\ntwo\n\n### Instruction:\n2 + 2?\n\n### "
        "Response:\n",
        eos="</s>",
    ),
}
