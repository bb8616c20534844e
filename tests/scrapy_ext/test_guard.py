"""The filter behind its policy, in this process and on a real server: it always answers."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from moved_clock import moved_server, stopped_server
from proxy import Proxy, deliver
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy.settings import Settings
from servers import wait_until, with_bloom

from bloomlock import BloomFilter, ConfigurationError, FilterMismatchError, ServerError
from bloomlock.server import PrivateServer
from scrapy_ext.answers import LastRequests, Verdict
from scrapy_ext.guard import CircuitBreaker, GuardedFilter
from scrapy_ext.settings import FilterSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEFAULTS = FilterSettings.read(Settings({"BLOOMLOCK_CAPACITY": 1000}), "spider")


class Watched(GuardedFilter):
    """A guard that remembers what it reported."""

    def __init__(self, connect: Callable[[], Any], **settings: Any) -> None:
        self.counted: list[str] = []
        self.closed: list[str] = []
        config = replace(DEFAULTS, **settings)
        super().__init__(config, connect, self.counted.append, self.closed.append)


def connector(url: str) -> Callable[[], redis.Redis]:
    return lambda: redis.Redis.from_url(
        url, socket_timeout=30, socket_connect_timeout=30, retry=Retry(NoBackoff(), 0)
    )


@pytest.fixture
def server() -> Iterator[PrivateServer]:
    """A server that the test may kill, and start again."""
    with PrivateServer() as private:
        yield private


@pytest.fixture
def start(server: PrivateServer) -> Iterator[Callable[..., Watched]]:
    """Start guards on that server; keyword arguments are settings."""
    started: list[Watched] = []

    def make(**settings: Any) -> Watched:
        guard = Watched(connector(server.url), **settings)
        guard.start()
        started.append(guard)
        return guard

    yield make
    for guard in started:
        guard.finish(lambda _: None)


def recorded(server: PrivateServer, *keys: bytes) -> list[bool]:
    return BloomFilter.open(DEFAULTS.name, client=server.url).exists_many(keys)


def kill(server: PrivateServer, guard: Watched) -> None:
    """Kill the server, and let the guard find out: what it sends first may count as new."""
    server.kill()
    guard.check(b"unknown")


NUMBERS = itertools.count()


def until_asked_again(guard: Watched) -> None:
    """Check new items until the server answers."""
    wait_until(lambda: guard.check(b"number %d" % next(NUMBERS)) is Verdict.NEW, 60)


def test_a_start_without_a_server_fails_with_one_sentence(server: PrivateServer) -> None:
    server.kill()
    guard = Watched(connector(server.url))
    with pytest.raises(ServerError, match=r"cannot be used at .*server\.sock"):
        guard.start()


def test_what_was_kept_before_a_clear_is_not_known_behind_it(start: Callable[..., Watched]) -> None:
    guard = start(max_staleness=3600.0)
    assert guard.check(b"a") is Verdict.NEW
    assert guard.is_seen_here(b"a")
    guard.wipe()
    guard.note_kept()
    assert guard.check(b"a") is Verdict.NEW


def test_a_start_returns_how_many_were_recorded(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    BloomFilter(DEFAULTS.name, 1000, client=server.url).update(map(str, range(500)))
    assert 480 <= Watched(connector(server.url)).start() <= 520


# Without room for a mirror the last requests are known as they are.
MEMORIES = [pytest.param({}, id="mirror"), pytest.param({"mirror_bytes": 0}, id="last requests")]


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_outage_hides_nothing_this_process_knows(
    memory: dict[str, Any], server: PrivateServer, start: Callable[..., Watched]
) -> None:
    other, guard = start(), start(near_cache=0, **memory)
    other.check(b"of another")
    assert [guard.check(b"of another"), guard.check(b"own")] == [Verdict.SEEN, Verdict.NEW]
    kill(server, guard)
    asked = [b"own", b"of another", b"let through", b"let through"]
    assert [guard.check(key) for key in asked] == [
        Verdict.SEEN,
        Verdict.SEEN,
        Verdict.ALLOWED,
        Verdict.SEEN,
    ]
    assert guard.counted.count("outages") == 1
    server.start()
    until_asked_again(guard)
    assert not guard.broken
    assert recorded(server, b"own", b"of another", b"let through") == [True] * 3
    assert guard.check(b"let through") is Verdict.SEEN
    assert guard.counted[-1] == "refills"


@pytest.mark.parametrize("window", [None, 86_400.0])
def test_the_first_answer_after_an_outage_is_about_what_was_let_through(
    window: float | None, server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0, window=window)
    kill(server, guard)
    assert guard.check(b"let through") is Verdict.ALLOWED
    server.start()
    while guard.broken:
        assert guard.check(b"let through") is Verdict.SEEN
    assert guard.counted[-1] == "refills"
    assert guard.check(b"let through") is Verdict.SEEN


def test_what_a_window_has_forgotten_is_not_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3600
    begin = time.monotonic()
    with moved_server("valkey", tmp_path) as (client, move, url), Proxy(url) as proxy:

        def move_all(hours: int) -> None:
            monkeypatch.setattr("scrapy_ext.answers._boot_time", lambda: begin + hours * hour)
            move(hours * hour)

        def lose_the_server() -> None:
            proxy.judge = lambda *_: "before"
            assert guard.check(b"young") is Verdict.SEEN
            assert guard.broken

        def find_the_server() -> None:
            proxy.judge = deliver
            wait_until(lambda: guard.check(b"young") is Verdict.SEEN and not guard.broken)
            assert guard.counted[-1] == "refills"

        move_all(0)
        guard, other = (
            Watched(connector(one), near_cache=0, window=24.0 * hour) for one in (proxy.url, url)
        )
        guard.start()
        other.start()
        assert other.check(b"of another") is Verdict.NEW
        assert [guard.check(key) for key in (b"old", b"over")] == [Verdict.NEW] * 2
        move_all(20)
        assert [guard.check(key) for key in (b"young", b"left")] == [Verdict.NEW] * 2
        assert guard.check(b"of another") is Verdict.SEEN
        # The window is over for what was added first, a slice of less than two hours included.
        move_all(30)
        lose_the_server()
        assert [guard.check(b"old") for _ in range(2)] == [Verdict.ALLOWED, Verdict.SEEN]
        find_the_server()
        keys = (b"young", b"left", b"old", b"over", b"of another")
        with BloomFilter.open(DEFAULTS.name, client=url) as shared:
            assert shared.exists_many(keys) == [True, True, True, False, False]
        # A server that lost all of it gets what is left of the window.
        move_all(40)
        client.flushall()
        lose_the_server()
        find_the_server()
        with BloomFilter.open(DEFAULTS.name, client=url) as shared:
            assert shared.exists_many(keys) == [True, True, True, False, False]
        for one in (guard, other):
            one.finish(lambda _: None)


def test_a_window_forgets_what_the_near_cache_keeps(tmp_path: Path) -> None:
    hour, begin = 3600, 2_000_001_600
    with stopped_server("valkey", tmp_path) as (_, stop_at, url):
        stop_at(begin)
        guard = Watched(connector(url), window=24.0 * hour, slices=6, max_staleness=1e6)
        guard.start()
        now = 1000.0
        state = guard.shared._state
        state.caching.clock = state.strategy._clock = lambda: now
        state.forget()
        kept: list[int] = []
        guard.on_kept = kept.append
        assert guard.check(b"a") is Verdict.NEW
        assert guard.check(b"a") is Verdict.SEEN
        assert kept == [1]
        # The last slice in which it is remembered begins, and ends.
        now += 24 * hour
        stop_at(begin + 24 * hour)
        assert guard.check(b"a") is Verdict.SEEN
        assert kept == [1]
        assert asyncio.run(guard.check_many([b"a", b"a"])) == [Verdict.SEEN] * 2
        assert kept == [1, 1]
        now += 4 * hour
        stop_at(begin + 28 * hour)
        assert guard.check(b"a") is Verdict.NEW
        assert kept == [1, 1]
        guard.finish(lambda _: None)


def test_a_page_of_links_that_the_near_cache_knows_takes_no_thread(
    start: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = start(max_staleness=3600)
    calls: list[Any] = []

    async def run_in_thread(call: Callable[[], Any]) -> Any:
        calls.append(call)
        return await asyncio.to_thread(call)

    monkeypatch.setattr("scrapy_ext.guard.run_in_thread", run_in_thread)
    for keys, new, num_calls in (
        ([b"a", b"b"], 2, 1),
        ([b"b", b"a", b"b"], 0, 1),
        ([b"b", b"c"], 1, 2),
        ([b"c"], 0, 2),
    ):
        assert asyncio.run(guard.check_many(keys)).count(Verdict.NEW) == new
        assert len(calls) == num_calls


def test_drop_keeps_out_what_is_not_known_but_not_what_must_pass(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(on_outage="drop")
    assert guard.check(b"a") is Verdict.NEW
    kill(server, guard)
    assert guard.check(b"a") is Verdict.SEEN
    assert guard.check(b"b") is Verdict.DROPPED
    assert guard.check(b"b", droppable=False) is Verdict.ALLOWED


def test_close_asks_for_the_end(server: PrivateServer, start: Callable[..., Watched]) -> None:
    guard = start(on_outage="close")
    kill(server, guard)
    assert guard.check(b"a") is Verdict.ALLOWED
    assert set(guard.closed) == {"bloomlock_outage"}


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_filter_that_was_flushed_gets_back_what_each_process_knows(
    memory: dict[str, Any], server: PrivateServer, start: Callable[..., Watched]
) -> None:
    one, two = start(near_cache=0, **memory), start(near_cache=0, **memory)
    assert [one.check(b"one"), two.check(b"two")] == [Verdict.NEW] * 2
    with redis.Redis.from_url(server.url) as r:
        r.flushall()
    assert one.check(b"one") is Verdict.SEEN
    assert recorded(server, b"one", b"two") == [True, False]
    # The filter is there again, in a generation that the first one made.
    assert two.check(b"two") is Verdict.SEEN
    assert recorded(server, b"one", b"two") == [True, True]
    assert one.counted == two.counted == ["refills"]


def test_a_filter_that_another_process_cleared_is_not_refilled(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0)
    assert [guard.check(b"a"), guard.check(b"b")] == [Verdict.NEW] * 2
    BloomFilter.open(DEFAULTS.name, client=server.url).clear()
    assert guard.check(b"a") is Verdict.NEW
    assert recorded(server, b"a", b"b") == [True, False]
    kill(server, guard)
    assert [guard.check(b"a"), guard.check(b"b")] == [Verdict.SEEN, Verdict.ALLOWED]


def test_what_this_process_wipes_it_forgets(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start()
    guard.check(b"a")
    guard.wipe()
    kill(server, guard)
    assert guard.check(b"a") is Verdict.ALLOWED


def stored(server: PrivateServer) -> dict[bytes, bytes]:
    with redis.Redis.from_url(server.url) as r:
        return {key: r.dump(key) for key in r.scan_iter()}


def set_back(server: PrivateServer, saved: dict[bytes, bytes]) -> None:
    with redis.Redis.from_url(server.url) as r:
        for key, value in saved.items():
            r.restore(key, 0, value, replace=True)


def test_bits_that_are_lost_unnoticed_are_found_missing_and_given_back(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0)
    guard.check(b"early")
    saved = stored(server)
    assert [guard.check(b"late"), guard.check(b"later")] == [Verdict.NEW] * 2
    set_back(server, saved)
    assert recorded(server, b"early", b"late", b"later") == [True, False, False]
    assert guard.check(b"late") is Verdict.SEEN
    assert recorded(server, b"early", b"late", b"later") == [True, True, True]
    assert guard.counted == ["refills"]


def test_a_server_that_is_set_back_to_an_earlier_clear_is_refilled(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0)
    guard.wipe()
    guard.check(b"early")
    saved = stored(server)
    guard.wipe()
    assert guard.check(b"late") is Verdict.NEW
    set_back(server, saved)
    assert guard.check(b"late") is Verdict.SEEN
    assert recorded(server, b"early", b"late") == [True, True]


def test_a_refill_that_fails_keeps_nobody_from_asking_and_is_tried_again(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0)
    empty = stored(server)
    assert guard.check(b"a") is Verdict.NEW
    set_back(server, empty)
    with redis.Redis.from_url(server.url) as r:
        r.execute_command("ACL", "SETUSER", "default", "-bitop", "-eval", "-evalsha")
        assert guard.check(b"a") is Verdict.SEEN
        assert guard.check(b"b") is Verdict.NEW
        assert not guard.broken
        assert set(guard.counted) == {"errors"}
        r.execute_command("ACL", "SETUSER", "default", "+@all")
    wait_until(lambda: guard.check(b"a") is Verdict.SEEN and "refills" in guard.counted, 60)
    assert recorded(server, b"a", b"b") == [True, True]


def test_what_is_known_as_seen_is_not_asked_for(r: redis.Redis, valkey: str) -> None:
    def asked() -> int:
        calls: int = r.info("commandstats")["cmdstat_bitfield"]["calls"]
        return calls

    guard = Watched(connector(valkey), max_staleness=60.0)
    guard.start()
    assert guard.check(b"a") is Verdict.NEW
    before = asked()
    assert [guard.check(b"a") for _ in range(5)] == [Verdict.SEEN] * 5
    assert asked() == before
    guard.finish(lambda _: None)


def test_a_clear_is_seen_after_max_staleness(r: redis.Redis, valkey: str) -> None:
    guard = Watched(connector(valkey), max_staleness=0.2)
    guard.start()
    assert guard.check(b"a") is Verdict.NEW
    assert guard.check(b"a") is Verdict.SEEN
    BloomFilter.open(DEFAULTS.name, client=valkey).clear()
    wait_until(lambda: guard.check(b"a") is Verdict.NEW)
    guard.finish(lambda _: None)


def test_another_type_under_the_filters_key_is_left_to_the_policy(
    r: redis.Redis, valkey: str
) -> None:
    guard = Watched(connector(valkey))
    guard.start()
    for key in r.scan_iter():
        r.delete(key)
        r.lpush(key, "something else")
    assert [guard.check(b"a"), guard.check(b"a")] == [Verdict.ALLOWED, Verdict.SEEN]
    assert guard.counted == ["errors", "outages"]


@pytest.mark.parametrize(
    ("policy", "verdict"), [("allow", Verdict.ALLOWED), ("drop", Verdict.DROPPED)]
)
def test_a_full_filter_is_left_to_the_policy(
    policy: str, verdict: Verdict, r: redis.Redis, valkey: str
) -> None:
    del r
    guard = Watched(connector(valkey), capacity=100, on_full="raise", on_outage=policy)
    guard.start()
    answers = [guard.check(b"%d" % number) for number in range(400)]
    assert verdict in answers
    assert set(answers) <= {Verdict.NEW, Verdict.SEEN, verdict}
    assert guard.check(b"1") is Verdict.SEEN
    assert set(guard.counted) == {"full"}
    assert not guard.broken


def test_another_filter_under_the_name_stops_the_start(r: redis.Redis, valkey: str) -> None:
    BloomFilter(DEFAULTS.name, 5, client=r)
    with pytest.raises(FilterMismatchError):
        Watched(connector(valkey)).start()


# Several items in one awaited round trip.


def check_many(guard: Watched, *keys: bytes, **options: Any) -> list[Verdict]:
    return asyncio.run(guard.check_many(keys, **options))


def commands(server: PrivateServer) -> int:
    with redis.Redis.from_url(server.url) as r:
        stats = r.info("commandstats")
    return sum(stat["calls"] for name, stat in stats.items() if "bitfield" in name)


def test_many_items_are_one_round_trip_and_a_repeated_one_is_new_once(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0, capacity=100_000)
    guard.check(b"old")
    before = commands(server)
    assert check_many(guard, b"a", b"old", b"a", b"b", b"b") == [
        Verdict.NEW,
        Verdict.SEEN,
        Verdict.SEEN,
        Verdict.NEW,
        Verdict.SEEN,
    ]
    # (The bits of hundreds of items are sent as several commands at once.)
    pages = [[b"%d" % number for number in range(size)] for size in (1, 2, 20)]
    answers = [check_many(guard, *page) for page in pages]
    assert [found.count(Verdict.NEW) for found in answers] == [1, 1, 18]
    assert commands(server) == before + 1 + len(pages)
    assert check_many(guard) == []


def test_many_items_in_an_outage_are_decided_as_one_by_one(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    for policy, first, again in (
        ("allow", Verdict.ALLOWED, Verdict.SEEN),
        ("drop", Verdict.DROPPED, Verdict.DROPPED),
    ):
        guard = start(on_outage=policy)
        check_many(guard, b"own")
        kill(server, guard)
        assert guard.broken
        asked = [b"own", b"x", b"x", b"forced"]
        assert check_many(guard, *asked, undroppable={3}) == [
            Verdict.SEEN,
            first,
            again,
            Verdict.ALLOWED,
        ]
        server.start()
        until_asked_again(guard)
        assert recorded(server, b"own", b"forced") == [True, True]
        assert recorded(server, b"x") == [policy == "allow"]


def test_what_a_server_that_hangs_may_have_recorded_is_let_through_once(
    server: PrivateServer,
) -> None:
    guard = Watched(
        lambda: redis.Redis.from_url(server.url, socket_timeout=1, retry=Retry(NoBackoff(), 0)),
        on_outage="drop",
    )
    guard.start()
    guard.check(b"old")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        answers = check_many(guard, b"a", b"a", b"b", b"old")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert answers == [Verdict.NEW, Verdict.SEEN, Verdict.NEW, Verdict.SEEN]
    assert guard.counted == ["errors", "outages", "unknown", "unknown"]
    assert check_many(guard, b"a", b"b") == [Verdict.SEEN] * 2
    guard.finish(lambda _: None)


def test_of_many_items_a_full_filter_refuses_the_new_ones_only(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(capacity=100, on_full="raise", on_outage="drop")
    guard.check(b"first")
    filled = [guard.check(b"%d" % number) for number in range(400)]
    assert filled[-1] is Verdict.DROPPED
    other = start(capacity=100, on_full="raise", on_outage="drop", near_cache=0)
    keys = [b"new", b"first", b"new too", b"0", b"new", b"1"]
    assert check_many(other, *keys) == [
        Verdict.DROPPED,
        Verdict.SEEN,
        Verdict.DROPPED,
        Verdict.SEEN,
        Verdict.DROPPED,
        Verdict.SEEN,
    ]
    assert not other.broken
    assert set(other.counted) == {"full"}


class Paused(Watched):
    """A guard whose round trips in threads end when the test lets them, in the order it says."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.made: list[threading.Event] = []
        self.gates: list[threading.Event] = []

    def _begin(self, keys: Any) -> Any:
        trip = super()._begin(keys)
        if trip is None or threading.current_thread() is not threading.main_thread():
            return trip
        make, made, gate = trip.make, threading.Event(), threading.Event()
        self.made.append(made)
        self.gates.append(gate)

        class Held:
            def __getattr__(self, name: str) -> Any:
                return getattr(trip, name)

            def make(self, shared: Any) -> None:
                make(shared)
                made.set()
                assert gate.wait(300)

        return Held()


