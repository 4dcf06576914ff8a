"""Searches over models that think: votes, budgets and probes go by answers, never by what was only
thought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from search import (
    AdaptiveConsistency,
    Append,
    BeamSearch,
    BestOfN,
    BudgetForcing,
    Case,
    CertaintyProbe,
    Expand,
    Greedy,
    Revision,
    Search,
    SearchSteps,
    SelfConsistency,
    SelfRefine,
    solve,
)
from search.certainty_probe import PROBE
from search.selection import answer_of
from tests.helpers.backends import Dictated
from tests.helpers.scripted import Scores
from tests.helpers.searches import Costly, all_searches, small
from tests.helpers.thinking import OPENING, SWITCHED, TURNS, Thinking, thinker
from ttc import Branch, InvalidInput, ThinkingMarks
from ttc.sampling import random_key
from ttc.text.prompt import PromptTemplate
from verifiers import (
    ArithmeticVerifier,
    LLMJudge,
    OutcomeReward,
    QwenPRM,
    SelfVerifier,
    ThinkPRM,
    ValueHead,
)
from verifiers.side_branches import rated_text

TAGS = ("<think>", "</think>")
R1, QWEN3 = thinker(OPENING, plain=TAGS), thinker(SWITCHED, plain=TAGS)
MAGISTRAL = thinker(TURNS, ("[THINK]", "[/THINK]"))
GPT_OSS = thinker(TURNS, ("<|start|>", "<|end|>", "<|message|>", "<|channel|>"))
GPT_OSS_SAYS = (
    "<|channel|>analysis<|message|>{}?<|end|><|start|>assistant<|channel|>final<|message|>{}"
)
UNDECIDED = ["The answer is 3, or not", "The answer is 3?", "</think>The answer is 4."]
"""Two thoughts that never end, and an answer."""


HALF = Scores(lambda branch: 0.5)


def solved(search: Any, says: Any, tokenizer: Any = R1, **options: Any) -> Any:
    backend = Thinking(says, tokenizer)
    result = solve(search, problem="q", engine=backend, **options)
    assert result.error is None and not backend.live
    return result


# ---------------------------------------------------------------- votes


@pytest.mark.parametrize(
    "search",
    [SelfConsistency(n=3), AdaptiveConsistency(n=3)],
    ids=["self_consistency", "adaptive_consistency"],
)
def test_a_thought_has_no_vote(search: Any) -> None:
    result = solved(search, UNDECIDED)
    assert result.answer == "4"
    # texts stay whole
    assert result.best.text == "</think>The answer is 4."
    assert [branch.answer_text for branch in result.branches] == ["The answer is 4.", None, None]


def test_marks_may_be_the_users_own() -> None:
    said = ["((The answer is 3.", "((The answer is 3.", "((hm))The answer is 4."]
    options: Any = {"problem": "q", "engine": Dictated(said)}
    marks = ThinkingMarks("((", "))")
    assert solve(SelfConsistency(n=3), thinking_marks=marks, **options).answer == "4"
    with pytest.raises(InvalidInput, match="thinking_marks='auto'"):
        solve(Greedy(), thinking_marks="auto", **options)


def test_marks_that_are_special_tokens_are_seen_where_texts_leave_them_out() -> None:
    said = [*["[THINK]The answer is 3."] * 2, "[THINK]3?[/THINK]The answer is 4."]
    result = solved(SelfConsistency(n=3), said, MAGISTRAL)
    assert result.answer == "4"
    assert result.best.text == "3?The answer is 4."
    assert (result.best.thought, result.best.answer_text) == ("3?", "The answer is 4.")


def test_an_empty_thought_in_the_prompt_makes_all_answer() -> None:
    said = ["The answer is 3.", "The answer is 3.", "The answer is 4."]
    template = PromptTemplate(options={"enable_thinking": False})
    assert solved(SelfConsistency(n=3), said, QWEN3, template=template).answer == "3"
    assert solved(SelfConsistency(n=3), said, R1).answer is None  # the prompt has begun a thought


def test_a_custom_extract_is_given_the_answer_alone() -> None:
    seen: list[str] = []
    result = solved(SelfConsistency(n=3), UNDECIDED, extract=lambda text: seen.append(text) or text)
    assert set(seen) == {"The answer is 4."} and result.answer == "The answer is 4."


def test_a_text_that_still_thinks_never_wins_against_an_answer() -> None:
    """However well it is rated."""
    result = solved(BestOfN(n=3), UNDECIDED, verifier=Scores(lambda branch: -branch.path[0]))
    assert result.answer == "4" and result.best.text != UNDECIDED[0]


def test_a_search_of_ones_own_may_read_texts_itself() -> None:
    @dataclass(frozen=True)
    class Reads(Greedy):
        def choose(self, candidates: Any, extract: Any) -> Any:
            found = [extract(candidates[0].text), answer_of(candidates[0], extract)]
            return candidates[0], str(found)

    said = "<think>The answer is 3.</think>The answer is 4."
    assert solved(Reads(), [said], QWEN3).answer == "['4', '4']"
    assert solved(Reads(), [said.partition("</think>")[0]], QWEN3).answer == "[None, None]"


# ---------------------------------------------------------------- turns and words


def test_a_critique_counts_by_what_it_says_and_not_by_what_it_thinks() -> None:
    first, second = (
        ("</think>1", "it is correct?</think>No."),
        ("</think>2", "hm</think>It is correct."),
    )
    turns = iter([*first, *second, "</think>3"])
    assert solved(SelfRefine(attempts=4), lambda branch: next(turns)).answer == "2"


@pytest.mark.parametrize(
    "chat", [None, TURNS, OPENING, "{% for m in messages %}{{ m.content }}\n{% endfor %}# Answer\n"]
)
@pytest.mark.parametrize("raw", [True, False])
def test_a_mark_in_the_users_words_begins_no_thought(chat: str | None, raw: bool) -> None:
    tokenizer, marks = thinker(chat, plain=TAGS), ThinkingMarks(*TAGS)
    backend = Thinking(lambda branch: "The answer is 18.", tokenizer)
    search = Revision(n=1, attempts=2, feedback="Is <think> right?")
    result = solve(
        search,
        problem="What is <think> for? Or rather, what is 9 + 9?",
        engine=backend,
        template=PromptTemplate("{question}", raw=raw),
        thinking_marks=marks,
        verifier=HALF,
    )
    begun = chat == OPENING and not raw
    assert [branch.answer_text is None for branch in result.branches] == [begun]
    assert result.answer == (None if begun else "18")
    assert sum(node.score is not None for node in result.tree) == 2


def test_each_turn_begins_as_its_own_prompt_says() -> None:
    # neither the critique nor the second answer ends its thought
    turns = iter(["</think>1", "it is correct", "2"])
    assert solved(SelfRefine(attempts=2), lambda branch: next(turns)).answer is None


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [(MAGISTRAL, "[THINK]{}?[/THINK]{}"), (R1, "{}?</think>{}"), (GPT_OSS, GPT_OSS_SAYS)],
    ids=["magistral", "r1", "gpt-oss"],
)
def test_an_attempt_that_is_told_again_keeps_the_marks_of_its_thought(
    tokenizer: Any, said: str
) -> None:
    """With a memory of one attempt, each prompt after the second is put together anew; on request
    with the model's own tokens."""
    turns, asked = iter("1234"), list[list[int]]()

    def says(branch: Branch) -> str:
        asked.append(list(branch.tokens))
        return said.replace("{}", next(turns))

    search = Revision(n=1, attempts=4, memory=1, feedback="Again.")
    template = PromptTemplate(keep_generated=True)
    result = solved(search, says, tokenizer, verifier=HALF, template=template)
    assert result.answer is not None and len(asked) == 4
    for place in (2, 3):
        prompt = tokenizer.decode(asked[place])
        answer = said.replace("{}", str(place)) + "<eos>"
        assert prompt.count(answer) == 1 and prompt.count("Again.") == 1, prompt


