"""What is thought and what is answer: a table of texts as models write them, with where each form
comes from."""

from __future__ import annotations

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from tests.helpers import chats
from tests.helpers.chats import CHATS
from tests.helpers.thinking import OPENING, SWITCHED, TURNS, thinker
from ttc import InvalidInput
from ttc.text.answers import extract_answer
from ttc.text.chat import chat_text, common_start
from ttc.text.prompt import PromptTemplate
from ttc.text.thinking_marks import Header, ThinkingMarks, ends_in_thought, mark_text
from ttc.text.thinking_models import ANY, FAMILIES, marks_of
from ttc.text.thoughts import Thoughts

HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>")
HARMONY = (*HARMONY, "<|return|>", "<|constrain|>", "<|call|>")
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
GRANITE = (
    "... after 'Here is my thought process:' and write your response after 'Here is my response:' "
    "..."
)
R1 = "DeepSeek-R1's chat template: what follows the last </think> is content"

TOKENIZERS: dict[str, Any] = {
    "r1": lambda: thinker(OPENING, plain=("<think>", "</think>")),
    "qwen3": lambda: thinker(SWITCHED, plain=("<think>", "</think>")),
    "smollm3": lambda: thinker(TURNS, plain=("<think>", "</think>")),
    "olmo3": lambda: thinker(OPENING),  # the marks are no tokens
    "hunyuan": lambda: thinker(TURNS + "{# <think> </think> <answer> #}"),
    "gpt-oss": lambda: thinker(TURNS + "{# <|channel|>analysis<|message|> #}", HARMONY),
    "magistral": lambda: thinker(None, ("[THINK]", "[/THINK]")),
    "granite": lambda: thinker(TURNS + "{# " + GRANITE + " #}"),
    "exaone": lambda: thinker(TURNS + "<thought>\n{# </thought> #}"),
    "seed": lambda: thinker(TURNS, ("<seed:think>", "</seed:think>")),
    "gemma4": lambda: thinker(TURNS, ("<|channel>", "<channel|>")),
    "command-a": lambda: thinker(
        TURNS, ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ),
    "apertus": lambda: thinker(TURNS, ("<|inner_prefix|>", "<|inner_suffix|>")),
    "kimi-vl": lambda: thinker(TURNS, plain=("◁think▷", "◁/think▷")),
    "longcat": lambda: thinker(TURNS + "{# </longcat_think> #}"),
    "minimax-m3": lambda: thinker(TURNS + "{# <mm:think> </mm:think> #}"),
    "k2-think": lambda: thinker(TURNS + "{# <think_fast> </think> #}"),
    "k2-horizon": lambda: thinker(TURNS, plain=("<ifm|think>", "</ifm|think>")),
    "kimi-k3": lambda: thinker(TURNS, ("<|open|>", "<|close|>", "<|sep|>")),
    "sky-t1": lambda: thinker(TURNS, plain=("<|begin_of_thought|>", "<|end_of_thought|>")),
    "grpo": lambda: thinker(TURNS + "{# <reasoning> </reasoning> #}"),
    "reflection": lambda: thinker(TURNS + "{# <thinking> </thinking> #}"),
    "apriel": lambda: thinker(TURNS + "Here are my reasoning steps:\n{# [BEGIN FINAL RESPONSE] #}"),
}

TAGGED = ("<think>", "</think>")
TAGS = ThinkingMarks(*TAGGED)
FILE = Path(__file__).parents[2] / "data" / "thoughts.jsonl"
CASES = [tuple(json.loads(line).values()) for line in FILE.read_text("utf-8").splitlines()]
"""A model, what it writes, the thought and the answer of that, and where the form comes from."""


cases = pytest.mark.parametrize(
    ("model", "text", "thought", "answer", "source"), CASES, ids=lambda given: str(given)[:40]
)


def written(model: str, text: str) -> tuple[Thoughts, list[int], bool]:
    """How a model's texts are parted, the tokens of one, and whether the model's own prompt begins
    a thought."""
    tokenizer = TOKENIZERS[model]()
    thoughts = Thoughts.of(tokenizer)
    assert thoughts is not None
    prompt = PromptTemplate("{question}").tokens("What is 9 + 9?", tokenizer)
    return thoughts, tokenizer.encode(text, add_special_tokens=False), thoughts.begun(prompt)


