"""Timing the calls of a slice in one process."""

from __future__ import annotations

import gc
import itertools
import time
from typing import TYPE_CHECKING, Any

from .ratios import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    return told(moments[0], moments[-1], cpu, _durations(moments)) | {"yes": _yes(answers)}


def told(start: int, end: int, cpu: float, durations: Sequence[int]) -> dict[str, Any]:
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
