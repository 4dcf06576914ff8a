"""Answers to `Vary` and `Handoff`: branches with a prompt of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from search.active_search import ActiveSearch, Chat
from search.prefills import Task, begin_variants, passes_of
from ttc.errors import InvalidInput
from ttc.protocols import Backend, Handoff, Vary
from ttc.results import Progress
from ttc.text.chat import following
from ttc.tree.branch import Branch


@dataclass(frozen=True)
class Prompted:
    """Answers the `Vary` and `Handoff` requests of searches on one backend."""

    engine: Backend

    def vary(self, active: ActiveSearch, request: Vary) -> Task:
        """Children of the root whose prompts are phrased otherwise, or have hints."""
        template = active.config.template
        templates = [replace(template, instruction=phrasing) for phrasing in request.phrasings] or [
            template
        ]
        question, tokenizer = active.problem.question, self.engine.tokenizer
        phrased = [template.tokens(question, tokenizer) for template in templates]
        hints = [self.engine.encode(hint) for hint in request.hints] or [[]]
        prompts = [phrased[i % len(phrased)] for i in range(request.n)]
        suffixes = [hints[i % len(hints)] for i in range(request.n)]
        try:
            prefill = begin_variants(self.engine, request.root, prompts, suffixes)
        except InvalidInput as error:
            active.fail(error)
            return
        for place, branch in enumerate(prefill.branches):
            active.record(branch, request.root)
            start = len(branch.tokens) - len(suffixes[place])
            active.begin_turn(branch, Chat(templates[place % len(templates)], (), start), tokenizer)
        yield from passes_of(prefill)
        if not active.over:
            yield _answered(active, prefill.branches)

    def hand_on(self, active: ActiveSearch, request: Handoff) -> tuple[int, Progress] | None:
        models = self.engine.models
        if (backend := models.get(request.model)) is None:
            known = ", ".join(models) or "none: the backend has one model, without a name"
            active.refuse(InvalidInput(f"Handoff.model={request.model!r} is unknown; use {known}"))
            return None
        children = list[Branch]()
        try:
            for branch in request.branches:
                children.append(self._handed(active, branch, request.model, backend))
        except InvalidInput as error:
            self.engine.release(active.retire(children))
            active.refuse(error)
            return None
        return _answered(active, children)

    def _handed(self, active: ActiveSearch, branch: Branch, model: str, backend: Backend) -> Branch:
        template, said, start = active.chats[branch]
        question, tokenizer = active.problem.question, backend.tokenizer
        prompt = template.tokens(question, tokenizer)
        for place in range(0, len(said), 2):
            answer, words = said[place : place + 2]
            before = [*prompt, *following(answer, tokenizer)]
            prompt = template.next_prompt(words, tokenizer, question, said[: place + 1], before)
        written = self.engine.of_branch(branch).decode(branch.tokens[start:])
        text = written.removesuffix(branch.cut)
        given = following(text, tokenizer) if text else []
        child = backend.root([*prompt, *given])
        branch.adopt(child, model, len(given))
        child.usage = active.spending.meter(model, child.usage)
        active.record(child, branch)
        active.begin_turn(child, Chat(template, said, len(prompt)), tokenizer)
        return child


def _answered(active: ActiveSearch, branches: Sequence[Branch]) -> tuple[int, Progress]:
    progress = active.progress("prompted", branches)
    active.advance(branches)
    return active.index, progress
