"""What slices come to: medians and ratios. Pure.

Two contenders are compared within one repetition, where they ran a second apart, and never by
figures of different minutes: the machine drifts more than they differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Summary:
    """Median, least and greatest of some figures."""

    median: float
    low: float
    high: float


def summarize(values: Sequence[float]) -> Summary:
    """Return the summary of at least one figure.

    >>> summarize([3.0, 1.0, 2.0])
    Summary(median=2.0, low=1.0, high=3.0)
    """
    return Summary(median(values), min(values), max(values))


def ratios(values: Sequence[float], base: Sequence[float]) -> Summary:
    """Return the summary of the ratios repetition by repetition.

    >>> ratios([2.0, 8.0, 9.0], [1.0, 2.0, 9.0])
    Summary(median=2.0, low=1.0, high=4.0)
    """
    return summarize([value / other for value, other in zip(values, base, strict=True)])


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of the sorted ones does not exceed; 0.0 of none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5), percentile([1.0, 2.0], 0.99), percentile([], 0.5)
    (3.0, 2.0, 0.0)
    """
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
