"""One quick question to the Hugging Face hub, so that a run without a network does not wait for ten retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ttc.errors import InvalidInput

Kind = Literal["model", "dataset"]
PATIENCE_S = 5.0
"""How long the hub may take to answer, in seconds."""
KEYS = {"model": "model.name", "dataset": "dataset.path"}


@contextmanager
def reached(name: str, kind: Kind) -> Iterator[bool]:
    """Ask the hub once whether it has `name`. Yields whether it answered; if not, the body sees local copies alone.

    Inside, a hub that cannot be reached means offline mode (as with HF_HUB_OFFLINE=1), in which nothing is retried.
    Raises InvalidInput if the hub answers that there is no such name, or that it is not for everyone.
    """
    if _asked(name, kind):
        yield True
        return
    with _offline():
        yield False


def _asked(name: str, kind: Kind) -> bool:
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
            f"the hub has no {what} {name!r} that you may read; check the spelling and, if it is private or gated, "
            f"log in with `hf auth login`; a local copy needs no hub: {KEYS[kind]}=PATH"
        ) from error
    except Exception:  # no network, offline mode, a hub that is down: whatever it is, what lies here may do
        return False
    return True


@contextmanager
def _offline() -> Iterator[None]:
    """The libraries' offline mode, which they otherwise take from the environment when they are imported."""
    import sys

    from huggingface_hub import constants

    places: list[Any] = [constants]
    if "datasets" in sys.modules:
        places.append(sys.modules["datasets"].config)
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value
