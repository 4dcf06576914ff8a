"""What transformers leaves out of the tokenizer of a .gguf file."""

from __future__ import annotations

from typing import Any

from ttc.errors import UnsupportedModel
from ttc.model.loading.gguf_file import OTHER_FILES, GgufFile, names

PREFIX = "tokenizer.ggml."
READ = names(
    "model pre tokens token_type scores merges bos_token_id eos_token_id eot_token_id eom_token_id "
    "unknown_token_id padding_token_id add_bos_token add_eos_token add_space_prefix"
)
NOTHING = names(
    "token_type_count seperator_token_id cls_token_id mask_token_id prefix_token_id "
    "suffix_token_id middle_token_id fim_pre_token_id fim_suf_token_id fim_mid_token_id "
    "fim_pad_token_id fim_rep_token_id fim_sep_token_id remove_extra_whitespaces "
    "precompiled_charsmap"
)
"""Settings that change nothing for the kinds of tokenizers that are read."""
TEXTS = ("tokenizer.chat_template", "tokenizer.huggingface.json", "tokenizer.rwkv.world")
NEUTRAL = {
    "add_sep_token": False,
    "normalizer.lowercase": False,
    "normalizer.strip_accents": False,
    "suppress_tokens": [],
}

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's."""
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*",
)
SIGNS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
MARKED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|"
ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"

GPT2 = (WORDS,)
DIGITS = (r"\p{N}", WORDS)
LLAMA3 = (rf"{SHORT}|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}|{BLANKS}",)
QWEN2 = (rf"{SHORT}|{LETTERS}|\p{{N}}|{SIGNS}|{BLANKS}",)
QWEN35 = (rf"{SHORT}|{MARKED}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANKS}",)
TEKKEN = (rf"{CASED[0]}|{CASED[1]}|\p{{N}}|{SIGNS_AND_SLASHES}|{BLANKS}",)
GPT4O = (rf"{CASED[0]}{SHORT}?|{CASED[1]}{SHORT}?|\p{{N}}{{1,3}}|{SIGNS_AND_SLASHES}|{BLANKS}",)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    rf"{ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)
SEED_CODER = (rf"{SHORT}|{LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{BLANKS}",)
MINICPM5 = (r"\p{N}{1,3}", rf"{SHORT}|{LETTERS}|\p{{N}}+|{SIGNS}|{BLANKS}")
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
)
_SPLITS: dict[tuple[str, ...], str] = {
    (PUNCTUATION + "]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
    GPT2: "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling "
    "modern-bert",
    DIGITS: "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    LLAMA3: "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx "
    "smaug-bpe chatglm-bpe glm4 glm5",
    QWEN2: "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    QWEN35: "qwen35",
    TEKKEN: "tekken",
    GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    BLOOM: "bloom poro-chat gpt3-finnish",
    (*BLOOM, r"\p{N}"): "viking",
    (PUNCTUATION + "`]+", WORDS, "[0-9][0-9][0-9]"): "falcon",
    DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    DEEPSEEK_CODER: "deepseek-coder",
    SEED_CODER: "seed-coder",
    MINICPM5: "minicpm5",
    BAILING: "bailingmoe bailingmoe2 llada-moe",
}
SPLITS = {name: patterns for patterns, its in _SPLITS.items() for name in names(its)}
"""How text is cut before a tokenizer's merges, by the names of `tokenizer.ggml.pre`: patterns of
the models' own tokenizers, each applied to the pieces that the one before it left."""

WITH_BOS = names(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken"
)
"""Text begins with a token of its own, where a file does not say."""
WHOLE_WORDS = WITH_BOS | {"glm4", "glm5", "minicpm5"}
"""A word that is a token is that token, whatever the merges would make of it."""


def restore(tokenizer: Any, file: GgufFile) -> None:
    """Make a tokenizer cut text as its file says.

    Raises UnsupportedModel for a setting, by its name, that is not read here.
    """
    _check_keys(file)
    kind = file.value("tokenizer.ggml.model")
    if kind == "gpt2":
        _cut(tokenizer, file)
    elif kind == "llama" and file.value("tokenizer.ggml.add_space_prefix") is False:
        _leave_space_out(tokenizer.backend_tokenizer)


def _check_keys(file: GgufFile) -> None:
    for key in file.keys:
        name = key.removeprefix(PREFIX)
        if not key.startswith("tokenizer.") or key.startswith(TEXTS):
            continue
        if name in READ | NOTHING:
            continue
        value = file.value(key)
        file.check(key, value, name in NEUTRAL and value == NEUTRAL[name])


def _cut(tokenizer: Any, file: GgufFile) -> None:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    pre = file.value("tokenizer.ggml.pre", "default")
    if pre not in SPLITS:
        raise UnsupportedModel(
            f"{file.name} cuts text in the way {pre!r} (tokenizer.ggml.pre), which is not known "
            f"here; {OTHER_FILES}"
        )
    backend = tokenizer.backend_tokenizer
    splits = [Split(Regex(pattern), "isolated") for pattern in SPLITS[pre]]
    backend.pre_tokenizer = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
    if pre in WHOLE_WORDS:
        backend.model.ignore_merges = True
    if pre in WITH_BOS and file.value("tokenizer.ggml.add_bos_token") is None:
        tokenizer.add_bos_token = tokenizer.bos_token is not None


def _leave_space_out(backend: Any) -> None:
    """Sentencepiece without a space before the first word."""
    from tokenizers import decoders, normalizers
    from tokenizers.pre_tokenizers import Metaspace

    blank = "▁"
    if isinstance(backend.pre_tokenizer, Metaspace):
        backend.pre_tokenizer = Metaspace(blank, prepend_scheme="never", split=False)
    else:
        backend.normalizer = normalizers.Replace(" ", blank)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(blank, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
