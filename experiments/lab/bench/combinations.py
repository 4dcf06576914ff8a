"""Features drawn at random and used together, compared with each problem alone: its texts, tree,
scores and choice with all KV on the device, no cache, and one problem at a time.

A `Combination` is one draw. Its defaults are the plainest way to solve, so that what differs from
them is what a failure needs; `fewest` looks for the fewest such settings. Models run in float64,
where rounding was not seen to change a sample. Compiled ones run in float32, where it changes one
now and then: such a draw has failed if others of its settings fail too.
"""

from __future__ import annotations

import copy
import json
import math
import random
import shlex
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Literal, NamedTuple

import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils.chat_template_utils import render_jinja_template

from experiments.cli.output import say, show
from experiments.standins import small_models
from experiments.standins.mixed_search import Mixed, MixedWords
from search import (
    ABMCTS,
    ABMCTSM,
    DVTS,
    MCTS,
    MUR,
    REBASE,
    AdaptiveConsistency,
    Aggregate,
    BeamSearch,
    BestFirst,
    BestOfN,
    BudgetForcing,
    CertaintyProbe,
    DeepConf,
    DiversePrompts,
    Greedy,
    ParticleFilter,
    ParticleGibbs,
    PhiDecoding,
    Problem,
    Result,
    Revision,
    Search,
    SelfConsistency,
    SelfRefine,
    TreeOfThoughts,
)
from search.admission import ProblemAdmission
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions
from search.several_models import SeveralModels
from ttc import (
    BeamGroups,
    BlockCache,
    Branch,
    Capture,
    DecodeGate,
    DraftModel,
    EarlyExit,
    Engine,
    Headwise,
    Layerwise,
    Paged,
    PromptLookup,
    QuantizedKV,
    Resident,
    Sharing,
    Split,
    Streamed,
)
from ttc.backend import Backend
from ttc.errors import TTCError
from ttc.model.loading.load import load, load_tokenizer
from ttc.model.runner_choice import runner_for
from ttc.model.running.runner import ModelRunner
from ttc.passes.ratings import pass_by_pass
from ttc.protocols import Verifier
from ttc.results import Node
from ttc.sampling import Sampling
from ttc.step import Step
from ttc.task import Passes
from ttc.text.thinking_marks import ThinkingMarks
from ttc.tool_calls import Written
from ttc.tools.base import Tool, ToolError, Tools
from ttc.tools.formats import ToolFormat
from verifiers.confidence_verifier import ConfidenceVerifier
from verifiers.elsewhere import Elsewhere
from verifiers.reward_model import MARK, RewardModel
from verifiers.side_branches import written

