"""The jobs of a worker, and the timing of its calls."""

from __future__ import annotations

import gc
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .figures import percentile
from .workloads import fingerprints, items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .contenders.base import Contender


Answer = dict[str, Any]
Operation = Literal["add", "exists", "add_many", "exists_many", "update"]

MANY = {"add_many", "exists_many", "update"}
WARM_UP = 20
"""Calls before the timed ones: the processor's caches held other things until now."""


@dataclass(frozen=True, slots=True)
class Job:
    """One slice of work.

    Attributes:
        kind: "measure" times it; "offer" takes down which items were said to be new (or, with
            `exists`, to be there) and for which nothing was said because of an error; "fill" only
            does it; "clear" empties the filter.
        operation: What to call.
        spans: Which items, as (tag, count): the items of a tag are the same in every process.
        batch: Items in one call, of operations that take many.
    """

    kind: Literal["measure", "offer", "fill", "clear"]
    operation: Operation = "add"
    spans: tuple[tuple[str, int], ...] = ()
    batch: int = 1000

    @property
    def size(self) -> int:
        """Number of items."""
        return sum(count for _, count in self.spans)

    def items(self) -> list[str]:
        """Make the items."""
        return [item for tag, count in self.spans for item in items(tag, count)]


def prepare(contender: Contender, job: Job) -> Callable[[], Answer]:
    """Do all that is not to be timed, and return what is."""
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
    return lambda: timed(call, arguments)


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


def cut(items: list[str], size: int) -> Iterator[list[str]]:
    """Yield the items in batches."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


_now = time.monotonic_ns


def timed(call: Callable[[Any], Any], arguments: Sequence[Any]) -> dict[str, Any]:
    """Call once with each argument.

    Returns:
        `start` and `end`: nanoseconds of the system-wide monotonic clock. `cpu`: seconds of
        processor time of this process. `p50`, `p99`: microseconds of a call. `yes`: how often
        an answer, or one in the list of answers, was True; None where calls give no answer.
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
    return summary(moments[0], moments[-1], cpu, _durations(moments)) | {"yes": _yes(answers)}


def summary(start: int, end: int, cpu: float, durations: Sequence[int]) -> dict[str, Any]:
    """Return the figures of a slice, from nanoseconds."""
    ordered = sorted(durations)
    return {
        "start": start,
        "end": end,
        "cpu": cpu,
        "p50": percentile(ordered, 0.5) / 1e3,
        "p99": percentile(ordered, 0.99) / 1e3,
    }


def _durations(moments: Sequence[int]) -> list[int]:
    return [end - start for start, end in itertools.pairwise(moments)]


def _yes(answers: Sequence[Any]) -> int | None:
    if answers and answers[0] is None:
        return None
    return sum(sum(answer) if isinstance(answer, list) else answer for answer in answers)
