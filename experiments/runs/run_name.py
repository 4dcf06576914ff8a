"""The default name of a run, which is that of its folder: its data, search, verifier, and what else
was set."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.runs.default_verifier import default_verifier
from experiments.runs.records import MAY_CHANGE
from ttc.origin import OURS

IN_NAME = (
    "dataset",
    "dataset.path",
    "search",
    "verifier",
    "run.seed",
    "search._target_",
    "verifier._target_",
)
"""Overrides that the default name of a run shows by itself."""

SPLIT = re.compile(r"(test|train|val|valid|validation|dev|data)(-\d+-of-\d+)?")


def is_own(path: str | None) -> bool:
    """Whether a search's or verifier's `_target_` is the user's own."""
    chosen = path is not None and not path.startswith("${")  # else by the kind of answer
    return chosen and str(path).partition(".")[0] not in OURS


def data_label(name: str, path: str | None) -> str:
    """The data set as a part of a run's name, with its file's name, so that each has its own
    runs; and with its folder's, where the file is called after a split."""
    file = Path(path or "")
    stem = file.stem
    if SPLIT.fullmatch(stem) and file.parent.name not in ("", "..", name):
        stem = f"{file.parent.name}-{stem}"
    parts = []
    if name != "file" or not stem:
        parts.append(name)
    if stem != name:
        parts.append(stem)
    return re.sub(r"[^\w.=+-]+", "_", "-".join(filter(None, parts)))


def class_label(node: Any, choice: str) -> str:
    """A search or verifier as a part of a run's name: the choice, or the user's class."""
    path = node.get("_target_")
    return str(path).rpartition(".")[2] if is_own(path) else choice


def verifier_label(config: Any) -> str:
    """The verifier as a part of a run's name, "" for a search that asks for no ratings."""
    try:
        rated = instantiate(config.search, _convert_="all").needs_verifier
    except Exception:  # a wrong setting, which the run itself refuses by name
        rated = True
    choice = _chosen("verifier")
    if choice == "auto":
        choice = default_verifier(config.dataset.answer_kind)
    return f"-{class_label(config.verifier, choice)}" if rated else ""


def _chosen(group: str) -> str:
    return str(HydraConfig.get().runtime.choices[group])


def overrides_suffix(overrides: Sequence[str], silent: Sequence[str]) -> str:
    """The other overrides as a part of a run's name: each setting of a sweep has its own folder."""
    kept = [o for o in overrides if o.partition("=")[0].lstrip("+~") not in (*IN_NAME, *silent)]
    text = "".join("-" + re.sub(r"[^\w.=+-]+", "_", o) for o in sorted(kept))
    if len(text) > 120:
        text = f"{text[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return text


def register_names() -> None:
    """Make the parts of a name known to `conf/run/default.yaml`."""
    for name, part in (
        (
            "overrides_suffix",
            lambda: overrides_suffix(HydraConfig.get().overrides.task, (*MAY_CHANGE, "run.name")),
        ),
        ("data_label", data_label),
        ("search_label", lambda *, _root_: class_label(_root_.search, _chosen("search"))),
        ("verifier_label", lambda *, _root_: verifier_label(_root_)),
    ):
        OmegaConf.register_new_resolver(name, part, replace=True)
