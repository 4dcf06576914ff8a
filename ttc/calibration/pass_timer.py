"""How long the engine's decoding passes take, with random weights of any shape."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights

from ttc.attention.plan import Plan
from ttc.branch import Branch
from ttc.calibration.uncomputed import uncomputed
from ttc.engine import Engine
from ttc.model.runner_choice import RunnerChoice, runner_for
from ttc.residency.base import Residency

LEAST, MOST = 3, 12
"""Passes that are timed: at least, at most."""
NUMBERS = (1 << 20) - 3
"""So many random numbers are made, and repeated in all weights: to make them all takes longer than
the passes."""


class PassTimer:
    """An engine over a model of this configuration with random weights, as `Engine.from_pretrained`
    would run it.

    config: of transformers. No second copy of the weights is made. runner, pack: see `runner_for`.
    memory: a policy, None for all KV on the device. Raises UnsupportedModel for a model that the
    engine does not run.
    """

    def __init__(
        self,
        config: Any,
        device: torch.device,
        dtype: torch.dtype,
        runner: RunnerChoice = "auto",
        memory: Residency | None = None,
        pack: bool = True,
    ):
        with no_init_weights(), torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        random = torch.Generator(device).manual_seed(0)
        numbers = torch.empty(NUMBERS, dtype=dtype, device=device).uniform_(
            -0.03, 0.03, generator=random
        )
        for weight in model.parameters():
            if weight.dim() > 1:
                for part in weight.data.view(-1).split(NUMBERS):
                    part.copy_(numbers[: len(part)])
            else:
                weight.data.fill_(1.0)
        chosen = runner_for(model, runner, pack=pack)
        self.engine = Engine(model, None, runner=chosen, memory=memory, generation_settings=False)
        self.engine.limits.eos_ids = frozenset()
        self.engine.runtime.run_ahead = False  # passes and what is between them are timed apart
        self.passes_s: list[float] = []
        self.gaps_s: list[float] = []
        self.around_s = 0.0
        """What the last call took before its first pass and after its last one."""
        self._begun = 0.0  # when the first pass of a call began
        self._ended: float | None = None  # when the last pass of a call was over
        self._roots: list[Branch] = []
        self._forward = self.engine.runner.forward
        self.engine.runner.forward = self._timed  # type: ignore[method-assign]

    def seconds(
        self, rows: int, context: int, enough_s: float = 0.3, prefixes: int = 1, own: int = 0
    ) -> float:
        """The median time of a pass of `rows` branches, one token each, on shared prefixes of
        `context` tokens, as many on each. Waits for copies are left out.

        own: what each branch has of its own in a run, which is not computed; a dozen tokens at most
        are added. The first pass is not counted, and after `enough_s` no more are timed. The
        prefixes are kept for the next call, until that wants others.
        """
        roots = self.roots(context, prefixes)
        branches = [branch for root in roots for branch in self.engine.fork(root, rows // prefixes)]
        try:
            if own:
                with uncomputed(self.engine):
                    self.engine.generate(branches, own)
            self.passes_s.clear()
            self.gaps_s.clear()
            self._decode(branches, 1 + LEAST)
            passes = min(MOST, int(enough_s / self.passes_s[-1])) - LEAST
            if passes > 0:
                self._decode(branches, passes)
        finally:
            self.engine.release(branches)
        return median(self.passes_s[1:])

    @property
    def between_s(self) -> float:
        """The median time from a pass to the next one, in the last call of `seconds`: what drawing
        a token of each branch takes, and seeing which have ended."""
        return median(self.gaps_s)

    def _decode(self, branches: Sequence[Branch], tokens: int) -> None:
        self._ended = None
        start = perf_counter()
        self.engine.generate(branches, tokens)
        if self._ended is not None:
            self.around_s = perf_counter() - self._ended + self._begun - start

    def prefix(self, context: int) -> Branch:
        """The branch that others stand on, with a prefix of `context` tokens, which is not
        computed."""
        return self.roots(context)[0]

    def roots(self, context: int, prefixes: int = 1) -> list[Branch]:
        """So many branches that others stand on, each with a prefix of its own."""
        if [len(root.tokens) for root in self._roots] != [context + 1] * prefixes:
            self.release()
            vocabulary = self.engine.limits.vocab_size
            # the last token has no KV
            prompts = [
                [(7 * (n + 1) + first) % vocabulary for n in range(context + 1)]
                for first in range(prefixes)
            ]
            with uncomputed(self.engine):
                self._roots = self.engine.roots(prompts).result()
        return self._roots

    def release(self) -> None:
        """Free the prefixes."""
        self.engine.release(self._roots)
        self._roots = []

    def _timed(
        self, tokens: Sequence[int] | Tensor, plan: Plan, keep: Sequence[int] | None = None
    ) -> Tensor:
        if not plan.in_storages:
            return self._forward(tokens, plan, keep)
        link = self.engine.memory.link
        start, waited_s = perf_counter(), link.exposed_s
        if self._ended is None:
            self._begun = start
        else:
            self.gaps_s.append(start - self._ended)
        logits = self._forward(tokens, plan, keep)
        if logits.device.type == "cuda":
            torch.cuda.synchronize(logits.device)
        self._ended = perf_counter()
        self.passes_s.append(self._ended - start - (link.exposed_s - waited_s))
        return logits
