"""The road to a lock, step 10: first come, first served."""

from __future__ import annotations

import time

from road.steps import OwnerLua


class ListQueue(OwnerLua):
    """Step 10a: waiters stand in a list, and only the first may take the lock."""

    def enqueue(self) -> None:
        self.r.rpush(f"{self.key}:queue", self.token)

    def try_it(self) -> bool:
        queue = f"{self.key}:queue"
        if self.r.lindex(queue, 0) == self.token and self.acquire():
            self.r.lpop(queue)
        return self.held


def now_ms() -> int:
    return time.time_ns() // 1_000_000


JOIN = """
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local score = (tonumber(last[2]) or tonumber(ARGV[2])) + tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', score), ARGV[1])
"""

LEAVE = """
local place = redis.call('ZRANK', KEYS[1], ARGV[1]) or 0
for _, behind in ipairs(redis.call('ZRANGE', KEYS[1], place, -1)) do
  redis.call('ZINCRBY', KEYS[1], -ARGV[2], behind)
end
redis.call('ZREM', KEYS[1], ARGV[1])
"""

DROP_DEAD_AND_GET_FIRST = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
return redis.call('ZRANGE', KEYS[1], 0, 0)[1]
"""


class ScoreQueue(OwnerLua):
    """Step 10b: each waiter has a deadline one lease behind that of the waiter before it.

    A waiter that leaves moves all behind it forward by a lease, in one script.
    """

    def enqueue(self) -> None:
        self.r.eval(JOIN, 1, f"{self.key}:queue", self.token, now_ms(), self.ms)

    def try_it(self) -> bool:
        first = self.r.eval(DROP_DEAD_AND_GET_FIRST, 1, f"{self.key}:queue", now_ms())
        if first == self.token and self.acquire():
            self.leave()
        return self.held

    def leave(self) -> None:
        self.r.eval(LEAVE, 1, f"{self.key}:queue", self.token, self.ms)