def test_what_is_not_recorded_is_looked_for(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard, strict = start(near_cache=0), start(near_cache=0, on_outage="drop")
    keys = [b"a", b"a", b"b", b"b", b"c", b"c"]
    verdicts = asyncio.run(guard.check_many(keys, unrecorded={0, 3, 4, 5}))
    # In the order of the page: only what was recorded before is seen.
    assert verdicts == [Verdict.NEW] * 3 + [Verdict.SEEN] + [Verdict.NEW] * 2
    assert recorded(server, b"a", b"b", b"c") == [True, True, False]
    assert strict.check(b"a", recorded=False) is Verdict.SEEN
    kill(server, guard)
    asked = [(b"a", False), (b"d", False), (b"d", False), (b"d", True), (b"d", False)]
    assert [guard.check(key, recorded=flag) for key, flag in asked] == [
        Verdict.SEEN,
        Verdict.ALLOWED,
        Verdict.ALLOWED,
        Verdict.ALLOWED,
        Verdict.SEEN,
    ]
    assert strict.check(b"e", recorded=False) is Verdict.DROPPED
    assert strict.check(b"e", recorded=False, droppable=False) is Verdict.ALLOWED
    assert strict.check(b"a", recorded=False) is Verdict.SEEN


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_round_trips_at_once_one_reports_an_item_as_new(
    order: tuple[int, int], server: PrivateServer
) -> None:
    """Whichever answer is read first: what the other made known is no loss of the filter."""
    guard = Paused(connector(server.url), near_cache=0)
    guard.start()

    async def both() -> list[list[Verdict]]:
        tasks = []
        for number in range(2):
            tasks.append(asyncio.ensure_future(guard.check_many([b"a", b"%d" % number])))
            await asyncio.sleep(0)
            await asyncio.to_thread(guard.made[number].wait, 300)
        for number in order:
            guard.gates[number].set()
            await tasks[number]
        return [task.result() for task in tasks]

    assert asyncio.run(both()) == [[Verdict.NEW, Verdict.NEW], [Verdict.SEEN, Verdict.NEW]]
    assert guard.counted == []
    guard.finish(lambda _: None)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_round_trips_one_lets_an_item_through_though_a_reply_is_lost(
    order: tuple[int, int], lost: int, server: PrivateServer
) -> None:
    """Also if what the other one has found seen is what the lost one has recorded."""
    with Proxy(server.url) as proxy:
        guard = Paused(connector(proxy.url), near_cache=0)
        guard.start()

        async def both() -> list[Verdict]:
            tasks = []
            for number in range(2):
                verdict = "after" if number == lost else "pass"
                proxy.judge = lambda name, _, it=verdict: it if name == "BITFIELD" else "pass"
                tasks.append(asyncio.ensure_future(guard.check_many([b"a"])))
                await asyncio.sleep(0)
                await asyncio.to_thread(guard.made[number].wait, 300)
            for number in order:
                guard.gates[number].set()
                await tasks[number]
            return [task.result()[0] for task in tasks]

        verdicts = asyncio.run(both())
        assert proxy.cuts["after"] > 0
        assert sorted(one.name for one in verdicts) == ["NEW", "SEEN"]
        proxy.judge = lambda _name, _number: "pass"
        guard.finish(lambda _: None)


def test_what_was_added_after_a_clear_is_new_though_it_was_known_before(
    server: PrivateServer,
) -> None:
    """The clear is noticed by another check, while the round trip is under way."""
    guard = Paused(connector(server.url), near_cache=0)
    guard.start()

    async def scenario() -> list[Verdict]:
        guard.gates = _Open()
        await guard.check_many([b"a"])
        BloomFilter.open(DEFAULTS.name, client=server.url).clear()
        guard.gates = []
        task = asyncio.ensure_future(guard.check_many([b"a", b"b"]))
        await asyncio.sleep(0)
        await asyncio.to_thread(guard.made[-1].wait, 300)
        held, guard.gates = guard.gates[0], _Open()
        await guard.check_many([b"c"])
        held.set()
        return await task

    assert asyncio.run(scenario()) == [Verdict.NEW, Verdict.NEW]
    assert guard.counted == []
    guard.finish(lambda _: None)


class _Open(list[threading.Event]):
    """Opens the gates of round trips at once."""

    def append(self, gate: threading.Event) -> None:
        gate.set()


def test_a_loss_that_many_items_find_is_made_good(
    server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0)
    empty = stored(server)
    assert check_many(guard, b"a", b"b") == [Verdict.NEW] * 2
    set_back(server, empty)
    assert check_many(guard, b"b", b"c") == [Verdict.SEEN, Verdict.NEW]
    assert recorded(server, b"a", b"b", b"c") == [True] * 3
    assert guard.counted == ["refills"]


def test_the_breaker_waits_ten_times_what_a_failure_cost() -> None:
    now = [100.0]
    breaker = CircuitBreaker(lambda: now[0])
    assert breaker.may_try()
    assert breaker.answered() is None
    assert breaker.failed(1.0)
    assert not breaker.failed(1.0)
    now[0] = 109.9
    assert not breaker.may_try()
    now[0] = 110.0
    assert breaker.may_try()
    assert breaker.answered() == pytest.approx(11.0)
    assert breaker.failed(0.0)
    now[0] = 110.5
    assert breaker.may_try()


def test_of_the_last_requests_the_oldest_is_forgotten() -> None:
    memory = LastRequests(limit=2)
    assert [memory.add(key) for key in (b"a", b"a", b"b", b"c")] == [True, False, True, True]
    assert [key in memory for key in (b"a", b"b", b"c")] == [False, True, True]
    assert list(memory) == [b"b", b"c"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("BLOOMLOCK_NAME", ""),
        ("BLOOMLOCK_NAME", "%(project)s"),
        ("BLOOMLOCK_NAME", "100 %"),
        ("BLOOMLOCK_CAPACITY", 0),
        ("BLOOMLOCK_CAPACITY", 1.5),
        ("BLOOMLOCK_CAPACITY", "many"),
        ("BLOOMLOCK_CAPACITY", True),
        ("BLOOMLOCK_ERROR_RATE", 1),
        ("BLOOMLOCK_ERROR_RATE", "nan"),
        ("BLOOMLOCK_ERROR_RATE", -0.1),
        ("BLOOMLOCK_NEAR_CACHE", -1),
        ("BLOOMLOCK_NEAR_CACHE", "many"),
        ("BLOOMLOCK_NEAR_CACHE", 0.5),
        ("BLOOMLOCK_AUDIT_SAMPLE", -1),
        ("BLOOMLOCK_AUDIT_SAMPLE", "all"),
        ("BLOOMLOCK_MAX_STALENESS", 0),
        ("BLOOMLOCK_TIMEOUT", 0),
        ("BLOOMLOCK_ON_OUTAGE", "panic"),
        ("BLOOMLOCK_CLEAR_ON_CLOSE", "perhaps"),
    ],
)
def test_a_bad_setting_is_named_with_its_value(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as raised:
        FilterSettings.read(Settings({key: value}), "spider")
    assert f"{key} is {value!r}; allowed" in str(raised.value)


def test_settings_from_the_command_line_are_strings() -> None:
    given = {"CAPACITY": "5000", "ERROR_RATE": "1e-4", "NEAR_CACHE": "0", "MAX_STALENESS": "0.5"}
    read = FilterSettings.read(
        Settings({f"BLOOMLOCK_{name}": value for name, value in given.items()}), "s"
    )
    assert (read.name, read.capacity, read.error_rate) == ("s:dupefilter", 5000, 1e-4)
    assert (read.near_cache, read.max_staleness) == (0, 0.5)


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_another_client_forgot_is_new_again(
    memory: dict[str, Any], server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0, **memory)
    keys = [b"a", b"b", b"c", b"d"]
    assert [guard.check(key) for key in keys] == [Verdict.NEW] * 4
    shared = BloomFilter.open(DEFAULTS.name, client=server.url)
    # Of the first one the answer about it is the first that says that items are forgotten.
    assert shared.discard(b"a")
    assert [guard.check(b"a"), guard.check(b"a")] == [Verdict.NEW, Verdict.SEEN]
    assert shared.discard(b"b")
    page = [b"b", b"b", b"c"]
    assert asyncio.run(guard.check_many(page)) == [Verdict.NEW, Verdict.SEEN, Verdict.SEEN]
    assert shared.discard(b"d")
    assert guard.check(b"d", recorded=False) is Verdict.NEW
    assert guard.counted == []
    assert recorded(server, *keys) == [True, True, True, False]


def test_what_is_let_through_during_a_refill_stays_known(server: PrivateServer) -> None:
    """Also if a clear has made what was known before as much as what is known now."""

    class Interrupted(Watched):
        def _refill(self, owed: Any) -> tuple[Exception | None, float]:
            answer = super()._refill(owed)
            self.wipe()
            self.decide(b"late")
            return answer

    guard = Interrupted(connector(server.url), near_cache=0, window=86_400.0)
    guard.start()
    guard.decide(b"early")
    guard._refill_due = True
    assert guard.check(b"any") is Verdict.NEW
    assert guard.counted == ["refills"]
    assert guard.check(b"late") is Verdict.SEEN
    guard.finish(lambda _: None)


@pytest.mark.parametrize("memory", MEMORIES)
def test_after_an_outage_a_filter_that_forgets_gets_what_was_let_through(
    memory: dict[str, Any], server: PrivateServer, start: Callable[..., Watched]
) -> None:
    guard = start(near_cache=0, **memory)
    assert [guard.check(b"a"), guard.check(b"b")] == [Verdict.NEW] * 2
    assert BloomFilter.open(DEFAULTS.name, client=server.url).discard(b"a")
    saved = stored(server)
    kill(server, guard)
    assert [guard.check(b"c"), guard.check(b"b")] == [Verdict.ALLOWED, Verdict.SEEN]
    server.start()
    set_back(server, saved)
    wait_until(lambda: guard.check(b"c") is Verdict.SEEN and "refills" in guard.counted, 60)
    assert recorded(server, b"a", b"b", b"c") == [False, True, True]
    assert guard.check(b"a") is Verdict.NEW


def test_a_filter_of_the_server_itself_is_filled_again() -> None:
    with PrivateServer(config=with_bloom()) as server:
        guard = Watched(connector(server.url), near_cache=0, strategy="native")
        guard.start()
        assert [guard.check(b"a"), guard.check(b"a")] == [Verdict.NEW, Verdict.SEEN]
        page = [b"a", b"b", b"b"]
        assert asyncio.run(guard.check_many(page)) == [Verdict.SEEN, Verdict.NEW, Verdict.SEEN]
        with redis.Redis.from_url(server.url) as r:
            r.flushall()
        assert guard.check(b"a") is Verdict.SEEN
        assert guard.counted == ["refills"]
        with BloomFilter.open(DEFAULTS.name, client=server.url, strategy="native") as shared:
            assert shared.exists_many([b"a", b"b", b"c"]) == [True, True, False]
        guard.finish(lambda _: None)
