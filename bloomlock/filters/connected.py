"""What a filter object for threads stands on: its client, its runtime, its end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bloomlock.keys import FilterKeys
from bloomlock.locks.watchdog import WATCHDOG
from bloomlock.runtime.clients import sync_client
from bloomlock.runtime.threads import threads_for

from .base import FilterBase
from .claim_session import Keeper
from .memory import MemoryBloomFilter
from .state import FilterState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    import redis

    from bloomlock.effects import Core
    from bloomlock.runtime.threads import Threads

    from .options import OpenOptions

    Client = redis.Redis | redis.RedisCluster | str | None

T = TypeVar("T")


class Run(Protocol):
    """Carries out cores."""

    def __call__(self, core: Core[T]) -> T:
        """Carry out a core and return its result."""


class ConnectedFilter(FilterBase):
    """A filter object with a client for threads."""

    _run: Run

    @classmethod
    def _of(cls, name: str, options: OpenOptions, client: Client) -> Self:
        """Return an object that is not attached yet."""
        made = cls.__new__(cls)
        state = FilterState(FilterKeys(name, options.prefix), options, options.wanted)
        made._connect(state, client)  # noqa: SLF001 - a second constructor
        return made

    def _sibling(self, keys: FilterKeys, client: Client) -> Self:
        """Return an object of the same options that is not attached yet."""
        made = type(self).__new__(type(self))
        made._connect(self._state.sibling(keys), client)  # noqa: SLF001 - a second constructor
        return made

    def _opened(self, keys: FilterKeys) -> Self:
        return self._sibling(keys, self._client)._attach()  # noqa: SLF001

    def _start(self, name: str, options: OpenOptions, client: Client) -> None:
        state = FilterState(FilterKeys(name, options.prefix), options, options.wanted)
        self._connect(state, client)
        self._attach()

    def _connect(self, state: FilterState, client: Client) -> None:
        self._state = state
        self._client, self._owns_client = sync_client(client)
        self._runtime = threads_for(self._client)
        # An attribute of the object: each call has a frame less.
        self._run = self._runtime.run

    def _attach(self) -> Self:
        try:
            self._run(self._state.attach())
        except BaseException:
            self.close()
            raise
        return self

    def _keeper(self) -> Keeper:
        return Keeper(self._runtime, WATCHDOG)

    def exists(self, item: str | bytes) -> bool:
        """See BloomFilter.exists."""
        raise NotImplementedError

    def __contains__(self, item: str | bytes) -> bool:
        """Return `exists(item)`."""
        return self.exists(item)

    def count(self) -> int:
        """See BloomFilter.count."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return `count()`; so `if pages:` asks the server, and is False for an empty filter."""
        return self.count()

    def update(self, items: Any) -> None:
        """See BloomFilter.update."""
        raise NotImplementedError

    def __ior__(self, other: ConnectedFilter | MemoryBloomFilter) -> Self:
        """Add everything that another filter holds, as `update`.

        >>> from bloomlock import BloomFilter
        >>> from bloomlock.server import PrivateServer
        >>> with PrivateServer() as server:
        ...     seen = BloomFilter("seen", 1000, client=server.url)
        ...     more = BloomFilter("more", 1000, client=server.url)
        ...     more.update(["a", "b"])
        ...     seen |= more
        ...     "a" in seen
        True
        """
        if not isinstance(other, (ConnectedFilter, MemoryBloomFilter)):
            return NotImplemented
        self.update(other)
        return self

    def close(self) -> None:
        """Give back the connections; closes the client only if this object made it."""
        self._runtime.close()
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> Self:
        """Return the filter itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


@contextmanager
def connected(client: Client) -> Iterator[tuple[Any, Threads]]:
    """Give a client and its runtime for some requests; close what is made for them."""
    made, owned = sync_client(client)
    runtime = threads_for(made)
    try:
        yield made, runtime
    finally:
        runtime.close()
        if owned:
            made.close()
