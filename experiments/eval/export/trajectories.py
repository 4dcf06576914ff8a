"""Search trees as trajectories: a row for every path from the prompt to a leaf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.runs.finished import FinishedRun
from experiments.runs.reading import check_whole
from experiments.runs.records import chosen_branch
from experiments.runs.rows import Row
from ttc.errors import InvalidInput
from ttc.sampling import random_key


def trajectories(run: FinishedRun) -> list[Row]:
    """A row for every leaf of every tree, pruned ones too.

    prompt_ids, completion_ids: the tokens that the model saw, and those after them. logprobs: of
    each token of the completion, at temperature 1; None for one that the search gave and the model
    did not write.
    step_ends: where in the completion each step ends. scores: of each step, None without a rating.
    step_scores: of the whole text's steps in its last rating. nodes: the steps' ids in the tree.
    branch_key: the key of the leaf's random stream in hexadecimal digits.
    answer, correct, finish_reason: None for leaves that are no candidates, which nobody graded.
    chosen: whether the problem's answer is this one's.
    Raises InvalidInput for a run that has not recorded its tokens, or has no leaf.
    """
    for record in run.records.values():
        check_whole(run.folder, record)
    roots = [record["tree"][0] for record in run.records.values() if record["tree"]]
    if bare := sum("token_ids" not in root for root in roots):
        again = (
            "dataset.private=true keeps no tokens and no texts"
            if run.config.get("dataset.private")
            else "run again under another run.name with run.record_tokens=true, or take --format "
            "trl, which needs texts alone"
        )
        raise InvalidInput(
            f"records in {run.folder} that hold no token ids: {bare} of {len(run.records)}; {again}"
        )
    rows = [row for record in run.records.values() for row in _rows(run, record)]
    if not rows:
        raise InvalidInput(
            f"no problem in {run.folder} has a branch, so there is nothing to write; `error` in "
            "its records says why"
        )
    return rows


def branch_key(seed: int, problem_id: str, path: Sequence[int]) -> int:
    key = random_key(random_key(seed, problem_id))
    for index in path:
        key = random_key(key, index)
    return key


def _rows(run: FinishedRun, record: Row) -> Iterator[Row]:
    nodes = {node["id"]: node for node in record["tree"]}
    inner = {node["parent"] for node in record["tree"]}
    branches = {tuple(branch["path"]): branch for branch in record["branches"]}
    best = chosen_branch(record)
    seed = int(run.config.get("run.seed", 0))
    for leaf in record["tree"]:
        if leaf["id"] in inner or leaf["parent"] is None:
            continue
        way = [leaf]
        while (above := way[-1]["parent"]) is not None:
            way.append(nodes[above])
        way.reverse()
        tokens: list[int] = []
        logprobs: list[float | None] = []
        ends = []
        for node in way:
            tokens = tokens[: node["start"]] + node["token_ids"]
            logprobs = logprobs[: node["start"]] + node["logprobs"]
            ends.append(len(tokens))
        # the prompt is what comes before
        first = next((i for i, node in enumerate(way) if node["tokens"]), len(way))
        prompt = ends[first - 1]
        steps = way[first:]
        branch = branches.get(tuple(leaf["path"]), {})
        yield {
            "problem_id": record["id"],
            "model": run.config.get("model.name"),
            "question": record["question"],
            "gold": record["gold"],
            "prompt": record.get("prompt"),
            "prompt_ids": tokens[:prompt],
            "completion": "".join(node["text"] for node in steps),
            "completion_ids": tokens[prompt:],
            "logprobs": logprobs[prompt:],
            "step_ends": [end - prompt for end in ends[first:]],
            "scores": [node["score"] for node in steps],
            "step_scores": leaf["step_scores"],
            "nodes": [node["id"] for node in steps],
            "seed": seed,
            "path": leaf["path"],
            "branch_key": f"{branch_key(seed, record['id'], leaf['path']):016x}",
            "status": leaf["status"],
            "finish_reason": branch.get("finish_reason"),
            "answer": branch.get("answer"),
            "correct": branch.get("correct"),
            "chosen": branch is best,
        }


def write_parquet(rows: Sequence[Row], out: Path) -> None:
    """The rows of `trajectories`; types do not depend on which values are missing."""
    import pyarrow as pa
    import pyarrow.parquet

    whole = ("prompt_ids", "completion_ids", "step_ends", "nodes", "path")
    types = dict.fromkeys(whole, pa.list_(pa.int64()))
    types |= dict.fromkeys(("logprobs", "scores", "step_scores"), pa.list_(pa.float64()))
    types |= {"seed": pa.int64(), "correct": pa.bool_(), "chosen": pa.bool_()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in rows[0]])
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows), schema), out)