@cases
def test_what_a_model_writes_is_parted(
    model: str, text: str, thought: str, answer: str | None, source: str
) -> None:
    thoughts, tokens, begun = written(model, text)
    assert thoughts.split(tokens, begun) == (thought, answer), source


@cases
def test_a_stream_says_nothing_that_it_takes_back(
    model: str, text: str, thought: str, answer: str | None, source: str
) -> None:
    thoughts, tokens, begun = written(model, text)
    sent = {True: "", False: ""}
    for end in (*range(len(tokens)), None):
        parts = (
            thoughts.settled(tokens[:end], begun)
            if end is not None
            else thoughts.pieces(tokens, begun)
        )
        now = {of: "".join(piece for part, piece in parts if part is of) for of in sent}
        assert all(now[of].startswith(sent[of]) for of in sent)
        sent = now
    assert len(sent[True] + sent[False]) == len(thought + (answer or ""))
    assert sent[False].endswith(answer or "")
    cuts = thoughts.marks.cuts(text)
    ends = sum(cut.thinks is False for cut in cuts)
    if ends + (answer is None) <= 1 and (
        begun or (cuts and cuts[0].start == 0 and cuts[0].thinks)
    ):  # no answer came before the last end
        assert sent == {True: thought, False: answer or ""}


def test_the_table_is_long_enough_and_has_every_family() -> None:
    assert len(CASES) >= 40 and all(source for *_, source in CASES)
    known = {marks_of(make()) for make in TOKENIZERS.values()}
    assert known == {family.marks for family in FAMILIES}


# ---------------------------------------------------------------- where a generated text begins


@pytest.mark.parametrize(
    ("prompt", "begun"),
    [
        ("<turn>user\nq<eos><turn>assistant\n<think>\n", True),  # DeepSeek-R1
        # Qwen3, enable_thinking=False
        ("<turn>user\nq<eos><turn>assistant\n<think>\n\n</think>\n\n", False),
        ("<turn>assistant\n</think>", False),  # DeepSeek-V3.1 without thinking
        ("<turn>user\nq<eos><turn>assistant\n", False),
        # the user's words are no thought
        ("<turn>user\nwhat does <think> mean?<eos><turn>assistant\n", False),
        (
            "<turn>assistant\n<think>old</think>1<eos><turn>user\nq<eos><turn>assistant\n<think>",
            True,
        ),
        # words that a program has put there
        ("<turn>assistant\n<think>\nLet me be careful.", True),
        ("Question: q\n<think>", True),  # no chat template
        ("<think>1</think>2\n\nQuestion: q\nAnswer:", False),
        ("", False),
    ],
)
def test_the_end_of_the_prompt_says_whether_a_thought_has_begun(prompt: str, begun: bool) -> None:
    for special, plain in ((), TAGGED), (TAGGED, ()):
        tokenizer = thinker(TURNS, special, plain)
        thoughts = Thoughts.of(tokenizer)
        assert thoughts is not None and thoughts.hidden == bool(special)
        assert thoughts.begun(tokenizer.encode(prompt, add_special_tokens=False)) is begun


QUESTIONS = ("what does <think> mean?", "go on after <think>", "a</think> b<think>c", "<think>\n")
"""A user's words that hold marks."""

