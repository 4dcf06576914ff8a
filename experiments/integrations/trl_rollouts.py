"""Tree rollouts for TRL's GRPOTrainer: a `rollout_func` that samples with this project's engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.fit.rollouts.rollout import Rollout, rollouts_of
from experiments.integrations.solver import Verbatim
from search import TreeRollouts, solve
from ttc.attention.installing import install, uninstall
from ttc.engine import Engine
from ttc.errors import InvalidInput
from ttc.results import Problem, Result
from ttc.text.chat import chat_text

Prompt = str | list[dict[str, Any]]
"""As TRL's data sets have it: a text, or the messages of a chat."""
OWN_DISTRIBUTION = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}
"""The trainer's settings under which log-probabilities are those of the model itself."""


@dataclass
class TreeRolloutFunc:
    """`GRPOTrainer(..., rollout_func=TreeRolloutFunc(TreeRollouts(temperature=1.0)))`.

    search: how samples of a prompt are made. Their number is the trainer's `num_generations`.
    end: strings that finish a sample, besides the model's end of text.
    seed: with the number of the call it fixes what is sampled.
    engine_options: what else `Engine` takes, as {"prefill_tokens": 256}.

    It samples from the very module that the trainer trains, in the type of its weights. The engine
    looks at the weights before each call, and computes anew whatever keys and values others have
    computed. In between the module runs over its own attention, as the trainer had it.

    Each sample also comes with its `path` in the tree of its prompt and its `step_ends`, so that
    reward functions and `TreeGRPOTrainer` know which samples share their beginnings.
    """

    search: TreeRollouts
    end: tuple[str, ...] = ()
    seed: int = 0
    engine_options: dict[str, Any] = field(default_factory=dict)
    engine: Engine | None = field(default=None, init=False)
    calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.search, TreeRollouts) or self.search.temperature != 1:
            raise InvalidInput(
                f"search={self.search!r} must be a search.TreeRollouts with temperature=1.0: a "
                "trainer needs as many samples as it asks for, and their log-probabilities"
            )

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """The samples of a batch, one for each prompt: TRL repeats a prompt for each of its
        samples.

        Returns `prompt_ids`, `completion_ids`, `logprobs`, `path` and `step_ends`. Raises
        InvalidInput where the trainer's settings ask for something else than it gives.
        """
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        search = replace(self.search, n=size)
        check_trainer(trainer, search)
        questions = [as_text(group[0], trainer) for group in groups_of(prompts, size)]
        with self._at_work(trainer) as engine:
            results: list[Result] = solve(
                search,
                problem=[Problem(text, str(place)) for place, text in enumerate(questions)],
                engine=engine,
                template=Verbatim(chat_turns=not isinstance(prompts[0], str)),
                end=self.end,
                seed=self.seed + self.calls,
            )
        self.calls += 1
        rollouts: list[Rollout] = [one for result in results for one in rollouts_of(result)]
        return {
            "prompt_ids": [one.prompt_ids for one in rollouts],
            "completion_ids": [one.completion_ids for one in rollouts],
            "logprobs": [one.logprobs for one in rollouts],
            "path": [list(one.path) for one in rollouts],
            "step_ends": [one.ends for one in rollouts],
        }

    @contextmanager
    def _at_work(self, trainer: Any) -> Iterator[Engine]:
        """The engine, with the trainer's module on its attention and not training meanwhile."""
        module = trainer.accelerator.unwrap_model(trainer.model)
        module = module.get_base_model() if hasattr(module, "get_base_model") else module
        training = module.training
        mixed = vars(module).pop("forward", None)  # Accelerate's mixed precision, for training
        install(module)
        try:
            if self.engine is None or self.engine.model is not module:
                self.engine = Engine(module, trainer.processing_class, **self.engine_options)
            module.eval()  # no dropout
            yield self.engine
        finally:
            module.train(training)
            uninstall(module)
            if mixed is not None:
                module.forward = mixed


def check_trainer(trainer: Any, search: TreeRollouts) -> None:
    """Raise InvalidInput for settings of a trainer that these rollouts cannot keep."""
    for name, value in OWN_DISTRIBUTION.items():
        if (given := getattr(trainer, name, value)) != value:
            raise InvalidInput(
                f"the trainer has {name}={given}, and log-probabilities are those of the model "
                f"itself; set {name}={value}"
            )
    longest, limit = search.step_tokens * search.max_steps, trainer.max_completion_length
    if limit is not None and longest > limit:
        raise InvalidInput(
            f"samples may have {longest} tokens (step_tokens={search.step_tokens} times "
            f"max_steps={search.max_steps}), and the trainer's max_completion_length is {limit}; "
            "set it to that, or give fewer or shorter steps"
        )
    if getattr(trainer, "tools", None):
        raise InvalidInput(
            "the trainer has tools, which these rollouts do not call; leave them out"
        )
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(
        trainer, "is_deepspeed_enabled", False
    ):
        raise InvalidInput(
            "the trainer parts its model over processes (FSDP, DeepSpeed), and the engine needs "
            "all weights in each; train without them"
        )


def groups_of(prompts: Sequence[Prompt], size: int) -> list[Sequence[Prompt]]:
    """The prompts of each group of samples. Raises InvalidInput for a group that is not whole."""
    groups = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    for group in groups:
        if len(group) < size or any(prompt != group[0] for prompt in group):
            raise InvalidInput(
                f"{len(prompts)} prompts are not {size} times each in a row, as this many samples "
                "of a prompt are one tree; let the batch of each process be a multiple of "
                f"num_generations={size}"
            )
    return groups


def as_text(prompt: Prompt, trainer: Any) -> str:
    """A prompt as the model reads it; messages through the chat template, as TRL does."""
    if isinstance(prompt, str):
        return prompt
    options = dict(getattr(trainer, "chat_template_kwargs", None) or {})
    if template := getattr(trainer, "chat_template", None):
        options["chat_template"] = template
    return chat_text(prompt, trainer.processing_class, options)
