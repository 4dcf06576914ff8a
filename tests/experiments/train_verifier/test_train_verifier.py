"""Labels against texts written by hand, figures against references of a few lines, and the command
end to end."""

from __future__ import annotations

import json
import re
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from experiments.fit.train_verifier.auc import auc, auc_within
from experiments.fit.train_verifier.evaluation import Candidates, SharedCandidates, choices
from experiments.fit.train_verifier.fitting import Rows, fit, loss, train
from experiments.fit.train_verifier.lora import LoraSettings, LoraTraining
from experiments.fit.train_verifier.lora import examples as lora_examples
from experiments.fit.train_verifier.problems import load_problems, split, unseen
from experiments.fit.train_verifier.rollouts import Rollouts, Solution, solutions
from experiments.fit.train_verifier.training import run
from search import BestOfN, solve
from search.selection import majority, weighted_majority
from tests.helpers.backends import FakeBackend
from tests.helpers.configurations import configuration
from tests.helpers.processes import finished
from tests.helpers.scripted import Scripted
from tests.helpers.tiers import examples, slow
from tests.helpers.tokenizers import Chatting
from ttc import Branch, InvalidInput, Problem
from ttc.model.loading.load import load
from ttc.text.equality import AnswerReader
from ttc.text.prompt import PromptTemplate
from verifiers import TokenPRM, ValueHead
from verifiers.reward_model import split_steps

# ---------------------------------------------------------------- rollouts and labels

WRITTEN = {
    # 1 agrees with 0, 2 ends at once, 3 is cut by its length
    (0,): "a\n",
    (1,): "a\n",
    (2,): "b0",
    (3,): "cc",
    (0, 0): "r0",
    (0, 1): "x0",
    (0, 2): "x\n",
    (1, 0): "r0",
    (3, 0): "x0",
    (3, 1): "x0",
    (3, 2): "d\n",
    (0, 2, 0): "r0",
    (0, 2, 1): "r0",
    (0, 2, 2): "x0",
    (3, 2, 0): "r0",
    (3, 2, 1): "x0",
    (3, 2, 2): "r0",
}


def test_a_steps_value_is_the_share_of_its_continuations_that_end_right() -> None:
    backend = Scripted(lambda branch: WRITTEN[branch.path])
    search = Rollouts(n=4, continuations=2, step_tokens=2, max_steps=3)
    result = solve(search, problem="?", engine=backend)
    found = solutions(result, lambda text: "r" in text, "\n")
    assert [(one.steps, one.values, one.correct) for one in found] == [
        # what follows the second "a" was not continued again
        (["a", "x", "x0"], [0.5, 1.0, 0.0], False),
        (["a", "r0"], [0.5, 1.0], True),
        (["b0"], [0.0], False),
        # the value at the end of the step, not where its length cut it
        (["ccd", "r0"], [0.5, 1.0], True),
    ]
    assert not backend.live
    third = found[3]
    assert third.targets("soft") == [0.5, 1.0] and third.targets("hard") == [1.0, 1.0]
    assert found[0].targets("hard") == [1.0, 1.0, 0.0] and found[0].targets("outcome") == [
        0.0,
        0.0,
        0.0,
    ]


def test_without_continuations_every_step_has_the_outcome() -> None:
    backend = FakeBackend("012\n")
    search = Rollouts(n=5, continuations=0, step_tokens=4, max_steps=4)
    for one in solutions(
        solve(search, problem="?", engine=backend), lambda text: "1" in text, "\n"
    ):
        assert one.values == [float("1" in "".join(one.steps))] * len(one.steps)


def test_rows_are_in_trls_format() -> None:
    one = Solution(Problem("1 + 1?", "p-1"), ["1 + 1 = 2", "So 2"], [0.25, 0.0], False)
    assert one.row("Q: {question}\n", "soft") == {
        "prompt": "Q: 1 + 1?\n",
        "completions": ["1 + 1 = 2", "So 2"],
        "labels": [True, False],
        "values": [0.25, 0.0],
        "id": "p-1",
    }
    assert one.row("{question}", "outcome")["labels"] == [False, False]


class ReadByHead:
    """Notes what a head would read of each branch."""

    def __init__(self, head: ValueHead) -> None:
        self.head = head
        self.read: dict[str, list[int]] = {}

    def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
        for branch, question in zip(branches, questions, strict=True):
            self.read[branch.text] = self.head.layout(branch, question).tokens
        return [[1.0]] * len(branches)


