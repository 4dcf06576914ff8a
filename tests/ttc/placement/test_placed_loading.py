"""Loading to where a placement wants the weights: no second copy of them on the way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

from tests.helpers.processes import finished

LAYERS = 6
CHILD = """
import gc, sys, threading, time
import torch
from ttc import Split, Streamed
from ttc.placement.placed_loading import load_placed
import ttc.model.loading.load
ttc.model.loading.load.read_tokenizer = lambda *_: None

def own_bytes():
    lines = open("/proc/self/status").read().splitlines()
    # no file's
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def load(folder, placement):
    return load_placed(folder, placement, device="cpu", dtype="float32")[2]

def watch(found, over):
    while not over.wait(0.002):
        found.append(own_bytes())

for placement in (Streamed(), Split(k=3)):
    load(sys.argv[1], placement)  # imports what loading needs
    gc.collect()
    before, found, over = own_bytes(), [], threading.Event()
    watching = threading.Thread(target=watch, args=(found, over))
    watching.start()
    runner = load(sys.argv[2], placement)
    over.set()
    watching.join(60)
    gc.collect()
    print(max(found) - before, own_bytes() - before, runner.device_bytes + runner.host_bytes)
    del runner
"""


def save(folder: Path, width: int) -> int:
    """Write a Llama of so many units; the bytes of a layer."""
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    with no_init_weights():
        model = LlamaForCausalLM(config)
    for weight in model.parameters():
        weight.data.fill_(0.01)
    model.save_pretrained(folder)
    return sum(4 * weight.numel() for weight in model.model.layers[0].parameters())


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc"
)
def test_loading_takes_no_second_copy_of_the_model(tmp_path: Path) -> None:
    save(tmp_path / "small", 16)
    layer_bytes = save(tmp_path / "large", 768)
    command = [sys.executable, "-c", CHILD, str(tmp_path / "small"), str(tmp_path / "large")]
    ran = finished(command)
    assert ran.returncode == 0, ran.stderr
    for line in ran.stdout.splitlines():
        most, in_the_end, planned = map(int, line.split())
        assert LAYERS * layer_bytes <= planned < (LAYERS + 3) * layer_bytes
        # less where weights stay in the file, which is mapped
        assert in_the_end < planned + layer_bytes
        assert most < in_the_end + 2 * layer_bytes  # of six that a copy would be
