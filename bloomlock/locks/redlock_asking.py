"""What a lock on several servers asks of whoever drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bloomlock.effects import Core

GRACE_SECONDS = 0.002


class AskEach(NamedTuple):
    """Run a core at each server, all at once; for drivers of several servers.

    Answered by the list of results, an exception where one was raised, None where there is no
    result in time. What is late goes on in the background, and what is asked later in the same
    line comes after it.

    When enough is known the rest is waited for as long again: a server that is merely the last
    one is to be counted with, a silent one is not to cost much.

    Attributes:
        cores: One for each server.
        lines: One for each server, for the driver to keep its order by.
        until: When to wait no longer, by the clock.
        enough: Told the results so far; True: no more are needed.
        patience: Seconds after which a core is given up also in the background.
    """

    cores: Sequence[Core[Any]]
    lines: list[Any]
    until: float
    enough: Callable[[Sequence[Any]], bool]
    patience: float


def end_of_grace(step: AskEach, began: float, now: float) -> float:
    """Return until when to wait for the rest after enough is known."""
    return min(step.until, now + (now - began) + GRACE_SECONDS)
