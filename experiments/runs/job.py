"""The main job: a search over a data set, with results that survive."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments.runs.build import (
    check_backend,
    check_run,
    is_remote,
    make_backend,
    make_search,
    make_template,
    resolved,
    solve_options,
)
from experiments.runs.data import Task, graded, load_task, part_of
from experiments.runs.dry import describe
from experiments.runs.example import example, telling
from experiments.runs.fingerprint import fingerprint, model_fingerprint, reward_fingerprint
from experiments.runs.own_classes import code_fingerprint
from experiments.runs.parameters import run_parameters
from experiments.runs.plain import as_dict
from experiments.runs.planned import StepMeter
from experiments.runs.provenance import commit, machine
from experiments.runs.records import RunFolder, own_figures, tree_node
from experiments.runs.screen import Progress, failures, say, show_logged, table
from experiments.runs.shards import Shard, threads
from experiments.runs.summary import failed, seconds_at_work, summarise
from search import try_verifier
from search.budget import LIMITS
from search.config import SearchConfig
from search.solving import results_of
from ttc.engine import Engine
from ttc.errors import BranchRefused, InvalidInput, VerifierError
from ttc.protocols import Backend, Problem, Result
from ttc.remote.backend import RemoteBackend
from ttc.remote.client import ContentRefused
from ttc.text.prompt import PromptTemplate
from ttc.usage import Usage

TIMING = ("forward_passes", "host_to_device_bytes", "device_to_host_bytes", "wall_s")
"""The parts of a problem's usage that depend on the machine and on what ran beside it."""


def run(config: DictConfig) -> dict[str, Any]:
    """Solve what is left of a run and return its summary."""
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise InvalidInput(f"{' and '.join(missing)} must be given, as in {missing[0]}=VALUE")
    show_logged()
    config = resolved(config)
    job = Job.of(config)
    if config.run.dry:
        print(describe(config, job.template, job.task))
        return {}
    inputs = job.inputs()
    say(f"{job.title}, {config.model.name}, {config.dataset.name}: {job.total} problems{job.part}")
    with RunFolder(config) as folder, _told_how_to_go_on(folder):
        summary = job.solve(folder, inputs)
    _show(config, job, folder, summary)
    return summary


