"""`bloomlock lock` and `once`: a command runs while a lock or a claim is held, on any machine."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import click
from redis.exceptions import RedisError

from bloomlock import AsyncBloomFilter, AsyncFairLock, AsyncLock, AsyncReadWriteLock, ClaimState
from bloomlock.errors import ClaimError, FilterMismatchError, LockNotOwnedError

from . import options
from .errors import BUSY, NO, warn
from .options import example
from .supervisor import Command, supervise

if TYPE_CHECKING:
    from collections.abc import Callable

    from .options import F

FENCE = "BLOOMLOCK_FENCE"
# As of flock(1), ssh(1) and the like: in `bloomlock lock logs grep -n error` the -n is grep's.
_OPTIONS_FIRST = {"allow_interspersed_args": False}
_STATUS = click.IntRange(0, 255)
_command_argument = click.argument(
    "command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED
)


def _holding_options(default_lease: float, default_wait: str) -> Callable[[F], F]:
    return options.several(
        options.time_option("-w", "--wait", what=f"How long to wait.  [default: {default_wait}]"),
        options.time_option("--lease", default=default_lease, what="Taken so long after a crash."),
        options.time_option("--grace", default=10.0, what="From SIGTERM to SIGKILL."),
        options.value_option(
            "-E", "--busy-exit-code", "busy", kind=_STATUS, default=BUSY, what="If it is taken."
        ),
        options.url_option,
    )


@click.command(
    "lock",
    context_settings=_OPTIONS_FIRST,
    epilog=example("bloomlock lock -n backup rsync -a /srv/ backup:/srv/"),
)
@options.name_argument
@_command_argument
@click.option("-n", "--nonblock", is_flag=True, help="Do not wait: --wait 0.")
@click.option("--fair", is_flag=True, help="Strictly in the order of asking.")
@click.option("-s", "--shared", is_flag=True, help="Together with others that say --shared.")
@_holding_options(30.0, "for ever")
def lock_command(
    name: str, *, nonblock: bool, fair: bool, shared: bool, wait: float | None, **given: Any
) -> int:
    """Run COMMAND while holding the lock NAME, as flock(1), across machines.

    If the lock is lost, or bloomlock is killed, COMMAND is ended. The exit status
    is that of COMMAND, else see `bloomlock -h`.
    """
    if shared and fair:
        raise click.UsageError("--fair and --shared do not go together")
    if nonblock and wait:
        raise click.UsageError("--nonblock and --wait do not go together")
    busy, where = given.pop("busy"), (name, given.pop("url"), given["lease"])

    async def hold(running: Command) -> int:
        kind = AsyncFairLock if fair else AsyncLock
        lock = AsyncReadWriteLock(*where).read if shared else kind(*where)
        try:
            if not await lock.acquire(timeout=0.0 if nonblock else wait):
                return int(busy)
            environment = {"BLOOMLOCK_LOCK_NAME": name, FENCE: str(lock.fence)}
            try:
                status = await running.run(environment, lock.lost.wait())
            finally:
                was_held = await _release(lock, name)
            return status if was_held else BUSY
        finally:
            await lock.close()

    return supervise(hold, **given)


async def _release(lock: AsyncLock, name: str) -> bool:
    """Return whether it was held all the time that the command ran."""
    try:
        await lock.release()
    except LockNotOwnedError:
        return False  # the log says why
    except (RedisError, OSError) as error:
        if lock.lost.is_set():
            return False
        warn(f"lock {name!r} stays taken until its lease ends: {error}")
    return True


class _NotDone(BaseException):
    """COMMAND failed: KEY is given back, which is no failed attempt."""


@click.command(
    "once",
    context_settings=_OPTIONS_FIRST,
    epilog=example('bloomlock once welcomed "$user" send-mail "$user"'),
)
@options.name_argument
@click.argument("item", metavar="KEY")
@_command_argument
@options.value_option("--done-exit-code", "done", kind=_STATUS, default=0, what="If KEY was done.")
@options.key_option
@_holding_options(60.0, "not at all")
def once_command(
    name: str, item: str, *, key: bytes | None, wait: float | None, lease: float, **given: Any
) -> int:
    """Run COMMAND unless KEY is done: in the filter NAME, which keeps the done ones.

    KEY is done when COMMAND exits with status 0. At the filter's error rate a new
    KEY looks done. The exit status is that of COMMAND, else see `bloomlock -h`.
    """
    if not lease:
        raise click.UsageError("--lease must be more than 0 seconds, not 0")
    url, statuses = given.pop("url"), {ClaimState.SEEN: given.pop("done")}
    statuses |= {ClaimState.BUSY: given.pop("busy"), ClaimState.FAILED: NO}

    async def hold(running: Command) -> int:
        try:
            opened = await AsyncBloomFilter.open(name, client=url)
        except FilterMismatchError:
            if key is None:
                raise
            opened = await AsyncBloomFilter.open(name, client=url, key=key)
        async with opened as bloom:
            claim = await bloom.claim(os.fsencode(item), lease, wait=wait)
            if not claim:
                return int(statuses[claim.state])
            environment = {"BLOOMLOCK_ONCE_NAME": name, "BLOOMLOCK_ONCE_KEY": item}
            environment[FENCE] = str(claim.fence)
            # A claim that is lost shows when it is committed: the work may be done all the same.
            never = asyncio.Event().wait()
            try:
                async with claim:
                    if status := await running.run(environment, never):
                        raise _NotDone  # noqa: TRY301 - `with` takes it
            except _NotDone:
                return status
            except ClaimError as error:
                warn(str(error))
                return BUSY
        return 0

    return supervise(hold, lease=lease, **given)
