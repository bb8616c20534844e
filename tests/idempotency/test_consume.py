"""`consume` and `async_consume`: what takes effect, and what becomes of the message."""

from __future__ import annotations

import asyncio

from bloomlock import ACK, RETRY, AsyncBloomFilter, ClaimState, async_consume, consume

NEW, SEEN, BUSY, FAILED = ClaimState


def fail():
    raise ValueError("why")


def test_a_message_takes_effect_once(done):
    ran = []
    outcomes = [consume(done, "m", lambda: ran.append("m")) for _ in range(2)]
    assert [(one.action, one.state) for one in outcomes] == [(ACK, NEW), (ACK, SEEN)]
    assert ran == ["m"]
    with done.claim("n"):
        found = consume(done, "n", fail)
    assert (found.action, found.state) == (RETRY, BUSY)
    assert found.delay > 0
    found = [consume(done, "o", fail, max_attempts=2, payload="the message") for _ in range(3)]
    assert [(one.action, one.delay) for one in found] == [(RETRY, 1), (ACK, 0), (ACK, 0)]
    [failed] = done.failed()
    assert (failed.item, failed.payload, failed.error) == ("o", "the message", "ValueError: why")


def test_asyncio(r, valkey):
    async def main():
        async with AsyncBloomFilter("done", 1000, client=valkey) as done:

            async def work():
                inner = await async_consume(done, "m", work)
                assert (inner.action, inner.state) == (RETRY, BUSY)

            outcomes = [await async_consume(done, "m", work) for _ in range(2)]
            assert [(one.action, one.state) for one in outcomes] == [(ACK, NEW), (ACK, SEEN)]

    asyncio.run(main())
