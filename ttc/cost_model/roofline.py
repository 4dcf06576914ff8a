"""How long a pass takes on a device: HELM's roofline, Eqs. 4.8-4.15, with the overhead of Table
6.5.

Times are in seconds. A stage is the units that one device runs, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttc.cost_model.device_profile import DeviceProfile, LinkProfile
from ttc.cost_model.unit import Pass, Unit

Stage = Sequence[Unit]


def t_proj(stage: Stage, device: DeviceProfile, work: Pass) -> float:
    """T_proj, Eq. 4.10: max(F_proj / (P eta_c), W_param / (M eta_m))."""
    f_proj = sum(unit.f_proj(work.rows) for unit in stage)
    w_param = sum(unit.w_param(work.rows) for unit in stage)
    return max(
        f_proj / (device.p(work.rows) * device.eta_c), w_param / (device.bandwidth * device.eta_m)
    )


def t_attn(stage: Stage, device: DeviceProfile, work: Pass) -> float:
    """T_attn, Eq. 4.13: max(F_attn / (P eta_c), W_kv / (M_hat eta_m)). A prefix that branches share
    is read once, and attended by all of their rows together; what a branch has of its own, by its
    own rows."""
    w_kv = sum(unit.w_kv(work) for unit in stage)
    computing_s = sum(_attending_s(unit, device, work) for unit in stage)
    return max(computing_s / device.eta_c, w_kv / (m_hat(device, w_kv) * device.eta_m))


def _attending_s(unit: Unit, device: DeviceProfile, work: Pass) -> float:
    """F_attn / P of one unit."""
    f_attn, f_own = unit.f_attn(work), unit.f_attn(replace(work, shared_tokens=0))
    own_rows = work.new_tokens if device.attention_flops else work.rows  # the paper has one P
    shared_s = (f_attn - f_own) / device.p_attn(work.rows_together, unit.group)
    return shared_s + f_own / device.p_attn(own_rows, unit.group)


def m_hat(device: DeviceProfile, w_kv: float) -> float:
    """M_hat, Eq. 4.14, bytes a second: alpha B_L3 + (1 - alpha) M, where alpha = min(1, C_L3 /
    W_kv) lies in L3."""
    if not device.l3_bandwidth:
        return device.bandwidth
    alpha = min(1.0, device.l3_bytes / w_kv) if w_kv else 1.0
    return alpha * device.l3_bandwidth + (1 - alpha) * device.bandwidth


def roofline_time(stage: Stage, device: DeviceProfile, work: Pass) -> float:
    """T_decode, Eq. 4.8: T_proj + T_attn, and the device's overhead per block and pass. What rows
    cost in it (`DeviceProfile.head_s`) is an addition of ours. 0 for an empty stage.

    A prefill is charged alike, as a pass of many rows.
    """
    if not stage:
        return 0.0
    blocks = [unit for unit in stage if unit.is_block]
    overhead_s = sum(device.block_s(work.rows, block.projected) for block in blocks)
    overhead_s += device.pass_overhead_s
    return t_proj(stage, device, work) + t_attn(stage, device, work) + overhead_s


def t_comm(unit: Unit, link: LinkProfile, work: Pass) -> float:
    """T_comm, Eq. 4.15: l_link + W_act / B_link, for the states that `unit` hands from the host to
    the device."""
    return link.to_device_latency_s + unit.w_act(work.rows) / link.to_device_bandwidth
