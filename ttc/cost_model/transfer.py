"""How many bytes of KV cross from host to device in a beam search: the model of Locality-aware Beam
Scheduling.

"Locality-aware Beam Scheduling", section 4.1, Table 1 and Eqs. 1-5. Token by token, all beams
advance together and the layers that do not fit the device are loaded again for each token. Beam
scheduling runs one group of beams at a time, so KV is loaded once per step. What the paper prints
as GB is GiB (2**30 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ttc.cost_model.dims import KVShape

Charge = Literal["start", "end", "offloaded"]
"""The length at which a step is charged: where it starts (Eq. 5 as printed), where it ends (Figure
7), or where it starts but only if the KV at its end exceeds the budget (what a run really
moves)."""


@dataclass(frozen=True)
class Workload:
    """One request: N_beam, S_prompt, N_gen, N_step and Mem_GPU of Table 1. Beams share no KV.

    budget_bytes: the device memory reserved for KV.
    """

    beams: int
    prompt_tokens: int
    generated_tokens: int
    step_tokens: int
    budget_bytes: int


def layers_in_device(shape: KVShape, load: Workload, tokens: int, reserved_layers: int = 0) -> int:
    """L_inGPU(s), Eq. 1: the layers whose KV stays on the device when each beam has `tokens`
    tokens.

    reserved_layers: whole layers of the budget that are buffers for the layers that do not fit. The
    paper charges none. Where every layer fits, none is reserved.
    """
    fitting = load.budget_bytes // shape.layer_bytes(load.beams, tokens)
    return shape.layers if fitting >= shape.layers else max(0, fitting - reserved_layers)


def token_transfer_bytes(
    shape: KVShape, load: Workload, tokens: int, reserved_layers: int = 0
) -> int:
    """DM_token(s), Eq. 2: bytes loaded to decode one token of every beam when each has `tokens`
    tokens."""
    offloaded = shape.layers - layers_in_device(shape, load, tokens, reserved_layers)
    return offloaded * shape.layer_bytes(load.beams, tokens)


def token_by_token_bytes(shape: KVShape, load: Workload, reserved_layers: int = 0) -> int:
    """DM_req, Eq. 3: bytes loaded over a request when all beams advance together. `step_tokens`
    plays no part.

    OPT-6.7B with 64 beams, a prompt of 128, 1,920 generated tokens and 7 GiB: 53,012 GiB, as in the
    paper.
    """
    return sum(
        token_transfer_bytes(shape, load, i + load.prompt_tokens, reserved_layers)
        for i in range(load.generated_tokens)
    )


def step_transfer_bytes(shape: KVShape, load: Workload, tokens: int) -> int:
    """DM_step(s), Eq. 4: bytes loaded in one step, each beam once, at `tokens` tokens."""
    return load.beams * shape.beam_bytes(tokens)


def beam_scheduling_bytes(shape: KVShape, load: Workload, charge: Charge = "start") -> int:
    """DM_req, Eq. 5: bytes loaded over a request when each group of beams finishes a step before it
    is evicted. Tokens after the last whole step are not charged.

    OPT-6.7B with 64 beams, a prompt of 128, 1,920 generated tokens and 7 GiB, in steps of 32 / 64 /
    128: "start" gives 2,010 / 990 / 480 GiB, "end" the 2,052 / 1,044 / 540 of Figure 7.
    """
    step = load.step_tokens
    starts = [load.prompt_tokens + i * step for i in range(load.generated_tokens // step)]
    moved = 0
    for start in starts:
        at_start, at_end = (step_transfer_bytes(shape, load, n) for n in (start, start + step))
        if charge == "start" or at_end > load.budget_bytes:
            moved += at_end if charge == "end" else at_start
    return moved
