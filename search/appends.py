"""Answers to `Append`: children that go on with a given text, or with the user's next turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from search.active_search import ActiveSearch, Chat
from search.under_way import PassEvents
from ttc.backend import Backend
from ttc.errors import InvalidInput
from ttc.protocols import Append
from ttc.results import Progress
from ttc.task import Task
from ttc.tree.branch import Branch
from ttc.tree.segment import common_prefix


class Given(NamedTuple):
    """What an `Append` puts after the first `keep` tokens of a branch."""

    keep: int
    tokens: list[int]


class Siblings(NamedTuple):
    """The children of one `Append`, and the tokens that each is given."""

    active: ActiveSearch
    request: Append
    children: list[Branch]
    tokens: list[list[int]]


def append(driver: Any, requests: Sequence[tuple[ActiveSearch, Append]]) -> PassEvents:
    """Answers to `Append`."""
    yield from Appends(driver.engine).answer(requests)


@dataclass(frozen=True)
class Appends:
    """Answers the `Append` requests of searches on one backend."""

    engine: Backend

    def answer(self, requests: Sequence[tuple[ActiveSearch, Append]]) -> PassEvents:
        families: list[Siblings] = []
        for active, request in requests:
            try:
                texts = request.texts()
                given = [
                    self._given(active, branch, text, request)
                    for branch, text in zip(request.branches, texts, strict=True)
                ]
            except InvalidInput as error:
                active.refuse(error)
                continue
            families.append(self._forked(active, request, given))
        tasks = self._extended(families)
        try:
            for task, extended in tasks:
                yield from task.passes()
                for family in extended:
                    if not family.active.over:
                        yield self._appended(family)
        finally:
            for task, _ in tasks:
                task.close()

    def _appended(self, family: Siblings) -> tuple[int, Progress]:
        active, request, children, tokens = family
        for child, text, added in zip(children, request.texts(), tokens, strict=True):
            if request.turn:
                template, said, _ = active.chats[child]
                chat = Chat(template, (*said, text), len(child.tokens))
                active.begin_turn(child, chat, self.engine.of_branch(child).tokenizer)
            active.tree.wrote(child, self.engine.of_branch(child).decode(added))
        progress = active.progress("appended", children)
        active.advance(children)
        return active.index, progress

    def _forked(self, active: ActiveSearch, request: Append, given: Sequence[Given]) -> Siblings:
        children = []
        for branch, (keep, _) in zip(request.branches, given, strict=True):
            dropped = len(branch.tokens) - keep
            ended = branch.finish_reason == "eos"
            differs = request.turn and dropped > ended  # the whole chat begins otherwise
            (child,) = self.engine.fork(branch, 1, keep) if differs else self.engine.fork(branch, 1)
            children.append(active.record(child, branch))
            child.reopen(0 if differs else dropped)
            if request.turn:
                template, said, _ = active.chats[branch]
                active.chats[child] = Chat(template, (*said, self._answer(active, branch)), keep)
                child.begin_answer()
            if request.ends_thinking:
                child.thinking_ended = len(child.tokens)
        return Siblings(active, request, children, [tokens for _, tokens in given])

    def _extended(
        self, families: Sequence[Siblings]
    ) -> list[tuple[Task[None], Sequence[Siblings]]]:
        """What gives the children their texts; each family by itself where not all can have it."""
        if not families:
            return []
        try:
            return [(self._given_to(families), families)]
        except InvalidInput:
            begun = list[tuple[Task[None], Sequence[Siblings]]]()
        for family in families:
            try:
                begun.append((self._given_to([family]), [family]))
            except InvalidInput as error:
                self.engine.release(family.active.retire(family.children))
                family.active.refuse(error)
        return begun

    def _given_to(self, families: Sequence[Siblings]) -> Task[None]:
        children = [child for family in families for child in family.children]
        tokens = [given for family in families for given in family.tokens]
        return self.engine.extend(children, tokens)

    def _given(self, active: ActiveSearch, branch: Branch, text: str, request: Append) -> Given:
        """How many tokens of a branch stay before a text, and the text's tokens."""
        if request.turn:
            return self._next_turn(active, branch, text)
        engine = self.engine.of_branch(branch)
        given, eos = engine.encode(text), branch.finish_reason == "eos"
        if not request.drop or not self._drops(branch, request.drop):
            return Given(len(branch.tokens) - eos, given)
        return Given(len(branch.tokens) - 1, given)

    def _drops(self, branch: Branch, drop: str) -> bool:
        """Whether the last token of a branch holds the text that is to give way, and nothing
        else."""
        engine = self.engine.of_branch(branch)
        eos, generated = branch.finish_reason == "eos", branch.generated
        if not eos and generated and generated[-1:] == engine.encode(drop):
            return True
        words = engine.decode(generated[:-1] if eos else generated)
        if not words.endswith(drop):
            return False
        if eos or engine.decode(generated[:-1]).rstrip() != words.removesuffix(drop).rstrip():
            raise InvalidInput(
                f"drop={drop!r} is more than the last token of {branch!r}, and no other can be "
                "taken back; leave it out, or let steps end with it"
            )
        return True

    def _next_turn(self, active: ActiveSearch, branch: Branch, words: str) -> Given:
        """How many tokens of a branch the prompt with the user's next words begins with, and its
        rest."""
        tokenizer = self.engine.of_branch(branch).tokenizer
        template, said, _ = active.chats[branch]
        before = branch.tokens[: len(branch.tokens) - (branch.finish_reason == "eos")]
        said, question = (*said, self._answer(active, branch)), active.problem.question
        prompt = template.next_prompt(words, tokenizer, question, said, before)
        keep = min(common_prefix(before, prompt), len(prompt) - 1)
        return Given(keep, prompt[keep:])

    def _answer(self, active: ActiveSearch, branch: Branch) -> str:
        """The model's last answer as a message of a chat: all that follows the prompt, without an
        end of sequence.

        Where the marks of thoughts are special tokens, which no message holds, it is what follows
        the thought."""
        engine = self.engine.of_branch(branch)
        start, thoughts = active.chats[branch].start, branch.thoughts
        tokens = branch.tokens[start : len(branch.tokens) - (branch.finish_reason == "eos")]
        if thoughts is not None and thoughts.hidden:
            answer = thoughts.split(tokens, branch.thinks_at(start, thoughts)).answer
            return engine.decode(tokens) if answer is None else answer
        return engine.decode(tokens)
