"""The recipes, each with the published values and where they were read."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.recipes.published.recipe import Arm, Recipe, preset

MATH500 = 500
AIME = 30
GSM8K = 1319
DIAMOND = 198
GPQA_MAIN = 448
"""Problems of the data sets."""

SHORT = "taken as 500 tokens a solution; an assumption, as the sources give no count"

# ---------------------------------------------------------------- particle filtering

POLICIES = {
    "Llama-3.2-1B-Instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen2.5-Math-1.5B-Instruct": "Qwen/Qwen2.5-Math-1.5B-Instruct",
    "Qwen2.5-Math-7B-Instruct": "Qwen/Qwen2.5-Math-7B-Instruct",
}
TABLE_1 = {
    "Llama-3.2-1B-Instruct": ((26.8, 46.6, 47.8, 52.8, 59.6), (0.0, 3.3, 3.3, 6.6, 10.0)),
    "Llama-3.1-8B-Instruct": ((49.9, 58.6, 59.0, 65.7, 74.4), (6.6, 10.0, 10.0, 13.3, 16.6)),
    "Qwen2.5-Math-1.5B-Instruct": ((70.0, 82.6, 82.8, 83.4, 85.4), (10.0, 13.3, 13.3, 16.6, 23.3)),
    "Qwen2.5-Math-7B-Instruct": ((79.6, 83.0, 84.6, 85.4, 87.0), (16.6, 20.0, 20.0, 20.0, 23.3)),
}
"""For MATH-500 and for AIME 2024: pass@1, best of N, weighted best of N, DVTS, particle filter."""


def _particles(policy: str, dataset: str, values: Sequence[float], problems: int) -> list[Arm]:
    greedy, best, weighted, dvts, particles = values
    where = (f"model.name={POLICIES[policy]}", f"dataset={dataset}")
    reward = (*where, "verifier=qwen_prm")
    name = f"{policy}-{dataset}"
    return [
        Arm(f"{name}-greedy", preset("greedy", *where), {"accuracy": greedy}, problems),
        Arm(
            f"{name}-best_of_n",
            preset("best_of_n", *reward, "search.n=64"),
            {"naive@64": best, "weighted@64": weighted},
            problems,
            64,
        ),
        Arm(
            f"{name}-dvts",
            preset("dvts", *reward, "search.subtrees=16", "search.lookahead=1"),
            {"accuracy": dvts},
            problems,
            64,
        ),
        Arm(
            f"{name}-particle_filter",
            preset("particle_filter", *where),
            {"accuracy": particles},
            problems,
            64,
        ),
    ]


PARTICLE_FILTERING = Recipe(
    name="particle_filtering",
    title="particle filtering against best of N and DVTS, 64 generations, Qwen2.5-Math-PRM-7B",
    source="arXiv 2502.01618, Table 1",
    setting="arXiv 2502.01618, section 5; "
    "github.com/probabilistic-inference-scaling/probabilistic-inference-scaling at f75d461",
    differs=(
        "Llama: their chat template is search-and-learn's, which trims no blanks; here it is the "
        "model's own",
        "best of N: their weights are the reward model's score of the whole text; here it is the "
        "score of the last step",
        "particle filter: their particles also end at a text with \\boxed; here at the end of the "
        "model's turn, or after 40 steps",
        "the values are of one seed (96) there, and of seed 0 here",
        "answers are graded by math-verify here, by a parser of Qwen2.5-Math's there",
    ),
    solution_tokens=500,
    cost=SHORT,
    arms=tuple(
        arm
        for policy, tables in TABLE_1.items()
        for dataset, values, problems in (
            ("math500", tables[0], MATH500),
            ("aime", tables[1], AIME),
        )
        for arm in _particles(policy, dataset, values, problems)
    ),
)

# ---------------------------------------------------------------- s1

WAITS = {0: 50.0, 1: 53.3, 2: 53.3, 4: 56.7, 6: 56.7}
S1_MATH500 = {0: 93.0, 1: 92.8, 2: 93.0}
S1_DIAMOND = {0: 57.6, 1: 59.6, 2: 59.6}
"""Percent by the number of waits. 0 waits is their "No extrapolation": thinking has a limit, and
its end is not put off."""
ON_MATH500 = (
    "dataset.name=math500",
    "dataset.hub=HuggingFaceH4/MATH-500",
    "dataset.split=test",
    "dataset.reader=math500",
)
ON_DIAMOND = (
    "dataset.name=gpqa",
    "dataset.hub=Idavidrein/gpqa",
    "dataset.subset=gpqa_diamond",
    "dataset.reader=gpqa",
    "dataset.answer_kind=choice",
    "dataset.private=true",
)


def _waits(
    dataset: str, values: dict[int, float], problems: int, *settings: str
) -> tuple[Arm, ...]:
    return tuple(
        Arm(
            f"{dataset}-{waits}-waits",
            preset("budget_forcing", f"search.waits={waits}", *settings),
            {"accuracy": value},
            problems,
        )
        for waits, value in values.items()
    )


S1 = Recipe(
    name="s1",
    title="budget forcing with s1-32B: the end of thinking put off by `Wait`",
    source="arXiv 2501.19393, Table 4, for 0 and 2 waits; github.com/simplescaling/s1/issues/19 "
    "for the others on AIME 2024, and issues/134 for 1 wait on MATH-500 and GPQA-diamond",
    setting="github.com/simplescaling/s1: README.md, eval/commands.sh",
    differs=(
        "their answers are read by gpt-4o-mini before they are graded; here by rules",
        "their runs are in float32 on 8 GPUs; here the model's own type, unless model.dtype says "
        "otherwise",
        "where the tokens for thinking run out, their harness goes on with words of its own; here "
        "`Final Answer:` follows",
        "GPQA: their prompt is another one; here choices are shuffled by dataset.shuffle_seed",
    ),
    solution_tokens=8000,
    cost="taken as 8,000 tokens a chain; an assumption",
    arms=(
        *_waits("aime24", WAITS, AIME),
        *_waits("math500", S1_MATH500, MATH500, *ON_MATH500),
        *_waits("gpqa", S1_DIAMOND, DIAMOND, *ON_DIAMOND),
    ),
)

# ---------------------------------------------------------------- small models

DISTILLED = {
    "DeepSeek-R1-Distill-Qwen-1.5B": (28.9, 52.7, 83.9, 33.8),
    "DeepSeek-R1-Distill-Qwen-7B": (55.5, 83.3, 92.8, 49.1),
    "DeepSeek-R1-Distill-Llama-8B": (50.4, 80.0, 89.1, 49.0),
}
"""AIME 2024 pass@1 and majority of 64, MATH-500 pass@1, GPQA-diamond pass@1."""


def _distilled(model: str, values: Sequence[float]) -> list[Arm]:
    pass_at_1, majority, math500, diamond = values
    name = f"model.name=deepseek-ai/{model}"
    few = ("search.n=4", name)
    return [
        Arm(
            f"{model}-aime",
            preset("distilled", name),
            {"pass@1": pass_at_1, "maj@64": majority},
            AIME,
            64,
        ),
        Arm(
            f"{model}-math500",
            preset("distilled", *few, "dataset=math500"),
            {"pass@1": math500},
            MATH500,
            4,
        ),
        Arm(
            f"{model}-gpqa",
            preset("distilled", *few, "dataset=gpqa"),
            {"pass@1": diamond},
            DIAMOND,
            4,
        ),
    ]


R1_DISTILLED = Recipe(
    name="r1_distilled",
    title="GPQA-diamond, MATH-500 and AIME 2024 of DeepSeek-R1's small distilled models",
    source="arXiv 2501.12948, Table 5; the README of github.com/deepseek-ai/DeepSeek-R1",
    setting="arXiv 2501.12948: temperature 0.6, top-p 0.95, 32,768 tokens",
    differs=(
        "MATH-500 and GPQA-diamond: 4 samples a problem here, for the cost; more with search.n",
        "the prompts are this project's",
    ),
    solution_tokens=8000,
    cost="taken as 8,000 tokens a sample; an assumption",
    arms=tuple(arm for model, values in DISTILLED.items() for arm in _distilled(model, values)),
)

LLAMA = {"Llama-3.2-1B-Instruct": (44.4, 27.2), "Llama-3.2-3B-Instruct": (77.7, 32.8)}
QWEN = {"Qwen2.5-0.5B-Instruct": 49.6, "Qwen2.5-1.5B-Instruct": 73.2, "Qwen2.5-3B-Instruct": 86.7}


def _llama(model: str, gsm8k: float, gpqa: float) -> list[Arm]:
    name = f"model.name=meta-llama/{model}"
    main = ("dataset=gpqa", "dataset.subset=gpqa_main", "dataset.shots=0")
    return [
        Arm(f"{model}-gsm8k", preset("gsm8k", name), {"accuracy": gsm8k}, GSM8K),
        Arm(f"{model}-gpqa", preset("gsm8k", name, *main), {"accuracy": gpqa}, GPQA_MAIN),
    ]


SMALL_MODELS = Recipe(
    name="small_models",
    title="greedy answers of small instruct models on GSM8K and GPQA",
    source="Llama 3.2: its model card; Qwen2.5: qwenlm.github.io/blog/qwen2.5-llm",
    setting="Llama 3.2: 8 shots with reasoning for GSM8K, none for GPQA; Qwen2.5's harness and "
    "prompts are not published",
    differs=(
        "GSM8K: the worked examples are the first rows of the train split: 8 for Llama, as its "
        "card says, and 4 for Qwen2.5, which does not say for its instruct models",
        "GPQA: the card does not say which subset; here it is gpqa_main, with reasoning",
        "the prompts are this project's",
    ),
    solution_tokens=300,
    cost="taken as 300 tokens a solution; an assumption",
    arms=(
        *(arm for model, values in LLAMA.items() for arm in _llama(model, *values)),
        *(
            Arm(
                f"{model}-gsm8k",
                preset("gsm8k", f"model.name=Qwen/{model}", "dataset.shots=4"),
                {"accuracy": value},
                GSM8K,
            )
            for model, value in QWEN.items()
        ),
    ),
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        PARTICLE_FILTERING,
        S1,
        R1_DISTILLED,
        SMALL_MODELS,
    )
}
