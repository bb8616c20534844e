"""Filters that expire: all of one at once, never a part of it taken for the whole.

No test waits for a moment: where a filter has to be gone, its keys are given a short time-out, and
it is waited for until they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta

import pytest
import redis
import servers
from strategies import BITMAPS
from turns import Turns

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    BloomlockError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
)
from bloomlock.filters import expiry
from bloomlock.keys import FilterKeys

HOUR = 3600.0
META = "bloomlock:{x}:meta"


def keys_of(r):
    """The keys of the filter; the fences of its locks expire by themselves."""
    return sorted(key for key in r.scan_iter("bloomlock:{x*") if not key.endswith(b":fence"))


def all_expire(r, within):
    """Whether each key of the filter has a time-out, of about that many seconds."""
    times = [r.pttl(key) / 1000 for key in keys_of(r)]
    return all(within - 600 < left <= within + expiry.LATER_MS / 1000 for left in times)


@pytest.mark.parametrize("strategy", [*BITMAPS, "native"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("is_empty", [True, False])
def test_all_keys_expire_and_stay_together(r, valkey, strategy, shards, is_empty):
    made = BloomFilter("x", 3000, client=valkey, strategy=strategy, shards=shards)
    if not is_empty:
        made.update(map(str, range(50)))
    assert made.ttl() is None
    made.expire(HOUR)
    assert all_expire(r, HOUR)
    assert HOUR - 600 < made.ttl() <= HOUR
    made.add_many(map(str, range(100)))
    assert all_expire(r, HOUR)
    for ttl in (2 * HOUR, HOUR):
        made.expire(timedelta(seconds=ttl))
        assert all_expire(r, ttl)
    made.persist()
    assert made.ttl() is None
    assert [r.ttl(key) for key in keys_of(r)] == [-1] * len(keys_of(r))
    made.expire_at(time.time() + HOUR)
    made.expire_at(datetime.now(UTC) + timedelta(hours=3))
    assert all_expire(r, 3 * HOUR)
    made.clear()
    assert made.ttl() is None
    assert [r.ttl(key) for key in keys_of(r)] == [-1] * len(keys_of(r))


@pytest.mark.parametrize("layout", ["classic", "blocked"])
@pytest.mark.parametrize("route", ["items", "script", "bitmap"])
def test_no_way_to_add_takes_the_expiry_away(r, valkey, route, layout):
    made = BloomFilter("x", 3000, client=valkey, shards=2, layout=layout)
    made.expire(HOUR)
    made.add_many(map(str, range(1000)), route=route)
    made.update(map(str, range(1000, 2000)), route=route)
    other = BloomFilter("y", 3000, client=valkey, shards=2, layout=layout)
    made |= other
    assert all_expire(r, HOUR)
    made &= other
    assert all_expire(r, HOUR)
    assert made.ttl() is not None
    assert other.copy("xx").ttl() is None


@pytest.mark.parametrize("shape", [{}, {"shards": 3}, {"on_full": "grow"}], ids=str)
def test_a_look_for_expired_claims_leaves_no_key_that_stays(r, valkey, shape):
    made = BloomFilter("x", 1000, client=valkey, **shape)
    made.expire(HOUR)
    assert list(made.expired()) == []
    assert any(b"claims" in key for key in keys_of(r))
    assert all_expire(r, HOUR)


def test_claims_expire_with_their_filter(r, valkey):
    made = BloomFilter("x", 3000, client=valkey, shards=2)
    claims = made.claim_many(["before", "before too"], renew=False)
    made.expire(HOUR)
    assert all_expire(r, HOUR)
    claims += made.claim_many(map(str, range(40)), renew=False, max_attempts=1)
    made.abandon_many(claims[:5], "an error")
    made.commit_many(claims[5:9])
    made.retry_failed(["0"])
    assert len(keys_of(r)) > 8
    assert all_expire(r, HOUR)
    made.persist()
    assert [r.ttl(key) for key in keys_of(r)] == [-1] * len(keys_of(r))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("rights", ["", "-@scripting"])
@pytest.mark.parametrize("way", ["clear", "import", "recreate"])
def test_what_takes_the_expiry_back_takes_it_from_the_last_fence_too(
    r, valkey, tmp_path, shards, rights, way
):
    """The fence outlives a generation; with a time-out of before it would go in use."""
    r.acl_setuser("mine", enabled=True, nopass=True, reset_keys=True, keys="*", channels="*",
                  commands=["+@all", *[rights] * bool(rights)])  # fmt: skip
    made = BloomFilter("x", 3000, client=r, shards=shards)
    made.claim_many(map(str, range(20)), renew=False)
    made.export_file(tmp_path / "x")
    made.expire(HOUR)
    user = redis.Redis.from_url(valkey, username="mine", password="any")  # noqa: S106
    if way == "clear":
        BloomFilter.open("x", client=user).clear()
    elif way == "import":
        # Scripts write what is imported.
        BloomFilter.import_file("x", tmp_path / "x", client=r, replace=True)
    else:
        r.delete(META)
        BloomFilter("x", 3000, client=user, shards=shards, on_lost="recreate")
    assert len([key for key in keys_of(r) if key.endswith(b":claims:counts")]) == shards
    assert [r.ttl(key) for key in keys_of(r)] == [-1] * len(keys_of(r))
    user.close()
    r.acl_deluser("mine")


def expire_now(r, made):
    made.expire(0.001)
    servers.wait_until(lambda: not r.exists(META))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("strategy", BITMAPS)
def test_what_is_gone_is_noticed_and_leaves_nothing(r, valkey, strategy, shards):
    """Also while further shards are there still."""
    items = list(map(str, range(200)))
    made = BloomFilter("x", 3000, client=valkey, strategy=strategy, shards=shards)
    made.update(items)
    follows = BloomFilter("x", 3000, client=valkey, shards=shards, on_lost="recreate")
    expire_now(r, made)
    with pytest.raises(FilterNotFoundError):
        BloomFilter.open("x", client=valkey)
    with pytest.raises(FilterLostError):
        made.exists_many(items)
    made._state.lost = None
    with pytest.raises(FilterLostError) as lost:
        made.add_many(items)
    assert all(answer in (None, True, False) for answer in lost.value.results)
    # Nothing without a header and an expiry stays behind.
    assert [key for key in keys_of(r) if r.ttl(key) == -1] == []
    # Of a shard that goes later the items are seen; then the filter is made anew, as a whole.
    answers = follows.add_many(items)
    assert all(answers) is (shards == 1)
    assert [not new for new in answers] != [True] * len(items)
    assert follows.exists_many(items) == answers
    assert follows.ttl() is None
    assert [r.ttl(key) for key in keys_of(r)] == [-1] * (1 + shards)


def test_creating_it_anew_takes_nothing_of_the_old_shards(r, valkey):
    items = list(map(str, range(300)))
    for _ in range(3):
        made = BloomFilter("x", 3000, client=valkey, shards=4)
        assert made.add_many(items) == [True] * 300
        expire_now(r, made)
        assert len(keys_of(r)) == 3


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_one_shard_that_goes_first_is_no_silent_no(r, valkey, gone):
    """A server's clock may be wrong by more than is allowed for."""
    items = list(map(str, range(300)))
    made = BloomFilter("x", 3000, client=valkey, shards=3)
    made.update(items)
    made.expire(HOUR)
    key = FilterKeys("x").spread(3).bits(gone)
    r.pexpire(key, 1)
    servers.wait_until(lambda: not r.exists(key))
    with pytest.raises(FilterLostError):
        made.exists_many(items)
    with pytest.raises(FilterLostError, match="has lost"):
        BloomFilter("x", 3000, client=valkey, shards=3)
    anew = BloomFilter("x", 3000, client=valkey, shards=3, on_lost="recreate")
    assert anew.add_many(items) == [True] * 300


