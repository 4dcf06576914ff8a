"""Folders of what is no decoder-only language model: each is refused with what it is, before its
weights and its tokenizer are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from ttc import UnsupportedModel
from ttc.model.loading.load import load

CLASSES = (
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    | modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    | modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    | modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
)


def kinds() -> Iterator[tuple[str, Any]]:
    """Classes of transformers that are no causal language models, with their configurations."""
    for kind, name in CLASSES.items():
        config_class = getattr(transformers, CONFIG_MAPPING_NAMES[kind], None)
        try:
            config = config_class and config_class()
        except Exception:  # its own defaults do not fit together
            continue
        causal = kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if config is not None and (config.is_encoder_decoder or not causal):
            yield name if isinstance(name, str) else name[0], config


def saved(name: str, config: Any, folder: Path) -> Path:
    config.architectures = [name]
    config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def why(folder: Path) -> str:
    with pytest.raises(UnsupportedModel) as refused:
        load(folder, device="cpu")
    return str(refused.value)


def test_other_kinds_are_refused_with_what_they_are(tmp_path: Path) -> None:
    others = list(kinds())
    assert sum(config.is_encoder_decoder for _, config in others) >= 30
    for name, config in others:
        if hasattr(config, "text_config") and not config.is_encoder_decoder:
            continue  # a multimodal model, whose decoder is served
        said = why(saved(name, config, tmp_path / name))
        assert name in said
        what = "is an encoder-decoder" if config.is_encoder_decoder else "no causal language model"
        assert what in said, said
