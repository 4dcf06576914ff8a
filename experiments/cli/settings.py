"""The settings of a run and of its calibration: what each means, its default and its limit. Nothing
that takes time is imported."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from search.budget import LIMITS, Budget
from ttc.checks import NonNegativeFloat, NonNegativeInt, PositiveInt, Probability, option_hints

RUN_FLAGS = {"--model": "model.name", "--search": "search", "--verifier": "verifier"}
ASK_FLAGS = {**RUN_FLAGS, "--seed": "run.seed"}
"""What is set by the flags of a command."""


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

    name: what the data set is called in names and tables.
    hub, subset, split: a data set of the hub. path: a local file or folder instead (jsonl, json,
    csv, tsv, parquet, what datasets' save_to_disk wrote). task, params, size, seed: a task of
    reasoning-gym.
    fields: what a row's fields are called. shuffle_seed: of the order of choices. orders: in how
    many orders of its choices each question is asked; it counts once, with their mean.
    limit, offset: which problems; a task makes as many as `limit` says.
    reader: how a row is read, by a name of `readers.READERS` or the dotted path of a function (row,
    id, these settings) -> Problem. extract, grader: dotted paths of functions in place of
    answer_kind, see `grading`.
    answer_kind: how answers are read and compared: number, strict, choice, math, text or code.
    system: a system text. chat: whether the chat template is used.
    instruction: the words around a question, by default those that go with answer_kind
    (`ttc.text.prompt.WORDS`), and with an extract of your own the question alone. raw: they are the
    whole prompt, with no chat template around them.
    chat_options: what else the chat template takes, as {enable_thinking: false}.
    keep_generated: see `ttc.text.prompt.PromptTemplate`.
    examples: solved examples that come first. shots: how many more come first.
    shots_path, shots_split: a file, or a split of the hub, that they are taken from. shots_seed:
    draws these; without it they are the first rows.
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
    size: PositiveInt = 50
    seed: int = 0
    shuffle_seed: int = 0
    orders: PositiveInt = 1
    limit: PositiveInt | None = None
    offset: NonNegativeInt = 0
    pad_chars: NonNegativeInt = 0
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
    shots: NonNegativeInt = 0
    shots_path: str | None = None
    shots_split: str | None = None
    shots_seed: int | None = None
    end: list[str] = field(default_factory=list)
    private: bool = False


@dataclass
class RunSettings:
    """name: the folder for the results; the same name goes on where it stopped.
    output_dir: where those folders are made.
    seed: fixes every sampled token.
    batch: the most problems under way at once; by default what there is room for.
    show_questions: print each question with its answer.
    show_example: print one solved problem at the end.
    retry_failed: solve problems again that failed before.
    record_tokens: keep token ids and log-probabilities of the whole tree.
    shard: I/N solves part I of N, for N processes; python -m experiments.merge puts them together.
    threads: threads of this process; by default its share of the cores.
    dry: print the settings and three prompts, and stop.
    """

    name: str = "???"
    output_dir: str = "outputs"
    seed: int = 0
    batch: PositiveInt | None = None
    show_questions: bool = False
    show_example: bool = False
    retry_failed: bool = False
    record_tokens: bool = False
    shard: str | None = None
    threads: PositiveInt | None = None
    dry: bool = False


RunConfig = make_dataclass(
    "RunConfig",
    [
        (f.name, option_hints(Budget)[f.name], field(default=f.default))
        for f in fields(Budget)
        if f.name in LIMITS
    ],
    bases=(RunSettings,),
    namespace={"__doc__": Budget.__doc__},
)
"""With the limits of a budget, which each problem has."""


@dataclass
class CalibrateConfig:
    """file: where the calibration goes.
    level: 1 for the confidence gate, 2 for the early exit.
    max_disagreement: the share of problems that may end with another answer; null for RKSC's rules.
    eps: of RKSC's rule for level 2, in nats.
    """

    file: str = "???"
    level: int = 1
    max_disagreement: Probability | None = None
    eps: NonNegativeFloat | None = None


SETTINGS = {"run": RunConfig, "dataset": DatasetConfig, "calibrate": CalibrateConfig}
"""By their groups. Parts have some of their own."""
