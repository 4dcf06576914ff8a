"""ASKS on diverse phrasings: what a gate at each tau lets through, what that saves, and what it
does to answers.

Eight templates at RKSC's four levels of divergence (section 4.1; its own texts are not published),
and controls that must be refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

import torch

from experiments.lab.paper.rksc.setting import Setting, loaded
from experiments.runs.screen import with_progress
from ttc.approximate.similar_prompts import compared, layer_weights, similarity
from ttc.branch import Branch
from ttc.engine import Engine
from ttc.passes.new_tokens import one_pass
from ttc.results import Problem
from ttc.sampling import Sampling
from ttc.text.answers import extract_answer
from ttc.tree.segment import common_prefix
from ttc.tree.sharing import Sharing

ROOT = "{question} Reply with the number only."
LEVELS: dict[str, tuple[str, ...]] = {
    "identical": (ROOT, ROOT),
    "minor rewording": (
        "{question} Answer with the number only.",
        "Please answer this: {question} Reply with the number only.",
    ),
    "structural reframing": (
        "Reply with one number only. The question is this: {question}",
        "I have a task for you, and I need nothing but a number back. {question}",
    ),
    "academic register": (
        "Consider the following quantitative proposition and determine its numerical solution: "
        "{question}",
        "The investigator is to ascertain the scalar quantity entailed by this statement, and to "
        "report it: {question}",
    ),
}
CONTROLS = ("another problem", "one number changed", "last token alone")
DATASET = (
    "dataset=reasoning_gym",
    "dataset.task=gsm_symbolic",
    "dataset.answer_kind=number",
    "dataset.instruction='{question}'",
)
"""Word problems, asked through the model's chat template."""
Pooling = Literal["matched", "mean", "last"]
POOLINGS: tuple[Pooling, ...] = ("matched", "mean", "last")
TAUS = (0.70, 0.82, 0.90, 0.95)
TOKENS = 24
KL_TOKENS = 8
"""Of a variant's own greedy text, so many tokens are compared."""


def run(overrides: Sequence[str], problems: int) -> dict[str, Any]:
    sizes = [f"dataset.size={problems + 1}", f"dataset.limit={problems + 1}", "dataset.pad_chars=0"]
    setting = Setting.of("rksc_verify", [*DATASET, *overrides, *sizes])
    model, tokenizer = loaded(setting.config)
    exact = Engine(model, tokenizer)
    probes = {
        pooling: Engine(
            model,
            tokenizer,
            sharing=Sharing("similar", tau=-1, pooling=pooling, same_numbers=False),
        )
        for pooling in POOLINGS
    }
    records, reference = list[dict[str, Any]](), 0
    tasks = setting.task.problems
    for n, problem in enumerate(with_progress(tasks[:-1], "phrasings")):
        others = _variants(setting, problem, tasks[n + 1])
        records += _measure(setting, problem, others, exact, probes)
        reference += _reference(setting, problem, probes["matched"])
    layers = model.config.get_text_config().num_hidden_layers
    found = {"rows": summary(records), "taus": sweep(records, layers, reference)}
    return {"records": records, "layers": layers, "reference_layer_rows": reference} | found


def _variants(setting: Setting, problem: Problem, other: Problem) -> list[tuple[str, str]]:
    """(kind, question in its phrasing) for every template and control."""
    question = problem.question
    made = [
        (level, template.replace("{question}", question))
        for level, ts in LEVELS.items()
        for template in ts
    ]
    changed = _other_number(question)
    return [
        *made,
        ("another problem", ROOT.replace("{question}", other.question)),
        ("one number changed", ROOT.replace("{question}", changed)),
        ("last token alone", "Name a river in Europe."),
    ]


def _other_number(question: str) -> str:
    """The question with its first digit replaced by another one."""
    at = next(i for i, c in enumerate(question) if c.isdigit())
    return question[:at] + str((int(question[at]) + 3) % 9 + 1) + question[at + 1 :]


def _measure(
    setting: Setting,
    problem: Problem,
    variants: Sequence[tuple[str, str]],
    exact: Engine,
    probes: dict[Pooling, Engine],
) -> list[dict[str, Any]]:
    """Similarities under both poolings, and what standing on the root's prompt does to each
    variant."""
    template = setting.template
    prompts = [template.tokens(text, exact.tokenizer) for _, text in variants]
    root_prompt = template.tokens(ROOT.replace("{question}", problem.question), exact.tokenizer)
    gates: dict[str, list[float]] = {}
    for pooling, engine in probes.items():
        root = engine.root(root_prompt)
        branches = [engine.variants(root, [prompt]).result()[0] for prompt in prompts]
        gates[pooling] = [
            1.0 if b.substituted is None else b.substituted.similarity for b in branches
        ]
        engine.release([root, *branches])
    root = exact.root(root_prompt)
    own = exact.variants(root, prompts).result()
    theirs = exact.variants(root, [root_prompt] * len(prompts)).result()
    divergence = _kl(_next(exact, own), _next(exact, theirs))
    exact.generate(
        [*own, *theirs],
        TOKENS,
        end=tuple(setting.config.dataset.end),
        sampling=Sampling(temperature=0),
    )
    answers = [
        [setting.task.is_correct(problem, _answer(b)) for b in group] for group in (own, theirs)
    ]
    sigmas, several = list[float](), list[float]()
    with exact.lent() as model:
        for prompt, branch in zip(prompts, own, strict=True):
            sigmas.append(_sigma_of_all_layers(model, root_prompt, prompt))
            several.append(_kl_along(model, root_prompt, prompt, branch.generated[:KL_TOKENS]))
    records = []
    for i, (kind, _) in enumerate(variants):
        shared = common_prefix(root_prompt, prompts[i][:-1])
        records.append(
            {
                "problem": problem.id,
                "kind": kind,
                **{str(pooling): gates[pooling][i] for pooling in POOLINGS},
                "tokens": len(prompts[i]) - 1,
                "shared_exactly": shared,
                "all_layers": sigmas[i],
                "kl": divergence[i],
                "kl_along": several[i],
                "answer_changed": _answer(own[i]) != _answer(theirs[i]),
                "correct": [answers[0][i], answers[1][i]],
            }
        )
    exact.release([root, *own, *theirs])
    return records


