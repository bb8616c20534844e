"""A waiter's steps against a real server, with its clock and what it hears passed in by hand."""

from __future__ import annotations

import contextlib

import pytest
import redis
from lock_rules import Announcement, read_record

from bloomlock.effects import Behind, ConnectionLost, Limit, NextMessage, Pause, Request, Subscribe
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol import waiting
from bloomlock.locks.protocol.steps import (
    SLICE_MS,
    AcquireRequest,
    Granted,
    LockSteps,
    ReleaseRequest,
)
from bloomlock.locks.protocol.waiting import NO_CHANNEL, Attempt, deadline_of
from bloomlock.runtime._sync.driver import Driver

LEASE_MS = 600_000
KEYS = LockKeys.of("waited for")
CHANNEL = b"channel"


class Waiter:
    """Runs an attempt until it wants something that is not a request."""

    def __init__(self, client, *, until=None, channel=CHANNEL):
        self.now = 1000.0
        self.asks = 0
        self.channel = channel
        asking = AcquireRequest(b"waiter", LEASE_MS)
        self.attempt = Attempt(LockSteps(KEYS), asking, until, lambda: self.now)
        self._core = self.attempt.run()
        self._step = next(self._core)
        self._connection = client.connection_pool.get_connection()
        self.result = None
        self.is_down = False

    def go(self, answer=None):
        """Answer the last step; return the next one to wait for, or None at the end."""
        try:
            if not isinstance(self._step, (Request, Subscribe, Limit, Behind)):
                self._step = self._core.send(answer)
            while isinstance(self._step, (Request, Subscribe, Limit, Behind)):
                if self.is_down and isinstance(self._step, Request):
                    self._step = self._core.throw(lost())
                else:
                    self._step = self._core.send(self._answer())
        except StopIteration as stop:
            self.result = stop.value
            return None
        return self._step

    def _answer(self):
        step = self._step
        if isinstance(step, Subscribe):
            return self.channel if step.connect else b""
        if isinstance(step, Limit):
            return None
        if isinstance(step, Behind):
            return self._carry_out(step.core)
        self.asks += 1
        return self._exchange(step)

    def _carry_out(self, core):
        with contextlib.suppress(StopIteration):
            step = next(core)
            while True:
                step = core.send(self._exchange(step))

    def _exchange(self, step):
        replies = []
        for command in step.commands:
            self._connection.send_packed_command((command,))
            try:
                replies.append(self._connection.read_response(disable_decoding=True))
            except redis.ResponseError as error:
                replies.append(error)
        return replies

    @property
    def asking(self):
        return self.attempt.request


class Others:
    """Everybody else who uses the lock."""

    def __init__(self, r):
        self._r, self._run, self._steps = r, Driver.of(r).run, LockSteps(KEYS)

    def acquire(self, token, channel=b""):
        return self._run(self._steps.acquire(AcquireRequest(token, LEASE_MS, channel=channel)))[0]

    def release(self, token=b"holder"):
        return self._run(self._steps.release(ReleaseRequest(token)))

    def expire(self):
        self._r.delete(KEYS.lock)

    def picture(self):
        """Who has the lock, and who waits."""
        queue = self._r.zrange(KEYS.queue, 0, -1)
        return self._r.get(KEYS.lock), [read_record(record).token for record in queue]


@pytest.fixture
def others(r):
    """Others, one of whom has the lock."""
    made = Others(r)
    made.acquire(b"holder")
    return made


def lost():
    return ConnectionLost(redis.ConnectionError("down"), sent=False, replies=[])


def announced(grant, token=b"waiter"):
    return Announcement(CHANNEL, token, grant).payload


def test_it_waits_a_slice_and_then_asks_again(r, others):
    waiter = Waiter(r)
    for _ in range(3):
        step = waiter.go()
        assert step == NextMessage(b"waiter", SLICE_MS / 1000)
    assert others.picture()[1] == [b"waiter"]
    others.release()
    assert waiter.go() is None
    assert waiter.result.deadline == deadline_of(waiter.now, LEASE_MS)
    assert others.picture()[0] == b"waiter"


def test_it_waits_no_longer_than_the_lease_of_the_holder(r, others):
    r.pexpire(KEYS.lock, 700)
    step = Waiter(r).go()
    assert isinstance(step, NextMessage)
    assert 0 < step.seconds < 1


