"""The text decoder of a model that reads images or sound as well, loaded without the rest of it."""

from __future__ import annotations

from typing import Any

from ttc.errors import UnsupportedModel

WEIGHT_NAMES = {
    r"^(?:model\.)?language_model\.(?:model\.)?(?:blocks|encoder\.layers)\.": "model.layers.",
    r"^(?:model\.)?(?:language_model|text_model)\.lm_head\.": "lm_head.",
    r"^(?:model\.)?(?:language_model|text_model)\.(?:model\.)?": "model.",
}
"""A decoder's weights in a multimodal checkpoint, old or new, and in a model of text alone."""
OWN_LOGITS = {"aya_vision", "cohere2_vision"}
"""Models without the scale that the causal language model of their decoder puts on its logits."""
OWN_WEIGHTS = {"minimax_m3_vl"}
"""Models whose files hold weights that transformers puts together in their own class alone."""


def text_decoder(config: Any) -> tuple[Any, Any, dict[str, Any]] | None:
    """(class, configuration, options of `from_pretrained`) that read the text decoder alone.

    The class is transformers' causal language model of the decoder, where it has one that computes
    the same, else the multimodal model without its other parts (Qwen3-VL). None for text models.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )

    text = getattr(config, "text_config", None)
    if (
        text is None
        or config.is_encoder_decoder
        or config.get_text_config(decoder=True) is not text
    ):
        return None
    if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING and config.model_type not in (
        OWN_LOGITS | OWN_WEIGHTS
    ):
        if hasattr(config, "tie_word_embeddings"):
            text.tie_word_embeddings = config.tie_word_embeddings
        if (quantization := getattr(config, "quantization_config", None)) is not None:
            text.quantization_config = quantization
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(text)], text, {"key_mapping": WEIGHT_NAMES}
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return _text_alone(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]), config, {}
    return None


def check_is_causal(config: Any) -> None:
    """Raises UnsupportedModel for what is no causal language model of transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    name = next(iter(getattr(config, "architectures", None) or ()), config.model_type)
    if getattr(config, "is_encoder_decoder", False) and not name.endswith("ForCausalLM"):
        raise UnsupportedModel(
            f"{name} is an encoder-decoder; the engine runs decoder-only language models"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(
            f"transformers has no causal language model of the kind {config.model_type!r} "
            f"({name}); docs/models.md names what is served"
        )


def _text_alone(whole: Any) -> Any:
    """A class of multimodal models that have no part but the text decoder and its head."""

    def __init__(self: Any, config: Any) -> None:
        whole.__init__(self, config)
        decoder = self.get_decoder()
        for name, part in list(self.base_model.named_children()):
            if all(module is not decoder for module in part.modules()):
                setattr(self.base_model, name, None)

    # by name and module of a class transformers finds what weights are called in files
    return type(whole.__name__, (whole,), {"__init__": __init__, "__module__": whole.__module__})
