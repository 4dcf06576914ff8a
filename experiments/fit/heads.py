"""`python -m experiments.heads MODEL TEXT OUT`: find a model's streaming heads on a text, for
head-wise sparsity."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.cli.command import perform
from experiments.cli.output import show
from ttc.checks import check_whole
from ttc.errors import refuse, refusing


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
    """Raises InvalidInput for what cannot be, before the model is read."""
    from ttc import Engine
    from ttc.calibration.head_attention import near_attention
    from ttc.residency.streaming_heads import save_streaming_heads, streaming_heads

    fraction, out = arguments.fraction, arguments.out
    for name, lowest in (("sink", 0), ("window", 0), ("tokens", 1)):
        check_whole(f"--{name}", getattr(arguments, name), lowest)
    refuse(
        {
            f"--fraction={fraction} must be from 0 to 1": not 0 <= fraction <= 1,
            f"{out} is a folder; name a file": out.is_dir(),
        }
    )
    unreadable = f"{arguments.text} cannot be read as a text: {{error}}"
    with refusing((OSError, UnicodeDecodeError), unreadable):
        text = arguments.text.read_text(encoding="utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    # nothing is written
    engine = Engine.from_pretrained(arguments.model, generation_settings=False)
    tokens = engine.encode(text)[: arguments.tokens]
    shares = near_attention(engine, tokens, arguments.sink, arguments.window)
    heads = streaming_heads(shares, fraction)
    reach = {"sink": arguments.sink, "window": arguments.window}
    save_streaming_heads(out, arguments.model, heads, **reach, near_attention=shares)
    least = min((shares[layer][head] for layer, head in heads), default=1.0)
    show(
        f"{len(heads)} streaming heads, each with at least {least:.1%} of its attention on sink "
        "and window"
    )
