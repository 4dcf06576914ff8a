"""`python -m experiments.heads MODEL TEXT OUT`: find a model's streaming heads on a text, for
head-wise sparsity."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.cli.command import perform
from experiments.cli.output import show
from ttc.errors import refusing


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.heads", description=__doc__)
    parser.add_argument("model", help="alias, hub id, folder or .gguf file")
    parser.add_argument("text", type=Path, help="a text like those that the model will read")
    parser.add_argument("out", type=Path, help="the file for memory.streaming_heads")
    parser.add_argument(
        "--fraction", type=float, default=0.5, help="of all KV heads, how many stream"
    )
    parser.add_argument("--sink", type=int, default=64)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=2048, help="how much of the text to read")
    arguments = parser.parse_args()
    perform(lambda: find(arguments), f"heads {' '.join(sys.argv[1:])}")


def find(arguments: argparse.Namespace) -> None:
    from ttc import Engine
    from ttc.calibration.head_attention import near_attention
    from ttc.residency.streaming_heads import save_streaming_heads, streaming_heads

    with refusing(
        (OSError, UnicodeDecodeError), f"{arguments.text} cannot be read as a text: {{error}}"
    ):
        text = arguments.text.read_text(encoding="utf-8")
    # nothing is written
    engine = Engine.from_pretrained(arguments.model, generation_settings=False)
    tokens = engine.encode(text)[: arguments.tokens]
    shares = near_attention(engine, tokens, arguments.sink, arguments.window)
    heads = streaming_heads(shares, arguments.fraction)
    save_streaming_heads(
        arguments.out,
        arguments.model,
        heads,
        sink=arguments.sink,
        window=arguments.window,
        near_attention=shares,
    )
    least = min((shares[layer][head] for layer, head in heads), default=1.0)
    show(
        f"{len(heads)} streaming heads, each with at least {least:.1%} of its attention on sink "
        "and window"
    )
