"""Letting holds live on: many at once, by compare-and-set where the server has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import redis.exceptions

from bloomlock.commands import ConnectionLost, Core, Request, collect, encode_command
from bloomlock.scripts import Script

from . import transitions
from .abilities import lacks_command, raise_error
from .optimistic import run_optimistically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bloomlock.keys import LockKeys

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

    Returns:
        For each whether it was held, or why that is not known.
    """
    native = abilities.compare_and_set
    commands = [_command(renewal, abilities) for renewal in renewals]
    request = Request(renewals[0].keys.lock, [command for command in commands if command])
    replies = iter((yield from collect(request, repeatable=True)) if request.commands else ())
    results: list[bool | Exception] = []
    for renewal, command in zip(renewals, commands, strict=True):
        reply: Any = next(replies) if command else _FORBIDDEN
        result = reply
        if isinstance(reply, redis.exceptions.ResponseError):
            if native and not renewal.group and lacks_command(reply):
                abilities.compare_and_set = False
            try:
                result = yield from _renew(renewal, abilities)
            except (ConnectionLost, redis.exceptions.RedisError) as error:
                result = error
        results.append(result if isinstance(result, Exception) else bool(result))
    return results


_FORBIDDEN = redis.exceptions.NoPermissionError("scripts")


def _command(renewal: Renewal, abilities: Abilities) -> bytes:
    """Return the command that renews a hold; empty: it takes more than one."""
    keys, token, group, lease_ms = renewal
    if abilities.compare_and_set and not group:
        return encode_command("SET", keys.lock, token, "IFEQ", token, "PX", lease_ms)
    if abilities.scripts:
        return RENEW.by_digest(keys, (token, group, lease_ms))
    return b""


def _renew(renewal: Renewal, abilities: Abilities) -> Core[bool]:
    keys, token, group, lease_ms = renewal
    if abilities.scripts:
        [reply] = yield from RENEW.call([(keys, (token, group, lease_ms))], repeatable=True)
        if not lacks_command(reply):
            return bool(raise_error(reply))
        abilities.scripts = False

    def transition(state: LockState, now_us: int, _: transitions.Announce) -> bool:
        return transitions.renew(state, now_us, token, group, lease_ms)

    held, _ = yield from run_optimistically(keys, transition)
    return held
