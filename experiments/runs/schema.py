"""What a run's configuration may hold: a misspelt key or a wrong type is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from importlib import import_module
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

import search
import ttc
import verifiers
from experiments.cli.choices import public_classes, written
from experiments.runs.default_verifier import default_verifier
from experiments.runs.run_name import register_names
from ttc.approximate.early_exit import ExitRule
from ttc.parts import handlers, missing
from ttc.placement.base import Placement
from ttc.residency.base import Residency
from ttc.text.prompt import words_for


@dataclass
class ModelConfig:
    """name: alias, hub id, folder or .gguf file. device, dtype: "auto" or torch's names.

    device_map: in place of a device, as transformers takes it. gguf_file: which of several .gguf
    files to read.
    trust_remote_code: run Python code that comes with the model.
    quantized: keep the weights of a .gguf file, or gpt-oss's experts in MXFP4, as they are stored,
        on a CPU.
    int8_activations: round to 8 bits what meets such weights (approximate).
    thinking_marks: what tells the model's thoughts from its answers, null for what its chat
    template or vocabulary names, false for none, or the strings that begin and end a thought, as
    [<think>, </think>].
    generation_settings: draw tokens as the model's generation_config asks, as transformers'
    generate does.
    split_special_tokens: read special tokens that a question holds as plain text.
    """

    name: str = "???"
    device: str = "auto"
    dtype: str = "auto"
    device_map: Any = None
    gguf_file: str | None = None
    trust_remote_code: bool = False
    quantized: bool = False
    int8_activations: bool = False
    thinking_marks: Any = None
    generation_settings: bool = True
    split_special_tokens: bool = False


@dataclass
class Example:
    question: str = "???"
    answer: str = "???"


@dataclass
class FieldNames:
    """What a row's fields are called, where it is not what the reader expects.

    solution: worked out, for examples.
    source: what several questions share, as a passage, so that their answers depend on each other.
    """

    question: str | None = None
    answer: str | None = None
    id: str | None = None
    solution: str | None = None
    source: str | None = None


@dataclass
class DatasetConfig:
    r"""Where problems come from and how they are asked.

    hub, subset, split: a data set of the hub. path: a local file or folder instead (jsonl, json,
    csv, tsv, parquet, what datasets' save_to_disk wrote). task, params, size, seed: a task of
    reasoning-gym.
    limit, offset: which problems; a task makes as many as `limit` says.
    reader: how a row is read, by a name of `readers.READERS` or the dotted path of a function (row,
    id, these settings) -> Problem. extract, grader: dotted paths of functions in place of
    answer_kind, see `grading`.
    instruction: the words around a question, by default those that go with answer_kind
    (`ttc.text.prompt.WORDS`), and with an extract of your own the question alone. raw: they are the
    whole prompt, with no chat template around them.
    chat_options: what else the chat template takes, as {enable_thinking: false}.
    keep_generated: see `ttc.text.prompt.PromptTemplate`.
    examples: solved examples that come first. shots: how many more are taken from shots_path, a
    file, or shots_split, a split of the hub; its first rows, or rows drawn by shots_seed.
    end: strings that finish an answer. In these, the instruction, the examples and the search's
    texts `\n` is a line break and `\t` a tab, unless they begin a LaTeX command (`\neq`).
    private: the questions are not to be published, so that no file or log has a text of them, nor
    of what the model wrote; false keeps them.
    pad_chars: neutral text before each question until it has so many characters, to measure long
    prompts.
    """

    name: str = "???"
    hub: str | None = None
    subset: str | None = None
    split: str = "test"
    path: str | None = None
    reader: str = "plain"
    fields: FieldNames = field(default_factory=FieldNames)
    task: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    size: int = 50
    seed: int = 0
    shuffle_seed: int = 0
    limit: int | None = None
    offset: int = 0
    pad_chars: int = 0
    answer_kind: str = "number"
    extract: str | None = None
    grader: str | None = None
    instruction: str = "${words_for:${.answer_kind},${.extract}}"
    system: str | None = None
    chat: bool | None = None
    raw: bool = False
    chat_options: dict[str, Any] = field(default_factory=dict)
    keep_generated: bool = False
    examples: list[Example] = field(default_factory=list)
    shots: int = 0
    shots_path: str | None = None
    shots_split: str | None = None
    shots_seed: int | None = None
    end: list[str] = field(default_factory=list)
    private: bool = False


@dataclass
class RunConfig:
    """Described by `python -m experiments.run --help`."""

    name: str = "???"
    output_dir: str = "outputs"
    seed: int = 0
    batch: int | None = None
    max_tokens: int | None = None
    max_generated_tokens: int | None = None
    max_calls: int | None = None
    max_tool_calls: int | None = None
    max_wall_s: float | None = None
    show_questions: bool = False
    show_example: bool = False
    retry_failed: bool = False
    record_tokens: bool = False
    shard: str | None = None
    threads: int | None = None
    dry: bool = False


@dataclass
class ConfidenceGatedConfig:
    """inner: the verifier that may be skipped, by name or as verifier/inner=NAME. calibration: a
    file of `experiments.calibrate`, whose thresholds take the place of tau_conf and r_gap.
    """

    _target_: str = "verifiers.ConfidenceGatedVerifier"
    inner: Any = "???"
    tau_conf: float = 0.9
    r_gap: float = 0.1
    calibration: str | None = None


@dataclass
class EnsembleConfig:
    """parts: the verifiers, by name, or each with its `_target_` and settings."""

    _target_: str = "verifiers.EnsembleVerifier"
    parts: list[Any] = field(default_factory=list)
    how: str = "mean"
    steps: str = "last"
    accuracies: list[float] | None = None


@dataclass
class CalibratedExitConfig:
    """calibration: a file of `experiments.calibrate` with calibrate.level=2, which holds the exit's
    settings."""

    calibration: str = "???"


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    search: Any = None
    verifier: Any = None
    tools: Any = None
    memory: Any = None
    placement: Any = None
    cache: Any = None
    sharing: Any = None
    gate: Any = None
    speculation: Any = None
    backend: Any = None
    run: RunConfig = field(default_factory=RunConfig)


@dataclass
class CalibrateConfig:
    """Described by `python -m experiments.calibrate --help`."""

    file: str = "???"
    level: int = 1
    max_disagreement: float | None = None
    eps: float | None = None


WRITTEN: dict[type, type] = {
    verifiers.ConfidenceGatedVerifier: ConfidenceGatedConfig,
    verifiers.EnsembleVerifier: EnsembleConfig,
}
"""Configuration classes of verifiers that are no dataclasses of plain values."""


def classes(folder: str) -> dict[str, type]:
    package = import_module(folder.partition(".")[0])
    return {choice: getattr(package, name) for choice, name in public_classes(folder).items()}


SEARCHES = classes("search")
RATERS = {**classes("verifiers"), **handlers("verifier")}
VERIFIERS = {name: target for name, target in RATERS.items() if target not in WRITTEN}
"""Those that other verifiers can name."""

CACHES = {"rsbcm": ttc.BlockCache, "lru": ttc.BlockCache}
SHARING = {"exact": ttc.Sharing, "none": ttc.Sharing, "similar": ttc.Sharing}
GATES = {"decode": ttc.DecodeGate}
PLACEMENTS = {"streamed": ttc.Streamed, "split": ttc.Split}
POLICIES: dict[str, type] = {
    **classes("ttc.residency"),
    "auto": ttc.Auto,
    "quantized_kv": ttc.QuantizedKV,
}


@dataclass(frozen=True)
class Group:
    """choices: the classes of a group, by the names of their choices. base: what a user's class
    inherits from, None for anything that rates.
    """

    choices: Mapping[str, type]
    base: type | None


GROUPS = {
    "search": Group(SEARCHES, search.Search),
    "verifier": Group(RATERS, None),
    "memory": Group(POLICIES, Residency),
    "placement": Group(PLACEMENTS, Placement),
    "cache": Group(CACHES, ttc.BlockCache),
    "sharing": Group(SHARING, ttc.Sharing),
    "gate": Group(GATES, ttc.DecodeGate),
    **{name: Group(handlers(name), base) for name, base in handlers("group").items()},
}


WITHOUT = {
    "verifier": "none",
    "tools": "none",
    "cache": "none",
    "gate": "none",
    "speculation": "none",
    "placement": "resident",
    "backend": "local",
}
"""The choice that leaves a group out."""


def _verifier(name: str) -> type:
    if name not in VERIFIERS:
        raise missing(f"verifier={name}")
    return VERIFIERS[name]


def target_of(target: type) -> str:
    return f"{target.__module__.partition('.')[0]}.{target.__name__}"


def plain_hint(hint: Any) -> Any:
    """The hint as Hydra has it: texts for choices, Any for what is no plain value."""
    if get_origin(hint) is Literal:
        return str
    if any(isinstance(part, type) and part.__module__ != "builtins" for part in get_args(hint)):
        return Any  # a part of its own, chosen from its own group
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(plain_hint, get_args(hint)))]  # noqa: UP007
    return hint


# defaults of settings that follow others; a configuration without them cannot be read
OmegaConf.register_new_resolver(
    "words_for",
    lambda kind, extract: words_for(kind if extract is None else "text"),
    replace=True,
)
OmegaConf.register_new_resolver(
    "verifier_for", lambda kind: target_of(_verifier(default_verifier(kind))), replace=True
)


def schema_of(target: Any) -> type:
    """A configuration class with the fields of `target`, a dataclass of plain values."""
    hints = get_type_hints(target)
    columns: list[Any] = [("_target_", str, field(default=target_of(target)))]
    for f in fields(target):
        if f.init:
            default = "???" if f.default is MISSING else f.default
            columns.append((f.name, plain_hint(hints[f.name]), field(default=default)))
    return make_dataclass(f"{target.__name__}Config", columns)


def extended(name: str, part: type) -> type:
    """`Config` with one more part. Merged later, its other fields are missing and keep their
    values."""
    kept: list[Any] = [
        (f.name, get_type_hints(Config)[f.name], field(default="???")) for f in fields(Config)
    ]
    return make_dataclass(
        f"{part.__name__}Job", [*kept, (name, part, field(default_factory=part))], bases=(Config,)
    )


def register() -> None:
    register_names()
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, node in (("model", ModelConfig), ("dataset", DatasetConfig), ("run", RunConfig)):
        store.store(group=group, name="schema", node=node)
    for group, part in GROUPS.items():
        for name, target in part.choices.items():
            settings = WRITTEN.get(target) or schema_of(target)
            store.store(group=group, name=f"{name}_schema", node=settings)
            if name not in written(group):
                store.store(group=group, name=name, node=settings)
    for name, target in VERIFIERS.items():
        store.store(group="verifier/inner", name=name, node=schema_of(target))
    for rule in get_args(ExitRule):
        store.store(group="verifier/exit", name=rule, node=schema_of(ttc.EarlyExit)(rule=rule))
    store.store(group="verifier/exit", name="calibrated", node=CalibratedExitConfig)
    store.store(name="calibrate_schema", node=extended("calibrate", CalibrateConfig))
    for name, node in handlers("settings").items():
        store.store(name=f"{name}_schema", node=extended(name, node))
    for group, name in WITHOUT.items():
        store.store(group=group, name=f"{name}_schema", node={"_target_": None})
