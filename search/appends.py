"""Answers to `Append`: children that go on with a given text, or with the user's next turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from search.active_search import ActiveSearch
from search.under_way import PassEvents, UnderWay, tasks_of
from ttc.backend import Backend
from ttc.branch import Branch
from ttc.errors import InvalidInput
from ttc.protocols import Append
from ttc.results import Progress
from ttc.task import Task
from ttc.tree.segment import common_prefix


class Suffix(NamedTuple):
    """What follows a branch in its child.

    keep: how many tokens of the branch stay before it. tokens: of the text. turns: the conversation
    with it, of a turn.
    """

    keep: int
    tokens: list[int]
    turns: tuple[str, ...] = ()


class Siblings(NamedTuple):
    """The children of one `Append`, and the new tokens of each."""

    active: ActiveSearch
    request: Append
    children: list[Branch]
    tokens: list[list[int]]


def append(run: UnderWay, requests: Sequence[tuple[ActiveSearch, Append]]) -> PassEvents:
    """Answers to `Append`, computed together."""
    engine = run.engine
    families: list[Siblings] = []
    for active, request in requests:
        try:
            texts = zip(request.branches, request.texts(), strict=True)
            suffixes = [_suffix(engine, active, branch, text, request) for branch, text in texts]
        except InvalidInput as error:
            active.refuse(error)
        else:
            families.append(_forked(engine, active, request, suffixes))

    def extended(families: Sequence[Siblings]) -> Task[None]:
        children = [child for family in families for child in family.children]
        return engine.extend(children, [tokens for family in families for tokens in family.tokens])

    def refused(family: Siblings, error: InvalidInput) -> None:
        engine.release(family.active.retire(family.children))
        family.active.refuse(error)

    tasks = tasks_of(families, extended, refused)
    try:
        for task, together in tasks:
            yield from task.passes()
            for family in together:
                if not family.active.over:
                    yield _appended(engine, family)
    finally:
        for task, _ in tasks:
            task.close()


def _appended(engine: Backend, family: Siblings) -> tuple[int, Progress]:
    active, request, children, tokens = family
    for child, added in zip(children, tokens, strict=True):
        own = engine.of_branch(child)
        if request.turn:
            chat = active.chats[child]._replace(start=len(child.tokens))
            active.begin_turn(child, chat, own.tokenizer)
        active.tree.wrote(child, own.decode(added))
    return active.answer("appended", children)


def _forked(
    engine: Backend, active: ActiveSearch, request: Append, suffixes: Sequence[Suffix]
) -> Siblings:
    children = []
    for branch, (keep, _, turns) in zip(request.branches, suffixes, strict=True):
        dropped = len(branch.tokens) - keep
        ended = branch.finish_reason == "eos"
        differs = request.turn and dropped > ended  # the whole chat begins otherwise
        (child,) = engine.fork(branch, 1, keep if differs else None)
        children.append(active.record(child, branch))
        child.reopen(0 if differs else dropped)
        if request.turn:
            active.chats[child] = active.chats[branch]._replace(turns=turns, start=keep)
            child.begin_answer()
        if request.ends_thinking:
            child.thinking_ended = len(child.tokens)
    return Siblings(active, request, children, [tokens for _, tokens, _ in suffixes])


def _suffix(
    engine: Backend, active: ActiveSearch, branch: Branch, text: str, request: Append
) -> Suffix:
    own, eos = engine.of_branch(branch), branch.finish_reason == "eos"
    if not request.turn:
        if active.config.grammar is not None and branch.generated:
            raise InvalidInput(
                "the search puts words into an answer that keeps to a schema or grammar; leave "
                "these out, or Append(..., turn=True)"
            )
        drops = bool(request.drop) and _drops(own, branch, request.drop)
        return Suffix(len(branch.tokens) - (eos or drops), own.encode(text))
    template, question, turns, _ = active.chats[branch]
    before = branch.tokens[: len(branch.tokens) - eos]
    turns = (*turns, _answer(own, active, branch))
    prompt = template.next_prompt(text, own.tokenizer, question, turns, before)
    keep = min(common_prefix(before, prompt), len(prompt) - 1)
    return Suffix(keep, prompt[keep:], (*turns, text))


def _drops(engine: Backend, branch: Branch, drop: str) -> bool:
    """Whether the last token of a branch holds the text that is to give way, and nothing else."""
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


def _answer(engine: Backend, active: ActiveSearch, branch: Branch) -> str:
    """The model's last answer as a message of a chat: all that follows the prompt, without an end
    of sequence; where the marks of thoughts are special tokens, which no message holds, what
    follows the thought."""
    start, thoughts = active.chats[branch].start, branch.thoughts
    tokens = branch.tokens[start : len(branch.tokens) - (branch.finish_reason == "eos")]
    if thoughts is not None and thoughts.hidden:
        answer = thoughts.split(tokens, branch.thinks_at(start, thoughts)).answer
        if answer is not None:
            return answer
    return engine.decode(tokens)
