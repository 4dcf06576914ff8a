"""A reward model of one's own: the built-in ones are formats of it, and what cannot be read is
refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from search import BeamSearch, solve
from tests.helpers.engines import bytes_engine
from tests.helpers.reward_models import (
    CHATML,
    IM,
    byte_tokenizer,
    configuration,
    grown,
    logits_at,
    policy,
    seeded,
    sentence_tokenizer,
)
from tests.verifiers.test_reward_models import MODELS
from ttc import InvalidInput, UnsupportedModel
from ttc.model.loading.reward_heads import HeadedModel
from verifiers import (
    LLMJudge,
    MathShepherd,
    OutcomeReward,
    QwenPRM,
    RLHFlowPRM,
    SkyworkPRM,
    ThinkPRM,
    TokenPRM,
    ValueHead,
)
from verifiers.token_prm import MarkedSteps

QUESTION = "Tom has 3 boxes of 4 apples. How many?"
SPECIAL = ["ки", "<extra_0>", *IM]


def language(template: str | None = CHATML, **settings: Any) -> tuple[Any, Any]:
    tokenizer = byte_tokenizer(SPECIAL, template, bos="<|im_start|>")
    return seeded(hf.Qwen2ForCausalLM, configuration("qwen2", tokenizer, **settings)), tokenizer


@pytest.mark.parametrize("name", ["qwen", "skywork", "math_shepherd", "rlhflow"])
def test_a_built_in_one_is_a_format_that_users_can_give(name: str) -> None:
    """Spelt out as settings the format gives the same layouts and the same scores."""
    built_in, _ = MODELS[name]()
    assert isinstance(built_in, MarkedSteps)
    form = built_in.published
    given = {setting.name: getattr(form, setting.name) for setting in fields(form)}
    own = TokenPRM(built_in.model, separator=built_in.separator, **given)
    engine = policy()
    texts = ("Tom has 12.\n\n3 * 4 = 12\n\n", f"He {form.mark} eats 2.\n\nThen{form.mark} 1")
    branches = grown(engine, engine.root([1, 2]), *texts)
    questions = [QUESTION] * 2
    assert own.layouts(branches, questions) == built_in.layouts(branches, questions)
    assert own.rate(branches, questions, engine) == built_in.rate(branches, questions, engine)


def test_the_default_is_openrlhfs_format_in_a_search_too() -> None:
    """Each node of a beam search over the KV tree has the scores of plain passes over its text."""
    model, tokenizer = language()
    verifier = TokenPRM((model, tokenizer), separator="\n")
    search = BeamSearch(beam_size=2, beam_width=2, step_tokens=6, max_steps=3)
    writer = bytes_engine()
    result = solve(search, problem=QUESTION, engine=writer, verifier=verifier, extract=str)
    signs = [tokenizer.encode(sign)[-1] for sign in "+-"]
    assert result.branches
    for branch in result.branches:
        steps, rest = verifier.split(branch.text, branch.finished)
        text, scores = QUESTION + "\n", []
        for step in [*steps, *([] if rest is None else [rest])]:
            text += f"{step.replace('ки', ' ')} ки"
            values = logits_at(model, tokenizer.encode(text))[-1, signs].softmax(-1)
            scores.append(float(values[0]))
            text += "\n"
        assert branch.step_scores == pytest.approx(scores, abs=1e-5)
    assert not verifier.mirror(writer).engine.memory.live and not writer.kv_bytes()


def test_a_batch_of_solutions_is_rated_as_each_alone() -> None:
    verifier = MODELS["marked"]()[0]
    solutions = [
        (QUESTION, ["3 * 4 = 12", "So 12."]),
        (QUESTION, ["3 * 4 = 12", "So 13."]),
        ("Other?", ["(1) x"]),
    ]
    together = verifier.rate_solutions(solutions)
    for scores, solution in zip(together, solutions, strict=True):
        assert scores == pytest.approx(verifier.rate_solutions([solution])[0], abs=1e-6)
    assert together[0][0] == pytest.approx(together[1][0]) and together[0][1] != together[1][1]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no steps": ({"template": "{question}"}, r"must hold \{question\} once and then \{steps\}"),
    "steps first": ({"template": "{steps}{question}"}, "once and then"),
    "two questions": ({"template": "{question}{question}{steps}"}, "once and then"),
    "no contents": ({"template": [{"role": "user"}]}, "a text or a list of messages"),
    "a number": ({"template": 5}, "template=5 is of type int"),
    "a late number": ({"step": "{step} ({number}){mark}"}, r"\{number\} before them alone"),
    "its own stand-in": ({"mark": " "}, r"mark=' ' is what would stand for it .*instead=' '"),
    "no mark": ({"step": "{step}"}, r"step='\{step\}' must hold"),
    "an empty mark": ({"mark": ""}, "mark is empty"),
    "nothing good": ({"good": []}, "good names no token"),
    "good and bad": ({"good": ["+"], "bad": ["+"]}, "must name different tokens"),
    "mixed": ({"good": ["+"], "bad": [0]}, "all be texts of tokens, or all numbers"),
    "a gap": ({"good": [2], "bad": [0]}, "each output of the head, from 0 on"),
    "two and none": ({"good": [0, 1], "bad": []}, "without bad ones there is one"),
    "below zero": ({"good": [-1], "bad": [0]}, "good: -1"),
    "no place": ({"read": "there"}, "read='there'"),
    "nothing after": ({"read": "after", "step": "{step}{mark}"}, "nothing follows"),
    "turns of a text": ({"turns": True}, "turns=true needs a chat"),
}


@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=list(WRONG))
def test_a_format_that_cannot_be_read_is_refused_before_a_model_is_loaded(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        TokenPRM("nowhere", **settings)


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "a mark of several": ({"mark": "the end"}, r"mark: the tokenizer has no token 'the end' \(it"),
    "a good one": ({"good": ["right!"]}, "good: the tokenizer has no token 'right!'"),
    "a bad one": ({"bad": ["-", "wrong!"]}, "bad: the tokenizer has no token 'wrong!'"),
    "a mark that is joined": (
        {"mark": "p", "step": "{step}ap{mark}les"},
        "joins the mark 'p' with what stands before it",
    ),
}


@pytest.mark.parametrize(("settings", "message"), UNKNOWN.values(), ids=list(UNKNOWN))
def test_what_the_vocabulary_has_not_is_refused_by_the_settings_name(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        TokenPRM(language(), **settings).mirror(policy())


def test_a_chat_that_the_tokenizer_has_no_template_for_is_refused() -> None:
    chat = [{"role": "user", "content": "{question} {steps}"}]
    with pytest.raises(UnsupportedModel, match="TokenPRM needs a chat template"):
        TokenPRM(language(None), template=chat).mirror(policy())


def by_output(folder: str) -> TokenPRM:
    return TokenPRM(folder, good=1, bad=0)


def saved(folder: Path, build: Any, **settings: Any) -> str:
    model, tokenizer = language(**settings)
    seeded(build, model.config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


HEADED: list[Callable[[str], Any]] = [QwenPRM, SkyworkPRM, OutcomeReward, ValueHead, by_output]
PLAIN: list[Callable[[str], Any]] = [
    MathShepherd,
    RLHFlowPRM,
    ThinkPRM,
    TokenPRM,
    lambda folder: LLMJudge(model=folder),
]


@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_with_a_language_model_is_no_reward_model(tmp_path: Path, tied: bool) -> None:
    folder = saved(tmp_path, hf.Qwen2ForCausalLM, tie_word_embeddings=tied)
    for verifier in HEADED:
        with pytest.raises(UnsupportedModel, match="hold no reward head"):
            verifier(folder).mirror(policy())


@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_with_a_head_is_no_language_model(tmp_path: Path, tied: bool) -> None:
    """Also where tied embeddings would stand for the head that it lacks."""
    folder = saved(tmp_path, hf.Qwen2ForTokenClassification, tie_word_embeddings=tied, num_labels=2)
    for verifier in PLAIN:
        with pytest.raises(UnsupportedModel, match="hold a reward head"):
            verifier(folder).mirror(policy())
    assert by_output(folder).mirror(policy())


@pytest.mark.parametrize("verifier", [MathShepherd, RLHFlowPRM, ThinkPRM, TokenPRM, LLMJudge])
def test_a_loaded_model_with_a_head_is_no_language_model(verifier: Any) -> None:
    model, tokenizer = language(num_labels=2)
    classifier = seeded(hf.Qwen2ForTokenClassification, model.config)
    for headed in (classifier, HeadedModel.of(classifier)):
        with pytest.raises(UnsupportedModel, match="has a reward head and is read as a language"):
            verifier(model=(headed, tokenizer)).mirror(policy())


def test_a_tokenizer_of_a_larger_vocabulary_is_refused() -> None:
    model, tokenizer = language()
    tokenizer.add_tokens(["<good>", *(f"<{n}>" for n in range(9)), "<bad>"])
    verifier = TokenPRM((model, tokenizer), good="<good>", bad="<bad>")
    with pytest.raises(UnsupportedModel, match="that belong together"):
        verifier.rate_solutions([(QUESTION, ["12"])])


def test_nothing_written_is_rated_where_blanks_are_one_token() -> None:
    """In "Step 1:  ки" a vocabulary like Mistral's has a token for both blanks, and none for the
    mark with its own."""
    tokenizer = sentence_tokenizer(["▁▁", "▁ки", "▁+", "▁-"])
    settings = configuration("mistral", tokenizer, sliding_window=None)
    model = seeded(hf.MistralForCausalLM, settings)
    mark, *signs = (tokenizer.encode(text)[-1] for text in ("ки", "+", "-"))
    before = tokenizer.encode(f"{QUESTION} Step 1: ")
    assert mark not in tokenizer.encode(f"{QUESTION} Step 1:  ки")
    expected = logits_at(model, [*before, mark])[-1, signs].softmax(-1)[0]
    engine = policy()
    empty, marked = grown(engine, engine.root([1, 2]), "", "12 ки ки", finished=True)
    verifier = MathShepherd((model, tokenizer))
    rows = verifier.rate([empty, marked], [QUESTION] * 2, engine)
    assert rows[0] == [pytest.approx(float(expected), abs=1e-5)]
    assert rows[1] == pytest.approx(verifier.rate_solutions([(QUESTION, ["12"])])[0], abs=1e-6)


@pytest.mark.parametrize("name", [*MODELS, "outcome", "think"])
def test_a_nul_in_a_text_does_not_end_it(name: str) -> None:
    """It is read as a character that is unknown, in what a model writes and in a question."""
    if name in MODELS:
        verifier = MODELS[name]()[0]
    elif name == "think":
        verifier = ThinkPRM(language())
    else:
        model, tokenizer = language(num_labels=1)
        scored = seeded(hf.Qwen2ForSequenceClassification, model.config)
        verifier = OutcomeReward((scored, tokenizer))
    engine = policy()
    texts = ("3 * 4\0 = 12\n\nSo\0.", "3 * 4\ufffd = 12\n\nSo\ufffd.")
    nul, unknown = grown(engine, engine.root([1, 2]), *texts, finished=True)
    assert verifier.layout(nul, "A\0?") == verifier.layout(unknown, "A\ufffd?")
    assert len(verifier.layout(nul, "A\0?").whole) > len(verifier.layout(nul, "A").whole)


@pytest.mark.parametrize("kind", [LLMJudge, OutcomeReward, ThinkPRM])
def test_who_rates_a_text_as_a_whole_has_no_scores_of_its_steps(kind: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{kind.__name__} gives one score for a text"):
        kind(model="nowhere").rate_solutions([(QUESTION, ["3 * 4 = 12", "So 12"])])


def test_a_head_of_other_outputs_is_refused() -> None:
    _, tokenizer = language()
    one = hf.Qwen2ForTokenClassification(configuration("qwen2", tokenizer, num_labels=1))
    with torch.no_grad(), pytest.raises(UnsupportedModel, match="gives 1 numbers, and QwenPRM"):
        QwenPRM((one.eval(), tokenizer)).rate_solutions([(QUESTION, ["12"])])
