"""Outcome models, a judge, a verifier that writes first, and heads trained here: each against plain
transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file
from torch import nn

from tests.helpers.reward_models import (
    CHATML,
    HEADERS,
    IM,
    LLAMA3,
    byte_tokenizer,
    close_to,
    configuration,
    grown,
    plain,
    policy,
    rater,
    seeded,
)  # fmt: skip
from tests.helpers.tiers import some_quick
from ttc import Engine, InvalidInput, ThinkingMarks, UnsupportedModel
from ttc.model.loading.reward_heads import HeadedModel
from ttc.text.thoughts import Thoughts
from verifiers import LLMJudge, OutcomeReward, QwenPRM, SkyworkPRM, ThinkPRM, ValueHead
from verifiers.side_branches import spellings

QUESTION = "Tom has 3 boxes of 4 apples. How many?"
TEXTS = ["3 * 4", "3 * 4 = 12\n\nSo 12", "4 + 3 = 7"]


MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + '[/INST]' }}{% else %}{{ ' ' + m['content'] + '</s>' }}"
    "{% endif %}{% endfor %}"
)
FORMATS = {
    "llama3": (HEADERS, LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    "mistral": (["<s>", "</s>"], MISTRAL, "<s>", "</s>"),
    "chatml": (["<s>", *IM], "<s>" + CHATML, "<s>", "<|im_end|>"),
    "turns of nothing": (["<s>", "<pad>"], "<s><pad><pad>", "<s>", "<pad>"),
    "nothing": (["<s>"], "<s>", "<s>", "<s>"),
}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize(
    ("family", "form"),
    some_quick(
        [(family, form) for family in ("llama", "qwen2", "gemma2", "mistral") for form in FORMATS],
        [("llama", "llama3"), ("qwen2", "chatml"), ("gemma2", "llama3"), ("mistral", "mistral")],
    ),
)
@torch.no_grad()
def test_an_outcome_model_gives_what_its_classifier_gives_for_the_whole_chat(
    family: str, form: str, padded: bool
) -> None:
    """Also where the token that ends a turn is the one that batches are padded with."""
    special, template, bos, end = FORMATS[form]
    tokenizer = byte_tokenizer(special, template, bos=bos)
    pad = tokenizer.convert_tokens_to_ids(end) if padded else None
    classes = {
        "llama": hf.LlamaForSequenceClassification,
        "qwen2": hf.Qwen2ForSequenceClassification,
        "gemma2": hf.Gemma2ForSequenceClassification,
        "mistral": hf.MistralForSequenceClassification,
    }
    settings = configuration(family, tokenizer, num_labels=1, pad_token_id=pad)
    model = seeded(classes[family], settings)
    reference = plain(model)
    engine, verifier = policy(), OutcomeReward((model, tokenizer))
    branch = engine.root([1, 2])
    for text in TEXTS:
        (branch,) = grown(engine, branch, text)
        messages = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": branch.text},
        ]
        tokens = tokenizer.encode(
            tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False
        )
        assert tokens.count(tokenizer.bos_token_id) == 1
        expected = float(reference(torch.tensor([tokens])).logits[0, 0])
        assert verifier.rate([branch], [QUESTION], engine) == [close_to([expected])]
    verifier.released([branch])


@torch.no_grad()
def test_a_thinking_models_answer_is_rated_without_its_thought() -> None:
    scored = rater(hf.Qwen2ForSequenceClassification, num_labels=1)
    judge, engine = rater(hf.Qwen2ForCausalLM), policy()
    said = {"<think>1?</think>\n\n2": "2", "<think>1?": "<think>1?", "2": "2"}
    for verifier in (OutcomeReward(scored), LLMJudge(judge)):
        assert not verifier.thoughts
        for text, answer in said.items():
            thinks, same, unmarked = grown(engine, engine.root([1, 2]), text, answer, text)
            thinks.thoughts = Thoughts.of(engine.tokenizer, ThinkingMarks("<think>", "</think>"))
            for verifier.thoughts, like in ((False, same), (True, unmarked)):
                (expected,) = verifier.rate([like], [QUESTION], engine)
                assert verifier.rate([thinks], [QUESTION], engine) == [close_to(expected)]
            verifier.thoughts = False


def test_an_outcome_model_of_two_labels_is_refused() -> None:
    verifier = OutcomeReward(rater(hf.Qwen2ForSequenceClassification, num_labels=2))
    with pytest.raises(UnsupportedModel, match="num_labels=1"):
        rating(verifier)


@pytest.mark.parametrize("own", [True, False])
@torch.no_grad()
def test_a_judge_gives_the_grade_that_its_model_expects(own: bool) -> None:
    model, tokenizer = rater(hf.Qwen2ForCausalLM)
    reference = plain(model)
    engine = Engine(model, tokenizer) if own else policy()
    verifier = LLMJudge(None if own else (model, tokenizer), rubric="Be strict.", grades=3)
    branches = grown(engine, engine.root([1, 2]), "a", "b")
    for branch, text in zip(branches, TEXTS, strict=False):
        words = tokenizer.encode(text) if own else [ord(c) for c in text]
        for token in words:
            branch.append(token, -1.0, 0.5)
    rated = verifier.rate(branches, [QUESTION] * 2, engine)
    for branch, (score,) in zip(branches, rated, strict=True):
        asked = f"Be strict.\n\nProblem:\n{QUESTION}\n\nSolution:\n{branch.text.strip()}\n\n"
        asked += "Reply with one number from 1 (worst) to 3 (best)."
        messages = [{"role": "user", "content": asked}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        logits = reference(torch.tensor([tokenizer.encode(text)])).logits[0, -1].double()
        words = {token: tokenizer.decode([token]).strip() for token in range(len(tokenizer))}
        spelled = [
            (token, int(word) - 1) for token, word in words.items() if word in ("1", "2", "3")
        ]
        weights = logits[[token for token, _ in spelled]].softmax(-1)
        assert score == close_to(
            float(weights @ torch.tensor([grade / 2 for _, grade in spelled]).double())
        )
    engine.release(branches)
    verifier.released(branches)
    assert not verifier.mirror(engine).mirrors


@torch.no_grad()
def test_thinkprm_writes_a_verification_and_reads_the_verdict_after_it() -> None:
    tokenizer = byte_tokenizer(IM, CHATML)
    words = ["yes", " yes", "Yes", " Yes", "YES", " YES", "no", " no", "No", " No", "NO", " NO"]
    tokenizer.add_tokens(words)
    model = seeded(hf.Qwen2ForCausalLM, configuration("qwen2", tokenizer, initializer_range=0.1))
    reference = plain(model)
    engine, verifier = policy(), ThinkPRM((model, tokenizer), max_tokens=6)
    root = engine.root([1, 2])
    branches = grown(engine, root, "3 * 4 = 12\n\nSo", "Seven.\n\n")
    rated = verifier.rate(branches, [QUESTION] * 2, engine)
    signs = spellings(verifier.mirror(engine).engine, "yes", "no")
    for (score,), solution in zip(
        rated, ["Step 1: 3 * 4 = 12\nStep 2: So", "Step 1: Seven."], strict=True
    ):
        asked = (
            "You are given a math problem and a proposed step-by-step solution:\n\n[Math "
            "Problem]\n\n" + QUESTION
            + "\n\n[Solution]\n\n" + solution + "\n\nReview and critique each step in the "
            "proposed solution to determine whether each step is correct. If the solution is "
            "incomplete, only verify the provided steps."
        )  # fmt: skip
        messages = [{"role": "user", "content": asked}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens = tokenizer.encode(text + "\nLet's verify step by step:")
        for _ in range(6):  # greedily
            tokens.append(int(reference(torch.tensor([tokens])).logits[0, -1].argmax()))
        tokens += tokenizer.encode("\n</think>\nIs the solution correct?")
        p = reference(torch.tensor([tokens])).logits[0, -1].softmax(-1)
        yes, no = (float(p[numbers].sum()) for numbers in signs)
        assert score == close_to(yes / (yes + no))
    usage = root.usage
    assert usage.generated_tokens == 0 and usage.verifier_tokens > 12
    before = usage.verifier_tokens
    assert (
        verifier.rate(branches, [QUESTION] * 2, engine) == rated and usage.verifier_tokens == before
    )
    (child,) = grown(engine, branches[0], " 12.")
    price = verifier.price([child], [QUESTION], engine)
    verifier.rate([child], [QUESTION], engine)
    assert 0 < usage.verifier_tokens - before <= price
    verifier.released([*branches, child])
    assert not verifier.mirror(engine).engine.memory.live


def test_what_a_verifier_writes_is_as_its_models_generation_config_asks() -> None:
    """ThinkPRM writes; a judge does not, so that a setting that no engine has is no matter to
    it."""
    tokenizer = byte_tokenizer(IM, CHATML)
    tokenizer.add_tokens([form for word in ("yes", "no") for form in (word, f" {word}")])
    model = seeded(hf.Qwen2ForCausalLM, configuration("qwen2", tokenizer, initializer_range=0.1))
    model.generation_config.suppress_tokens = list(range(0, len(tokenizer), 2))
    written = list[int]()
    engine, verifier = policy(), ThinkPRM((model, tokenizer), max_tokens=6)
    branches = grown(engine, engine.root([1, 2]), "3 * 4 = 12")
    own = verifier.mirror(engine).engine
    begin_extend = own.extend

    def seen(thoughts: Any, *given: Any, **options: Any) -> Any:
        """The verdict is asked for once all is written."""
        for thought in thoughts:
            written.extend(thought.generated)
        return begin_extend(thoughts, *given, **options)

    own.extend = seen  # type: ignore[method-assign]
    verifier.rate(branches, [QUESTION], engine)
    assert len(written) == 6 and all(token % 2 for token in written)
    model.generation_config.num_beams = 4
    with pytest.raises(UnsupportedModel, match="num_beams=4"):
        ThinkPRM((model, tokenizer)).rate(branches, [QUESTION], policy())
    digits = byte_tokenizer(IM, CHATML)
    LLMJudge((model, digits), grades=3).mirror(policy())


# ---------------------------------------------------------------- checkpoints as published


def published(
    folder: Path, body: Any, tokenizer: Any, head: dict[str, torch.Tensor], binary: bool = False
) -> str:
    """A folder as on the hub: the decoder's tensors under "model.", the head's under their own
    names."""
    folder.mkdir()
    tensors = {f"model.{name}": tensor for name, tensor in body.state_dict().items()} | head
    settings = body.config.to_dict() | {
        "architectures": ["Qwen2ForProcessRewardModel"],
        "auto_map": {"AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel"},
    }
    (folder / "config.json").write_text(json.dumps(settings))
    if binary:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    tokenizer.save_pretrained(folder)
    return str(folder)


def random_head(*sizes: tuple[str, int, int]) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    found = {}
    for name, rows, columns in sizes:
        found |= {
            f"{name}.weight": 0.2 * torch.randn(rows, columns),
            f"{name}.bias": torch.randn(rows),
        }
    return found


def rating(verifier: Any) -> list[float]:
    engine = policy()
    branches = grown(engine, engine.root([1, 2]), "3 * 4 = 12\n\nSo 12\n\n")
    scores: list[float] = verifier.rate(branches, [QUESTION], engine)[0]
    return scores


def test_the_published_folders_load_with_their_own_heads(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(["<extra_0>", *IM], CHATML, bos="<|im_start|>")
    body = seeded(hf.Qwen2Model, configuration("qwen2", tokenizer))
    head = random_head(("score.0", 32, 32), ("score.2", 2, 32))
    layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    layers.load_state_dict({name.removeprefix("score."): tensor for name, tensor in head.items()})
    folder = published(tmp_path / "qwen", body, tokenizer, head)
    own = hf.AutoTokenizer.from_pretrained(folder)  # Qwen's class, with its own rules
    expected = rating(QwenPRM((HeadedModel(body, layers), own)))
    assert rating(QwenPRM(folder, dtype="float32")) == close_to(expected)

    head = random_head(("v_head.summary", 1, 32))
    layer = nn.Linear(32, 1)
    layer.load_state_dict(
        {name.removeprefix("v_head.summary."): tensor for name, tensor in head.items()}
    )
    folder = published(tmp_path / "skywork", body, tokenizer, head, binary=True)
    expected = rating(SkyworkPRM((HeadedModel(body, layer), own)))
    assert rating(SkyworkPRM(folder, dtype="float32")) == close_to(expected)

    folder = published(tmp_path / "none", body, tokenizer, {})
    with pytest.raises(UnsupportedModel, match="hold no reward head"):
        rating(QwenPRM(folder))
    folder = published(
        tmp_path / "unknown",
        body,
        tokenizer,
        random_head(("score.0", 2, 2), ("score.1", 2, 2), ("score.2", 2, 2)),
    )
    with pytest.raises(UnsupportedModel, match="is not known"):
        rating(QwenPRM(folder))


def test_a_checkpoint_whose_decoder_is_not_whole_is_refused(tmp_path: Path) -> None:
    body, tokenizer = rater(hf.Qwen2Model, special=["<extra_0>", *IM])
    folder = published(tmp_path / "qwen", body, tokenizer, random_head(("score", 2, 32)))
    half = {f"model.{k}": v for k, v in body.state_dict().items() if "layers.1" not in k}
    save_file(half | random_head(("score", 2, 32)), Path(folder) / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"lack .* weights of a Qwen2Model"):
        rating(QwenPRM(folder))


def test_a_sequence_classifier_and_a_token_classifier_load_from_their_folders(
    tmp_path: Path,
) -> None:
    for name, kind, labels, verifier in (
        ("outcome", hf.LlamaForSequenceClassification, 1, OutcomeReward),
        ("trl", hf.LlamaForTokenClassification, 2, ValueHead),
    ):
        model, tokenizer = rater(kind, "llama", num_labels=labels)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        expected = rating(verifier((model, tokenizer)))
        assert rating(verifier(str(tmp_path / name), dtype="float32")) == close_to(expected)


# ---------------------------------------------------------------- a head trained here


def test_a_head_trained_on_the_features_is_saved_and_loads_alone_or_whole(tmp_path: Path) -> None:
    model, tokenizer = rater(hf.LlamaForCausalLM, "llama")
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    verifier = ValueHead.on(model, tokenizer, separator="\n\n", prompt="Q: {question}\n")
    assert rating(verifier) == [0.5, 0.5]
    examples = [
        (QUESTION, ["3 * 4 = 12", "So 12"]),
        (QUESTION, ["3 * 4 = 12", "So 7"]),
        (QUESTION, ["12"]),
    ]
    features = verifier.features(examples)
    assert [tuple(states.shape) for states in features] == [(2, 32), (2, 32), (1, 32)]
    for (question, steps), states in zip(examples, features, strict=True):
        tokens = tokenizer.encode(f"Q: {question}\n")
        for step, state in zip(steps, states, strict=True):
            tokens += tokenizer.encode(step) + tokenizer.encode("\n\n")
            with torch.no_grad():
                expected = plain(model.model)(torch.tensor([tokens])).last_hidden_state[0, -1]
            torch.testing.assert_close(state, expected, atol=1e-4, rtol=1e-4)
    rows, labels = torch.cat(features), torch.tensor([1, 1, 1, 0, 0])
    optimizer = torch.optim.Adam(verifier.head.requires_grad_(True).parameters(), lr=0.1)
    for _ in range(50):
        loss = nn.functional.cross_entropy(verifier.head(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right, wrong = rating(verifier)[0], verifier.head(rows[3:4]).softmax(-1)[0, 1].item()
    assert right > 0.8 and wrong < 0.2

    verifier.save(tmp_path / "head", base=str(tmp_path / "base"))
    assert sum(file.stat().st_size for file in (tmp_path / "head").iterdir()) < 4096
    alone = ValueHead(str(tmp_path / "head"), dtype="float32")
    assert rating(alone) == close_to(rating(verifier)) and alone.separator == "\n\n"
    verifier.save(tmp_path / "whole")
    assert rating(ValueHead(str(tmp_path / "whole"), dtype="float32")) == close_to(rating(verifier))
    classifier = hf.AutoModelForTokenClassification.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(classifier.score.weight, verifier.head.weight)


def test_bad_settings_of_a_value_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"must hold \{question\}"):
        ValueHead("x", prompt="Q:")
    (tmp_path / "value_head.json").write_text("[]")
    with pytest.raises(InvalidInput, match=r"no file of ValueHead\.save"):
        rating(ValueHead(str(tmp_path)))