ASK = PromptTemplate("{question}")
BARE = "{% for m in messages %}{{ m.content }}\n{% endfor %}Answer:"
SHOTS = (("1?", "<think>a</think>1"), ("2?", "<think>"))
FORMS: dict[str, tuple[PromptTemplate, str | None, bool]] = {
    # name: (template, chat template, whether it opens a thought)
    "question and answer": (ASK, None, False),
    "instruction": (PromptTemplate("{question} Use <think>."), None, False),
    "raw": (PromptTemplate("Q: {question}\nA:", raw=True), None, False),
    "raw that opens one": (PromptTemplate("Q: {question}\nA: <think>\n", raw=True), None, True),
    "example": (PromptTemplate("{question}", examples=SHOTS), None, False),
    "chat": (ASK, TURNS, False),
    "chat, system text": (PromptTemplate("{question}", system="Begin with <think>."), TURNS, False),
    "chat without special tokens": (ASK, BARE, False),
    "chat without special tokens that opens one": (ASK, f"{BARE} <think>", True),
    "Llama 2": (
        ASK,
        "{% for m in messages %}[INST] {{ m.content.strip() }} [/INST]{% endfor %}",
        False,
    ),
    "Qwen3-Thinking": (ASK, OPENING, True),
    "Qwen3": (ASK, SWITCHED, False),
    "Qwen3 without thinking": (
        PromptTemplate("{question}", options={"enable_thinking": False}),
        SWITCHED,
        False,
    ),
    "DeepSeek-R1": (ASK, CHATS["deepseek_r1_distill"].template, True),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("special", [True, False])
def test_the_users_words_open_no_thought(form: str, special: bool) -> None:
    template, chat, opens = FORMS[form]
    tokenizer = thinker(chat, TAGGED if special else (), () if special else TAGGED)
    thoughts = Thoughts.of(tokenizer, TAGS)
    assert thoughts is not None and thoughts.hidden == special
    for question in QUESTIONS:
        end = template.end_of_prompt(question, tokenizer)
        assert thoughts.begun(template.tokens(question, tokenizer), end) is opens
        later = template.end_of_prompt("q", tokenizer, ["<think>a", question])
        if not template.raw:
            assert later is not None and thoughts.begun(tokenizer.encode("x"), later) is opens


@pytest.mark.parametrize(
    ("prompt", "begun"),
    [
        ("what does <think> mean?", False),
        ("Question: what does <think> mean?\nAnswer:", False),
        ("Question: q\nAnswer: <think>\n", True),  # the caller's own beginning of the answer
        ("<think>a</think> <think>", True),
        ("<think>a</think>", False),
        # a chat that another program wrote
        ("<turn>user\nwhat does <think> mean?<eos><turn>assistant\n", False),
        ("<turn>user\nq<eos><turn>assistant\n<think>\n", True),
    ],
)
@pytest.mark.parametrize("before", ["", "<turn>"])
def test_a_prompt_that_is_given_whole_opens_a_thought_at_its_very_end(
    prompt: str, begun: bool, before: str
) -> None:
    for special, plain in ((), TAGGED), (TAGGED, ()):
        tokenizer = copy.deepcopy(thinker(TURNS, special, plain))
        if before:  # as Llama's tokenizers put a token before raw texts
            number = tokenizer.convert_tokens_to_ids(before)
            around = TemplateProcessing(f"{before} $A", special_tokens=[(before, number)])
            tokenizer.backend_tokenizer.post_processor = around
        thoughts, template = Thoughts.of(tokenizer), PromptTemplate("{question}", raw=True)
        assert thoughts is not None and template.end_of_prompt(prompt, tokenizer) is None
        tokens = template.tokens(prompt, tokenizer)
        assert len(tokens) == len(tokenizer.encode(prompt, add_special_tokens=False)) + bool(before)
        assert thoughts.begun(tokens) is begun


def test_the_channels_of_gpt_oss_in_a_prompt() -> None:
    tokenizer = TOKENIZERS["gpt-oss"]()
    thoughts = Thoughts.of(tokenizer)
    assert thoughts is not None and thoughts.hidden
    for end, begun in (("", False), (ANALYSIS, True), (FINAL, False)):
        prompt = f"<|start|>user<|message|>q<|end|><|start|>assistant{end}"
        assert thoughts.begun(tokenizer.encode(prompt)) is begun


# ---------------------------------------------------------------- marks


def test_a_model_without_marks_has_none() -> None:
    for tokenizer in (thinker(TURNS), thinker(None), object()):
        assert marks_of(tokenizer) is None and Thoughts.of(tokenizer) is None


def test_a_template_goes_before_the_vocabulary_and_may_come_in_several() -> None:
    both = thinker(TURNS + "{# </thought> #}", plain=("<think>", "</think>"))
    assert marks_of(both) == ThinkingMarks("<thought>", "</thought>")

    class Several:
        chat_template = {"default": TURNS, "thinking": OPENING}  # noqa: RUF012

    assert marks_of(Several()) == TAGS


def saying(before: str, content: str = "{{ m.content }}<eos>") -> Any:
    """A tokenizer whose chat template writes this of each message behind its role."""
    return thinker(
        "{% for m in messages %}<turn>{{ m.role }}\n" + before + content + "{% endfor %}"
        "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
    )


@pytest.mark.parametrize(
    ("before", "after", "marks"),
    [
        ("<muse:x>", "</muse:x>", ThinkingMarks("<muse:x>", "</muse:x>")),
        ("<|plan|>\n", "\n<|said|>\n", ThinkingMarks("<|plan|>", "<|said|>")),
        (
            "<|to|>self<|says|>",
            "<|end|><|turn|>assistant<|to|>user<|says|>",
            ThinkingMarks("<|to|>self<|says|>", "<|end|><|turn|>assistant<|to|>user<|says|>"),
        ),
    ],
)
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_marks_of_no_known_model_are_learned_from_the_template(
    before: str, after: str, marks: ThinkingMarks, key: str
) -> None:
    """What it writes around the thought of a message."""
    thought = f"{{% if m.{key} %}}{before}{{{{ m.{key} }}}}{after}{{% endif %}}"
    tokenizer = saying(thought)
    assert marks_of(tokenizer) == marks
    thoughts = Thoughts.of(tokenizer)
    assert thoughts is not None
    text = before + "12" + after + "18"
    assert thoughts.split(tokenizer.encode(text))[1].strip() == "18"
    assert thoughts.split(tokenizer.encode(before + "12, 18")).answer is None


@pytest.mark.parametrize("after", ["</final><eos>", "\n</final>\n<eos>", "<eos>"])
def test_the_tags_around_an_answer_are_learned_too(after: str) -> None:
    tokenizer = saying(
        "{% if m.thinking %}<analysis>{{ m.thinking }}</analysis>\n<final>{{ m.content }}"
        + after
        + "{% else %}",
        "{{ m.content }}<eos>{% endif %}",
    )
    closed = "</final>" in after
    wraps = ("<final>", "</final>") if closed else ()
    assert marks_of(tokenizer) == ThinkingMarks("<analysis>", "</analysis>", wraps)
    thoughts = Thoughts.of(tokenizer)
    assert thoughts is not None
    text = "<analysis>12</analysis>\n<final>18" + "</final>" * closed
    answer = thoughts.split(tokenizer.encode(text)).answer or ""
    assert answer.strip() == ("18" if closed else "<final>18")


def test_a_template_with_one_mark_for_both_ends_is_refused_with_the_way_out() -> None:
    tokenizer = thinker(
        "{% for m in messages %}{% if m.thinking %}%%{{ m.thinking }}%%{% endif %}{{ m.content }}"
        "<eos>{% endfor %}{% if add_generation_prompt %}A: {% endif %}"
    )
    with pytest.raises(InvalidInput, match=r"'%%' before and after .* name marks with thinking_ma"):
        marks_of(tokenizer)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("```thinking\n", "\n```\n", "```thinking"),
        ("<plan>", "\n```\n", "```"),
        ("<plan>", "\n---\n", "---"),
        ("<plan>", "\n***\n\n", r"\*\*\*"),
        ("", "\n\n### Answer:\n", "### Answer:"),
        ("Reasoning: ", "\nFinal answer: ", "Reasoning:"),
        ("<plan>", "]\n", "\\]"),
    ],
)
def test_marks_that_any_text_may_hold_are_refused_with_the_way_out(
    before: str, after: str, named: str
) -> None:
    """A fence of code in a thought is no end of it."""
    thought = f"{{% if m.thinking %}}{before}{{{{ m.thinking }}}}{after}{{% endif %}}"
    tokenizer = saying(thought)
    with pytest.raises(InvalidInput, match=f"writes '{named}' around .* with thinking_marks"):
        marks_of(tokenizer)
    own = Thoughts.of(tokenizer, ThinkingMarks("```thinking", "\n```\n"))
    assert own is not None and Thoughts.of(tokenizer, False) is None


