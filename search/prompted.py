"""Answers to `Vary` and `Handoff`: branches with a prompt of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search.active_search import ActiveSearch, Chat
from search.under_way import PassEvents, UnderWay
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import InvalidInput
from ttc.protocols import Handoff, Vary
from ttc.results import Progress
from ttc.text.chat import following


def vary(run: UnderWay, requests: Sequence[tuple[ActiveSearch, Vary]]) -> PassEvents:
    """Answers to `Vary`: children of the root whose prompts are phrased otherwise, or have
    hints."""
    for active, request in requests:
        if not active.over:
            yield from _varied(run.engine, active, request)


def hand_on(run: UnderWay, requests: Sequence[tuple[ActiveSearch, Handoff]]) -> PassEvents:
    """Answers to `Handoff`: the same conversations, in another model's tokens."""
    for active, request in requests:
        if not active.over:
            yield _handed_on(run.engine, active, request)


def _varied(engine: Backend, active: ActiveSearch, request: Vary) -> PassEvents:
    template = active.config.template
    templates = [replace(template, instruction=phrasing) for phrasing in request.phrasings] or [
        template
    ]
    question, tokenizer = active.problem.question, engine.tokenizer
    phrased = [template.tokens(question, tokenizer) for template in templates]
    hints = [engine.encode(hint) for hint in request.hints] or [[]]
    prompts = [phrased[i % len(phrased)] for i in range(request.n)]
    suffixes = [hints[i % len(hints)] for i in range(request.n)]
    try:
        task = engine.variants(request.root, prompts, suffixes)
    except InvalidInput as error:
        active.fail(error)
        return
    for place, branch in enumerate(task.branches):
        active.record(branch, request.root)
        start = len(branch.tokens) - len(suffixes[place])
        active.begin_turn(branch, Chat(templates[place % len(templates)], (), start), tokenizer)
    branches = yield from task.passes()
    if not active.over:
        yield active.answer("prompted", branches)


def _handed_on(
    engine: Backend, active: ActiveSearch, request: Handoff
) -> tuple[int, Progress] | None:
    models = engine.models
    if (backend := models.get(request.model)) is None:
        known = ", ".join(models) or "none: the backend has one model, without a name"
        active.refuse(InvalidInput(f"Handoff.model={request.model!r} is unknown; use {known}"))
        return None
    children = list[Branch]()
    try:
        for branch in request.branches:
            children.append(_handed(engine, active, branch, request.model, backend))
    except InvalidInput as error:
        engine.release(active.retire(children))
        active.refuse(error)
        return None
    return active.answer("prompted", children)


def _handed(
    engine: Backend, active: ActiveSearch, branch: Branch, model: str, backend: Backend
) -> Branch:
    template, said, start = active.chats[branch]
    question, tokenizer = active.problem.question, backend.tokenizer
    prompt = template.tokens(question, tokenizer)
    for place in range(0, len(said), 2):
        answer, words = said[place : place + 2]
        before = [*prompt, *following(answer, tokenizer)]
        prompt = template.next_prompt(words, tokenizer, question, said[: place + 1], before)
    written = engine.of_branch(branch).decode(branch.tokens[start:])
    text = written.removesuffix(branch.cut)
    given = following(text, tokenizer) if text else []
    child = backend.root([*prompt, *given])
    branch.adopt(child, model, len(given))
    child.usage = active.spending.meter(model, child.usage)
    active.record(child, branch)
    active.begin_turn(child, Chat(template, said, len(prompt)), tokenizer)
    return child
