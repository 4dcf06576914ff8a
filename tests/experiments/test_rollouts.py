"""Rollouts for training: advantages against values by hand, packed trees against separate rows, a
policy that is trained in place, and the command."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transformers import MistralConfig, MistralForCausalLM

from experiments.eval.rollouts.job import run
from experiments.fit.rollouts.advantages import (
    check_rule,
    grpo,
    token_advantages,
    treepo,
    treerl,
)
from experiments.fit.rollouts.packed import PackedTree, policy_loss
from experiments.fit.rollouts.rollout import Path as TreePath
from experiments.fit.rollouts.rollout import Rollout, rollouts_of
from search import Greedy, TreeRollouts, solve
from tests.helpers.backends import FakeBackend
from tests.helpers.engines import make_engine
from tests.helpers.models import COMMON
from tests.helpers.runs import ROWS, composed, save_model, save_rows
from tests.helpers.scripted import Scripted
from tests.helpers.tiers import examples
from ttc import InvalidInput, UnsupportedModel
from ttc.text.prompt import PromptTemplate

# ---------------------------------------------------------------- advantages

PATHS: list[TreePath] = [(0, 0), (0, 1), (1, 0), (1, 1, 0), (1, 1, 1)]
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0]
"""A tree of five leaves: V(root) = 3/5, V(0) = 1/2, V(1) = 2/3, V(1, 1) = 1."""


def test_treerl_adds_the_gains_over_the_root_and_over_the_parent() -> None:
    expected = [
        [-0.2 / math.sqrt(2), 0.4 + 0.5],
        [-0.2 / math.sqrt(2), -0.6 - 0.5],
        [2 / 15 / math.sqrt(3), -0.6 - 2 / 3],
        [2 / 15 / math.sqrt(3), (0.4 + 1 / 3) / math.sqrt(2), 0.4],
        [2 / 15 / math.sqrt(3), (0.4 + 1 / 3) / math.sqrt(2), 0.4],
    ]
    for found, row in zip(treerl(PATHS, REWARDS), expected, strict=True):
        assert found == pytest.approx(row)


def test_treepo_compares_a_leaf_with_the_leaves_of_each_node_above_it() -> None:
    found = [row[0] for row in treepo(PATHS, REWARDS)]
    means = [(0.4 + 0.5) / 2, (-0.6 - 0.5) / 2, (-0.6 - 2 / 3) / 2, (0.4 + 1 / 3 + 0) / 3]
    assert found == pytest.approx([*means, means[-1]])


def test_treepo_leaves_out_nodes_of_one_leaf() -> None:
    paths: list[TreePath] = [(0, 0), (1, 0)]
    assert treepo(paths, [1.0, 0.0]) == [[0.5, 0.5], [-0.5, -0.5]]
    assert treepo([(0, 0)], [1.0]) == [[0.0, 0.0]]


def test_grpo_looks_at_no_tree() -> None:
    deviation = math.sqrt(0.3)
    expected = [0.4 / (deviation + 1e-4), -0.6 / (deviation + 1e-4)]
    rows = grpo(PATHS, REWARDS)
    assert [row[0] for row in rows] == pytest.approx([expected[int(r == 0)] for r in REWARDS])
    assert [len(row) for row in rows] == [2, 2, 2, 3, 3]
    assert grpo([(0,)], [1.0]) == [[0.0]]


@settings(max_examples=examples(50))
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8))
def test_of_independent_samples_all_rules_take_the_reward_less_the_mean(
    rewards: list[float],
) -> None:
    paths = [(i,) for i in range(len(rewards))]
    gains = [[reward - sum(rewards) / len(rewards)] for reward in rewards]
    assert treepo(paths, rewards) == [pytest.approx(gain, abs=1e-9) for gain in gains]
    doubled = [[2 * gain[0]] for gain in gains]
    assert treerl(paths, rewards) == [pytest.approx(gain, abs=1e-9) for gain in doubled]


def made(path: TreePath, ends: list[int], tokens: list[int], prompt: list[int]) -> Rollout:
    return Rollout(prompt, tokens, [-1.0] * len(tokens), path, ends, "", True)


def test_each_token_gets_its_steps_advantage_and_given_tokens_none() -> None:
    rollout = Rollout([1], [5, 6, 7, 8], [-1.0, -1.0, math.nan, -1.0], (0, 0), [1, 4], "", True)
    assert rollout.per_token([2.0, 3.0]) == [2.0, 3.0, 0.0, 3.0]


def test_advantages_of_treepo_are_whitened_over_the_batch() -> None:
    group = [made((0,), [1], [5], [1]), made((1,), [3], [6, 7, 8], [1])]
    found = token_advantages([(group, [1.0, 0.0]), (group, [1.0, 1.0])], "treepo")
    flat = torch.tensor([value for rows in found for row in rows for value in row])
    assert float(flat.mean()) == pytest.approx(0, abs=1e-6)
    assert float(flat.std(unbiased=False)) == pytest.approx(1)
    equal = token_advantages([(group, [1.0, 1.0])], "treepo")
    assert equal == [[[0.0], [0.0, 0.0, 0.0]]]


def test_wrong_rewards_and_rules_are_refused() -> None:
    group = [made((0,), [1], [5], [1]), made((1,), [1], [6], [1])]
    for rewards in ([1.0], [1.0, math.nan]):
        with pytest.raises(InvalidInput, match="one finite number"):
            token_advantages([(group, rewards)], "grpo")
    with pytest.raises(InvalidInput, match="'ppo' is unknown; use one of grpo, treerl, treepo"):
        check_rule("ppo")


# ---------------------------------------------------------------- rollouts of results


def test_rollouts_hold_what_was_written_and_where_it_lies_in_the_tree() -> None:
    backend = Scripted(lambda branch: {(0,): "a,", (1,): "b0"}.get(branch.path, "c0"))
    search = TreeRollouts(n=3, step_tokens=4, delimiter=",")
    result = solve(
        search, problem="q", engine=backend, template=PromptTemplate("{question}", raw=True)
    )
    rollouts = rollouts_of(result)
    assert [(one.path, one.ends, one.text) for one in rollouts] == [
        ((0, 0), [2, 4], "a,c0"),
        ((0, 1), [2, 4], "a,c0"),
        ((1,), [2], "b0"),
    ]
    for one, branch in zip(rollouts, sorted(result.branches, key=lambda b: b.path), strict=True):
        assert one.prompt_ids + one.completion_ids == branch.tokens
        assert one.finished and one.logprobs == branch.logprobs


def test_samples_that_are_no_leaves_of_a_tree_are_refused() -> None:
    result = solve(Greedy(max_tokens=3), problem="q", engine=FakeBackend())
    result.branches[0].step_ends.append(3)
    with pytest.raises(InvalidInput, match="2 steps and a path of 1 fork"):
        rollouts_of(result)
    result.error = "it broke"
    with pytest.raises(InvalidInput, match="has no rollouts: it broke"):
        rollouts_of(result)


# ---------------------------------------------------------------- packed trees

PROMPT = [3, 4, 5, 6]
TREE = [
    made((0, 0), [2, 4], [7, 8, 9, 10], PROMPT),
    made((0, 1), [2, 5], [7, 8, 11, 12, 13], PROMPT),
    made((1,), [3], [20, 21, 22], PROMPT),
    made((0,), [2], [30, 31], [3, 4, 40]),  # another problem, whose prompt begins alike
]
GAINS = [[0.5, 0.5, -1.0, -1.0], [0.5, 0.5, 2.0, 2.0, 2.0], [-1.5] * 3, [0.25, 0.25]]


def test_a_packed_tree_has_the_loss_and_gradients_of_separate_rows() -> None:
    model = make_engine().model.double()
    by_rows = copy.deepcopy(model)
    by_rows.set_attn_implementation("sdpa")
    loss = torch.zeros((), dtype=torch.float64)
    for rollout, gains in zip(TREE, GAINS, strict=True):
        tokens = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
        logprobs = by_rows(tokens).logits[0, :-1].log_softmax(-1)
        written = logprobs.gather(-1, tokens[0, 1:, None])[-len(gains) :, 0]
        loss = loss - (torch.tensor(gains, dtype=torch.float64) * written).sum() / 14
    loss.backward()
    packed = PackedTree.of(TREE, GAINS)
    assert packed.rows == 8 + 9 + 7 + 5 and packed.completions == 14
    assert len(packed.tokens) == 4 + 2 + 2 + 3 + 3 + 3
    model.set_attn_implementation("sdpa")
    found = policy_loss(model, packed)
    found.backward()
    assert found.item() == pytest.approx(loss.item(), rel=1e-6)
    for ours, theirs in zip(model.parameters(), by_rows.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)  # norms are float32


def test_a_window_that_a_row_exceeds_is_refused() -> None:
    config = MistralConfig(**{**COMMON, "sliding_window": 8})
    with pytest.raises(UnsupportedModel, match="attends to 8 tokens, and a row has 9"):
        policy_loss(MistralForCausalLM(config), PackedTree.of(TREE, GAINS))


def test_rollouts_after_an_update_are_those_of_the_new_weights() -> None:
    """No keys and values of the old ones are used, and the module's own attention learns."""
    engine = make_engine(context=128)
    search = TreeRollouts(n=4, width=2, max_steps=3, step_tokens=3, temperature=1.0)
    optimizer = torch.optim.SGD(engine.model.parameters(), lr=0.5)
    before = None
    for _ in range(2):
        result = solve(search, problem="one and two", engine=engine)
        rollouts = rollouts_of(result)
        with engine.lent() as model:
            assert model.config._attn_implementation in ("sdpa", "eager")
            for one in rollouts:
                tokens = torch.tensor([[*one.prompt_ids, *one.completion_ids]])
                logprobs = model(tokens).logits[0, :-1].log_softmax(-1)
                written = logprobs.gather(-1, tokens[0, 1:, None])[-len(one.logprobs) :, 0]
                assert torch.allclose(torch.tensor(one.logprobs), written, atol=1e-4)
            gains = [[1.0] * len(one.completion_ids) for one in rollouts]
            policy_loss(model, PackedTree.of(rollouts, gains)).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert rollouts != before
        before = rollouts


