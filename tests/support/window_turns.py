"""How a shard of a filter with a window turns to the next epoch, as a pure function."""

from __future__ import annotations

from typing import NamedTuple

from bloomlock.windows import State, Window


class Turned(NamedTuple):
    """One step of a shard on its way to the next epoch.

    Attributes:
        state: After it.
        wiped: The part of the shard that is wiped in it, and the slices; None: nothing is.
    """

    state: State
    wiped: tuple[int, tuple[int, ...]] | None


def turn(window: Window, state: State, now: int, parts: int) -> Turned:
    """Return what one call of window_turn.lua does, on a shard that was in use before.

    Args:
        window: Of the filter.
        state: Of the shard.
        now: The epoch of the server's clock.
        parts: Parts that the shard has.
    """
    epoch, ahead, done = state
    is_behind = now > epoch
    wanted = min(now - epoch, window.cell_bits) if is_behind else 1
    if ahead != wanted:
        # Time went on, or back: then what is live again is wiped no further.
        ahead, done = wanted, 0
    wiped = None
    if done < parts:
        slices = tuple((epoch + step) % window.cell_bits for step in range(1, ahead + 1))
        wiped = (done, slices)
        done += 1
    if is_behind and done == parts:
        epoch, ahead, done = now, 1, 0
    return Turned(State(epoch, ahead, done), wiped)
