# Written by tools/async_to_sync.py from bloomlock/filters/_async/connected.py; change that.
"""The client and the runtime of a filter object, and how they are closed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError

from bloomlock.effects import shorten_traceback
from bloomlock.filters.inspection import FilterBase
from bloomlock.filters.state import FilterState
from bloomlock.runtime._sync.clients import client_of
from bloomlock.runtime._sync.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    import redis

    from bloomlock.effects import Core
    from bloomlock.filters.options import FilterOptions
    from bloomlock.keys import FilterKeys

    Client = redis.Redis | redis.RedisCluster | str | None

T = TypeVar("T")


class ConnectedFilter(FilterBase):
    """A filter object with a client; one for asyncio connects at the first use."""

    @classmethod
    def _of(cls, name: str, options: FilterOptions, client: Client) -> Self:
        """Return an object that is not attached yet."""
        made = cls.__new__(cls)
        made._connect(FilterState.of(name, options), client)
        return made

    def _sibling(self, keys: FilterKeys, client: Client) -> Self:
        """Return an object of the same options that is not attached yet."""
        made = type(self).__new__(type(self))
        made._connect(FilterState(keys, self._state.options, None), client)
        return made

    def _attach(self, making: Core[Any] | None = None) -> Self:
        """Attach, or carry out what makes the filter and does so; close the object if it fails."""
        try:
            self._run(self._state.attach() if making is None else making)
        except BaseException:
            self.close()
            raise
        return self

    def _connect(self, state: FilterState, client: Client) -> None:
        self._state = state
        self._client, self._owns_client = client_of(client)
        state.runtime = self._runtime = Driver.of(self._client)
        self._run = self._runtime.run

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
def connected(client: Client) -> Iterator[tuple[Any, Any]]:
    """Give a client and its runtime for some requests; close what is made for them."""
    made, owned = client_of(client)
    runtime = Driver.of(made)
    try:
        yield made, runtime
    except (RedisError, OSError) as error:
        shorten_traceback(error)
        raise
    finally:
        runtime.close()
        if owned:
            made.close()
