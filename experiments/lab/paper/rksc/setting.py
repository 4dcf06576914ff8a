"""The setting that all parts share: a configuration, its problems, and engines over one loaded
model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.runs.build import (
    device_of,
    engine_options,
    make_template,
    make_verifier,
    resolved,
    source_options,
)
from experiments.runs.data import LoadedTask, load_task
from experiments.runs.schema import register
from ttc.engine import Engine
from ttc.model.loading.load import load
from ttc.model.packed_linear import pack_linears
from ttc.protocols import Verifier
from ttc.text.prompt import PromptTemplate

HELD_OUT_SEED = 1_000
"""The seed of problems that thresholds are found on; those that are measured have the data set's
own."""


@dataclass(frozen=True)
class Setting:
    """A composed configuration and what it names."""

    config: DictConfig

    @classmethod
    def of(cls, experiment: str, overrides: Sequence[str]) -> Setting:
        register()
        with initialize_config_module("conf", version_base="1.3"):
            return cls(
                resolved(compose("config", overrides=[f"+experiment={experiment}", *overrides]))
            )

    @cached_property
    def task(self) -> LoadedTask:
        return load_task(self.config.dataset)

    @property
    def search(self) -> Any:
        return instantiate(self.config.search, _convert_="all")

    @property
    def verifier(self) -> Verifier | None:
        return make_verifier(self.config)

    @property
    def template(self) -> PromptTemplate:
        return make_template(self.config)

    def engine(self, model: Any, tokenizer: Any) -> Engine:
        return Engine(model, tokenizer, **engine_options(self.config))

    def solve_options(self) -> dict[str, Any]:
        data, run = self.config.dataset, self.config.run
        return {
            "seed": run.seed,
            "template": self.template,
            **self.task.reading.options(),
            "end": tuple(data.end),
        }


def loaded(config: DictConfig) -> tuple[Any, Any]:
    """The configuration's model and tokenizer, packed as `Engine.from_pretrained` does."""
    where = {"device": device_of(config), "dtype": config.model.dtype}
    model, tokenizer = load(config.model.name, **where, **source_options(config))
    pack_linears(model)
    return model, tokenizer
