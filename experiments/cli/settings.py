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
    """name: alias, hub id, folder or .gguf file.

    device, dtype: "auto" or torch's names. device_map: in place of a device, as transformers takes
    it. gguf_file: which of several .gguf files to read.
    trust_remote_code: run Python code that comes with the model.
    quantized: keep the weights of a .gguf file, or gpt-oss's experts in MXFP4, as they are stored,
        on a CPU.
    int8_activations: round to 8 bits what meets such weights (approximate).
    thinking_marks: what tells the model's thoughts from its answers, null for what its chat
    template or vocabulary names, false for none, or the strings that begin and end a thought, as
    `[<think>, </think>]`.
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

    question, answer: which field it is. id: the problems' names; by default the field `id`, else
    the row's number.
    solution: the worked-out answer, for examples.
    source: what several questions share, as a passage, so that their answers depend on each other;
    comparisons need it for their intervals.
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
    hub: a data set of the hub. subset: which of its parts. split: which of its splits, or a
    folder's.
    path: a local file or folder instead (jsonl, json, csv, tsv, parquet, what datasets'
    save_to_disk wrote).
    fields: what a row's fields are called. reader: how a row is read, by a name of
    `readers.READERS` or the dotted path of a function (row, id, these settings) -> Problem.
    task: a task of reasoning-gym. params: the task's settings. size: problems that the task makes
    without `limit`. seed: draws the task's problems.
    limit: the most problems. offset: how many problems are left out before these.
    shuffle_seed: draws the order of choices. orders: in how many orders of its choices each
    question is asked; it counts once, with their mean.
    answer_kind: how answers are read and compared: number, strict, choice, math, text or code. A
    gold answer that nothing can equal is refused.
    extract: the dotted path of a function of a text that reads its answer instead. grader: that of
    a function of gold answer and answer that compares them.
    private: no file, table or log has a text of questions, prompts or branches. Answers are kept
    where they are a letter or a number.
    instruction: the words around a question, `{question}` in them; by default those that go with
    answer_kind (`ttc.text.prompt.WORDS`), and with an extract of your own the question alone.
    raw: the instruction is the whole prompt, with no chat template around it; give `end` too.
    system: a system text. chat: whether the chat template is used; by default where there is one.
    chat_options: what else the chat template takes, as {enable_thinking: false}.
    keep_generated: further turns of a search go on from the tokens that the model wrote, also where
    the chat template writes earlier answers in another way.
    examples: solved examples that come first, written out. shots: how many more come first. Each
    ends as the instruction asks, else as its row has it.
    shots_path: a file with rows for `shots`. shots_split: a split of the hub's data set instead.
    shots_seed: draws these rows; without it they are the first.
    end: strings that finish an answer. In these, the instruction, the examples and the search's
    texts `\n` is a line break and `\t` a tab, unless they begin a LaTeX command (`\neq`).
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
