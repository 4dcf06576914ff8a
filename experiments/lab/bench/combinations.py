"""Features drawn at random and used together, compared with each problem alone: its texts, tree,
scores and choice with all KV on the device, no cache, and one problem at a time.

A `Combination` is one draw. Its defaults are the plainest way to solve, so that what differs from
them is what a failure needs; `fewest` looks for the fewest such settings. Models run in float64,
where rounding was not seen to change a sample.
"""

from __future__ import annotations

import copy
import json
import random
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import torch
import transformers as hf

from experiments.cli.output import say, show
from experiments.standins import small_models
from search import (
    DVTS,
    MCTS,
    REBASE,
    BeamSearch,
    BestFirst,
    BestOfN,
    Greedy,
    ParticleFilter,
    Problem,
    Result,
    Search,
    SelfConsistency,
)
from search.admission import ProblemAdmission
from search.config import SearchConfig
from search.driver import Driver
from search.options import SolveOptions
from ttc import (
    BeamGroups,
    BlockCache,
    Branch,
    Capture,
    DraftModel,
    Engine,
    Headwise,
    Layerwise,
    Paged,
    PromptLookup,
    Resident,
    Sharing,
    Split,
    Streamed,
)
from ttc.errors import TTCError

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
MODELS: dict[str, Any] = {
    "llama": lambda: hf.LlamaConfig(**WIDTHS, num_key_value_heads=2),
    "gpt2": lambda: hf.GPT2Config(**WIDTHS, n_inner=48),
    "mistral": lambda: hf.MistralConfig(**WIDTHS, num_key_value_heads=1, sliding_window=16),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **WIDTHS, **WINDOWED, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8
    ),
    "deepseek_v3": lambda: hf.DeepseekV3Config(**WIDTHS, **LATENT, num_key_value_heads=4),
}
"""Small decoders of attention layers of several kinds."""
RECURRENT = ("mamba2", "qwen3_next", "jamba")
"""Larger ones, by their names in `bench architectures`, which take seconds for a draw."""
SEARCHES: dict[str, Search] = {
    "greedy": Greedy(max_tokens=12),
    "best_of_n": BestOfN(n=4, max_tokens=16),
    "self_consistency": SelfConsistency(n=3, max_tokens=12),
    "beam_search": BeamSearch(beam_size=2, beam_width=2, step_tokens=9, max_steps=4, delimiter="a"),
    "dvts": DVTS(subtrees=2, beam_width=2, step_tokens=9, max_steps=4, delimiter="a"),
    "best_first": BestFirst(
        beam_size=1, beam_width=3, step_tokens=9, max_steps=5, finish=4, delimiter="a"
    ),
    "mcts": MCTS(
        iterations=3, beam_width=2, step_tokens=9, max_depth=3, rollout=False, delimiter="a"
    ),
    "rebase": REBASE(n=4, step_tokens=9, max_steps=4, delimiter="a"),
    "particle_filter": ParticleFilter(n=4, step_tokens=9, max_steps=4, delimiter="a"),
}
"""Steps end at a letter, so that searches are soon out of step with each other."""
MEMORIES: dict[str, Any] = {
    "resident": Resident,
    "layerwise": Layerwise,
    "beam_groups": BeamGroups,
    "unshared_groups": partial(BeamGroups, shared=False),
    "paged": Paged,
    "headwise": Headwise,
    "capture": Capture,
}
PLACEMENTS: dict[str, Any] = {
    "streamed": Streamed(),
    "split": Split(k=1),
    "split_layer": Split(k=2),
}


@dataclass(frozen=True)
class Combination:
    """One draw.

    seed: of prompts and samples. budget: of the device's KV, in multiples of the most that one of
        the problems takes alone; None for no limit. capacity: blocks of the cache. cancelled: a
        problem that is let go of after so many steps of the driver as `at_step`. restarted: after
        so many results the rest is solved by another engine.
    """

    seed: int = 0
    model: str = "llama"
    search: str = "self_consistency"
    verifier: bool = False
    problems: int = 1
    prompt_tokens: int = 12
    memory: str = "resident"
    budget: float | None = None
    block_tokens: int = 32
    cache: str | None = None
    capacity: int = 8
    sharing: str = "exact"
    speculation: str | None = None
    placement: str | None = None
    concurrency: int | None = None
    max_rows: int | None = None
    prefill_tokens: int = 512
    cancelled: int | None = None
    at_step: int = 0
    restarted: int | None = None

    def settings(self) -> dict[str, Any]:
        """What is not as in the plainest way."""
        plain = Combination()
        return {k: v for k, v in asdict(self).items() if v != getattr(plain, k)}


