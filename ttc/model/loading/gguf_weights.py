"""Which tensors of a .gguf file are which weights of transformers' model."""

from __future__ import annotations

from typing import Any

from ttc.errors import UnsupportedModel
from ttc.model.loading.gguf_file import GgufFile
from ttc.model.loading.gguf_rope import OTHER_FILES
from ttc.model.loading.gguf_settings import family_of


def processor(model: Any, file: GgufFile) -> Any:
    """What gives a file's rows and numbers the order that transformers has them in."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    made_by: Any = theirs.TENSOR_PROCESSORS.get(file.architecture, theirs.TensorProcessor)
    return made_by(config=model.config.to_dict())


def weights(model: Any, file: GgufFile) -> dict[str, str]:
    """The weight of transformers' model that each tensor is, by the tensor's name."""
    from transformers import modeling_gguf_pytorch_utils as theirs

    found: dict[str, str] = theirs.get_gguf_hf_weights_map(model, processor(model, file))
    return found


def check_tensors(model: Any, file: GgufFile) -> None:
    """Raises UnsupportedModel for a tensor of the file that the model does not take."""
    family = family_of(file)
    if family.whole:
        return
    factors = {f"{name}.weight" for name in family.factors}
    taken = weights(model, file).keys()
    left = sorted(
        name
        for name in file.tensors.keys() - factors
        if name not in taken and name.removesuffix(".weight") not in taken  # experts have no suffix
    )
    if left:
        raise UnsupportedModel(
            f"{file.name} has {len(left)} tensors that the model has no place for, among them "
            f"{left[0]}; {OTHER_FILES}"
        )
