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
from experiments.runs.stats import wilson
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


def bar_options() -> dict[str, Any]:
    return {
        "ncols": min(WIDTH, shutil.get_terminal_size().columns),
        "leave": False,
        "disable": False,
    }


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
    if sys.stderr.isatty():
        yield from tqdm(
            items, printable(label), total, file=sys.stderr, unit=f" {what}", **bar_options()
        )
        return
    rhythm = Rhythm(every_s)
    for done, item in enumerate(items):
        if rhythm.is_time():
            say(f"{label}: {done} of {total} {what}")
        yield item


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
        self.label = label
        self.total = total
        self.records = records
        self.engine = engine
        self.out = out or sys.stderr
        self.rhythm = Rhythm(every_s)
        self.solved_tokens = 0  # of the problems that this process has solved
        self.tokens = 0  # of those under way too
        self.started = time.monotonic()
        self.bar: tqdm[Any] | None = None
        if self.out.isatty():
            self.bar = tqdm(
                total=total, file=self.out, bar_format=self.bar_format(), **bar_options()
            )
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> ProgressBar:
        self.started = time.monotonic()
        self.rhythm = Rhythm(self.rhythm.every_s)
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
        self.tokens = max(self.tokens, self.solved_tokens + self.tokens_under_way())
        if self.bar is not None:
            self.bar.n = len(self.records)
            self.bar.bar_format = self.bar_format()
            self.bar.refresh()
        elif self.rhythm.is_time():
            print(self.plain_line(), file=self.out, flush=True)

    def tokens_under_way(self) -> int:
        for _ in range(3):
            try:
                usages = {id(b.usage): b.usage for b in getattr(self.engine, "live", ())}
                return sum(usage.generated_tokens for usage in usages.values())
            except RuntimeError:  # branches came or went meanwhile
                continue
        return max(0, self.tokens - self.solved_tokens)

    # ------------------------------------------------------------ what is shown

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / max(time.monotonic() - self.started, 1e-9)

    @property
    def left_s(self) -> float | None:
        """Seconds until the end, if other problems take as many tokens as those so far."""
        if not self.records or not self.tokens:
            return None
        mean = sum(r["usage"]["generated_tokens"] for r in list(self.records.values())) / len(
            self.records
        )
        under_way = self.tokens - self.solved_tokens
        return max(0.0, mean * (self.total - len(self.records)) - under_way) / self.tokens_per_s

    @property
    def accuracy(self) -> tuple[float, float, float] | None:
        """The accuracy so far and the ends of its 95% interval, in percent."""
        done = list(self.records.values())
        if not done:
            return None
        correct = sum(r["correct"] for r in done)
        low, high = wilson(correct, len(done))
        return 100 * correct / len(done), 100 * low, 100 * high

    def bar_format(self) -> str:
        """For tqdm: the label, problems, a bar, and the numbers, which leave room for the bar in 80
        columns."""
        accuracy = (
            [] if self.accuracy is None else ["{:.0f}% [{:.0f}-{:.0f}]".format(*self.accuracy)]
        )
        parts = [
            *accuracy,
            f"{short(self.tokens)} tok",
            f"{short(self.tokens_per_s)}/s",
            *self._room_and_time(),
        ]
        label = printable(self.label[:10]).replace("{", "(").replace("}", ")")
        return f"{label} {{n_fmt}}/{{total_fmt}} |{{bar}}| " + " ".join(parts)

    def plain_line(self) -> str:
        parts = [
            f"{len(self.records)} of {number_of(self.total, 'problem')}",
            number_of(self.tokens, "token"),
        ]
        parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
        if self.accuracy is not None:
            parts.append("{:.0f}% right [95%: {:.0f}% to {:.0f}%]".format(*self.accuracy))
        return ", ".join([*parts, *self._room_and_time()])

    def _room_and_time(self) -> Iterator[str]:
        if hasattr(self.engine, "kv_bytes") and (kv := self.engine.kv_bytes()):
            yield f"KV {as_bytes(kv)}"
        if (left := self.left_s) is not None:
            yield f"{as_time(left)} left"


def short(number: float) -> str:
    """A number in at most five characters: 999, 12.3k, 4.5M."""
    for unit in ("", "k", "M"):
        if number < 999.5:
            return f"{number:.{1 if unit and number < 99.95 else 0}f}{unit}"
        number /= 1000
    return f"{number:.1f}G"


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
