"""Asking one of several servers for its vote: the lock and the server's age in one trip."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from bloomlock.effects import ConnectionLost, Core, Pause, Request, encode_command, run_way

from .steps import ACQUIRE, Call

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from bloomlock.keys import LockKeys

    from .model import AcquireRequest, Busy, Granted

    T = TypeVar("T")

INFO = encode_command("INFO", "server")
_UPTIME = re.compile(rb"^uptime_in_seconds:(\d+)", re.MULTILINE)
_RUN = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class Answer(NamedTuple):
    """What a server said.

    Attributes:
        answer: Whether it gave the lock.
        uptime: For how many seconds it has been up, None if it does not tell.
        run: Which run of a server program it is, None if it does not tell.
    """

    answer: Granted | Busy
    uptime: int | None
    run: bytes | None


def ask_with_age(keys: LockKeys, asking: AcquireRequest, missing: set[str]) -> Core[Answer]:
    """Take the lock at one server and ask how long it has been up; one round trip.

    The age is told after the lock was taken, and on the same connection, so a restart in between
    cannot hide.

    Raises:
        ConnectionLost: If the server does not answer.
        redis.exceptions.RedisError: What it answers instead. It may have given the lock all the
            same.
    """
    call = Call(keys, asking, INFO)
    answer, info = yield from run_way(ACQUIRE.ways, call, missing)
    return _read(answer, info)


def _read(answer: Granted | Busy, info: bytes) -> Answer:
    uptime, run = _UPTIME.search(info), _RUN.search(info)
    return Answer(answer, int(uptime[1]) if uptime else None, run[1] if run else None)


def note_sending(core: Core[T], note: Callable[[bool], None]) -> Core[T]:
    """Run a core; `note` is told for each request whether any byte of it may have been sent.

    A server that is down is not waited for: whoever polls comes back by himself.
    """
    step: Any
    failure: ConnectionLost | None = None
    try:
        step = next(core)
        while True:
            if failure is not None and isinstance(step, Pause) and step.seconds:
                raise failure
            failure = None
            try:
                replies = yield step
            except ConnectionLost as lost:
                note(lost.sent)
                step, failure = core.throw(lost), lost
            else:
                note(isinstance(step, Request))
                step = core.send(replies)
    except StopIteration as stop:
        result: T = stop.value
        return result