DRAWS = 8
"""Draws that have their problems and search in common, which are solved alone once."""


def drawn(seed: int) -> Combination:
    """A combination at random, the same for the same seed."""
    r = random.Random(seed // DRAWS)
    problems = r.randint(1, 6)
    search = r.choice([*SEARCHES])
    plain = Combination(
        seed=seed // DRAWS,
        model=r.choice(RECURRENT if r.random() < 0.02 else [*MODELS]),
        search=search,
        verifier=SEARCHES[search].needs_verifier or r.random() < 0.5,
        problems=problems,
        prompt_tokens=r.choice([3, 12, 30, 60]),
    )
    r = random.Random(f"settings of {seed}")

    def perhaps(chance: float, *values: Any) -> Any:
        return r.choice(values) if r.random() < chance else None

    return replace(
        plain,
        memory=r.choice([*MEMORIES]),
        budget=perhaps(0.5, 1.2, 1.5, 3.0),
        block_tokens=r.choice([4, 8, 16, 32]),
        cache=perhaps(0.7, "rsbcm", "lru"),
        capacity=r.choice([1, 2, 4, 8, 16, 40]),
        sharing=r.choice(["exact", "exact", "exact", "none"]),
        speculation=perhaps(0.3, "prompt_lookup", "draft_model"),
        placement=perhaps(0.15, *PLACEMENTS),
        concurrency=perhaps(0.4, 1, 2, 3, 5),
        max_rows=perhaps(0.3, 3, 5, 9),
        prefill_tokens=r.choice([8, 32, 128, 512]),
        cancelled=perhaps(0.2, *range(problems)),
        at_step=r.randint(0, 30),
        restarted=perhaps(0.1, *range(problems)),
    )


class Looks:
    """Rates a branch by a hash of its tokens, after passes over its KV and over branches beside
    it."""

    def rate(
        self, branches: Sequence[Branch], questions: Sequence[str], backend: Any
    ) -> list[list[float]]:
        backend.score(branches, [[[65], [66, 67]]] * len(branches))
        beside = backend.side_branches(branches, [branch.tokens[-12:] for branch in branches])
        backend.release(beside)
        return [[sum(i * t for i, t in enumerate(b.tokens)) % 101 / 101.0] for b in branches]


@cache
def model_of(name: str) -> Any:
    if name in RECURRENT:
        model = small_models.build(name)
    else:
        torch.manual_seed(0)
        model = hf.AutoModelForCausalLM.from_config(MODELS[name]()).eval().requires_grad_(False)
        model.generation_config.eos_token_id = None
    model.set_experts_implementation("eager")  # the others take no float64
    return model.double()


class Letters:
    """A tokenizer of one token per character, whose texts have few letters."""

    eos_token_id = None
    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(c) % small_models.VOCAB for c in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join("abcdefgh"[token % 8] for token in tokens)


def problems_of(c: Combination) -> list[Problem]:
    """Questions of about as many tokens, which begin alike two by two."""
    questions = []
    for number in range(c.problems):
        common = small_models.tokens(1000 * c.seed + number // 2, c.prompt_tokens)
        own = small_models.tokens(1000 * c.seed + 500 + number, 1 + number % 5)
        questions.append("".join(map(chr, [*common, *own])))
    return [Problem(question, f"{c.seed}-{n}") for n, question in enumerate(questions)]


def engine_of(c: Combination, budget_gib: float | None) -> Engine:
    model = copy.deepcopy(model_of(c.model))
    sizes: dict[str, Any] = {} if c.memory == "resident" else {"block_tokens": c.block_tokens}
    options: dict[str, Any] = {}
    if c.placement is not None:
        options["runner"] = PLACEMENTS[c.placement].place(model, "cpu")
    if c.cache is not None:
        options["cache"] = BlockCache(c.capacity, block_tokens=4, order=c.cache)
    if c.speculation == "prompt_lookup":
        options["speculation"] = PromptLookup(max_rows=16)
    if c.speculation == "draft_model":
        draft = Engine(copy.deepcopy(model_of("llama")), Letters())
        options["speculation"] = DraftModel(model=draft, max_rows=16)
    return Engine(
        model,
        Letters(),
        memory=MEMORIES[c.memory](budget_gib, **sizes),
        sharing=Sharing(c.sharing),  # type: ignore[arg-type]
        prefill_tokens=c.prefill_tokens,
        **options,
    )


def results(
    c: Combination, engine: Engine, problems: Sequence[Problem]
) -> Generator[tuple[str, Result], None, None]:
    """Of the problems that were not cancelled, as they end, by their ids."""
    verifier = Looks() if c.verifier else None
    options = SolveOptions.of(verifier=verifier, seed=c.seed, end=["bc"])
    config = SearchConfig.of(SEARCHES[c.search], engine, options)
    driver = Driver(engine, ProblemAdmission.of(engine, c.concurrency, c.max_rows))
    numbers = {problem.id: driver.add(problem, config) for problem in problems}
    cancelled = None if c.cancelled is None else numbers.get(f"{c.seed}-{c.cancelled}")
    step = 0
    try:
        while driver.busy:
            if step == c.at_step and cancelled is not None:
                driver.cancel(cancelled)
            step += 1
            for index, progress in driver.step():
                if progress.result is not None:
                    yield str(problems[index].id), progress.result
    finally:
        driver.close()


def seen(result: Result) -> Any:
    """All that must be the same. Log-probabilities are rounded by what runs beside."""
    branches = [(b.tokens, b.path, b.finish_reason, b.score) for b in result.branches]
    tree = [replace(node, logprobs=[]) for node in result.tree]
    return result.answer, branches, tree, str(result.error)


@cache
def alone(plain: Combination, number: int) -> tuple[Any, int]:
    """What a problem gives alone, and the bytes that its KV took."""
    engine = engine_of(plain, None)
    ((_, result),) = results(plain, engine, [problems_of(plain)[number]])
    return seen(result), engine.memory.device.peak_bytes


def difference(c: Combination) -> str | None:
    """What is not as it is alone, None if nothing is."""
    plain = Combination(c.seed, c.model, c.search, c.verifier, c.problems, c.prompt_tokens)
    expected = {f"{c.seed}-{n}": alone(plain, n) for n in range(c.problems)}
    most = max(peak for _, peak in expected.values())
    budget = None if c.budget is None else c.budget * most / 2**30
    left = problems_of(c)
    found: dict[str, Any] = {}
    for stop in ([c.restarted] if c.restarted else []) + [len(left)]:
        engine = engine_of(c, budget)
        solving = results(c, engine, [p for p in left if p.id not in found])
        for name, result in solving:
            found[name] = seen(result)
            if len(found) >= stop:
                break
        solving.close()
        if engine.kv_bytes():
            return f"{engine.kv_bytes()} bytes of KV are left"
    missing = expected.keys() - found.keys() - {f"{c.seed}-{c.cancelled}"}
    if missing:
        return f"no result of {sorted(missing)}"
    wrong = [name for name, result in found.items() if result != expected[name][0]]
    return f"{len(wrong)} of {len(found)} results differ: {wrong}" if wrong else None


class Outcome(NamedTuple):
    """What became of a combination, and why it was refused or has failed."""

    kind: Literal["same", "refused", "failed"]
    why: str = ""


def outcome(c: Combination) -> Outcome:
    """What becomes of a combination. What the engine refuses by name is no failure."""
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
    if name == "verifier" and SEARCHES[c.search].needs_verifier:
        return []
    return [getattr(Combination(), name)]


def run(first: int, draws: int, settings: str | None) -> int:
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
        elif kinds.total() % 100 == 0:
            say(f"{kinds.total()} of {draws}: {dict(kinds)}")
    show(f"{draws} draws from seed {first}: {dict(kinds)}")
    return int(kinds["failed"] > 0)
