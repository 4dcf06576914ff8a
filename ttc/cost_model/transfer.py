"""How many bytes of KV cross from host to device in a beam search: the model of Locality-aware Beam
Scheduling.

"Locality-aware Beam Scheduling", section 4.1, Table 1 and Eqs. 1-5. Token by token, all beams
advance together and the layers that do not fit the device are loaded again for each token. Beam
scheduling runs one group of beams at a time, so KV is loaded once per step. What the paper prints
as GB is GiB (2**30 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ttc.cost_model.dims import KVShape, Positive, require_positive
from ttc.errors import InvalidInput

Charge = Literal["start", "end", "offloaded"]
"""The length at which a step is charged: where it starts (Eq. 5 as printed), where it ends (Figure
7), or where it starts but only if the KV at its end exceeds the budget (what a run really
moves)."""


@dataclass(frozen=True)
class Workload(Positive):
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

    reserved_layers: whole layers of the budget kept as staging buffers for the layers that do not
    fit. The paper charges none. When every layer fits nothing is staged, so none is reserved.
    Raises `InvalidInput` for tokens below 1, reserved_layers below 0, or more reserved layers than
    fit the budget.
    """
    require_positive("tokens", tokens)
    if reserved_layers < 0:
        raise InvalidInput(
            f"reserved_layers={reserved_layers} must be 0 (none, as in the paper) or above"
        )
    layer_bytes = shape.layer_bytes(load.beams, tokens)
    fitting = load.budget_bytes // layer_bytes
    if fitting >= shape.layers:
        return shape.layers
    if reserved_layers > fitting:
        raise InvalidInput(
            f"reserved_layers={reserved_layers} is too many: budget_bytes={load.budget_bytes:,} "
            f"holds {fitting} layers of {layer_bytes:,} bytes ({load.beams} beams of {tokens:,} "
            f"tokens); reserve at most {fitting} or set budget_bytes to "
            f"{reserved_layers * layer_bytes:,} or more"
        )
    return fitting - reserved_layers


def token_transfer_bytes(
    shape: KVShape, load: Workload, tokens: int, reserved_layers: int = 0
) -> int:
    """DM_token(s), Eq. 2: bytes loaded to decode one token of every beam when each has `tokens`
    tokens.

    Errors and reserved_layers as in `layers_in_device`.
    """
    offloaded = shape.layers - layers_in_device(shape, load, tokens, reserved_layers)
    return offloaded * shape.layer_bytes(load.beams, tokens)


def token_by_token_bytes(shape: KVShape, load: Workload, reserved_layers: int = 0) -> int:
    """DM_req, Eq. 3: bytes loaded over a request when all beams advance together. `step_tokens`
    plays no part.

    OPT-6.7B with 64 beams, a prompt of 128, 1,920 generated tokens and 7 GiB: 53,012 GiB, as in the
    paper. Errors and reserved_layers as in `layers_in_device`.
    """
    return sum(
        token_transfer_bytes(shape, load, i + load.prompt_tokens, reserved_layers)
        for i in range(load.generated_tokens)
    )


def step_transfer_bytes(shape: KVShape, load: Workload, tokens: int) -> int:
    """DM_step(s), Eq. 4: bytes loaded in one step, each beam once, at `tokens` tokens.
    `InvalidInput` if below 1."""
    require_positive("tokens", tokens)
    return load.beams * shape.beam_bytes(tokens)


def beam_scheduling_bytes(shape: KVShape, load: Workload, charge: Charge = "start") -> int:
    """DM_req, Eq. 5: bytes loaded over a request when each group of beams finishes a step before it
    is evicted.

    charge="start" is Eq. 5 as printed: a step is charged at the length it starts from, whether or
    not the KV fits. charge="end" charges a step at the length it ends at, and only if the KV of
    that length exceeds the budget. charge="offloaded" charges it at the length it starts at, on the
    same condition: a step's own tokens are made on the device, so no run loads them before the next
    step. OPT-6.7B with 64 beams, a prompt of 128, 1,920 generated tokens and 7 GiB, in steps of 32
    / 64 / 128: "start" gives 2,010 / 990 / 480 GiB, "end" gives the 2,052 / 1,044 / 540 that the
    paper states for Figure 7. Tokens after the last whole step are not charged (the floor of Eq.
    5). Raises `InvalidInput` for another `charge`.
    """
    if charge not in get_args(Charge):
        raise InvalidInput(
            f"charge={charge!r} is unknown; choose 'start' (Eq. 5 as printed), 'end' (Figure 7) or "
            "'offloaded'"
        )
    starts = [
        load.prompt_tokens + i * load.step_tokens
        for i in range(load.generated_tokens // load.step_tokens)
    ]
    if charge == "start":
        return sum(step_transfer_bytes(shape, load, start) for start in starts)
    at_ends = [step_transfer_bytes(shape, load, start + load.step_tokens) for start in starts]
    over = [i for i, step_bytes in enumerate(at_ends) if step_bytes > load.budget_bytes]
    if charge == "end":
        return sum(at_ends[i] for i in over)
    return sum(step_transfer_bytes(shape, load, starts[i]) for i in over)
