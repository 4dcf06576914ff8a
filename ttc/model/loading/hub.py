"""One quick question to the Hugging Face hub, so that a run without a network does not wait."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ttc.errors import InvalidInput

RepoKind = Literal["model", "dataset"]
PATIENCE_S = 5.0
"""How long the hub may take to answer, in seconds."""
KEYS = {"model": "model.name", "dataset": "dataset.path"}


@contextmanager
def reached(name: str, kind: RepoKind) -> Iterator[bool]:
    """Ask the hub once whether it has `name`, and yield whether it answered.

    If not, the body runs in offline mode (as with HF_HUB_OFFLINE=1), where nothing is retried.
    Raises InvalidInput if the hub says that there is no such name, or that it is not for everyone.
    """
    if _answers(name, kind):
        yield True
        return
    from huggingface_hub import constants

    # the libraries read the environment when they are imported
    places: list[Any] = [constants]
    if "datasets" in sys.modules:
        places.append(sys.modules["datasets"].config)
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield False
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _answers(name: str, kind: RepoKind) -> bool:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    ask = HfApi().model_info if kind == "model" else HfApi().dataset_info
    what = "model" if kind == "model" else "data set"
    try:
        ask(name, timeout=PATIENCE_S)
    except HFValidationError as error:
        raise InvalidInput(f"{name!r} is no name of a {what} on the hub: {error}") from error
    except RepositoryNotFoundError as error:
        raise InvalidInput(
            f"the hub has no {what} {name!r} that you may read; check the spelling and, if it is "
            "private or gated, log in with `hf auth login`; a local copy needs no hub: "
            f"{KEYS[kind]}=PATH"
        ) from error
    except Exception:  # no network, offline mode, a hub that is down: what lies here may do
        return False
    return True