# ---------------------------------------------------------------- the command

SEARCH = (
    "search=tree_rollouts",
    "search.n=3",
    "search.delimiter=null",
    "search.step_tokens=2",
    "search.max_steps=2",
    "verifier=none",
    "run.record_tokens=true",
)


def configured(place: Path, rule: str, *words: str, search: Any = SEARCH) -> Any:
    config = composed(place, *words, search=search)
    OmegaConf.set_struct(config, False)
    config.rollouts = {"rule": rule}
    return config


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_model(tmp_path / "model")
    save_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path


def test_the_command_writes_each_sample_with_its_advantages(place: Path) -> None:
    rows = run(configured(place, "treerl"))
    file = place / "outputs" / "r" / "rollouts.jsonl"
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    assert len(rows) == 3 * len(ROWS)
    for start in range(0, len(rows), 3):
        group = rows[start : start + 3]
        rewards = [row["reward"] for row in group]
        for row, values in zip(
            group, treerl([tuple(row["path"]) for row in group], rewards), strict=True
        ):
            assert row["reward"] == float(row["correct"]) and row["rule"] == "treerl"
            expected: list[float] = []
            for end, value in zip(row["step_ends"], values, strict=True):
                expected += [value] * (end - len(expected))
            assert row["advantages"] == pytest.approx(expected)
            assert len(row["advantages"]) == len(row["completion_ids"]) == len(row["logprobs"])
    # the finished run is read again, under another rule
    again = run(configured(place, "grpo"))
    assert [row["completion_ids"] for row in again] == [row["completion_ids"] for row in rows]
    assert {row["rule"] for row in again} == {"grpo"}


def test_the_command_refuses_what_it_cannot_credit(place: Path) -> None:
    with pytest.raises(InvalidInput, match="the rule of advantages 'ppo' is unknown"):
        run(configured(place, "ppo"))
    with pytest.raises(InvalidInput, match="rollouts are made of tokens"):
        run(configured(place, "grpo", "run.record_tokens=false"))


def test_the_commands_page_names_every_rule() -> None:
    page = Path("experiments/cli/pages/rollouts.txt").read_text()
    assert all(f"{rule}:" in page for rule in ("grpo", "treerl", "treepo"))
