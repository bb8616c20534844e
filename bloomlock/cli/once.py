"""`bloomlock once`: run a command unless it was done, across any number of machines."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from redis.exceptions import RedisError

from bloomlock import AsyncBloomFilter, AsyncClaim, ClaimState
from bloomlock.errors import ClaimError

from .child import LOST, SIGNAL_STATUS, Child, ChildCommand, Outcome, Supervisor, find_program
from .child import seconds as seconds_type
from .errors import NO, Stopped, warn
from .options import (
    CLAIMING_STRATEGIES,
    STRATEGIES,
    FilterOptions,
    claims_options,
    examples,
    name_argument,
    on_full_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    F = TypeVar("F", bound=Callable[..., Any])

FENCE = "BLOOMLOCK_FENCE"
NAME = "BLOOMLOCK_ONCE_NAME"
KEY = "BLOOMLOCK_ONCE_KEY"
LONGEST_GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL for a command whose bloomlock was killed."""


class OnceCommand(ChildCommand):
    """A command after NAME and KEY."""

    num_names = 2


def _exit_code(option: str, name: str, default: int, when: str) -> Callable[[F], F]:
    return click.option(
        option,
        name,
        type=click.IntRange(0, 255),
        default=default,
        show_default=True,
        metavar="N",
        help=f"Exit status if {when}.",
    )


@click.command(
    "once",
    cls=OnceCommand,
    epilog=examples(
        "bloomlock once reports 2026-11 -- make-report --month 2026-11",
        'bloomlock once mails "$id" --max-attempts 3 --done-exit-code 3 -- send-mail "$id"',
    ),
)
@name_argument
@click.argument("key_of_work", metavar="KEY")
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option(
    "-w",
    "--wait",
    type=seconds_type,
    metavar="SECONDS",
    help="How long to wait for another that works on KEY.  [default: not at all]",
)
@click.option(
    "--ttl",
    type=seconds_type,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long KEY stays claimed if this machine dies; it is renewed while COMMAND runs.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="After how many failures or deaths KEY counts as failed.  [default: never]",
)
@_exit_code("--done-exit-code", "done", 0, "KEY was done before")
@_exit_code("--busy-exit-code", "busy", LOST, "another works on KEY")
@_exit_code("--failed-exit-code", "failed", NO, "KEY failed too often before")
@claims_options
@on_full_option
@click.option("-v", "--verbose", is_flag=True, help="Say why COMMAND was not run.")
def once_command(name: str, key_of_work: str, command: tuple[str, ...], **rest: Any) -> int:
    """Run COMMAND unless KEY is done; KEY is done when COMMAND ends with exit status 0.

    The keys that are done are the items of the filter NAME, which is created if there is none.
    While COMMAND runs, KEY is claimed, and no other `bloomlock once` runs for it, anywhere. If
    COMMAND fails or a signal ends it, KEY is given back, and the next call runs. If this machine
    dies, the next call after --ttl runs. At the filter's error rate a new KEY looks like one that
    is done.

    COMMAND finds NAME and KEY in BLOOMLOCK_ONCE_NAME and BLOOMLOCK_ONCE_KEY, and in
    BLOOMLOCK_FENCE a number higher than those of all claims of KEY before. If bloomlock is
    killed, COMMAND is sent SIGTERM, and SIGKILL 10 seconds later. The signals HUP, INT, QUIT,
    TERM, USR1 and USR2 are sent on to COMMAND.

    Exit status: that of COMMAND; 128 + N if signal N ended it; 126 if it cannot be run, 127 if
    there is none such; 0 (--done-exit-code) if KEY was done before; 75 (--busy-exit-code) if
    another works on it; 1 (--failed-exit-code) if it failed too often; 75 if COMMAND ended well
    but the lease had run out, and another works on KEY since; 2 after an error.
    """
    if not rest["ttl"]:
        raise click.UsageError("--ttl must be above 0 seconds")
    mine = {option: rest.pop(option) for option in Job._fields if option in rest}
    job = Job(name=name, item=key_of_work, command=command, **mine)
    program = find_program(command[0])
    options = FilterOptions(**rest)
    _refuse_what_has_no_claims(options)
    # Every parameter is looked at, and the filter created, before anything is claimed.
    options.create_or_open(name).close()
    outcome = asyncio.run(_Claiming(job, program).run(options))
    if outcome.signal is not None:
        raise Stopped(outcome.signal)
    return outcome.status


