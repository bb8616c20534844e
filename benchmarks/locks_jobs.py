"""The jobs of a process with a lock."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .jobs import run_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contenders.locks import Locks, Pair
    from .jobs import Answer

_now = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Job:
    """One slice of work.

    Attributes:
        kind: "alone" times cycles of acquire and release; "contend" notes when each happened.
        contender: The lock.
        cycles: How many (alone).
        warm_up: Cycles before them that are not timed (alone).
        seconds: After which no new cycle begins (contend).
        hold: Seconds to sleep while holding the lock.
        tasks: Tasks of asyncio in this process; 0 for a lock that blocks.
    """

    kind: Literal["alone", "contend"]
    contender: str
    cycles: int = 0
    warm_up: int = 0
    seconds: float = 0.0
    hold: float = 0.0
    tasks: int = 0


@dataclass(slots=True)
class _Diary:
    """What one client saw: nanoseconds of the system-wide monotonic clock."""

    asked: list[int] = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    start: int = 0
    end: int = 0

    def note(self, asked: int, got: int, released: int) -> None:
        self.asked.append(asked)
        self.got.append(got)
        self.released.append(released)

    def answer(self) -> Answer:
        grants = list(zip(self.asked, self.got, self.released, strict=True))
        return {
            "grants": grants,
            "errors": dict(self.errors),
            "start": self.start,
            "end": self.end,
        }


def prepare(contender: Locks, job: Job) -> Callable[[], Answer]:
    """Do all that is not to be timed, and return what is."""
    if job.tasks:
        return lambda: _without_gc(lambda: run_async(_contend_tasks(contender, job)))
    pair = contender.pair(job.contender)
    if job.kind == "alone":
        _cycle(pair, job.warm_up)
        return lambda: _without_gc(lambda: _alone(pair, job.cycles))
    return lambda: _without_gc(lambda: {"clients": [_contend(pair, job)]})


def _without_gc(work: Callable[[], Answer]) -> Answer:
    gc.disable()
    try:
        return work()
    finally:
        gc.enable()


def _alone(pair: Pair, cycles: int) -> Answer:
    start = _now()
    _cycle(pair, cycles)
    return {"start": start, "end": _now()}


def _cycle(pair: Pair, cycles: int) -> None:
    acquire, release = pair.acquire, pair.release
    for _ in range(cycles):
        if not acquire():
            raise RuntimeError("a lock that no other client uses was refused")
        release()


def _contend(pair: Pair, job: Job) -> Answer:
    acquire, release, hold = pair.acquire, pair.release, job.hold
    diary = _Diary()
    note = diary.note
    asked = diary.start = _now()
    diary.end = end = asked + round(job.seconds * 1e9)
    while asked < end:
        try:
            if acquire():
                got = _now()
                if hold:
                    time.sleep(hold)
                released = _now()
                release()
                note(asked, got, released)
            else:
                diary.errors["refused"] += 1
        except Exception as error:  # noqa: BLE001 - whatever a lock raises is its result
            diary.errors[type(error).__name__] += 1
        asked = _now()
    return diary.answer()


async def _contend_tasks(contender: Locks, job: Job) -> Answer:
    pairs = [contender.task_pair(job.contender) for _ in range(job.tasks)]
    return {"clients": await asyncio.gather(*(_contend_task(pair, job) for pair in pairs))}


async def _contend_task(pair: Pair, job: Job) -> Answer:
    """Do as `_contend` does, awaiting."""
    acquire, release, hold = pair.acquire, pair.release, job.hold
    diary = _Diary()
    note = diary.note
    asked = diary.start = _now()
    diary.end = end = asked + round(job.seconds * 1e9)
    while asked < end:
        try:
            if await acquire():
                got = _now()
                if hold:
                    await asyncio.sleep(hold)
                released = _now()
                await release()
                note(asked, got, released)
            else:
                diary.errors["refused"] += 1
        except Exception as error:  # noqa: BLE001 - whatever a lock raises is its result
            diary.errors[type(error).__name__] += 1
        asked = _now()
    return diary.answer()
