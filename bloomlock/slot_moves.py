"""Steps that a cluster refuses while it moves a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import redis.exceptions

from .delivery import with_each_step
from .effects import Clock, Core, Parallel, Pause, Request, Step
from .refusals import is_slot_refusal

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MOVING_SECONDS = 30.0
"""How long a request waits at most for a slot that moves."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1
"""Between its tries."""


def moved_too_long(key: str, seconds: float, error: Exception) -> redis.exceptions.TryAgainError:
    """Return the error for a command that a cluster refused for so long because its slot moves."""
    answer = type(error).__name__.removesuffix("Error").upper()
    return redis.exceptions.TryAgainError(
        f"the cluster moves the slot of key {key!r}, and did not end that within {seconds:.1f} s "
        f"(its server answers {answer} {error}); the command was not carried out; try again when "
        "the slot has moved"
    )


def through_moves(key: str, step: Callable[[], Core[T]]) -> Core[T]:
    """Run a step that ends by a transaction under WATCH, again while a cluster moves its slot.

    A runtime does so for other requests, and here waits for none: the transaction belongs to the
    connection that watches, so all is done again, from the WATCH on. What a cluster refuses was not
    done. After MOVING_SECONDS it raises TryAgainError.
    """
    clock = yield Clock()
    began, pause = clock(), SHORTEST_PAUSE_S
    while True:
        try:
            return (yield from without_waiting(step()))
        except redis.exceptions.ResponseError as error:
            if not is_slot_refusal(error):
                raise
            if clock() - began > MOVING_SECONDS:
                raise moved_too_long(key, clock() - began, error) from None
        yield Pause(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def without_waiting(core: Core[T]) -> Core[T]:
    """Carry out a core whose requests do not wait for a slot that moves; see Request."""
    return with_each_step(core, _without_waiting)


def _without_waiting(step: Step) -> Core[Any]:
    if isinstance(step, Request):
        step = step._replace(waits=False)
    elif isinstance(step, Parallel):
        requests = [
            one._replace(waits=False) if isinstance(one, Request) else one for one in step.requests
        ]
        step = Parallel(requests)
    return (yield step)
