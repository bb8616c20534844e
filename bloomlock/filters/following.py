"""Work of several requests that has to be about one generation of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from bloomlock.errors import FilterLostError

from .stored import look_at_shard

if TYPE_CHECKING:
    from collections.abc import Callable

    from bloomlock.effects import Core

    from .core import FilterCore
    from .view import View

T = TypeVar("T")

TRIES = 3


def in_one_generation(core: FilterCore, work: Callable[[View], Core[T | None]]) -> Core[T]:
    """Do the work in the generation attached to, or in the next where the filter may be followed.

    Args:
        core: The filter.
        work: Makes the core of the work; its result is None if it met another generation.

    Raises:
        FilterLostError: If the filter was cleared or lost and `on_lost="raise"`, or repeatedly.
    """
    view = yield from core.current()
    for _ in range(TRIES):
        try:
            done = yield from work(view)
        except Exception:
            if core.near is not None:
                core.near.doubt()
            raise
        if done is not None:
            return done
        if not (yield from _may_follow(core, view)):
            break
        view = yield from core.attach()
    why = (
        f"filter {core.keys.name!r} was cleared, replaced or lost since this object attached "
        "to it; call reattach() to go on with what is there now"
    )
    core.lose(view, why)
    raise FilterLostError(why)


def _may_follow(core: FilterCore, view: View) -> Core[bool]:
    if core.on_lost == "recreate" or core.view is not view:
        return True
    header, _ = yield from look_at_shard(core.keys, 0)
    return header != view.header and core.is_own(header)
