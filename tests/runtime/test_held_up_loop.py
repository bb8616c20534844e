"""An event loop that is held up: a connection that the server closed is not written to."""

from __future__ import annotations

import asyncio

import redis.asyncio
from servers import wait_until

from bloomlock import AsyncBloomFilter


def test_an_add_after_the_server_closed_an_idle_connection_is_sent_on_another(r, valkey):
    async def run():
        async with redis.asyncio.Redis.from_url(valkey) as client:
            made = await AsyncBloomFilter("x", 1000, client=client)
            assert await made.add("a")
            # Nothing is awaited here, so the loop does not read that the connection was closed.
            r.client_kill_filter(_type="normal", skipme=True)
            wait_until(lambda: len(r.client_list(_type="normal")) == 1)
            return await made.add("b"), await made.add("b")

    assert asyncio.run(run()) == (True, False)