@pytest.mark.parametrize("end", ["Here is my answer:", "[ANSWER]", "END_OF_PLAN", "◁/plan▷"])
def test_a_mark_that_no_other_text_holds_is_learned(end: str) -> None:
    thought = f"{{% if m.thinking %}}<plan>{{{{ m.thinking }}}}{end}{{% endif %}}"
    tokenizer = thinker("{% for m in messages %}" + thought + "{{ m.content }}<eos>{% endfor %}")
    assert marks_of(tokenizer) == ThinkingMarks("<plan>", end)


@pytest.mark.parametrize(
    ("written", "marks"),
    [
        ("<ponder>\n", ThinkingMarks("<ponder>", "</ponder>")),
        ("<my:cot>", ThinkingMarks("<my:cot>", "</my:cot>")),
        ("<assistant>\n", None),
        ("<Answer>", None),
        ("ASSISTANT: ", None),
    ],
)
@pytest.mark.parametrize("past", [False, True])
def test_a_tag_of_no_known_model_that_a_prompt_opens_begins_a_thought(
    written: str, marks: ThinkingMarks | None, past: bool
) -> None:
    """But for one that also stands before past answers, or is a name of answers."""
    header = f"{{% if m.role == 'assistant' %}}{written}{{% endif %}}" if past else ""
    tokenizer = thinker(
        "{% for m in messages %}" + header + "{{ m.content }}<eos>{% endfor %}"
        "{% if add_generation_prompt %}" + written + "{% endif %}"
    )
    assert marks_of(tokenizer) == (None if past else marks)


