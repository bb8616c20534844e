"""What a worker can be told to do."""

from __future__ import annotations

import gc
import hashlib
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .contenders.base import Contender

Answer = dict[str, Any]
Operation = Literal["add", "exists", "add_many"]

WARM_UP = 20
"""Calls before the timed ones: the processor's caches belonged to somebody else until now."""


@dataclass(frozen=True, slots=True)
class Job:
    """One slice of work.

    Attributes:
        kind: "measure" times it; "offer" takes down which items were said to be new (or, with
            `exists`, to be there) and for which nothing was said because of an error.
        operation: What to call.
        spans: Which items, as (tag, count): the items of a tag are the same in every process.
        batch: Items in one call of `add_many`.
    """

    kind: Literal["measure", "offer"]
    operation: Operation
    spans: tuple[tuple[str, int], ...]
    batch: int = 1000

    @property
    def size(self) -> int:
        """Number of items."""
        return sum(count for _, count in self.spans)

    def items(self) -> list[str]:
        """Make the items, 40 hexadecimal digits each like a Scrapy request fingerprint."""
        return [item for tag, count in self.spans for item in fingerprints(tag, count)]


def fingerprints(tag: str, count: int) -> Iterator[str]:
    """Make items that are the same for the same tag."""
    for number in range(count):
        yield hashlib.sha1(f"{tag}/{number}".encode(), usedforsecurity=False).hexdigest()


def prepare(contender: Contender, job: Job) -> Callable[[], Answer]:
    """Do all that is not to be timed, and return what is."""
    items = job.items()
    if job.kind == "offer":
        return lambda: _offer(contender, job, items)
    call: Callable[[Any], Any] = getattr(contender, job.operation)
    warm_up = list(fingerprints("warm-up", WARM_UP))
    if job.operation == "add_many":
        call(warm_up)
        batches = list(_cut(items, job.batch))
        return lambda: _timed(lambda: sum(sum(call(batch)) for batch in batches))
    for item in warm_up:
        call(item)
    return lambda: _timed(lambda: sum(map(call, items)))


def _timed(work: Callable[[], int]) -> Answer:
    """Time the work.

    `start` and `end` are nanoseconds of the system-wide monotonic clock; `yes` is how many
    calls were answered by True.
    """
    gc.disable()
    try:
        start = time.monotonic_ns()
        yes = work()
        end = time.monotonic_ns()
    finally:
        gc.enable()
    return {"start": start, "end": end, "yes": yes}


def _offer(contender: Contender, job: Job, items: list[str]) -> Answer:
    yes: list[int] = []
    unknown: list[int] = []
    errors: Counter[str] = Counter()
    call: Callable[[Any], Any] = getattr(contender, job.operation)
    step = job.batch if job.operation == "add_many" else 1
    for start, batch in zip(range(0, len(items), step), _cut(items, step), strict=True):
        try:
            answers = call(batch) if job.operation == "add_many" else [call(batch[0])]
        except Exception as error:  # noqa: BLE001 - whatever a contender raises is its result
            errors[type(error).__name__] += 1
            unknown += range(start, start + len(batch))
        else:
            yes += [start + index for index, answer in enumerate(answers) if answer]
    return {"yes": yes, "unknown": unknown, "errors": dict(errors)}


def _cut(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
