"""Tree rollouts for TRL: what the callable gives and refuses, and a step of the real trainer where
TRL is installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.fit.rollouts.advantages import treerl
from experiments.integrations.trl_rollouts import TreeRolloutFunc, groups_of
from search import BestOfN, TreeRollouts
from tests.helpers.runs import save_model
from ttc import InvalidInput

SEARCH = TreeRollouts(width=2, max_steps=3, step_tokens=2, temperature=1.0)


def fake_trainer(folder: Path, **settings: Any) -> Any:
    """What the callable reads of a trainer."""
    save_model(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).train()
    return SimpleNamespace(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(folder),
        accelerator=SimpleNamespace(unwrap_model=lambda wrapped: wrapped),
        **{"num_generations": 4, "num_generations_eval": 1, "max_completion_length": 6} | settings,
    )


def test_each_prompt_gets_its_samples_with_their_log_probabilities(tmp_path: Path) -> None:
    trainer = fake_trainer(tmp_path)
    own = trainer.model.config._attn_implementation
    rollout = TreeRolloutFunc(SEARCH)
    for _ in range(2):
        given = rollout(["1 and 2 ?"] * 4 + ["3 and 4 ?"] * 4, trainer)
        assert {len(column) for column in given.values()} == {8}
        assert given["prompt_ids"] == [
            trainer.processing_class(text)["input_ids"]
            for text in ["1 and 2 ?"] * 4 + ["3 and 4 ?"] * 4
        ]
        assert len({tuple(path) for path in given["path"][:4]}) == 4
        assert [ends[-1] for ends in given["step_ends"]] == [*map(len, given["completion_ids"])]
        # between calls the module is the trainer's again
        assert trainer.model.training and trainer.model.config._attn_implementation == own
        columns = (given["prompt_ids"], given["completion_ids"], given["logprobs"])
        for prompt, written, logprobs in zip(*columns, strict=True):
            tokens = torch.tensor([prompt + written])
            with torch.no_grad():
                all_of = trainer.model(tokens).logits[0, :-1].log_softmax(-1)
            expected = all_of.gather(-1, tokens[0, 1:, None])[-len(written) :, 0]
            assert torch.allclose(torch.tensor(logprobs), expected, atol=1e-4)
        with torch.no_grad():  # as an optimizer writes
            for weight in trainer.model.parameters():
                weight.mul_(1.5)


def test_a_seed_fixes_the_samples_of_each_call(tmp_path: Path) -> None:
    trainer, prompts = fake_trainer(tmp_path), ["1 and 2 ?"] * 4
    first, second = TreeRolloutFunc(SEARCH, seed=1), TreeRolloutFunc(SEARCH, seed=1)
    one, two = first(prompts, trainer), second(prompts, trainer)
    assert one["completion_ids"] == two["completion_ids"]
    assert first(prompts, trainer)["completion_ids"] != one["completion_ids"]


def test_what_the_trainer_asks_for_and_trees_cannot_give_is_refused(tmp_path: Path) -> None:
    rollout = TreeRolloutFunc(SEARCH)
    for settings, message in (
        ({"temperature": 0.7}, "temperature=0.7"),
        ({"top_k": 5}, "top_k=5"),
        ({"max_completion_length": 5}, "samples may have 6 tokens"),
        ({"tools": [print]}, "the trainer has tools"),
        ({"is_fsdp_enabled": True}, "FSDP"),
    ):
        with pytest.raises(InvalidInput, match=message):
            rollout(["1 and 2 ?"] * 4, fake_trainer(tmp_path, **settings))
    with pytest.raises(InvalidInput, match="a trainer needs as many samples"):
        TreeRolloutFunc(BestOfN())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not 4 times each in a row"):
        groups_of(["a"] * 4 + ["b"] * 2, 4)
    with pytest.raises(InvalidInput, match="not 2 times each in a row"):
        groups_of(["a", "b"], 2)


def test_trls_trainer_learns_from_the_advantages_of_trees(tmp_path: Path) -> None:
    """Needs TRL: weights move, engine and trainer agree on log-probabilities, and each token has
    the advantage of its step."""
    pytest.importorskip("trl")
    from trl import GRPOConfig

    from experiments.integrations.trl_trainer import TreeGRPOTrainer

    save_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model", pad_token="<unk>")
    tokenizer.eos_token = "</s>"
    seen: list[dict[str, Any]] = []

    def reward(completions: list[str], path: list[list[int]], **_: Any) -> list[float]:
        scores = [
            float(len(set(text.split()))) + one[0]
            for text, one in zip(completions, path, strict=True)
        ]
        seen.append({"path": path, "rewards": scores})
        return scores

    class Kept(TreeGRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            seen[-1] |= {"ends": [row["step_ends"] for row in inputs], "output": output}
            return output

    arguments = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        max_steps=2,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    before = [weight.detach().clone() for weight in model.parameters()]
    trainer = Kept(
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["1 and 2 ?", "3 and 4 ?"]}),
        processing_class=tokenizer,
        rollout_func=TreeRolloutFunc(SEARCH),
    )
    trainer.train()
    assert any(
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )
    assert len(seen) == 2
    for step in seen:
        paths = [tuple(path) for path in step["path"]]
        for row, ends, values in zip(
            step["output"]["advantages"], step["ends"], treerl(paths, step["rewards"]), strict=True
        ):
            expected: list[float] = []
            for end, value in zip(ends, values, strict=True):
                expected += [value] * (end - len(expected))
            assert row[: len(expected)].tolist() == pytest.approx(expected, abs=1e-5)
            assert not row[len(expected) :].any()
    with pytest.raises(InvalidInput, match="gives no trees"):
        TreeGRPOTrainer(rollout_func=print)  # type: ignore[arg-type]