def test_marks_are_set_by_the_user_or_switched_off() -> None:
    tokenizer = TOKENIZERS["qwen3"]()
    own = Thoughts.of(tokenizer, ThinkingMarks("((", "))"))
    assert own is not None
    assert own.split(tokenizer.encode("((12))18</think>")) == ("12", "18</think>")
    assert Thoughts.of(tokenizer, False) is None
    for wrong in (True, "auto", ["<think>", "</think>"]):
        with pytest.raises(InvalidInput, match="thinking_marks="):
            Thoughts.of(tokenizer, wrong)  # type: ignore[arg-type]


def test_marks_that_cannot_be_are_refused() -> None:
    assert ThinkingMarks("<a>", "</a>") == ThinkingMarks(["<a>"], ("</a>",))
    for begin, end, message in (
        ("<a>", (), "end is empty"),
        ("<a>", "<a>", "'<a>' is among begin and end"),
        ("", "</a>", "begin="),
        ("<a>", [3], "end="),
        ("<a>", Header("<b>", ""), "end="),
    ):
        with pytest.raises(InvalidInput, match=message):
            ThinkingMarks(begin, end)  # type: ignore[arg-type]


def test_only_an_end_of_one_token_can_be_taken_back() -> None:
    ends = {
        name: Thoughts.of(TOKENIZERS[name]()) for name in ("r1", "olmo3", "magistral", "gpt-oss")
    }
    assert {name: found.end_token if found else None for name, found in ends.items()} == {
        "r1": "</think>",
        "olmo3": "",
        "magistral": "[/THINK]",
        "gpt-oss": "",
    }


# ---------------------------------------------------------------- answers of a text alone


@pytest.mark.parametrize(
    ("text", "kind", "answer", "strict"),
    [
        ("<think>The answer is 12... no, 18</think> The result: 18", "number", "18", None),
        ("<think>12</think>The answer is 18.", "number", "18", "18"),
        ("<think>is it \\boxed{3}?", "math", None, None),
        ("is it \\boxed{3}?</think>", "math", None, None),
        ("\\boxed{3}</think>\\boxed{4}", "math", "4", "4"),
        ("[THINK](A)[/THINK](B)", "choice", "B", None),
        (f"{ANALYSIS}#### 1{NEXT}{FINAL}#### 2", "number", "2", "2"),
        ("The answer is 18.", "number", "18", "18"),
    ],
)
def test_no_answer_is_read_from_a_thought(
    text: str, kind: str, answer: str | None, strict: str | None
) -> None:
    assert extract_answer(text, kind) == answer
    assert extract_answer(text, kind, strict=True) == strict


def test_headers_are_found_in_plain_texts_too() -> None:
    marks = ThinkingMarks(Header("<say", ">"), [Header("<answer", ">"), "</say>"])
    for text, parted in (
        ("<say loud>12<answer as=json>18", ("12", "18")),
        ("<say>12</say>18", ("12", "18")),
        ("<say>12<answer <answer kind>18", ("12<answer ", "18")),
        (f"<say>12<answer {'x' * 200}>18", (f"12<answer {'x' * 200}>18", None)),
        (
            f"{ANALYSIS}1{NEXT}<|channel|>final json<|message|>2",
            (f"{ANALYSIS}1{NEXT}<|channel|>final json<|message|>2", None),
        ),
    ):
        assert marks.split(text, begun=True) == parted
    whole = "<say loud>12<answer as=json>18"
    sizes = [marks.unsettled(whole[:end]) for end in range(len(whole) + 1)]
    assert sizes == [*range(10), 0, 0, 0, *range(1, 16), 0, 0, 0]


