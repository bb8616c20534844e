"""How a command ends when it does not end well: one sentence, a status, a signal; no traceback."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import click

import bloomlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


class ShownLog(logging.Handler):
    """Shows log lines of the library as ours."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


LOG = ShownLog(logging.WARNING)


class Failure(click.ClickException):
    def __init__(self, message: str, status: int = ERROR) -> None:
        super().__init__(message)
        self.exit_code = status  # type: ignore[misc]  # click has one for each class


class Stopped(BaseException):
    """A signal asked this process to end; not an error, and nothing that catches errors sees it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@contextmanager
def noted_signals() -> Iterator[Callable[..., None]]:
    """Note the first signal that asks for the end; the second one ends the process at once.

    Yields a function that raises Stopped if one came, with any arguments, as `progress=` has some.
    """
    noted: list[int] = []

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        signal.signal(number, signal.SIG_DFL)

    def check(*_: int) -> None:
        if noted:
            raise Stopped(noted[0])

    caught = [number for number in _CAUGHT if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in caught}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    elif isinstance(error, ModuleNotFoundError) and f"{error.name}.".startswith("scrapy."):
        message = "crawls need Scrapy: pip install 'bloomlock[scrapy]'"
    else:
        return None
    return "; ".join([message, *getattr(error, "__notes__", ())])


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


def sentence(message: str) -> str:
    """Return a message of the library in the words of the command line.

    >>> sentence("client must be a redis-py client or a URL that starts with redis://")
    '--url must be a URL that starts with redis://'
    """
    message = message.replace(_LOST, "run the command again")
    return re.sub("^(client|url) must be( a redis-py client or)?", "--url must be", message)


def die(number: int) -> NoReturn:
    # A shell has to know that it did not end by itself.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(SIGNALLED + number)
