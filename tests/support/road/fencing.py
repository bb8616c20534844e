"""The road to a lock, step 13: a number that rises, so that a late write is known by it."""

from __future__ import annotations

from road.steps import OwnerLua


class Numbered(OwnerLua):
    """Step 13a: take the lock, then take a number."""

    fence = 0

    def acquire(self) -> bool:
        if super().acquire():
            self.fence = self.r.incr(f"{self.key}:fence")  # the lease may be over by now
        return self.held


TAKE_WITH_NUMBER = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.call('INCR', KEYS[2])
end
return 0
"""


class NumberedAtOnce(OwnerLua):
    """Step 13b: lock and number are taken together."""

    fence = 0

    def acquire(self) -> bool:
        keys = self.key, f"{self.key}:fence"  # the second stays for ever
        self.fence = self.r.eval(TAKE_WITH_NUMBER, 2, *keys, self.token, self.ms)
        self.held = bool(self.fence)
        return self.held
