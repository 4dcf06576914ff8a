"""Small random models with recurrent layers, and engines of them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from experiments.standins import small_models
from tests.helpers.tokenizers import Letters
from ttc import Engine


@cache
def plain(case: str) -> Any:
    """A model by its name in `bench architectures`, in float32."""
    return small_models.build(case)


def engine_of(case: str, **options: Any) -> Engine:
    return Engine(copy.deepcopy(plain(case)), Letters(), **options)