def test_a_probe_asks_in_the_thought_and_its_answer_counts() -> None:
    chain = "maybe 3, or maybe 4, so I wonder which of the two it really is"

    def says(branch: Branch) -> str:
        before, asked, said = branch.text.partition(PROBE)
        return "8}"[len(said) :] if asked else chain[len(before) :]

    result = solved(CertaintyProbe(max_tokens=40, every=4), says)
    assert result.answer == "8"
    assert result.best.answer_text == PROBE + "8}" and result.best.thought.startswith("maybe")


def test_budget_forcing_takes_the_mark_of_the_model() -> None:
    turns = iter(["12</think>", "13</think>", "The answer is 14."])
    result = solved(BudgetForcing(waits=1), lambda branch: next(turns))
    assert result.best.text == "12Wait13</think>The answer is 14."
    assert result.answer == "14"


def test_an_answer_that_is_forced_counts_with_any_mark_or_none() -> None:
    for tokenizer, end in ((R1, "</think>"), (MAGISTRAL, ""), (thinker(OPENING), "")):
        said = iter(["The answer is 12", " 14"])
        search = BudgetForcing(thinking_tokens=10)
        result = solved(search, lambda branch, said=said: next(said), tokenizer)
        assert result.best.text == f"The answer{end}\n\nFinal Answer: 14"
        assert result.answer == "14"
        assert result.best.answer_text == ("\n\nFinal Answer: 14")


