"""bloomlock's locks in the shape of a step, so that the same scenario runs with both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bloomlock import Lock, LockError
from road.steps import Step

if TYPE_CHECKING:
    from redis import Redis


class Ours(Step):
    """`bloomlock.Lock`; what the holder believes is what `check()` says.

    Not renewed unless asked for, since a scenario counts the commands of its steps; and not bound
    to a thread, since a scenario runs a part of a step in another one.
    """

    def __init__(self, r: Redis, key: str, lease: float = 30.0, **options: Any) -> None:
        self.lock = Lock(
            key, client=r, ttl=lease, **{"renew": False, "thread_local": False, **options}
        )
        self.lease = lease
        self.key = self.lock.key

    def acquire(self) -> bool:
        return self.lock.acquire(blocking=False)

    def release(self) -> None:
        self.lock.release()

    @property
    def held(self) -> bool:  # type: ignore[override]  # the steps keep a note, the lock is asked
        try:
            self.lock.check()
        except LockError:
            return False
        return True
