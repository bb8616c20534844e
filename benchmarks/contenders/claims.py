"""Ways to work on an item once: claim it, work, and mark it as done.

`add` claims a new item and finishes it, `exists` claims one that is done. No work is between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.place import Place, connect
from bloomlock import BloomFilter, ClaimState

if TYPE_CHECKING:
    from collections.abc import Sequence

LEASE = 60.0


class Claims:
    def __init__(self, place: Place) -> None:
        client = connect(place.url)
        self._filter = BloomFilter(**place.of_a_filter(), client=client)

    def add(self, item: str) -> bool:
        with self._filter.claim(item) as claim:
            return bool(claim)

    def exists(self, item: str) -> bool:
        return self._filter.claim(item).state is ClaimState.SEEN

    def add_many(self, items: Sequence[str]) -> list[bool]:
        claims = self._filter.claim_many(items, LEASE)
        self._filter.commit_many([claim for claim in claims if claim])
        return [bool(claim) for claim in claims]


class LockAndSet:
    """A Lock of redis-py for each item, and a set of those that are done.

    It asks the set before the lock, which makes an item that is done cheap, and after it again:
    the item may have been done in between.
    """

    def __init__(self, place: Place) -> None:
        self._client = connect(place.url)
        self._done, self._lock = f"{place.name}:done", f"{place.name}:lock:"

    def add(self, item: str) -> bool:
        return self.add_many([item])[0]

    def exists(self, item: str) -> bool:
        return not self.add(item)

    def add_many(self, items: Sequence[str]) -> list[bool]:
        locks = [self._take(item) for item in items]
        for item, lock in zip(items, locks, strict=True):
            if lock is not None:
                self._client.sadd(self._done, item)
                lock.release()
        return [lock is not None for lock in locks]

    def _take(self, item: str) -> Any:
        if self._client.sismember(self._done, item):
            return None
        lock: Any = self._client.lock(self._lock + item, timeout=LEASE)
        if not lock.acquire(blocking=False):
            return None
        if self._client.sismember(self._done, item):
            lock.release()
            return None
        return lock
