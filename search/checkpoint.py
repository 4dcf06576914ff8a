"""What an ask/tell search was told, in a file: told again, it leads to the same state."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from search.asked_backend import Told
from ttc import __version__
from ttc.errors import InvalidInput, refusing

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """The answers of a search's trials, by their ids.

    file: None for a search that keeps none. made_by: the settings that the trials depend on.
    stopped: whether the search was stopped then.
    """

    file: Path | None
    made_by: Mapping[str, Any]
    answers: Mapping[str, Told] = field(default_factory=dict)
    stopped: bool = False

    @classmethod
    def at(cls, path: str | os.PathLike[str] | None, made_by: Mapping[str, Any]) -> Checkpoint:
        """What a file holds, or an empty one where there is none.

        Raises InvalidInput for a file that cannot be read, and for one of other settings.
        """
        if path is None:
            return cls(None, made_by)
        file = Path(path)
        made_by = {"format": FORMAT, "version": __version__, **made_by}
        if not file.exists():
            if not file.parent.is_dir():
                raise InvalidInput(f"there is no folder {file.parent} for the checkpoint; make it")
            return cls(file, made_by)
        with (
            refusing(OSError, f"cannot read the checkpoint {file}: {{error}}"),
            refusing(
                (AttributeError, KeyError, TypeError, ValueError),
                f"{file} is no checkpoint of ask_tell ({{kind}}: {{error}}); give "
                "another path, or delete it",
            ),
        ):
            values = json.loads(file.read_text(encoding="utf-8"))
            before, stopped = dict(values["made_by"]), bool(values["stopped"])
            answers = {
                name: Told(**{**one, "scores": tuple(one["scores"])})
                for name, one in values["told"].items()
            }
        if changes := list(differences(before, json.loads(json.dumps(made_by)))):
            raise InvalidInput(
                f"{file} is the checkpoint of something else:\n" + "\n".join(changes) + "\ngive "
                "the settings that it was made with, or another path"
            )
        return cls(file, made_by, answers, stopped)

    def save(self) -> None:
        """Write the file so that a kill leaves the old one or the new one."""
        if self.file is None:
            return
        answers = {name: asdict(one) for name, one in self.answers.items()}
        values = {"made_by": self.made_by, "stopped": self.stopped, "told": answers}
        new = self.file.with_name(f"{self.file.name}.new")
        with refusing(OSError, f"cannot write the checkpoint {self.file}: {{error}}"):
            with new.open("w", encoding="utf-8") as out:
                json.dump(values, out, indent=1)
                out.flush()
                os.fsync(out.fileno())
            os.replace(new, self.file)


def described(value: Any) -> Any:
    """A setting as JSON can hold it: a dataclass by its fields, anything else by its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        values = {f.name: described(getattr(value, f.name)) for f in fields(value) if f.repr}
        return {"class": _name(type(value)), **values}
    if isinstance(value, Mapping):
        return {str(key): described(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [described(one) for one in value]
    return _name(value if hasattr(value, "__qualname__") else type(value))


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*before, *now)):
            inner = f"{name}.{key}" if name else key
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield f"  {name}: {before!r} there, {now!r} here"


def _name(of: Any) -> str:
    return f"{of.__module__}.{of.__qualname__}"