@dataclass(frozen=True)
class Job:
    """A run that is about to solve what is left of it.

    shard: the part of the run's problems that this process solves, None for all.
    """

    config: DictConfig
    search: Any
    verifier: Any
    template: PromptTemplate
    task: Task
    shard: Shard | None

    @classmethod
    def of(cls, config: DictConfig) -> Job:
        """What a configuration describes. Raises InvalidInput for what could not run, before any weights are read."""
        check_backend(config)
        search, verifier = make_search(config)
        check_run(config)
        if config.run.record_tokens and config.dataset.private:
            raise InvalidInput(
                "run.record_tokens=true would keep the questions of a data set that is not to be published "
                "(dataset.private=true); leave it out"
            )
        shard = Shard.of_run(config)
        if (count := threads(config)) is not None:
            torch.set_num_threads(count)
        template = make_template(config)
        task = part_of(load_task(config.dataset), shard)
        return cls(config, search, verifier, template, task, shard)

    @property
    def title(self) -> str:
        name = type(self.search).__name__
        return f"{name} with {type(self.verifier).__name__}" if self.search.needs_verifier else name

    @property
    def total(self) -> int:
        """All problems, those that cannot be used among them."""
        return len(self.task.problems) + len(self.task.failures)

    @property
    def part(self) -> str:
        """Which shard this is, in words."""
        if self.shard is None:
            return ""
        return f", part {self.shard.index} of {self.shard.count}, threads: {torch.get_num_threads()}"

    def solve(self, folder: RunFolder, inputs: dict[str, dict[str, str]]) -> dict[str, Any]:
        """Write a record of each problem that has none yet, and then the summary. inputs: what `inputs` says."""
        if self.config.run.retry_failed:
            folder.forget([name for name, record in folder.records.items() if failed(record)])
        folder.check_inputs(inputs)
        folder.made_by({"commit": commit(), "machine": machine()})
        problems = [problem for problem in self.task.problems if problem.id not in folder.records]
        unusable = [(name, reason) for name, reason in self.task.failures if name not in folder.records]
        if done := self.total - len(problems) - len(unusable):
            say(f"{done} of {self.total} were done already")
        engine = make_backend(self.config) if problems else None
        meter = StepMeter(engine) if isinstance(engine, Engine) and engine.chosen is not None else None
        self._check_model(engine, inputs, folder)
        if engine is not None and self.search.needs_verifier:
            _try_verifier(self.verifier, self.template, engine, problems)
        for name, reason in unusable:
            result = Result(Problem("", name), None, [], None, Usage(), [], self.config.run.seed, reason)
            folder.append(problem_record(result, self.task))
        if engine is not None:
            self._solve(engine, problems, folder)
        if isinstance(engine, RemoteBackend):
            engine.close()
        summary = summary_of(self.config, [folder.records[name] for name in self._ids()], folder.goes)
        if meter is not None:
            summary["plan"] = meter.record()
        folder.write_summary(summary)
        return summary

    def _ids(self) -> list[str]:
        return [problem.id for problem in self.task.problems] + [name for name, _ in self.task.failures]

    def inputs(self) -> dict[str, dict[str, str]]:
        """Fingerprints of all that the records are made from."""
        config, task = self.config, self.task
        inputs = fingerprint(config.model.name, task.problems, task.failures, self.template.examples)
        if is_remote(config):
            inputs["model"] = {}  # until the server says which it is
        inputs["verifier"] = reward_fingerprint(as_dict(config.verifier, resolve=True))
        inputs["code"] = code_fingerprint(config)
        return inputs

    def _check_model(self, engine: Backend | None, inputs: dict[str, dict[str, str]], folder: RunFolder) -> None:
        """Refuse to go on with another model than the records', where only a loaded one shows which it is."""
        if isinstance(engine, RemoteBackend):
            can = engine.capabilities
            served = {"served": f"{can.model}, context {can.context_length}"}
            if asked := engine.generation_settings.describe():
                served["generation settings"] = asked
            folder.check_inputs(inputs | {"model": served})
        elif not inputs["model"] and not is_remote(self.config):  # it came from the hub just now
            folder.check_inputs(inputs | {"model": model_fingerprint(self.config.model.name)})

    def _solve(self, engine: Backend, problems: list[Problem], folder: RunFolder) -> None:
        """Write the record of each problem as soon as it has ended."""
        config, task = self.config, self.task
        options = solve_options(config, task.reading, self.verifier, self.template)
        search_config = SearchConfig.of(self.search, engine, options)
        results = results_of(engine, search_config, problems, concurrency=config.run.batch)
        with closing(results), Progress(config.dataset.name, self.total, folder.records, engine) as progress:
            for result in results:
                progress.solved(result.usage.generated_tokens)
                record = problem_record(result, task, config.run.record_tokens)
                record |= _asked(config, self.template, engine, result)
                record["truncated_by"] = _truncated_by(result, config.run)
                record["timing"]["kv_peak_bytes"] = _kv_peak_bytes(engine)
                folder.append(record)
                if config.run.show_questions:
                    progress.note(
                        f"{record['id']}: {result.problem.question}\n  -> {record['answer']} (gold {record['gold']})"
                    )


def _show(config: DictConfig, job: Job, folder: RunFolder, summary: dict[str, Any]) -> None:
    """What a run says when it is done."""
    if config.run.show_example:
        shown = telling([folder.records[problem.id] for problem in job.task.problems])
        print(example(shown) if shown else "\nno problem has a branch to show")
    print(table(folder.path.name, summary))
    if summary["failures"]:
        print(failures(summary))
    print(f"\nrecords and summary: {folder.path}")
    if job.shard is not None:
        whole = shlex.quote(str(folder.path.with_name(config.run.name)))
        print(f"once all {job.shard.count} parts are done: python -m experiments.merge {whole}")


@contextmanager
def _told_how_to_go_on(folder: RunFolder) -> Iterator[None]:
    """Let Ctrl-C say what is safe."""
    try:
        yield
    except KeyboardInterrupt:
        done = len(folder.records)
        safe = f"stopped; what is done so far is safe ({done} problems in {folder.path})"
        raise KeyboardInterrupt(f"{safe}\nrun the same command to go on") from None


def _try_verifier(verifier: Any, template: PromptTemplate, engine: Backend, problems: list[Problem]) -> None:
    """Rate one short branch, so that a verifier that cannot work is known before the run. Raises VerifierError."""
    inner = getattr(verifier, "inner", verifier)  # a gate might leave it out
    for problem in problems:  # the first that can be used
        try:
            try_verifier(inner, engine, problem, template=template)
            return
        except (InvalidInput, BranchRefused):
            continue
        except VerifierError as error:
            if isinstance(error.__cause__, ContentRefused | BranchRefused):  # of this problem alone
                continue
            raise VerifierError(f"{error}, on a branch made to try it; no problem was solved") from error


