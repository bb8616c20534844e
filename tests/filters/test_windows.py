"""Filters with a time window, on real servers: what is remembered, forgotten, and new."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from itertools import pairwise

import pytest
import redis
import window_clocks
from moved_clock import moved_server, stopped_server
from processes import FORKS
from proxy import HANDSHAKE, Proxy
from servers import wait_until
from stepped import Stepped
from window_turns import turn as turn_window

from bloomlock import (
    AsyncBloomFilter,
    BloomFilter,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
    MemoryBloomFilter,
    OutcomeUnknownError,
)
from bloomlock.scripts import Script
from bloomlock.strategies.sliced import TRUST_S
from bloomlock.windows import CELL_BITS, State, Window

DAY = 86_400
WEEK = timedelta(days=7)
SLICE = 7 * DAY // 14


@contextlib.contextmanager
def noticed_clock(kind, folder):
    """Run a server whose clock the test moves; what moves it waits until all clients notice."""
    with moved_server(kind, folder) as (client, move, _):

        def move_and_wait(seconds):
            move(seconds)
            time.sleep(TRUST_S)

        yield client, move_and_wait


@pytest.fixture(params=["valkey", "redis62"])
def clocked(request, tmp_path):
    """A server whose clock the test moves: a client, and what moves it."""
    with noticed_clock(request.param, tmp_path) as both:
        yield both


@pytest.mark.parametrize("shards", [1, 3])
def test_an_item_is_new_once(client, shards):
    made = BloomFilter("x", 10_000, client=client, window=WEEK, shards=shards)
    items = [str(number) for number in range(2000)]
    assert made.add("a") is True
    assert made.add("a") is False
    assert made.exists("a")
    assert not made.exists("b")
    assert made.add_many([*items, *items]) == [True] * 2000 + [False] * 2000
    assert made.exists_many(items) == [True] * 2000
    assert not any(made.exists_many([f"no {item}" for item in items]))
    made.update(["u", "v"])
    assert made.add_many(["u", "w"]) == [False, True]
    assert dict(made.add_each(["a", "c"])) == {"a": False, "c": True}
    assert abs(made.count() - 2005) < 100
    info = made.info()
    assert info.window == made.window == WEEK
    assert made.slices == 14
    assert 0 < info.current_error_rate < 2e-3


def test_asyncio(r, valkey):
    async def main():
        async with AsyncBloomFilter("x", 10_000, client=valkey, window=60, slices=6) as made:
            found = await asyncio.gather(*(made.add(str(n % 50)) for n in range(200)))
            assert sum(found) == 50
            assert await made.exists("3")
            assert await made.add_many(["3", "new"]) == [False, True]

    asyncio.run(main())


@pytest.mark.parametrize("refresh", [False, True])
def test_what_is_remembered_by_the_clock_of_the_server(clocked, refresh):
    client, move = clocked
    made = BloomFilter("x", 1000, 1e-9, client=client, window=WEEK, refresh=refresh)
    idle = BloomFilter.open("x", client=client)
    assert made.add("once")
    assert made.add("again")
    for day in range(1, 7):
        move(day * DAY)
        assert made.add("again") is False
        assert made.exists_many(["once", "again"]) == [True, True]
        made.add(f"day {day}")
    move(7 * DAY - 60)
    assert made.exists("once")
    assert idle.exists("once")
    # Now a slice after the window.
    move(7 * DAY + SLICE + 60)
    for one in (made, idle):
        assert one.exists_many(["once", "again", "day 1"]) == [False, refresh, True]
    assert made.add("again") is not refresh
    assert idle.add("once") is True
    assert made.add("once") is False


def test_a_filter_that_is_idle_forgets_as_well(clocked):
    """No client turns it, and none has to: the clock of the server decides."""
    client, move = clocked
    made = BloomFilter("x", 1000, 1e-9, client=client, window=WEEK)
    made.update(["a", "b"])
    for days in (7.6, 30, 400):
        move(int(days * DAY))
        assert not made.exists("a")
        assert BloomFilter.open("x", client=client).exists_many(["a", "b"]) == [False, False]
    assert made.add_many(["a", "b", "a"]) == [True, True, False]
    assert made.exists("a")
    move(int(407 * DAY))
    assert made.exists("a")


def test_a_clock_that_is_set_back_forgets_nothing(clocked):
    client, move = clocked
    made = BloomFilter("x", 1000, 1e-9, client=client, window=WEEK)
    move(3 * DAY)
    assert made.add("a")
    move(0)
    assert made.exists("a")
    assert made.add("a") is False
    assert made.add("b")
    assert made.exists_many(["a", "b"]) == [True, True]


@pytest.mark.parametrize("slices", CELL_BITS)
def test_cells_of_each_width_over_many_windows(tmp_path, slices):
    """Every slice is used several times: nothing of an earlier use is left."""
    with moved_server("valkey", tmp_path) as (client, move, _):
        made = BloomFilter("x", 2000, 1e-9, client=client, window=WEEK, slices=slices, shards=2)
        step = 7 * DAY // slices
        added: dict[str, int] = {}
        now = 0
        chance = random.Random(slices)
        for turn in range(3 * slices):
            now += chance.choice((0, step, step, 3 * step // 2))
            move(now)
            items = [f"{turn}.{number}" for number in range(4)]
            assert made.add_many(items) == [True] * 4
            added |= dict.fromkeys(items, now)
            there = made.exists_many(list(added))
            for (item, since), is_there in zip(added.items(), there, strict=True):
                if now - since < 7 * DAY - 60:
                    assert is_there, item
                if now - since > 7 * DAY + step + 60:
                    assert not is_there, item


def test_in_real_time(valkey):
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 1000, 1e-9, client=client, window=3, slices=6)
        began_us = _now_us(client)
        assert made.add("a")
        added_us = _now_us(client)
        while made.exists("a"):
            asked_us = _now_us(client)
            # It was there at some moment before: not much longer than it may be.
            assert asked_us - added_us < 60_000_000
        ended_us = _now_us(client)
        assert ended_us - began_us >= 3_000_000
        assert made.add("a")


@pytest.mark.parametrize("refresh", [False, True])
def test_the_time_is_asked_now_and_then(r, valkey, refresh):
    with Proxy(valkey) as proxy:
        made = BloomFilter("x", 1000, client=proxy.url, window=WEEK, refresh=refresh)
        made.add("a")

        def commands_of(call):
            proxy.seen.clear()
            call("a")
            return proxy.seen

        test = "BITFIELD_RO"
        for call, command in ((made.exists, test), (made.add, "BITFIELD" if refresh else test)):
            wait_until(lambda call=call, it=command: commands_of(call) == [it])
            time.sleep(TRUST_S)
            assert commands_of(call) == [command, "TIME"]
        made.close()


def _now_us(client):
    seconds, micros = client.time()
    return seconds * 10**6 + micros


# -- turning and wiping --------------------------------------------------------------------------


@pytest.mark.parametrize("slices", CELL_BITS)
def test_the_script_does_what_the_model_says(client, slices, seed):
    """Any state and any cells: both turn and wipe the same."""
    window, cells, part_bytes = Window(600 * 3600 * 10**6, slices), 100, 64
    chance = random.Random(seed)
    script, width = Script("header", "window_turn"), window.cell_bits // 8
    header = b"B\0\0\0\0\0\0\7"
    parts = math.ceil(cells * width / part_bytes)
    for _ in range(60):
        now = window.epoch_at(_now_us(client))
        state = State(
            now - chance.choice((0, 0, 1, 2, slices, 100, -1)),
            chance.randrange(window.cell_bits + 1),
            chance.randrange(parts + 1),
        )
        data = bytearray(chance.randbytes(cells * width))
        client.set("x", header + state.word.to_bytes(8, "big") + bytes(data))
        for _ in range(2 * parts + 2):
            reply = client.eval(
                script.source, 3, "x", "part", "mask", header, window.slice_us, width, part_bytes
            )
            state, wiped = turn_window(window, state, now, parts)
            if wiped is not None:
                part, numbers = wiped
                mask = (~sum(1 << number for number in numbers)).to_bytes(
                    width + 1, "big", signed=True
                )[1:]
                for at in range(part * part_bytes, min((part + 1) * part_bytes, len(data))):
                    data[at] &= mask[at % width]
            if window.epoch_at(_now_us(client)) != now:
                break
            word = state.word.to_bytes(8, "big")
            assert client.get("x") == header + word + bytes(data)
            is_left = int(state.parts < parts)
            assert reply == [header, word, int(now > state.epoch), is_left]
    assert client.keys() == [b"x"] or client.ttl("mask") > 0
    assert client.eval(script.source, 3, "x", "p", "m", b"another8", 1, width, 64) == [header]


def test_a_slice_is_wiped_by_the_client_that_turns(tmp_path):
    with noticed_clock("valkey", tmp_path) as (client, move):
        made = BloomFilter("x", 100_000, client=client, window=WEEK)
        key = made._state.view.shards[0].key
        assert client.strlen(key) > 2 * 256 * 1024, "several parts"
        made.update(map(str, range(7000)))
        for turn in range(1, 17):
            move(turn * SLICE)
            made.add(f"turn {turn}")
        cells = client.getrange(key, 16, -1)
        # 16 slices on, the first one is the current one again, and what it had is gone.
        assert sum(map(int.bit_count, cells)) <= 17 * made.num_hashes
        state = State.of(int.from_bytes(client.getrange(key, 8, 15), "big"))
        assert state.ahead == 1
        assert state.parts == math.ceil(len(cells) / (256 * 1024))
        assert not client.keys("*:wipe*")


# -- several clients -----------------------------------------------------------------------------


def _add_all(url, number, items, seconds):
    """Add items in an order of its own until the time is over; return what was new, and when."""
    chance = random.Random(number)
    won = []
    with (
        BloomFilter.open("x", client=url, refresh=bool(number % 2)) as made,
        redis.Redis.from_url(url) as client,
    ):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            some = chance.sample(items, 60)
            began_us = _now_us(client)
            if chance.random() < 0.5:
                answers = made.add_many(some)
            else:
                some = some[:10]
                answers = [made.add(item) for item in some]
            ended_us = _now_us(client)
            won += [
                (item, began_us, ended_us) for item, new in zip(some, answers, strict=True) if new
            ]
            there = made.exists_many(some)
            asked_us = _now_us(client)
            if asked_us - began_us < 3_000_000:
                assert all(there), "what was just added or seen is there"
    return won


def test_one_winner_in_a_window_among_processes(valkey):
    """A window of 3 s is turned twice a second while four processes add the same items."""
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
        made = BloomFilter("x", 4000, 1e-9, client=client, window=3, slices=6, shards=3)
        items = [f"item {number}" for number in range(200)]
        began_us = _now_us(client)
        with ProcessPoolExecutor(4, FORKS) as pool:
            started = [pool.submit(_add_all, valkey, n, items, 4.0) for n in range(4)]
            won = [one for some in started for one in some.result()]
        ended_us = _now_us(client)
        print(len(won), "winners in", (ended_us - began_us) / 10**6, "s")
        assert {item for item, *_ in won} == set(items), "each item has a winner"
        by_item: dict[str, list[tuple[int, int]]] = {}
        for item, start, end in sorted(won, key=lambda one: one[1]):
            by_item.setdefault(item, []).append((start, end))
        for item, times in by_item.items():
            for (start, _), (_, end) in pairwise(times):
                assert end - start >= 3_000_000, f"two winners of {item} in one window"
        assert not made.exists("never added")


# -- lost, cleared, replaced ---------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("on_lost", ["raise", "recreate"])
def test_cleared_and_lost(r, shards, on_lost):
    made = BloomFilter("x", 1000, client=r, window=WEEK, shards=shards, on_lost=on_lost)
    other = BloomFilter.open("x", client=r)
    items = [str(number) for number in range(30)]
    for lose in (other.clear, r.flushall):
        assert made.add_many(items) == [True] * 30
        lose()
        if on_lost == "raise":
            for call in (
                lambda: made.add("a"),
                lambda: made.exists("0"),
                lambda: made.add_many(items),
            ):
                with pytest.raises(FilterLostError):
                    call()
            made.reattach()
        assert made.exists_many(items) == [False] * 30
    assert made.window == WEEK
    assert made.add_many(items) == [True] * 30
    assert made.delete()
    assert not r.keys()


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("forgets", [False, True])
def test_what_is_added_to_the_next_generation_is_reported_there(r, refresh, forgets):
    made = BloomFilter("x", 1000, client=r, window=WEEK, on_lost="raise", refresh=refresh)
    other = BloomFilter.open("x", client=r)
    items = ["a", "b", "c"]
    for add in (made.add_many, lambda items: made.add(items[0]), made.update):
        made.add("before")
        other.clear()
        other.update(["turns the new shard", "b"])
        if forgets:
            other.discard("b")
        with pytest.raises(FilterLostError):
            add(items)
        made.reattach()
        answers = made.add_many(items)
        # What an update adds is reported to no caller.
        assert answers == [True, forgets, True] or (add == made.update and refresh)
        assert made.add_many(items) == [False] * 3


def test_what_is_added_while_a_new_shard_turns_is_reported_once(r):
    """Adds that are late write to parts of it that were wiped, or found clean, before."""
    for number in range(2, 16):
        r.flushall()
        made = BloomFilter("x", 300_000, client=r, window=WEEK)
        late = [BloomFilter.open("x", client=r, refresh=True) for _ in range(2)]
        for one in late:
            one.add("before")
        items = [[f"{each} {item}" for item in range(200)] for each in range(len(late))]

        def add(one, some):
            with pytest.raises(FilterLostError):
                one.add_many(some)

        def add_late(late=late, items=items):
            add(late[1], items[1])

        stepped = Stepped.before(number, add_late).open("x", client=r, on_lost="recreate")
        made.clear()
        add(late[0], items[0])
        assert stepped.add("first") is True
        for one, some in zip(late, items, strict=True):
            one.reattach()
            assert one.add_many(some) == [True] * 200
            assert one.add_many(some) == [False] * 200


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("on_unknown", ["raise", "new"])
def test_a_lost_reply(r, valkey, on_unknown, refresh):
    with Proxy(valkey) as proxy:
        made = BloomFilter(
            "x", 1000, client=proxy.url, window=WEEK, on_unknown=on_unknown, refresh=refresh
        )
        made.add("first")
        lost = []

        def judge(name, _number):
            if name == "BITFIELD" and not lost:
                lost.append(name)
                return "after"
            return "pass"

        proxy.judge = judge
        if on_unknown == "new":
            assert made.add("a") is True
        else:
            with pytest.raises(OutcomeUnknownError):
                made.add("a")
        assert lost
        assert made.add("a") is False
        lost.clear()
        made.update(["b", "c"])
        assert made.exists_many(["b", "c"]) == [True, True]
        made.close()


def test_a_reply_is_lost_while_a_shard_turns(r, valkey):
    """Whatever is cut off, the next client goes on: the item is new once, or that is not known."""
    for number in range(1, 12):
        r.flushall()
        with Proxy(valkey) as proxy:
            made = BloomFilter("x", 300_000, client=proxy.url, window=WEEK)
            count = []

            def judge(name, _number, count=count, number=number):
                if name in HANDSHAKE:
                    return "pass"
                count.append(name)
                return "after" if len(count) == number else "pass"

            proxy.judge = judge
            other = BloomFilter.open("x", client=r)
            try:
                answer = made.add("a")
            except (OutcomeUnknownError, redis.ConnectionError):
                answer = None
            seen = other.add("a")
            assert answer is None or answer is not seen
            made.close()


# -- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be a timedelta or seconds"),
        ({"window": timedelta(seconds=-1)}, "window must be a timedelta or seconds"),
        ({"slices": 14}, "slices must be None without window="),
        ({"window": 60, "slices": 5}, "slices must be one of 6, 14, 30"),
        ({"window": 60, "layout": "blocked"}, "layout must be 'classic' with window="),
        ({"window": 60, "strategy": "lua"}, "strategy must be 'atomic' with window=, not 'lua'"),
        ({"window": 60, "strategy": "pipeline"}, "strategy must be 'atomic'"),
        ({"window": 60, "strategy": "native"}, "strategy must be 'atomic'"),
        ({"window": 60, "near_cache": -1}, "near_cache must be a whole number of items"),
        ({"window": 60, "near_cache": 9, "max_staleness": 0}, "max_staleness must be a number"),
        ({"window": 60, "on_full": "raise"}, "on_full must be 'warn' with window="),
        ({"refresh": True}, "refresh must be False for a filter without a window"),
        ({"window": 60, "refresh": 1}, "refresh must be True or False, not 1"),
    ],
)
def test_what_does_not_go_together_is_refused(r, options, message):
    with pytest.raises(ConfigurationError, match=message):
        BloomFilter("x", 1000, client=r, **options)
    assert not r.keys()


def test_what_a_filter_with_a_window_cannot_do(r, tmp_path):
    made = BloomFilter("x", 1000, client=r, window=WEEK)
    plain = BloomFilter("plain", 1000, client=r)
    for call in (
        lambda: made.add_many(["a"], route="bitmap"),
        lambda: made.add_many(["a"], route="script"),
        made.to_memory,
        lambda: MemoryBloomFilter.like(made),
        lambda: made.rebuild(["a"]),
        lambda: made.update(plain.to_memory()),
        lambda: BloomFilter.open("x", client=r, strategy="lua"),
        lambda: BloomFilter.open("x", client=r, on_full="raise"),
        lambda: BloomFilter.open("plain", client=r, refresh=True),
    ):
        with pytest.raises(ConfigurationError, match="window"):
            call()
    assert sorted(r.keys()) == [
        b"bloomlock:{plain}:bits", b"bloomlock:{plain}:meta",
        b"bloomlock:{x}:bits", b"bloomlock:{x}:meta",
    ]  # fmt: skip


def test_all_clients_of_a_filter_have_one_window(r):
    BloomFilter("x", 1000, client=r, window=WEEK)
    for options, found in (
        ({}, "window: stored 7 days, 0:00:00 in 14 slices, asked None"),
        ({"window": WEEK, "slices": 6}, "asked 7 days, 0:00:00 in 6 slices"),
        ({"window": 60}, "asked 0:01:00 in 14 slices"),
    ):
        with pytest.raises(FilterMismatchError, match=found):
            BloomFilter("x", 1000, client=r, **options)
    BloomFilter("plain", 1000, client=r)
    with pytest.raises(FilterMismatchError, match="window: stored None"):
        BloomFilter("plain", 1000, client=r, window=WEEK)


def test_it_is_stored_in_a_format_that_earlier_versions_refuse(r):
    BloomFilter("x", 1000, client=r, window=WEEK)
    assert r.hget("bloomlock:{x}:meta", "format") == b"4"
    assert r.hget("bloomlock:{x}:meta", "window") == b"604800000000/14"
    BloomFilter("plain", 1000, client=r)
    assert r.hget("bloomlock:{plain}:meta", "format") == b"3"
    r.hset("bloomlock:{x}:meta", "window", "5/14")
    with pytest.raises(FilterMismatchError, match="damaged descriptor"):
        BloomFilter.open("x", client=r)


def test_a_slice_that_is_too_full_is_warned_of(r, caplog):
    made = BloomFilter("x", 14_000, client=r, window=WEEK)
    made.update(map(str, range(800)))
    assert not caplog.records
    made.update(map(str, range(2500)))
    assert "each of the 14 slices of the window takes an even share" in caplog.text
    assert made.info().current_error_rate > 1e-6


def test_a_seeded_filter_and_one_with_a_key(r):
    for name, options in (("a", {"seeds": [3, 5, 8, 13, 21]}), ("b", {"key": "k" * 16})):
        made = BloomFilter(name, 1000, 1e-3, client=r, window=60, **options)
        assert made.add_many(["x", "y", "x"]) == [True, True, False]
        assert made.exists_many(["x", "z"]) == [True, False]


def test_on_a_server_that_refuses_scripts(r):
    """An error of the server means that nothing was done."""
    made = BloomFilter("x", 1000, client=r, window=WEEK)
    r.execute_command("ACL", "SETUSER", "plain", "on", "nopass", "~*", "+@all", "-@scripting")
    try:
        where = r.connection_pool.connection_kwargs["path"]
        other = redis.Redis(unix_socket_path=where, username="plain", password="")
        found = BloomFilter.open("x", client=other)
        for add in (lambda: found.add("a"), lambda: found.update(["a"])):
            with pytest.raises(
                ConfigurationError, match="a filter with a window needs a server that"
            ):
                add()
        assert not found.exists("a")
        assert made.add("a") is True
        assert found.exists("a")
    finally:
        r.execute_command("ACL", "DELUSER", "plain")


@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_known_of_an_idle_shard_is_not_written_to(tmp_path, shards):
    """A shard that had not turned for long is turned by one client, while another goes by it."""
    with stopped_server("valkey", tmp_path) as server:
        clocks = window_clocks.Clocks(*server)
        other = clocks.make(shards=shards)
        renews = clocks.make(shards=shards, refresh=True)
        items = [f"item {number}" for number in range(20)]
        other.update(items)
        # One more than a cell has, so that the slice of before is that which comes next.
        clocks.go_on(7 * window_clocks.SLICE)
        assert not any(renews.exists_many(items))
        other.update(f"another {number}" for number in range(20))
        clocks.go_on(8 * window_clocks.SLICE)
        assert renews.add_many(items) == [True] * 20
        assert [renews.add(item) for item in items] == [False] * 20


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_forgotten_is_forgotten_by_the_window_too(clocked, shards, refresh):
    """And what was added again is remembered for a window from then on."""
    client, move = clocked
    options = {"window": WEEK, "shards": shards, "refresh": refresh}
    made = BloomFilter("x", 1000, 1e-9, client=client, **options)
    other = BloomFilter.open("x", client=client)
    items = [str(number) for number in range(60)]
    assert all(made.add_many(items))
    move(3 * DAY)
    assert other.discard_many(items[:40]) == [True] * 40
    assert made.add_many(items[:20]) == [True] * 20
    assert made.exists_many(items) == [True] * 20 + [False] * 20 + [True] * 20
    move(7 * DAY + SLICE + 60)
    # The first adds are over.
    for one in (made, other):
        assert one.exists_many(items) == [True] * 20 + [False] * 40
    assert other.discard_many(items) == [True] * 20 + [False] * 40
    assert made.add_many(items[10:50]) == [True] * 40
    assert other.discard_many(items[45:]) == [True] * 5 + [False] * 10
    move(15 * DAY + 2 * SLICE)
    assert made.exists_many(items) == [False] * 60
    assert other.discard_many(items) == [False] * 60
    assert other.add_many(items + items) == [True] * 60 + [False] * 60
    assert made.discard_many(items) == [True] * 60
