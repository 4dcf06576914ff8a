"""Conversations as problems: sent as the chat template writes them, whatever backend reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from search import BestOfN, DiversePrompts, Greedy, ask_tell, asolve, solve, solve_each, stream
from search.rating import try_verifier
from tests.helpers.chats import CHATS
from tests.helpers.engines import bytes_engine
from tests.helpers.records import roughly
from tests.helpers.scripted import Scores
from tests.helpers.thinking import OPENING, SWITCHED, TURNS, thinker
from tests.search.test_several_models import InTurns
from ttc import InvalidInput, Problem, Result
from ttc.engine import Engine
from ttc.model.loading.default_model import smollm2_folder
from ttc.text.prompt import PromptTemplate
from verifiers import SelfVerifier
from verifiers.side_branches import spellings

TALK = [
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "7"},
    {"role": "user", "content": "And 2 more?"},
]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *TALK]
CALLED = [
    {"role": "user", "content": "What is 17 * 25?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "times", "arguments": '{"a": 17}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "425"},
]
SHORT = Greedy(max_tokens=4)


def sent(result: Result) -> list[int]:
    return result.tree[0].token_ids


def written(tokenizer: Any, messages: Any) -> Any:
    """By transformers."""
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def engine(template: str = TURNS, **options: Any) -> Engine:
    return bytes_engine(thinker(template), **options)


@pytest.mark.parametrize("name", ["llama_3", "qwen_2_5", "mistral_v1", "zephyr", "qwen_3"])
def test_a_conversation_is_sent_as_transformers_writes_it(name: str) -> None:
    tokenizer = CHATS[name].tokenizer
    result = solve(SHORT, problem=TALK, engine=bytes_engine(tokenizer))
    prompt = written(tokenizer, TALK)
    assert result.prompt == prompt
    assert sent(result) == tokenizer.encode(prompt, add_special_tokens=False)
    assert result.problem.question == "And 2 more?" and result.problem.messages == tuple(TALK)


def test_a_template_without_a_system_role_gets_its_words_in_the_users_first_turn() -> None:
    tokenizer = CHATS["gemma_2"].tokenizer
    result = solve(SHORT, problem=WITH_SYSTEM, engine=bytes_engine(tokenizer))
    merged = [{"role": "user", "content": "Be brief.\n\nWhat is 3 + 4?"}, *TALK[1:]]
    assert result.prompt == written(tokenizer, merged)


def test_parts_of_text_are_lines_and_what_templates_read_beside_a_text_stays() -> None:
    template = (
        "{% for m in messages %}{{ m.role }} {{ m.mood }}:{{ m.content }};"
        "{% for c in m.tool_calls %}{{ c.function.arguments.a + 1 }}{% endfor %}"
        "{{ m.name }}{% endfor %}"
    )
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    asked = [{"role": "user", "content": parts, "mood": "glad"}, *CALLED[1:]]
    result = solve(SHORT, problem=asked, engine=engine(template))
    assert result.prompt == "user glad:one\ntwo;assistant :;18tool :425;times"


def test_conversations_decode_in_one_batch_as_each_alone() -> None:
    """Two end with the same words; they are no two of the same."""
    other = [{"role": "user", "content": "Guess."}, TALK[1], TALK[2]]
    local = engine()
    search = BestOfN(n=2, max_tokens=6)
    verifier = SelfVerifier()
    together = solve(search, problem=[TALK, other], engine=local, verifier=verifier)
    alone = [solve(search, problem=one, engine=local, verifier=verifier) for one in (TALK, other)]
    trees = [[result.to_dict()["tree"] for result in results] for results in (together, alone)]
    assert trees[0] == roughly(trees[1])
    assert sent(together[0]) != sent(together[1]) and not local.kv_bytes()
    first, again = solve(search, problem=[TALK, TALK], engine=local, verifier=verifier)
    assert first.branches[0].text == alone[0].branches[0].text != again.branches[0].text


def test_every_call_takes_one() -> None:
    local = engine()
    want = solve(SHORT, problem=TALK, engine=local).to_dict()["tree"]
    (listed,) = solve_each(SHORT, problems=[TALK], engine=local)
    *_, last = stream(SHORT, problem=TALK, engine=local)
    awaited = asyncio.run(asolve(SHORT, problem=tuple(TALK), engine=local))
    named = solve(SHORT, problem=Problem.of_chat(TALK), engine=local)
    assert last.result is not None
    for result in (listed, last.result, awaited, named):
        assert result.to_dict()["tree"] == want


def test_a_list_of_texts_stays_a_list_of_problems() -> None:
    local = engine()
    results = solve(SHORT, problem=["What is 3 + 4?", "And?"], engine=local)
    assert [result.problem.messages for result in results] == [None, None]
    assert solve(SHORT, problem=[], engine=local) == []
    mixed = solve(SHORT, problem=[Problem("And?"), Problem.of_chat(TALK)], engine=local)
    alone = [results[1], solve(SHORT, problem=TALK, engine=local)]
    assert list(map(sent, mixed)) == list(map(sent, alone))


IMAGE = {"type": "image_url", "image_url": {"url": "x.png"}}
WRONG: dict[str, tuple[Any, str]] = {
    "a text among messages": ([*TALK, "Go on"], r"problem\[3\]='Go on' is of type str"),
    "a text among conversations": ([TALK, "Go on"], r"problem\[1\] is of type str, and others"),
    "a message among texts": (["Go on", TALK[0]], r"problem\[0\]='Go on' is of type str"),
    "a message alone": (TALK[0], "problem is of type dict"),
    "none": ([[]], r"problem\[0\] holds no messages"),
    "no role": ([{"content": "?"}], r"problem\[0\] has no 'role', but 'content'"),
    "misspelt": ([TALK, [{"role": "user", "contents": "?"}]], r"problem\[1\]\[0\] has no 'cont"),
    "a role of its own": (
        [{"role": "bot", "content": "?"}],
        r"\['role'\]='bot' is no role; use one",
    ),
    "a number": ([{"role": "user", "content": 5}], r"problem\[0\]\['content'\]=5 is of type int"),
    "nothing": ([{"role": "user", "content": None}], r"problem\[0\]\['content'\]=None"),
    "an image": (
        [TALK[0], {"role": "user", "content": [{"type": "text", "text": "?"}, IMAGE]}],
        r"problem\[1\]\['content'\]\[1\]\['type'\]='image_url' is not taken; give parts of text",
    ),
    "a call without a name": (
        [{"role": "assistant", "tool_calls": [{"name": "x"}]}, TALK[0]],
        r"problem\[0\]\['tool_calls'\]\[0\]\['function'\]=None",
    ),
    "an answer at the end": (TALK[:2], r"last message is the assistant's; end .* of a tool \(prob"),
    "no words": ([*TALK[:2], {"role": "user", "content": " "}], "the last message is empty"),
}


@pytest.mark.parametrize(("problem", "message"), WRONG.values(), ids=list(WRONG))
def test_what_is_no_conversation_is_refused_by_its_place_and_key(
    problem: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        solve(SHORT, problem=problem, engine=engine())


def test_a_begun_answer_goes_on_the_way_that_its_refusal_names() -> None:
    local = bytes_engine(CHATS["qwen_2_5"].tokenizer)
    begun = f"{solve(SHORT, problem=TALK[:1], engine=local).prompt}The sum"
    raw = PromptTemplate("{question}", raw=True)
    result = solve(SHORT, problem=begun, engine=local, template=raw)
    want = local.tokenizer.apply_chat_template(
        [TALK[0], {"role": "assistant", "content": "The sum"}],
        tokenize=False,
        continue_final_message=True,
    )
    assert result.prompt == want and sent(result) == local.encode(want)


def test_a_template_that_fails_ends_its_problem_alone() -> None:
    strict = (
        "{% for m in messages %}{{ raise_exception('no') if 'x' in m.content }}{{ m.content }}"
        "{% endfor %}"
    )
    local = engine(strict)
    bad = [{"role": "user", "content": "x"}]
    good, failed = solve(SHORT, problem=[TALK, bad], engine=local)
    assert good.error is None and "refuses these messages: no; send" in str(failed.error)
    with pytest.raises(InvalidInput, match="refuses these messages: no"):
        solve(SHORT, problem=bad, engine=local)
    with pytest.raises(InvalidInput, match="no chat template; give its whole prompt"):
        solve(SHORT, problem=TALK, engine=bytes_engine(thinker(None)))


def test_a_conversation_that_cannot_be_sent_ends_alone_whatever_else_is_asked_for() -> None:
    """Here its prompt is needed before it begins."""
    search = Greedy(max_tokens=4, thinking="off")
    mixed = [Problem("How many?"), Problem.of_chat(TALK)]
    plain = bytes_engine(thinker(None))
    raw = PromptTemplate("{question}", raw=True)
    for local, template, message in (
        (plain, None, "no chat template"),
        (engine(), raw, "a conversation goes through"),
    ):
        good, failed = solve(search, problem=mixed, engine=local, template=template)
        assert good.error is None and message in str(failed.error)


def test_the_prompt_that_is_shown_begins_as_the_tokens_do() -> None:
    local = bytes_engine(CHATS["smollm_2"].tokenizer)
    bos = str(local.tokenizer.bos_token)
    for talk, template in ((TALK, {}), ("How many?", {}), ("How many?", {"raw": True})):
        asked = PromptTemplate("{question}", add_bos=True, **template)
        result = solve(SHORT, problem=talk, engine=local, template=asked)
        assert local.encode(str(result.prompt)) == sent(result)
        assert str(result.prompt).startswith(bos) and not str(result.prompt).startswith(2 * bos)


@pytest.mark.parametrize("options", [{"raw": True}, {"chat": False}, {"examples": (("a", "b"),)}])
def test_a_template_that_is_no_chats_is_refused(options: dict[str, Any]) -> None:
    template = PromptTemplate("{question}", **options)
    with pytest.raises(InvalidInput, match="a conversation"):
        solve(SHORT, problem=TALK, engine=engine(), template=template)


def test_a_template_stands_around_a_conversation() -> None:
    template = PromptTemplate("{question} Think.", system="Be kind.")
    result = solve(SHORT, problem=WITH_SYSTEM, engine=engine(), template=template)
    head = "<turn>system\nBe brief.\n\nBe kind.<eos><turn>user\nWhat is 3 + 4?<eos>"
    rest = "<turn>assistant\n7<eos><turn>user\nAnd 2 more? Think.<eos><turn>assistant"
    assert result.prompt == head + rest


class Asked(Scores):
    """Keeps the questions that a verifier is given."""

    def __init__(self) -> None:
        super().__init__(lambda branch: 0.5)
        self.rated, self.priced = set[str](), set[str]()

    def price(self, branches: Any, questions: Sequence[str], backend: Any) -> int:
        self.priced.update(questions)
        return 0

    def rate(self, branches: Any, questions: Sequence[str], backend: Any) -> list[list[float]]:
        self.rated.update(questions)
        return super().rate(branches, questions, backend)


TOLD = "User: What is 3 + 4?\n\nAssistant: 7\n\nUser: And 2 more?"
IN_WORDS = (
    'User: What is 17 * 25?\n\nAssistant: <tool_call>\n{"name": "times", "arguments": {"a": 17}}\n'
    "</tool_call>\n\nUser: <tool_response>\n425\n</tool_response>"
)


@pytest.mark.parametrize(
    ("talk", "told"),
    [
        (TALK, TOLD),
        (CALLED, IN_WORDS),
        (TALK[:1], "What is 3 + 4?"),
        (WITH_SYSTEM, TOLD.replace("What", "Be brief.\n\nWhat", 1)),
        ([*WITH_SYSTEM[:1], TALK[0]], "Be brief.\n\nWhat is 3 + 4?"),
    ],
)
def test_verifiers_are_given_the_whole_conversation(talk: Any, told: str) -> None:
    """In the price and the trial before a run too, and without the words of a template."""
    verifier = Asked()
    template = PromptTemplate("{question} Think.", system="Be kind.")
    search = BestOfN(n=2, max_tokens=4)
    local = engine()
    solve(search, problem=talk, engine=local, verifier=verifier, template=template, max_tokens=90)
    try_verifier(verifier, local, Problem.of_chat(talk), template=template)
    assert verifier.rated == verifier.priced == {told}


@pytest.mark.slow
def test_a_models_own_verdict_follows_the_whole_conversation() -> None:
    """P(yes) by a plain pass over the chat with the answer and the verifier's question."""
    local = Engine.from_pretrained("smollm2-135m", dtype="float32")
    verifier = SelfVerifier()
    search = BestOfN(n=1, max_tokens=8)
    result = solve(search, problem=TALK, engine=local, verifier=verifier)
    words = f"<|im_end|>\n<|im_start|>user\n{verifier.question}<|im_end|>\n<|im_start|>assistant\n"
    (end,) = local.encode("<|im_end|>")
    tokens = local.encode(written(local.tokenizer, TALK))
    tokens += [token for token in result.best.generated if token != end]
    plain = AutoModelForCausalLM.from_pretrained(smollm2_folder(), dtype=torch.float32)
    with torch.no_grad():
        logprobs = plain(torch.tensor([tokens + local.encode(words)])).logits[0, -1].log_softmax(-1)
    yes, no = (logprobs[group].exp().sum() for group in spellings(local, "yes", "no"))
    assert result.best.score == pytest.approx(float(yes / (yes + no)), abs=1e-4)


