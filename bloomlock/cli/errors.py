"""How a command ends when it does not end well: one sentence, a status, a signal; no traceback."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

import bloomlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.exceptions import RedisError

NO = 1
ERROR = 2
_SIGNAL_STATUS = 128

_HELP_ASKED = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What newer click raises for a group without a command; its message is the whole help."""


class Failure(click.ClickException):
    exit_code = ERROR


class Stopped(BaseException):
    """A signal asked this process to end; not an error, and nothing that catches errors sees it.

    Attributes:
        signal: Which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn what can go wrong outside of this program into a Failure; show log lines as ours."""
    handler = _OneLine()
    logger = logging.getLogger("bloomlock")
    logger.addHandler(handler)
    try:
        yield
    except (BrokenPipeError, click.ClickException, click.exceptions.Exit):
        raise
    except _reported() as error:
        raise failure_of(error) from error
    finally:
        logger.removeHandler(handler)


@contextmanager
def advise(advice: str) -> Iterator[None]:
    """Add what to do to the sentence about an interruption or an error, but for a full filter."""
    try:
        yield
    except Stopped:
        with suppress(OSError):  # after SIGHUP the terminal may be gone
            warn(f"interrupted; {advice}")
        raise
    except (bloomlock.errors.CapacityError, BrokenPipeError):
        raise
    except _reported() as error:
        raise Failure(f"{failure_of(error).message}; {advice}") from error


def _reported() -> tuple[type[bloomlock.errors.BloomlockError], type[RedisError], type[OSError]]:
    """Return the errors that are reported; redis-py is not imported before there is one."""
    from redis.exceptions import RedisError  # noqa: PLC0415

    return bloomlock.errors.BloomlockError, RedisError, OSError


def failure_of(error: bloomlock.errors.BloomlockError | RedisError | OSError) -> Failure:
    from redis.exceptions import ResponseError  # noqa: PLC0415 - as above

    if isinstance(error, ResponseError):
        return Failure(f"the server says: {error}")
    if isinstance(error, OSError):
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return Failure(f"{where}{error.strerror or error}")
    return Failure(sentence(str(error) or type(error).__name__))


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
    return getattr(error, "status", error.exit_code)


def sentence(message: str) -> str:
    """Return a message of the library in the words of the command line.

    >>> sentence('filter "a" is lost; call reattach() to go on with what is there now, or use '
    ...          'on_lost="recreate"')
    'filter "a" is lost; run the command again, or dedup with --recreate'
    """
    advice = 'call reattach() to go on with what is there now, or use on_lost="recreate"'
    message = message.replace(advice, "run the command again, or dedup with --recreate")
    message = re.sub(r"^client must be a redis-py client or a URL", "--url must be a URL", message)
    message = re.sub(r"^url must be", "--url must be", message)
    return re.sub(r"^client must be", "the server's address must be", message)


def die(number: int) -> None:
    """End this process by a signal, so that a shell knows that it did not end by itself."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(_SIGNAL_STATUS + number)


class _OneLine(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())
