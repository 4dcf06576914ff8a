"""What HeadInfer's formulas say of contexts and speeds: Tables 2-5, 7, 14 and 15, Figures 7 and
8."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from experiments.lab.paper.exhibit import Exhibit, Lines, Row
from experiments.lab.paper.footprint import ModelDims, longest_context
from experiments.lab.paper.headinfer import GIB, LLAMA3_8B, K

GB = 10**9
HOST_BYTES = 512 * GIB
"""What the paper's host has for KV (section 3.4)."""
DEVICE_BYTES = 20 * GIB
"""What the paper's methods use of an RTX 4090 at their longest contexts: 18.3 to 19.8 GiB in all
(Table 13)."""
METHODS = ("standard", "chunked_prefill", "kv_quant_4bit", "layerwise_offload", "headwise")
MODELS = {
    "Llama-3-8B": LLAMA3_8B,
    "Llama-2-7B": ModelDims(
        32, 32, 128, hidden=4096, intermediate=11008, weights_bytes=2 * 6_738_415_616
    ),
    "Mistral-7B": ModelDims(
        32, 8, 128, hidden=4096, intermediate=14336, weights_bytes=2 * 7_241_732_096
    ),
    "Qwen2-7B": ModelDims(
        28, 4, 128, hidden=3584, intermediate=18944, weights_bytes=2 * 7_615_616_512
    ),
    "Gemma-2-9b": ModelDims(
        42, 8, 256, hidden=3584, intermediate=14336, weights_bytes=2 * 9_241_705_984
    ),
}
TABLE_2 = {
    "Llama-3-8B": (25, 30, 45, 45, 4096),
    "Llama-2-7B": (10, 20, 30, 60, 1024),
    "Mistral-7B": (30, 40, 40, 45, 4096),
    "Qwen2-7B": (35, 70, 50, 50, 4200),
    "Gemma-2-9b": (10, 10, 20, 35, 1300),
}
"""Longest contexts in K, by model, in the order of `METHODS`."""
TABLE_7 = {"standard": 16, "chunked_prefill": 32, "layerwise_offload": 32, "headwise": 128}
CONTEXTS = (10, 20, 40, 100, 200, 400, 1000, 2000, 4000)
TABLE_4 = {
    "vLLM": (9151, 7847, None, None, None, None, None, None, None),
    "HeadInfer": (8982, 7781, 5906, 3476, 2121, 1196, 516, 264, 155),
}
TABLE_5 = {
    "vLLM": (52, 49, None, None, None, None, None, None, None),
    "HeadInfer": (12, 7, 3.7, 1.6, 0.79, 0.40, 0.16, 0.07, 0.04),
}
"""Tokens a second at `CONTEXTS` (in thousands), prefilled and decoded: vLLM, and HeadInfer with
adaptive groups."""


@dataclass(frozen=True)
class Gpu:
    """flops, bandwidth, link: operations a second, and bytes a second of its memory and of PCIe."""

    flops: float
    bandwidth: float
    link: float


RTX_4090, A100 = Gpu(165e12, 1008 * GB, 25 * GB), Gpu(312e12, 1400 * GB, 25 * GB)
"""Operations and link as the paper has them (section 3.1, Tables 14 and 15); the 4090's memory by
its data sheet."""

Printed = tuple[float, float, float, str]
REGULAR_4090: dict[str, tuple[Printed, ...]] = {
    "flash-attn": (
        (21e6, 820, 165e12, "comp"),
        (209e6, 8200, 165e12, "comp"),
        (2.1e9, 82000, 165e12, "comp"),
    ),
    "head-wise": (
        (2.6e6, 820, 165e12, "comp"),
        (26e6, 8200, 165e12, "comp"),
        (262e6, 82000, 165e12, "comp"),
    ),
}
OFFLOAD_4090: dict[str, tuple[Printed, ...]] = {
    "flash-attn": (
        (4.2e6, 4100, 102e12, "mem"),
        (42e6, 41000, 165e12, "comp"),
        (419e6, 410000, 165e12, "comp"),
    ),
    "head-wise": (
        (0.5e6, 4100, 102e12, "mem"),
        (5.2e6, 41000, 312e12, "comp"),
        (52e6, 410000, 312e12, "comp"),
    ),
}
DECODE_BYTES = {"flash-attn": (17e6, 168e6, 1.7e9), "head-wise": (2.1e6, 21e6, 210e6)}


