"""Where a model's files lie: an alias, a folder, a .gguf file or an id on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ttc.errors import TTCError, UnsupportedModel, refuse, refusing
from ttc.model.loading.default_model import SMOLLM2, smollm2_folder
from ttc.model.loading.hub import reached


def local_path(name: str, gguf_file: str | None = None) -> Path | None:
    """The folder or .gguf file that `name` stands for; None for an id on the hub.

    gguf_file: a file in that folder. Converts the default model at first use. Raises
    UnsupportedModel for a path without a model.
    """
    source = str(smollm2_folder()) if name == SMOLLM2 else name
    path = Path(source).expanduser()
    if path.is_dir():
        files = list(path.glob("*.gguf"))
        if gguf_file is not None:
            path = path / gguf_file
        elif len(files) == 1 and not (path / "config.json").is_file():
            path = files[0]
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UnsupportedModel(f"there is no file {path}")
        return path
    if path.is_dir():
        return path
    if path.is_absolute() or source.startswith((".", "~")):
        raise UnsupportedModel(f"{source} is neither a folder nor a .gguf file")
    return None


@contextmanager
def opened(
    name: str, gguf_file: str | None = None, trust_remote_code: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What transformers' `from_pretrained` takes for `name`, as (source, options).

    Errors inside come out as UnsupportedModel, with what to do.
    """
    path = local_path(name, gguf_file)
    source = name if path is None else str(path)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if gguf_file is not None:
        options["gguf_file"] = gguf_file
    if path is not None and path.is_file():
        source = str(path.parent)
        options["gguf_file"] = path.name
    elif path is not None:
        _check_folder(path)
    with _without_bar(), reached(name, "model") if path is None else nullcontext(True) as online:
        # what files can make libraries raise has no common class
        def reason(error: Exception) -> str:
            return _reason(name, error, path, online, trust_remote_code)

        failed = f"cannot load the model {name!r}: {{error}}"
        with (
            refusing(Exception, "{error}", UnsupportedModel, but=TTCError, words=reason),
            refusing(UnsupportedModel, failed, UnsupportedModel),
        ):
            yield source, options


def whole_folder(source: str) -> Path:
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.json"]))


def _in_a_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if text.endswith(":") and len(lines) > 1:  # a heading
        text = f"{text} {lines[1]}"
    plain = isinstance(error, OSError | ValueError | ImportError) and text
    return text if plain else f"{type(error).__name__}: {text}".removesuffix(": ")


def _reason(name: str, error: Exception, path: Path | None, online: bool, trusted: bool) -> str:
    forms = f"the alias {SMOLLM2!r}, a folder with config.json and weights"
    if not online:
        return (
            f"cannot load the model {name!r}: the hub cannot be reached, and no whole copy of it "
            f"lies in this machine's cache. If {name!r} is on the hub, try again with a network; "
            f"else give {forms}, or a .gguf file"
        )
    if "trust_remote_code" in str(error) and not trusted:
        return (
            f"the model {name!r} comes with Python code of its own, which is not run unless you "
            "allow it. Read that code, and if you trust it: trust_remote_code=True in Python, "
            "model.trust_remote_code=true on the command line"
        )
    again = f"Give {forms}, a .gguf file, or the id of a causal language model on the hub"
    if name == SMOLLM2:
        again = f"Delete {path} to have it converted again"
    return f"cannot load the model {name!r}: {_in_a_line(error).removesuffix('.')}. {again}"


@contextmanager
def _without_bar() -> Iterator[None]:
    from transformers.utils import logging

    before = logging.set_tqdm_hook(
        lambda make, args, options: make(*args, **(options | {"disable": True}))
    )
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def _check_folder(path: Path) -> None:
    bare = not (path / "config.json").is_file()
    files = sorted(file.name for file in path.glob("*.gguf"))
    save = "save the model with save_pretrained"
    refuse(
        {
            f"the folder {path} holds {len(files)} models; name one by gguf_file "
            f"(model.gguf_file on the command line): {', '.join(files)}": bare and files,
            f"the folder {path} holds no config.json; {save}": bare,
            f"the folder {path} holds no weights (*.safetensors); {save}": not (
                any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))
            ),
        },
        UnsupportedModel,
    )