WIDTHS: dict[str, Any] = {
    "vocab_size": small_models.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
WINDOWED: dict[str, Any] = {
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}
LATENT: dict[str, Any] = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    **{"head_dim": 4, "v_head_dim": 6, "first_k_dense_replace": 2},
}
STATE_SPACE: dict[str, Any] = {
    **{"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "pad_token_id": 0},
    **{"num_experts": 1, "num_experts_per_tok": 1, "use_mamba_kernels": False},
}
ONLY_STATES: dict[str, Any] = {
    **{"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 8, "chunk_size": 8},
    "pad_token_id": 0,
}
MODELS: dict[str, Any] = {
    "llama": lambda: hf.LlamaConfig(**WIDTHS, num_key_value_heads=2),
    "gpt2": lambda: hf.GPT2Config(**WIDTHS, n_inner=48),
    "mistral": lambda: hf.MistralConfig(**WIDTHS, num_key_value_heads=1, sliding_window=16),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **WIDTHS, **WINDOWED, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8
    ),
    "deepseek_v3": lambda: hf.DeepseekV3Config(**WIDTHS, **LATENT, num_key_value_heads=4),
    "lfm2": lambda: hf.Lfm2Config(
        **WIDTHS, num_key_value_heads=2, layer_types=["conv", "full_attention"]
    ),
    "jamba": lambda: hf.JambaConfig(**WIDTHS, **STATE_SPACE, num_key_value_heads=2),
    "mamba2": lambda: hf.Mamba2Config(
        **{name: WIDTHS[name] for name in WIDTHS if "attention" not in name}, **ONLY_STATES
    ),
}
"""Small decoders of attention layers of several kinds, and of layers that keep a state."""
REAL = "smollm2-135m"
"""The default model with its weights, which no draw has."""
RECURRENT = ("qwen3_next", "falcon_h1", "kimi_linear", "zamba2", "bamba", "lfm2_moe: convolutions")
RARE = (
    *("gpt_oss", "llama4_text", "gemma3n_text: shared KV", "gemma4_text: shared KV", "gemma2"),
    *("mixtral", *RECURRENT),
)
"""Of `small_models`, with layers of other kinds."""
IN_FLOAT32 = ("jamba", "mamba2", *RECURRENT)
"""They compute their states in float32, whatever the type of the model."""
SHARES = {"llama": 6, "gpt2": 4, "mistral": 4, "lfm2": 3, "gemma3": 2, "jamba": 2}
"""How often models are drawn; the others, which take longer, less than once."""


STEPS: dict[str, Any] = {"step_tokens": 6, "max_steps": 3, "delimiter": "a"}
"""Steps end at a letter, so that searches are soon out of step with each other."""
WORDS = "aha"
SEARCHES: dict[str, Search] = {
    "greedy": Greedy(max_tokens=10),
    "best_of_n": BestOfN(n=4, max_tokens=12),
    "self_consistency": SelfConsistency(n=3, max_tokens=10),
    "adaptive_consistency": AdaptiveConsistency(n=5, block=2, max_tokens=9),
    "beam_search": BeamSearch(beam_size=2, beam_width=2, **STEPS),
    "dvts": DVTS(subtrees=2, beam_width=2, **STEPS),
    "best_first": BestFirst(
        beam_size=1, beam_width=3, step_tokens=6, max_steps=4, finish=3, delimiter="a"
    ),
    "mcts": MCTS(
        iterations=3, beam_width=2, step_tokens=6, max_depth=3, rollout=False, delimiter="a"
    ),
    "ab_mcts": ABMCTS(iterations=4, max_tokens=6, feedback=WORDS),
    "tree_of_thoughts": TreeOfThoughts(beam_width=2, step_tokens=6, max_depth=3, max_states=5),
    "rebase": REBASE(n=4, **STEPS),
    "particle_filter": ParticleFilter(n=4, **STEPS),
    "particle_gibbs": ParticleGibbs(n=3, sweeps=2, **STEPS),
    "phi_decoding": PhiDecoding(
        beam_size=2, beam_width=2, clusters=2, least_steps=1, finish_tokens=7, **STEPS
    ),
    "mur": MUR(beam_width=2, finish_tokens=7, **STEPS),
    "revision": Revision(n=2, attempts=3, memory=1, max_tokens=6, feedback=WORDS),
    "self_refine": SelfRefine(
        attempts=3, max_tokens=6, feedback_tokens=5, feedback=WORDS, rewrite=WORDS, done="ab"
    ),
    "budget_forcing": BudgetForcing(
        waits=2, thinking_tokens=12, answer_tokens=5, wait=WORDS, final=WORDS
    ),
    "certainty_probe": CertaintyProbe(max_tokens=14, every=5, probe_tokens=3, suffix=WORDS),
    "deep_conf": DeepConf(
        mode="online", n=6, max_tokens=12, window=4, warmup=2, block=2, least_votes=2, step_tokens=4
    ),
    "diverse_prompts": DiversePrompts(
        n=4, max_tokens=9, phrasings=("a {question} a", "b {question} bc"), hints=("a", "bc", "d")
    ),
    "mixed": Mixed(),
    "mixed_words": MixedWords(),
    "aggregate_write": Aggregate(n=4, k=2, rounds=2, max_tokens=7, words=WORDS),
    "aggregate_select": Aggregate(mode="select", n=4, k=2, m=2, max_tokens=7, words=WORDS),
    "ab_mcts_m": ABMCTSM(iterations=4, max_tokens=6, feedback=WORDS),
}
HANDED_ON = ("ab_mcts", "ab_mcts_m", "mixed")
"""Searches that have another model go on, where there are two."""
BUDGETS: dict[str, dict[str, Any]] = {
    "tokens": {"max_tokens": 25},
    "tokens_reserve": {"max_tokens": 40, "reserve": 9, "final_text": WORDS},
    "generated": {"max_generated_tokens": 25},
    "generated_reserve": {"max_generated_tokens": 25, "reserve": 6},
    "calls": {"max_calls": 2},
    "tool_calls": {"max_tool_calls": 1},
    "calls_reserve": {"max_calls": 3, "reserve": 6, "final_text": WORDS},
}
SAMPLINGS: dict[str | None, dict[str, Any]] = {
    None: {},
    "greedy": {"temperature": 0.0},
    "filters": {"top_k": 24, "top_p": 0.9, "min_p": 0.02},
    "penalty": {"repetition_penalty": 1.3},
}
VARIANTS: dict[str | None, dict[str, Any]] = {
    None: {},
    "looks_ahead": {"lookahead": 2, "rollout": True, "rollout_tokens": 7, "aggregation": "mean"},
    "rarely_rates": {"verify_every": 2, "resampling": "systematic", "ess_threshold": 0.6},
    "thinks_in_steps": {"thinking_step": 3, "thoughts": True},
    "long": {"max_tokens": 40, "step_tokens": 20, "finish_tokens": 30},
    "watches_loops": {"stop_loops": True, "statistics": True, "weighted": True},
}
"""Settings of searches, each of those that have it."""
ENDS = {"eos_token_id": [3, 22, 41, 60, 79, 98]}
GENERATION: dict[str | None, dict[str, Any]] = {
    None: {},
    "ends": ENDS,
    "ends_late": ENDS | {"min_new_tokens": 4, "exponential_decay_length_penalty": [5, 1.2]},
    "no_repeat": {"no_repeat_ngram_size": 2, "suppress_tokens": [8, 16, 24]},
    "biased": {"sequence_bias": [[[33], 4.0], [[34, 35], 6.0]], "begin_suppress_tokens": [5, 33]},
}
"""Settings of a model's generation_config."""
VERIFIERS = ("at_once", "pass_by_pass", "elsewhere", "confidence", "writes", "reward", "fails")
MEMORIES: dict[str, Any] = {
    "resident": Resident,
    "layerwise": Layerwise,
    "beam_groups": BeamGroups,
    "unshared_groups": partial(BeamGroups, shared=False),
    "paged": Paged,
    "headwise": Headwise,
    "capture": Capture,
}
"""Policies that change no result."""
APPROXIMATE_MEMORIES: dict[str, Any] = {
    "quantized": QuantizedKV,
    "streaming_heads": partial(
        Headwise,
        streaming_heads=str(Path(__file__).with_name("streaming_heads.json")),
        sink_tokens=2,
        window_tokens=8,
    ),
}
"""Policies that no draw has."""
SHARINGS = {
    "exact": Sharing("exact"),
    "none": Sharing("none"),
    "similar": Sharing("similar", tau=0.5, probe_layers=1, same_numbers=False),
}
PLACEMENTS: dict[str, Any] = {
    "streamed": Streamed(),
    "split": Split(k=1),
    "split_layer": Split(k=2),
}


@dataclass(frozen=True)
class Combination:
    """One draw.

    seed: of prompts and samples. compiled: attention or whole layers, in float32. verifier: how it
        makes its passes, that they are another model's, or what else it does. spends: what a search may spend on a
        problem. sampling, variant: settings of the search. generation: of the models. context: so
        many tokens, about, fit in after the longest prompt. differ: every second problem has none
        of the settings that others have. grammar: what answers keep to. chats: problems are
        conversations. writers: a second model writes too, in the searches that hand on to it.
        tools: their calls stand within a text, end the model's turn, or are the caller's to make.
        alternatives: likely tokens that are kept in each place. budget, host_budget: of KV on the
        device and on the host, in multiples of the most that one of the problems takes alone; None
        for no limit. capacity: blocks of the cache.
    callers: searches are shared out among so many who drive the engine in turn. apart: so many
        steps of the drivers lie between one problem's coming and the next one's.
    watched: what is written is looked at after each token. changed: after every so many steps the
        model is said to be another one.
    cancelled: a problem that ends after so many steps of the driver as `at_step`. ended_by: whether
        the driver lets go of it, or it is cancelled, or its time is up. restarted: after so many
        results the rest is solved by another engine.
    gate: branches that trail stop decoding; approximate, as sharing="similar" and
        verifier="leaves_early" are. No draw has these.
    """

    seed: int = 0
    model: str = "llama"
    compiled: str | None = None
    search: str = "self_consistency"
    verifier: str | None = None
    problems: int = 1
    prompt_tokens: int = 12
    spends: str | None = None
    sampling: str | None = None
    variant: str | None = None
    generation: str | None = None
    context: int | None = None
    differ: bool = False
    grammar: Literal["lark", "schema"] | None = None
    chats: bool = False
    writers: bool = False
    alternatives: int = 0
    beside: str | None = None
    thinking: int | None = None
    tools: Literal["inline", "turns", "caller"] | None = None
    memory: str = "resident"
    budget: float | None = None
    host_budget: float | None = None
    block_tokens: int = 32
    prefetch: bool = True
    cache: Literal["rsbcm", "lru"] | None = None
    capacity: int = 8
    sharing: str = "exact"
    speculation: str | None = None
    placement: str | None = None
    callers: int = 1
    apart: int = 0
    concurrency: int | None = None
    max_rows: int | None = None
    prefill_tokens: int = 512
    watched: bool = False
    changed: int | None = None
    cancelled: int | None = None
    ended_by: Literal["driver", "event", "time"] = "driver"
    at_step: int = 0
    restarted: int | None = None
    gate: bool = False

    @property
    def rounded(self) -> bool:
        """Whether what runs beside a branch changes the last digits of float32."""
        return self.compiled is not None or self.model in IN_FLOAT32

    def settings(self) -> dict[str, Any]:
        """What is not as in the plainest way."""
        plain = Combination()
        return {k: v for k, v in asdict(self).items() if v != getattr(plain, k)}

    @property
    def searches(self) -> list[Search]:
        return [SEARCHES[name] for name in (self.search, self.beside) if name is not None]

    @property
    def plain(self) -> Combination:
        """The same problems and search, solved in the plainest way."""
        return Combination(**{name: getattr(self, name) for name in OF_PROBLEMS})


OF_PROBLEMS = (
    *("seed", "model", "compiled", "search", "verifier", "problems", "prompt_tokens", "spends"),
    *("sampling", "variant", "generation", "context", "differ", "grammar", "chats", "writers"),
    *("alternatives", "beside", "thinking", "tools", "gate"),
)
"""Settings of problems and of their searches, whatever these run on."""

DRAWS = 16
"""Draws that have their problems and search in common, which are solved alone once."""


def drawn(seed: int) -> Combination:
    """A combination at random, the same for the same seed. Rare settings are drawn often enough
    that each meets each other one in some of a few hundred draws."""
    r = random.Random(seed // DRAWS)
    problems = r.choice([1, 2, 2, 3, 3, 4, 5])
    search = r.choice([*SEARCHES])
    beside = r.choice([*SEARCHES]) if problems > 1 and r.random() < 0.5 else None
    names = (search, beside or search)
    needs_verifier = any(SEARCHES[name].needs_verifier for name in names)
    writers = r.random() < (0.6 if {*names} & {*HANDED_ON} else 0.1)
    models = [*MODELS, *RARE]
    (model,) = r.choices(models, [SHARES.get(name, 0.3) for name in models])
    plain = Combination(
        seed=seed // DRAWS,
        model=model,
        compiled=r.choice([None, None, None, "attention", "layers", "layers"]),
        search=search,
        verifier=r.choice([*VERIFIERS, *[None] * (not needs_verifier)]),
        problems=problems,
        prompt_tokens=r.choice([3, 12, 20, 36]),
        spends=r.choice([*[None] * 10, *BUDGETS]),
        sampling=r.choice([*[None] * 4, *SAMPLINGS]),
        variant=r.choice([*[None] * 4, *VARIANTS]),
        generation=r.choice([*[None] * 3, *GENERATION]),
        context=r.choice([*[None] * 6, 0, 8, 16]),
        differ=problems > 1 and r.random() < 0.25,
        beside=beside,
        thinking=r.choice([None, None, None, 0, 2, 5]),
        tools=None if writers else r.choice([*[None] * 8, "inline", "inline", "turns", "caller"]),
        chats=r.choice([False, False, False, True]),
        writers=writers,
        alternatives=r.choice([0, 0, 0, 2]),
    )
    if plain.tools == "turns":
        plain = replace(plain, chats=True)
    if not (plain.tools or writers or any(one.puts_words for one in plain.searches)):
        plain = replace(plain, grammar=r.choice([None, None, None, "lark", "schema"]))
    r = random.Random(f"settings of {seed}")

    def perhaps(chance: float, *values: Any) -> Any:
        return r.choice(values) if r.random() < chance and values else None

    return replace(
        plain,
        memory=r.choice([*MEMORIES]),
        budget=perhaps(0.6, 1.1, 1.3, 1.6, 3.0),
        host_budget=perhaps(0.15, 2.0, 4.0),
        block_tokens=r.choice([4, 8, 16, 32]),
        prefetch=r.random() < 0.8,
        cache=perhaps(0.7, "rsbcm", "lru"),
        capacity=r.choice([1, 2, 4, 4, 8, 8, 16, 40]),
        sharing=r.choice(["exact", "exact", "exact", "none"]),
        speculation=perhaps(0.3, "prompt_lookup", "draft_model"),
        placement=perhaps(0.2, *PLACEMENTS),
        callers=r.choice([1, 1, 1, 2]),
        apart=r.choice([0, 0, 1, 4]),
        concurrency=perhaps(0.3, 1, 2, 3),
        max_rows=perhaps(0.25, 3, 5, 9),
        prefill_tokens=r.choice([12, 64, 512, 512]),
        watched=r.random() < 0.3,
        changed=perhaps(0.1, 2, 5, 11),
        cancelled=perhaps(0.25, *range(problems)),
        ended_by=r.choice(["driver", "event", "time"]),
        at_step=r.randint(0, 30),
        restarted=perhaps(0.2, *range(1, problems)),
    )


@dataclass(frozen=True)
class AtOnce:
    """Rates a branch by a hash of its tokens, and by what the model says after them: on the
    branch's KV, and on a branch beside it. exact: whether what it says is the same to 6 places."""

    exact: bool

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        logprobs = backend.score(branches, [[[65], [66, 67]]] * len(branches)).result()
        beside = backend.side_branches(
            branches, [branch.tokens[-9:] for branch in branches]
        ).result()
        backend.release(beside)
        return self.scores(branches, logprobs)

    def scores(self, branches: Sequence[Branch], logprobs: Any) -> list[list[float]]:
        said = [round(sum(rows[1]) % 1, 6) if self.exact else 0.0 for rows in logprobs]
        sums = [sum(i * t for i, t in enumerate(branch.tokens)) % 101 for branch in branches]
        return [[(part + number) / 102] for part, number in zip(sums, said, strict=True)]


@dataclass(frozen=True)
class PassByPass(AtOnce):
    """Rates likewise, where others may use the engine between two passes."""

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> Passes[list[list[float]]]:
        call = backend.score(branches, [[[65], [66, 67]]] * len(branches))
        logprobs = yield from call.passes()
        call = backend.side_branches(branches, [branch.tokens[-9:] for branch in branches])
        try:
            yield from call.passes()
        finally:
            backend.release(call.branches)
        return self.scores(branches, logprobs)


class Writes(PassByPass):
    """Rates by what the model writes beside a branch."""

    @pass_by_pass
    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> Passes[list[list[float]]]:
        call = backend.side_branches(branches, [branch.tokens[-9:] for branch in branches])
        yield from call.passes()
        texts = [text for beside in call.branches for text in backend.fork(beside, 2)]
        try:
            yield from written(backend, texts, Step(5), Sampling(0.7))
            sums = [sum(text.tokens) % 101 / 102 for text in texts]
        finally:
            backend.release([*call.branches, *texts])
        return [[*pair] for pair in zip(sums[::2], sums[1::2], strict=True)]


@dataclass(eq=False)
class Rewards(RewardModel):
    """Rates each step by a model whose keys and values have the search's budget."""

    separator: str = "a"
    headed = False

    def closed(self, question: str, steps: Sequence[str]) -> list[int]:
        text = question + "".join(f"{step}~" for step in steps)
        return self.encode(text.partition(MARK)[0])

    def score(self, output: torch.Tensor) -> float:
        return float(output.softmax(-1)[:50].sum())


class Fails(PassByPass):
    """Raises at some branches."""

    def scores(self, branches: Sequence[Branch], logprobs: Any) -> list[list[float]]:
        if any(sum(branch.tokens) % 13 == 0 for branch in branches):
            raise ValueError("13")
        return super().scores(branches, logprobs)


@dataclass(frozen=True)
class LeavesEarly(AtOnce):
    """Rates likewise, by a pass that branches leave before the last layer."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        exit = EarlyExit(rule="ranking", l_min=1, patience=1)
        logprobs = backend.score(branches, [[[65], [66]]] * len(branches), exit=exit).result()
        return self.scores(branches, logprobs)


@cache
def model_of(name: str, dtype: torch.dtype) -> Any:
    if name == REAL:
        model, _ = load(name, dtype=dtype)
        model.generation_config.eos_token_id = None
        return model
    torch.manual_seed(0)
    if name in RARE:
        model = small_models.build(name)
    else:
        model = hf.AutoModelForCausalLM.from_config(MODELS[name]()).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    model.set_experts_implementation("eager")  # the others take no float64
    return model.to(dtype)


@cache
def runner_of(name: str, compiled: str | None, drafts: bool) -> ModelRunner:
    """What runs a model in one engine after the other, checked once. drafts: for the model that
    drafts, which runs beside."""
    model = copy.deepcopy(model_of(name, dtype_of(compiled)))
    return runner_for(model, "auto" if compiled == "layers" else "modules")


@cache
def reward_model(dtype: torch.dtype) -> Any:
    return copy.deepcopy(model_of("llama", dtype))


def dtype_of(compiled: str | None) -> torch.dtype:
    return torch.float64 if compiled is None else torch.float32


class Letters:
    """A tokenizer of one token per character, whose texts have few letters."""

    eos_token_id: int | None = None

    def __init__(self, chat_template: str | None = None) -> None:
        self.chat_template = chat_template

    def apply_chat_template(self, messages: Any, tokenize: bool = True, **options: Any) -> Any:
        written = render_jinja_template([messages], chat_template=self.chat_template, **options)
        text = written[0][0]
        return self.encode(text) if tokenize else text

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return [ord(c) % small_models.VOCAB for c in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join("abcdefgh"[token % 8] for token in tokens)


class LettersOfGrammar(Letters, hf.PreTrainedTokenizerFast):  # type: ignore[misc]
    """To a grammar, which reads fast tokenizers alone, each token is its ASCII character."""

    eos_token_id = 0

    def __init__(self, chat_template: str | None = None) -> None:
        letters = {c: byte for byte, c in bytes_to_unicode().items() if byte < small_models.VOCAB}
        tokenizer = Tokenizer(BPE(letters, []))
        tokenizer.decoder = ByteLevel()
        hf.PreTrainedTokenizerFast.__init__(
            self, tokenizer_object=tokenizer, chat_template=chat_template
        )


GRAMMARS: dict[str | None, dict[str, Any]] = {
    None: {},
    "lark": {"grammar": r"start: /([ -O]{2}(.|\n))*/"},
    "schema": {
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "string", "maxLength": 4}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
}
"""Of the former two tokens are of the vocabulary's middle, and the third is free."""
CHAT = (
    "{% if tools %}f{% endif %}{% for m in messages %}{{ m.role[0] }}{% if m.role == 'assistant' %}"
    "{{ m.content.split('g')[-1].split('>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)
"""A chat template, which leaves out what was thought."""


def tokenizer_of(model: str, c: Combination) -> Any:
    if model == REAL:
        return load_tokenizer(model)
    return letters(c.grammar is not None, CHAT if c.chats else None)


@cache
def letters(grammar: bool, chat_template: str | None) -> Any:
    return (LettersOfGrammar if grammar else Letters)(chat_template)


EARLIER = [
    {"role": "system", "content": "be"},
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cad"},
]


def problems_of(c: Combination) -> list[Problem]:
    """Questions of about as many tokens, which begin alike two by two."""
    if c.model == REAL:
        return [
            Problem(
                f"Ann has {n + 3} apples and buys {c.seed + 9} more. How many?", f"{c.seed}-{n}"
            )
            for n in range(c.problems)
        ]
    questions = []
    for number in range(c.problems):
        common = small_models.tokens(1000 * c.seed + number // 2, c.prompt_tokens)
        own = small_models.tokens(1000 * c.seed + 500 + number, 1 + number % 5)
        questions.append("".join(map(chr, [*common, *own])))
    ids = [f"{c.seed}-{n}" for n in range(c.problems)]
    if not c.chats:
        return list(map(Problem, questions, ids))
    chats: list[list[dict[str, str]]] = [[{"role": "user", "content": q}] for q in questions]
    for number, chat in enumerate(chats):
        chat[:0] = EARLIER[: number % 4]
    return [Problem.of_chat(chat, id=name) for chat, name in zip(chats, ids, strict=True)]


def memory_of(c: Combination, budget_gib: float | None, host_budget_gib: float | None) -> Any:
    sizes: dict[str, Any] = {}
    if c.memory not in ("resident", "quantized"):
        sizes = {"block_tokens": c.block_tokens, "prefetch": c.prefetch}
        sizes["host_budget_gib"] = host_budget_gib
    return (MEMORIES | APPROXIMATE_MEMORIES)[c.memory](budget_gib, **sizes)


def second_of(
    c: Combination, budget_gib: float | None = None, host_budget_gib: float | None = None
) -> Engine:
    """A model beside the first one, for whatever needs one: it drafts, rates or writes. Where it
    writes, its memory is as the first one's."""
    runner = runner_of("llama", c.compiled, True)
    runner.model.generation_config = generation_of(c)
    memory = memory_of(c, budget_gib, host_budget_gib) if c.writers else None
    return Engine(runner.model, tokenizer_of("llama", c), memory=memory, runner=runner)


def engine_of(
    c: Combination,
    budget_gib: float | None,
    host_budget_gib: float | None,
    second: Engine | None = None,
) -> Engine:
    options: dict[str, Any] = {}
    if c.placement is None:
        runner = runner_of(c.model, c.compiled, False)
        model = runner.model
    else:
        model = copy.deepcopy(model_of(c.model, dtype_of(c.compiled)))
        runner = PLACEMENTS[c.placement].place(model, "cpu")
    model.generation_config = generation_of(c)
    if c.cache is not None:
        options["cache"] = BlockCache(c.capacity, block_tokens=4, order=c.cache)
    if c.speculation == "prompt_lookup":
        options["speculation"] = PromptLookup(max_rows=16)
    if c.speculation == "draft_model":
        options["speculation"] = DraftModel(model=second or second_of(c), max_rows=16)
    engine = Engine(
        model,
        tokenizer_of(c.model, c),
        memory=memory_of(c, budget_gib, host_budget_gib),
        sharing=SHARINGS[c.sharing],
        gate=DecodeGate(theta=0.1, r_gap=0.02, min_tokens=3) if c.gate else None,
        prefill_tokens=c.prefill_tokens,
        runner=runner,
        **options,
    )
    if c.context is not None:
        engine.limits.context_length = c.context + c.prompt_tokens + (30 if c.chats else 105)
    return engine


def generation_of(c: Combination) -> hf.GenerationConfig:
    return hf.GenerationConfig(**GENERATION[c.generation])


MARKS = ThinkingMarks(("d", "<"), ("g", ">"), closing=">")
"""The former of letters, the latter of a grammar's. What closes a thought is one token of both."""


class LetterCalls(ToolFormat):
    """A letter is a call, with what stands before it in the model's turn."""

    ends = ("h",)

    def __init__(self, inline: bool) -> None:
        self.inline = inline

    def calls(self, text: str) -> list[Written]:
        before, letter, after = text.rpartition("h")
        return [Written("tool", {"text": before}, len(before))] if letter and not after else []

    def answered(self, answer: str) -> str:
        return answer


def answer_of(text: str) -> str:
    time.sleep(len(text) % 2 / 1000)
    if len(text) % 5 == 4:
        raise ToolError("d")
    return text[-2:] * (len(text) % 3) + "e"


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SCHEMA = {"type": "function", "function": {"name": "tool", "parameters": TEXT}}


def tools_of(c: Combination) -> Tools | None:
    """Where a call ends the model's turn, it is looked for before that if no turn ends by itself."""
    if c.tools is None:
        return None
    tool = Tool(SCHEMA, None if c.tools == "caller" else answer_of)
    form = LetterCalls(c.tools != "turns")
    return Tools([tool], format=form, calls_per_branch=2, parallel=c.generation is not None)


def config_of(
    c: Combination, engine: Backend, verifier: Verifier | None, besides: bool
) -> SearchConfig:
    """besides: of the problems whose search is `c.beside`."""
    others = besides and c.beside is not None
    search = SEARCHES[str(c.beside) if others else c.search]
    if besides and c.differ:
        c = replace(c, sampling=None, grammar=None, alternatives=0, thinking=None, tools=None)
    settings = SAMPLINGS[c.sampling] | VARIANTS[c.variant]
    search = replace(search, **{k: v for k, v in settings.items() if hasattr(search, k)})
    if c.thinking is not None:
        search = replace(search, thinking_tokens=c.thinking)
    budget = {} if others or c.spends is None else dict(BUDGETS[c.spends])
    if c.grammar is not None:
        budget.pop("final_text", None)
    options = SolveOptions.of(
        verifier=verifier,
        seed=c.seed,
        end=[] if c.grammar else ["bc"],
        top_logprobs=c.alternatives,
        **GRAMMARS[c.grammar],
        **budget,
        thinking_marks=None if c.thinking is None else MARKS,
        tools=tools_of(c),
    )
    return SearchConfig.of(search, engine, options)


def verifier_of(c: Combination, second: Engine) -> Verifier | None:
    if c.verifier is None:
        return None
    if c.verifier == "elsewhere":
        return Elsewhere(PassByPass(exact=not c.rounded), second)
    if c.verifier == "confidence":
        return ConfidenceVerifier()
    if c.verifier == "reward":
        return Rewards((reward_model(dtype_of(c.compiled)), letters(False, None)))
    kinds = {"at_once": AtOnce, "pass_by_pass": PassByPass, "writes": Writes, "fails": Fails}
    return (kinds | {"leaves_early": LeavesEarly})[c.verifier](exact=not c.rounded)


LIMIT_S = 1e6
"""Seconds that no draw takes, unless so many are counted at once."""


def results(
    c: Combination, engine: Engine, problems: Sequence[Problem], second: Engine | None = None
) -> Generator[tuple[str, Result], None, None]:
    """Of the problems that the driver has not let go of, as they end, by their ids."""
    second = second or second_of(c)
    backend = SeveralModels({"first": engine, "second": second}) if c.writers else engine
    verifier = verifier_of(c, second)
    config = config_of(c, backend, verifier, False)
    apart = c.beside is not None or c.differ
    configs = [config, config_of(c, backend, verifier, True) if apart else config]
    drivers = [
        Driver(
            backend,
            ProblemAdmission.of(backend, c.concurrency, c.max_rows),
            each_token=c.watched,
        )
        for _ in range(c.callers)
    ]
    cancel = Event()
    coming = list(enumerate(problems))
    told = defaultdict[tuple[int, int], list[Node]](list)
    names: dict[tuple[int, int], str] = {}
    step = 0
    try:
        while coming or any(driver.busy for driver in drivers):
            while coming and step >= coming[0][0] * c.apart:
                number, problem = coming.pop(0)
                caller = number % c.callers
                config = configs[int(str(problem.id).partition("-")[2]) % 2]
                if problem.id == f"{c.seed}-{c.cancelled}":
                    config = _may_end(config, c, cancel)
                names[caller, drivers[caller].add(problem, config)] = str(problem.id)
            for caller, driver in enumerate(drivers):
                for (of, index), name in names.items():
                    if step == c.at_step and of == caller and name == f"{c.seed}-{c.cancelled}":
                        _end(driver, index, c, cancel)
                for index, progress in driver.step():
                    if progress.did == "wrote":
                        told[caller, index] += progress.nodes
                    if progress.result is not None:
                        _check_told(told[caller, index], progress.result)
                        yield names[caller, index], progress.result
            step += 1
            if c.changed is not None and step % c.changed == 0:
                engine.model_changed()
    finally:
        for driver in drivers:
            driver.close()


def _check_told(told: Sequence[Node], result: Result) -> None:
    """Raise unless what was told of steps under way is the beginning of what they came to."""
    whole = {node.id: node.text for node in result.tree}
    for node in told:
        if not whole[node.id].startswith(node.text):
            raise ValueError(f"{node.text!r} was told of {whole[node.id]!r}, at {node.path}")


def _may_end(config: SearchConfig, c: Combination, cancel: Event) -> SearchConfig:
    options = config.options
    if c.ended_by == "event":
        return replace(config, options=replace(options, cancel=cancel))
    if c.ended_by == "time":
        budget = replace(options.budget, max_wall_s=LIMIT_S)
        return replace(config, options=replace(options, budget=budget))
    return config


def _end(driver: Driver, index: int, c: Combination, cancel: Event) -> None:
    if c.ended_by == "driver":
        driver.cancel(index)
    elif c.ended_by == "event":
        cancel.set()
    elif index in driver.active:
        driver.active[index].spending.started -= LIMIT_S


def seen(result: Result) -> Any:
    """All that must be the same. Of a problem that failed within a step its tree has the step's
    tokens only where they were watched."""
    branches = [(b.tokens, b.path, b.finish_reason, b.score) for b in result.branches]
    nodes = [] if result.error else result.tree
    tree = [astuple(replace(node, logprobs=[])) for node in nodes]
    meters = [result.usage, *(result.usage_by_model[name] for name in result.usage_by_model)]
    spent = [
        (u.generated_tokens, u.budgeted_tokens, u.thinking_tokens, u.tool_calls) for u in meters
    ]
    records = [branch.to_dict() | {"root_id": 0} for branch in result.branches]
    logprobs = [node.logprobs for node in nodes]
    more = result.stopped, result.prompt, result.pruned, spent, records, logprobs
    return result.answer, branches, tree, str(result.error), more


def begins(part: Result, whole: Result) -> bool:
    """Whether a result that was broken off is a beginning of the whole one: each of its nodes holds
    the first tokens of one of the whole tree."""
    nodes = {tuple(node.path): node for node in whole.tree}
    pairs = [(node, nodes.get(tuple(node.path))) for node in part.tree]
    return all(
        other is not None
        and node.start == other.start
        and node.token_ids == other.token_ids[: len(node.token_ids)]
        and (node.text == other.text or node.token_ids != other.token_ids)
        for node, other in pairs
    )


def alike(one: Any, other: Any, bound: float) -> bool:
    """Whether two things are the same, numbers but for a difference up to `bound`."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=bound)
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = [*one.items()], [*other.items()]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(
            alike(a, b, bound) for a, b in zip(one, other, strict=True)
        )
    return bool(one == other)


@lru_cache(maxsize=64)
def alone(plain: Combination, number: int) -> tuple[Result, int]:
    """What a problem gives alone, and the bytes that its KV took."""
    second = second_of(plain)
    engine = engine_of(plain, None, None, second)
    ((_, result),) = results(plain, engine, [problems_of(plain)[number]], second)
    writers = [engine, second] if plain.writers else [engine]
    return result, max(writer.memory.device.peak_bytes for writer in writers)


def difference(c: Combination) -> str | None:
    """What is not as it is alone, None if nothing is."""
    expected = {f"{c.seed}-{n}": alone(c.plain, n) for n in range(c.problems)}
    most_gib = max(peak for _, peak in expected.values()) / 2**30
    budget, host_budget = (
        None if share is None else share * most_gib or None for share in (c.budget, c.host_budget)
    )
    left = problems_of(c)
    found: dict[str, Result] = {}
    for stop in ([c.restarted] if c.restarted else []) + [len(left)]:
        second = second_of(c, budget, host_budget)
        engine = engine_of(c, budget, host_budget, second)
        solving = results(c, engine, [p for p in left if p.id not in found], second)
        for name, result in solving:
            found[name] = result
            if len(found) >= stop:
                break
        solving.close()
        if (kept := engine.kv_bytes() + second.kv_bytes()) > 0:
            return f"{kept} bytes of KV are left"
    ended_early = {f"{c.seed}-{c.cancelled}"}
    missing = expected.keys() - found.keys()
    if c.ended_by == "driver":
        missing -= ended_early
    if missing:
        return f"no result of {sorted(missing)}"
    bound = 1e-3 if c.rounded else 1e-9
    wrong = []
    for name, result in found.items():
        whole, values = expected[name][0], result.to_dict()
        broken_off = name in ended_early and result.stopped in ("cancelled", "max_wall_s")
        same = begins(result, whole) if broken_off else alike(seen(result), seen(whole), bound)
        if not same or Result.from_dict(json.loads(json.dumps(values))).to_dict() != values:
            wrong.append(name)
    return f"{len(wrong)} of {len(found)} {DIFFER}: {wrong}" if wrong else None


DIFFER = "results differ"


class Outcome(NamedTuple):
    """What became of a combination, and why it was refused or has failed."""

    kind: Literal["same", "refused", "failed"]
    why: str = ""


def outcome(c: Combination) -> Outcome:
    """What becomes of a combination. What the engine refuses by name is no failure, nor is a
    difference in float32 that other samples do not have."""
    found = _outcome(c)
    if DIFFER in found.why and c.rounded:
        others = [_outcome(replace(c, seed=c.seed + 10**6 * n)) for n in range(1, OTHERS + 1)]
        if sum(DIFFER in other.why for other in others) < 2:
            return Outcome("same", f"rounded: {found.why}")
    return found


OTHERS = 6
"""Other samples that are tried where one differs in float32; about one in a hundred is rounded to
another token."""


def _outcome(c: Combination) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            why = difference(c)
        except TTCError as error:
            return Outcome("refused", str(error))
        except Exception as error:
            return Outcome("failed", f"{type(error).__name__}: {error}")
    return Outcome("same") if why is None else Outcome("failed", why)


def failed(c: Combination) -> bool:
    return outcome(c).kind == "failed"


def fewest(c: Combination, fails: Callable[[Combination], bool]) -> Combination:
    """A combination of as few settings as possible that still fails."""
    for name in c.settings():
        for value in _simpler(c, name):
            simpler = replace(c, **{name: value})
            if fails(simpler):
                return fewest(simpler, fails)
    return c


def _simpler(c: Combination, name: str) -> list[Any]:
    """Values to try in the place of a setting: the plain one, or fewer problems."""
    if name == "problems":
        return [n for n in (1, c.problems // 2, c.problems - 1) if 0 < n < c.problems]
    if name == "verifier" and any(search.needs_verifier for search in c.searches):
        return []
    return [getattr(Combination(), name)]


def run(
    *,
    draws: int = 200,
    first: Annotated[int, "the first draw's seed"] = 0,
    settings: Annotated[str | None, "one combination as JSON, as a failure tells it"] = None,
) -> int:
    """Try so many draws, or one that is given as JSON. Returns an exit code: 1 where one failed."""
    torch.set_num_threads(1)
    if settings is not None:
        one = outcome(Combination(**json.loads(settings)))
        show(f"{one.kind}. {one.why}")
        return int(one.kind == "failed")
    kinds = Counter[str]()
    for seed in range(first, first + draws):
        c = drawn(seed)
        kind, _ = outcome(c)
        kinds[kind] += 1
        if kind == "failed":
            c = fewest(c, failed)
            command = shlex.join(["--settings", json.dumps(c.settings())])
            show(f"seed {seed}: {outcome(c).why}")
            show(f"  python -m experiments.bench combinations {command}")
        if kinds.total() % 100 == 0:
            say(f"{kinds.total()} of {draws}: {dict(kinds)}")
    show(f"{draws} draws from seed {first}: {dict(kinds)}")
    return int(kinds["failed"] > 0)