def test_the_words_that_a_reserve_pays_for_end_the_thought() -> None:
    said = "It is 3, no, it is 4, no, it is 5, no"
    search = BeamSearch(beam_size=1, beam_width=1, step_tokens=5, delimiter=None)
    options: Any = {"max_tokens": 20, "reserve": 5, "final_text": "\nThe answer is"}
    options |= {"verifier": Scores(lambda branch: 0.0)}
    asked = solved(search, lambda b: " 7." if "\nThe" in b.text else said[len(b.text) :], **options)
    assert asked.stopped == "max_tokens" and asked.answer == "7"
    options["final_text"] = ""
    assert solved(search, lambda branch: said[len(branch.text) :], **options).answer is None


# ---------------------------------------------------------------- ratings that read answers


def test_an_answer_that_was_only_thought_of_is_not_rated() -> None:
    question = "Tom has 3 boxes of 4 apples. How many?"
    right = "3 * 4 = 12\nThe answer is 12."

    def score(text: str, tokenizer: Any = R1) -> float:
        options: Any = {"engine": Thinking([text], tokenizer), "verifier": ArithmeticVerifier()}
        return solve(BestOfN(n=1), problem=question, **options).best.score

    plain = score(right, thinker(TURNS))
    assert score(f"So 5, no.</think>{right}") == plain == score(f"</think>{right}")
    assert score(right) < plain  # the same text is all thought here
    assert score(f"[THINK]The answer is 5.[/THINK]\n{right}", MAGISTRAL) == plain
    assert score("The answer is 12.\n3 * 4 = 12</think>The answer is 5.") < plain


# ---------------------------------------------------------------- limits of thoughts and answers


def test_a_thought_has_a_limit_of_its_own_and_is_closed_with_a_phrase() -> None:
    """Greedy search with max_tokens=6: the thought may be longer, and the answer has six tokens."""
    said = iter(["0123456789", "The answer is 7."])
    backend = Thinking(lambda branch: next(said), R1)
    result = solve(Greedy(max_tokens=6, thinking_tokens=8), problem="q", engine=backend)
    assert result.best.text == "01234567</think>\n\nFinal Answer:The an"
    assert result.best.thought == "01234567"
    assert result.best.answer_text == "\n\nFinal Answer:The an"
    assert backend.limits_asked == [8, 6]
    assert result.usage.generated_tokens == 14 and result.usage.thinking_tokens == 8
    assert result.best.thinking_tokens == 8
    assert len(result.best.steps) == 1 and result.best.step_reasons == ["length"]


def test_a_thought_that_ends_by_itself_leaves_the_answer_its_own_limit() -> None:
    result = solved(Greedy(max_tokens=5, thinking_tokens=100), ["a long thought</think>123456789"])
    assert result.best.text == "a long thought</think>12345"
    # the mark is one token, and belongs to the thought
    assert (result.usage.thinking_tokens, result.usage.generated_tokens) == (15, 20)
    (node,) = (node for node in result.tree if node.parent is not None)
    assert node.text[: node.thought] == "a long thought</think>"


