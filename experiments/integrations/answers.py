"""Answers that are kept in a file, so that what was asked once is not computed again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Answers:
    """Answers by their questions, apart for each configuration.

    file: where they are kept, None for nowhere. identity: all that an answer depends on apart from
    its question.
    reused: how many were there already.
    """

    def __init__(self, file: str | None, identity: Mapping[str, Any]):
        self.reused = 0
        self.identity = json.dumps(identity, sort_keys=True, default=str)
        self.stored: Any = {}
        if file is not None:
            from sqlitedict import SqliteDict

            Path(file).parent.mkdir(parents=True, exist_ok=True)
            self.stored = SqliteDict(file, autocommit=True, encode=json.dumps, decode=json.loads)
        self.kept = file is not None

    def get(self, question: Sequence[Any]) -> Any:
        """The answer, None where it is not known."""
        answer = self.stored.get(self._key(question)) if self.kept else None
        self.reused += answer is not None
        return answer

    def keep(self, question: Sequence[Any], answer: Any) -> None:
        if self.kept:
            self.stored[self._key(question)] = answer

    def _key(self, question: Sequence[Any]) -> str:
        return hashlib.sha256(
            json.dumps([self.identity, *question], sort_keys=True).encode()
        ).hexdigest()
