"""RSA and GenSelect: what the model is shown, who is drawn, who goes on, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search import Aggregate, solve
from search.aggregate import PICK, WRITE, last_lines, picked
from search.selection import by_path
from tests.helpers.engines import make_engine
from tests.helpers.scripted import Scores, Scripted
from tests.helpers.thinking import OPENING, Thinking, thinker
from tests.helpers.tiers import examples
from ttc import Branch, ContextExceeded, Task
from ttc.sampling import random_key
from ttc.text.answers import extract_answer
from ttc.text.prompt import PromptTemplate

STEPS = "\nThink step by step, and end with 'The answer is N.', N being the final answer."
FIRST = f"Question: q{STEPS}\nAnswer:"


def number(prompt: str, path: Sequence[int]) -> str:
    return f"{random_key(prompt, *path) % 3 + 1}0"


class Reader(Scripted):
    """Answers by a function of the prompt and the path, and keeps the prompts."""

    def __init__(
        self, say: Callable[[str, tuple[int, ...]], str] = number, longest: int = 9000
    ) -> None:
        super().__init__(self.write, longest=longest)
        self.say, self.prompts = say, list[str]()

    def write(self, branch: Branch) -> str:
        prompt = self.decode(branch.tokens[: branch.prompt_length])
        self.prompts.append(prompt)
        return self.say(prompt, branch.path)

    def variants(self, root: Branch, prompts: Any, suffixes: Any = None) -> Task[list[Branch]]:
        if any(len(prompt) > self.longest for prompt in prompts):
            raise ContextExceeded("too long")
        return super().variants(root, prompts, suffixes)


def run(backend: Any, search: Aggregate, **options: Any) -> Any:
    result = solve(search, problem="q", engine=backend, **options)
    assert result.error is None and not getattr(backend, "live", None)
    return result


def shown(texts: Sequence[str], words: str, steps: str = STEPS) -> str:
    numbered = "".join(f"\n\nSolution {place}:\n{text}" for place, text in enumerate(texts, 1))
    return f"Question: q{numbered}\n\n{words}{steps}\nAnswer:"


def texts_of(result: Any) -> list[str]:
    return [branch.text for branch in by_path(result.branches)]


def rng_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(random_key(random_key(seed, "q"), "search"))


# ---------------------------------------------------------------- write


def recursive_self_aggregation(
    seed: int, n: int, k: int, m: int, rounds: int
) -> tuple[list[str], list[str]]:
    """The paper's algorithm: all prompts, and the last population."""
    rng, paths = rng_of(seed), n
    prompts, population = [FIRST] * n, [number(FIRST, (i,)) for i in range(n)]
    for _ in range(rounds):
        groups = [sorted(rng.choice(n, k, replace=False)) for _ in range(ceil(n / m))]
        asked = [shown([population[i] for i in group], WRITE) for group in groups]
        new = [asked[i % len(asked)] for i in range(n)]
        population = [number(prompt, (paths + i, 0)) for i, prompt in enumerate(new)]
        prompts, paths = prompts + new, paths + n
    return prompts, population


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.integers(0, 99), st.integers(1, 6), st.integers(1, 3))
def test_it_writes_as_the_papers_algorithm_does(
    data: st.DataObject, seed: int, n: int, rounds: int
) -> None:
    k, m = data.draw(st.integers(1, n)), data.draw(st.integers(1, n))
    backend = Reader()
    result = run(backend, Aggregate(n=n, k=k, m=m, rounds=rounds), seed=seed)
    prompts, population = recursive_self_aggregation(seed, n, k, m, rounds)
    assert backend.prompts == prompts and texts_of(result) == population
    votes = Counter(population)
    assert result.answer == max(population, key=lambda answer: votes[answer])
    assert backend.calls == [n] * (rounds + 1)
    assert max(map(len, backend.held)) <= 1 + 3 * n


def test_the_tree_computes_a_groups_prompt_once() -> None:
    """Tokens that are read are those of all prompts; what is computed is each prefix once."""
    search = Aggregate(n=4, k=2, m=2, rounds=1, max_tokens=6, words="Go on.")
    engine = make_engine(context=400)
    result = run(engine, search)
    nodes = {node.id: node for node in result.tree}
    starts = [node for node in result.tree if node.parent == 0 and not node.text]
    root = nodes[0].token_ids
    prompts = [root[: node.start] + node.token_ids for node in starts]
    assert len(prompts) == 4 and len({tuple(prompt) for prompt in prompts}) == 2
    kept = [prompt[:-1] for prompt in [root, *prompts]]  # the last token is fed with the next
    prefixes = {tuple(tokens[:end]) for tokens in kept for end in range(1, len(tokens) + 1)}
    assert result.usage.prompt_tokens == len(prefixes)
    assert result.usage.prompt_tokens + result.usage.shared_tokens == sum(map(len, kept))
    assert engine.kv_bytes() == 0


