"""Under WATCH a step takes several commands; others may come between any two of them.

Whatever they do there, the outcome is the same as if they had done it before or after.
"""

from __future__ import annotations

import time
from itertools import count

import lock_ways
import pytest
import redis

from bloomlock.effects import Pause, Request, Subscribe
from bloomlock.keys import LockKeys
from bloomlock.locks.protocol import model
from bloomlock.locks.protocol.model import AcquireRequest, Busy, Granted, ReleaseRequest
from bloomlock.locks.protocol.steps import LockSteps, Renewal, renew_all
from bloomlock.locks.protocol.transactions import run_optimistically

LEASE_MS = 600_000
KEYS = LockKeys.of("raced")


def carry_out(core, client, before_command=lambda _: None):
    """Run a core, command by command, all on one connection."""
    connection = client.connection_pool.get_connection()
    numbers = count()
    try:
        step = next(core)
        while True:
            assert not isinstance(step, Subscribe)
            answer = None
            if isinstance(step, Request):
                answer = []
                for command in step.commands:
                    before_command(next(numbers))
                    connection.send_packed_command((command,))
                    try:
                        answer.append(connection.read_response(disable_decoding=True))
                    except redis.ResponseError as error:
                        answer.append(error)
            else:
                assert isinstance(step, Pause)
            step = core.send(answer)
    except StopIteration as stop:
        return stop.value
    except BaseException:
        connection.disconnect()
        raise
    finally:
        client.connection_pool.release(connection)


def asking(name, group=b"", **more):
    return AcquireRequest(name.encode(), LEASE_MS, group, channel=b"channel", **more)


HOLDER, FIRST, SECOND = asking("holder"), asking("first"), asking("second")
READER, READING = asking("reader", b"r"), asking("reading", b"r")
NEWCOMER = AcquireRequest(b"newcomer", LEASE_MS)
SITUATIONS = {
    "free": [],
    "held": [HOLDER],
    "held, one waits": [HOLDER, FIRST],
    "held, two wait": [HOLDER, FIRST, SECOND],
    "read, a writer waits": [READING, FIRST],
    "held, readers wait": [HOLDER, READER, FIRST],
}


def acquire(who):
    return lambda steps, _: steps.acquire(who)


def leave(who):
    leaving = ReleaseRequest(who.token, who.group, who.record)
    return lambda steps, _: steps.release(leaving, waiters=True)


def renew(who):
    renewal = Renewal(KEYS, who.token, who.group, LEASE_MS)
    return lambda _, missing: renew_all([renewal], missing)


STEPS = {
    "newcomer asks": acquire(NEWCOMER),
    "first asks": acquire(FIRST),
    "second asks": acquire(SECOND),
    "reader asks": acquire(READER),
    "holder releases": leave(HOLDER),
    "first leaves": leave(FIRST),
    "reader leaves": leave(READER),
    "holder renews": renew(HOLDER),
}
OTHERS = ["newcomer asks", "second asks", "reader asks", "holder releases", "first leaves"]


def start(client, situation):
    client.delete(*KEYS)
    for who in SITUATIONS[situation]:
        carry_out(LockSteps(KEYS, lock_ways.WAYS["scripts"]()).acquire(who), client)


def do(client, step, missing, before_command=lambda _: None):
    core = STEPS[step](LockSteps(KEYS, missing), missing)
    return plain(carry_out(core, client, before_command))


def plain(answer):
    """An answer without what a clock is in."""
    match answer:
        case Granted():
            return ("granted", answer.waiters)
        case Busy():
            return ("busy", answer.position)
        case _:
            return answer


def outcome(client):
    operated = lock_ways.ServerWay(client, KEYS, lock_ways.WAYS["scripts"]())
    return operated.picture()


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("step", STEPS)
def test_others_come_before_or_after_never_between(valkey, situation, step):
    watch, scripts = lock_ways.WAYS["watch"](), lock_ways.WAYS["scripts"]()
    with redis.Redis.from_url(valkey) as client:
        for other in OTHERS:
            start(client, situation)
            one = do(client, step, watch)
            serial = [(one, do(client, other, scripts), outcome(client))]
            start(client, situation)
            two = do(client, other, scripts)
            serial.append((do(client, step, watch), two, outcome(client)))
            for place in count():
                start(client, situation)
                answers = []

                def interfere(number, place=place, other=other, answers=answers):
                    if number == place:
                        answers.append(do(client, other, scripts))

                one = do(client, step, watch, interfere)
                if not answers:
                    break
                assert (one, *answers, outcome(client)) in serial, (other, place)
            # WATCH, the time, six reads, MULTI and EXEC at least.
            assert place >= 10


def test_a_lease_that_runs_out_between_reading_and_writing_is_noticed(client):
    """WATCH tells also of keys that expire, with no command of anybody."""
    carry_out(LockSteps(KEYS, lock_ways.WAYS["scripts"]()).acquire(HOLDER), client)

    def expire(number):
        if number == 8:  # all is read, nothing is written
            client.pexpire(KEYS.lock, 1)
            time.sleep(0.05)

    core = LockSteps(KEYS, lock_ways.WAYS["watch"]()).acquire(NEWCOMER)
    assert isinstance(carry_out(core, client, expire), Granted)
    assert client.get(KEYS.lock) == NEWCOMER.token


def test_nobody_is_told_of_a_grant_that_did_not_happen(client):
    """Announcements come after EXEC, and EXEC may refuse."""
    heard = client.pubsub()
    heard.subscribe("channel")
    assert heard.get_message(timeout=10)["type"] == "subscribe"
    scripts = LockSteps(KEYS, lock_ways.WAYS["scripts"]())
    for who in (HOLDER, FIRST, SECOND):
        carry_out(scripts.acquire(who), client)
    leave_first = scripts.release(ReleaseRequest(FIRST.token, b"", FIRST.record), waiters=True)

    def first_leaves(number):
        if number == 8:
            carry_out(leave_first, client)

    core = LockSteps(KEYS, lock_ways.WAYS["watch"]()).release(
        ReleaseRequest(HOLDER.token), waiters=True
    )
    assert carry_out(core, client, first_leaves) is True
    messages = []
    while (message := heard.get_message(timeout=0.5)) is not None:
        messages.append(message["data"].split()[0])
    assert messages == [SECOND.token]
    heard.close()


def test_it_gives_up_when_others_are_quicker_every_time(client):
    def disturb(_number):
        client.set(KEYS.lock, time.monotonic_ns())

    def ask(state, now_us, tell, _hears):
        return model.acquire(state, now_us, NEWCOMER, tell)

    with pytest.raises(redis.WatchError, match="changes too often"):
        carry_out(run_optimistically(KEYS, ask), client, disturb)
