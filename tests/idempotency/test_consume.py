"""`consume`: what takes effect, what is acknowledged, and when to try again."""

from __future__ import annotations

import asyncio

import pytest
import redis

from bloomlock import (
    ACK,
    RETRY,
    AsyncBloomFilter,
    BloomFilter,
    ClaimState,
    ConfigurationError,
    async_consume,
    consume,
)
from bloomlock.keys import ClaimKeys, FilterKeys

NEW, SEEN, BUSY, FAILED = ClaimState
KEYS = ClaimKeys.of(FilterKeys("done").bits(0))
LONG = 600.0


def fail():
    raise ValueError("why")


def test_a_message_takes_effect_once(done):
    ran = []
    first = consume(done, "m", lambda: ran.append(1))
    again = consume(done, "m", lambda: ran.append(2))
    assert (first.action, first.state, first.error) == (ACK, NEW, None)
    assert (again.action, again.state) == (ACK, SEEN)
    assert ran == [1]


def test_while_another_worker_has_it(done):
    with done.claim("m", ttl=LONG):
        found = consume(done, "m", fail)
    assert (found.action, found.state) == (RETRY, BUSY)
    assert 0 < found.delay <= LONG


def test_work_that_fails(done, caplog):
    found = consume(done, "m", fail, backoff=2)
    assert (found.action, found.state, found.delay) == (RETRY, NEW, 2)
    assert str(found.error) == "why"
    assert "message 'm' failed: why" in caplog.text
    assert not done.exists("m")
    assert consume(done, "m", lambda: None).action is ACK


def test_a_message_that_fails_too_often(done):
    options = {"max_attempts": 3, "payload": "the message"}
    found = [consume(done, "m", fail, **options) for _ in range(4)]
    assert [one.action for one in found] == [RETRY, RETRY, ACK, ACK]
    assert [one.delay for one in found] == [1, 2, 0, 0]
    assert [one.state for one in found] == [NEW, NEW, NEW, FAILED]
    [failed] = done.failed()
    assert (failed.item, failed.payload, failed.error) == ("m", "the message", "ValueError: why")
    done.retry_failed(["m"])
    assert consume(done, "m", lambda: None).state is NEW


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_worker_goes_on(done, error):
    def stop():
        raise error

    with pytest.raises(error):
        consume(done, "m", stop)
    assert consume(done, "m", lambda: None).state is NEW


def test_a_commit_that_is_refused(r, valkey, done):
    with BloomFilter("done", 1000, client=valkey) as other:

        def lose():
            r.zadd(KEYS.claims, {r.zrange(KEYS.claims, 0, 0)[0]: 1})
            assert other.claim("m", max_attempts=2).state is NEW

        found = consume(done, "m", lose, max_attempts=1)
    assert (found.action, found.state) == (RETRY, NEW)
    assert "another worker claimed" in str(found.error)


def test_a_server_that_cannot_be_asked(r, valkey, proxy):
    with BloomFilter("done", 1000, client=proxy.url) as made:
        consume(made, "warm", lambda: None)
        proxy.judge = lambda *_: "after"
        found = consume(made, "m", fail, backoff=3)
        assert (found.action, found.state, found.delay) == (RETRY, None, 3)
        assert isinstance(found.error, redis.ConnectionError)
        proxy.judge = lambda *_: "pass"
        assert consume(made, "m", lambda: None).state is NEW, "not blocked by its own lost reply"


def test_bad_input(done):
    with pytest.raises(ConfigurationError, match="backoff must be a number of seconds from 0"):
        consume(done, "m", fail, backoff=-1)
    with pytest.raises(ConfigurationError, match="ttl must be"):
        consume(done, "m", fail, ttl=0)
    with pytest.raises(TypeError, match="item must be str or bytes"):
        consume(done, 3, fail)


def test_asyncio(r, valkey):
    async def main():
        async with AsyncBloomFilter("done", 1000, client=valkey) as done:

            async def work():
                inner = await async_consume(done, "m", work)
                assert (inner.action, inner.state) == (RETRY, BUSY)

            async def broken():
                raise ValueError("why")

            assert (await async_consume(done, "m", work)).state is NEW
            assert (await async_consume(done, "m", work)).state is SEEN
            assert (await async_consume(done, "n", broken)).action is RETRY

    asyncio.run(main())
