"""KV that is not computed, for measurements whose times don't depend on what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ttc.engine import Engine


@contextmanager
def uncomputed(engine: Engine) -> Iterator[None]:
    """The model does not run within; afterwards all KV holds one small number."""
    runner, vocabulary = engine.runner, engine.limits.vocab_size
    forward = runner.forward

    def nothing(
        tokens: Sequence[int] | Tensor, plan: Any, keep: Sequence[int] | None = None
    ) -> Tensor:
        return torch.zeros(len(keep or tokens), vocabulary, device=runner.device)

    runner.forward = nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        runner.forward = forward  # type: ignore[method-assign]
    for kv in engine.memory.live:
        engine.memory.link.wait(kv.fetched)  # what is under way would overwrite it
        engine.memory.link.wait_on_host(kv.written)
        for copy in filter(None, (*kv.device, *kv.host)):
            for part in copy.both:
                with torch.inference_mode():  # as KV was made
                    part.fill_(0.02)
