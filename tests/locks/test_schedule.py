"""What is renewed when: pure bookkeeping, with the time passed in."""

from __future__ import annotations

import redis

from bloomlock import Lock
from bloomlock.locks.hold import Hold
from bloomlock.locks.watchdog import Schedule, retry_seconds

NOW = 1000.0
LEASE_MS = 30_000


class Server:
    """A runtime; holds on it are renewed together."""


def watched(schedule, runtime, name, locks):
    """Watch a hold that is to be renewed now."""
    lock = Lock(name, client=redis.Redis(port=1))
    locks.append(lock)
    session = lock._session
    hold = Hold(b"token", b"", LEASE_MS, 1, False, NOW, NOW + 30, 0, renew_at=NOW)
    session.holdings.put(lock._owner(), hold)
    schedule.add(hold, session, runtime)
    return hold


def test_a_server_that_has_not_answered_yet_is_not_asked_again():
    schedule, busy, free, locks = Schedule(), Server(), Server(), []
    asked = watched(schedule, busy, "one", locks)
    [[watch]] = schedule.due(NOW).values()
    assert watch.hold is asked
    assert asked.renewing
    late, other = watched(schedule, busy, "two", locks), watched(schedule, free, "three", locks)
    [[watch]] = schedule.due(NOW).values()
    assert watch.hold is other
    assert not late.renewing
    assert late.renew_at == NOW + retry_seconds(late)
    # It is asked about once the server has answered.
    asked.renewing = False
    asked.schedule_renewal(NOW + 10)
    assert not schedule.due(NOW)
    [[watch]] = schedule.due(late.renew_at).values()
    assert watch.hold is late


def test_what_is_due_soon_goes_along():
    schedule, server, locks = Schedule(), Server(), []
    now, soon = watched(schedule, server, "one", locks), watched(schedule, server, "two", locks)
    later = watched(schedule, server, "three", locks)
    soon.renew_at, later.renew_at = NOW + 1, NOW + 9
    [watches] = schedule.due(NOW).values()
    assert {watch.hold for watch in watches} == {now, soon}
    assert not later.renewing