def _printed(gpu: Gpu, phase: str, operator: str, offload: bool, n: int) -> Printed:
    """The cells of Table 14 (RTX 4090) or 15 (A100). What is not the same in both is said here."""
    if phase == "decode":
        rate = {RTX_4090: (1e12, 13e9), A100: (1.4e12, 23e9)}[gpu][offload]
        return DECODE_BYTES[operator][n], 1, rate, "mem"
    size, intensity, rate, bound = (OFFLOAD_4090 if offload else REGULAR_4090)[operator][n]
    return size, intensity, 312e12 if gpu is A100 and bound == "comp" else rate, bound


def attention(phase: str, context: int, operator: str, offload: bool) -> tuple[float, float]:
    """Operations of a layer's attention in Llama-3-8B, and the bytes that it reads, as appendix C
    counts them.

    A prefill attends all pairs of `context` tokens. On the device it reads Q, K, V and writes O; K
    and V alone cross the link. Decoding reads K and V, which the paper counts for all 32 query
    heads there. head-wise: an eighth of both.
    """
    heads, kv_heads, width = 32, 8, 128
    if phase == "prefill":
        flops, tensors = (
            4 * context**2 * heads * width,
            2 * kv_heads + (0 if offload else 2 * heads),
        )
    else:
        flops, tensors = 4 * context * heads * width, 2 * heads
    parts = kv_heads if operator == "head-wise" else 1
    return flops / parts, 2 * context * tensors * width / parts


def roofline_rows(gpu: Gpu) -> list[Row]:
    """Tables 14 and 15: memory, arithmetic intensity, the rate that a roofline allows, and what
    bounds it."""
    rows = list[Row]()
    for phase in ("prefill", "decode"):
        for offload in (False, True):
            for operator in ("flash-attn", "head-wise"):
                for n, thousands in enumerate((1, 10, 100)):
                    flops, size = attention(phase, thousands * K, operator, offload)
                    through = (gpu.link if offload else gpu.bandwidth) * flops / size
                    rate = min(gpu.flops, through)
                    paper = _printed(gpu, phase, operator, offload, n)
                    rows.append(
                        {
                            "where": f"{phase}, {'offload' if offload else 'regular'}",
                            "operator": f"{operator} ({thousands}k)",
                            "MB": size / 1e6,
                            "paper, MB": paper[0] / 1e6,
                            "FLOP a byte": flops / size,
                            "paper, FLOP a byte": paper[1],
                            "TFLOP/s": rate / 1e12,
                            "paper, TFLOP/s": paper[2] / 1e12,
                            "bound": "comp" if rate == gpu.flops else "mem",
                            "paper, bound": paper[3],
                        }
                    )
    return rows


def context_rows() -> list[Row]:
    """Table 2: the longest context of each method."""
    rows = list[Row]()
    for model, dims in MODELS.items():
        for method, paper in zip(METHODS, TABLE_2[model], strict=True):
            ours = longest_context(method, dims, DEVICE_BYTES, HOST_BYTES) / K
            rows.append(
                {"model": model, "method": method, "longest context, K": ours, "paper": paper}
            )
    return rows


def ruler_rows() -> list[Row]:
    """Table 7: Ruler's lengths are powers of two, and end at 128K."""
    rows = list[Row]()
    for method, paper in TABLE_7.items():
        longest = longest_context(method, LLAMA3_8B, DEVICE_BYTES, HOST_BYTES) // K
        rows.append(
            {
                "method": method,
                "ours, K": min(128, 1 << longest.bit_length() - 1),
                "paper, K": paper,
            }
        )
    return rows