@pytest.mark.parametrize("system", [None, "1?"])
def test_a_conversation_is_read_in_training_as_it_is_rated(base: Path, system: Any) -> None:
    """By the head on its own and with adapters, and in the rows for others."""
    backend = FakeBackend("01\n0")
    backend.tokenizer = Chatting()
    head = ValueHead.on(*load(str(base), dtype="float32"), separator="\n")
    chat = [
        {"role": "user", "content": "0+1"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "0"},
    ]
    problem, template = Problem.of_chat(chat), PromptTemplate(system=system)
    rating = ReadByHead(head)
    search = BestOfN(n=6, max_tokens=6)
    result = solve(search, problem=problem, engine=backend, verifier=rating, template=template)
    solved = [
        Solution(problem, split_steps(b.text, "\n", True)[0], [1.0], True)
        for b in result.branches
        if b.finish_reason == "eos"
    ]
    assert solved
    for one, branch in zip(solved, (b for b in result.branches if b.finish_reason), strict=True):
        (example,) = lora_examples(head, [one], "outcome")
        assert example.tokens == rating.read[branch.text]
        assert head.rate_solutions([(problem.whole_question, one.steps)]) == [
            [0.5] * len(one.steps)
        ]
        assert one.row("{question}", "outcome")["prompt"] == problem.whole_question
    assert problem.whole_question == "User: 0+1\n\nAssistant: 1\n\nUser: 0"


