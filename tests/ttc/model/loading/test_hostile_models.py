"""Folders of models that are damaged or made to harm: each is named in one line, and none takes
long."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search import Greedy, solve
from tests.helpers.runs import save_model
from tests.helpers.tiers import some_quick
from ttc import Engine, TTCError
from ttc.model.loading import load as loading
from ttc.text import chat

Damage = Callable[[Path], Any]


def sets(file: str, **settings: Any) -> Damage:
    """The file with other settings."""

    def damage(folder: Path) -> None:
        known = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(known | settings))

    return damage


def holds(file: str, data: str | bytes) -> Damage:
    return lambda folder: (folder / file).write_bytes(
        data if isinstance(data, bytes) else data.encode()
    )


def config(**settings: Any) -> Damage:
    return sets("config.json", **settings)


def tokenizer(**settings: Any) -> Damage:
    return sets("tokenizer_config.json", **settings)


def template(text: str) -> Damage:
    return holds("chat_template.jinja", text)


def gguf(*parts: bytes) -> Damage:
    """A folder of a .gguf file alone that begins with these parts."""

    def damage(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "model.gguf").write_bytes(b"".join(parts))

    return damage


def weights(head: bytes, size: int | None = None) -> Damage:
    return holds("model.safetensors", struct.pack("<Q", len(head) if size is None else size) + head)


ARCHITECTURE = struct.pack("<Q", 20) + b"general.architecture"

CASES: dict[str, Damage] = {
    **{f"hidden_size={v}": config(hidden_size=v) for v in ("16", 0, -1, 17, 16.5, None, [16])},
    **{f"hidden_size={v}": config(hidden_size=v) for v in (2**20, 2**40, 2**70)},
    **{f"vocab_size={v}": config(vocab_size=v) for v in ("x", 3, 10**9, 10**12)},
    **{f"num_hidden_layers={v}": config(num_hidden_layers=v) for v in ("1", 0, -1, 10**6, 10**9)},
    **{f"heads={v}": config(num_attention_heads=v) for v in ("2", 0, 3)},
    **{f"kv_heads={v}": config(num_key_value_heads=v) for v in ("x", 0, 3)},
    **{f"head_dim={v}": config(head_dim=v) for v in ("8", 0, 7)},
    "rope": config(rope_parameters={"rope_type": "default", "rope_theta": "x"}),
    "rope type": config(rope_parameters={"rope_type": "nope"}),
    "rope list": config(rope_parameters=[1]),
    "activation": config(hidden_act="nope"),
    "context": config(max_position_embeddings="x"),
    "context of 0": config(max_position_embeddings=0),
    "padding": config(pad_token_id=10**9),
    "dtype": config(dtype="nope"),
    "quantization": config(quantization_config="x"),
    "end": config(eos_token_id=[["a"]]),
    **{f"config {v[:4]}": holds("config.json", v) for v in ("", "[]", "null", "[" * 100_000)},
    "5,000 digits": holds("config.json", f'{{"model_type": "llama", "hidden_size": {"1" * 5000}}}'),
    "generation list": holds("generation_config.json", "[]"),
    "generation type": holds("generation_config.json", '{"repetition_penalty": "x"}'),
    **{f"tokenizer {v!r}": holds("tokenizer.json", v) for v in ("", "[]", b"\x95\x00\xff")},
    **{f"tokenizer settings {v!r}": holds("tokenizer_config.json", v) for v in ("{", "[]")},
    "tokenizer class": tokenizer(tokenizer_class=3),
    "token": tokenizer(eos_token=3),
    "longest": tokenizer(model_max_length="x"),
    "added": tokenizer(added_tokens_decoder={"x": 3}),
    "template 3": tokenizer(chat_template=3),
    "templates": tokenizer(chat_template=[3]),
    "no weights": holds("model.safetensors", b""),
    "a long head": weights(b"{}", 2**62),
    "a deep head": weights(b"[" * 1000),
    "a large tensor": weights(
        b'{"a":{"dtype":"F32","shape":[1000000000000000000],"data_offsets":[0,4]}}'
    ),
    "other tensors": weights(b"{}"),
    "gguf": gguf(b""),
    "gguf junk": gguf(os.urandom(200)),
    "gguf 9": gguf(b"GGUF", struct.pack("<IQQ", 9, 0, 0)),
    "gguf keys": gguf(b"GGUF", struct.pack("<IQQ", 3, 0, 2**60)),
    "gguf tensors": gguf(b"GGUF", struct.pack("<IQQ", 3, 2**60, 0)),
    "gguf text": gguf(b"GGUF", struct.pack("<IQQQ", 3, 0, 1, 2**50), b"x"),
    "gguf model": gguf(
        b"GGUF", struct.pack("<IQQ", 3, 0, 1), ARCHITECTURE, struct.pack("<IQ", 8, 4), b"nope"
    ),
    "gguf type": gguf(b"GGUF", struct.pack("<IQQ", 3, 0, 1), ARCHITECTURE, struct.pack("<I", 99)),
    "gguf array": gguf(
        b"GGUF", struct.pack("<IQQ", 3, 0, 1), ARCHITECTURE, struct.pack("<IIQ", 9, 9, 2**40)
    ),
    "raises": template("{{ raise_exception('no') }}"),
    "zero": template("{{ 1 // 0 }}"),
    "type": template("{{ 'a' + 1 }}"),
    "syntax": template("{% if %}"),
    "itself": template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    "memory": template("{{ 'a' * 10000000000000 }}"),
    "range": template("{% for i in range(10000000) %}x{% endfor %}"),
    "deep": template("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}"),
    "file": template("{% include 'x' %}"),
    "surrogate": template("{{ '\\ud800' }}"),
    "escape": template("{{ ''.__class__.__mro__ }}"),
    "power": template("{{ 9 ** (9 ** 9) }}"),
    "endless": template(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("case", some_quick(CASES, list(CASES)[::3]))
def test_a_hostile_model_is_named_in_a_line(
    model: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "BUILD_S", 1.0)
    monkeypatch.setattr(chat, "TEMPLATE_S", 1.0)
    folder = tmp_path / "hostile"
    shutil.copytree(model, folder)
    CASES[case](folder)
    with pytest.raises(TTCError) as error:
        engine = Engine.from_pretrained(folder, dtype="float32", device="cpu")
        solve(Greedy(max_tokens=2), engine=engine, problem="1 and 2 ?")
    assert "\n" not in str(error.value) and len(str(error.value)) < 700
