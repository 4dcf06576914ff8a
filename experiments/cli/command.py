"""What every command does around its work: a first line at once, a quiet screen, errors in a line,
Ctrl-C and SIGTERM."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from experiments.cli.output import say, show
from experiments.cli.package_check import check
from experiments.cli.printable import printable
from experiments.cli.quiet import quiet

STOPPED, TERMINATED = 130, 143
"""The exit codes after Ctrl-C and after SIGTERM, as a shell has them."""

HELP = {"-h", "--help"}

FULL_ERRORS = "HYDRA_FULL_ERROR"
"""Hydra's environment variable: where it is 1, an error comes with its traceback."""


def of_part(name: str) -> None:
    """Do what the command of a part does, or say which part is missing."""
    from ttc.errors import MissingPart
    from ttc.parts import handler

    try:
        main = handler("command", name)
    except MissingPart as error:
        raise SystemExit(f"error: {error}") from None
    main()


def perform_or_help(
    work: Callable[[], Any], page: str, command: str, stopped: str = "stopped"
) -> None:
    """As `perform`; where --help was typed, print that page of `experiments.cli.help`."""
    if HELP & set(sys.argv[1:]):
        from experiments.cli import help

        show(help.page(page), end="")
    else:
        perform(work, command, stopped)


@contextmanager
def _environment_kept() -> Iterator[None]:
    """What a command sets in the environment, and leaves out of warnings, ends with it."""
    before = dict(os.environ)
    with warnings.catch_warnings():
        try:
            yield
        finally:
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)


@contextmanager
def _told_to_end() -> Iterator[list[int]]:
    """Within, SIGTERM, as a scheduler sends where a job's time is up, does what Ctrl-C does. Gives
    the signals that came."""
    came = list[int]()

    def stop(number: int, _: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)


@_environment_kept()
def perform(work: Callable[[], Any], command: str, stopped: str = "stopped") -> None:
    """Say what is started, then import and do it; ends the process with `work`'s exit code, if it
    returns one.

    command: what the user typed. stopped: what Ctrl-C and SIGTERM say, unless `work` knows more.
    """
    say(f"starting: {command}")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a sign gets its code
        sys.stdout.reconfigure(errors="backslashreplace")
    check()
    quiet()
    full = os.environ.get(FULL_ERRORS) == "1"
    try:
        with _told_to_end() as came:
            code = work()
    except KeyboardInterrupt as stop:
        say(f"\n{stop.args[0] if stop.args else stopped}")
        raise SystemExit(TERMINATED if came else STOPPED) from None
    except SystemExit as exit:
        from ttc.origin import error_text, raised_by_user

        if full or not raised_by_user(exit):
            raise
        raise SystemExit(printable(f"error: {error_text(exit)}")) from exit
    except Exception as error:
        from experiments.cli.refusals import reason

        if full or (text := reason(error)) is None:
            raise
        raise SystemExit(printable(f"error: {text}")) from error
    if code:
        raise SystemExit(code)
