"""What a run shows."""

from __future__ import annotations

from typing import Any


def table(name: str, summary: dict[str, Any]) -> str:
    """The summary as a small table."""
    low, high = summary["accuracy_95"]
    moved = [summary["host_to_device_bytes"] / 2**20, summary["device_to_host_bytes"] / 2**20]
    rows = [
        ("problems", f"{summary['problems']} ({summary['failures']} failed)"),
        ("accuracy", f"{summary['accuracy']:.1%}  [95%: {low:.1%} to {high:.1%}]"),
        *((f"pass@{k}", f"{v:.1%}") for k, v in summary["pass_at_k"].items()),
        *((f"maj@{k}", f"{v:.1%}") for k, v in summary["maj_at_k"].items()),
        ("tokens per problem", f"{summary['generated_tokens_per_problem']:.0f}"),
        ("verifier tokens", f"{summary['verifier_tokens']}"),
        *((f"approximate: {what.replace('_', ' ')}", str(n)) for what, n in summary["approximate"].items()),
        *([("KV moved", f"{moved[0]:,.1f} MiB to the device, {moved[1]:,.1f} MiB back")] if any(moved) else []),
        (
            "time",
            f"{summary['seconds']:.1f} s" + (", over a simulated link" if "simulated_link_gbps" in summary else ""),
        ),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join([f"\n{name}", *(f"  {label:<{width}}  {value}" for label, value in rows)])
