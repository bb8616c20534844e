"""Claim and AsyncClaim: an item that a worker has under a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from bloomlock.runtime.clients import not_portable

from .claim_session import ClaimState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType
    from typing import Any, Self

    from .claim_session import ClaimSession


class ClaimBase:
    """What is known of a claim without a request.

    Args:
        session: The claim.
        run: Carries out what is asked of the server.
    """

    def __init__(self, session: ClaimSession, run: Callable[[Any], Any]) -> None:
        """Take a claim that was asked for."""
        self._session = session
        self._run = run

    def __bool__(self) -> bool:
        """Whether the item is this worker's to work on: whether the state is NEW."""
        return self.state is ClaimState.NEW

    @property
    def state(self) -> ClaimState:
        """NEW, SEEN, BUSY or FAILED, as the server answered."""
        return self._session.state

    @property
    def item(self) -> str | bytes:
        """The item."""
        return self._session.offer.item

    @property
    def payload(self) -> str | bytes | None:
        """What was kept with the item; BUSY: by the other claim."""
        return self._session.offer.payload

    @property
    def attempts(self) -> int:
        """How often work on the item began and did not end well, this claim (if NEW) included."""
        return self._session.attempts

    @property
    def fence(self) -> int | None:
        """The number of a NEW claim, which rises with each claim of the shard; else None."""
        hold = self._session.hold
        return None if hold is None else hold.fence

    @property
    def remaining(self) -> float:
        """Seconds left of the lease, of this claim or, BUSY, of the other; else 0."""
        return self._session.remaining

    @property
    def lost(self) -> bool:
        """Whether this worker cannot rely on the claim any more, as far as is known here."""
        return bool(self._session.lost)

    def check(self) -> None:
        """Raise ClaimLostError if `lost`, ClaimError if there is no claim to rely on."""
        self._session.check()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: a claim is renewed by its process."""
        raise TypeError(not_portable(self))

    def __repr__(self) -> str:
        """Return item and state; no request is sent."""
        ended = self._session.ended
        state = f"{self.state.name}, {ended}" if ended else self.state.name
        return f"<{type(self).__name__} of {self.item!r:.80}: {state}>"


class Claim(ClaimBase):
    """An item under a lease while it is worked on; get one by `BloomFilter.claim`.

    As a context manager it commits at the end of the block, and gives the item back if the block
    raises, also KeyboardInterrupt, which then goes on. A claim that is not NEW does neither.
    """

    def commit(self) -> None:
        """Add the item to the filter and end the claim, in one step.

        Repeating it is harmless. After the end of the lease it succeeds if no other worker has
        claimed the item since.

        Raises:
            ClaimLostError: If another worker claimed the item since, or the filter was cleared.
            ClaimError: If it is not NEW, was given back, or is of a parent process.
            redis.exceptions.RedisError: If the server cannot be asked; it may be repeated.

        Cost: one round trip; O(k) on the server.
        """
        self._run(self._session.commit())

    def abandon(
        self, error: str | BaseException | None = None, *, offer: bool | None = None
    ) -> None:
        """Give the item back, so that the next who claims it gets it.

        Args:
            error: Why the work failed: the attempt counts, and with `max_attempts` the text is
                kept. None: it did not fail, and the attempt does not count.
            offer: Whether `expired` gives the item, with its payload, to the next who asks, from
                now on. It does not if the item failed `max_attempts` times. None: an item that
                `expired` gave is given again when the lease it had is over, as no other caller
                may bring it; others are not.

        Raises:
            ClaimError: If it is not NEW, was committed, or is of a parent process.
            redis.exceptions.RedisError: If the server cannot be asked; the lease ends by itself.

        Cost: one round trip.
        """
        self._run(self._session.abandon(error, offer=offer))

    def extend(self, ttl: float | None = None) -> None:
        """Let the lease be `ttl` seconds from now, at least, and as long at each renewal.

        Args:
            ttl: Seconds; None: the lease it has.

        Raises:
            ClaimLostError: If another worker claimed the item since, or the filter was cleared.
            ClaimError: If it is not NEW, or ended.

        Cost: one round trip.
        """
        self._run(self._session.extend(ttl))

    def __enter__(self) -> Self:
        """Return the claim itself, NEW or not."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or give the item back."""
        if self._session.is_open:
            self._run(self._session.leave(error))


class AsyncClaim(ClaimBase):
    """Claim for asyncio: the same methods, awaited; `async with await pages.claim(item)`."""

    if TYPE_CHECKING:
        _run: Callable[[Any], Awaitable[Any]]

    async def commit(self) -> None:
        """Add the item to the filter and end the claim. See Claim.commit."""
        await self._run(self._session.commit())

    async def abandon(
        self, error: str | BaseException | None = None, *, offer: bool | None = None
    ) -> None:
        """Give the item back. See Claim.abandon."""
        await self._run(self._session.abandon(error, offer=offer))

    async def extend(self, ttl: float | None = None) -> None:
        """Let the lease be `ttl` seconds from now, at least. See Claim.extend."""
        await self._run(self._session.extend(ttl))

    async def __aenter__(self) -> Self:
        """Return the claim itself, NEW or not."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or give the item back."""
        if self._session.is_open:
            await self._run(self._session.leave(error))


def sessions_of(made: Iterable[Claim] | Iterable[AsyncClaim]) -> list[ClaimSession]:
    """Return what several claims stand for."""
    return [one._session for one in made]  # noqa: SLF001 - our own classes
