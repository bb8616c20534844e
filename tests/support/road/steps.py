"""The road to a lock, steps 1 to 6: how to take it and how to give it back.

Each step is runnable and mends what broke in the one before; docs/broken-locks.md quotes them. Only
the last of them is right, as far as it goes.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis


class Step:
    """What all steps share: a key, a token, and what the holder believes."""

    def __init__(self, r: Redis, key: str, lease: float = 30.0) -> None:
        self.r = r
        self.key = key
        self.lease = lease
        self.ms = int(lease * 1000)
        self.token = secrets.token_hex(8).encode()
        self.held = False


class GetSet(Step):
    """Step 1: look, then take."""

    def acquire(self) -> bool:
        if self.r.get(self.key) is None:
            self.r.set(self.key, self.token)
            self.held = True
        return self.held

    def release(self) -> None:
        self.held = False
        self.r.delete(self.key)


class SetNx(GetSet):
    """Step 2: look and take in one command."""

    def acquire(self) -> bool:
        self.held = bool(self.r.setnx(self.key, self.token))
        return self.held


class SetNxExpire(GetSet):
    """Step 3: take, then give it a lease."""

    def acquire(self) -> bool:
        self.held = bool(self.r.setnx(self.key, self.token))
        if self.held:
            self.r.pexpire(self.key, self.ms)
        return self.held


class SetNxPx(GetSet):
    """Step 4: take with a lease in one command."""

    def acquire(self) -> bool:
        self.held = bool(self.r.set(self.key, self.token, nx=True, px=self.ms))
        return self.held


class OwnerGetDel(SetNxPx):
    """Step 5: look whose it is, then give it back."""

    def release(self) -> None:
        self.held = False
        if self.r.get(self.key) == self.token:
            self.r.delete(self.key)


class OwnerWatch(SetNxPx):
    """Step 6a: look and give back in a transaction that fails if the key was touched."""

    def release(self) -> None:
        self.held = False
        with self.r.pipeline() as pipe:
            pipe.watch(self.key)
            if pipe.get(self.key) == self.token:
                pipe.multi()
                pipe.delete(self.key)
                pipe.execute()  # redis.WatchError: touched meanwhile


DELETE_IF_MINE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class OwnerLua(SetNxPx):
    """Step 6b: look and give back in one script."""

    def release(self) -> None:
        self.held = False
        self.r.eval(DELETE_IF_MINE, 1, self.key, self.token)
