"""Answers to `Expand`: children that decode their steps in one batch.

A step is decoded at once, or in parts where a model thinks within limits or calls tools
(`search.thinking`). A search goes on once all of its children have ended their step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from search.active_search import ActiveSearch
from search.under_way import Events, PassEvents, UnderWay, Work, tasks_of
from ttc.branch import Branch
from ttc.errors import ContextExceeded, InvalidInput, VerifierError
from ttc.parts import handler
from ttc.protocols import Expand
from ttc.step import Step
from ttc.task import Task


def expand(run: UnderWay, requests: Sequence[tuple[ActiveSearch, Expand]]) -> PassEvents:
    """Answers to `Expand`: the children begin to decode."""
    for active, request in requests:
        begin_children(run, active, request)
    yield from ()


def begin_children(run: UnderWay, active: ActiveSearch, request: Expand) -> None:
    """Let so many children begin their step as the budget pays for now; the others follow them."""
    if not active.waiting:
        active.advance([])
        return
    kept, tokens = len(active.live) - 1, active.step_tokens
    run.admission.note_expansion(len(active.waiting), len(active.root.tokens), tokens, kept)
    try:
        count, max_tokens = active.affordable(run.engine, tokens)
    except VerifierError as error:
        active.fail(error)
        return
    if count:
        forked = [(run.engine.fork(parent, 1)[0], parent) for parent in active.waiting[:count]]
        active.growing = {active.record(child, parent): None for child, parent in forked}
        if max_tokens < tokens:
            active.shortened += active.growing
        run.decoding.update(dict.fromkeys(active.growing, active))
        _begin_steps(run, active, request, max_tokens)
    elif active.children:
        active.cut_short()
    else:
        active.run_out(active.spending.scarcest)


def _begin_steps(run: UnderWay, active: ActiveSearch, request: Expand, max_tokens: int) -> None:
    config = active.config
    thoughts, chat = config.thoughts, config.tools
    step = replace(
        request.step,
        stop_loops=config.stops_loops,
        grammar=config.grammar if request.step.is_answer else None,
        top_logprobs=config.options.top_logprobs,
    )
    limits = step.thinking if thoughts is not None else None
    closes = limits is not None and (limits.tokens is not None or step.stop_loops)
    children = list(active.growing)
    if not closes and chat is None:
        plain = replace(step, max_tokens=max_tokens, thinking=None)
        run.begin_decoding(active, children, plain, request.sampling)
        return
    from search.thinking import StepInParts

    for child in children:
        backend, calls = run.engine.of_branch(child), None
        if chat is not None:
            run.tools = run.tools or handler("tool_use", "steps")()
            calls = run.tools.calls_of(child, chat, backend, active.tool_runs)
        parts = StepInParts(child, step, limits, thoughts, backend, max_tokens, calls).parts()
        active.growing[child] = parts
    go_on(run, children)


def go_on(run: UnderWay, children: Iterable[Branch]) -> list[Branch]:
    """Let branches do the next part of their steps. Returns those whose step is over."""
    alike: dict[tuple[ActiveSearch, Step], list[Branch]] = defaultdict(list)
    added: dict[ActiveSearch, dict[Branch, list[int]]] = defaultdict(dict)
    refused: dict[ActiveSearch, InvalidInput] = {}
    over = []
    for child in children:
        active = run.decoding[child]
        parts = active.growing[child]
        try:
            action = None if parts is None else next(parts, None)
        except InvalidInput as error:  # the chat template refuses what was called
            refused[active] = error
            continue
        if action is None:
            over.append(child)
        elif isinstance(action, Step):
            alike[active, action].append(child)
        elif isinstance(action, list):
            added[active][child] = action
        else:
            run.tools.call(child, action)
    for (active, step), together in alike.items():
        assert isinstance(active.request, Expand)
        run.begin_decoding(active, together, step, active.request.sampling)
    for active, tokens in added.items():
        run.works.append(Work(_insert(run, tokens), {active.index}))
    for active, why in refused.items():
        run.stop_decoding(active)
        active.growing = {}
        active.refuse(why)
    return [child for child in over if child in run.decoding]


def _insert(run: UnderWay, tokens: dict[Branch, list[int]]) -> PassEvents:
    """Give branches the tokens with which their steps go on; the steps of those without room for
    them are over."""
    full = list[Branch]()
    if not run.decoding.keys() >= tokens.keys():  # their search was broken off
        return

    def extended(children: Sequence[Branch]) -> Task[None]:
        return run.engine.extend(children, [tokens[child] for child in children])

    def refused(child: Branch, error: InvalidInput) -> None:
        if not isinstance(error, ContextExceeded):
            raise error
        child.end_step("length")
        full.append(child)

    tasks = tasks_of(list(tokens), extended, refused)
    try:
        for task, _ in tasks:
            yield from task.passes()
    finally:
        for task, _ in tasks:
            task.close()
    if run.decoding.keys() >= tokens.keys():
        fit = [child for _, children in tasks for child in children]
        yield from end_steps(run, [*full, *go_on(run, fit)])


def end_steps(run: UnderWay, ended: Iterable[Branch]) -> Events:
    """These children's steps are over; so are requests whose children all have ended theirs."""
    for active in dict.fromkeys(run.decoding.pop(child) for child in ended):
        if any(child in run.decoding for child in active.growing):
            continue
        if why := next((c.matcher.error for c in active.growing if c.matcher), ""):
            active.growing = {}
            active.fail(InvalidInput(why))
            continue
        kept = len(active.live) - 1 - len(active.growing)
        children = active.end_steps()
        run.admission.note_step(children, len(active.root.tokens), kept)
        yield active.index, active.progress("expanded", children)
        if not active.waiting:
            active.advance(active.children)
