"""A run's folder: its configuration, and one record per problem that survives whatever ends the
run."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from sys import intern
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from experiments.runs.config_values import changed_values, flat, listed
from experiments.runs.fingerprint import differences
from experiments.runs.reading import (
    NEEDED,
    each_record,
    read_fingerprint,
    read_provenance,
    read_settings,
)
from experiments.runs.shards import Shard
from ttc.errors import InvalidInput, TTCError, number_of, on_failure, refusing
from ttc.results import BranchRecord, Node
from ttc.text.equality import canonical

MAY_CHANGE = (
    "run.batch",
    "memory.problems",
    "run.output_dir",
    "run.show_questions",
    "run.dry",
    "run.show_example",
    "run.retry_failed",
    "run.record_tokens",
    "run.shard",
    "run.threads",
    "dataset.limit",
    "dataset.size",
    "dataset.orders",
    "backend.base_url",
    "backend.key_env",
    "backend.concurrency",
    "backend.timeout_s",
    "backend.retries",
    "backend.wait_s",
    "processbench.data",
    "processbench.limit",
    "processbench.threshold",
    "processbench.batch",
)
"""Keys that may differ when a run goes on: they change which problems are left, or what is kept of
them, never an answer."""


TEXTS = ("question", "prompt", "gold", "answer")
"""What is not `kept` of a record."""

BRANCH = ("path", "correct", "finish_reason", "looped", "thought_end", "thought_unknown")
"""What is kept of a branch beside its answer."""

BRIEF_CHARS = 64
"""Longer answers are kept as their hash."""


def check_name(name: str) -> str:
    """The name of a run, which is that of one folder under run.output_dir."""
    fits = re.fullmatch(r"(?!\.{1,2}$)[^/\\\x00-\x1f]{1,255}", name)
    if not fits or len(os.fsencode(name)) > 255:
        raise InvalidInput(
            f"run.name={name!r} is not the name of one folder (no slash, not . or .., at most 255 "
            "bytes); run.output_dir says where the folder lies"
        )
    return name


def run_folder(config: DictConfig) -> Path:
    name = check_name(config.run.name)
    shard = Shard.of_run(config)
    return Path(config.run.output_dir) / (name if shard is None else shard.name(name))


class RunFolder:
    """The files of `outputs/<name>/`, locked against other processes.

    needed: what each record must have. records: by id, what is `kept` of each. goes: what each
    sitting that wrote records was made by. Raises InvalidInput when the folder was made with
    another configuration or is in use.
    """

    def __init__(self, config: DictConfig, needed: Sequence[str] = NEEDED):
        self.path = run_folder(config)
        self.needed = needed
        self.records: dict[str, dict[str, Any]] = {}
        self.goes: list[dict[str, Any]] = []
        # to be written with the next record:
        self._inputs: dict[str, dict[str, str]] | None = None
        self._made: list[dict[str, Any]] = []
        self._forgotten = set[str]()
        self._lock = self._locked()
        with on_failure(self.close):
            self._config: str | None = self._checked(config)
            self.records = self._read()

    def close(self) -> None:
        """Let others use the folder; that of a run that could not start is removed."""
        with suppress(OSError):
            if {file.name for file in self.path.iterdir()} <= {".lock"}:
                (self.path / ".lock").unlink()
                self.path.rmdir()
        self._lock.release()

    def _locked(self) -> BaseFileLock:
        lock = FileLock(self.path / ".lock")
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            with refusing(
                Timeout,
                f"{self.path} is in use by another process; wait for it or choose another run.name",
            ):
                lock.acquire(blocking=False)
        return lock

    def check_inputs(self, now: dict[str, dict[str, str]]) -> None:
        """Keep the fingerprint, to be written with the next record. Raises InvalidInput if the
        records were made from something else."""
        before = read_fingerprint(self.path) if self.records else {}
        if before:
            marks = before.get("data", {})
            before["data"] = {name: marks[name] for name in marks if name in self.records}
        if changed := listed(differences(before, now)):
            raise InvalidInput(
                f"{self.path} holds results from other data, weights or code, which lay under the "
                "same names:\n"
                f"{changed}\nchoose another run.name, or delete the folder to start over; if the "
                f"change does not matter, delete {self.path / 'fingerprint.json'}"
            )
        self._inputs = {kind: before.get(kind, {}) | now.get(kind, {}) for kind in before | now}

    def made_by(self, *entries: dict[str, Any]) -> None:
        """Keep what this go is made by, to be written with its first record; several, for records
        of several runs."""
        if self.records:
            self.goes = read_provenance(self.path)
        self._made = [go for i, go in enumerate(entries) if go not in (*self.goes, *entries[:i])]

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, *records: dict[str, Any]) -> None:
        """Write records for good: in one piece, flushed to the disk."""
        lines = as_lines(records)
        self._write_config()
        with self._writing(), (self.path / "records.jsonl").open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self.records |= {record["id"]: kept(record) for record in records}

    def count_written(self) -> int:
        """How many records the file has. A Ctrl-C may have come once one was written, before it was
        among `records`."""
        file = self.path / "records.jsonl"
        return len({record["id"] for record, _ in self._each()}) if file.exists() else 0

    def forget(self, ids: Collection[str]) -> None:
        """Take records out, so that their problems are solved again. The file loses them when the
        next record or the summary is written: a command that is refused takes nothing away."""
        self._forgotten |= self.records.keys() & set(ids)
        self.records = {n: record for n, record in self.records.items() if n not in ids}

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._made = []
        self._write_config()
        self._write("summary.json", [as_json(summary, 2)])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                way = "make room"
            elif isinstance(error, FileExistsError | NotADirectoryError):
                way = "a file has the name of a folder on this path; move it"
            else:
                way = "make the folder writable"
            raise TTCError(
                f"cannot write to {self.path} ({error.strerror}); what was written so far is safe "
                f"({number_of(self._safe(), 'record')}): {way}, or give run.output_dir, "
                "and run the same command to go on"
            ) from error

    def _safe(self) -> int:
        """How many records there are, also before they were read. One whose writing failed does
        not count."""
        if self.records:
            return len(self.records)
        with suppress(TTCError, OSError):
            return self.count_written()
        return 0

    def _write_config(self) -> None:
        """Only with the first result, so that a run that could not start leaves its name free."""
        if self._config is not None:
            self._write("config.yaml", [self._config])
            self._config = None
        if self._inputs is not None:
            self._write("fingerprint.json", [as_json(self._inputs)])
            self._inputs = None
        if self._made:
            self.goes = [*self.goes, *self._made]
            self._write("provenance.json", [as_json(self.goes)])
            self._made = []
        if self._forgotten:
            left = (record for record, _ in self._each() if record["id"] not in self._forgotten)
            self._write("records.jsonl", (as_lines([record]) for record in left))
            self._forgotten = set()

    def _each(self) -> Iterator[tuple[dict[str, Any], int]]:
        return each_record(self.path / "records.jsonl", self.needed)

    def _write(self, name: str, texts: Iterable[str]) -> None:
        """Write a file so that a kill leaves the old one or the new one."""
        file = self.path / name
        new = self.path / f"{name}.new"
        with self._writing():
            with new.open("w", encoding="utf-8") as out:
                out.writelines(texts)
                out.flush()
                os.fsync(out.fileno())
            os.replace(new, file)

    def _checked(self, config: DictConfig) -> str:
        """The configuration as text, once it agrees with the one that the folder was made with."""
        file = self.path / "config.yaml"
        resolved = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
        before = flat(read_settings(file)) if file.exists() else flat(resolved)
        if changed := listed(changed_values(before, flat(resolved), MAY_CHANGE)):
            raise InvalidInput(
                f"{self.path} holds a run with another configuration:\n{changed}\nchoose another "
                "run.name, or delete the folder to start over"
            )
        return OmegaConf.to_yaml(resolved)

    def _read(self) -> dict[str, dict[str, Any]]:
        """The records; a last line that was torn by a kill is cut off the file."""
        file = self.path / "records.jsonl"
        if not file.exists():
            return {}
        records = {}
        good = 0
        for record, end in self._each():
            records[record["id"]] = kept(record)
            good = end
        if good < file.stat().st_size:
            with file.open("r+b") as torn:
                torn.truncate(good)
        return records


def kept(record: dict[str, Any]) -> dict[str, Any]:
    """What a run that goes on keeps of a record that is written: what its summary adds up, and no
    texts. What is the same in many records is one object."""
    short = {intern(name): value for name, value in record.items() if name not in TEXTS}
    for name in ("usage", "timing"):
        if name in short:
            short[name] = {intern(key): value for key, value in short[name].items()}
    if "branches" in short:
        short["branches"] = [_kept_branch(branch) for branch in short["branches"]]
    if "tree" in short:
        short["tree"] = [_node(n.get("start", 0), n.get("own_tokens", 0)) for n in short["tree"]]
    return short


def _kept_branch(branch: dict[str, Any]) -> dict[str, Any]:
    short = {name: branch[name] for name in BRANCH if name in branch}
    if "thought" in branch:
        short["thought"] = ""  # that there was one is counted
    return short | {"answer": _brief(branch["answer"]), "vote": _brief(vote_of(branch))}


@lru_cache(2**16)
def _node(start: int, own_tokens: int) -> dict[str, int]:
    """What is kept of a node of the tree."""
    return {"start": start, "own_tokens": own_tokens}


def _brief(answer: str | None) -> str | None:
    """A long answer, as a program, by its hash: equal ones stay equal."""
    if answer is None or len(answer) <= BRIEF_CHARS:
        return answer and intern(str(answer))
    return sha256(answer.encode(errors="surrogatepass")).hexdigest()


def own_figures(branch: BranchRecord) -> dict[str, Any]:
    """What the model's probabilities say of a branch, for rules that choose by them; None is what
    was not measured.

    logprob, self_certainty: means over the tokens (see `ttc.draws.Draws`). confidences: each
    token's C_t (DeepConf), minus the mean log-probability of the 20 likeliest. The last two need
    `search.statistics=true`.
    """
    confidences = [round(-value, 3) for value in branch.top_k_logprobs if math.isfinite(value)]
    return {
        "logprob": _mean(branch.logprobs),
        "self_certainty": _mean(branch.self_certainties),
        "confidences": confidences or None,
    }


def tree_node(node: Node, with_tokens: bool) -> dict[str, Any]:
    """A node of a record's tree. with_tokens: also its tokens and their log-probabilities."""
    row = node.to_dict()
    token_ids = row.pop("token_ids")
    logprobs = row.pop("logprobs")
    row["own_tokens"] = len(token_ids)
    if not row["thought"]:
        del row["thought"]
    if with_tokens:
        row["token_ids"] = token_ids
        row["logprobs"] = [None if value is None else round(value, 6) for value in logprobs]
    return row


