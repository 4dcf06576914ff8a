"""Answers to `Vary` and `Handoff`: branches with a prompt of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

from search.active_search import ActiveSearch, Chat
from search.under_way import PassEvents, UnderWay
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import InvalidInput
from ttc.protocols import Handoff, Vary
from ttc.text.chat import following
from ttc.text.prompt import PromptTemplate


def vary(run: UnderWay, requests: Sequence[tuple[ActiveSearch, Vary]]) -> PassEvents:
    """Answers to `Vary`: children of the root whose prompts are phrased otherwise, or have
    hints."""
    engine = run.engine
    for active, request in requests:
        if active.over:
            continue
        variants = _variants(engine, active, request)
        try:
            prompts = [
                template.tokens(question, engine.tokenizer) for template, question, _ in variants
            ]
            task = engine.variants(request.root, prompts, [hint for _, _, hint in variants])
        except InvalidInput as error:
            active.refuse(error)
            continue
        for branch, (template, question, hint) in zip(task.branches, variants, strict=True):
            active.record(branch, request.root)
            start = len(branch.tokens) - len(hint)
            active.begin_turn(branch, Chat(template, question, (), start), engine.tokenizer)
        branches = yield from task.passes()
        if not active.over:
            yield active.answer("prompted", branches)


def hand_on(run: UnderWay, requests: Sequence[tuple[ActiveSearch, Handoff]]) -> PassEvents:
    """Answers to `Handoff`: the same conversations, in another model's tokens."""
    engine = run.engine
    for active, request in requests:
        if active.over:
            continue
        children = list[Branch]()
        try:
            backend = _model(engine, request.model)
            for branch in request.branches:
                children.append(_handed(engine, active, branch, request.model, backend))
        except InvalidInput as error:
            engine.release(active.retire(children))
            active.refuse(error)
        else:
            yield active.answer("prompted", children)


def _variants(
    engine: Backend, active: ActiveSearch, request: Vary
) -> list[tuple[PromptTemplate, str, list[int]]]:
    """What each branch is asked: the words around the question, the question, and the hint."""
    template = active.config.template
    if request.plain:
        template = template.plain()
    templates = [replace(template, instruction=phrasing) for phrasing in request.phrasings]
    turns = zip(
        cycle(templates or [template]),
        cycle(request.questions or [active.problem.question]),
        cycle([engine.encode(hint) for hint in request.hints] or [[]]),
    )
    return list(islice(turns, request.n))


def _model(engine: Backend, name: str) -> Backend:
    if (backend := engine.models.get(name)) is None:
        names = ", ".join(engine.models) or "none: the backend has one model, without a name"
        raise InvalidInput(f"Handoff.model={name!r} is unknown; use {names}")
    return backend


def _handed(
    engine: Backend, active: ActiveSearch, branch: Branch, model: str, backend: Backend
) -> Branch:
    template, question, turns, start = active.chats[branch]
    tokenizer = backend.tokenizer
    prompt = template.tokens(question, tokenizer)
    for place in range(0, len(turns), 2):
        answer, words = turns[place : place + 2]
        before = [*prompt, *following(answer, tokenizer)]
        prompt = template.next_prompt(words, tokenizer, question, turns[: place + 1], before)
    written = engine.of_branch(branch).decode(branch.tokens[start:])
    text = written.removesuffix(branch.cut)
    tokens = following(text, tokenizer) if text else []
    child = backend.root([*prompt, *tokens])
    branch.adopt(child, model, len(tokens))
    child.usage = active.spending.meter(model, child.usage)
    active.record(child, branch)
    active.begin_turn(child, Chat(template, question, turns, len(prompt)), tokenizer)
    return child
