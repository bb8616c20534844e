"""News of a clear by another client: what a near-cache is told by the server itself."""

from __future__ import annotations

import asyncio
import multiprocessing

import pytest
import redis
import redis.asyncio
import servers

from bloomlock import AsyncBloomFilter, BloomFilter, FilterLostError
from bloomlock.filters.core import NEWS_PAUSE_SECONDS
from bloomlock.runtime.tracking import News

AGES = 1e6
META = "bloomlock:{x}:meta"


def trackers(client, *, besides=()):
    found = [found["id"] for found in client.client_list() if "t" in found["flags"]]
    return sorted(set(found) - set(besides))


def asked(client):
    return client.info("commandstats").get("cmdstat_bitfield_ro", {"calls": 0})["calls"]


def clear(client):
    BloomFilter.open("x", client=client).clear()


def delete(client):
    BloomFilter.open("x", client=client).delete()


def flush(client):
    client.flushall()


def evict(client):
    client.unlink(META, "bloomlock:{x}:bits")


def was_told(made):
    """Ask for a kept item; True once the filter's end is known."""
    try:
        assert made.exists("a")
    except FilterLostError:
        return True
    return False


@pytest.mark.parametrize("options", [{}, {"protocol": 3}, {"decode_responses": True}], ids=str)
@pytest.mark.parametrize("change", [clear, delete, flush, evict])
def test_the_server_tells(client, server_url, change, options):
    others = trackers(client)
    with redis.Redis.from_url(server_url, **options) as mine:
        made = BloomFilter("x", 1000, client=mine, near_cache=10, max_staleness=AGES)
        made.add("a")
        before = asked(client)
        assert made.exists("a")
        change(client)
        servers.wait_until(lambda: was_told(made))
        assert asked(client) <= before + 1
        made.close()
        servers.wait_until(lambda: not trackers(client, besides=others))


def test_the_server_tells_asyncio(client, server_url):
    async def run():
        async with redis.asyncio.Redis.from_url(server_url) as mine:
            made = await AsyncBloomFilter("x", 1000, client=mine, near_cache=10, max_staleness=AGES)
            assert await made.add("a")
            assert await made.exists("a")
            clear(client)
            with pytest.raises(FilterLostError):
                async with asyncio.timeout(15):
                    while await made.exists("a"):  # noqa: ASYNC110 - a server is waited for
                        await asyncio.sleep(0.001)
            await made.reattach()
            assert await made.add("a")
            assert not await made.add("a")
            assert len(trackers(client, besides=others)) == 1
            await made.close()

    others = trackers(client)
    asyncio.run(run())
    servers.wait_until(lambda: not trackers(client, besides=others))


def test_other_writes_are_no_news(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 1000, client=client, near_cache=10, max_staleness=AGES)
        made.add("a")
        other = BloomFilter("xx", 1000, client=client)
        other.add("b")
        other.clear()
        BloomFilter.open("x", client=client).update(["c", "d"])
        # Whatever there was to be told came before the replies to these.
        before = asked(client)
        assert made._core.news.look() is News.NONE
        assert made.exists("a")
        assert asked(client) == before
        made.close()


def test_a_connection_that_breaks_is_made_again(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        others = trackers(client)
        made = BloomFilter("x", 1000, client=client, near_cache=10, max_staleness=AGES)
        core = made._core
        now = core.caching.clock()
        core.caching.clock = lambda: now
        core.forget()
        made.add("a")
        assert made.exists("a")
        (tracker,) = trackers(client, besides=others)
        client.client_kill_filter(_id=tracker)
        now += 1
        before = asked(client)
        for _ in range(3):
            assert made.exists("a")
        assert asked(client) == before + 1
        assert not core.near.has_news
        now += NEWS_PAUSE_SECONDS
        assert made.exists("b") is False
        assert len(trackers(client, besides=others)) == 1
        clear(client)
        now += 1
        with pytest.raises(FilterLostError):
            made.exists("a")
        made.close()


def test_a_client_that_may_not_have_news_asks_once(valkey):
    def refused():
        return admin.info("commandstats")["cmdstat_client|tracking"]["rejected_calls"]

    with redis.Redis.from_url(valkey) as admin:
        admin.flushall()
        admin.config_resetstat()
        admin.acl_setuser("alone", enabled=True, nopass=True, keys="*",
                          commands=["+@all", "-client|tracking"])  # fmt: skip
        with redis.Redis.from_url(valkey, username="alone", password="any") as client:  # noqa: S106
            made = BloomFilter("x", 1000, client=client, near_cache=10, max_staleness=AGES)
            for item in "abc":
                assert made.add(item)
                assert made.exists(item)
            core = made._core
            assert not core.near.has_news
            now = core.caching.clock() + 10 * NEWS_PAUSE_SECONDS
            core.caching.clock = lambda: now
            assert made.add("d")
            assert refused() == 1
        admin.acl_deluser("alone")


def _child(made):
    servers.wait_until(lambda: was_told(made))
    made.reattach()
    assert made.add("a")
    assert not made.add("a")
    made.close()


@pytest.mark.processes
def test_a_child_of_fork_leaves_the_parents_news_alone(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 1000, client=client, near_cache=10, max_staleness=AGES)
        made.add("a")
        with redis.Redis.from_url(valkey) as other:
            clear(other)
        child = multiprocessing.get_context("fork").Process(target=_child, args=(made,))
        child.start()
        child.join(300)
        assert child.exitcode == 0
        servers.wait_until(lambda: was_told(made))
        made.close()