def test_conversations_that_end_alike_are_different_problems() -> None:
    first, second = (
        Problem.of_chat([*said, {"role": "user", "content": "Go on."}])
        for said in ([], [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    )
    assert unseen([first, second, first], []) == [first, second]
    assert unseen([first, second], [first]) == [second]


# ---------------------------------------------------------------- problems


def test_no_problem_to_train_on_has_a_question_of_the_test_set() -> None:
    config = configuration("train_verifier", "train.problems=30", "dataset.limit=60")
    # so that some agree
    config.dataset.params = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    found = load_problems(config)
    plain = {
        name: {" ".join(p.question.split()) for p in part.problems}
        for name, part in found.parts.items()
    }
    assert not plain["train"] & plain["test"] and not plain["validation"] & plain["test"]
    assert not plain["train"] & plain["validation"] and found.dropped > 0
    assert [len(part.problems) for part in found.parts.values()] == [24, 6, 60]
    for part in found.parts.values():  # each with its own scorer
        assert all(part.is_right(p, f"The answer is {p.answer}.") for p in part.problems[:5])
        assert not part.is_right(part.problems[0], f"The answer is {part.problems[0].answer}1.")


def test_questions_that_differ_in_blanks_or_capitals_are_one() -> None:
    problems = [Problem(q) for q in ("a b", "A  b", "c", "d ")]
    assert [p.question for p in unseen(problems, [Problem("D")])] == ["a b", "c"]


@given(st.integers(2, 40), st.floats(0.01, 0.99), st.integers(0, 5))
def test_a_split_keeps_whole_problems_and_both_parts(count: int, share: float, seed: int) -> None:
    problems = [Problem(str(n), str(n)) for n in range(count)]
    train_part, validation = split(problems, share, seed)
    assert train_part and validation and not {p.id for p in train_part} & {p.id for p in validation}
    assert sorted(map(int, (p.id for p in train_part + validation))) == list(range(count))


@pytest.mark.few
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset=math500"], "names no other problems to train on"),
        (["train.problems=2"], r"train\.problems=2 must be at least 4"),
        (["train.validation=1"], "must be more than 0 and less than 1"),
        (["train.labels=stars"], "use one of soft, hard, outcome"),
        (["train.continuations=0"], "train.labels=outcome"),
        (["train.lora_rank=-1"], r"train\.lora_rank=-1 must be at least 0"),
        (["train.lora_rank=4", "train.epochs=0"], r"train\.epochs=0 must be at least 1"),
        (["train.lora_rank=4", "train.learning_rate=2"], r"learning_rate=2\.0 .* at most 1"),
        (["train.rollouts=0"], r"train\.rollouts=0 must be at least 1"),
        (["train.samples=0"], r"train\.samples=0 must be at least 1"),
        (["train.separator="], r"train\.separator is empty"),
        (["search=self_consistency"], "asks no verifier"),
        (["train.verifier=token_prm"], r"trains adapters; give train\.lora_rank=8"),
        (["train.verifier=prm"], "train.verifier=prm is unknown; use one of value_head, token_prm"),
        (["train.record=nowhere/at/all.json"], "in a folder that does not exist"),
        (["+train.data.limit=200"], "0 may be used"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(
    overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "math.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    extra = ["dataset.path=math.jsonl"] if overrides == ["dataset=math500"] else []
    with pytest.raises(InvalidInput, match=message):
        run(configuration("train_verifier", f"train.folder={tmp_path}/head", *overrides, *extra))


@pytest.mark.slow
def test_a_folder_with_files_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "value_head.json").write_text("{}")
    for folder in (tmp_path, tmp_path / "value_head.json"):
        with pytest.raises(InvalidInput, match="is no empty folder"):
            run(configuration("train_verifier", f"train.folder={folder}"))


# ---------------------------------------------------------------- fitting


def noisy(rows: int, seed: int) -> Rows:
    """Rows whose label depends on the first of four features."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, 4, generator=generator) * torch.tensor([1.0, 5.0, 0.1, 1.0]) + 3
    odds = 2 * (states[:, 0] - 3) - 1
    return Rows(states, (torch.rand(rows, generator=generator) < odds.sigmoid()).float())


def test_training_lowers_the_loss_and_finds_what_the_label_depends_on() -> None:
    found = train(noisy(400, 0), noisy(400, 1))
    assert (
        found.after < found.before - 0.1 and min(found.validation.values()) < found.constant - 0.1
    )
    assert (
        found.weight[0] == pytest.approx(2, abs=0.5)
        and (found.weight * torch.tensor([1, 5, 0.1, 1]))[1:].abs().max() < 0.3
    )
    new = noisy(2000, 2)
    assert (
        loss(found.log_odds(new.states), new.targets.double())
        < 0.48
        < loss(torch.zeros(2000), new.targets)
    )


def test_the_fit_is_where_the_penalised_loss_has_no_slope() -> None:
    rows, strength = noisy(100, 0), 0.1
    found = fit(rows, strength)
    scale = rows.states.double().std(0, correction=0)
    weight, bias = found.weight.clone().requires_grad_(), found.bias.clone().requires_grad_()
    odds = (rows.states.double() @ weight + bias).sigmoid()
    targets = rows.targets.double()
    entropy = -(targets * odds.log() + (1 - targets) * (1 - odds).log()).mean()
    (entropy + strength / 2 * (weight * scale).square().sum()).backward()
    assert weight.grad.abs().max() < 1e-5 and abs(float(bias.grad)) < 1e-5


def test_the_strength_is_the_best_one_on_the_validation_rows() -> None:
    few, other = noisy(12, 3), noisy(500, 4)
    found = train(few, other)
    assert found.validation[found.strength] == min(found.validation.values())
    assert found.strength > min(found.validation)


def test_rows_that_are_all_alike_cannot_be_trained_on() -> None:
    rows = Rows(torch.randn(5, 4), torch.zeros(5))
    with pytest.raises(InvalidInput, match="all 5 training steps are labelled 0"):
        train(rows, rows)
    with pytest.raises(InvalidInput, match="no training steps"):
        train(Rows(torch.zeros(0, 4), torch.zeros(0)), rows)


# ---------------------------------------------------------------- figures

GROUPS = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=6),
    min_size=1,
    max_size=6,
)


def pairs_won(groups: list[list[tuple[float, bool]]]) -> float:
    """The share of (right, wrong) pairs in which the right one scores more, ties half; pairs within
    groups alone."""
    won = [
        (a > b) + 0.5 * (a == b)
        for group in groups
        for (a, good), (b, also) in product(group, group)
        if good and not also
    ]
    return sum(won) / len(won) if won else float("nan")


@settings(max_examples=examples(30))
@given(GROUPS)
def test_auc_is_the_share_of_pairs_in_the_right_order(groups: list[list[tuple[int, bool]]]) -> None:
    scores = [[float(score) for score, _ in group] for group in groups]
    right = [[good for _, good in group] for group in groups]
    whole = [[(float(score), good) for group in groups for score, good in group]]
    assert auc(scores, right)[0] == pytest.approx(pairs_won(whole), nan_ok=True)
    assert auc_within(scores, right)[0] == pytest.approx(pairs_won(groups), nan_ok=True)


@pytest.mark.slow
def test_the_interval_of_an_auc_is_over_problems_and_not_over_scores() -> None:
    rng = np.random.default_rng(0)
    shift = rng.normal(size=30)  # of a problem, so that its scores and its labels go together
    right = [(rng.random(40) < 1 / (1 + np.exp(-s))).tolist() for s in shift]
    scores = [
        (rng.normal(size=40) + np.array(labels) + 3 * s).tolist()
        for s, labels in zip(shift, right, strict=True)
    ]
    value, low, high = auc(scores, right)
    alone = auc([[s] for one in scores for s in one], [[r] for one in right for r in one])
    assert low < value < high and alone[0] == value
    assert high - low > 1.2 * (alone[2] - alone[1])
    means = []
    for _ in range(400):  # the same by drawing whole problems one by one
        drawn = rng.integers(0, 30, 30)
        means.append(auc_value([scores[i] for i in drawn], [right[i] for i in drawn]))
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.02)


def auc_value(scores: list[list[float]], right: list[list[bool]]) -> float:
    flat = np.concatenate(scores)
    labels = np.concatenate(right)
    good, bad = flat[labels], flat[~labels]
    return float((good[:, None] > bad[None]).mean())


def test_choices_by_scores_and_by_votes() -> None:
    found = [
        Candidates(
            ["1", "2", "2", "3"],
            [False, False, False, True],
            {"a": [0.1, 0.2, 0.3, 0.9], "b": [1, 0, 0, 0]},
        ),
        Candidates(
            ["1", "2", "2", "3"],
            [False, True, True, False],
            {"a": [0.1, 0.9, 0.9, 1.0], "b": [0, 0, 1, 0]},
        ),
        Candidates([], [], {"a": [], "b": []}),  # a problem that failed
    ]
    assert choices(found, ["a", "b"]) == {
        "a": [True, False, False],
        "b": [False, True, False],
        "votes weighed by the a": [True, True, False],
        "majority": [False, True, False],
        "any right": [True, True, False],
    }


def test_verifiers_that_rate_together_rate_as_each_alone() -> None:
    class Length:
        def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
            return [[0.0, float(len(branch.text))] for branch in branches]

    class Shortness(Length):
        def rate(self, branches: Any, questions: Any, backend: Any) -> list[list[float]]:
            return [[-float(len(branch.text))] for branch in branches]

    backend = Scripted(lambda branch: "1" * len(branch.path) + "0")
    root = backend.root([1])
    branches: list[Branch] = backend.fork(root, 2)
    backend.generate(branches, 4)
    together = SharedCandidates({"long": Length(), "short": Shortness()})
    assert together.rate(branches, ["?", "?"], backend) == Length().rate(branches, ["?"], backend)
    assert together.seen == {
        root.root_id: [(b.text, {"long": 2.0, "short": -2.0}) for b in branches]
    }


# ---------------------------------------------------------------- the command

LETTERS = ["0", "1", "+", " ", "\n", "?"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model that writes sums of zeros and ones."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(
        models.WordLevel({letter: n for n, letter in enumerate(LETTERS)}, unk_token="?")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(folder)
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(LETTERS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    hf.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _updates(model: torch.nn.Module) -> list[torch.Tensor]:
    """The factors of LoRA that are zero before training."""
    return [weights for name, weights in model.named_parameters() if "lora_B" in name]


def sums(path: Path, questions: list[str]) -> Path:
    lines = [json.dumps({"question": q, "answer": str(eval(q) % 2)}) for q in questions]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def on_sums(base: Path, test: Path, training: Path) -> list[str]:
    """What sets a small model, and sums to test it and to train it on."""
    return [
        f"model.name={base}",
        "model.dtype=float32",
        "dataset=file",
        f"dataset.path={test}",
        "dataset.raw=true",
        "dataset.instruction='{question} '",
        "dataset.limit=null",
        f"+train.data.path={training}",
    ]


@pytest.mark.parametrize("rank", [0, slow(4)], ids=["head", "lora"])
def test_what_is_trained_is_saved_described_and_loads_with_the_same_scores(
    rank: int, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.runs.provenance.code_hash", str.upper)  # takes seconds
    questions = [
        "+".join(bits) for n in (2, 3, 4)[: 3 if rank else 2] for bits in product("01", repeat=n)
    ]
    test, training = (
        sums(tmp_path / "test.jsonl", questions[::3]),
        sums(tmp_path / "training.jsonl", questions),
    )
    overrides = [
        *on_sums(base, test, training),
        "train.folder=head",
        "train.record=figures.json",
        f"train.problems={16 if rank else 8}",
        f"train.rollouts={6 if rank else 4}",
        f"train.continuations={3 if rank else 2}",
        "train.step_tokens=6",
        "train.max_steps=3",
        "train.samples=4",
        f"train.lora_rank={rank}",
        "train.learning_rate=0.01",
        "search.step_tokens=6",
        "search.max_steps=3",
        "verifier=none",
    ]
    record = run(configuration("train_verifier", *overrides), overrides)
    assert json.loads((tmp_path / "figures.json").read_text()) == json.loads(json.dumps(record))
    assert record["fit"]["loss"] < record["fit"]["loss_before"]
    read_at_all = questions[: 16 + len(questions[::3])]  # and as many as the test has
    assert record["data"]["dropped"] == len(read_at_all[::3])
    rows = {
        part: read(tmp_path / "head" / f"{part}.jsonl") for part in ("train", "validation", "test")
    }
    asked = {part: {row["prompt"] for row in rows[part]} for part in rows}
    assert (
        not asked["test"] & (asked["train"] | asked["validation"])
        and not asked["train"] & asked["validation"]
    )
    assert asked["test"] == {f"{q} " for q in questions[::3]}
    head = ValueHead("head", dtype="float32")
    model, tokenizer = head.parts
    causal = hf.AutoModelForCausalLM.from_pretrained(base).eval()
    if rank:
        causal = PeftModel.from_pretrained(causal, "head").get_base_model()
        assert record["fit"]["lora"]["rank"] == rank
        assert any(weights.abs().max() > 0 for weights in _updates(causal))
    plain = causal.model
    scores: dict[str, list[tuple[float, bool]]] = {}
    for row in rows["test"]:
        tokens, known = tokenizer.encode(row["prompt"]), list[float]()
        for step in row["completions"]:  # as TRL lays it out
            tokens += tokenizer.encode(step) + tokenizer.encode("\n")
            with torch.no_grad():
                state = plain(torch.tensor([tokens])).last_hidden_state[0, -1]
                known.append(float(model.head(state).softmax(-1)[1]))
        assert len(row["labels"]) == len(known) and all(
            isinstance(label, bool) for label in row["labels"]
        )
        pairs = zip(known[:-1], row["labels"][:-1], strict=True)
        scores.setdefault(row["id"], []).extend(pairs)
    together = [[pair for group in scores.values() for pair in group]]
    assert record["steps"]["all"][0] == pytest.approx(pairs_won(together), abs=0.01)
    assert record["steps"]["within"][0] == pytest.approx(pairs_won(list(scores.values())), abs=0.01)
    accuracy = {(row["search"], row["chooser"]): row["accuracy"] for row in record["searches"]}
    assert accuracy["best-of-4", "any right"] >= max(
        value for (name, _), value in accuracy.items() if "best" in name
    )
    gains = {(row["search"], row["over"]): row["gain"][0] for row in record["gains"]}
    head_beam = accuracy["BeamSearch", record["verifier"]]
    assert gains["BeamSearch", "majority of best-of-4"] == pytest.approx(
        head_beam - accuracy["best-of-4", "majority"]
    )
    assert gains["BeamSearch", "confidence"] == pytest.approx(
        head_beam - accuracy["BeamSearch", "confidence"]
    )
    card = (tmp_path / "head" / "README.md").read_text()
    assert "verifier.model=head" in card
    assert re.search(rf"\| test +\| {len(questions[::3])} ", card)


def tuned(base: Path, learning_rate: float, of_tokens: bool = False) -> list[torch.Tensor]:
    """The factors of adapters that were trained to tell sums of equal numbers from others."""
    model, tokenizer = load(str(base), dtype="float32")
    verifier: ValueHead | TokenPRM = ValueHead.on(model, tokenizer)
    if of_tokens:
        options = {"mark": "\n", "step": "{step}{mark}", "template": "{question}{steps}"}
        verifier = TokenPRM((model, tokenizer), good=["1", "+"], bad="0", **options)
    training = LoraTraining(model, LoraSettings(2, 8, learning_rate, 4), 3, verifier)
    solved = [
        Solution(Problem(f"{a}+{b}"), [f"{a}", f"{end}"], [0.5, float(a == b)], a == b)
        for a, b, end in product("01", "01", "01+? ")
    ]
    fit = training.run(solved, solved[::3], "soft")  # 5 batches, 8 times
    assert fit.after < fit.before and min(fit.validation.values()) == fit.validation[fit.epoch]
    return [weights.detach().clone() for weights in _updates(model)]


@pytest.mark.slow
def test_a_model_whose_tokens_rate_is_trained_and_loads_as_token_prm(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the seeds, twice the candidates; the folder's scores are plain transformers'."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.runs.provenance.code_hash", str.upper)  # takes seconds
    questions = ["+".join(bits) for n in (2, 3, 4) for bits in product("01", repeat=n)]
    test = sums(tmp_path / "test.jsonl", questions[::3])
    training = sums(tmp_path / "training.jsonl", questions)
    overrides = [
        *on_sums(base, test, training),
        "train.verifier=token_prm",
        r'+train.format.mark="\n"',
        "+train.format.good='1'",
        "+train.format.bad='0'",
        '+train.format.template="{question}{steps}"',
        '+train.format.step="{step}{mark}"',
        "train.folder=prm",
        "train.problems=16",
        "train.rollouts=6",
        "train.continuations=3",
        "train.step_tokens=6",
        "train.max_steps=3",
        "train.samples=4",
        "train.seeds=2",
        "train.lora_rank=4",
        "train.learning_rate=0.01",
        "search.step_tokens=6",
        "search.max_steps=3",
        "verifier=none",
    ]
    record = run(configuration("train_verifier", *overrides), overrides)
    assert record["verifier"] == "token PRM" and record["fit"]["lora"]["rank"] == 4
    options = {"good": "1", "bad": "0", "template": "{question}{steps}", "step": "{step}{mark}"}
    verifier = TokenPRM("prm", mark="\n", separator="\n", dtype="float32", **options)
    plain = hf.AutoModelForCausalLM.from_pretrained("prm").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained("prm")
    text, scores = "0+1", []
    for step in ("1+0", "1"):
        text += f"{step}\n"
        with torch.no_grad():
            logits = plain(torch.tensor([tokenizer.encode(text)])).logits[0, -1]
        scores.append(float(logits[[1, 0]].softmax(-1)[0]))
    assert verifier.rate_solutions([("0+1", ["1+0", "1"])])[0] == pytest.approx(scores, abs=1e-5)
    accuracy = {(row["search"], row["chooser"]): row["accuracy"] for row in record["searches"]}
    halves = 2 * len(questions[::3])  # of a problem that is right with one of two seeds
    assert all(
        value * halves == pytest.approx(round(value * halves)) for value in accuracy.values()
    )
    assert ("best-of-4", "votes weighed by the token PRM") in accuracy
    card = (tmp_path / "prm" / "README.md").read_text()
    assert r"""verifier=token_prm 'verifier.separator="\n"' 'verifier.mark="\n"'""" in card


@pytest.mark.slow
@pytest.mark.parametrize("of_tokens", [False, True])
def test_adapters_follow_from_the_seed(of_tokens: bool, base: Path) -> None:
    once, again = tuned(base, 0.003, of_tokens), tuned(base, 0.003, of_tokens)
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    assert any(weights.any() for weights in once)


def test_a_training_that_diverges_names_its_rate(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoraTraining, "mean_loss", lambda training, rows: float("nan"))
    with pytest.raises(InvalidInput, match=r"learning_rate=0\.01 is too high: the loss was nan"):
        tuned(base, 0.01)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_help_is_shown_at_once_and_names_the_settings() -> None:
    words = [sys.executable, "-m", "experiments.train_verifier", "--help"]
    shown = finished(words, check=True).stdout
    config = configuration("train_verifier")
    assert all(f"train.{name}=" in shown or f"train.{name}." in shown for name in config.train)


MATH = AnswerReader("math")


def test_a_trained_verifier_is_compared_with_the_same_votes() -> None:
    answers = ["7", "5 cm", "x=5", "5", "7"]
    right = [False, True, True, True, False]
    scores = {"v": [0.5, 0.4, 0.4, 0.4, 0.5]}
    grouped = Candidates(answers, right, scores, MATH.ballots(answers))  # type: ignore[arg-type]
    assert grouped.chosen(majority) and grouped.chosen(weighted_majority, "v")
    assert not Candidates(answers, right, scores).chosen(majority)  # type: ignore[arg-type]
