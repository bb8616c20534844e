"""`bloomlock once`: run a command unless it was done, across any number of machines."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from redis.exceptions import RedisError

from bloomlock import AsyncBloomFilter, AsyncClaim, ClaimState
from bloomlock.errors import ClaimError, FilterMismatchError

from .errors import NO, warn
from .options import example, key_option, name_argument, status_option
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

NAME = "BLOOMLOCK_ONCE_NAME"
KEY = "BLOOMLOCK_ONCE_KEY"


@click.command(
    "once",
    context_settings=OPTIONS_FIRST,
    epilog=example('bloomlock once welcomed "$user" send-mail "$user"'),
)
@name_argument
@click.argument("item", metavar="KEY")
@command_argument
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="KEY has failed after so many.",
)
@status_option("--done-exit-code", "done", default=0, what="If KEY was done.")
@status_option("--failed-exit-code", "failed", default=NO, what="If KEY has failed.")
@key_option
@holding_options(60.0, "not at all")
def once_command(
    name: str, item: str, command: tuple[str, ...], *, key: bytes | None, **options: Any
) -> int:
    """Run COMMAND unless KEY is done: in the filter NAME, which keeps the done ones.

    KEY is done when COMMAND exits with status 0. At the filter's error rate a new
    KEY looks done. The exit status is that of COMMAND, else see `bloomlock -h`.
    """
    url = options.pop("url")
    if not options["lease"]:
        raise click.UsageError("--lease must be more than 0 seconds, not 0")

    async def holding() -> _Claimed:
        try:
            done = await AsyncBloomFilter.open(name, client=url)
        except FilterMismatchError:
            if key is None:
                raise
            done = await AsyncBloomFilter.open(name, client=url, key=key)
        return _Claimed(filter=done, item=item, **options)

    return supervise(holding, command)


@dataclass(kw_only=True)
class _Claimed(Hold):
    filter: AsyncBloomFilter
    item: str
    max_attempts: int | None
    done: int
    failed: int
    claim: AsyncClaim = field(init=False)

    async def take(self) -> int | None:
        self.claim = claim = await self.filter.claim(
            os.fsencode(self.item), self.lease, wait=self.wait, max_attempts=self.max_attempts
        )
        if claim:
            return None
        status, why = {
            ClaimState.SEEN: (self.done, "was done before"),
            ClaimState.BUSY: (
                self.busy,
                f"is worked on; its lease ends in {claim.remaining:.1f} s",
            ),
            ClaimState.FAILED: (self.failed, f"failed {claim.attempts} times"),
        }[claim.state]
        if self.verbose:
            warn(f"{self.item!r} {why}")
        return status

    def environment(self) -> Mapping[str, str]:
        return {NAME: self.filter.name, KEY: self.item, FENCE: str(self.claim.fence)}

    def wait_lost(self) -> Awaitable[object]:
        # A claim that is lost shows when it is committed: the work may be done all the same.
        return asyncio.Event().wait()

    async def give_back(self, status: int | None, why: str | None) -> int:
        try:
            if status == 0:
                await self.claim.commit()
            else:
                await self.claim.abandon(why)
        except (RedisError, OSError, ClaimError) as error:
            if status == 0:
                if not isinstance(error, ClaimError):
                    raise
                warn(str(error))
                return BUSY
            warn(f"{self.item!r} stays claimed for up to {self.lease:g} s: {error}")
        return status or 0

    async def close(self) -> None:
        await self.filter.close()
