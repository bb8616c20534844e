"""The road to a lock, step 9: a lock that its holder may take again."""

from __future__ import annotations

from road.steps import Step

COUNT_UP = """
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""

COUNT_DOWN = """
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then redis.call('DEL', KEYS[1]) end
"""


class HashCount(Step):
    """Step 9: a hash of one field, owner -> how often it was taken."""

    def acquire(self) -> bool:
        return bool(self.r.eval(COUNT_UP, 1, self.key, self.token, self.ms))

    def release(self) -> None:
        self.r.eval(COUNT_DOWN, 1, self.key, self.token)


COUNT_DOWN_IF_MINE = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then redis.call('DEL', KEYS[1]) end
"""


class CheckedHashCount(HashCount):
    """Step 9, mended in one respect: who does not hold it cannot count it down."""

    def release(self) -> None:
        self.r.eval(COUNT_DOWN_IF_MINE, 1, self.key, self.token)
