"""The main job: a search over a data set, with results that survive."""

from __future__ import annotations

import platform
import sys
import time
from importlib.metadata import version
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from experiments.build import make_engine, make_template, make_verifier, resolved
from experiments.data import Task, graded, load_task
from experiments.records import RunFolder
from experiments.screen import table
from experiments.summary import summarise
from search import solve
from ttc.engine import Engine
from ttc.errors import InvalidInput
from ttc.protocols import Problem, Result
from ttc.text.answers import extract_answer
from ttc.text.prompt import PromptTemplate
from ttc.usage import Usage

TIMING = ("forward_passes", "host_to_device_bytes", "device_to_host_bytes", "wall_s")
"""The parts of a problem's usage that depend on the machine and on what ran beside it."""


def run(config: DictConfig) -> dict[str, Any]:
    """Solve what is left of a run and return its summary."""
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise InvalidInput(f"{' and '.join(missing)} must be given, as in {missing[0]}=VALUE")
    config = resolved(config)
    search = instantiate(config.search, _convert_="all")
    verifier = make_verifier(config)
    if search.needs_verifier and verifier is None:
        raise InvalidInput(f"{type(search).__name__} selects by score; choose a verifier other than none")
    exit = getattr(getattr(verifier, "inner", verifier), "exit", None)
    if search.compares_ratings and exit is not None and (exit.rule == "ranking" or exit.common_depth):
        raise InvalidInput(
            f"{type(search).__name__} compares scores of different ratings, which do not compare where each rating "
            "leaves at a depth of its own; use a search that rates once, or verifier.exit.rule=entropy"
        )
    if config.run.batch < 1:
        raise InvalidInput(f"run.batch={config.run.batch} must be at least 1")
    template = make_template(config)
    task = load_task(config.dataset)
    with RunFolder(config) as folder:
        batches = _unfinished(task.problems, config.run.batch, folder)
        engine = make_engine(config) if batches else None
        for name, reason in task.failures:
            if name not in folder.records:
                failed = Result(Problem("", name), None, [], None, Usage(), [], config.run.seed, reason)
                folder.append(_record(failed, task, config.dataset.answer_kind))
        if engine is not None:
            _solve(config, search, verifier, template, engine, task, batches, folder)
        summary = _summary(config, task, folder)
        folder.write_summary(summary)
    print(table(config.run.name, summary))
    if task.failures:
        name, reason = task.failures[0]
        print(f"\n{len(task.failures)} rows cannot be used; {name}: {reason}")
    print(f"\nrecords and summary: {folder.path}")
    return summary


def _unfinished(problems: list[Problem], size: int, folder: RunFolder) -> list[list[Problem]]:
    """The batches with a problem left, whole.

    In 16 bits a sampled token can depend on what is computed beside it, so the batch that an interruption cut is
    computed again as it was; its finished records stay as they are.
    """
    batches = [problems[i : i + size] for i in range(0, len(problems), size)]
    return [batch for batch in batches if any(p.id not in folder.records for p in batch)]


def _solve(
    config: DictConfig,
    search: Any,
    verifier: Any,
    template: PromptTemplate,
    engine: Engine,
    task: Task,
    batches: list[list[Problem]],
    folder: RunFolder,
) -> None:
    with tqdm(total=len(task.problems), desc=config.run.name, unit="problem", file=sys.stderr) as bar:
        bar.update(sum(p.id in folder.records for p in task.problems))

        def finished(result: Result) -> None:
            if result.problem.id in folder.records:
                return
            record = _record(result, task, config.dataset.answer_kind)
            folder.append(record)
            if config.run.show_questions:
                bar.write(f"{record['id']}: {record['question']}\n  -> {record['answer']} (gold {record['gold']})")
            right = sum(r["correct"] for r in folder.records.values())
            bar.set_postfix_str(f"{right}/{len(folder.records)} right")
            bar.update()

        for batch in batches:
            solve(
                search,
                engine=engine,
                verifier=verifier,
                problem=batch,
                seed=config.run.seed,
                template=template,
                answer_kind=config.dataset.answer_kind,
                end=tuple(config.dataset.end),
                max_tokens=config.run.max_tokens,
                max_calls=config.run.max_calls,
                concurrency=len(batch),
                on_result=finished,
            )


def _record(result: Result, task: Task, kind: str) -> dict[str, Any]:
    problem, usage = result.problem, result.usage.to_dict()
    branches = []
    for branch in result.branches:
        answer = extract_answer(branch.text, kind)
        branches.append(
            {
                "path": list(branch.path),
                "text": branch.text,
                "answer": answer,
                "correct": task.is_correct(problem, answer),
                "score": branch.score,
                "step_scores": branch.step_scores,
                "finish_reason": branch.finish_reason,
                "tokens": len(branch.generated),
                "substituted": None if branch.substituted is None else branch.substituted.similarity,
            }
        )
    return {
        "id": problem.id,
        "question": problem.question or None,
        "gold": problem.answer,
        **graded(task, result, kind),
        "error": result.error,
        "branches": branches,
        "tree": result.tree,
        "usage": {k: v for k, v in usage.items() if k not in TIMING},
        "timing": {k: usage[k] for k in TIMING} | {"finished_at": time.time()},
    }


def _summary(config: DictConfig, task: Task, folder: RunFolder) -> dict[str, Any]:
    ids = [p.id for p in task.problems] + [name for name, _ in task.failures]
    records = [folder.records[i] for i in ids]
    summary = summarise(records)
    if config.memory.get("link_gbps") is not None:
        summary["simulated_link_gbps"] = config.memory.link_gbps
    size = config.run.batch  # the problems of a batch run side by side
    batches = [task.problems[i : i + size] for i in range(0, len(task.problems), size)]
    summary["seconds"] = sum(max(folder.records[p.id]["timing"]["wall_s"] for p in batch) for batch in batches)
    summary["machine"] = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    summary["versions"] = {name: version(name) for name in ("torch", "transformers")}
    return summary