def test_thinking_is_switched_for_a_conversation_too() -> None:
    local = bytes_engine(thinker(SWITCHED, ("<think>", "</think>")))
    off = solve(Greedy(max_tokens=4, thinking="off"), problem=TALK, engine=local)
    assert str(off.prompt).endswith("assistant\n<think>\n\n</think>\n\n")
    opening = bytes_engine(thinker(OPENING, ("<think>", "</think>")))
    search = Greedy(max_tokens=4, thinking_tokens=6)
    result = solve(search, problem=TALK, engine=opening)
    assert result.best is not None and 0 < result.best.thinking_tokens <= 8


def test_models_with_other_templates_read_the_same_conversation() -> None:
    small, large = engine(context=1024), bytes_engine(CHATS["llama_3"].tokenizer, context=1024)
    result = solve(InTurns(), problem=TALK, engine={"small": small, "large": large})
    handed = next(node for node in result.tree if node.model == "large")
    first = result.tree[0].token_ids
    assert small.decode(first, special=True) == result.prompt
    assert large.decode(handed.token_ids, special=True).startswith(written(large.tokenizer, TALK))


def test_ask_tell_shows_the_messages_and_goes_on_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"

    def begin(problem: Any) -> Any:
        return ask_tell(BestOfN(n=2), problem=problem, checkpoint=file)

    asking = begin(TALK)
    first, _ = asking.ask()
    assert list(first.messages) == TALK and first.question == "And 2 more?"
    asking.tell(first, "The answer is 9.")
    assert {trial.kind for trial in begin(TALK).open} == {"text"}
    assert len(begin(TALK).open) == 1
    with pytest.raises(InvalidInput, match=r"problem\.messages"):
        begin([{"role": "user", "content": "Guess."}, *TALK[1:]])