def chosen_branch(record: dict[str, Any]) -> dict[str, Any] | None:
    """The branch that gave a problem's answer: the best candidate with that answer."""
    votes = {branch["answer"]: vote_of(branch) for branch in reversed(record["branches"])}
    vote = votes.get(record["answer"], canonical(record["answer"]))
    same = [branch for branch in record["branches"] if vote_of(branch) == vote]
    return next(iter([*same, *record["branches"]]), None)


def vote_of(branch: dict[str, Any]) -> str | None:
    """What a branch of a record votes for: what the grader's equality made it when it was
    written."""
    return branch["vote"] if "vote" in branch else canonical(branch["answer"])


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if not math.isnan(value)]
    mean = sum(finite) / len(finite) if finite else math.nan
    return mean if math.isfinite(mean) else None


def as_json(value: Any, indent: int = 1) -> str:
    return _encodable(json.dumps(value, indent=indent, ensure_ascii=False)) + "\n"


def as_lines(records: Iterable[dict[str, Any]]) -> str:
    return "".join(
        _encodable(json.dumps(record, ensure_ascii=False, allow_nan=False)) + "\n"
        for record in records
    )


def _encodable(text: str) -> str:
    """JSON with lone surrogates, which no file can hold, as escapes."""
    return text.encode(errors="backslashreplace").decode()
