"""The calls: run a search on problems, read the results one by one, or watch one problem."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Unpack, overload

from search.admission import ProblemAdmission
from search.base import Search
from search.config import SearchConfig
from search.driver import Driver
from search.options import (
    CallKeywords,
    Many,
    One,
    SolveKeywords,
    SolveOptions,
    as_problem,
    as_problems,
    check_concurrency,
    check_keywords,
    is_one,
)
from search.under_way import Events
from ttc.backend import Backend
from ttc.checks import check_flag, check_kind
from ttc.protocols import misfit
from ttc.results import Problem, Progress, Result

Engines = Backend | Mapping[str, Backend]
"""A backend, or several side by side, each by the name of its model."""


@overload
def solve(
    search: Search,
    *,
    problem: One,
    engine: Engines,
    **options: Unpack[CallKeywords],
) -> Result: ...
@overload
def solve(
    search: Search,
    *,
    problem: Many,
    engine: Engines,
    **options: Unpack[CallKeywords],
) -> list[Result]: ...
def solve(
    search: Search,
    *,
    problem: Any,
    engine: Engines,
    concurrency: int | None = None,
    max_rows: int | None = None,
    on_result: Callable[[Result], object] | None = None,
    on_step: Callable[[Progress], object] | None = None,
    **options: Unpack[SolveKeywords],
) -> Result | list[Result]:
    """Run `search` on one problem, or on a list of problems that decode in one batch.

    problem: a question, a `Problem`, or a conversation, which gives one Result; or a list of these
        of one kind. A list whose items are messages, as {"role": "user", "content": "..."}, is one
        conversation, and a list whose items are lists of messages holds several; any other list
        holds problems. A conversation ends with the user's message or a tool's, and is sent as the
        chat template writes it, without words of ours (see `ttc.text.conversation`).
    engine: what the searches run on, a `ttc.Engine` or another backend; several by their names, as
        {"small": engine, "large": remote}, for searches that hand branches from one to another.
        The first one reads the prompt. verifier: what rates
        branches, for searches that ask for scores.
    template: the words around a question. Where it has no instruction, or there is none, these go
        with the answers: with `answer_kind`, or the question alone for "text" and with an `extract`
        of your own (see `ttc.text.prompt.WORDS`). `Result.prompt` shows what was sent.
    seed: with the problem's id it fixes every sampled token. Without an id it is the question, and
        how many problems without one ask the same before it in the list: ["q", "q"] are two
        problems with samples of their own, of which the first has those of "q" alone.
    answer_kind: how answers are read (see `extract_answer`); votes group by the grader's equality
        of that kind.
    extract: a function of the text that reads answers instead; votes group them by their spelling,
        unless it is a `ttc.text.equality.AnswerReader(extract=..., same=...)`.
    thinking_marks: what tells the model's thoughts, of which no answer is read, from its answers:
        `ttc.ThinkingMarks`, None for those that the model's chat template or vocabulary names,
        False for none.
    end: strings that finish a branch. A prompt without a chat template ends at the next "Question:"
        by itself (see `PromptTemplate.ends`), which texts leave out.
    max_tokens, max_generated_tokens, max_calls, max_tool_calls, max_wall_s, reserve, final_text:
        what one problem may cost, see `search.budget.Budget`.
    budget: a whole one, in the place of these seven.
    cancel: a `threading.Event`, or anything with `is_set`. Once it is set, all problems of the call
        end as they do when their time is up, and `Result.stopped` is "cancelled".
    Time and `cancel` are looked at between any two passes of the model. A branch that was being
        written keeps what it has, and the last of its `step_reasons` is "interrupted". Other
        problems go on as if nothing had been.
    tools: functions that the model may call, or a `ttc.Tools` with limits for calls. A step goes on
        after the answer of a tool, on the same keys and values; `Result` has the calls of each
        branch and node as `tool_calls`.
    schema: what answers have to be, as a JSON schema (a dictionary, or a model class of pydantic;
        True for any JSON object); `Result.answer` is the JSON in one spelling. grammar: the same by
        rules of llguidance's form of Lark, as "start: /[0-9]+/". Tokens are drawn from the model's
        distribution over those that may follow; thoughts are free. A step ends where it does
        elsewhere, and a branch where its answer is complete.
    top_logprobs: keep so many of the likeliest tokens in each place, up to 20, as `alternatives` of
        each branch. Their log-probabilities are those before `temperature` and all filters.
    concurrency: the most problems under way at once; by default as many as there are free rows and
        memory for (16 until the first has ended, and on a backend that does not say what it has).
        max_rows: the most branches that decode at once, by default 256 where `concurrency` is not
            given (on a server as many as its `Endpoint.concurrency`, if that is more), else no
            limit. Results depend on neither.
    on_result: called as each problem finishes. on_step: called after each request of a search (see
    `Progress`). With a list, a problem that cannot be used or whose verifier fails gives a Result
    with `error`; alone it raises what stopped it before any branch existed. Raises InvalidInput for
    an option that there is not. Threads may share an engine (see `Engine`), and so may
    `asyncio.to_thread`.
    """
    check_concurrency(concurrency, max_rows)
    for name, called in (("on_result", on_result), ("on_step", on_step)):
        check_kind(name, called, called is None or callable(called), "a function of one argument")
    backend, config = _configured(solve, search, engine, options)
    single = is_one(problem)
    problems = [as_problem(problem)] if single else as_problems(problem)
    results: dict[int, Result] = {}
    events = _events(backend, config, problems, concurrency, max_rows, strict=single)
    with closing(events):  # lets go of what an exception left
        for index, progress in events:
            if on_step is not None:
                on_step(progress)
            if progress.result is not None:
                results[index] = progress.result
                if on_result is not None:
                    on_result(progress.result)
    return results[0] if single else [results[i] for i in range(len(problems))]


def solve_each(
    search: Search,
    *,
    problems: Sequence[One],
    engine: Engines,
    concurrency: int | None = None,
    max_rows: int | None = None,
    **options: Unpack[SolveKeywords],
) -> Generator[Result, None, None]:
    """Run `search` on a list of problems as `solve` does, and give each result as soon as its
    problem has ended.

    The searches go on as the iterator is read. It keeps no result that it has given, so the list
    may be long. Closing it frees everything. options: as for `solve`.
    """
    backend, config = _configured(solve_each, search, engine, options)
    return results_of(backend, config, problems, concurrency, max_rows)


def results_of(
    engine: Backend,
    config: SearchConfig,
    problems: Sequence[One],
    concurrency: int | None = None,
    max_rows: int | None = None,
) -> Generator[Result, None, None]:
    """`solve_each` for a configuration that is made already."""
    check_concurrency(concurrency, max_rows)
    given = as_problems(problems, "problems")
    return _results(_events(engine, config, given, concurrency, max_rows, strict=False))


def _results(events: Events) -> Generator[Result, None, None]:
    with closing(events):
        for _, progress in events:
            if progress.result is not None:
                yield progress.result


def stream(
    search: Search,
    *,
    problem: One,
    engine: Engines,
    tokens: bool = False,
    **options: Unpack[SolveKeywords],
) -> Iterator[Progress]:
    """Run `search` on one problem and give what each request did as it happens; the last one holds
    the result.

    tokens: also say after each token what has been written of the steps under way. `Progress.did`
        is "wrote" then, and each of `Progress.nodes` has its text so far; the last token's comes
        with "expanded".
    The search goes on as the iterator is read. Closing it, or leaving a `for` loop over it, frees
    everything.
    options: as for `solve`.
    """
    check_flag("tokens", tokens)
    backend, config = _configured(stream, search, engine, options)
    given = [as_problem(problem)]
    return _progress(_events(backend, config, given, 1, None, strict=True, tokens=tokens))


def _configured(
    call: Callable[..., Any], search: Search, engine: Engines, options: SolveKeywords
) -> tuple[Backend, SearchConfig]:
    """The backend of a call, one for several models, and its configuration. Warns of a verifier
    that cannot rate this kind of answer."""
    check_keywords(call, options)
    if isinstance(engine, Mapping):
        from search.several_models import SeveralModels

        engine = SeveralModels(engine)
    given = SolveOptions.of(**options)
    if (why := misfit(given.verifier, given.answer_kind)) is not None:
        warnings.warn(why, stacklevel=3)
    return engine, SearchConfig.of(search, engine, given)


def _events(
    engine: Backend,
    config: SearchConfig,
    problems: Sequence[Problem],
    concurrency: int | None,
    max_rows: int | None,
    *,
    strict: bool,
    tokens: bool = False,
) -> Events:
    driver = Driver(
        engine, ProblemAdmission.of(engine, concurrency, max_rows), strict, each_token=tokens
    )
    repeats = Counter[str]()
    for problem in problems:
        text = str(problem.question if problem.messages is None else problem.messages)
        repeat = 0 if problem.id else repeats[text]
        repeats[text] += not problem.id
        driver.add(problem, replace(config, repeat=repeat) if repeat else config)
    yield from driver.events()


def _progress(events: Events) -> Iterator[Progress]:
    with closing(events):
        for _, progress in events:
            yield progress