@pytest.mark.parametrize(
    ("tokenizer", "said", "thought"),
    [
        (QWEN3, "<think>hm</think>123456789", "hm"),
        (MAGISTRAL, "[THINK]hm[/THINK]123456789", "hm"),
        (GPT_OSS, GPT_OSS_SAYS.replace("{}", "hm", 1).replace("{}", "123456789"), "hm?"),
    ],
    ids=["qwen3", "magistral", "gpt-oss"],
)
def test_a_thought_that_the_model_begins_itself_counts_apart(
    tokenizer: Any, said: str, thought: str
) -> None:
    search = Greedy(max_tokens=40, thinking_tokens=100)
    result = solved(search, [said], tokenizer)
    assert result.best.answer_text == "123456789"
    assert thought in result.best.thought
    written = tokenizer.encode(said, add_special_tokens=False)
    tokens = len(written) - len("123456789")  # all others are thought, but for the opening mark
    opening = {"hm": 1, "hm?": len(tokenizer.encode("<|channel|>analysis<|message|>"))}[thought]
    assert result.usage.thinking_tokens == tokens - opening
    assert result.usage.generated_tokens == len(written) + 1


@pytest.mark.parametrize(
    ("tokenizer", "closing"),
    [
        (R1, "</think>"),
        (MAGISTRAL, "[/THINK]"),
        (GPT_OSS, "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ],
    ids=["r1", "magistral", "gpt-oss"],
)
def test_thoughts_are_closed_by_the_models_own_mark(tokenizer: Any, closing: str) -> None:
    opening = {R1: "", MAGISTRAL: "[THINK]"}.get(tokenizer, "<|channel|>analysis<|message|>")
    said = iter([f"{opening}0123456789", "7"])
    backend = Thinking(lambda branch: next(said), tokenizer)
    result = solve(Greedy(max_tokens=40, thinking_tokens=4, final=""), problem="q", engine=backend)
    whole = tokenizer.decode(result.best.generated)
    assert whole == f"{opening}0123{closing}\n\n7<eos>" and result.answer == "7"


def test_without_a_limit_thoughts_count_to_the_answers() -> None:
    result = solved(Greedy(max_tokens=5, thinking_tokens=None), ["a long thought</think>12345"])
    assert result.best.text == "a lon"
    assert result.usage.thinking_tokens == result.usage.generated_tokens == 5


def test_strings_that_end_an_answer_end_no_thought() -> None:
    said = ["so#no, 3</think>The answer is 4.#5"]
    result = solved(Greedy(), said, end=["#"])
    assert result.best.answer_text == "The answer is 4.#"


def test_a_thought_leaves_the_context_room_for_the_answer() -> None:
    said = iter(["0123456789" * 20, "7"])
    backend = Thinking(lambda branch: next(said), R1, longest=100)
    result = solve(Greedy(max_tokens=20), problem="q", engine=backend, template=SHORT)
    assert result.answer == "7"
    assert len(result.best.tokens) <= 100 - 20 + 2


@dataclass(frozen=True)
class ShortAndLong(Search):
    """Two texts of other lengths, whose thoughts are closed side by side."""

    def run(self, root: Branch, case: Case) -> SearchSteps:
        begun = yield Append([root, root], ["a", "b" * 50])
        return (yield Expand(begun, 1, case.step(20)))


def test_a_thought_without_room_for_its_end_leaves_that_of_another_its_own() -> None:
    backend = Thinking(lambda branch: "7", R1, longest=80)
    search = ShortAndLong(thinking_tokens=0)
    result = solve(search, problem="q", engine=backend, template=SHORT, verifier=HALF)
    short, long = sorted(result.branches, key=lambda branch: branch.path)
    assert short.text == "7" and short.step_reasons[-1] == "eos"
    assert long.text == "" and long.step_reasons[-1] == "length"


SHORT = PromptTemplate("{question}")


def test_a_budget_is_not_passed_by_thoughts() -> None:
    result = solved(
        SelfConsistency(n=3, thinking_tokens=20, max_tokens=4),
        lambda branch: "0123456789" * 4 if "Final" not in branch.text else "The answer is 7.",
        max_generated_tokens=50,
    )
    assert result.usage.generated_tokens == 50
    assert [len(branch.thought) for branch in result.branches] == [20, 20, 2]


def test_each_answer_of_a_chain_has_a_thought_of_its_own() -> None:
    def says(branch: Branch) -> str:
        return "7" if "Final" in branch.text else "0123456789"

    search = Revision(n=1, attempts=2, max_tokens=5, thinking_tokens=4)
    result = solved(search, says, verifier=HALF)
    written = [node.text for node in result.tree if node.text.endswith("7")]
    assert written == ["0123</think>\n\nFinal Answer:7"] * 2


# ---------------------------------------------------------------- steps inside of thoughts


def stepped(thinking_step: Any, said: str, **settings: Any) -> list[str]:
    """The steps of a beam search of one beam through a text."""
    search = BeamSearch(
        beam_size=1, beam_width=1, thinking_step=thinking_step, delimiter="\n",
        **{"max_steps": 20, "step_tokens": 60} | settings
    )  # fmt: skip
    result = solved(search, [said], verifier=HALF)
    assert "".join(result.best.steps) == result.best.text
    return result.best.steps


SAID = "One. Two?\n\nWait, 3\nor 4.\n\nSo.</think>4\nyes"


def test_steps_inside_of_thoughts() -> None:
    answer = ["4\n", "yes"]
    paragraphs = ["One. Two?\n\n", "Wait, 3\nor 4.\n\n", "So.</think>"]
    assert stepped("paragraph", SAID) == stepped("\n\n", SAID) == paragraphs + answer
    sentences = ["One. ", "Two?\n", "\nWait, 3\nor 4.\n", "\nSo.</think>"]
    assert stepped("sentence", SAID) == sentences + answer
    waits = ["One. Two?\n\nWait", ", 3\nor 4.\n\nSo.</think>"]
    assert stepped("wait", SAID) == waits + answer
    assert stepped(12, SAID) == [SAID[:12], SAID[12:24], SAID[24 : SAID.index("4\ny")], *answer]


def test_a_parted_thought_is_closed_at_its_limit() -> None:
    steps = stepped(4, "0123456789", thinking_tokens=6, max_steps=2)
    assert steps == ["0123", "45</think>\n\nFinal Answer:"]


# ---------------------------------------------------------------- on and off


def prompt_of(search: Any, tokenizer: Any, **options: Any) -> str:
    backend = Thinking(["7"], tokenizer)
    result = solve(search, problem="q", engine=backend, **options)
    return str(tokenizer.decode(result.best.tokens[: result.best.prompt_length]))


def test_thinking_is_switched_by_the_chat_template() -> None:
    empty = "<think>\n\n</think>\n\n"
    assert prompt_of(Greedy(thinking="off"), QWEN3).endswith(empty)
    assert not prompt_of(Greedy(thinking="on"), QWEN3).endswith(empty)
    assert prompt_of(Greedy(), QWEN3) == prompt_of(Greedy(thinking="on"), QWEN3)
    effort = thinker(TURNS + "{{ reasoning_effort | default('medium') }}</think>", plain=TAGS)
    assert prompt_of(Greedy(thinking="low"), effort).endswith("low</think>")
    assert prompt_of(Greedy(), effort).endswith("medium</think>")


def test_without_a_switch_the_thought_is_ended_at_once() -> None:
    result = solved(Greedy(thinking="off"), lambda branch: "The answer is 4.")
    assert result.answer == "4" and result.best.thought == ""
    assert "</think>\n\n" in R1.decode(result.best.tokens)
    assert result.usage.thinking_tokens == 0


def test_a_switch_that_is_not_there_is_refused() -> None:
    plain = thinker(TURNS)
    with pytest.raises(InvalidInput, match="thinking=on, and the model has no marks"):
        solve(Greedy(thinking="on"), problem="q", engine=Thinking(["7"], plain))
    with pytest.raises(InvalidInput, match="thinking=high is for chat templates with"):
        solve(Greedy(thinking="high"), problem="q", engine=Thinking(["7"], QWEN3))
    asked = PromptTemplate(options={"enable_thinking": False})
    with pytest.raises(InvalidInput, match="sets the chat template's enable_thinking to True"):
        solve(Greedy(thinking="on"), problem="q", engine=Thinking(["7"], QWEN3), template=asked)
    assert solve(Greedy(thinking="off"), problem="q", engine=Thinking(["7"], plain)).answer == "7"


# ---------------------------------------------------------------- what verifiers see


def test_a_verifier_rates_thoughts_or_answers_by_its_switch() -> None:
    said = "One\nis it 3?</think>So\nThe answer is 4."
    result = solved(Greedy(), [said])
    model: Any = (None, None)
    assert rated_text(result.best, thoughts=True) == said
    assert rated_text(result.best, thoughts=False) == "So\nThe answer is 4."
    assert all(kind(model).thoughts for kind in (ValueHead, QwenPRM, ThinkPRM))
    assert not any(kind(model).thoughts for kind in (OutcomeReward, LLMJudge))
    cut = solved(Greedy(thinking_tokens=None, max_tokens=5), [said])
    assert rated_text(cut.best, thoughts=False) == said[:5]


def test_a_self_verifier_without_thoughts_asks_in_a_fresh_prompt() -> None:
    with pytest.raises(InvalidInput, match="thoughts=False shows the answer alone"):
        SelfVerifier(thoughts=False)
    backend = Thinking(["is it 3?</think>4"], thinker(OPENING, plain=(*TAGS, "Yes", "No")))
    for thoughts in (True, False):
        verifier = SelfVerifier(fresh=True, thoughts=thoughts)
        solve(BestOfN(n=1), problem="q", engine=backend, verifier=verifier)
    shown = [backend.decode(tokens) for tokens in backend.scored]
    assert "is it 3?</think>4" in shown[0] and "is it 3?" not in shown[1]
    assert "Solution:\n4\n" in shown[1]


# ---------------------------------------------------------------- every search


class Thinker(Thinking):
    """Thoughts and answers of random lengths. Steps may ask for statistics."""

    def __init__(self) -> None:
        super().__init__(self.random_text, R1)

    @staticmethod
    def random_text(branch: Branch) -> str:
        number = random_key(branch.key, len(branch.tokens))
        thought = "" if branch.thinking_ended is not None else "hm,\n\n" * (number % 5) + "</think>"
        return f"{thought}so,{number % 3}"

    def generate(
        self, branches: Sequence[Branch], *given: Any, statistics: bool = False, **options: Any
    ) -> None:
        super().generate(branches, *given, **options)
        for branch in branches if statistics else []:
            branch.top_k_logprobs[:] = [-1.0] * len(branch.logprobs)


ALL = [
    *all_searches(thinking_tokens=8),
    *(
        small(name, {"thinking_tokens": 8}, thinking_step=part)
        for name in ("beam_search", "mcts", "particle_filter", "rebase", "mur")
        for part in (4, "paragraph")
    ),
]


@pytest.mark.few(8)
@pytest.mark.parametrize("search", ALL, ids=lambda search: type(search).__name__)
def test_every_search_runs_over_a_model_that_thinks(search: Any) -> None:
    verifier = Costly(1) if search.needs_verifier else None
    problems, seen = ["1?", "2?", "3?"], []
    for asked in (problems, problems[:1]):
        backend = Thinker()
        results = solve(search, problem=asked, engine=backend, verifier=verifier)
        assert not backend.live
        for result in results:
            assert result.error is None and result.usage.thinking_tokens > 0
            most = max(branch.thinking_tokens for branch in result.branches)
            own = isinstance(search, BudgetForcing | CertaintyProbe)
            assert own or most <= 8
        seen.append([(branch.text, branch.score) for branch in results[0].branches])
    assert seen[0] == seen[1]
    backend = Thinker()
    options: Any = {"engine": backend, "verifier": verifier, "max_generated_tokens": 23}
    limited = solve(search, problem="1?", **options)
    assert limited.usage.generated_tokens <= 23 and not backend.live


def test_a_paragraph_that_ends_with_the_limit_is_closed_in_its_own_step() -> None:
    steps = stepped("paragraph", "abcd\n\nefgh", thinking_tokens=6, max_steps=1)
    assert steps == ["abcd\n\n</think>\n\nFinal Answer:"]
    assert stepped("paragraph", "abcd\n\n4", thinking_tokens=0, max_steps=1)[0].startswith("abcd")