def test_an_announcement_is_enough(r, others):
    waiter = Waiter(r)
    waiter.go()
    asks = waiter.asks
    others.release()
    fence = int(r.get(KEYS.fence))
    waiter.now += 1
    assert waiter.go(announced(Granted(fence))) is None
    assert waiter.result.fence == fence
    assert waiter.result.deadline <= deadline_of(waiter.now, LEASE_MS)
    assert waiter.asks == asks


def test_the_announcement_of_a_grant_that_is_over_is_none(r, others):
    """It was stopped while it was granted the lock, until that grant had run out."""
    waiter = Waiter(r)
    waiter.go()
    others.release()
    old = announced(Granted(int(r.get(KEYS.fence))))
    others.expire()
    assert isinstance(others.acquire(b"stranger"), Granted)
    waiter.now += 3600
    assert isinstance(waiter.go(), NextMessage)
    # The message was there all the time, and is read only now.
    assert isinstance(waiter.go(old), NextMessage)
    assert waiter.result is None
    assert others.picture() == (b"stranger", [b"waiter"])


def test_the_same_after_all_was_flushed(r, others):
    waiter = Waiter(r)
    waiter.go()
    others.release()
    old = announced(Granted(int(r.get(KEYS.fence))))
    r.flushall()
    others.acquire(b"stranger")
    assert isinstance(waiter.go(), NextMessage)
    assert isinstance(waiter.go(old), NextMessage)


def test_a_grant_that_is_heard_of_too_late_is_none(r, others):
    waiter = Waiter(r)
    waiter.go()
    others.release()
    fence = int(r.get(KEYS.fence))
    others.expire()
    others.acquire(b"stranger")
    waiter.now += (LEASE_MS + SLICE_MS) / 1000
    assert isinstance(waiter.go(announced(Granted(fence))), NextMessage)


def test_a_grant_made_while_it_leaves_is_passed_on(r, others):
    waiter = Waiter(r)
    waiter.go()
    others.acquire(b"behind", b"other")
    others.release()
    core, waiter._core = waiter._core, waiter.attempt.leave()
    core.close()
    waiter._step = next(waiter._core)
    assert waiter.go() is None
    assert others.picture() == (b"behind", [])


def test_whom_nobody_can_tell_looks_by_itself(r, others):
    waiter = Waiter(r, channel=b"")
    assert [waiter.go() for _ in range(6)] == [Pause(waiting.LOOK_SECONDS)] * 6
    assert waiter.asking.channel == NO_CHANNEL
    others.release()
    assert waiter.go() is None
    assert waiter.result is not None


def test_a_server_that_is_away_for_less_than_a_lease_is_waited_for(r, others):
    waiter = Waiter(r)
    waiter.go()
    began, waiter.is_down = waiter.now, True
    while waiter.now - began < LEASE_MS / 2000:
        assert isinstance(waiter.go(), Pause)
        waiter.now += 60
    waiter.is_down = False
    step = waiter.go()
    while isinstance(step, Pause):
        step = waiter.go()
    assert isinstance(step, NextMessage)


def tried_in_vain(waiter):
    """Let a request be sent three times without an answer, and the pause after that begin."""
    return [waiter.go() for _ in range(3)] == [Pause(0.0), Pause(0.2), Pause(waiting.OUTAGE_PAUSE)]


def test_an_answer_that_comes_after_an_error_is_the_answer_at_the_time_limit(r, others):
    waiter = Waiter(r, until=1100.0)
    assert isinstance(waiter.go(), NextMessage)
    waiter.is_down = True
    assert tried_in_vain(waiter)
    waiter.is_down = False
    assert isinstance(waiter.go(), NextMessage)
    waiter.now += 200
    assert waiter.go() is None
    assert waiter.result is None
    assert others.picture() == (b"holder", [])


def test_an_error_that_comes_after_the_last_answer_is_raised_at_the_time_limit(r, others):
    waiter = Waiter(r, until=1100.0)
    assert isinstance(waiter.go(), NextMessage)
    waiter.is_down = True
    assert tried_in_vain(waiter)
    waiter.now += 200
    with pytest.raises(redis.ConnectionError, match="down"):
        waiter.go()


def test_a_server_that_is_away_for_longer_than_a_lease_is_given_up(r, others):
    waiter = Waiter(r)
    waiter.go()
    began, waiter.is_down = waiter.now, True
    with pytest.raises(redis.ConnectionError, match="down"):
        for _ in range(LEASE_MS // 1000):
            waiter.go()
            waiter.now += 60
    assert waiter.now - began > LEASE_MS / 1000
