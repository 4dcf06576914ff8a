"""What the files of a run's folder hold, so that a damaged one is named before anything reads it.

A name may be missing, as older versions wrote fewer, unless it is `Required`. Other names may stand
beside these.
"""

from __future__ import annotations

from typing import Annotated, Any, Required

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

Count = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[float, Field(gt=-1e18, lt=1e18)]


class ToolCallShape(TypedDict, total=False):
    name: Required[str]
    arguments: dict[str, Any]
    answer: str | None
    failed: bool
    error: str | None


class BranchShape(TypedDict, total=False):
    path: Required[list[Count]]
    answer: Required[str | None]
    correct: Required[bool]
    tokens: Required[Count]
    text: str
    thought: str
    thinking_tokens: Count
    thought_end: str | None
    thought_unknown: bool
    looped: bool
    tool_calls: list[ToolCallShape]
    vote: str | None
    score: Number | None
    step_scores: list[Number]
    finish_reason: str | None
    logprob: Number | None
    self_certainty: Number | None
    confidences: list[Number] | None


class TreeNode(TypedDict, total=False):
    id: Count
    parent: Count | None
    path: list[Count]
    text: str
    tokens: Count
    score: Number | None
    step_scores: list[Number]
    status: str
    start: Count
    thought: Count
    tool_calls: list[ToolCallShape]
    own_tokens: Count
    token_ids: list[Count]
    logprobs: list[Number | None]


def _is_tree(nodes: list[TreeNode]) -> list[TreeNode]:
    """Raises ValueError unless each node stands after its parent, and either all or none have
    tokens."""
    ids: set[int] = set()
    for node in nodes:
        parent = node.get("parent")
        if parent is not None and parent not in ids:
            raise ValueError(f"node {node.get('id')} has the parent {parent}, no node before it")
        ids.add(node.get("id", -1))
    with_tokens = sum("token_ids" in node and "logprobs" in node for node in nodes)
    if len(ids) < len(nodes) or with_tokens not in (0, len(nodes)):
        raise ValueError("two nodes have one id, or some have tokens and others none")
    return nodes


class Timing(TypedDict, total=False):
    forward_passes: Count
    drafted_tokens: Count
    accepted_tokens: Count
    host_to_device_bytes: Count
    device_to_host_bytes: Count
    wall_s: Number
    finished_at: Number
    kv_peak_bytes: Count | None
    act_blocks: Count
    blocks: Count


class Record(TypedDict, total=False):
    """A line of records.jsonl."""

    id: Required[str]
    question: str | None
    gold: str | None
    source: str | None
    order_of: str
    prompt: str | None
    answer: str | None
    correct: bool
    correct_strict: bool
    error: str | None
    truncated: bool
    truncated_by: str | None
    stopped: str | None
    branches: list[BranchShape]
    pruned: dict[str, Count]
    tree: Annotated[list[TreeNode], AfterValidator(_is_tree)]
    usage: dict[str, Count]
    timing: Timing


class Named(TypedDict):
    name: str


class Dataset(TypedDict, total=False):
    name: str | None
    path: str | None


class SearchShape(TypedDict, total=False):
    delimiter: str | None


class RunShape(TypedDict, total=False):
    seed: int
    shard: str | None


class ConfigShape(TypedDict, total=False):
    """config.yaml."""

    model: Required[Named]
    dataset: Dataset | None
    search: SearchShape | None
    verifier: dict[str, Any] | None
    memory: dict[str, Any] | None
    placement: dict[str, Any] | None
    run: Required[RunShape]


class Made(TypedDict):
    """An entry of provenance.json: what a go of the run was made by."""

    commit: str | None


class Summary(TypedDict, total=False):
    """What is read of summary.json."""

    seconds: Number
    parameters: dict[str, Count]
    made_by: list[Made]


RECORD = TypeAdapter(Record)
SETTINGS = TypeAdapter(ConfigShape)
SUMMARY = TypeAdapter(Summary)
PROVENANCE = TypeAdapter(list[Made])
FINGERPRINT = TypeAdapter(dict[str, dict[str, str]])

WHOLE = {
    "tree": (
        *("own_tokens", "id", "parent", "path", "text"),
        *("tokens", "score", "step_scores", "status", "start"),
    ),
    "branches": ("text", "score"),
    "timing": ("host_to_device_bytes", "device_to_host_bytes", "wall_s", "finished_at"),
    "usage": ("prompt_tokens", "generated_tokens", "verifier_tokens"),
}
"""What this version writes into these parts of a record."""


def fault(shape: TypeAdapter[Any], value: Any) -> str | None:
    """Where a value first differs from a shape, as `branches[0].tokens is 'x'`; None for
    nowhere."""
    try:
        shape.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = _place(first["loc"])
        if first["type"] == "missing":
            return f"{place} is missing"
        return f"{place or 'it'} is {first['input']!r:.40} ({first['msg'].lower()})"
    return None


def lacking(record: dict[str, Any]) -> str | None:
    """What this version writes into every record and this one lacks; None for nothing."""
    for name in ("tree", "timing", "correct_strict", "answer", "question", "gold"):
        if name not in record:
            return name
    for kind, names in WHOLE.items():
        values = record[kind] if isinstance(record[kind], list) else [record[kind]]
        for value in values:
            if missing := [name for name in names if name not in value]:
                return f"{missing[0]} in its {kind}"
    return None


def _place(keys: tuple[int | str, ...]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")