def test_the_whole_text_is_read_without_marks_and_by_marks_of_ones_own() -> None:
    text = "<think>The answer is 12</think>"
    assert extract_answer(text) is None and extract_answer(text, marks=None) == "12"
    assert extract_answer("{12}18", marks=ThinkingMarks("{", "}")) == "18"


# ---------------------------------------------------------------- hostile texts


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 14_300,
        "</think>" * 12_500,
        "<think></think>" * 6_700,
        "<" * 100_000,
        "<think" * 16_700,
        "Here is my " * 9_100,
        "<|channel|>" * 9_100,
        "[" * 100_000,
        "<|start|>assistant" * 5_600,
        "<|channel|>final" * 6_250,
        "<|channel|>final <" * 5_600,
    ],
    ids=lambda text: text[:20],
)
def test_a_hundred_thousand_characters_take_linear_time(text: str) -> None:
    assert len(text) > 99_000
    start = time.process_time()
    assert ANY.split(text, begun=True) is not None and TAGS.split(text) is not None
    extract_answer(text)
    assert time.process_time() - start < 5  # what is quadratic takes minutes


@pytest.mark.parametrize(
    "words",
    [
        "<|channel|>",
        ANALYSIS,
        "<",
        f"{FINAL}1",
        "<|start|>",
        "<|channel|>final",
        "<|channel|>final very long",
    ],
)
def test_so_do_as_many_tokens(words: str) -> None:
    tokenizer = TOKENIZERS["gpt-oss"]()
    thoughts = Thoughts.of(tokenizer)
    assert thoughts is not None
    once = tokenizer.encode(words)
    tokens = once * (20_000 // len(once))
    start = time.process_time()
    thoughts.split(tokens)
    thoughts.settled(tokens)
    thoughts.begun(tokens)
    assert time.process_time() - start < 5


FOLDER = os.environ.get("TTC_CHAT_TEMPLATES", "")


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="TTC_CHAT_TEMPLATES names no folder of chat templates")
def test_thoughts_of_published_templates_are_parted() -> None:
    """As the template writes them, where it does; a text that is cut inside one is no answer."""
    written, known, none = list[str](), list[str](), list[str]()
    user = {"role": "user", "content": "?"}
    said = {"role": "assistant", "content": "18"}
    thinking = {**said, **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "12, so")}
    for file in sorted(Path(FOLDER).glob("*.jinja")):
        own = chats.tokenizer((), "bytes", "<s>", "</s>", template=file.read_text())
        marks = marks_of(own)
        if marks is None:
            none.append(file.stem)
            assert "</think" not in file.read_text(), file.stem
            continue
        begin = mark_text(marks.begin[0]) if marks.begin else ""
        for text in (f"{begin}12, so 18", f"{begin}12</b> \\boxed{{18}} so"):
            assert marks.split(text, begun=not begin) == (text.removeprefix(begin), None), file.stem
        parted = marks.split(f"{begin}12, so{mark_text(marks.end[0])}18", begun=not begin)
        assert parted == ("12, so", "18"), file.stem
        known.append(file.stem)
        try:
            prompt = chat_text([user], own)
            whole = chat_text([user, thinking], own, begins_answer=False)
        except InvalidInput:
            continue
        if "12, so" in whole:
            shared = len(common_start(prompt, whole))
            parted = marks.split(whole[shared:], begun=ends_in_thought(marks.cuts(prompt), False))
            thought = parted.thought.replace("<|end|>", "")  # a special token of gpt-oss
            assert thought.strip() == "12, so", file.stem
            assert parted.answer is not None and parted.answer.strip().startswith("18"), file.stem
            written.append(file.stem)
    print(f"{len(known)} known, {len(written)} of them written, without thoughts:", *none, sep="\n")
    assert len(known) > len(none)
