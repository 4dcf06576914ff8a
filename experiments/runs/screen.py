"""What a run shows while it works: its progress, and what is logged."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from threading import Event, Thread
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from experiments.cli.output import say
from experiments.cli.printable import printable
from experiments.runs.private import without_quotes
from experiments.runs.summary import by_question, interval_of, mean
from ttc.errors import number_of

WIDTH = 80
"""Columns of a line of progress."""
LATER = 0.1
"""Plain lines come more rarely the longer it takes: after this share of the time so far."""


class OnScreen(logging.Handler):
    """Shows what is logged as a line above the bar, where there is one."""

    def __init__(self, private: bool = False):
        super().__init__()
        self.private = private

    def emit(self, record: logging.LogRecord) -> None:
        text = without_quotes(record.getMessage()) if self.private else self.format(record)
        tqdm.write(printable(text), file=sys.stderr)


def show_logged(private: bool = False) -> None:
    """Let what `ttc` logs come to the screen, whatever Python's logging was set to; of private data
    without its texts."""
    logger = logging.getLogger("ttc")
    logger.disabled = False
    logger.setLevel(logging.WARNING)
    logger.handlers = [h for h in logger.handlers if not isinstance(h, OnScreen)]
    logger.addHandler(OnScreen(private))


T = TypeVar("T")


def bar(label: str, total: int | None, out: TextIO, what: str) -> tqdm[Any]:
    columns = min(WIDTH, shutil.get_terminal_size().columns)
    return tqdm(
        total=total,
        desc=printable(label[:9]),
        file=out,
        unit=what,
        bar_format="{desc} {n_fmt}/{total_fmt} |{bar}|{postfix}",
        ncols=columns,
        leave=False,
        disable=False,
    )


def with_progress(
    items: Iterable[T],
    label: str,
    what: str = "problems",
    every_s: float = 30.0,
    total: int | None = None,
) -> Iterator[T]:
    """The items one by one, and how far it is: a bar on a terminal, elsewhere a plain line now and
    then (see `Rhythm`).

    total: how many there are, of what has no length.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    meter = bar(label, total, sys.stderr, f" {what}") if sys.stderr.isatty() else None
    rhythm = Rhythm(every_s)
    for done, item in enumerate(items):
        if meter is None and rhythm.is_time():
            say(f"{label}: {done} of {total} {what}")
        yield item
        if meter is not None:
            meter.update()
    if meter is not None:
        meter.close()


class Rhythm:
    """When a plain line is due: `every_s` seconds after the last one, and later a tenth of the time
    so far, so that ten hours take about 60 lines."""

    def __init__(self, every_s: float):
        self.every_s = every_s
        self.started = self.last = time.monotonic()

    def is_time(self) -> bool:
        now = time.monotonic()
        if now - self.last < max(self.every_s, LATER * (self.last - self.started)):
            return False
        self.last = now
        return True


class ProgressBar:
    """How far a run is: a bar on a terminal, elsewhere a plain line now and then.

    total: the problems of the run. records: those that are done, which grows as the run goes on.
    engine: a thread asks it twice a second for the tokens under way and the KV in use. every_s:
    seconds between two plain lines, at first (see `Rhythm`).
    """

    def __init__(
        self,
        label: str,
        total: int,
        records: Mapping[str, dict[str, Any]],
        engine: Any,
        *,
        out: TextIO | None = None,
        every_s: float = 30.0,
    ):
        self.total = total
        self.records = records
        self.engine = engine
        self.out = out or sys.stderr
        self.rhythm = Rhythm(every_s)
        self.solved_tokens = 0  # of the problems that this process has solved
        self.tokens = 0  # of those under way too
        self.bar = bar(label, total, self.out, " problems") if self.out.isatty() else None
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> ProgressBar:
        self.show()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.bar is not None:
            self.bar.close()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self.show()

    def solved(self, tokens: int) -> None:
        self.solved_tokens += tokens

    def note(self, text: str) -> None:
        tqdm.write(printable(text), file=self.out)

    def show(self) -> None:
        self.tokens = max(self.tokens, self.solved_tokens + self._tokens_under_way())
        if self.bar is not None:
            self.bar.n = len(self.records)
            self.bar.set_postfix_str(" ".join(self.figures()))
        elif self.rhythm.is_time():
            done = f"{len(self.records)} of {number_of(self.total, 'problem')}"
            print(", ".join([done, *self.figures()]), file=self.out, flush=True)

    def _tokens_under_way(self) -> int:
        try:
            usages = {id(b.usage): b.usage for b in getattr(self.engine, "live", ())}
        except RuntimeError:  # branches came or went meanwhile
            return 0
        return sum(usage.generated_tokens for usage in usages.values())

    def figures(self) -> Iterator[str]:
        """Tokens, and those a second; the accuracy so far with its 95% interval; the KV in use; the
        time left."""
        speed = self.tokens / max(time.monotonic() - self.rhythm.started, 1e-9)
        yield f"{tqdm.format_sizeof(self.tokens)} tok"
        yield f"{tqdm.format_sizeof(speed)}/s"
        if done := list(self.records.values()):
            shares = by_question(done, lambda record: record["correct"])
            ends = (100 * share for share in (mean(shares), *interval_of(shares)))
            yield "{:.0f}% [{:.0f}-{:.0f}]".format(*ends)
        if hasattr(self.engine, "kv_bytes") and (kv := self.engine.kv_bytes()):
            yield f"KV {as_bytes(kv)}"
        if done and self.tokens:  # other problems may take as many tokens as those so far
            each = mean([r["usage"]["generated_tokens"] for r in done])
            under_way = self.tokens - self.solved_tokens
            left = max(0.0, each * (self.total - len(done)) - under_way) / speed
            yield f"{as_time(left)} left"


def as_bytes(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1023.5:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.{1 if nbytes < 99.95 else 0}f} GiB"


def as_time(seconds: float) -> str:
    """2:05, or 1h02 from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours else f"{minutes}:{rest:02}"
