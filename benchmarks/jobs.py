"""What the processes of a contender do with items, and the timing of its calls.

Items are 40 hexadecimal digits each, like Scrapy's fingerprints. A span of items is named by a tag
and a count, so that every process can make it for itself. Fewer items of a tag are the first of
them.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .results import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    Answer = dict[str, float]

Span = tuple[str, int]

DIGITS = 40
WARM_UP: Span = ("warm-up", 20)
"""Calls before the timed ones: the processor's caches held other things until now."""
MANY = {"add_many", "exists_many", "update"}
_now = time.monotonic_ns
_runner = asyncio.Runner()
"""The one loop of this process: connections belong to the loop that made them."""


def items(tag: str, count: int) -> list[str]:
    """Make the items of a span.

    >>> items("a", 3)[:2] == items("a", 2), set(items("a", 9)) & set(items("b", 9))
    (True, set())
    """
    text = random.Random(tag).randbytes(count * DIGITS // 2).hex()
    return [text[start : start + DIGITS] for start in range(0, len(text), DIGITS)]


def cut(items: Sequence[Any], size: int) -> Iterator[Any]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def without_gc(work: Callable[[], Any]) -> Callable[[], Any]:
    """Return the same work, done while garbage waits."""

    def quiet() -> Any:
        gc.collect()
        gc.disable()
        try:
            return work()
        finally:
            gc.enable()

    return quiet


@dataclass(frozen=True, slots=True)
class Timed:
    operation: str  # "tasks" is `add` of a contender for asyncio
    spans: tuple[Span, ...]
    batch: int = 1  # items in one call, of operations that take many
    tasks: int = 0  # of asyncio, that share the items out
    fresh: bool = False  # the contender is cleared before

    def prepare(self, contender: Any) -> Callable[[], Answer]:
        """Make the items and warm up; return what answers times and the number of Trues."""
        if self.fresh:
            contender.clear()
        offered = [item for span in self.spans for item in items(*span)]
        warm_up = items(*WARM_UP)
        if self.tasks:
            _runner.run(_tasks(contender.add, warm_up, 1))
            return without_gc(lambda: _runner.run(_tasks(contender.add, offered, self.tasks)))
        call = getattr(contender, self.operation)
        many = self.operation in MANY
        for argument in [warm_up] if many else warm_up:
            call(argument)
        arguments = list(cut(offered, self.batch)) if many else offered
        return without_gc(lambda: _timed(call, arguments))


def _timed(call: Callable[[Any], Any], arguments: Sequence[Any]) -> Answer:
    answers: list[Any] = []
    moments: list[int] = []
    answered, note = answers.append, moments.append
    cpu = time.process_time()
    note(_now())
    for argument in arguments:
        answered(call(argument))
        note(_now())
    cpu = time.process_time() - cpu
    yes = sum(sum(each) if isinstance(each, list) else bool(each) for each in answers)
    return _summary(moments[0], moments[-1], cpu, [b - a for a, b in pairwise(moments)], yes)


async def _tasks(
    add: Callable[[str], Coroutine[Any, Any, bool]], offered: Sequence[str], tasks: int
) -> Answer:
    """Let each task take the next item when its last one is answered."""
    durations: list[int] = []
    left, yes = iter(offered), 0

    async def task() -> None:
        nonlocal yes
        for item in left:
            asked = _now()
            new = await add(item)
            yes += new
            durations.append(_now() - asked)

    cpu, start = time.process_time(), _now()
    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(task())
    end, cpu = _now(), time.process_time() - cpu
    return _summary(start, end, cpu, durations, yes)


def _summary(start: int, end: int, cpu: float, durations: list[int], yes: int) -> Answer:
    """Return nanoseconds of start and end, seconds of CPU, and microseconds of a call."""
    durations.sort()
    p50, p99 = (percentile(durations, share) / 1e3 for share in (0.5, 0.99))
    return {"start": start, "end": end, "cpu": cpu, "p50": p50, "p99": p99, "yes": yes}