def _refuse_what_has_no_claims(options: FilterOptions) -> None:
    """Raise UsageError for a filter that could be created, but not claimed from."""
    if options.strategy in set(STRATEGIES) - set(CLAIMING_STRATEGIES):
        raise click.UsageError(
            f"--strategy must be atomic or lua for claims, not {options.strategy!r}"
        )


class Job(NamedTuple):
    """What the user asked for."""

    name: str
    item: str
    command: tuple[str, ...]
    wait: float | None
    ttl: float
    max_attempts: int | None
    done: int
    busy: int
    failed: int
    verbose: bool


class _Claiming(Supervisor):
    """One run."""

    def __init__(self, job: Job, program: str) -> None:
        super().__init__()
        self._job = job
        self._program = program

    async def run(self, options: FilterOptions) -> Outcome:
        """Claim the item, run the command, commit the item or give it back."""
        self.handle_signals()
        async with await options.open_async(self._job.name) as done:
            claim = await self.until_signal(self._claim(done))
            if claim is None:
                return Outcome(SIGNAL_STATUS + self.received[0], self.received[0])
            if not claim:
                return self._refused(claim)
            if self.received:
                await self._abandon(claim, None)
                return Outcome(SIGNAL_STATUS + self.received[0], self.received[0])
            return await self._run_child(claim)

    async def _claim(self, done: AsyncBloomFilter) -> AsyncClaim:
        job = self._job
        return await done.claim(
            os.fsencode(job.item), job.ttl, wait=job.wait, max_attempts=job.max_attempts
        )

    def _refused(self, claim: AsyncClaim) -> Outcome:
        job = self._job
        status, why = {
            ClaimState.SEEN: (job.done, "was done before"),
            ClaimState.BUSY: (job.busy, f"is worked on; its lease ends in {claim.remaining:.1f} s"),
            ClaimState.FAILED: (job.failed, f"failed {claim.attempts} times"),
        }[claim.state]
        if job.verbose:
            warn(f"{job.item!r} {why}")
        return Outcome(status)

    async def _run_child(self, claim: AsyncClaim) -> Outcome:
        grace = min(LONGEST_GRACE, self._job.ttl / 2)
        try:
            self.child = Child(self._program, self._job.command, self._environment(claim), grace)
            await self.child.wait()
        except BaseException as error:
            await self._abandon(claim, error if isinstance(error, Exception) else None)
            raise
        outcome = self.outcome_of(self.child)
        if outcome.status == 0:
            return await self._commit(claim, outcome)
        # A signal to this process is no fault of the work.
        await self._abandon(claim, None if outcome.signal else self._error_of(self.child))
        return outcome

    async def _commit(self, claim: AsyncClaim, outcome: Outcome) -> Outcome:
        try:
            await claim.commit()
        except ClaimError as error:
            warn(str(error))
            return Outcome(LOST)
        return outcome

    async def _abandon(self, claim: AsyncClaim, error: str | BaseException | None) -> None:
        try:
            await claim.abandon(error)
        except (RedisError, OSError, ClaimError) as failure:
            warn(f"{self._job.item!r} stays claimed for up to {self._job.ttl:g} s: {failure}")

    @staticmethod
    def _error_of(child: Child) -> str:
        if child.killer is None:
            return f"exit status {child.status}"
        return f"ended by {signal.Signals(child.killer).name}"

    def _environment(self, claim: AsyncClaim) -> dict[str, str]:
        names = {NAME: self._job.name, KEY: self._job.item, FENCE: str(claim.fence)}
        return os.environ | names
