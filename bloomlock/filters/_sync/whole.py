# Written by tools/async_to_sync.py from bloomlock/filters/_async/whole.py; change that.
"""Filters as wholes: copies, files, unions, other names, when they expire, other parameters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bloomlock.commands import run_on
from bloomlock.errors import ConfigurationError
from bloomlock.filters import dump, lifetime, rebuilding
from bloomlock.filters.options import FilterOptions
from bloomlock.keys import DEFAULT_PREFIX, FilterKeys

from .connected import ConnectedFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from typing import BinaryIO, Literal, Self

    from bloomlock.filters.dump import Progress
    from bloomlock.filters.files import FilePath
    from bloomlock.filters.rebuilding import Items
    from bloomlock.sizing import Optimize

    from .connected import Client


class WholeFilter(ConnectedFilter):
    """What a filter has beside its methods for items."""

    def copy(self, name: str, *, progress: Progress | None = None) -> Self:
        """Copy the filter to a free name, opened with the same client; see `copy_to`."""
        return self.copy_to(self._client, name, progress=progress)

    def union_update(self, other: WholeFilter) -> None:
        """Add everything that another filter holds, while both are in use.

        When it returns, this filter holds every item whose `add` to either had returned before the
        call. An item added to the other one during the call may be there.

        `other` is an BloomFilter with the same parameters, on this server or on another one.

        Raises:
            ConfigurationError: If the bits of an item are others there, and nothing is changed; or
                the server runs no scripts for this client.
            FilterLostError: If one of the filters is cleared or lost during the call, and its
                `on_lost="raise"`. To repeat it is harmless, after any error.

        Cost: the bits travel through this client, 2 MiB in three round trips.
        """
        if not isinstance(other, WholeFilter):
            raise ConfigurationError(f"other must be a {type(self).__name__}, not {other!r:.80}")
        self._run(dump.union_update(self._state, self._run, other._state, other._run))

    def rename(self, name: str) -> Self:
        """Give the filter another name, and return it opened under that one.

        It keeps what it holds, its claims and its expiry. A client finds it under one of the names,
        never under both and never a part. Objects attached to the old name, this one as well, find
        it lost. A worker that has a claim cannot end it any more; its item is in `expired()` of the
        renamed filter when the lease is over.

        Raises:
            ConfigurationError: If the name is taken, the filter is in a cluster, or the server runs
                no scripts for this client.
            FilterLostError: If the filter is cleared or lost.

        Cost: six round trips.
        """
        keys = FilterKeys(name, self._state.keys.prefix)
        self._run(lifetime.rename(self._state, keys))
        return self._sibling(keys, self._client)._attach()

    def expire(self, ttl: float | timedelta) -> None:
        """Delete the whole filter after `ttl` seconds by the server's clock, or a timedelta.

        A `clear` takes that back.

        Raises:
            ConfigurationError: If `ttl` is not usable, or the server runs no scripts for this
                client.
            FilterLostError: If the filter is gone already.

        Cost: two round trips, three if there are several shards.
        """
        self._run(lifetime.expire(self._state, lifetime.check_ttl("ttl", ttl)))

    def persist(self) -> None:
        """Take back what `expire` said. Errors and cost are those of `expire`."""
        self._run(lifetime.expire(self._state, lifetime.NEVER_MS))

    def ttl(self) -> float | None:
        """Return in how many seconds the filter goes, None if it does not; one round trip."""
        return self._run(lifetime.ttl(self._state))

    def export_file(self, path: FilePath | BinaryIO, *, progress: Progress | None = None) -> None:
        """Write the filter to a file, which `import_file` reads.

        `MemoryBloomFilter.load` reads it too, unless the filter has a time window, grows, or items
        were discarded. What was added before is in it, whichever client added it; what is added
        during the call may be. What was discarded before is discarded in it. The file has its name
        when it is whole and on the disk, and a checksum. A random key is in it, and of a secret one
        a check alone.

        Args:
            path: The file; or one that is open for bytes, such as a pipe.
            progress: Called with how many bytes are done, and of how many.

        Raises:
            FilterLostError: If the filter is cleared, replaced or lost during the call; no
                file is left.
            ConfigurationError: If the strategy is "native", whose bits are the server's.
            OSError: If the file cannot be written; what was there before is unchanged.

        Cost: the whole bitmap comes, 2 MiB in a round trip; memory for some MiB, and 28 bytes for
        each discarded item.

        >>> import tempfile
        >>> from bloomlock import BloomFilter, MemoryBloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server, tempfile.TemporaryDirectory() as folder:
        ...     path, url = f"{folder}/pages", server.url
        ...     pages = BloomFilter("pages", 1000, client=url)
        ...     pages.update(["a", "b"])
        ...     pages.export_file(path)
        ...     again = BloomFilter.import_file("again", path, client=url)
        ...     again.exists_many(["a", "b", "c"]), "a" in MemoryBloomFilter.load(path)
        ([True, True, False], True)
        """
        self._run(dump.export_file(self._state, path, progress))

    @classmethod
    def import_file(
        cls,
        name: str,
        path: FilePath | BinaryIO,
        *,
        client: Client = None,
        replace: bool = False,
        progress: Progress | None = None,
        key: str | bytes | Literal[True] | None = None,
        prefix: str = DEFAULT_PREFIX,
    ) -> Self:
        """Make a filter of what `export_file` or `MemoryBloomFilter.save` wrote, and open it.

        No client sees a part of it: it has its name when all of the file is there and has its
        checksum. Until then the name is free, or has the filter that is replaced.

        With `replace` a filter of that name is replaced; objects attached to it find it lost, as
        after a clear. `path` and `progress` are as for `export_file`, `client`, `key` and `prefix`
        as for `open`, which opens the filter with other options.

        Raises:
            ConfigurationError: If the name is taken and `replace` is False, the server has not the
                memory, or the file is cut, foreign, of another format or damaged. Nothing was
                changed.
            FilterMismatchError: If the file's filter has another key.
            FilterLostError: If the server lost what was prepared.
            OSError: If the file cannot be read.

        Cost: the bits go to the server once, 1 MiB in a round trip; about 15 more.
        """
        options = FilterOptions(key=key, prefix=prefix)
        made = cls._of(name, options, client)
        state = made._state
        making = dump.import_file(state, path, replace=replace, progress=progress)
        return made._attach(making)

    def copy_to(
        self,
        client: Client,
        name: str | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Copy the filter to another server, and return the copy, opened there.

        What was added before is in it; what is added during the call may be. What was discarded
        before is discarded in it. The copy gets its name when it is whole, as in `import_file`.

        `client` is that of the other server, or its URL; a `name` of None that of this filter. The
        others are as for `import_file`.

        Raises:
            FilterLostError: If this filter is cleared, replaced or lost during the call, and its
                `on_lost="raise"`, or the other server lost what was prepared.
            ConfigurationError: As `import_file`; and for a copy of a filter to itself.

        Cost: as `export_file` and `import_file`.
        """
        keys = FilterKeys(self.name if name is None else name, self._state.keys.prefix)
        made = self._sibling(keys, client)
        there = partial(run_on, made._run)
        try:
            self._run(dump.copy_to(self._state, keys, there, replace=replace, progress=progress))
        except BaseException:
            made.close()
            raise
        return made._attach()

    def rebuild(
        self,
        items: Items,
        capacity: int | None = None,
        error_rate: float | None = None,
        *,
        late: Callable[[], Items] | None = None,
        seeds: Iterable[int] | None = None,
        num_hashes: int | None = None,
        optimize: Optimize | None = None,
        shards: int | None = None,
    ) -> None:
        """Give the filter other parameters, from its items, while it is in use.

        A Bloom filter cannot say what was added, so `items` come from where they are kept. Then it
        is closed: adds and tests of other objects wait. `late` is called, what it returns is added,
        and the new filter takes the place of the old one. The other objects go on with it.

        No item that was acknowledged before the switch is absent after it, if it is written to
        the source before it is added, and `late` returns what came to the source since `items`
        was read, or all of it. Items that the filter does not have are left out: their next `add`
        is new. An add that the switch meets on its way may be of unknown outcome.

        The other arguments are as for the class; capacity and error rate of None are as they are.
        The key stays. A filter that grows begins again with one slice.

        Raises:
            FilterLostError: If the filter is cleared, replaced or lost during the call.
            BloomlockError: If `late` takes so long that other clients opened the filter again;
                they do so after 30 s, also if this process dies. Or if items were discarded during
                the call, and the new filter has seeds.
            ConfigurationError: If a parameter is not usable, the server has not the memory for
                both filters or runs no scripts, the filter has a window, or the strategy is
                neither "atomic" nor "lua".
            And as `update`, and what `items` raises. Whatever is raised, the filter is as it was.

        An object that is made later and asks for the old parameters gets FilterMismatchError.
        Claims that are open then are lost.

        Cost: that of `exists_many` and of `update` with all items, and about 20 round trips. Items
        that the filter does not have are kept until the switch.

        >>> from bloomlock import BloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     pages = BloomFilter("pages", 1000, client=server.url)
        ...     pages.update(["a", "b"])
        ...     pages.rebuild(["a", "b", "never added"], capacity=50_000)
        ...     pages.capacity, pages.exists("a"), pages.add("never added")
        (50000, True, True)
        """
        bits = {"seeds": seeds, "num_hashes": num_hashes, "optimize": optimize, "shards": shards}
        self._run(rebuilding.rebuild(self._state, items, capacity, error_rate, bits, late=late))
