"""What transformers leaves out of the tokenizer of a .gguf file."""

from __future__ import annotations

from typing import Any

from ttc.errors import UnsupportedModel
from ttc.model.loading.gguf_file import GgufFile
from ttc.model.loading.gguf_rope import OTHER_FILES
from ttc.model.loading.gguf_splits import SPLITS, WHOLE_WORDS, WITH_BOS

PREFIX = "tokenizer."
TAKEN = frozenset(
    f"ggml.{name}"
    for name in (
        *("model", "pre", "tokens", "token_type", "scores", "merges"),
        *("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"),
        *("unknown_token_id", "padding_token_id"),
        *("add_bos_token", "add_eos_token", "add_space_prefix"),
    )
)
NOTHING = frozenset(
    f"ggml.{name}"
    for name in (
        *("token_type_count", "seperator_token_id", "cls_token_id", "mask_token_id"),
        *("prefix_token_id", "suffix_token_id", "middle_token_id"),
        *(f"fim_{part}_token_id" for part in ("pre", "suf", "mid", "pad", "rep", "sep")),
        *("remove_extra_whitespaces", "precompiled_charsmap"),  # of T5's tokenizers
    )
)
"""Settings that change nothing for the kinds of tokenizers that are read."""
NEUTRAL = {
    "ggml.add_sep_token": False,
    "ggml.normalizer.lowercase": False,
    "ggml.normalizer.strip_accents": False,
    "ggml.suppress_tokens": [],
}
TEXTS = ("chat_template", "huggingface.json", "rwkv.world")


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
        if name == key or name in TAKEN | NOTHING or name.startswith(TEXTS):
            continue
        if name not in NEUTRAL or file.value(key) != NEUTRAL[name]:
            value = str(file.value(key))[:60]
            raise UnsupportedModel(
                f"{file.name} sets {key} to {value}, which is not read here; {OTHER_FILES}"
            )


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
