"""The road to a lock, step 7: a watchdog that renews the lease while the work goes on."""

from __future__ import annotations

import threading

from road.steps import OwnerLua


class Watchdog(OwnerLua):
    """Step 7: one thread for each lock renews it at a third of its lease."""

    def acquire(self) -> bool:
        if super().acquire():
            self.stop = threading.Event()
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()
        return self.held

    def watch(self) -> None:
        while not self.stop.wait(self.lease / 3):
            self.renew()  # an error here ends the thread, and the holder does not learn of it

    def renew(self) -> None:
        self.r.pexpire(self.key, self.ms)  # also if it is another's by now

    def release(self) -> None:
        self.stop.set()  # a renewal may be under way
        super().release()


RENEW_IF_MINE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
"""


class ComparingWatchdog(Watchdog):
    """Step 7, mended in one respect: it renews its own lock only."""

    def renew(self) -> None:
        self.r.eval(RENEW_IF_MINE, 1, self.key, self.token, self.ms)