@pytest.mark.parametrize("longer", [True, False])
def test_a_call_that_stops_at_any_step_leaves_the_first_shard_no_longer_than_the_others(
    r, valkey, longer
):
    """So nothing can be taken for a whole that is none."""
    for number in range(40):
        r.flushall()
        made = BloomFilter("x", 3000, client=valkey, shards=3)
        made.expire(HOUR if longer else 3 * HOUR)
        core = expiry.set_expiry(made._state.keys, made._state.view, 2 * 3600 * 1000)
        done = made._run(stopped(core, number))
        first = r.pttl(META)
        assert r.pttl("bloomlock:{x}:bits") == pytest.approx(first, abs=60_000)
        assert all(r.pttl(key) > first - 60_000 for key in keys_of(r))
        if done:
            assert number > 1
            return
    pytest.fail("so many steps?")


def stopped(core, number):
    answer = None
    with contextlib.suppress(StopIteration):
        for _ in range(number):
            step = core.send(answer)
            answer = yield step
        core.close()
        return False
    return True


def test_a_filter_of_another_generation_is_left_alone(r, valkey):
    made = BloomFilter("x", 3000, client=valkey, shards=2)
    BloomFilter.open("x", client=valkey).clear()
    for act in (lambda: made.expire(HOUR), made.persist, made.ttl):
        with pytest.raises(FilterLostError):
            act()
        made._state.lost = None
    assert [r.ttl(key) for key in keys_of(r)] == [-1] * 3


