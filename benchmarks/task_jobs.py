"""The jobs of a worker for a contender for asyncio."""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .jobs import summary
from .workloads import fingerprints, items

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from .contenders.base import AsyncContender
    from .jobs import Answer

_now = time.monotonic_ns
_runner: list[asyncio.Runner] = []
"""The one loop of this process: connections belong to the loop that made them."""
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Job:
    """One slice of work.

    Attributes:
        kind: "measure" times it; "clear" empties the filter.
        tasks: How many there are, each adding one item after the other.
        spans: Which items, as (tag, count); the tasks share them out.
    """

    kind: Literal["measure", "clear"]
    tasks: int = 1
    spans: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """Number of items."""
        return sum(count for _, count in self.spans)


def prepare(contender: AsyncContender, job: Job) -> Callable[[], Answer]:
    """Do all that is not to be timed, and return what is."""
    if job.kind == "clear":
        return lambda: _run(contender.clear()) or {}
    offered = [item for tag, count in job.spans for item in items(tag, count)]
    _run(_tasks(contender, iter(fingerprints("warm-up", WARM_UP)), 1))
    gc.collect()
    return lambda: _run(_measure(contender, offered, job.tasks))


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    if not _runner:
        _runner.append(asyncio.Runner())
    return _runner[0].run(work)


async def _measure(contender: AsyncContender, offered: list[str], tasks: int) -> Answer:
    gc.disable()
    try:
        cpu, start = time.process_time(), _now()
        durations, yes = await _tasks(contender, iter(offered), tasks)
        end, cpu = _now(), time.process_time() - cpu
    finally:
        gc.enable()
    return summary(start, end, cpu, durations) | {"yes": yes}


async def _tasks(
    contender: AsyncContender, offered: Iterator[str], tasks: int
) -> tuple[list[int], int]:
    """Let each task take the next item when its last one is answered."""
    durations: list[int] = []
    yes = 0

    async def task() -> None:
        nonlocal yes
        for item in offered:
            asked = _now()
            new = await contender.add(item)
            yes += new
            durations.append(_now() - asked)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(task())
    return durations, yes
