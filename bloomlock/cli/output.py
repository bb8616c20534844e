"""What a command writes: tables, JSON; one sentence and a status when it does not end well."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import click

import bloomlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TextIO

# The exit statuses; `bloomlock --help` has them too.
NO = 1
ERROR = 2
NOT_RUNNING = 3
"""Of `server status`, as `systemctl status` and init scripts answer."""
BUSY = 75
"""A lock or a claim is not to be had, or was lost: EX_TEMPFAIL of sysexits.h."""
CANNOT_RUN = 126
NOT_FOUND = 127
SIGNALLED = 128
"""And the number of the signal."""

_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HELP_ASKED = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What newer click raises for a group without a command; its message is the whole help."""
_LOST = 'call reattach() to go on with what is there now, or use on_lost="recreate"'


class Failure(click.ClickException):
    def __init__(self, message: str, status: int = ERROR) -> None:
        super().__init__(message)
        self.exit_code = status  # type: ignore[misc]  # click has one for each class


class Stopped(BaseException):
    """A signal, its argument, asked this process to end; nothing that catches errors sees it."""


def noted_signals() -> Callable[..., None]:
    """From now on note the first signal that asks for the end; the second one ends the process.

    Returns a function that raises Stopped if one came, with any arguments, as `progress=` has some.
    """
    noted: list[int] = []

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        signal.signal(number, signal.SIG_DFL)

    def check(*_: int) -> None:
        if noted:
            raise Stopped(noted[0])

    for number in _CAUGHT:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, note)
    return check


def die(number: int) -> NoReturn:
    # A shell has to know that it did not end by itself.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(SIGNALLED + number)


# -- sentences on standard error -------------------------------------------------------------------


class ShownLog(logging.Handler):
    """Shows log lines of the library as ours."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def warn(message: str) -> None:
    if sys.stderr is not None:
        line = " ".join(message.split())
        print(f"bloomlock: {line}", file=sys.stderr, flush=True)  # noqa: T201 - what it is for


def opened(stream: TextIO | None, name: str) -> TextIO:
    if stream is None:
        raise Failure(f"{name} is closed")
    return stream


def say(error: click.ClickException) -> int:
    message = error.format_message()
    if isinstance(error, _HELP_ASKED):
        click.echo(message, err=True)
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        warn(f"{message.rstrip('.')} (see {error.ctx.command_path} --help)")
    else:
        warn(message)
    return error.exit_code


def message_of(error: Exception) -> str | None:
    """Return a sentence on what can go wrong outside of this program; None: it is a fault of it."""
    # redis-py is not imported before there is an error.
    from redis.exceptions import RedisError, ResponseError  # noqa: PLC0415

    if isinstance(error, ResponseError):
        message = f"the server says: {error}"
    elif isinstance(error, OSError):
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        message = f"{where}{error.strerror or error}"
    elif isinstance(error, (bloomlock.errors.BloomlockError, RedisError)):
        message = sentence(str(error) or type(error).__name__)
    elif isinstance(error, MemoryError):
        message = "there is not enough memory"
    elif isinstance(error, ModuleNotFoundError) and f"{error.name}.".startswith("scrapy."):
        message = "crawls need Scrapy: pip install 'bloomlock[scrapy]'"
    else:
        return None
    return "; ".join([message, *getattr(error, "__notes__", ())])


def sentence(message: str) -> str:
    """Return a message of the library in the words of the command line."""
    message = message.replace(_LOST, "run the command again")
    return re.sub("^(client|url) must be( a redis-py client or)?", "the server must be", message)


# -- tables and JSON -------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Write JSON; items are texts there, and times are seconds."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(one: object) -> object:
    return one.total_seconds() if isinstance(one, timedelta) else text_of(one)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Write names and values, one a line; what is None or empty is left out."""

    def text(name: str, value: object) -> str:
        if name.endswith("bytes") and isinstance(value, (int, float)):
            return size_text(value)
        if name.endswith("_s") and isinstance(value, float):
            return f"{value * 1e6:.1f} us" if value < 1 else str(timedelta(seconds=value))
        return f"{value:.3g}" if isinstance(value, float) else f"{value}"

    filled = {name: value for name, value in fields.items() if value not in {None, ""}}
    print_table((name.replace("_", " "), text(name, value)) for name, value in filled.items())


def print_table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), left: int = 99) -> None:
    click.echo(table_text(rows, head, left))


def table_text(rows: Iterable[Sequence[str]], head: Sequence[str], left: int) -> str:
    """Write a table; the columns from the `left`-th on are numbers and stand at the right."""
    filled = [[printable(cell) for cell in row] for row in ([head] if head else []) + [*rows]]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    places = [("<" if index < left else ">") + str(width) for index, width in enumerate(widths)]
    lines = (map(format, row, places) for row in filled)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def text_of(item: object) -> str:
    return item.decode(errors="backslashreplace") if isinstance(item, bytes) else str(item)


def printable(text: str) -> str:
    """Return a text that does nothing to a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def is_terminal(stream: TextIO | None) -> bool:
    # None: it was closed before the command began.
    return stream is not None and stream.isatty()


def shown(name: str) -> str:
    """Return a name as it is, but at a terminal one that does nothing to it."""
    return printable(name) if is_terminal(sys.stdout) else name


def size_text(number: float) -> str:
    # rich takes a quarter of the time of a short command.
    from rich.filesize import decimal  # noqa: PLC0415

    return decimal(int(number))
