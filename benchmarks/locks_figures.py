"""The grants of clients on one lock. Pure.

A grant is (asked, got, released): nanoseconds on the monotonic clock that all processes of the
machine share, taken before `acquire`, after it, and before `release`. So of two grants one was
over before the other began, or the lock was held twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .jobs import Answer

    Grant = Sequence[int]


@dataclass(frozen=True, slots=True)
class Figures:
    """One slice.

    Attributes:
        rate: Grants per second while all clients were at work.
        waits: Seconds from asking to holding, sorted.
        handoffs: Seconds from the call of `release` to the next holder's running, sorted; only
            where that one had been waiting by then.
        handed: Share of the grants that were such hand-offs.
        twice: Grants that began before the previous one was released.
        each: Grants of each client while all were at work.
        grants: All grants.
    """

    rate: float
    waits: list[float]
    handoffs: list[float]
    handed: float
    twice: int
    each: list[int]
    grants: int


def figures(clients: Sequence[Answer]) -> Figures:
    """Put together what the clients of one slice noted."""
    start = max(client["start"] for client in clients)
    end = min(client["end"] for client in clients)
    if end <= start:  # a slice too short for all to start
        start = min(client["start"] for client in clients)
        end = max(client["end"] for client in clients)
    each = [sum(start <= grant[1] <= end for grant in client["grants"]) for client in clients]
    grants = sorted((grant for client in clients for grant in client["grants"]), key=_got)
    if not grants:
        raise RuntimeError("no client got the lock")
    handoffs, twice = handed_over(grants)
    return Figures(
        rate=sum(each) / ((end - start) / 1e9),
        waits=sorted((got - asked) / 1e9 for asked, got, _ in grants),
        handoffs=handoffs,
        handed=len(handoffs) / len(grants),
        twice=twice,
        each=each,
        grants=len(grants),
    )


def _got(grant: Grant) -> int:
    return grant[1]


def handed_over(grants: Iterable[Grant]) -> tuple[list[float], int]:
    """Return the hand-off times in seconds, sorted, and how often a lock was held twice.

    >>> handed_over([(0, 10, 20), (5, 2_000_000_020, 2_000_000_030), (3_000_000_000,) * 3])
    ([2.0], 0)
    >>> handed_over([(0, 10, 20), (5, 15, 30)])
    ([], 1)
    """
    times = []
    twice = 0
    for (_, _, released), (asked, got, _) in pairwise(grants):
        if got < released:
            twice += 1
        elif asked < released:
            times.append((got - released) / 1e9)
    return sorted(times), twice


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 if all have the same, 1/n if one has everything.

    >>> jain([5, 5, 5, 5]), jain([8, 0, 0, 0])
    (1.0, 0.25)
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
