"""How text is cut before a tokenizer's merges, by the names of `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizers. They apply one after another, each to the
pieces that the one before it left.
"""

from __future__ import annotations

from collections.abc import Mapping

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
ASCII_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|"

GPT2 = (WORDS,)
DIGITS = (r"\p{N}", WORDS)
LLAMA3 = (rf"{SHORT}|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}|{BLANKS}",)
QWEN2 = (rf"{SHORT}|{LETTERS}|\p{{N}}|{SIGNS}|{BLANKS}",)
QWEN35 = (rf"{SHORT}|{MARKED}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANKS}",)
TEKKEN = (rf"{CASED[0]}|{CASED[1]}|\p{{N}}|{SIGNS_AND_SLASHES}|{BLANKS}",)
GPT4O = (rf"{CASED[0]}{SHORT}?|{CASED[1]}{SHORT}?|\p{{N}}{{1,3}}|{SIGNS_AND_SLASHES}|{BLANKS}",)
BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)
FALCON = (PUNCTUATION + "`]+", WORDS, "[0-9][0-9][0-9]")
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    rf"{ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
SEED_CODER = (rf"{SHORT}|{LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{BLANKS}",)
MINICPM5 = (r"\p{N}{1,3}", rf"{SHORT}|{LETTERS}|\p{{N}}+|{SIGNS}|{BLANKS}")
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
)

SPLITS: Mapping[str, tuple[str, ...]] = {
    "default": (PUNCTUATION + "]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(
        (
            *("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais"),
            *("trillion", "granite-docling", "modern-bert"),
        ),
        GPT2,
    ),
    **dict.fromkeys(
        (
            *("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
            "mellum2",
        ),
        DIGITS,
    ),
    **dict.fromkeys(
        (
            *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
            *("lfm2", "jina-v5-nano", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"),
        ),
        LLAMA3,
    ),
    **dict.fromkeys(
        (
            *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"),
            *("solar-open", "grok-2"),
        ),
        QWEN2,
    ),
    "qwen35": QWEN35,
    "tekken": TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), GPT4O),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), BLOOM),
    "viking": (*BLOOM, r"\p{N}"),
    "falcon": FALCON,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), DEEPSEEK3),
    "deepseek-coder": DEEPSEEK_CODER,
    "seed-coder": SEED_CODER,
    "minicpm5": MINICPM5,
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), BAILING),
}

WITH_BOS = frozenset(
    {
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "jina-v5-nano", "tekken"),
    }
)
"""Text begins with a token of its own, where a file does not say."""
WHOLE_WORDS = WITH_BOS | {"glm4", "glm5", "minicpm5"}
"""A word that is a token is that token, whatever the merges would make of it."""