def test_solved_examples_and_the_instruction_stay_and_braces_are_text() -> None:
    backend = Reader(lambda prompt, path: "{question}0")
    template = PromptTemplate("Q {question}", examples=(("1", "one"),))
    run(backend, Aggregate(n=1, k=1, rounds=1, words="Now."), template=template)
    before = "Question: Q 1\nAnswer: one\n\nQuestion: Q q"
    assert backend.prompts[1] == f"{before}\n\nSolution 1:\n{{question}}0\n\nNow.\nAnswer:"


@pytest.mark.parametrize(
    "shows, texts",
    [("whole", "a\nb\n20"), (4, "b\n20"), (3, "20"), (1, "0"), ("answer", "b\n20")],
)
def test_what_is_shown_of_a_candidate(shows: Any, texts: str) -> None:
    backend = Reader(lambda prompt, path: "a\nb\n20")
    run(backend, Aggregate(n=1, k=1, rounds=1, shown=shows))
    assert backend.prompts[1] == shown([texts], WRITE)


def test_the_last_lines_are_those_that_give_the_answer() -> None:
    def read(text: str) -> str | None:
        return extract_answer(text, "number")

    assert last_lines("a\n\nThe answer is 3.\nb\nc", read) == "a\nThe answer is 3.\nb\nc"
    assert last_lines("a\nb\nThe answer is 3.", read) == "b\nThe answer is 3."
    assert last_lines("a\nb\nc", read) == "b\nc"
    assert last_lines("a", read) == "a" and last_lines("", read) == ""


def test_where_the_context_is_short_fewer_are_shown() -> None:
    search = Aggregate(n=3, k=3, rounds=1)
    for k in (2, 1):
        backend = Reader(longest=len(shown(["10"] * k, WRITE)))
        run(backend, search)
        assert {prompt.count("Solution") for prompt in backend.prompts[3:]} == {k}
    backend = Reader(longest=len(FIRST))
    result = run(backend, search)
    assert backend.prompts == [FIRST] * 3 and len(result.branches) == 3


# ---------------------------------------------------------------- budgets, problems, verifiers


@pytest.mark.parametrize(
    "most, kept, stopped",
    [
        (6, 3, "max_generated_tokens"),  # the first three alone
        (10, 5, "max_generated_tokens"),  # two of the round, beside them
        (12, 3, "max_generated_tokens"),  # the round's three
        (18, 3, None),
    ],
)
def test_a_budget_that_ends_a_round_leaves_the_best_so_far(
    most: int, kept: int, stopped: str | None
) -> None:
    backend = Reader()
    search = Aggregate(n=3, k=2, max_tokens=2)
    result = run(backend, search, max_generated_tokens=most)
    assert (len(result.branches), result.stopped) == (kept, stopped)
    prompts, _ = recursive_self_aggregation(0, 3, 2, 1, 2)
    assert backend.prompts == prompts[: most // 2]
    assert result.answer == Counter(texts_of(result)).most_common(1)[0][0]


@pytest.mark.parametrize(
    "answer, expected", [("majority", "10"), ("weighted", "20"), ("best", "30")]
)
def test_the_answer_goes_by_votes_or_by_ratings(answer: Any, expected: str) -> None:
    says = ["10", "10", "10", "20", "20", "30"]
    scores = {"10": 0.1, "20": 0.7, "30": 0.8}
    rated = list[str]()

    def score(branch: Branch) -> float:
        rated.append(branch.text)
        return scores[branch.text]

    backend = Reader(lambda prompt, path: says[path[0] % 6])
    search = Aggregate(n=6, k=2, rounds=1, answer=answer)
    verifier = None if answer == "majority" else Scores(score)
    assert run(backend, search, verifier=verifier).answer == expected
    assert rated == ([] if answer == "majority" else says * 2)


# ---------------------------------------------------------------- select


def picking(*picks: str, first: int = 0) -> Callable[[str, tuple[int, ...]], str]:
    """The i-th answer is i * 10, and the picks from that with the number `first` on are these."""

    def say(prompt: str, path: tuple[int, ...]) -> str:
        return f"{picks[(path[0] - first) % len(picks)] if len(path) > 1 else path[0] + 1}0"

    return say


def test_one_of_all_is_picked_by_a_plain_prompt() -> None:
    backend = Reader(picking("The best is Solution 2!"))
    template = PromptTemplate("Q {question}", examples=(("1", "one"),))
    search = Aggregate(mode="select", n=3, k=3, rounds=1)
    result = run(backend, search, template=template)
    order = [f"{i + 1}0" for i in rng_of(0).permutation(3)]
    assert backend.prompts[3] == shown(order, PICK, steps="")
    assert result.answer == order[1] and len(result.branches) == 1


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(2, 9), st.integers(2, 4), st.integers(1, 4), st.integers(0, 9))
def test_groups_meet_until_one_is_left(n: int, k: int, rounds: int, seed: int) -> None:
    """The largest of each group is picked, as by an oracle."""

    def say(prompt: str, path: tuple[int, ...]) -> str:
        if "Solution" not in prompt:
            return f"{path[0] + 1}0"
        values = [int(part.partition("\n\n")[0]) for part in prompt.split(":\n")[1:]]
        return f"Solution {values.index(max(values)) + 1}!0"

    k = min(k, n)
    backend = Reader(say)
    result = run(backend, Aggregate(mode="select", n=n, k=k, rounds=rounds), seed=seed)
    rng, left, asked = rng_of(seed), [10 * (i + 1) for i in range(n)], 0
    for _ in range(rounds):
        if len(left) == 1:
            break
        parts = np.array_split(rng.permutation(len(left)), ceil(len(left) / k))
        asked += sum(len(part) > 1 for part in parts)
        left = sorted(max(left[place] for place in part) for part in parts)
    assert texts_of(result) == [str(value) for value in left]
    assert len(backend.prompts) == n + asked