def test_a_file_from_before_conversations_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    asking = ask_tell(BestOfN(n=2), problem="How many?", checkpoint=file)
    asking.tell(asking.ask()[0], "The answer is 9.")
    values = json.loads(file.read_text())
    del values["made_by"]["problem"]["messages"]
    file.write_text(json.dumps(values))
    ask_tell(BestOfN(n=2), problem="How many?", checkpoint=file)


def test_a_result_goes_through_json_and_plain_ones_are_as_they_were() -> None:
    local = engine()
    result = solve(SHORT, problem=CALLED, engine=local)
    again = Result.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again.problem == result.problem and again.prompt == result.prompt
    plain = solve(SHORT, problem="How many?", engine=local).to_dict()
    assert plain["problem"] == {"question": "How many?", "id": "", "answer": None, "metadata": {}}


def test_a_question_that_is_not_the_conversations_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not the last message of the user"):
        Problem("And 3 more?", messages=TALK)


def test_a_search_that_varies_the_words_varies_the_users_last_message() -> None:
    local = engine(context=1024)
    search = DiversePrompts(phrasings=("{question} Please.",), n=1, max_tokens=4)
    result = solve(search, problem=CALLED, engine=local, verifier=Asked())
    varied = result.best.tokens[: result.best.prompt_length] if result.best else []
    text = local.decode(varied, special=True)
    assert "What is 17 * 25? Please.<eos>" in text and "425<eos>" in text
