"""The job: solutions, their labels, a head fitted to them, its folder, and what it is worth on
held-out problems."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.cli.output import say, show
from experiments.fit.train_verifier.card import card, tables
from experiments.fit.train_verifier.evaluation import (
    Candidates,
    SharedCandidates,
    accuracy,
    auc_figures,
    candidates,
    choices,
    gain,
)
from experiments.fit.train_verifier.fitting import Fit, Rows, train
from experiments.fit.train_verifier.lora import LoraFit, LoraSettings, LoraTraining, check_peft
from experiments.fit.train_verifier.problems import Problems, ProblemSet, load_problems
from experiments.fit.train_verifier.rollouts import Labels, Rollouts, Solution, solutions
from experiments.runs.build import (
    make_engine,
    make_template,
    make_verifier,
    resolved,
    thinking_marks,
)
from experiments.runs.config_values import as_dict
from experiments.runs.grading import AnswerReading
from experiments.runs.provenance import provenance
from experiments.runs.records import as_json, as_lines
from experiments.runs.screen import show_logged, with_progress
from search import BestOfN, Search, solve
from ttc.checks import check_choice
from ttc.engine import Engine
from ttc.errors import InvalidInput, number_of
from ttc.model.loading.load import load
from ttc.protocols import Verifier
from ttc.results import Problem, Result
from ttc.text.conversation import Conversation
from ttc.text.prompt import PromptTemplate
from ttc.text.thoughts import Thoughts
from verifiers import ConfidenceVerifier, TokenPRM, ValueHead
from verifiers.reward_model import RewardModel

SOLUTIONS_AT_ONCE = 128
"""The most solutions whose keys and values are kept while their features are computed."""
T = TypeVar("T")
HEAD, PRM, TOKENS, CONFIDENCE = "value head", "LoRA PRM", "token PRM", "confidence"


def run(config: DictConfig, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Train a head as `config` describes, save it, and return what is known of it. overrides: of
    the command line."""
    config = resolved(config)
    private = config.dataset.private or bool(config.train.data.get("private"))
    show_logged(private)
    searches, rollouts, lora = _checked(config)
    rival = make_verifier(config)
    problems = load_problems(config)
    folder = Path(config.train.folder)
    counts = ", ".join(f"{len(group.problems)} to {what}" for what, group in problems.parts.items())
    say(
        f"problems: {counts}; left out, as in the test set or twice in the data: {problems.dropped}"
    )
    start = time.perf_counter()
    work = TrainingJob(
        config, make_engine(config), make_template(config), problems.test.reading, lora
    )
    work.check_format()
    solved = {name: work.labelled(rollouts, group, name) for name, group in problems.parts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    head, fitted = work.trained(solved, folder)
    if not private:
        for name, group in solved.items():
            rows = as_lines(one.row(work.prompt, config.train.labels) for one in group)
            (folder / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    seconds = {"training": time.perf_counter() - start}
    say(
        f"trained in {seconds['training']:.0f} s; now the "
        f"{number_of(len(problems.test.problems), 'problem')} to test"
    )
    verifiers: dict[str, Verifier] = {work.name: head, CONFIDENCE: ConfidenceVerifier()}
    if rival is not None:
        verifiers[type(rival).__name__] = rival
    evaluated = {
        "steps": work.step_auc(head, solved["test"]),
        **work.compared(searches, verifiers, problems.test),
    }
    seconds["all"] = time.perf_counter() - start
    dtype = str(work.engine.dtype).removeprefix("torch.")
    command = shlex.join(["python", "-m", "experiments.train_verifier", *overrides])
    record = provenance(command, model=f"{config.model.name}, {dtype}")
    record |= {
        "seconds": seconds,
        "data": _data(config, problems, solved),
        "verifier": work.name,
        "fit": fitted.record(),
        **evaluated,
    }
    (folder / "README.md").write_text(card(record, config), encoding="utf-8")
    if config.train.record is not None:
        Path(config.train.record).write_text(as_json(record), encoding="utf-8")
    show(f"{tables(record)}\n\n{work.name}: {folder}")
    return record


def _checked(config: DictConfig) -> tuple[dict[str, Search], Rollouts, LoraSettings | None]:
    """The searches that the head is tried in, the one that makes solutions to learn from, and how
    adapters are trained (None for a head alone)."""
    settings = config.train
    check_choice(
        settings.verifier,
        ["value_head", "token_prm"],
        f"train.verifier={settings.verifier} is unknown",
    )
    _check_labels(settings)
    _check_folder(Path(settings.folder))
    if settings.record is not None and not Path(settings.record).parent.is_dir():
        raise InvalidInput(
            f"train.record={settings.record} lies in a folder that does not exist; make it first"
        )
    search: Search = instantiate(config.search, _convert_="all")
    if not search.needs_verifier:
        raise InvalidInput(
            f"{type(search).__name__} asks no verifier, so that none can be tried in it; use "
            "another"
        )
    rollouts = Rollouts(
        n=settings.rollouts,
        continuations=settings.continuations,
        step_tokens=settings.step_tokens,
        max_steps=settings.max_steps,
        delimiter=settings.separator,
        temperature=settings.temperature,
    )
    tokens = settings.step_tokens * settings.max_steps
    best_of_n = BestOfN(n=settings.samples, max_tokens=tokens, temperature=settings.temperature)
    searches = {f"best-of-{settings.samples}": best_of_n, type(search).__name__: search}
    if not settings.lora_rank:
        if settings.verifier == "token_prm":
            raise InvalidInput(
                "train.verifier=token_prm trains adapters; give train.lora_rank=8, as an example"
            )
        return searches, rollouts, None
    check_peft()
    lora = LoraSettings(settings.lora_rank, settings.epochs, settings.learning_rate, settings.batch)
    return searches, rollouts, lora


def _check_labels(settings: DictConfig) -> None:
    """Raise InvalidInput for wrong settings of the solutions and of what their steps are labelled
    by."""
    check_choice(settings.labels, get_args(Labels), f"train.labels={settings.labels} is unknown")
    if not settings.continuations and settings.labels != "outcome":
        raise InvalidInput(
            f"train.labels={settings.labels} needs continuations of each step, and "
            "train.continuations=0; give some, or train.labels=outcome"
        )


def _check_folder(folder: Path) -> None:
    """Raise InvalidInput for a folder that holds anything: nothing is written over."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(
            f"train.folder={folder} is no empty folder; choose another one, or delete it"
        )


@dataclass(frozen=True)
class TrainingJob:
    """What is done with the model."""

    config: DictConfig
    engine: Engine
    template: PromptTemplate
    reading: AnswerReading
    lora: LoraSettings | None = None

    @property
    def name(self) -> str:
        """Of what is trained, in tables."""
        if self.of_tokens:
            return TOKENS
        return HEAD if self.lora is None else PRM

    @property
    def of_tokens(self) -> bool:
        return bool(self.config.train.verifier == "token_prm")

    def token_prm(self, model: Any, **settings: Any) -> TokenPRM:
        options = {"separator": self.config.train.separator, **as_dict(self.config.train.format)}
        return TokenPRM(model, **options, **settings)

    def check_format(self) -> None:
        """Raise InvalidInput or UnsupportedModel for a format that cannot be trained."""
        if not self.of_tokens:
            return
        format = self.token_prm((self.engine.model, self.engine.tokenizer))
        if format.of_head or not format.bad:
            raise InvalidInput(
                f"train.format: good={list(format.good)} and bad={list(format.bad)}; to train the "
                "tokens of a model give the texts of both"
            )
        assert format.parts

    @property
    def prompt(self) -> str:
        """What stands before a solution as the head reads it: by default the policy's prompt."""
        if self.config.train.prompt is not None:
            return str(self.config.train.prompt)
        prompt = self.template.text("{question}", self.engine.tokenizer)
        # the head puts it first
        prompt = prompt.removeprefix(getattr(self.engine.tokenizer, "bos_token", None) or "")
        blanks = {
            answer[: len(answer) - len(answer.lstrip())] for _, answer in self.template.examples
        }
        # steps come without the blanks around them
        return prompt + (blanks.pop() if len(blanks) == 1 else "")

    def solved(
        self,
        search: Search,
        problems: Sequence[Problem],
        verifier: Verifier | None,
        what: str,
        seed: int = 0,
    ) -> list[Result]:
        """seed: is added to that of the run."""
        say(what)
        results: list[Result] = solve(
            search,
            problem=list(problems),
            engine=self.engine,
            verifier=verifier,
            seed=self.config.run.seed + seed,
            template=self.template,
            **self.reading.options(),
            thinking_marks=thinking_marks(self.config),
            end=tuple(self.config.dataset.end),
            concurrency=self.config.run.batch,
        )
        return results

    def labelled(self, rollouts: Rollouts, group: ProblemSet, name: str) -> list[Solution]:
        results = self.solved(rollouts, group.problems, None, f"solutions to {name}")
        separator = self.config.train.separator
        tokenizer = self.engine.tokenizer
        thoughts = Thoughts.of(tokenizer, thinking_marks(self.config))
        labelled: list[Solution] = []
        for result in results:
            is_right = partial(group.is_right, result.problem)
            problem, template = result.problem, self.template
            if problem.messages is not None:
                template = Conversation.of(problem.messages, template)
            prompt_end = template.end_of_prompt(problem.question, tokenizer)
            labelled += solutions(result, is_right, separator, thoughts, prompt_end)
        return labelled

    def trained(
        self, solved: dict[str, list[Solution]], folder: Path
    ) -> tuple[ValueHead | TokenPRM, Fit | LoraFit]:
        """A head that is fitted, with adapters or alone, and saved in a folder."""
        settings, model = self.config.train, self.config.model
        layout = {"separator": settings.separator, "prompt": self.prompt}
        if self.lora is None:
            head = ValueHead.on(self.engine.model, self.engine.tokenizer, **layout)
            fitted = train(self.rows(head, solved["train"]), self.rows(head, solved["validation"]))
            fitted.put(head.head)
            head.save(folder, base=model.name)
            return head, fitted
        policy = load(model.name, device=model.device, dtype=model.dtype)
        untrained = self.token_prm(policy) if self.of_tokens else ValueHead.on(*policy, **layout)
        training = LoraTraining(policy[0], self.lora, self.config.run.seed, untrained)
        tuned = training.run(solved["train"], solved["validation"], settings.labels)
        training.save(folder, base=model.name)
        loading = self.token_prm if self.of_tokens else ValueHead
        return loading(str(folder), device=str(model.device), dtype=model.dtype), tuned

    def read(
        self, solved: Sequence[Solution], of: Callable[[list[tuple[str, Sequence[str]]]], list[T]]
    ) -> list[T]:
        """What a verifier gives for each solution. Equal ones are computed once."""
        keys = [(one.problem.whole_question, tuple(one.steps)) for one in solved]
        texts = list(dict.fromkeys(keys))
        chunks = [texts[i : i + SOLUTIONS_AT_ONCE] for i in range(0, len(texts), SOLUTIONS_AT_ONCE)]
        computed = chain.from_iterable(
            of(list(chunk)) for chunk in with_progress(chunks, "solutions read", "parts")
        )
        values = dict(zip(texts, computed, strict=True))
        return [values[key] for key in keys]

    def rows(self, head: ValueHead, solved: Sequence[Solution]) -> Rows:
        targets = [target for one in solved for target in one.targets(self.config.train.labels)]
        empty = torch.zeros(0, cast(torch.nn.Linear, head.head).in_features)
        states = self.read(solved, head.features)
        return Rows(torch.cat([empty, *states]), torch.tensor(targets))

    # ---------------------------------------------------------------- what it is worth

    def step_auc(self, verifier: RewardModel, solved: Sequence[Solution]) -> dict[str, Any]:
        """How well steps before the last one are told apart: whether any continuation from them is
        right."""
        scores: list[list[float]] = []
        right: list[list[bool]] = []
        pairs = zip(solved, self.read(solved, verifier.rate_solutions), strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0].problem.id):
            scores.append([])
            right.append([])
            for one, rated in group:
                scores[-1] += rated[:-1]
                right[-1] += [value > 0 for value in one.values[:-1]]
        return {
            "steps": sum(map(len, scores)),
            "right": sum(map(sum, right)),
            **auc_figures(scores, right),
        }

    def compared(
        self, searches: dict[str, Search], verifiers: dict[str, Verifier], test: ProblemSet
    ) -> dict[str, Any]:
        """The first search is best-of-n: all verifiers, and votes, choose among its samples. The
        second one is run with each verifier."""
        (sampled, best_of_n), (stepwise, search) = searches.items()
        names, seeds = list(verifiers), self.config.train.seeds
        by_seed: list[list[Candidates]] = []
        right: dict[tuple[str, str], list[float]] = {}

        def count(key: tuple[str, str], hits: Sequence[bool]) -> None:
            before = right.get(key, [0.0] * len(hits))
            right[key] = [sum_ + hit / seeds for sum_, hit in zip(before, hits, strict=True)]

        for seed in range(seeds):
            together = SharedCandidates(verifiers)
            results = self.solved(best_of_n, test.problems, together, sampled, seed)
            by_seed.append(candidates(results, together, test))
            for chooser, hits in choices(by_seed[-1], names).items():
                count((sampled, chooser), hits)
            for name, verifier in verifiers.items():
                results = self.solved(search, test.problems, verifier, f"{stepwise}, {name}", seed)
                hits = [test.grades(one.problem, one.answer) for one in results]
                count((stepwise, name), hits)
        tested = list(zip(*by_seed, strict=True))  # all candidates of each problem
        are_right = [list(chain(*(one.right for one in problem))) for problem in tested]
        solutions = {
            name: auc_figures(
                [list(chain(*(one.scores[name] for one in problem))) for problem in tested],
                are_right,
            )
            for name in names
        }
        rows = [{"search": s, "chooser": c, **accuracy(hits)} for (s, c), hits in right.items()]
        gains = []
        for name in searches:
            for other in (*names[1:], "majority"):
                if (name, other) in right:
                    over, before = other, right[name, other]
                else:
                    over, before = f"{other} of {sampled}", right[sampled, other]
                gains.append({"search": name, "over": over, **gain(before, right[name, self.name])})
        return {"solutions": solutions, "searches": rows, "gains": gains}


def _data(
    config: DictConfig, problems: Problems, solved: dict[str, list[Solution]]
) -> dict[str, Any]:
    counts = {}
    for name, group in solved.items():
        counts[name] = {
            "problems": len(problems.parts[name].problems),
            "solutions": len(group),
            "right": sum(one.correct for one in group),
            "steps": sum(len(one.steps) for one in group),
        }
    about = {"dataset": config.dataset.name, "source": problems.source, "dropped": problems.dropped}
    settings = {
        name: config.train[name] for name in ("labels", "rollouts", "continuations", "temperature")
    }
    return about | settings | counts
