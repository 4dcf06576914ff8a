"""The loop over a data set's problems: each is solved by a search, and its record survives whatever
ends the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from experiments.cli.output import say, show
from experiments.runs.build import (
    check_backend,
    is_remote,
    make_backend,
    make_search,
    make_template,
    own_backend,
    resolved,
    solve_options,
)
from experiments.runs.config_values import as_dict
from experiments.runs.data import LoadedTask, load_task, shard_of
from experiments.runs.dry_run import describe
from experiments.runs.example import example, telling
from experiments.runs.fingerprint import (
    data_fingerprint,
    examples_fingerprint,
    model_fingerprint,
    reward_fingerprint,
)
from experiments.runs.orders import same_choices
from experiments.runs.private import texts_left_out, without_texts
from experiments.runs.problem_record import full_record, problem_record
from experiments.runs.provenance import commit, machine
from experiments.runs.reading import read_fingerprint, read_provenance, read_records
from experiments.runs.records import RunFolder
from experiments.runs.screen import ProgressBar, show_logged
from experiments.runs.seeds_alike import alone, records_for_any_seed, remember, twin_of
from experiments.runs.shards import Shard, threads
from experiments.runs.summary import failed, summary_of
from experiments.runs.summary_tables import failures, table
from experiments.runs.user_code import code_fingerprint
from search import try_verifier
from search.config import SearchConfig
from search.solving import results_of
from ttc.backend import Backend
from ttc.engine import Engine
from ttc.errors import BranchRefused, ContentRefused, InvalidInput, VerifierError, number_of
from ttc.protocols import misfit
from ttc.results import Problem, Result
from ttc.text.prompt import PromptTemplate

Inputs = dict[str, dict[str, str]]


@contextmanager
def _threads_kept() -> Iterator[None]:
    """`run.threads` is of one job of a sweep."""
    count = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)


@_threads_kept()
def run(config: DictConfig, notes: Path | None = None) -> dict[str, Any]:
    """Solve what is left of a run, or show it (`run.dry`); returns its summary. notes: a folder
    where the runs of a sweep tell each other what need not be solved again; None for a run
    alone."""
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise InvalidInput(f"{' and '.join(missing)} must be given, as in {missing[0]}=VALUE")
    config = resolved(config)
    show_logged(config.dataset.private)
    job = Job.of(config)
    if config.run.dry:
        show(describe(config, job.template, job.task))
        return {}
    inputs = job.inputs()
    for line in job.introduction():
        say(line)
    with RunFolder(config) as folder, _stop_message(folder):
        summary = job.solve(folder, inputs, notes)
    _show(config, job, folder, summary)
    return summary


@dataclass(frozen=True)
class Job:
    """A run about to solve what is left of it. shard: None where this process solves all of it."""

    config: DictConfig
    search: Any
    verifier: Any
    template: PromptTemplate
    task: LoadedTask
    shard: Shard | None

    @classmethod
    def of(cls, config: DictConfig) -> Job:
        """Raises InvalidInput for what could not run, before any weights are read."""
        check_backend(config)
        search, verifier = make_search(config)
        if config.run.record_tokens and config.dataset.private:
            raise InvalidInput(
                "run.record_tokens=true would keep the questions of a data set that is not to be "
                "published (dataset.private=true); leave it out"
            )
        shard = Shard.of_run(config)
        if (count := threads(config)) is not None:
            torch.set_num_threads(count)
        template = make_template(config)
        task = shard_of(load_task(config.dataset), shard)
        return cls(config, search, verifier, template, task, shard)

    def introduction(self) -> Iterator[str]:
        """What is about to run, and what may be meant otherwise."""
        config, shard = self.config, self.shard
        title = type(self.search).__name__
        if self.verifier is not None:
            title += f" with {type(self.verifier).__name__}"
        problems = number_of(self.total, "problem")
        if (orders := config.dataset.orders) > 1:
            problems += f" (each question in {orders} orders of its choices)"
        if shard is not None:
            problems += f", part {shard.index} of {shard.count}, threads: {torch.get_num_threads()}"
        own = own_backend(config)
        model = config.model.name if own is None else own.__name__
        yield f"{title}, {model}, {config.dataset.name}: {problems}"
        if (why := misfit(self.verifier, config.dataset.answer_kind)) is not None:
            yield why
        firsts = [p for p in self.task.problems if "order_of" not in p.metadata]
        if doubled := [problem.id for problem in firsts if same_choices(problem)]:
            names = ", ".join(doubled[:5]) + (", ..." if len(doubled) > 5 else "")
            count = number_of(len(doubled), "question")
            yield f"{count} with two choices of the same text, one of which is wrong: {names}"
        if config.sharing.get("rule") == "similar" and not getattr(self.search, "phrasings", ()):
            yield (
                "sharing=similar does nothing for the branches of one problem here: "
                f"{type(self.search).__name__} words its prompts in one way alone; use "
                "search=diverse_prompts with search.phrasings"
            )

    @property
    def total(self) -> int:
        """With the problems that cannot be used."""
        return len(self._ids())

    def solve(self, folder: RunFolder, inputs: Inputs, notes: Path | None) -> dict[str, Any]:
        """Write a record of each problem that has none yet, then the summary."""
        if self.config.run.retry_failed:
            folder.forget({name for name, record in folder.records.items() if failed(record)})
        self._check_problems(folder)
        folder.check_inputs(inputs)
        if notes is None or not self._same_for_all_seeds:
            return self._solve_what_is_left(folder, inputs)
        with alone(notes, self.config, inputs) as note:
            if (twin := twin_of(note)) is not None:
                self._copy(twin, folder)
            summary = self._solve_what_is_left(folder, inputs)
            remember(note, folder.path)
        return summary

    @property
    def _same_for_all_seeds(self) -> bool:
        search, tools = self.search, self.config.tools.get("_target_")
        inherited = "draws" not in vars(type(search))  # a subclass of one's own may draw
        return not (search.draws or inherited or tools)

    def _copy(self, twin: Path, folder: RunFolder) -> None:
        missing = {problem.id for problem in self.task.problems} - folder.records.keys()
        if records := [r for r in records_for_any_seed(twin) if r["id"] in missing]:
            say(
                f"{number_of(len(records), 'record')} copied from {twin}, which differs in its "
                f"seed alone: {type(self.search).__name__} draws nothing here"
            )
            folder.check_inputs(read_fingerprint(twin))  # with the model that a server runs
            folder.made_by(*(go | {"copied_from": str(twin)} for go in read_provenance(twin)))
            folder.append(*records)

    def _solve_what_is_left(self, folder: RunFolder, inputs: Inputs) -> dict[str, Any]:
        private = self.config.dataset.private
        problems = [problem for problem in self.task.problems if problem.id not in folder.records]
        unusable = [row for row in self.task.failures if row[0] not in folder.records]
        if done := self.total - len(problems) - len(unusable):
            say(f"{done} of {self.total} were done already")
        engine = make_backend(self.config) if problems else None
        self._check_model(engine, inputs, folder)
        why = other_samples(engine)
        if why and folder.records:
            say(
                f"{why} the problems left may get other samples than in one go; float32 on a CPU "
                "gives the same (docs/exactness.md)"
            )
        made = {"commit": commit(), "machine": machine(), "records_before": len(folder.records)}
        folder.made_by(made | {"samples_depend_on_batch": why})
        if engine is not None and self.verifier is not None:
            with texts_left_out(private, [p.question for p in problems] if private else []):
                _try_verifier(self.verifier, self.template, engine, problems)
        for name, reason in unusable:
            result = Result.unsolved(Problem("", name), self.config.run.seed, reason)
            record = problem_record(result, self.task)
            if private:
                without_texts(record)
            folder.append(record)
        if engine is not None:
            self._solve(engine, problems, folder)
            engine.close()
        records = [folder.records[name] for name in self._ids()]
        summary = summary_of(self.config, records, folder.goes)
        folder.write_summary(summary)
        return summary

    def _check_problems(self, folder: RunFolder) -> None:
        """Refuse to sum up less than the folder holds."""
        ids = set(self._ids())
        if others := [name for name in folder.records if name not in ids]:
            raise InvalidInput(
                f"{folder.path} holds {number_of(len(others), 'problem')} that this command does "
                f"not ask for, as {others[0]}; ask for as many as before (dataset.limit, "
                "dataset.size, dataset.orders), or give another run.name"
            )

    def _ids(self) -> list[str]:
        unusable = [name for name, _ in self.task.failures]
        return [problem.id for problem in self.task.problems] + unusable

    def inputs(self) -> Inputs:
        """What the run is made from; not yet the model where a server has it."""
        config = self.config
        return {
            "data": data_fingerprint(self.task.problems, self.task.failures),
            "examples": examples_fingerprint(self.template.examples),
            "model": {} if is_remote(config) else model_fingerprint(config.model.name),
            "verifier": reward_fingerprint(as_dict(config.verifier, resolve=True)),
            "code": code_fingerprint(config),
        }

    def _check_model(self, engine: Backend | None, inputs: Inputs, folder: RunFolder) -> None:
        """Refuse another model than the records', where only a loaded one shows which it is."""
        if engine is not None and engine.served:
            folder.check_inputs(inputs | {"model": dict(engine.served)})
        elif not inputs["model"] and not is_remote(self.config):  # it came from the hub just now
            folder.check_inputs(inputs | {"model": model_fingerprint(self.config.model.name)})

    def _solve(self, engine: Backend, problems: list[Problem], folder: RunFolder) -> None:
        config = self.config
        options = solve_options(config, self.task.reading, self.verifier, self.template)
        search_config = SearchConfig.of(self.search, engine, options)
        results = results_of(engine, search_config, problems, concurrency=config.run.batch)
        with (
            closing(results),
            ProgressBar(config.dataset.name, self.total, folder.records, engine) as progress,
        ):
            for result in results:
                progress.solved(result.usage.generated_tokens)
                record = full_record(result, self.task, config, engine)
                folder.append(record)
                if config.run.show_questions:  # on the screen alone
                    answer = f"-> {record['answer']} (gold {record['gold']})"
                    progress.note(f"{record['id']}: {result.problem.question}\n  {answer}")