def test_one_that_is_used_stays_and_one_that_is_not_goes(r, valkey):
    made = BloomFilter("x", 3000, client=valkey, shards=3, idle_ttl=HOUR)
    assert made.idle_ttl == HOUR
    assert all_expire(r, 1.1 * HOUR)
    assert len(keys_of(r)) == 4
    now = [1000.0]
    opened = BloomFilter.open("x", client=valkey)
    opened._state.idle._clock = lambda: now[0]
    opened._state.idle._next_at = 0
    uses = {
        "add": lambda: opened.add("a"),
        "exists": lambda: opened.exists("a"),
        "add_many": lambda: opened.add_many(map(str, range(100))),
        "exists_many": lambda: opened.exists_many(["a"]),
        "add_each": lambda: list(opened.add_each(["b"])),
        "update": lambda: opened.update(["c"]),
        "claim": lambda: opened.claim("d", renew=False).abandon(),
        "run_script": lambda: opened.run_script("return 1"),
        "count": opened.count,
    }
    for use, act in uses.items():
        now[0] += HOUR
        for key in keys_of(r):
            r.pexpire(key, 600_000)
        act()
        # (What a claim leaves expires with its shard, at the next use at the latest.)
        assert r.ttl(META) > HOUR, use
        assert all(r.pttl(key) >= 600_000 - 60_000 for key in keys_of(r)), use
        r.pexpire(META, 600_000)
        act()
        assert r.ttl(META) <= 600, f"{use} says so each time"
    opened.clear()
    assert all_expire(r, 1.1 * HOUR)
    assert opened.copy("xy").ttl() > HOUR
    for act in (
        lambda: opened.expire(1),
        lambda: opened.expire_at(time.time() + 60),
        opened.persist,
    ):
        with pytest.raises(ConfigurationError, match="idle_ttl=3600, so its last use says"):
            act()


def test_an_idle_filter_that_is_gone_is_created_as_it_was(r, valkey):
    short = BloomFilter("x", 3000, client=valkey, shards=2, idle_ttl=timedelta(seconds=0.05))
    other = BloomFilter("x", 3000, client=valkey, shards=2, on_lost="recreate")
    assert other.idle_ttl == short.idle_ttl == 0.05
    servers.wait_until(lambda: not r.exists(META))
    with pytest.raises((FilterLostError, FilterNotFoundError)):
        BloomFilter.open("x", client=valkey)
    servers.wait_until(lambda: other.add("a"))
    assert r.hget(META, "idle_ms") in (b"50", None)
    # Nothing stays for ever.
    servers.wait_until(lambda: not r.exists(META))
    assert [key for key in keys_of(r) if r.pttl(key) == -1] == []


