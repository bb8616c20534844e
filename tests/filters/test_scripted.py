"""A script of the caller's in which items are tested and added."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import redis
from moved_clock import moved_server

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    CapacityError,
    ConfigurationError,
    FilterLostError,
)
from bloomlock.strategies.sliced import TRUST_S

PUSH_NEW = """
local new = {}
for item = 1, #ARGV do
    if add(item) then
        redis.call('RPUSH', KEYS[1], ARGV[item])
        new[#new + 1] = item
    end
end
return new
"""


@pytest.fixture
def server(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        yield client


KINDS = {"classic": {}, "blocked": {"layout": "blocked"}, "window": {"window": 86_400}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 5])
def test_items_are_added_by_a_script_as_by_the_filter(server, valkey, kind, shards):
    pages = BloomFilter("pages", 10_000, client=valkey, shards=shards, **KINDS[kind])
    items = [f"item {number}" for number in range(400)]
    pages.add_many(items[::2])
    new = pages.run_script(PUSH_NEW, items, ["queue"], items)
    assert new == list(range(2, 401, 2))
    assert server.lrange("queue", 0, -1) == [item.encode() for item in items[1::2]]
    assert pages.exists_many(items) == [True] * 400
    assert pages.run_script(PUSH_NEW, ["a", b"a", "b"], ["queue"], ["a", "a", "b"]) == [1, 3]


def test_what_a_script_tests_is_not_added(server, valkey):
    pages = BloomFilter("pages", 1000, client=valkey)
    pages.add("a")
    script = "return {tostring(exists(1)), tostring(exists(2))} -- no line after it"
    assert pages.run_script(script, ["a", "b"]) == [b"true", b"false"]
    assert not pages.exists("b")
    assert pages.run_script("return KEYS[1] .. ARGV[1]", keys=["k"], args=[b"\xff"]) == b"k\xff"
    assert pages.run_script("redis.call('SET', KEYS[1], 1)", keys=["k"]) is None


def test_one_caller_of_many_adds_an_item(server, valkey):
    items = [str(number) for number in range(300)]

    def add_all():
        pages = BloomFilter("pages", 10_000, client=valkey)
        for start in range(0, 300, 20):
            some = items[start : start + 20]
            pages.run_script(PUSH_NEW, some, ["queue"], some)

    threads = [threading.Thread(target=add_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(server.lrange("queue", 0, -1)) == sorted(map(str.encode, items))


def test_a_script_in_asyncio(server, valkey):
    async def main():
        async with AsyncBloomFilter("pages", capacity=1000, client=valkey) as pages:
            assert pages.hash_tag == "{pages}"
            return await pages.run_script(PUSH_NEW, ["a", "a"], ["queue"], ["a", "b"])

    assert asyncio.run(main()) == [1]


def test_a_script_does_nothing_in_another_generation(server, valkey):
    pages = BloomFilter("pages", 1000, client=valkey)
    BloomFilter("pages", 1000, client=valkey).clear()
    with pytest.raises(FilterLostError):
        pages.run_script(PUSH_NEW, ["a"], ["queue"], ["a"])
    assert not server.exists("queue")
    follower = BloomFilter("pages", 1000, client=valkey, on_lost="recreate")
    server.flushall()
    assert follower.run_script(PUSH_NEW, ["a"], ["queue"], ["a"]) == [1]
    assert follower.exists("a")


def test_a_script_whose_reply_is_lost_is_sent_again(server, proxy):
    pages = BloomFilter("pages", 1000, client=proxy.client())
    pages.run_script(PUSH_NEW, ["z"], ["queue"], ["z"])
    first = proxy.seen.count("EVALSHA")

    def judge(name, _number):
        return "after" if name == "EVALSHA" and proxy.seen.count(name) == first + 1 else "pass"

    proxy.judge = judge
    assert pages.run_script(PUSH_NEW, ["a"], ["queue"], ["a"]) == []
    assert server.lrange("queue", 0, -1) == [b"z", b"a"]
    assert proxy.cuts["after"] == 1


def test_a_full_filter_takes_no_new_items_from_a_script(server, valkey):
    pages = BloomFilter("pages", 100, client=valkey, on_full="raise")
    items = [str(number) for number in range(120)]
    with pytest.raises(CapacityError):
        for item in items:
            pages.run_script(PUSH_NEW, [item], ["queue"], [item])
    assert 90 < server.llen("queue") < 110


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("kind", ["valkey", "redis62"])
def test_a_script_goes_by_the_window(tmp_path, kind, refresh):
    day, items = 86_400, ["a", "b", "c"]
    ask = "local found = {} for i = 1, 3 do found[i] = exists(i) and 1 or 0 end return found"
    with moved_server(kind, tmp_path) as (_, move, url):
        pages = BloomFilter("x", 100, 1e-9, client=url, window=7 * day, shards=3, refresh=refresh)
        assert pages.run_script(PUSH_NEW, items, ["{x}:q"], items) == [1, 2, 3]
        move(4 * day)
        assert pages.run_script(PUSH_NEW, ["a", "z"], ["{x}:q"], ["a", "z"]) == [2]
        assert pages.run_script(ask, items) == [1, 1, 1]
        # The slice of the first is over, and is the next one to be wiped.
        move(15 * 7 * day // 14)
        assert pages.run_script(ask, items) == [int(refresh), 0, 0]
        move(8 * day)
        assert pages.run_script(ask, items) == [int(refresh), 0, 0]
        # The shard of the first has turned by then, those of the others have not.
        assert pages.run_script(PUSH_NEW, ["a"], ["{x}:q"], ["a"]) == ([] if refresh else [1])
        others = [str(number) for number in range(30)]
        assert len(pages.run_script(PUSH_NEW, ["a", *others], ["{x}:q"], ["a", *others])) == 30
        move(15 * day - 60)
        assert pages.exists_many(others) == [True] * 30
        # What a script adds after a clock was set back is there all the same.
        move(31 * 7 * day // 14 + 15 * day)
        pages.run_script(PUSH_NEW, others, ["{x}:q"], others)
        move(15 * day)
        back = [f"back {number}" for number in range(30)]
        assert len(pages.run_script(PUSH_NEW, back, ["{x}:q"], back)) == 30
        time.sleep(TRUST_S)
        assert pages.exists_many(back) == [True] * 30


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("",), "script must be a text, not ''"),
        ((b"return 1",), "script must be a text, not b'return 1'"),
        (("return 1", [], [b"k"]), "a key must be a text, not b'k'"),
    ],
)
def test_bad_input_is_refused(server, valkey, given, sentence):
    pages = BloomFilter("pages", 1000, client=valkey)
    with pytest.raises(ConfigurationError, match=sentence):
        pages.run_script(*given)
    with pytest.raises(TypeError):
        pages.run_script("return 1", [1])
    with pytest.raises(redis.ResponseError, match="Error compiling script"):
        pages.run_script("return (")
    with pytest.raises(redis.ResponseError, match="wrong"):
        pages.run_script("return redis.error_reply('wrong')")


def test_a_strategy_that_cannot(server, valkey):
    pages = BloomFilter("pages", 1000, client=valkey, strategy="pipeline")
    with pytest.raises(ConfigurationError, match="for scripts, not \"?'?pipeline"):
        pages.run_script("return 1")
