"""The jobs of a worker, and the timing of its calls."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .figures import percentile
from .workloads import fingerprints, items

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from .contenders.base import AsyncContender, Contender

T = TypeVar("T")
Answer = dict[str, Any]
Operation = Literal["add", "exists", "add_many", "exists_many", "update", "tasks"]

MANY = {"add_many", "exists_many", "update"}
WARM_UP = 20
"""Calls before the timed ones: the processor's caches held other things until now."""
_now = time.monotonic_ns
_runner: list[asyncio.Runner] = []
"""The one loop of this process: connections belong to the loop that made them."""


@dataclass(frozen=True, slots=True)
class Job:
    """One slice of work.

    Attributes:
        kind: "measure" times it; "offer" takes down which items were said to be new (or, with
            `exists`, to be there) and for which nothing was said because of an error; "fill" only
            does it; "clear" empties the filter.
        operation: What to call; "tasks" is `add` of a contender for asyncio.
        spans: Which items, as (tag, count): the items of a tag are the same in every process.
        batch: Items in one call, of operations that take many.
        tasks: Tasks of asyncio that share the items out.
    """

    kind: Literal["measure", "offer", "fill", "clear"]
    operation: Operation = "add"
    spans: tuple[tuple[str, int], ...] = ()
    batch: int = 1000
    tasks: int = 1

    def items(self) -> list[str]:
        """Make the items."""
        return [item for tag, count in self.spans for item in items(tag, count)]


def prepare(contender: Any, job: Job) -> Callable[[], Answer]:
    """Do all that is not to be timed, and return what is."""
    if job.operation == "tasks":
        return _prepare_tasks(contender, job)
    if job.kind == "clear":
        return lambda: _answer_nothing(contender.clear)
    offered = job.items()
    if job.kind == "offer":
        return lambda: _offer(contender, job, offered)
    call: Callable[[Any], Any] = getattr(contender, job.operation)
    many = job.operation in MANY
    arguments = list(cut(offered, job.batch)) if many else offered
    if job.kind == "fill":
        return lambda: _answer_nothing(lambda: [call(argument) for argument in arguments])
    warm_up = fingerprints("warm-up", WARM_UP)
    for argument in [warm_up] if many else warm_up:
        call(argument)
    return lambda: _timed(call, arguments)


def _answer_nothing(work: Callable[[], object]) -> Answer:
    work()
    return {}


def _offer(contender: Contender, job: Job, offered: list[str]) -> Answer:
    yes: list[int] = []
    unknown: list[int] = []
    errors: Counter[str] = Counter()
    call: Callable[[Any], Any] = getattr(contender, job.operation)
    step = job.batch if job.operation == "add_many" else 1
    for start, batch in zip(range(0, len(offered), step), cut(offered, step), strict=True):
        try:
            answers = call(batch) if job.operation == "add_many" else [call(batch[0])]
        except Exception as error:  # noqa: BLE001 - whatever a contender raises is its result
            errors[type(error).__name__] += 1
            unknown += range(start, start + len(batch))
        else:
            yes += [start + index for index, answer in enumerate(answers) if answer]
    return {"yes": yes, "unknown": unknown, "errors": dict(errors)}


def cut(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in batches."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _timed(call: Callable[[Any], Any], arguments: Sequence[Any]) -> Answer:
    """Call once with each argument; see `_summary`.

    `yes`: how often an answer, or one in the list of answers, was True; None: there are no answers.
    """
    answers: list[Any] = []
    moments: list[int] = []
    answered, note = answers.append, moments.append
    gc.collect()
    gc.disable()
    try:
        cpu = time.process_time()
        note(_now())
        for argument in arguments:
            answered(call(argument))
            note(_now())
        cpu = time.process_time() - cpu
    finally:
        gc.enable()
    durations = [end - start for start, end in itertools.pairwise(moments)]
    return _summary(moments[0], moments[-1], cpu, durations) | {"yes": _yes(answers)}


def _summary(start: int, end: int, cpu: float, durations: Sequence[int]) -> Answer:
    """Return the nanoseconds of start and end, seconds of CPU, and microseconds of a call."""
    ordered = sorted(durations)
    p50, p99 = (percentile(ordered, share) / 1e3 for share in (0.5, 0.99))
    return {"start": start, "end": end, "cpu": cpu, "p50": p50, "p99": p99}


def _yes(answers: Sequence[Any]) -> int | None:
    if answers and answers[0] is None:
        return None
    return sum(sum(answer) if isinstance(answer, list) else answer for answer in answers)


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run something in the one loop of this process."""
    if not _runner:
        _runner.append(asyncio.Runner())
    return _runner[0].run(work)


def _prepare_tasks(contender: AsyncContender, job: Job) -> Callable[[], Answer]:
    if job.kind == "clear":
        return lambda: run_async(contender.clear()) or {}
    offered = job.items()
    run_async(_tasks(contender, iter(fingerprints("warm-up", WARM_UP)), 1))
    gc.collect()
    return lambda: run_async(_timed_tasks(contender, offered, job.tasks))


async def _timed_tasks(contender: AsyncContender, offered: list[str], tasks: int) -> Answer:
    gc.disable()
    try:
        cpu, start = time.process_time(), _now()
        durations, yes = await _tasks(contender, iter(offered), tasks)
        end, cpu = _now(), time.process_time() - cpu
    finally:
        gc.enable()
    return _summary(start, end, cpu, durations) | {"yes": yes}


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
