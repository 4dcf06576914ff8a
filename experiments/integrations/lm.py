"""A search as a model of lm-evaluation-harness.

Its tasks bring prompts, filters and metrics. Answers come from a search; log-likelihoods come from
the model, which a search cannot change.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.models.utils import (
    DEFAULT_MAX_LENGTH,
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from experiments.cli.output import say
from experiments.integrations.answers import Answers
from experiments.integrations.solver import AnswerOptions, Solver, Verbatim
from experiments.runs.provenance import commit
from ttc import __version__
from ttc.engine import Engine
from ttc.errors import InvalidInput, refuse
from ttc.results import Problem, Result
from ttc.usage import Usage

SAMPLING = ("temperature", "top_p", "top_k", "min_p")
TOGETHER = 16
"""Contexts whose keys and values are held at once, where `run.batch` does not say."""

Encoded = tuple[tuple[str, str] | None, list[int], list[int]]
"""What the harness's cache knows a request by, the tokens of its context, and those to score."""


@dataclass(frozen=True)
class Context(Verbatim):
    """A prompt of the harness. The tokenizer puts its special tokens around it, unless it begins
    with one already: so does the harness's own `hf` (`tok_batch_encode`)."""

    def has_special_tokens(self, text: str, tokenizer: Any) -> bool:
        return has_bos_prefix(text, getattr(tokenizer, "bos_token", None))


