"""What users say about when a filter expires: after a time, at a moment, never."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bloomlock.errors import ConfigurationError

from .expiry import check_moment, moment_of, set_expiry, time_left
from .state import in_one_generation

if TYPE_CHECKING:
    from bloomlock.effects import Core

    from .generation import View
    from .state import FilterState


def expire(state: FilterState, ttl_ms: int) -> Core[None]:
    """Let the filter expire in `ttl_ms`, or never (0)."""

    def work(view: View) -> Core[bool | None]:
        _refuse_idle(state, view)
        return (yield from set_expiry(state.keys, view, ttl_ms))

    yield from in_one_generation(state, work)


def expire_at(state: FilterState, at: object) -> Core[None]:
    """Let the filter expire at a moment."""
    wanted = check_moment(at)
    view = yield from state.current()
    now = yield from moment_of(view)
    ttl_ms = math.ceil((wanted - now) * 1000)
    if ttl_ms <= 0:
        raise ConfigurationError(
            f"at must be a moment to come; by the server's clock {at!r:.80} is over"
        )
    yield from expire(state, ttl_ms)


def ttl(state: FilterState) -> Core[float | None]:
    """Return the seconds until the filter expires, None if it does not."""

    def work(view: View) -> Core[int | None]:
        return (yield from time_left(state.keys, view))

    left_ms = yield from in_one_generation(state, work)
    return None if left_ms < 0 else left_ms / 1000


def _refuse_idle(state: FilterState, view: View) -> None:
    idle_ms, name = view.descriptor.idle_ms, state.keys.name
    if idle_ms is not None:
        raise ConfigurationError(
            f"filter {name!r} has idle_ttl={idle_ms / 1000:g}, so its last use says when it expires"
        )