def _show(config: DictConfig, job: Job, folder: RunFolder, summary: dict[str, Any]) -> None:
    if config.run.show_example:
        records = read_records(folder.path / "records.jsonl")[0]
        record = telling([records[problem.id] for problem in job.task.problems])
        show(example(record, job.search.voting) if record else "\nno problem has a branch to show")
    show(table(folder.path.name, summary, list(config.search)))
    if summary["failures"]:
        show(failures(summary))
    show(f"\nrecords and summary: {folder.path}")
    if job.shard is not None:
        whole = shlex.quote(str(folder.path.with_name(config.run.name)))
        show(f"once all {job.shard.count} parts are done: python -m experiments.merge {whole}")


@contextmanager
def _stop_message(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        done = number_of(folder.count_written(), "problem")
        raise KeyboardInterrupt(stopped(f"{done} in {folder.path}")) from None


def stopped(done: str) -> str:
    """What Ctrl-C says once something was recorded."""
    return f"stopped; what is done so far is safe ({done})\nrun the same command to go on"


def other_samples(engine: Backend | None) -> str:
    """Why a problem's samples may depend on the problems beside it, "" where they do not
    (docs/exactness.md, "16 bits")."""
    if engine is not None and engine.served:
        return "on a server"
    if not isinstance(engine, Engine):
        return ""
    if engine.device.type != "cpu":
        return f"on {engine.device.type}"
    return f"in {str(engine.dtype).removeprefix('torch.')}" if engine.dtype.itemsize < 4 else ""


def _try_verifier(
    verifier: Any, template: PromptTemplate, engine: Backend, problems: list[Problem]
) -> None:
    """Rate one short branch: a verifier that cannot work is known before the run. Raises
    VerifierError."""
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
            raise VerifierError(
                f"{error}, on a branch made to try it; no problem was solved"
            ) from error
