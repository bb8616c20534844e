"""The filter: a set-like object that every process shares that uses its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from bloomlock.filters import answers, discards, dump, inspection, scripted
from bloomlock.filters.memory import MemoryBloomFilter
from bloomlock.filters.options import FilterOptions
from bloomlock.filters.state import FilterState
from bloomlock.keys import DEFAULT_PREFIX

from .claims import AsyncClaimableFilter
from .whole import AsyncWholeFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable, Sequence
    from datetime import timedelta
    from typing import Any, Literal, Self

    from bloomlock.filters.batches import Route
    from bloomlock.filters.inspection import FilterInfo
    from bloomlock.filters.near_cache import NearCache
    from bloomlock.filters.options import OnFull, OnLost, OnUnknown
    from bloomlock.sizing import Optimize
    from bloomlock.slices import Growth, Window
    from bloomlock.strategies import Strategy

    from .connected import AsyncClient

Item = TypeVar("Item", bound=str | bytes)


class AsyncBloomFilter(AsyncClaimableFilter, AsyncWholeFilter):
    """A Bloom filter in Redis, shared by every process that uses its name.

    Creates the filter, or attaches to it and checks that it has the same parameters. With asyncio
    that is done at the first use, or by `await`ing the object itself, and `add`s and `exists`s that
    wait at the same time go out together, in order; one that is cancelled harms no other.

    Args:
        name: Free text; the filter's identity on the server.
        capacity: Distinct items it is sized for, n >= 1.
        error_rate: False-positive rate at that fill, 0 < p < 1.
        client: A client of redis.asyncio (standalone, Sentinel or Cluster), a URL, or None: the URL
            in BLOOMLOCK_URL, else in REDIS_URL, else the embedded server.
        strategy: How an update reaches Redis: "atomic", "lua", "transaction",
            "pipeline", "lock", or "native" for a filter that the server has itself (BF.*).
        key: A secret of 16 to 64 bytes (or a str of as many in UTF-8) that the bits of an item
            depend on, for items chosen by strangers. All users give the same; the server stores a
            check of it, never the secret. True: a random one, stored with the filter. None: no key,
            and anyone can make an item with the bits of another one.
        seeds: One Murmur3 seed for each hash function (this fixes k); None: one digest for all.
        num_hashes: Hash functions, 1 <= k <= 64, that a new filter gets and an existing one must
            have; fewer take less time and more memory. None: by `optimize`.
        optimize: "memory" takes the least of it, "speed" about 2.6 times as much for a third of the
            hash functions (at 1e-6), "balanced" 1.6 times for less than half. None: as an existing
            filter has it, "balanced" for a new one.
        shards: Redis strings to spread the bits over; None: one for each 6 MiB, up to 4096.
        window: A timedelta, seconds or `Window(...)`: how long an item is remembered at least, by
            the server's clock; capacity is then the items of a window, spread evenly. None: for
            ever. It needs strategy "atomic" or "lua" and on_full "warn".
        near_cache: Positive answers kept in the process and given without a round trip: the last N
            for certain, at most 2 N. They may be given for a second after a clear by another
            client; `NearCache(...)` says for how long. 0: none.
        on_full: "warn" logs when the filter is nearly full and full; "raise" refuses new items then
            with CapacityError, and 64 clients that add at once pass the capacity by a tenth at
            most. "grow", or `Growth(...)`, adds slices and keeps the error rate; it needs strategy
            "atomic" or "lua", and takes no seeds and no window.
        on_lost: When the filter turns out to be missing, cleared or replaced: "raise"
            FilterLostError, or "recreate" it and go on.
        on_unknown: When the reply to an add was lost: "raise" OutcomeUnknownError, or count the
            item as "new", which then may be absent.
        prefix: Start of all keys.

    Raises:
        ConfigurationError: If a parameter is not usable, or the server has not the memory for a
            filter that has to be created; nothing was written.
        ServerError: If the URL does not answer as a Redis server.
        FilterMismatchError: If the name holds a filter with other parameters, or no filter.
        FilterLostError: If the name holds a filter whose bitmap is gone, with `on_lost="raise"`.

    Cost: two round trips to attach, nine to create; one more for several shards. The server's
    memory for the full capacity is taken at creation.

    >>> from bloomlock.server import PrivateServer
    >>> with PrivateServer() as server:
    ...     pages = await AsyncBloomFilter("pages", capacity=100_000, client=server.url)
    ...     pages
    ...     await pages.add("https://example.org/"), await pages.add("https://example.org/")
    ...     await pages.exists("https://example.org/"), await pages.exists("another")
    ...     await pages.add_many(["a", "b", "a"])
    ...     await pages.count()
    <AsyncBloomFilter 'pages': 100000 items at 1e-06, 4679077 bits, 7 hashes, 1 shard, atomic>
    (True, False)
    (True, False)
    [True, True, False]
    3
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        error_rate: float = 1e-6,
        *,
        client: AsyncClient = None,
        strategy: str | Strategy = "atomic",
        key: str | bytes | Literal[True] | None = None,
        seeds: Iterable[int] | None = None,
        num_hashes: int | None = None,
        optimize: Optimize | None = None,
        shards: int | None = None,
        window: timedelta | float | Window | None = None,
        near_cache: int | NearCache = 0,
        on_full: OnFull | Growth = "warn",
        on_lost: OnLost = "raise",
        on_unknown: OnUnknown = "raise",
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        """Check the parameters; for threads, also create the filter or attach to it."""
        options = FilterOptions(
            shape={
                "capacity": capacity,
                "error_rate": error_rate,
                "seeds": seeds,
                "num_hashes": num_hashes,
                "optimize": optimize,
                "shards": shards,
                "window": window,
            },
            strategy=strategy,
            key=key,
            near_cache=near_cache,
            on_full=on_full,
            on_lost=on_lost,
            on_unknown=on_unknown,
            prefix=prefix,
        )
        self._connect(FilterState.of(name, options), client)
        if True:  # ASYNC
            return
        self._attach()

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        client: AsyncClient = None,
        strategy: str | Strategy = "atomic",
        key: str | bytes | Literal[True] | None = None,
        refresh: bool = False,
        near_cache: int | NearCache = 0,
        on_full: OnFull = "warn",
        on_lost: OnLost = "raise",
        on_unknown: OnUnknown = "raise",
        prefix: str = DEFAULT_PREFIX,
    ) -> Self:
        """Attach to a filter that exists, reading every parameter from the server.

        With `refresh` an `add` refreshes an item that is there, in a filter with a window. The
        other arguments are as for the class.

        Raises:
            FilterNotFoundError: If there is no filter of that name.
            And as the class.
        """
        options = FilterOptions(
            strategy=strategy,
            key=key,
            refresh=refresh,
            near_cache=near_cache,
            on_full=on_full,
            on_lost=on_lost,
            on_unknown=on_unknown,
            prefix=prefix,
        )
        return await cls._of(name, options, client)._attach()

    async def add(self, item: str | bytes) -> bool:
        """Add an item: a `str` (its UTF-8 form) or `bytes`.

        Returns:
            True if it is new: of any number of concurrent adds of a new item exactly one gets
            True (except with the pipeline strategy).

        Raises:
            TypeError: If the item is neither.
            OutcomeUnknownError: If the reply was lost and `on_unknown="raise"`.
            redis.exceptions.RedisError: If the server refused it or could not be reached; then the
                item was not added.
            FilterLostError: If the filter is gone and `on_lost="raise"`.
            CapacityError: If the filter is full and `on_full="raise"`.

        Cost: one round trip, three with the lock strategy, none for an item in the near-cache; O(k)
        on the server. With `on_full="raise"` one more to look at the fill, after a second and after
        each 64th of what is free; one for each shard where they hold few items.
        """
        if (near := self._state.near) is not None and near.knows(item):
            return False
        if True:  # ASYNC
            return await self._calls().call(item, write=True)
        return await self._run(answers.add(self._state, item))

    async def exists(self, item: str | bytes) -> bool:
        """Return whether an item was added, or with probability `error_rate` only looks like it.

        Raises:
            TypeError, FilterLostError: As `add`.

        Cost: one round trip, repeated if its reply is lost; none for an item in the near-cache.
        """
        if (near := self._state.near) is not None and near.knows(item):
            return True
        if True:  # ASYNC
            return await self._calls().call(item, write=False)
        return await self._run(answers.exists(self._state, item))

    async def add_many(self, items: Iterable[str | bytes], *, route: Route = "auto") -> list[bool]:
        """Add many items; an item repeated among them is new once.

        Args:
            items: Any iterable; read no further than one chunk ahead.
            route: How a chunk reaches the server. "items": the bits of each item, by the filter's
                strategy. "bitmap": the bits of all, built here and merged there; strategy "atomic"
                or "lua" without a window. "auto": the bitmap for many items where the shards have
                up to 8 MiB, else "items".

        Returns:
            One answer for each item, in order, as `add` gives it.

        Raises:
            As `add`. Where answers are known already, the error is a PartialResultError that has
            them as `results`; a BatchError is of the kind of its cause. What `items` raises passes
            through, and the answers are lost: use `add_each` for an iterable that may fail.

        Cost: memory for one chunk, at most 262,144 items, and the answers. By "items" several
        commands are on their way at once with "atomic", "lua" and "native", else one round trip for
        each 10,000 / k items. By "bitmap" two for a chunk and shard, its bits there and back.
        """
        return await self._run(answers.add_many(self._state, items, route))

    def add_each(
        self, items: Iterable[Item], *, route: Route = "auto", batch_size: int | None = None
    ) -> AsyncIterator[tuple[Item, bool]]:
        """Add items of a stream; yield each with its answer, in order and in bounded memory.

        Args:
            items: Any iterable, endless ones too; read a batch at a time. What was read and not
                yielded when the iteration is given up may have been added.
            route: As for `add_many`.
            batch_size: Items that are read before they are added, at most. None: from 10,000 / k
                to 262,144, twice as many each time.

        Yields:
            The item and what `add` returns for it.

        Raises:
            As `add_many`, after all that was answered is yielded: the `results` of an error begin
            with the first item that was not yielded.

        Cost: as `add_many` for each batch; memory for one batch.

        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     pages = await AsyncBloomFilter("pages", 1000, client=server.url)
        ...     async for page, is_new in pages.add_each(["a", "b", "a"]):
        ...         print(page, is_new)
        a True
        b True
        a False
        """
        return self._each(answers.Stream(self._state, items, route, batch_size))

    async def _each(self, stream: answers.Stream) -> AsyncIterator[tuple[Any, bool]]:
        while answered := await self._run(stream.add_next()):
            for one in answered:
                yield one

    async def exists_many(
        self, items: Iterable[str | bytes], *, route: Route = "auto"
    ) -> list[bool]:
        """Test many items; one answer for each, in order, as `exists`. Cost: as `add_many`."""
        return await self._run(answers.exists_many(self._state, items, route))

    async def update(
        self,
        items: Iterable[str | bytes] | MemoryBloomFilter | AsyncBloomFilter,
        *,
        route: Route = "auto",
    ) -> None:
        """Add many items without asking which of them are new.

        Args:
            items: As for `add_many`; or a MemoryBloomFilter of the same parameters, whose bits are
                merged however full this filter is; or an AsyncBloomFilter, as by `union_update`.
            route: As for `add_many`.

        Raises:
            OutcomeUnknownError: If a reply was lost three times in a row; to repeat the update is
                harmless.
            As `add_many`. A PartialResultError has `added`: how many items certainly were. What
                `items` raises passes through, when all items before it are added.

        Cost: as `add_many`, but memory for one chunk only.
        """
        if isinstance(items, MemoryBloomFilter):
            await self._run(dump.update_from_memory(self._state, items))
        elif isinstance(items, AsyncBloomFilter):
            await self.union_update(items)
        else:
            await self._run(answers.update(self._state, items, route))

    async def discard(self, item: str | bytes) -> bool:
        """Discard an item, so that it is new again; no other item is touched.

        Returns:
            True if it was there, or with probability `error_rate` if it only looked like it. Of any
            number of concurrent discards of an item exactly one gets True, and of concurrent
            adds after it exactly one is new.

        Raises:
            ConfigurationError: If the strategy is neither "atomic" nor "lua", or scripts are
                forbidden.
            OutcomeUnknownError: If the reply was lost; repeating the discard is harmless, and then
                says False if the first one was carried out.
            TypeError, redis.exceptions.RedisError, FilterLostError: As `add`.

        Cost: one round trip, two more for this object's first one in a filter of several shards;
        O(k) on the server, and about 60 bytes of its memory until the item is added again, which
        costs one more round trip. Once there are discarded items, an `add` or `exists` takes the
        server up to 1.2 times as long.

        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     pages = await AsyncBloomFilter("pages", 1000, client=server.url)
        ...     await pages.add("a"), await pages.discard("a"), await pages.exists("a")
        ...     await pages.add("a")
        (True, True, False)
        True
        """
        return await self._run(discards.discard(self._state, item))

    async def discard_many(self, items: Iterable[str | bytes]) -> list[bool]:
        """Discard many items; one answer for each, in order, as `discard` gives it.

        Raises as `discard`, and a PartialResultError as `add_many`. Cost: one round trip for each
        10,000 items.
        """
        return await self._run(discards.discard_many(self._state, items))

    async def run_script(
        self,
        script: str,
        items: Iterable[str | bytes] = (),
        keys: Sequence[str] = (),
        args: Sequence[str | bytes | int] = (),
    ) -> Any:
        """Run a Lua script of yours in which items are tested and added: one atomic step.

        In it `add(1)` adds the first item and returns whether it is new, `exists(1)` tests it.
        KEYS and ARGV are `keys` and `args`. It is sent again where its reply is lost, so it must be
        safe to repeat: `add` returns false then.

        Args:
            script: Lua 5.1, as for EVAL.
            items: As for `add_many`; a few hundred, as the server does nothing else in that time.
            keys: All keys that the script uses. On a cluster the filter must have one shard, and
                the keys must have its `hash_tag`.
            args: Its arguments, 5000 at most.

        Returns:
            What the script returns, as redis-py has it.

        Raises:
            ConfigurationError: If a parameter is not usable, the strategy is neither "atomic" nor
                "lua", or scripts are forbidden.
            redis.exceptions.RedisError: If the server refused it or could not be reached; it may
                have been carried out.
            TypeError, FilterLostError, CapacityError: As `add`.

        Cost: one round trip; O(k) on the server for each `add` and `exists`.

        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     pages = await AsyncBloomFilter("pages", 1000, client=server.url)
        ...     push = "if add(1) then return redis.call('RPUSH', KEYS[1], ARGV[1]) end return 0"
        ...     for _ in range(2):
        ...         await pages.run_script(push, ["a"], ["{pages}:queue"], ["GET a"])
        1
        0
        """
        return await self._run(scripted.run_script(self._state, script, items, keys, args))

    async def to_memory(self) -> MemoryBloomFilter:
        """Return the bits as a filter in this process; items added at the same time may be in it.

        Raises:
            ConfigurationError: If the filter has a window, grows or has discarded items, or the
                strategy is neither "atomic" nor "lua".

        Cost: the whole bitmap comes, 2 MiB in a round trip.
        """
        return await self._run(dump.fetch(self._state))

    async def count(self) -> int:
        """Return the estimated number of distinct items (Swamidass, Baldi 2007).

        Cost: the server reads the whole bitmap, at most 16 MiB in one command.
        """
        return await self._run(inspection.count(self._state))

    async def info(self) -> FilterInfo:
        """Return parameters, fill, estimated count, error rate and memory. Cost: as `count`."""
        return await self._run(inspection.info(self._state))

    async def clear(self) -> None:
        """Empty the filter for all clients; other objects attached to it notice.

        Cost: eight round trips, nine if there are several shards.
        """
        await self._run(self._state.clear())

    async def delete(self) -> bool:
        """Delete the filter; True if there was one. Objects attached to it find it lost."""
        return await self._run(self._state.delete())

    async def reattach(self) -> None:
        """Go on with the filter as it is on the server now, after a FilterLostError.

        Raises:
            FilterLostError: If a part of it is gone, and `on_lost="raise"`: delete it then.
            And as the class.
        """
        await self._run(self._state.attach())

    if True:  # ASYNC

        def __await__(self) -> Generator[Any, None, Self]:
            """Create the filter or attach to it now, and return it."""
            return self._attach().__await__()

    else:

        def __contains__(self, item: str | bytes) -> bool:
            """Return `exists(item)`."""
            return self.exists(item)

        def __len__(self) -> int:
            """Return `count()`. So `if pages:` asks the server; an empty filter is False."""
            return self.count()
