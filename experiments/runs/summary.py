"""What a run's records add up to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.runs.config_values import as_dict
from experiments.runs.parameters import run_parameters
from experiments.runs.records import vote_of
from experiments.runs.stats import accuracy, maj_at_k, pass_at_k

KS = tuple(2**i for i in range(11))
"""The k of pass@k and maj@k."""

SHOWN_VALUES = 5
"""Of one kind of error."""

WITHOUT_END = (None, "context", "looped")
"""What a branch's `finish_reason` is where its text has no end."""

_VALUE = re.compile(
    r"\d(?:[\d,.]*\d)?|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\b[A-Z](?:, [A-Z])+\b|\[[^\[\]]*\]"
)
"""Numbers, what is quoted, letters of choices, and lists."""


def failed(record: Mapping[str, Any]) -> bool:
    """Whether a problem could not be solved; one whose budget ran out counts with what it has."""
    return record["error"] is not None and not record["error"].startswith("BudgetExceeded")


def failure_reasons(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Why problems failed (see `kinds_of_errors`)."""
    return kinds_of_errors([record["error"] for record in filter(failed, records)])


def kinds_of_errors(errors: Sequence[str]) -> list[dict[str, Any]]:
    """Errors by kind, the most frequent first: alike but for numbers and what is quoted.

    reason: the first one. count: how many there are. values: what differs in them, each once
    and in their order; not there where nothing does.
    """
    groups: dict[str, list[str]] = {}
    for error in errors:
        groups.setdefault(_VALUE.sub("\0", error), []).append(error)
    counts = []
    for alike in groups.values():
        kind = {"reason": " ".join(alike[0].split()), "count": len(alike)}
        values = differing(alike)
        counts.append(kind | ({"values": values} if values else {}))
    return sorted(counts, key=lambda entry: -entry["count"])


def differing(errors: Sequence[str]) -> list[str]:
    """What stands in errors of one kind in the places where they differ."""
    rows = [_VALUE.findall(error) for error in errors]
    columns = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    return list(dict.fromkeys(map(", ".join, zip(*columns, strict=True))))


def kind_line(kind: Mapping[str, Any]) -> str:
    """A line for a kind of error: how often it is there, the first one, and the values."""
    values = kind.get("values", ())
    if not values:
        return f"{kind['count']} x {kind['reason']}"
    more = f"; {len(values) - SHOWN_VALUES} more" if len(values) > SHOWN_VALUES else ""
    return f"{kind['count']} x {kind['reason']} (here: {'; '.join(values[:SHOWN_VALUES])}{more})"


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy with its 95% interval, pass@k and maj@k over the final branches, tokens, time, and
    what was approximate.

    A problem that failed counts as wrong everywhere. pass@k and maj@k are over all subsets of k
    branches; in maj@k ties count in part. A question that was asked in several orders counts once
    in all of these, with their mean.
    """
    ks = widths(records)
    shares = by_question(records, is_right)
    tokens = [r["usage"]["generated_tokens"] for r in records]
    return {
        "problems": len(records),
        **({"questions": len(shares)} if len(shares) < len(records) else {}),
        "correct": sum(map(is_right, records)),
        "accuracy": mean(shares),
        "accuracy_95": interval_of(shares),
        "accuracy_strict": mean(by_question(records, is_right_strictly)),
        "failures": sum(map(failed, records)),
        "failure_reasons": failure_reasons(records),
        "truncated": sum(r.get("truncated", False) for r in records),
        "truncated_by": dict(Counter(cause for r in records if (cause := r.get("truncated_by")))),
        "branches": branch_counts(records),
        "pass_at_k": {str(k): mean(by_question(records, partial(pass_share, k=k))) for k in ks},
        "maj_at_k": {str(k): mean(by_question(records, partial(majority_share, k=k))) for k in ks},
        "generated_tokens": sum(tokens),
        "generated_tokens_per_problem": mean(tokens),
        "verifier_tokens": sum(r["usage"]["verifier_tokens"] for r in records),
        "approximate": {name: n for name, n in approximations(records).items() if n},
        "prompt_tokens": sum(r["usage"]["prompt_tokens"] for r in records),
        "host_to_device_bytes": sum(r["timing"]["host_to_device_bytes"] for r in records),
        "device_to_host_bytes": sum(r["timing"]["device_to_host_bytes"] for r in records),
    }


def summary_of(
    config: DictConfig, records: list[dict[str, Any]], goes: list[dict[str, Any]]
) -> dict[str, Any]:
    """What a run's summary.json holds. goes: what its records were made by (see `RunFolder`)."""
    summary = summarise(records)
    setting = partial(OmegaConf.select, config)
    links = (setting("memory.link_gbps"), setting("placement.link_gbps"))
    if gbps := [speed for speed in links if speed is not None]:
        summary["simulated_link_gbps"] = gbps[0]
    summary["approximate"] |= approximations_by_settings(setting, summary, records)
    if any("blocks" in r["timing"] for r in records):
        for name in ("act_blocks", "blocks"):  # of memory=capture, by all of the batch
            summary[name] = sum(r["timing"].get(name, 0) for r in records)
    summary["seconds"] = seconds_at_work(records)
    verifier = as_dict(config.verifier, resolve=True)
    summary["parameters"] = run_parameters(config.model.name, verifier)
    summary["made_by"] = goes
    summary["sittings"] = len(goes)
    if len(goes) > 1 and (why := [w for go in goes if (w := go.get("samples_depend_on_batch"))]):
        summary["samples_depend_on_sittings"] = why[0]
    return summary


def seconds_at_work(records: Sequence[dict[str, Any]]) -> float:
    """Seconds in which at least one problem was under way; the time between two sittings of a run
    is none of them."""
    timings = [record["timing"] for record in records]
    total = 0.0
    until = float("-inf")
    for start, end in sorted((t["finished_at"] - t["wall_s"], t["finished_at"]) for t in timings):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def approximations(records: Sequence[dict[str, Any]]) -> dict[str, int]:
    usages = [r["usage"] for r in records]
    return {
        "problems_not_verified": sum(bool(u.get("verifications_skipped")) for u in usages),
        "branches_stopped_by_the_gate": sum(u.get("gated_branches", 0) for u in usages),
        "layer_rows_left_out_of_verification": sum(
            u.get("exit_layer_rows_saved", 0) for u in usages
        ),
        "tokens_on_a_similar_prompt": sum(u.get("substituted_tokens", 0) for u in usages),
    }


def approximations_by_settings(
    setting: Callable[[str], Any], summary: Mapping[str, Any], records: Sequence[dict[str, Any]]
) -> dict[str, int]:
    """Tokens that a setting makes approximate wherever they stand in a run: no pass counts them.

    setting: gives the value of a setting by its name, None where there is none. The KV of other
    models, as reward models, is neither kept in 8 bits nor read by streaming heads.
    """
    own = summary["prompt_tokens"] + summary["generated_tokens"]
    counts = {}
    if setting("model.int8_activations"):
        counts["tokens_with_activations_in_8_bits"] = own + summary["verifier_tokens"]
    if setting("memory._target_") == "ttc.QuantizedKV":
        counts["tokens_with_kv_in_8_bits"] = own
    if setting("memory.streaming_heads") is not None:
        seen = setting("memory.sink_tokens") + setting("memory.window_tokens")
        counts["tokens_for_which_streaming_heads_saw_a_part"] = sum(
            tokens_past(seen, node) for record in records for node in record["tree"]
        )
    return {name: count for name, count in counts.items() if count}


def tokens_past(position: int, node: Mapping[str, Any]) -> int:
    """How many of a tree node's own tokens stand at `position` of their text or later."""
    start = node.get("start", 0)
    return max(0, start + node.get("own_tokens", 0) - max(start, position))


def branch_counts(records: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Of all branches of solved problems, those that a search let go of too (`Result.pruned`): how
    many there are, gave no answer, have no end, or went in circles; and how many votes tied.

    Only where they are not 0: pruned_early, branches let go of before their end; thoughts_unknown,
    an end of thinking that is no mark of the model's. Only final branches vote. Not of records of
    older versions: thoughts_closed_by_limit, thoughts_cut.
    """
    branches = [branch for record in records for branch in counted(record)]
    pruned = sum((Counter(r.get("pruned")) for r in records if not failed(r)), Counter[str]())
    ends = [branch.get("thought_end") for branch in branches if "thought" in branch]
    counts = {
        "count": len(branches),
        "no_answer_read": sum(branch["answer"] is None for branch in branches),
        "without_an_end": sum(b.get("finish_reason", "eos") in WITHOUT_END for b in branches),
        "tied_votes": sum(is_tied(votes(counted(record))[0]) for record in records),
        "looped": sum(branch.get("looped", False) for branch in branches),
        "pruned_early": pruned["early"],
        "thoughts_unknown": sum(branch.get("thought_unknown", False) for branch in branches),
    }
    if None not in ends:
        counts |= {
            "thoughts_closed_by_limit": ends.count("limit"),
            "thoughts_cut": ends.count("cut"),
        }
    rare = ("pruned_early", "thoughts_unknown")
    return {k: n + pruned[k] for k, n in counts.items() if n or k not in rare}


def counts_line(counts: Mapping[str, int]) -> str:
    """`branch_counts` in a line, "" where nothing but their number is to be told."""
    names = [name for name, n in counts.items() if n and name != "count"]
    if not {*names} - {"pruned_early"}:
        return ""
    words = [f"{counts[name]} {name.replace('_', ' ')}" for name in names]
    return f"{counts['count']} in all, {', '.join(words)}"


def is_tied(votes: Sequence[tuple[int, bool]]) -> bool:
    counts = [count for count, _ in votes]
    return len(counts) > 1 and counts.count(max(counts)) > 1


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def means(figures: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The mean of the figures of each name."""
    groups: dict[str, list[float]] = {}
    for name, figure in figures:
        groups.setdefault(name, []).append(figure)
    return {name: mean(values) for name, values in groups.items()}


# ------------------------------------------------------- a question counts once, in all its orders


def question_of(record: Mapping[str, Any]) -> str:
    """The id of the question that a problem asks, in whatever order of its choices."""
    return str(record.get("order_of") or record["id"])


def by_question(
    records: Collection[dict[str, Any]], figure: Callable[[dict[str, Any]], float]
) -> list[float]:
    """A figure of each question, the mean over its orders."""
    if not any("order_of" in record for record in records):
        return [figure(record) for record in records]
    return list(means((question_of(record), figure(record)) for record in records).values())


def interval_of(shares: Sequence[float]) -> list[float]:
    """The 95% interval of the mean of questions' shares of right answers. Questions are
    independent, so that the error of their means is the error clustered by question."""
    if not shares:
        return [0.0, 1.0]
    estimate = accuracy(shares)
    return [estimate.low, estimate.high]


# ---------------------------------------------------------------- what counts, in every table alike


def is_right(record: Mapping[str, Any]) -> bool:
    """One that failed, or has no answer, is not right."""
    return bool(record["correct"]) and not failed(record)


def is_right_strictly(record: Mapping[str, Any]) -> bool:
    """The same where only the form that is asked for counts."""
    return bool(record.get("correct_strict", record["correct"])) and not failed(record)


def counted(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [] if failed(record) else record["branches"]


def by_path(branches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Branches in the order of their tree; in a record they stand best first."""
    return sorted(branches, key=lambda branch: branch["path"])


def widths(records: Sequence[Mapping[str, Any]]) -> list[int]:
    """The powers of two, up to 1024, that every solved problem has candidates for."""
    widest = min((len(counted(r)) for r in records if counted(r)), default=0)
    return [k for k in KS if k <= widest]


def pass_share(record: Mapping[str, Any], k: int) -> float:
    branches = counted(record)
    return pass_at_k(len(branches), sum(b["correct"] for b in branches), k) if branches else 0.0


def majority_share(record: Mapping[str, Any], k: int) -> float:
    branches = counted(record)
    return maj_at_k(*votes(branches), k) if branches else 0.0


def votes(branches: Sequence[dict[str, Any]]) -> tuple[list[tuple[int, bool]], int]:
    """`maj_at_k`'s arguments: how many branches gave each answer, with whether it is right, and how
    many gave none. An answer is right if the first branch that gave it is, in the order of their
    paths: the others were grouped with it.
    """
    right = {vote_of(branch): branch["correct"] for branch in reversed(by_path(branches))}
    counts = Counter(map(vote_of, branches))
    invalid = counts.pop(None, 0)
    return [(count, right[key]) for key, count in counts.items()], invalid