def _reference(setting: Setting, problem: Problem, engine: Engine) -> int:
    """Rows x layers that the root's own states cost when all phrasings are asked for in one call,
    as a search does."""
    prompts = [t.replace("{question}", problem.question) for ts in LEVELS.values() for t in ts]
    tokens = [
        setting.template.tokens(prompt, engine.tokenizer)
        for prompt in (ROOT.replace("{question}", problem.question), *prompts)
    ]
    root = engine.root(tokens[0])
    branches = engine.variants(root, tokens[1:]).result()
    engine.release([root, *branches])
    # all pass
    return root.usage.probe_layer_rows - root.usage.substituted_tokens * engine.sharing.probe_layers


def _answer(branch: Branch) -> str | None:
    return extract_answer(branch.text, "number")


@torch.inference_mode()
def _next(engine: Engine, branches: Sequence[Branch]) -> torch.Tensor:
    """Log-probabilities (branches, vocab) of the token that comes next."""
    new = [branch.tokens[-1:] for branch in branches]
    with one_pass(engine.runtime, branches, new) as (rows, _):
        logprobs = engine.runner.forward(rows.tokens, rows.plan).double().log_softmax(-1)
    found = dict(zip(rows.order, logprobs, strict=True))
    return torch.stack([found[i] for i in range(len(branches))])


@torch.inference_mode()
def _sigma_of_all_layers(model: Any, root: Sequence[int], own: Sequence[int]) -> float:
    """sigma of RKSC's Eq. 2 over every layer, which a gate could only know after the whole
    prefill."""
    if list(root) == list(own):
        return 1.0
    states = [
        model(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states[1:]
        for tokens in (own, root)
    ]
    in_root, in_own = compared(root[:-1], own[:-1], "matched")
    weights = layer_weights(len(states[0]), len(states[0]), Sharing().alpha)
    return sum(
        weight * similarity(mine[0, in_own], its[0, in_root], "matched")
        for weight, mine, its in zip(weights, *states, strict=True)
    )


@torch.inference_mode()
def _kl_along(model: Any, root: Sequence[int], own: Sequence[int], text: Sequence[int]) -> float:
    """The mean KL in nats over the tokens of `text`, which stands after the variant's own prompt or
    the root's."""
    if not text:
        return 0.0
    own_logprobs, root_logprobs = (
        model(torch.tensor([[*prompt, *text]]))
        .logits[0, -len(text) - 1 : -1]
        .double()
        .log_softmax(-1)
        for prompt in (own, root)
    )
    return fmean(_kl(own_logprobs, root_logprobs))


def _kl(p: torch.Tensor, q: torch.Tensor) -> list[float]:
    """KL(p || q) in nats, row by row, of log-probabilities."""
    return (p.exp() * (p - q)).nan_to_num(0.0).sum(-1).clamp_min(0).tolist()


# -------------------------------------------------------------------- what the records add up to


def summary(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each level and control."""
    rows = []
    for kind in (*LEVELS, *CONTROLS):
        own = [r for r in records if r["kind"] == kind]
        rows.append(
            {
                "kind": kind,
                "prompts": len(own),
                "shared_exactly": sum(r["shared_exactly"] for r in own)
                / sum(r["tokens"] for r in own),
                **{
                    measure: _range([r[measure] for r in own])
                    for measure in (*POOLINGS, "all_layers")
                },
                "kl_along": fmean(r["kl_along"] for r in own),
                "kl": fmean(r["kl"] for r in own),
                "answers_changed": fmean(r["answer_changed"] for r in own),
            }
        )
    return rows


def _range(values: Sequence[float]) -> list[float]:
    """Least, mean, largest."""
    return [min(values), fmean(values), max(values)]


def sweep(records: Sequence[dict[str, Any]], layers: int, reference: int) -> list[dict[str, Any]]:
    """For each tau: what passes, the prefill it saves, and what changes.

    The probe's cost is taken off: its layers of what passes, and `reference` rows x layers of the
    roots. What is refused goes on from its own.
    """
    rows = []
    templates = [r for r in records if r["kind"] in LEVELS]
    left = sum(r["tokens"] - r["shared_exactly"] for r in templates)
    probe = Sharing().probe_layers / layers
    for tau in TAUS:
        taken = [r for r in templates if r["matched"] >= tau and r["tokens"] > r["shared_exactly"]]
        fooled = {
            kind: fmean(r["matched"] >= tau for r in records if r["kind"] == kind)
            for kind in CONTROLS
        }
        saved = (
            sum((r["tokens"] - r["shared_exactly"]) * (1 - probe) for r in taken)
            - reference / layers
        )
        rows.append(
            {
                "tau": tau,
                "substituted": len(taken) / len(templates),
                "saved_of_rest": saved / left,
                "saved_of_all": saved / sum(r["tokens"] for r in templates),
                "kl": fmean(r["kl"] for r in taken) if taken else 0.0,
                "answers_changed": fmean(r["answer_changed"] for r in taken) if taken else 0.0,
                "right_to_wrong": sum(r["correct"] == [True, False] for r in taken),
                "wrong_to_right": sum(r["correct"] == [False, True] for r in taken),
                "controls_passed": fooled,
            }
        )
    return rows
