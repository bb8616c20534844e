"""The kinds of locks that the contract is held to, and what each of them refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import redis
import redis.asyncio
from people import AsyncPerson, Loop, Person
from proxy import Proxy
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import wait_until

import bloomlock

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence

TTL = 60.0
"""A lease that no test waits for."""
PARTS = ("", ":holders", ":queue", ":alive")
REFUSES: dict[str, dict[str, str]] = {
    "Lock": {"again": "use ReentrantLock", "share": ""},
    "FairLock": {"again": "use ReentrantLock", "share": ""},
    "ReentrantLock": {"share": "", "any owner": "thread_local must be True for a ReentrantLock"},
    "read": {"again": "use ReentrantLock"},
    "write": {"again": "use ReentrantLock", "share": ""},
    "Redlock": {
        "again": "use ReentrantLock",
        "share": "",
        "fence": "",
        "queue": "",
        "order": "",
    },
}
"""By kind what it refuses, and with which sentence; empty: there is no such thing.

again      who holds it may acquire it once more
any owner  anybody may release it, with thread_local=False
share      other readers may hold it at the same time
fence      a number that rises with each grant
queue      a grant that is pushed to the next waiter
order      that who asks later gets it later
"""


class Backend(NamedTuple):
    """A kind of lock, of threads or of asyncio, on some servers."""

    kind: str
    is_async: bool

    def refuses(self, feature: str) -> str | None:
        return REFUSES[self.kind].get(feature)


class World:
    """People who use locks of one kind and one name, and the servers these lie on."""

    def __init__(self, backend: Backend, urls: Sequence[str], stack: contextlib.ExitStack) -> None:
        self.backend = backend
        self.urls = urls
        self.stack = stack
        self.servers = [stack.enter_context(redis.Redis.from_url(url)) for url in urls]
        for server in self.servers:
            server.flushall()
        self.loop = stack.enter_context(Loop()) if backend.is_async else None
        self._people: list[Person] = []
        self._closed: list[Any] = []
        self._clients: dict[str, Any] = {}
        stack.callback(self._end)

    def person(self) -> Person:
        made = AsyncPerson(self.loop.loop) if self.loop else Person()
        self._people.append(made)
        return made

    def lock_class(self, name: str) -> Any:
        return getattr(bloomlock, f"Async{name}" if self.backend.is_async else name)

    def lock(self, *, urls: Sequence[str] = (), **options: Any) -> Any:
        kind = self.backend.kind
        if kind in {"read", "write"}:
            return getattr(self._made("ReadWriteLock", urls, options), kind)
        return self._made(kind, urls, options)

    def rival(self, **options: Any) -> Any:
        """Return a lock that excludes the other one, whoever holds it."""
        if self.backend.kind == "read":
            return self._made("Lock", (), options)
        return self.lock(**options)

    def _made(self, name: str, urls: Sequence[str], options: dict[str, Any]) -> Any:
        clients = [self._client(url) for url in urls or self.urls]
        options = {"ttl": TTL} | options
        job = options.pop("name", "job")
        if name == "Redlock":
            patient = {"longest_ttl": 0, "server_timeout": 10.0}
            made = self.lock_class(name)(job, clients=clients, **patient | options)
        else:
            made = self.lock_class(name)(job, client=clients[0], **options)
        self._closed.append(made)
        return made

    def _client(self, url: str) -> Any:
        if url not in self._clients:
            module, retry = redis, Retry(NoBackoff(), 0)
            if self.backend.is_async:
                module = redis.asyncio
                retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
            self._clients[url] = module.Redis.from_url(url, retry=retry)
        return self._clients[url]

    def proxies(self) -> list[Proxy]:
        return [self.stack.enter_context(Proxy(url, handshake=False)) for url in self.urls]

    def held(self, lock: Any) -> list[bytes | None]:
        return [server.get(lock.key) for server in self.servers]

    def holders(self, lock: Any) -> set[str]:
        value = self.servers[0].get(lock.key) or b"="
        found = self.servers[0].zrange(f"{lock.key}:holders", 0, -1)
        return {token.decode() for token in (found if value.startswith(b"=") else [value])}

    def waiting(self, lock: Any) -> int:
        return int(self.servers[0].zcard(f"{lock.key}:queue"))

    def wipe(self, lock: Any) -> None:
        for server in self.servers:
            server.delete(lock.key, f"{lock.key}:holders")

    def is_free(self, lock: Any) -> bool:
        keys = [lock.key + part for part in PARTS]
        return not any(server.exists(*keys) for server in self.servers)

    def wait_until_free(self, lock: Any) -> None:
        """Wait until it is free; no lease and no place in the queue ends so soon by itself."""
        wait_until(lambda: self.is_free(lock), TTL / 2, "the lock is free")

    def _end(self) -> None:
        for server in self.servers:
            # Who still waits, because the test has failed, ends.
            server.flushall()
        if self.loop is None:
            for lock in self._closed:
                lock.close()
            for client in self._clients.values():
                client.close()
        else:
            self.loop.run(self._close())
        for person in self._people:
            person.end()

    async def _close(self) -> None:
        for lock in self._closed:
            await lock.close()
        for client in self._clients.values():
            await client.aclose()