def _asked(config: DictConfig, template: PromptTemplate, engine: Backend, result: Result) -> dict[str, Any]:
    """The exact prompt of a solved problem; nothing of what is asked where the data set is private."""
    if config.dataset.private:
        return {"question": None, "prompt": None}
    return {"prompt": None if result.best is None else template.text(result.problem.question, engine.tokenizer)}


def _has_no_end(result: Result) -> bool:
    """Whether the text that was chosen was cut off."""
    return result.best is not None and result.best.finish_reason in (None, "context")


def _truncated_by(result: Result, limits: DictConfig) -> str | None:
    """What left the chosen text without an end: "context", a budget by the name of its setting, or
    "search", the limits of the search itself. None where the text has an end."""
    if result.best is None or not _has_no_end(result):
        return None
    if result.best.finish_reason == "context":
        return "context"
    generated = result.usage.generated_tokens
    spent = {
        "max_generated_tokens": generated,
        "max_tokens": generated + result.usage.verifier_tokens,
    }
    for name, tokens in spent.items():
        if limits[name] is not None and tokens >= limits[name]:
            return f"run.{name}"
    given = [f"run.{name}" for name in LIMITS if limits[name] is not None]
    return " or ".join(given) if result.stopped == "budget" else "search"


def _kv_peak_bytes(engine: Backend) -> int | None:
    """The most KV that the run has held so far, over both tiers; None for a backend that keeps it elsewhere."""
    memory = getattr(engine, "memory", None)
    return None if memory is None else memory.device.peak_bytes + memory.host.peak_bytes


def votes_by_path(result: Result, task: Task, answers: Sequence[str | None]) -> list[str | None]:
    """What each branch's answer votes for, grouped in the order of their paths as a search does."""
    paths = [branch.path for branch in result.branches]
    places = sorted(range(len(paths)), key=paths.__getitem__)
    reader = task.reading.voting(result.problem)
    votes = dict(zip(places, reader.ballots([answers[place] for place in places]), strict=True))
    return [votes[place] for place in range(len(paths))]


def _grades(result: Result, task: Task) -> tuple[list[dict[str, Any]], dict[str, Any], str | None]:
    """Each branch's answer and whether it is right; the same of the result; and its error.

    Where a function of one's own fails on a branch, that is the problem's error.
    """
    problem, error = result.problem, result.error
    try:
        answers = [task.reading.answer(problem, branch) for branch in result.branches]
        votes = votes_by_path(result, task, answers)
        branches: list[dict[str, Any]] = [
            {"answer": answer, "vote": vote, "correct": task.is_correct(problem, answer)}
            for answer, vote in zip(answers, votes, strict=True)
        ]
        grades = graded(task, result)
    except InvalidInput as failure:
        branches = [{"answer": None, "vote": None, "correct": False} for _ in result.branches]
        grades = {"answer": result.answer}
        error = error if failed({"error": error}) else f"{type(failure).__name__}: {failure}"
    if failed({"error": error}):
        grades |= {"correct": False, "correct_strict": False}
    return branches, grades, error


def problem_record(result: Result, task: Task, with_tokens: bool = False) -> dict[str, Any]:
    problem, usage = result.problem, result.usage.to_dict()
    marks, grades, error = _grades(result, task)
    branches = []
    for branch, mark in zip(result.branches, marks, strict=True):
        branches.append(
            {
                "path": list(branch.path),
                "text": branch.text,
                **mark,
                "score": branch.score,
                "step_scores": branch.step_scores,
                "finish_reason": branch.finish_reason,
                "tokens": len(branch.generated),
                **own_figures(branch),
                "substituted": None if branch.substituted is None else branch.substituted.similarity,
            }
        )
    return {
        "id": problem.id,
        "question": problem.question or None,
        "gold": problem.answer,
        "source": problem.metadata.get("source"),
        **grades,
        "error": error,
        "truncated": _has_no_end(result),
        "truncated_by": None,
        "stopped": result.stopped,
        "branches": branches,
        "tree": [tree_node(node, with_tokens) for node in result.tree],
        "usage": {k: v for k, v in usage.items() if k not in TIMING},
        "timing": {k: usage[k] for k in TIMING} | {"finished_at": time.time()},
    }


def summary_of(config: DictConfig, records: list[dict[str, Any]], goes: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run's summary.json holds. goes: what its records were made by (see `RunFolder`)."""
    summary = summarise(records)
    gbps = [part.link_gbps for part in (config.memory, config.placement) if part.get("link_gbps") is not None]
    if gbps:
        summary["simulated_link_gbps"] = gbps[0]
    summary["seconds"] = seconds_at_work(records)
    summary["parameters"] = run_parameters(config.model.name, as_dict(config.verifier, resolve=True))
    summary["made_by"] = goes
    return summary
