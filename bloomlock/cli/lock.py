"""`bloomlock lock`: hold a lock for as long as a command runs, across any number of machines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from redis.exceptions import RedisError

from bloomlock import AsyncFairLock, AsyncLock, AsyncReadWriteLock
from bloomlock.errors import LockNotOwnedError

from .errors import warn
from .options import example, name_argument
from .supervisor import (
    BUSY,
    FENCE,
    OPTIONS_FIRST,
    Hold,
    command_argument,
    holding_options,
    supervise,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

NAME = "BLOOMLOCK_LOCK_NAME"


@click.command(
    "lock",
    context_settings=OPTIONS_FIRST,
    epilog=example("bloomlock lock -n backup rsync -a /srv/ backup:/srv/"),
)
@name_argument
@command_argument
@click.option("-n", "--nonblock", is_flag=True, help="Do not wait: --wait 0.")
@click.option("--fair", is_flag=True, help="Strictly in the order of asking.")
@click.option("-s", "--shared", is_flag=True, help="Together with others that say --shared.")
@holding_options(30.0, "for ever")
def lock_command(
    name: str,
    command: tuple[str, ...],
    *,
    nonblock: bool,
    fair: bool,
    shared: bool,
    wait: float | None,
    **options: Any,
) -> int:
    """Run COMMAND while holding the lock NAME, as flock(1), across machines.

    If the lock is lost, or bloomlock is killed, COMMAND is ended. The exit status
    is that of COMMAND, else see `bloomlock -h`.
    """
    if shared and fair:
        raise click.UsageError("--fair and --shared do not go together")
    if nonblock and wait:
        raise click.UsageError("--nonblock and --wait do not go together")

    url = options.pop("url")

    async def holding() -> _Held:
        lease = options["lease"]
        if shared:
            lock: AsyncLock = AsyncReadWriteLock(name, url, lease).read
        else:
            lock = (AsyncFairLock if fair else AsyncLock)(name, url, lease)
        return _Held(name=name, lock=lock, wait=0.0 if nonblock else wait, **options)

    return supervise(holding, command)


@dataclass(kw_only=True)
class _Held(Hold):
    name: str
    lock: AsyncLock

    async def take(self) -> int | None:
        start = time.monotonic()
        if self.wait == 0:
            obtained = await self.lock.acquire(blocking=False)
        else:
            obtained = await self.lock.acquire(timeout=self.wait or -1)
        if self.verbose:
            what = f"obtained, fence {self.lock.fence}," if obtained else "not obtained"
            warn(f"lock {self.name!r}: {what} after {time.monotonic() - start:.3f} s")
        return None if obtained else self.busy

    def environment(self) -> Mapping[str, str]:
        return {NAME: self.name, FENCE: str(self.lock.fence)}

    def wait_lost(self) -> Awaitable[object]:
        # Of this task: each task that takes a lock has its own.
        return self.lock.lost.wait()

    async def give_back(self, status: int | None, why: str | None) -> int:  # noqa: ARG002
        try:
            await self.lock.release()
        except LockNotOwnedError:
            return BUSY  # the log says why
        except (RedisError, OSError) as error:
            if self.lock.lost.is_set():
                return BUSY
            # It was held all the time that the command ran, and that is what counts.
            warn(f"lock {self.name!r} stays taken for up to {self.lease:g} s: {error}")
        return status or 0

    async def close(self) -> None:
        await self.lock.close()