class SearchLM(TemplateLM):
    """`--model ttc`.

    solver: the search and what it runs on. max_length: tokens of a prompt and its answer; by
    default the model's context. max_gen_toks: of an answer, for tasks that do not say.
    think_end_token: what stands before it is thinking, and is cut off; by default the marks of the
    model's own thoughts say so (`model.thinking_marks`).
    cache: a file that keeps answers, apart for each configuration.

    Equal to the harness's own `hf` with `search=greedy` in float32: the same tokens, the same
    truncation on the left, the same cut at stop strings. `temperature` and its like are a task's
    where it samples (`do_sample`) and the search does not set them. A sample is seeded by
    `run.seed`, the task, the number of the document, and how often it was asked before, so
    `repeats` are different samples.
    """

    def __init__(
        self,
        solver: Solver,
        *,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        think_end_token: str | None = None,
        cache: str | None = None,
    ):
        super().__init__()
        self.solver = solver
        self.tokenizer = solver.backend.tokenizer
        self.max_length = max_length or solver.context_length or DEFAULT_MAX_LENGTH
        if solver.context_length is not None and self.max_length > solver.context_length:
            raise InvalidInput(
                f"max_length={max_length} is more than the model's context of "
                f"{solver.context_length}"
            )
        self.max_gen_toks = int(max_gen_toks)
        self.think_end_token = think_end_token
        self.identity = {
            "version": __version__,
            **solver.identity,
            "max_length": self.max_length,
            "max_gen_toks": self.max_gen_toks,
            "think_end_token": think_end_token,
        }
        self.answers = Answers(cache, self.identity)
        self.chat = False  # whether the prompts went through the chat template
        self.usage, self.solved = Usage(), 0

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> SearchLM:
        """From `model_args`. Raises InvalidInput for settings that are wrong or not used."""
        settings = dict(arg_dict)
        names = ("max_length", "max_gen_toks", "think_end_token")
        options = {name: settings.pop(name) for name in names if name in settings}
        if (file := settings.pop("cache_file", None)) is not None:
            options["cache"] = str(file)
        settings.pop("trust_remote_code", None)
        return cls(Solver.of(settings), **options)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> SearchLM:
        from lm_eval.utils import simple_parse_args_string

        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuse the harness's own cache, which knows neither searches nor repetitions apart."""
        if cache_hook.dbdict is not None:
            raise InvalidInput(
                "the harness's use_cache would give one search the answers of another, and one "
                "answer for all repetitions; give cache_file=FILE among model_args, or --use_cache "
                "to python -m experiments.lm_eval"
            )
        super().set_cache_hook(cache_hook)

    # ---------------------------------------------------------------- what the harness asks of a
    # model

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        if add_special_tokens is None:
            begin = self.tokenizer.decode([self.prefix_token_id])
            if has_bos_prefix(string, begin):
                add_special_tokens = False
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, **special))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        self.chat = True
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def get_model_info(self) -> dict[str, Any]:
        """What `results_*.json` says of the model: all settings, the versions, and what the answers
        have cost."""
        return {
            "ttc": self.identity,
            "ttc_commit": commit(),
            "ttc_usage": self.usage.to_dict(),
            "ttc_searches": self.solved,
            "ttc_cached_answers": self.answers.reused,
        }

    # ---------------------------------------------------------------- answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        answers: dict[int, str] = {}
        todo: dict[str, list[tuple[int, Problem, tuple[Any, ...]]]] = {}
        repeats: Counter[tuple[Any, Any]] = Counter()
        for place, request in enumerate(requests):
            context, options = request.args
            document = request.task_name, request.doc_id
            about = (*document, repeats[document])
            repeats[document] += 1
            key = ("generate_until", context, options, self.chat, *about)
            if (stored := self.answers.get(key)) is not None:
                answers[place] = stored
            else:
                problem = Problem(context, f"{about[0]}-{about[1]}-{about[2]}")
                todo.setdefault(json.dumps(options, sort_keys=True), []).append(
                    (place, problem, key)
                )
        with tqdm(
            total=len(requests), initial=len(answers), disable=disable_tqdm, desc="searches"
        ) as bar:
            for text, group in todo.items():
                for place, answer in self._searched(json.loads(text), group):
                    answers[place] = answer
                    bar.update()
        return [answers[place] for place in range(len(requests))]

    def _searched(
        self, options: dict[str, Any], todo: Sequence[tuple[int, Problem, tuple[Any, ...]]]
    ) -> Iterator[tuple[int, str]]:
        until, settings = self.read_options(options)
        places = {problem.id: (place, key) for place, problem, key in todo}
        assert settings.max_tokens is not None  # a task always says how much it asks for
        template = Context(keep=self.max_length - settings.max_tokens, chat_turns=self.chat)
        for result in self.solver.solve([problem for _, problem, _ in todo], template, settings):
            place, key = places[result.problem.id]
            self.usage += result.usage
            self.solved += 1
            if result.error is not None:
                say(f"{result.problem.id} has no answer: {result.error}")
            answer = postprocess_generated_text(
                self._answer_text(result), until, self.think_end_token
            )
            if result.error is None:
                self.answers.keep(key, answer)
            yield place, answer

    def _answer_text(self, result: Result) -> str:
        """What follows the thoughts of a result's text; all of it where the harness is told what
        ends them."""
        if result.best is None:
            return ""
        if self.think_end_token or result.best.answer_text == result.best.text:
            return str(self.tokenizer.decode(result.best.generated, skip_special_tokens=True))
        # as the harness does after its own `think_end_token`
        return (result.best.answer_text or "").lstrip()

    def read_options(self, options: dict[str, Any]) -> tuple[list[str], AnswerOptions]:
        """A task's `generation_kwargs` as a stop list and as the search's options."""
        kwargs = dict(normalize_gen_kwargs(options, self.max_gen_toks))
        has_eos = self.tokenizer.eos_token_id is not None
        eos = self.tokenizer.decode([self.eot_token_id]) if has_eos else None
        until = handle_stop_sequences(kwargs.pop("until"), eos=eos)
        max_tokens = int(kwargs.pop("max_gen_toks"))
        samples = kwargs.pop("do_sample")
        sampling = {name: kwargs.pop(name) for name in SAMPLING if name in kwargs}
        refuse(
            {
                f"max_gen_toks={max_tokens} leaves no room for a prompt in the model's context of "
                f"{self.max_length} tokens": not 0 < max_tokens < self.max_length,
                f"the generation setting {', '.join(kwargs)} means nothing to a search; use until, "
                f"max_gen_toks, do_sample, {', '.join(SAMPLING)}": kwargs,
            }
        )
        end = tuple(filter(None, until))
        settings = AnswerOptions(max_tokens, end, tuple(sampling.items()) if samples else ())
        self.solver.check(settings)
        return until, settings

    # ---------------------------------------------------------------- log-likelihoods

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        stored = [self.answers.get(("loglikelihood", *request.args)) for request in requests]
        todo = [request for request, answer in zip(requests, stored, strict=True) if answer is None]
        new = iter(super().loglikelihood(todo, disable_tqdm) if todo else [])
        return [next(new) if answer is None else (answer[0], answer[1]) for answer in stored]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of each text, in windows of the model's context where it is longer."""
        totals = []
        for request in requests:
            (text,) = request.args
            if (total := self.answers.get(("loglikelihood_rolling", text))) is None:
                windows = get_rolling_token_windows(
                    self.tok_encode(text), self.prefix_token_id, self.max_length, 1
                )
                encoded: list[Encoded] = [
                    (None, *make_disjoint_window(window)) for window in windows
                ]
                total = sum(
                    score for score, _ in self._loglikelihood_tokens(encoded, disable_tqdm=True)
                )
                self.answers.keep(("loglikelihood_rolling", text), total)
            totals.append(float(total))
        return totals

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """(log-probability of the tokens, whether each is the likeliest) of each request.

        A context is computed once for all that follows it, and let go once its neighbours, which
        begin alike, have taken over what they share.
        """
        engine = self.solver.backend
        if not isinstance(engine, Engine):
            raise InvalidInput(
                "log-likelihoods need the model on this machine: use backend=local, or the "
                "harness's own --model local-completions for a server"
            )
        cut = [
            (*self._cut(context, scored), place)
            for place, (_, context, scored) in enumerate(requests)
        ]
        groups = [list(group) for _, group in groupby(sorted(cut), key=lambda row: row[0])]
        answers: dict[int, tuple[float, bool]] = {}
        previous: list[Any] = []
        step = self.solver.batch or TOGETHER
        try:
            with tqdm(total=len(requests), disable=disable_tqdm, desc="log-likelihoods") as bar:
                for now in (groups[i : i + step] for i in range(0, len(groups), step)):
                    roots = engine.roots([group[0][0] for group in now]).result()
                    engine.release(previous)
                    previous = roots
                    best: list[list[list[float]]] = []
                    continuations = [[row[1] for row in group] for group in now]
                    scores = engine.score(roots, continuations, likeliest=best).result()
                    for group, rows, tops in zip(now, scores, best, strict=True):
                        for request, row, top in zip(group, rows, tops, strict=True):
                            skip, place = request[2:]
                            key = requests[place][0]
                            answers[place] = self._kept(key, row[skip:], top[skip:])
                            bar.update()
                    for root in roots:
                        self.usage += replace(root.usage)
        finally:
            engine.release(previous)
        return [answers[place] for place in range(len(requests))]

    def _kept(
        self, key: tuple[str, str] | None, row: Sequence[float], likeliest: Sequence[float]
    ) -> tuple[float, bool]:
        answer = sum(row), row == likeliest
        if key is not None:
            self.answers.keep(("loglikelihood", *key), answer)
        return answer

    def _cut(self, context: list[int], scored: list[int]) -> tuple[list[int], list[int], int]:
        """(context, tokens to score, how many of them are the context's) that the model can take:
        as `hf` does, tokens on the left are left out. A branch leaves room for a token, so a full
        context gives its last one away."""
        tokens = (context + scored)[-(self.max_length + 1) :]
        if len(scored) >= len(tokens):
            raise InvalidInput(
                f"{len(scored)} tokens to score are more than the model's context of "
                f"{self.max_length}; shorten them"
            )
        start = min(len(tokens) - len(scored), max(1, self.max_length - 1))
        return tokens[:start], tokens[start:], len(tokens) - start - len(scored)
