"""Letting holds live on, many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import redis.exceptions

from bloomlock.effects import ConnectionLost, Core
from bloomlock.scripts import Script

from . import transitions
from .abilities import lacks_command, raise_error
from .optimistic import run_optimistically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.keys import LockKeys
    from bloomlock.scripts import Call

    from .abilities import Abilities
    from .state import LockState

RENEW = Script("lock_common", "lock_renew")


class Renewal(NamedTuple):
    """One hold to be renewed."""

    keys: LockKeys
    token: bytes
    group: bytes
    lease_ms: int


def renew_all(renewals: Sequence[Renewal], abilities: Abilities) -> Core[list[bool | Exception]]:
    """Renew holds that lie on one server, in one round trip.

    No native command does it: SET IFEQ sets a shorter lease too, so a late copy of an earlier
    renewal would shorten what was extended since.

    Returns:
        For each whether it was held, or why that is not known.
    """
    replies: Sequence[Any] = [_FORBIDDEN] * len(renewals)
    if abilities.scripts:
        replies = yield from RENEW.call([_call(each) for each in renewals], repeatable=True)
    results: list[bool | Exception] = []
    for renewal, reply in zip(renewals, replies, strict=True):
        result = reply
        if isinstance(reply, redis.exceptions.ResponseError):
            # Alone it also finds its way to another node of a cluster.
            try:
                result = yield from _renew(renewal, abilities)
            except (ConnectionLost, redis.exceptions.RedisError) as error:
                result = error
        results.append(result if isinstance(result, Exception) else bool(result))
    return results


_FORBIDDEN = redis.exceptions.NoPermissionError("scripts")


def _call(renewal: Renewal) -> Call:
    keys, token, group, lease_ms = renewal
    return keys, (token, group, lease_ms)


def _renew(renewal: Renewal, abilities: Abilities) -> Core[bool]:
    if abilities.scripts:
        [reply] = yield from RENEW.call([_call(renewal)], repeatable=True)
        if not lacks_command(reply):
            return bool(raise_error(reply))
        abilities.scripts = False

    keys, token, group, lease_ms = renewal

    def transition(state: LockState, now_us: int, *_: object) -> bool:
        return transitions.renew(state, now_us, token, group, lease_ms)

    held, _ = yield from run_optimistically(keys, transition, channel=None)
    return held
