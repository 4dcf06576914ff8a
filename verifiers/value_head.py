"""A head trained on a language model to tell right steps from wrong ones, as TRL's PRMTrainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ttc.checks import QuestionText
from ttc.engine import Engine
from ttc.errors import InvalidInput, UnsupportedModel, refusing
from ttc.model.loading.load import load, load_headed
from ttc.model.loading.reward_heads import HeadedModel
from ttc.model.packed_linear import PackedLinear, pack_linears
from verifiers.reward_model import RewardModel
from verifiers.reward_model_pass import read_apart

SETTINGS, WEIGHTS = "value_head.json", "value_head.safetensors"
ADAPTERS = "adapter_config.json"


@dataclass(eq=False)
class ValueHead(RewardModel):
    """P(right) of each step: a token classifier's second label at the separator's last token.

    Question, steps and separators are encoded apart, as TRL's PRMTrainer does, so that its
    checkpoints (`AutoModelForTokenClassification`) load as they are.
    model: such a checkpoint (folder or hub id), a folder that `save` wrote, or a loaded
    (model, tokenizer). What `save` wrote knows its separator and prompt, which take the place of
    those given here. Adapters of peft in the same folder are merged into the base.
    prompt: the text before the first step, `{question}` in it.

    Rates: each step: P(right) by a head of your own, or one of TRL's PRMTrainer.
    Cost: the new tokens.
    Use it where: model and task are your own.
    """

    model: Any = "???"
    separator: str = "\n"
    prompt: QuestionText = "{question}"

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        return [*self.opened(question, steps), *self.encode(self.separator)]

    def opened(self, question: str, steps: Sequence[str]) -> list[int]:
        bos = getattr(self.tokenizer, "bos_token_id", None)
        start = [] if bos is None else [bos]
        prompt = self.encode(self.prompt.replace("{question}", question))
        separator = self.encode(self.separator)
        tokens = [token for step in steps for token in (*separator, *self.encode(step))]
        return [*start, *prompt, *tokens[len(separator) :]]

    def score(self, output: Tensor) -> float:
        if output.numel() != 2:
            raise UnsupportedModel(
                f"the head gives {output.numel()} numbers, not two labels; give a token classifier"
            )
        return float(output.float().softmax(-1)[1])

    # ---------------------------------------------------------------- training

    @classmethod
    def on(cls, model: Any, tokenizer: Any, **settings: Any) -> ValueHead:
        """An untrained head on a loaded language model: it rates every step 0.5.

        model: with a body, as `AutoModelForCausalLM` loads it. The head is `verifier.head`, a
        linear layer of two labels in float32, to be trained on `features`.
        """
        head = nn.Linear(model.config.get_text_config().hidden_size, 2, device=model.device)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        return cls((HeadedModel(model.base_model, Float32Head(head)), tokenizer), **settings)

    @property
    def head(self) -> nn.Module:
        head: nn.Module = self.parts[0].head
        return head.linear if isinstance(head, Float32Head) else head

    def features(self, examples: Sequence[tuple[str, Sequence[str]]]) -> list[Tensor]:
        """What the head sees of each (question, steps): (steps, width) in float32, the last hidden
        state at the last token of each step's separator. Shared beginnings are computed once."""
        if not examples:
            return []
        model, tokenizer = self.parts
        engine = Engine(HeadedModel(model.body, nn.Identity()), tokenizer)
        layouts = [self.laid_out(question, list(steps), None) for question, steps in examples]
        read = read_apart(engine, lambda state: state.float(), layouts)
        return [torch.stack(states).clone() for states in read]

    # ---------------------------------------------------------------- files

    def save(self, folder: str | Path, *, base: str | None = None) -> None:
        """Write a folder that `ValueHead(model=folder)` loads.

        base: the model below the head, by alias, folder or hub id; then the head alone is written,
        a few KB. Without it the whole token classifier is written with its tokenizer, as by TRL.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if base is None:
            self._save_whole(folder)
        else:
            tensors = self.head.state_dict().items()
            save_file({f"score.{k}": v.contiguous() for k, v in tensors}, folder / WEIGHTS)
        settings = {"base": base, "separator": self.separator, "prompt": self.prompt}
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")

    def _save_whole(self, folder: Path) -> None:
        from transformers import AutoModelForTokenClassification

        model, tokenizer = self.parts
        if any(isinstance(module, PackedLinear) for module in model.modules()):
            raise InvalidInput(
                "the weights are packed for this machine; save from a model that was loaded by the "
                "caller"
            )
        config = type(model.config).from_dict(model.config.to_dict() | {"num_labels": 2})
        classifier = AutoModelForTokenClassification.from_config(config, dtype=model.dtype)
        classifier.base_model.load_state_dict(model.body.state_dict())
        classifier.score.load_state_dict(self.head.state_dict())
        classifier.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def _load(self) -> tuple[Any, Any]:
        file = Path(self.model) / SETTINGS if isinstance(self.model, str | Path) else None
        if file is None or not file.is_file():
            return super()._load()
        with refusing(
            (ValueError, KeyError, TypeError),
            f"{file} is no file of ValueHead.save: {{error}}",
            words=repr,
        ):
            settings = json.loads(file.read_text(encoding="utf-8"))
            base = settings["base"]
            self.separator = settings["separator"]
            self.prompt = settings["prompt"]
        options: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        if base is None:
            model, tokenizer = load_headed(str(self.model), **options)
        else:
            causal, tokenizer = load(base, **options)
            causal = _with_adapters(causal, Path(self.model))
            head = _read_head(Path(self.model) / WEIGHTS).to(causal.device)
            model = HeadedModel(causal.base_model, head).requires_grad_(False)
        pack_linears(model.body)
        return model, tokenizer


class Float32Head(nn.Module):
    """A linear layer in float32 on states of any type."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear.float()

    def forward(self, states: Tensor) -> Tensor:
        labels: Tensor = self.linear(states.float())
        return labels


def _with_adapters(model: Any, folder: Path) -> Any:
    """The model with the adapters of a folder merged into its weights, if the folder has any."""
    if not (folder / ADAPTERS).is_file():
        return model
    with refusing(
        ImportError, f"{folder} holds adapters, which need peft ({{error}}): pip install peft"
    ):
        from peft import PeftModel
    return PeftModel.from_pretrained(model, folder).merge_and_unload()


def _read_head(file: Path) -> Float32Head:
    tensors = load_file(file)
    labels, width = tensors["score.weight"].shape
    head = nn.Linear(width, labels)
    head.load_state_dict({name.removeprefix("score."): t for name, t in tensors.items()})
    return Float32Head(head)
