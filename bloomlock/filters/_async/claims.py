"""Claims: how a filter gives each item to one worker at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock.filters import claim_ends, claim_lists, claims
from bloomlock.filters.claims import TTL_SECONDS, ClaimState, check_options
from bloomlock.sizing import check_whole

from .connected import AsyncConnectedFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from types import TracebackType
    from typing import NoReturn, Self

    from bloomlock.filters.claim_lists import ClaimCounts, FailedItem, OpenClaim
    from bloomlock.filters.claims import ClaimSession


class AsyncClaim:
    """An item under a lease while it is worked on; get one by `AsyncBloomFilter.claim`.

    As a context manager it commits at the end of the block, and gives the item back if the block
    raises. A claim that is not NEW does neither. With asyncio: `async with await ...`.
    """

    def __init__(self, session: ClaimSession, run: Callable[[Any], Awaitable[Any]]) -> None:
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
        return self._session.payload

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

    async def commit(self) -> None:
        """Add the item to the filter and end the claim, in one step; repeating it is harmless.

        Raises:
            ClaimLostError: If another worker claimed the item since the lease was over, or the
                filter was cleared.
            OutcomeUnknownError: If that may be so because a first try, whose reply was lost, has
                committed the item: then it was discarded since, or another worker has it.
            ClaimError: If it is not NEW, was given back, or is of a parent process.
            redis.exceptions.RedisError: If the server cannot be asked; it may be repeated.

        Cost: one round trip; O(k) on the server.
        """
        await self._run(claim_ends.commit(self._session))

    async def abandon(
        self, error: str | BaseException | None = None, *, offer: bool | None = None
    ) -> None:
        """Give the item back, so that the next who claims it gets it.

        Args:
            error: Why the work failed: the attempt counts, and with `max_attempts` the text is
                kept. None: it did not fail, and the attempt does not count.
            offer: Whether `expired` gives the item to the next who asks, unless it failed
                `max_attempts` times. None: an item that `expired` gave is given again when its
                lease is over, as no other caller may bring it; others are not.

        Raises:
            ClaimError: If it is not NEW, was committed, or is of a parent process.
            redis.exceptions.RedisError: If the server cannot be asked; the lease ends by itself.

        Cost: one round trip.
        """
        await self._run(claim_ends.abandon_many([self._session], error, offer=offer))

    async def extend(self, ttl: float | None = None) -> None:
        """Let the lease be `ttl` seconds (None: as it is) from now at least, and at each renewal.

        Raises:
            ClaimLostError, ClaimError, redis.exceptions.RedisError: As `commit`.

        Cost: one round trip.
        """
        await self._run(claim_ends.extend(self._session, ttl))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session.is_open:
            await self._run(claim_ends.leave(self._session, error))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} of {self.item!r:.80} cannot be pickled or copied, because this "
            "process renews it; claim the item where it is worked on"
        )

    def __repr__(self) -> str:
        ended = self._session.ended
        state = f"{self.state.name}, {ended}" if ended else self.state.name
        return f"<{type(self).__name__} of {self.item!r:.80}: {state}>"


class AsyncClaimableFilter(AsyncConnectedFilter):
    """What a filter has to give each item to one worker at a time."""

    async def claim(
        self,
        item: str | bytes,
        ttl: float = TTL_SECONDS,
        *,
        renew: bool = True,
        wait: float | None = None,
        payload: str | bytes | None = None,
        max_attempts: int | None = None,
    ) -> AsyncClaim:
        """Take an item to work on that is neither done nor another worker's.

        Args:
            item: A `str` (its UTF-8 form) or `bytes`.
            ttl: The lease in seconds: how long the claim outlives its worker.
            renew: Whether the lease is renewed, each third of it, until the claim ends.
            wait: Seconds to wait for the outcome while the item is BUSY; it asks again after 10 ms,
                then more rarely, and each 0.2 s in the end.
            payload: What `expired` gives, with the item, to who takes it over.
            max_attempts: After how many attempts the item is FAILED. An attempt counts if its
                worker died, or if it ended with an error. None: as its earlier claims had it.

        Returns:
            A Claim, true if the item is this worker's; a context manager.

        Raises:
            TypeError: If the item is neither.
            ConfigurationError: If a parameter is not usable, the strategy is neither "atomic" nor
                "lua", or scripts are forbidden.
            redis.exceptions.RedisError: If the server refused it or could not be reached; another
                try of this process is not blocked by this one.
            FilterLostError, CapacityError: As `add`.

        Cost: one round trip; O(k) on the server.

        >>> from bloomlock import AsyncBloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     async with AsyncBloomFilter("pages", 1000, client=server.url) as pages:
        ...         async with await pages.claim("a") as claim:
        ...             claim.state.name, (await pages.claim("a")).state.name
        ...         (await pages.claim("a")).state.name, await pages.exists("a")
        ('NEW', 'BUSY')
        ('SEEN', True)
        """
        options = check_options(ttl, renew, max_attempts, wait)
        session = await self._run(claims.claim(self._state, item, options, payload))
        return AsyncClaim(session, self._run)

    async def claim_many(
        self,
        items: Iterable[str | bytes],
        ttl: float = TTL_SECONDS,
        *,
        renew: bool = True,
        payloads: Sequence[str | bytes | None] | None = None,
        max_attempts: int | None = None,
    ) -> list[AsyncClaim]:
        """Claim many items; each has a state of its own, and one that is repeated is BUSY.

        Arguments and errors are those of `claim`, but `payloads`: one for each item, in their
        order, or None.

        Cost: one round trip.
        """
        options = check_options(ttl, renew, max_attempts)
        sessions = await self._run(claims.claim_many(self._state, items, options, payloads))
        return [AsyncClaim(session, self._run) for session in sessions]

    async def commit_many(self, made: Iterable[AsyncClaim]) -> list[bool]:
        """Commit claims of this filter; for each whether its item is in the filter now.

        It is False for a claim that was lost. With a ClaimError nothing is sent. Other errors are
        those of AsyncClaim.commit.

        Cost: one round trip.
        """
        return await self._run(claim_ends.commit_many([one._session for one in made]))

    async def abandon_many(
        self,
        made: Iterable[AsyncClaim],
        error: str | BaseException | None = None,
        *,
        offer: bool | None = None,
    ) -> None:
        """Give items back, in one round trip; see AsyncClaim.abandon."""
        sessions = [one._session for one in made]
        await self._run(claim_ends.abandon_many(sessions, error, offer=offer))

    async def expired(
        self, ttl: float = TTL_SECONDS, *, renew: bool = True, max_attempts: int | None = None
    ) -> AsyncIterator[AsyncClaim]:
        """Yield claims of the items whose workers died, each to one caller, oldest first.

        Items given to `retry_failed`, or given back with `offer=True`, are among them. An item is
        claimed when the iteration gets to it. Arguments and errors are those of `claim`.

        Cost: one round trip for each item, one for each 16 and for each shard.
        """
        search = claim_lists.Expired(self._state, check_options(ttl, renew, max_attempts))
        while found := await self._run(search.find()):
            yield AsyncClaim(found[0], self._run)

    async def claim_expired(
        self,
        limit: int = claim_lists.USUAL_EXPIRED,
        ttl: float = TTL_SECONDS,
        *,
        renew: bool = True,
        max_attempts: int | None = None,
    ) -> list[AsyncClaim]:
        """Claim up to `limit` (1 to 1000) of the items whose workers died; see `expired`.

        Fewer may be returned although there are others; none are if there are no such items.

        Cost: two round trips, one for each shard more without such items.
        """
        check_whole("limit", limit, 1, claim_lists.MOST_EXPIRED)
        search = claim_lists.Expired(self._state, check_options(ttl, renew, max_attempts))
        found = await self._run(search.find(limit))
        return [AsyncClaim(session, self._run) for session in found]

    async def open_claims(self) -> list[OpenClaim]:
        """Return the claims that are open, or over and not taken over yet.

        Cost: one round trip to each server; O(open claims) on it.
        """
        return await self._run(claim_lists.open_claims(self._state))

    async def count_claims(self) -> ClaimCounts:
        """Return the numbers of claims, by what became of them; one round trip to each server."""
        return await self._run(claim_lists.claim_counts(self._state))

    async def failed(self) -> list[FailedItem]:
        """Return the items that failed under `max_attempts`; one round trip to each server."""
        return await self._run(claim_lists.failed(self._state))

    async def retry_failed(self, items: Iterable[str | bytes]) -> list[bool]:
        """Give items that failed to workers again, with all their attempts.

        Each is claimed by who brings it or asks `expired()`, from now on. An item whose worker
        died, or that waits to be offered again, is treated the same. What a worker has is left to
        it.

        Returns:
            For each whether a worker has it, or is given it; False: it did not fail, or was
            committed or dropped since.

        Raises:
            FilterLostError, ConfigurationError, redis.exceptions.RedisError: As `claim`.

        Cost: one round trip; O(1) an item on the server.
        """
        return await self._run(claim_lists.settle(self._state, items, "retry"))

    async def drop_failed(self, items: Iterable[str | bytes]) -> list[bool]:
        """Forget items that failed or whose workers died, and their attempts.

        Who claims one later gets it as a new one; `add` it too to have it never worked on again.
        What a worker has is left to it.

        Returns:
            For each whether there was something to forget; False also if a reply was lost, and the
            first try dropped it.

        Errors and cost are those of `retry_failed`.
        """
        return await self._run(claim_lists.settle(self._state, items, "drop"))