def test_another_idle_time_is_refused(r, valkey):
    BloomFilter("x", 3000, client=valkey, idle_ttl=60)
    with pytest.raises(FilterMismatchError, match=r"idle_ttl: stored 60\.0, asked 61\.0"):
        BloomFilter("x", 3000, client=valkey, idle_ttl=61)
    BloomFilter("y", 3000, client=valkey)
    with pytest.raises(FilterMismatchError, match=r"idle_ttl: stored None, asked 60\.0"):
        BloomFilter("y", 3000, client=valkey, idle_ttl=60)


@pytest.mark.parametrize("ttl", [0, -1, 0.0001, 1e10, float("nan"), True, "1", None])
def test_bad_times_are_refused(r, valkey, ttl):
    made = BloomFilter("x", 3000, client=valkey)
    with pytest.raises(ConfigurationError, match="ttl must be seconds from"):
        made.expire(ttl)
    if ttl is not None:
        with pytest.raises(ConfigurationError, match="idle_ttl must be seconds from"):
            BloomFilter("y", 3000, client=valkey, idle_ttl=ttl)
    for at in (datetime(2100, 1, 1), "now", float("inf"), True):  # noqa: DTZ001 - a wrong one
        with pytest.raises(ConfigurationError, match="at must be seconds since 1970"):
            made.expire_at(at)
    with pytest.raises(ConfigurationError, match="to come"):
        made.expire_at(time.time() - 1000)
    assert made.ttl() is None
    assert not r.exists("bloomlock:{y}:meta")


def test_what_does_not_expire_costs_nothing(r, valkey):
    turns = Turns()
    client = turns.client(valkey)
    plain = BloomFilter("x", 3000, client=client)
    idle = BloomFilter("y", 3000, client=client, idle_ttl=HOUR)
    for made in (plain, idle):
        assert turns.of(lambda made=made: made.add("a")) == 1
        assert turns.of(lambda made=made: made.exists_many(["a", "b"])) == 1
    assert plain._run == plain._runtime.run
    client.close()


def test_asyncio(r, valkey):
    async def main():
        async with AsyncBloomFilter("x", 3000, client=valkey, shards=2) as made:
            await made.expire(HOUR)
            assert HOUR - 600 < await made.ttl() <= HOUR
            await made.expire_at(time.time() + 2 * HOUR)
            await made.persist()
            assert await made.ttl() is None
            await made.delete()
        async with AsyncBloomFilter("x", 3000, client=valkey, shards=2, idle_ttl=HOUR) as idle:
            assert idle.idle_ttl == HOUR
            for key in keys_of(r):
                r.pexpire(key, 600_000)
            await idle.add("a")
            assert await idle.ttl() <= 600
            idle._state.idle._next_at = 0
            await idle.exists("a")
            assert await idle.ttl() > HOUR

    asyncio.run(main())


@pytest.mark.parametrize("way", ["bitmap", "discard", "claim"])
def test_what_is_used_in_its_last_millisecond_expires_all_the_same(r, way):
    """PTTL is 0 then, and what is written by BITOP, or made, has no time-out."""
    uses = {
        "bitmap": lambda made: made.update(map(str, range(300)), route="bitmap"),
        "discard": lambda made: (made.add("a"), made.discard("a")),
        "claim": lambda made: made.claim("a", renew=False).commit(),
    }
    for _ in range(40):
        made = BloomFilter("x", 1000, 1e-9, client=r)
        made.expire(0.003)
        with contextlib.suppress(BloomlockError, redis.RedisError):
            while True:
                uses[way](made)
        # (An update of what is gone leaves a string without a header, which the next one deletes.)
        servers.wait_until(
            lambda: [key for key in r.scan_iter() if is_of_a_filter(r, key)] == [], seconds=20.0
        )
        r.flushall()


def is_of_a_filter(client, key):
    return client.type(key) != b"string" or client.getrange(key, 0, 0) == b"B"