@pytest.mark.parametrize(
    "says, place",
    [
        (["Solution 1", "Solution 2", "Solution 2"], 1),
        (["Solution 2", "Solution 1", "None"], 0),  # of equals the first
        (["Solution 9", "I don't know", "Solution 2"], 1),
    ],
)
def test_most_of_several_picks_decide(says: Sequence[str], place: int) -> None:
    backend = Reader(picking(*(f"{pick}!" for pick in says), first=2))
    result = run(backend, Aggregate(mode="select", n=2, k=2, m=3, rounds=1))
    order = [f"{i + 1}0" for i in rng_of(0).permutation(2)]
    assert result.answer == order[place] and len(set(backend.prompts[2:])) == 1


def test_without_a_readable_pick_the_searchs_own_choice_goes_on() -> None:
    says = ["10", "20", "20"]
    backend = Reader(lambda prompt, path: "Both.0" if len(path) > 1 else says[path[0]])
    search = Aggregate(mode="select", n=3, k=3, rounds=1)
    assert run(backend, search).answer == "20"
    best = Aggregate(mode="select", n=3, k=3, rounds=1, answer="best")
    scores = Scores(lambda branch: 1.0 if branch.text == "10" else 0.5)
    assert run(backend, best, verifier=scores).answer == "10"


def test_groups_that_the_budget_left_out_keep_all() -> None:
    backend = Reader(picking("2"))
    search = Aggregate(mode="select", n=4, k=2, max_tokens=2)
    result = run(backend, search, max_generated_tokens=8)  # the answers
    assert (len(result.branches), result.stopped) == (4, "max_generated_tokens")
    result = run(backend, search, max_generated_tokens=10)  # and a pick, which is unreadable
    assert (len(result.branches), result.stopped) == (3, "max_generated_tokens")


@pytest.mark.parametrize(
    "text, place",
    [
        ("The best is Solution 2.", 1),
        ("Solution 1 is wrong, so solution #3", 2),
        ("**Solution: **2", 1),
        (" 2.\n", 1),
        ("Solution 4", None),
        ("Solution 0", None),
        ("Solution 2 or Solution 99999999999", 1),
        ("The answer is 2.", None),
        ("", None),
    ],
)
def test_a_pick_is_the_last_solution_that_is_named(text: str, place: int | None) -> None:
    assert picked(text, 3) == place


# ---------------------------------------------------------------- models that think


R1 = thinker(OPENING, plain=("<think>", "</think>"))


class Thinker(Thinking):
    """Keeps the prompts of all that it writes."""

    def __init__(self, says: Sequence[str]) -> None:
        self.prompts = list[str]()
        super().__init__(lambda branch: self._say(branch, says), R1)

    def _say(self, branch: Branch, says: Sequence[str]) -> str:
        self.prompts.append(self.decode(branch.tokens[: branch.prompt_length]))
        return says[branch.path[0] % len(says)]


@pytest.mark.parametrize("thoughts", [False, True])
def test_thoughts_are_left_out_unless_they_are_asked_for(thoughts: bool) -> None:
    backend = Thinker(["3?</think>It is 4.", "5, but it never ends"])
    search = Aggregate(n=2, k=2, rounds=1, thoughts=thoughts, thinking_tokens=None)
    result = run(backend, search)
    texts = ["3?\nIt is 4.", "5, but it never ends"] if thoughts else ["It is 4."]
    asked = shown(texts, WRITE).removeprefix("Question: ").removesuffix("\nAnswer:")
    assert f"user\n{asked}" in backend.prompts[2]
    assert result.answer == "4"
    assert [branch.thought for branch in result.branches][:1] == ["3?"]


def test_there_is_no_round_where_all_still_think() -> None:
    backend = Thinker(["5, but it never ends"])
    for mode in ("write", "select"):
        result = run(backend, Aggregate(mode=mode, n=2, k=2, thinking_tokens=None))
        assert len(result.branches) == 2 and result.answer is None
    assert len(backend.prompts) == 4
