"""Files that a command needs only while it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ttc.errors import TTCError, refusing


@contextmanager
def temporary_folder(prefix: str = "ttc-", within: Path | None = None) -> Iterator[Path]:
    """A folder that is removed at the end. within: None for where TMPDIR says."""
    with temporary_errors(within):
        place = TemporaryDirectory(prefix=prefix, dir=within, ignore_cleanup_errors=True)
    with place:
        yield Path(place.name)


@contextmanager
def temporary_errors(folder: Path | None) -> Iterator[None]:
    """Raise TTCError that names the folder and the way out where it cannot be written to."""
    where = folder or os.environ.get("TMPDIR", "/tmp")
    with refusing(
        OSError,
        f"cannot write temporary files to {where} ({{error}}); make room there, or name another "
        "folder, as in TMPDIR=/big/folder",
        TTCError,
    ):
        yield
