"""What a search leaves behind: plain values that hold no engine, no model and no keys and
values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from ttc.branch import Branch, ThoughtClosed
from ttc.errors import InvalidInput, number_of, refusing
from ttc.tree.branch import Substitution
from ttc.usage import Usage

if TYPE_CHECKING:
    from ttc.text.roles import Messages
    from ttc.tool_calls import ToolCall

Status = Literal["root", "expanded", "pruned", "kept", "finished"]
Stopped = Literal[
    "max_tokens", "max_generated_tokens", "max_calls", "max_tool_calls", "max_wall_s", "cancelled"
]
DRAWN_NODES = 400
"""A larger tree is drawn without what was pruned."""
Did = Literal["prompted", "wrote", "expanded", "appended", "rated", "finished"]


@dataclass(frozen=True)
class Problem:
    """One question. `answer` is the gold answer where one is known; no search or verifier reads
    it. messages: the chat that the question is part of, None where it stands alone."""

    question: str
    id: str = ""
    answer: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    messages: Messages | None = None

    def __post_init__(self) -> None:
        if self.messages is None:
            return
        from ttc.text.conversation import question_of, read_messages

        messages = read_messages(self.messages, "messages")
        if self.question != question_of(messages):
            raise InvalidInput(
                f"the question {self.question!r:.80} is not the last message of the user, "
                f"{question_of(messages)!r:.80}; make the problem by Problem.of_chat(messages)"
            )
        object.__setattr__(self, "messages", messages)

    @classmethod
    def of_chat(cls, messages: Messages, name: str = "messages", **more: Any) -> Problem:
        """A chat that ends with a message of the user or of a tool. Its question, for verifiers and
        for what a search asks by itself, is the user's last message.

        name: what errors call the messages. more: the other fields. Raises InvalidInput for a
        message that is none, with its number and key.
        """
        from ttc.text.conversation import question_of, read_messages

        read = read_messages(messages, name)
        return cls(question_of(read), messages=read, **more)

    @property
    def whole_question(self) -> str:
        """The question with the conversation that it is part of, as verifiers are given it."""
        if self.messages is None:
            return self.question
        from ttc.text.conversation import Talk

        return Talk.of(self.messages)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        if self.messages is None:
            del values["messages"]
        return values


@dataclass
class Node:
    """A node of the tree that a search grew: one step of one branch.

    id: its place in the order of creation.
    parent: the parent's id, None for the root.
    path: the child's index at each fork.
    text: what this step added.
    tokens: tokens after the prompt, earlier steps included.
    score, step_scores: what the last rating left, None and [] without one. Where a budget left the
        branch unrated, the score is that of the rated branch that it goes on from.
    status: "root", "expanded" (it has children), "pruned" (released without any), "kept" or
        "finished".
    start, token_ids: the node's own tokens, and their place in the sequence: the whole sequence is
        the parent's up to `start`, then these. The root's are the prompt.
    logprobs: for each of them its log-probability under the model, None for a token that was not
        generated.
    thought: how many characters at the beginning of `text` the model has thought, marks included;
        the others are answer.
    tool_calls: the tools that this step has called; `text` holds the calls and their answers.
    model: the name of the model that it is of, "" where there is one alone.
    """

    id: int
    parent: int | None
    path: list[int]
    text: str = ""
    tokens: int = 0
    score: float | None = None
    step_scores: list[float] = field(default_factory=list)
    status: Status = "kept"
    start: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    thought: int = 0
    tool_calls: list[ToolCall] = field(default_factory=list)
    model: str = ""

    def to_dict(self) -> dict[str, Any]:
        return _written(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Node:
        record = _read(values)
        record["logprobs"] = [_number(logprob) for logprob in record["logprobs"]]
        return cls(**record)


@dataclass(frozen=True, eq=False)
class BranchRecord:
    """What stays of a branch: its tokens, its text and how it was rated. The fields are those of
    `Branch`.

    thought, answer_text: the two parts of `text` (see `Branch.answer_text`).
    thinking_tokens: of the generated tokens, those of the thought.
    tool_calls: the tools that it has called; `answer_text` leaves out the calls and their answers.
    model: the name of the model that it is of, "" where there is one alone.
    alternatives: the likeliest tokens in each place, where `top_logprobs` asked for them.

    Two records are equal only when they are the same object, as branches are.
    """

    tokens: list[int]
    prompt_length: int
    text: str
    steps: list[str]
    logprobs: list[float]
    top1: list[float]
    entropies: list[float]
    top_k_logprobs: list[float]
    self_certainties: list[float]
    step_ends: list[int]
    step_reasons: list[str]
    path: tuple[int, ...]
    root_id: int
    finish_reason: str | None
    substituted: Substitution | None
    score: float | None
    step_scores: list[float]
    thought: str
    answer_text: str | None
    thinking_tokens: int
    tool_calls: list[ToolCall] = field(default_factory=list)
    model: str = ""
    thought_closed: ThoughtClosed | None = None
    alternatives: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, branch: Branch) -> BranchRecord:
        values: dict[str, Any] = {}
        for name in (f.name for f in fields(cls)):
            value = getattr(branch, name)
            values[name] = value[:] if isinstance(value, list) else value
        return cls(**values)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def gated(self) -> bool:
        return self.finish_reason == "gate"

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON can hold: NaN, which marks tokens that were not measured, becomes None,
        and an infinite number its name. Where all of a text is answer, it stands there once."""
        values = _written(self)
        if self.answer_text == self.text and not self.thought and not self.thinking_tokens:
            del values["thought"], values["answer_text"], values["thinking_tokens"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BranchRecord:
        record = {"thought": "", "answer_text": values["text"], "thinking_tokens": 0}
        record |= _read(values)
        for name in ("logprobs", "top1", "entropies", "top_k_logprobs", "self_certainties"):
            record[name] = [math.nan if value is None else float(value) for value in record[name]]
        record["path"] = tuple(record["path"])
        record["alternatives"] = {
            int(place): [(int(token), float(logprob)) for token, logprob in pairs]
            for place, pairs in record.get("alternatives", {}).items()
        }
        if record["substituted"] is not None:
            stands_for = record["substituted"]
            record["substituted"] = Substitution(
                stands_for["prompt"], float(stands_for["similarity"])
            )
        return cls(**record)

    def __repr__(self) -> str:
        state = f"finish_reason={self.finish_reason}, score={self.score}"
        return f"BranchRecord(path={self.path}, {state}, text={_short(self.text)})"


@dataclass(repr=False)
class Result:
    """The outcome of one search on one problem. It can be pickled and kept; it holds nothing of the
    engine.

    best: the branch that was chosen, None where nothing was generated.
    branches: the candidates that were left, best first.
    answer: the answer read from `best`.
    usage: what the problem cost.
    tree: every node that was ever made, pruned ones too, in order of creation.
    seed: the run's seed.
    error: why the problem failed, or None.
    stopped: what ended the search before it was done: the name of the limit of its budget that ran
        out, or "cancelled"; else None.
    usage_by_model: what each model took of `usage`, by its name; {} where there is one alone.
    prompt: the text that was sent to the model for the question, None where none was. A search that
        writes prompts of its own has others too: a branch's is `tokens[:prompt_length]`.
    pruned: how many other branches there were, and how many of them ended as they should not (see
        `search.recorded_tree.pruned`).
    """

    problem: Problem
    best: BranchRecord | None
    branches: list[BranchRecord]
    answer: str | None
    usage: Usage
    tree: list[Node]
    seed: int = 0
    error: str | None = None
    stopped: Stopped | None = None
    usage_by_model: dict[str, Usage] = field(default_factory=dict)
    prompt: str | None = None
    pruned: dict[str, int] = field(default_factory=dict)

    @classmethod
    def unsolved(
        cls, problem: Problem, seed: int, error: str | None, stopped: Stopped | None = None
    ) -> Result:
        return cls(problem, None, [], None, Usage(), [], seed, error, stopped)

    def to_dict(self) -> dict[str, Any]:
        """The whole result as values that JSON can hold, as far as the problem's metadata are
        such."""
        by_model = {name: usage.to_dict() for name, usage in self.usage_by_model.items()}
        return {
            "problem": self.problem.to_dict(),
            "best": None if self.best is None else list(self.best.path),
            "branches": [branch.to_dict() for branch in self.branches],
            "answer": self.answer,
            "usage": self.usage.to_dict(),
            "tree": [node.to_dict() for node in self.tree],
            "seed": self.seed,
            "error": self.error,
            "stopped": self.stopped,
            "prompt": self.prompt,
            **({"usage_by_model": by_model} if by_model else {}),
            **({"pruned": self.pruned} if self.pruned else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """What `to_dict` was made of. Raises InvalidInput for what is no such thing."""
        with refusing(
            (KeyError, TypeError, ValueError, StopIteration),
            "these values are no result ({kind}: {error}); give what Result.to_dict returned",
        ):
            branches = [BranchRecord.from_dict(branch) for branch in values["branches"]]
            best = None
            if values["best"] is not None:
                path = tuple(values["best"])
                best = next(branch for branch in branches if branch.path == path)
            return cls(
                Problem(**values["problem"]),
                best,
                branches,
                values["answer"],
                Usage.from_dict(values["usage"]),
                [Node.from_dict(node) for node in values["tree"]],
                values["seed"],
                values["error"],
                values["stopped"],
                {
                    name: Usage.from_dict(usage)
                    for name, usage in values.get("usage_by_model", {}).items()
                },
                values.get("prompt"),
                dict(values.get("pruned", {})),
            )

    def __repr__(self) -> str:
        return (
            f"Result({_short(str(self.problem.question))}\n  {self._outcome()}\n  {self._size()})"
        )

    def _repr_html_(self) -> str:
        from ttc.drawing import alive, tree_svg, written

        large = len(self.tree) > DRAWN_NODES
        nodes = alive(self.tree) if large else self.tree
        drawn = tree_svg(nodes, None if self.best is None else self.best.path)
        left_out = f", {len(self.tree) - len(nodes)} pruned nodes left out" if large else ""
        return (
            '<div style="background:#fff;color:#1c2128">'
            f"<p><b>{written(str(self.problem.question))}</b><br>"
            f"{written(self._outcome())}<br>{self._size()}{left_out}</p>"
            f'<div style="overflow:auto;max-height:40em">{drawn}</div></div>'
        )

    def _outcome(self) -> str:
        end = f"stopped: {self.stopped}" if self.stopped else "done"
        if self.error:
            end = f"error: {self.error}"
        score = "none" if self.best is None or self.best.score is None else f"{self.best.score:.4g}"
        return f"answer={self.answer!r}, score={score}, {end}"

    def _size(self) -> str:
        return (
            f"{number_of(len(self.branches), 'branch', 'branches')}, "
            f"{number_of(len(self.tree), 'node')}, "
            f"{number_of(self.usage.generated_tokens, 'token')}"
        )


@dataclass(frozen=True)
class Progress:
    """What one request of a search did, for those who watch it.

    step: how many requests of this problem were answered before.
    did: "prompted", "wrote" (a token), "expanded", "appended", "rated" or "finished".
    nodes: copies of the nodes that were made or rated. Those of steps under way have their text so
    far.
    usage: what the problem cost until now.
    result: the outcome, once the search has finished; None before.
    """

    problem: Problem
    step: int
    did: Did
    nodes: list[Node]
    usage: Usage
    result: Result | None = None


def _written(record: Node | BranchRecord) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in asdict(record).items()}
    for name in ("tool_calls", "model", "thought_closed", "alternatives"):
        if not values.get(name, True):
            del values[name]
    return values


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    record = dict(values)
    record["score"] = _number(record["score"])
    record["step_scores"] = [float(score) for score in record["step_scores"]]
    record["tool_calls"] = [_tool_call(call) for call in record.get("tool_calls", ())]
    return record


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _short(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _tool_call(values: Mapping[str, Any]) -> ToolCall:
    from ttc.tool_calls import ToolCall

    return ToolCall(**values)


def comparable(score: float | None) -> float:
    """A score as it is compared: those that agree in six digits are equal, and none is the lowest.

    Two branches with the same text must not change places by what was computed beside them.
    """
    return float("-inf") if score is None else float(f"{score:.6g}")
