"""How a command ends when it does not end well: one sentence, a status, a signal; no traceback."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

import bloomlock

if TYPE_CHECKING:
    from collections.abc import Iterator

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

_HELP_ASKED = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What newer click raises for a group without a command; its message is the whole help."""
_LOST = 'call reattach() to go on with what is there now, or use on_lost="recreate"'


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
def report_errors() -> Iterator[None]:
    """Turn what can go wrong outside of this program into a Failure; show log lines as ours."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warn(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("bloomlock")
    logger.addHandler(handler)
    try:
        yield
    except (BrokenPipeError, click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:
        message = _message_of(error)
        if message is None:
            raise
        raise Failure("; ".join([message, *getattr(error, "__notes__", ())])) from error
    finally:
        logger.removeHandler(handler)


def _message_of(error: Exception) -> str | None:
    # redis-py is not imported before there is an error.
    from redis.exceptions import RedisError, ResponseError  # noqa: PLC0415

    if isinstance(error, ResponseError):
        return f"the server says: {error}"
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return f"{where}{error.strerror or error}"
    is_known = isinstance(error, (bloomlock.errors.BloomlockError, RedisError))
    return sentence(str(error) or type(error).__name__) if is_known else None


def warn(message: str) -> None:
    if sys.stderr is not None:
        line = " ".join(message.split())
        print(f"bloomlock: {line}", file=sys.stderr, flush=True)  # noqa: T201 - what it is for


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


def die(number: int) -> None:
    # A shell has to know that it did not end by itself.
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(SIGNALLED + number)
