"""A script of the caller's in which items are tested and added."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
import redis
from moved_clock import moved_server
from processes import FORKS

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


GROWING = {"capacity": 20, "on_full": "grow"}
KINDS = {
    "classic": {},
    "blocked": {"layout": "blocked"},
    "window": {"window": 86_400},
    "growing": GROWING,
    "growing, keyed": GROWING | {"key": True, "growth": 2},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 5])
def test_items_are_added_by_a_script_as_by_the_filter(server, valkey, kind, shards):
    shape = {"capacity": 10_000, "shards": shards} | KINDS[kind]
    pages = BloomFilter("pages", client=valkey, **shape)
    late = BloomFilter.open("pages", client=valkey)
    items = [f"item {number}" for number in range(400)]
    for start in range(0, 400, 20):
        pages.add_many(items[start : start + 20 : 2])
    assert late.run_script("return exists(1) and exists(2) and 1 or 0", ["item 0", "item 398"]) == 1
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


def test_a_filter_grows_by_what_scripts_add(server, valkey):
    """Each script may be the first that a client runs after any number of growths."""
    pages = BloomFilter("pages", 20, 1e-9, client=valkey, on_full="grow", shards=3)
    others = [BloomFilter.open("pages", client=valkey) for _ in range(3)]
    items = [f"item {number}" for number in range(1200)]
    for start in range(0, 1200, 10):
        some = items[start : start + 10]
        assert pages.run_script(PUSH_NEW, some, ["{pages}:q"], some) == list(range(1, 11))
        if start % 400 == 390:
            other = others.pop()
            assert other.run_script(PUSH_NEW, items[: start + 10], ["{pages}:q"]) == []
            assert other.add_many([*items[: start + 10], str(start)]) == [False] * (start + 10) + [
                True
            ]
            assert pages.run_script(PUSH_NEW, [str(start)], ["{pages}:q"], ["0"]) == []
    assert pages.info().slices > 3
    assert server.llen("{pages}:q") == 1200
    assert pages.exists_many(items) == [True] * 1200
    assert not any(pages.exists_many(f"no {number}" for number in range(1200)))


def push_all(url, seed, queue):
    rng = random.Random(seed)
    pages = BloomFilter.open("pages", client=url)
    items = [str(number) for number in range(3000)]
    rng.shuffle(items)
    won = 0
    for start in range(0, 3000, 25):
        some = items[start : start + 25]
        if rng.random() < 0.5:
            won += len(pages.run_script(PUSH_NEW, some, ["{pages}:q"], some))
        else:
            won += sum(pages.add_many(some))
    queue.put(won)


@pytest.mark.processes
def test_one_process_of_several_adds_an_item_while_the_filter_grows(server, valkey, seed):
    pages = BloomFilter("pages", 20, 1e-9, client=valkey, on_full="grow", shards=3)
    queue = FORKS.Queue()
    workers = [
        FORKS.Process(target=push_all, args=(valkey, seed + number, queue)) for number in range(3)
    ]
    for worker in workers:
        worker.start()
    won = [queue.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join(300)
    assert sum(won) == 3000, won
    assert pages.info().slices > 3
    assert len(set(server.lrange("{pages}:q", 0, -1))) == server.llen("{pages}:q")
    assert pages.exists_many(map(str, range(3000))) == [True] * 3000


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
