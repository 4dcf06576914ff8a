"""A search and all that it runs on, as one model: prompts in, answers out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.cli.refusals import explained
from experiments.runs.build import (
    check_backend,
    make_backend,
    make_budget,
    make_search,
    resolved,
    thinking_marks,
)
from experiments.runs.config_values import as_dict
from experiments.runs.fingerprint import model_fingerprint, reward_fingerprint
from experiments.runs.hydra_command import composed
from experiments.runs.overrides import as_override
from experiments.runs.user_code import code_fingerprint
from search import Search
from search.budget import LIMITS
from search.config import SearchConfig
from search.options import SolveOptions
from search.solving import results_of
from ttc.backend import Backend
from ttc.errors import InvalidInput, refusing
from ttc.results import Problem, Result
from ttc.text.chat import QUESTION, encoded, following, has_template, next_turn_text
from ttc.text.prompt import PromptTemplate, check_text, raw_tokens

GROUPS = (
    "model",
    "search",
    "verifier",
    "memory",
    "cache",
    "sharing",
    "gate",
    "speculation",
    "backend",
)
RUN = ("seed", "batch", *LIMITS)
"""What can be set of a run: its groups, and these settings of `run`."""
SHORT = {
    "pretrained": "model.name",
    "dtype": "model.dtype",
    "device": "model.device",
    "seed": "run.seed",
    "answer_kind": "dataset.answer_kind",
}
"""Names that other programs use, and ours."""
DEFAULTS = {"search": "greedy", "verifier": "none"}


@dataclass(frozen=True)
class Verbatim(PromptTemplate):
    """A prompt that another program has made, as it stands.

    keep: so many of its last tokens are kept, None for all. chat_turns: the prompt has gone through
    the chat template, and so does what a search says in further turns.
    """

    instruction: str = "{question}"
    raw: bool = True
    keep: int | None = None
    chat_turns: bool = False

    def tokens(self, question: str, tokenizer: Any) -> list[int]:
        check_text(question, self.what)
        text = self._words(self._typed(question, tokenizer))
        as_tokens = encoded if self.has_special_tokens(text, tokenizer) else raw_tokens
        tokens = as_tokens(text, tokenizer)
        return tokens if self.keep is None else tokens[-self.keep :]

    def _typed(self, question: str, tokenizer: Any) -> str:
        special = self.has_special_tokens(question, tokenizer)
        return question if special else super()._typed(question, tokenizer)

    def has_special_tokens(self, text: str, tokenizer: Any) -> bool:
        return self.chat_turns

    def next_turn(
        self, words: str, tokenizer: Any, question: str = "?", said: Sequence[str] = ("",)
    ) -> str:
        if self.chat_turns and has_template(tokenizer):
            return next_turn_text(QUESTION, words, tokenizer)
        return super().next_turn(words, tokenizer, question, said)

    def next_prompt(
        self, words: str, tokenizer: Any, question: str, said: Sequence[str], tokens: Sequence[int]
    ) -> list[int]:
        """`tokens` and what follows them: the messages that the prompt was made of are not known
        here."""
        return [*tokens, *following(self.next_turn(words, tokenizer, question, said), tokenizer)]

    def end_of_prompt(self, question: str, tokenizer: Any, said: Sequence[str] = ()) -> str | None:
        return None if self.chat_turns else super().end_of_prompt(question, tokenizer, said)


@dataclass(frozen=True)
class AnswerOptions:
    """What a program asks of an answer; what the search's own settings say goes first.

    max_tokens: of the answer, None for the search's. end: strings that end it. sampling:
    temperature, top_k, top_p and min_p, where given.
    """

    max_tokens: int | None
    end: tuple[str, ...] = ()
    sampling: tuple[tuple[str, float], ...] = ()


@dataclass
class Solver:
    """A search on a backend.

    options: how problems are solved where a program does not say. batch: the most problems under
    way at once.
    settings: what was set by the user, as the values of Hydra's overrides. identity: all that
    answers depend on.
    """

    backend: Backend
    search: Search
    options: SolveOptions = field(default_factory=SolveOptions)
    batch: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Solver:
        """From settings by the names of `experiments.run`. Raises InvalidInput for those that are
        wrong or not used."""
        named = {SHORT.get(name, name): value for name, value in settings.items()}
        config = configuration(named)
        search, verifier = make_search(config)
        backend = make_backend(config)
        chosen = {name: as_dict(config[name], resolve=True) for name in GROUPS}
        remote = dict(backend.served)
        identity = {
            **chosen,
            "run": {name: config.run[name] for name in ("seed", *LIMITS)},
            "answer_kind": config.dataset.answer_kind,
            "weights": remote or model_fingerprint(config.model.name),
            "verifier_weights": reward_fingerprint(chosen["verifier"]),
            "code": code_fingerprint(config),
        }
        options = SolveOptions(
            verifier=verifier,
            seed=config.run.seed,
            answer_kind=config.dataset.answer_kind,
            thinking_marks=thinking_marks(config),
            budget=make_budget(config),
        )
        return cls(backend, search, options, config.run.batch, named, identity)

    def check(self, request: AnswerOptions) -> Search:
        """The search that answers such a request. Raises InvalidInput where a task samples and the
        search does not."""
        names = {f.name for f in fields(self.search)}
        changes: dict[str, Any] = {}
        if (
            request.max_tokens is not None
            and "max_tokens" in names
            and "search.max_tokens" not in self.settings
        ):
            changes["max_tokens"] = request.max_tokens
        for name, value in request.sampling:
            if f"search.{name}" not in self.settings:
                changes[name] = value
        with refusing(InvalidInput, f"the task asks for {dict(request.sampling)}: {{error}}"):
            return replace(self.search, **changes)

    def solve(
        self, problems: Sequence[Problem], template: PromptTemplate, request: AnswerOptions
    ) -> Iterator[Result]:
        options = replace(self.options, template=template, end=request.end)
        config = SearchConfig.of(self.check(request), self.backend, options)
        yield from results_of(self.backend, config, problems, concurrency=self.batch)

    @property
    def context_length(self) -> int | None:
        """The model's, None where it is not known."""
        limits = self.backend.limits
        return None if limits is None else limits.context_length


def configuration(settings: Mapping[str, Any]) -> DictConfig:
    """The configuration of a run with these settings, `search=greedy verifier=none` unless they
    name others."""
    for name in settings:
        group, _, rest = name.partition(".")
        if not (
            group in GROUPS or (group == "run" and rest in RUN) or name == SHORT["answer_kind"]
        ):
            raise InvalidInput(
                f"{name} is no setting of a search or its model, and tasks bring their own data "
                f"and prompts; use {', '.join(SHORT)}, run.{{{','.join(RUN)}}} or those of "
                f"{', '.join(GROUPS)}, as search=best_of_n search.n=8"
            )
    merged = {**DEFAULTS, **settings, "run.name": "unused"}
    overrides = [
        f"{name}={as_override(value) if '.' in name else value}" for name, value in merged.items()
    ]
    with refusing((Exception, SystemExit), "{error}", words=explained):
        config = composed(overrides)
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise InvalidInput(f"{' and '.join(missing)} must be given")
        config = resolved(config)
    check_backend(config)
    return config
