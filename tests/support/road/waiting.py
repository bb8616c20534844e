"""The road to a lock, step 8: how to wait for a lock that another one holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from road.steps import OwnerLua

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.client import PubSub


class Polling(OwnerLua):
    """Step 8a: ask again and again."""

    def wait(self, tries: int, sleep: Callable[[float], None] = time.sleep) -> bool:
        for _ in range(tries):
            if self.acquire():
                return True
            sleep(0.1)  # the lock may be free all this time
        return False


class Announced(OwnerLua):
    """Step 8b: a release is announced; a client that finds the lock busy listens."""

    def wait(self, seconds: float) -> bool:
        if self.acquire():
            return True
        with self.r.pubsub() as pubsub:
            pubsub.subscribe(self.key)  # a release may have been announced already
            return heard(pubsub, seconds) and self.acquire()

    def release(self) -> None:
        super().release()
        self.woken = self.r.publish(self.key, "free")  # all who listen


def heard(pubsub: PubSub, seconds: float) -> bool:
    """Return whether a message came; those that confirm a subscription do not count."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        message = pubsub.get_message(timeout=left)
        if message is not None and message["type"] == "message":
            return True
    return False


class ListenFirst(Announced):
    """Step 8c: listen first, then ask."""

    def wait(self, seconds: float) -> bool:
        with self.r.pubsub() as pubsub:
            pubsub.subscribe(self.key)
            pubsub.get_message(timeout=seconds)  # the subscription stands
            return self.acquire() or (heard(pubsub, seconds) and self.acquire())


class ExpiryEvents(OwnerLua):
    """Step 8d: listen for the server's own word that a lease ran out."""

    def wait(self, seconds: float) -> bool:
        with self.r.pubsub() as pubsub:
            pubsub.subscribe("__keyevent@0__:expired")
            pubsub.get_message(timeout=seconds)
            return self.acquire() or (heard(pubsub, seconds) and self.acquire())