def prefill_rows() -> list[Row]:
    """Table 4: a token's operations, those of attention to half of the context on average, at the
    GPU's rate."""
    # the embedding multiplies nothing
    weights = LLAMA3_8B.weights_bytes // 2 - 128_256 * LLAMA3_8B.hidden
    rows = list[Row]()
    for n, thousands in enumerate(CONTEXTS):
        flops = 2 * weights + 4 * LLAMA3_8B.layers * LLAMA3_8B.hidden * 1000 * thousands / 2
        rows.append(
            {
                "context, K": thousands,
                "prefill, tokens/s": RTX_4090.flops / flops,
                "paper, HeadInfer": TABLE_4["HeadInfer"][n],
                "paper, vLLM": TABLE_4["vLLM"][n],
            }
        )
    return rows


def decode_rows() -> list[Row]:
    """Table 5: a token reads all weights and all KV, from the device's memory or over the link."""
    rows = list[Row]()
    for n, thousands in enumerate(CONTEXTS):
        kv_bytes, weights = LLAMA3_8B.beam_bytes(1000 * thousands), LLAMA3_8B.weights_bytes
        offloaded = max(kv_bytes / RTX_4090.link, weights / RTX_4090.bandwidth)
        resident = (weights + kv_bytes) / RTX_4090.bandwidth
        fits = weights + kv_bytes <= DEVICE_BYTES
        rows.append(
            {
                "context, K": thousands,
                "offloaded, tokens/s": 1 / offloaded,
                "resident, tokens/s": 1 / resident if fits else None,
                "paper, HeadInfer": TABLE_5["HeadInfer"][n],
                "paper, vLLM": TABLE_5["vLLM"][n],
            }
        )
    return rows


def video_rows() -> list[Row]:
    """Table 3: tokens of MAGI's videos, 21.6K for each chunk of 24 frames."""
    return [
        {"frames": n, "tokens": n // 24 * 21_600, "paper": paper}
        for n, paper in ((768, 691_200), (3072, 2_764_800))
    ]


ROOFLINE = Lines(
    "FLOP a byte", ("TFLOP/s",), ("paper, TFLOP/s",), by="where", log="xy", label="TFLOP/s"
)

EXHIBITS = (
    Exhibit(
        "Table 2",
        "longest context on a GPU of 24 GB",
        context_rows,
        Lines("model", ("longest context, K",), by="method", log="y", label="K tokens"),
        "By A.4 with 20 GiB, which is what Table 13 uses, and 512 GiB of KV on the host. The "
        "paper's other activations and its libraries are not counted.",
    ),
    Exhibit("Table 3", "tokens of a video", video_rows),
    Exhibit(
        "Table 4",
        "prefill of Llama3-8B on an RTX 4090",
        prefill_rows,
        Lines(
            "context, K", ("prefill, tokens/s",), ("paper, HeadInfer",), log="xy", label="tokens/s"
        ),
        "165 TFLOP/s over the operations of a token, with K as 1,000.",
    ),
    Exhibit(
        "Table 5",
        "decoding of Llama3-8B on an RTX 4090",
        decode_rows,
        Lines(
            "context, K",
            ("offloaded, tokens/s", "resident, tokens/s"),
            ("paper, HeadInfer", "paper, vLLM"),
            log="xy",
            label="tokens/s",
        ),
        "25 GB/s over the KV that crosses, and 1,008 GB/s over what is read on the device: upper "
        "bounds. Measured on this machine: `python -m experiments.bench memory`.",
    ),
    Exhibit("Table 7", "lengths of Ruler that each method serves", ruler_rows),
    Exhibit(
        "Table 14 and Figure 7",
        "roofline of attention, RTX 4090",
        partial(roofline_rows, RTX_4090),
        ROOFLINE,
        "The paper's 312 TFLOP/s of head-wise prefill with offloading are the A100's, and its "
        "decoding over the link has half of the 25 GB/s that its prefill has. It counts KV of 32 "
        "heads when decoding; Llama-3-8B has 8.",
    ),
    Exhibit(
        "Table 15 and Figure 8",
        "roofline of attention, A100",
        partial(roofline_rows, A100),
        ROOFLINE,
    ),
)
