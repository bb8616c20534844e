"""The filter behind its policy, in this process and on a real server: it always answers."""

from __future__ import annotations

import itertools
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from scrapy.settings import Settings
from servers import wait_until

from bloomlock import BloomFilter, ConfigurationError, FilterMismatchError
from bloomlock.server import PrivateServer
from scrapy_ext.connection import redis_client
from scrapy_ext.guard import GuardedFilter, Verdict
from scrapy_ext.outage import CircuitBreaker, LocalMemory
from scrapy_ext.settings import FilterSettings

if TYPE_CHECKING:
    from collections.abc import Callable

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
        url, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
    )


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free: int = taken.getsockname()[1]
    return free


def test_what_was_let_through_is_recorded_when_the_server_is_back(port: int) -> None:
    guard = Watched(connector(f"redis://127.0.0.1:{port}/0"))
    guard.start()
    assert guard.counted == ["errors", "outages"]
    assert [guard.check(b"a"), guard.check(b"b"), guard.check(b"a")] == [
        Verdict.ALLOWED,
        Verdict.ALLOWED,
        Verdict.SEEN,
    ]
    with PrivateServer(port=port):
        others = (b"%d" % number for number in itertools.count())
        wait_until(lambda: guard.check(next(others)) is Verdict.NEW)
        assert not guard.broken
        shared = BloomFilter.open(DEFAULTS.name, client=f"redis://127.0.0.1:{port}/0")
        assert shared.exists_many([b"a", b"b", b"0"]) == [True, True, True]
        assert guard.check(b"a") is Verdict.SEEN
        guard.finish(lambda _: None)


def test_drop_keeps_out_what_cannot_be_checked_but_not_what_must_pass(port: int) -> None:
    guard = Watched(connector(f"redis://127.0.0.1:{port}/0"), on_outage="drop")
    guard.start()
    assert guard.check(b"a") is Verdict.DROPPED
    assert guard.check(b"a", droppable=False) is Verdict.ALLOWED


def test_close_asks_for_the_end(port: int) -> None:
    guard = Watched(connector(f"redis://127.0.0.1:{port}/0"), on_outage="close")
    guard.start()
    assert guard.closed == ["bloomlock_outage"]
    assert guard.check(b"a") is Verdict.ALLOWED


def test_a_lost_filter_is_made_anew(client: redis.Redis, valkey: str) -> None:
    guard = Watched(connector(valkey), near_cache=0)
    guard.start()
    assert guard.check(b"a") is Verdict.NEW
    client.flushall()
    assert guard.check(b"a") is Verdict.NEW
    assert guard.check(b"a") is Verdict.SEEN
    assert guard.counted == []


def test_what_is_known_as_seen_is_not_asked_for(client: redis.Redis, valkey: str) -> None:
    def asked() -> int:
        calls: int = client.info("commandstats")["cmdstat_bitfield"]["calls"]
        return calls

    def told_of_changes() -> set[str]:
        return {found["id"] for found in client.client_list() if "t" in found["flags"]}

    client.flushall()
    others = told_of_changes()
    guard = Watched(connector(valkey))
    guard.start()
    assert guard.check(b"a") is Verdict.NEW
    assert told_of_changes() - others
    before = asked()
    assert [guard.check(b"a") for _ in range(5)] == [Verdict.SEEN] * 5
    assert asked() == before
    BloomFilter.open(DEFAULTS.name, client=valkey).clear()
    wait_until(lambda: guard.check(b"a") is Verdict.NEW)
    assert guard.check(b"a") is Verdict.SEEN
    guard.finish(lambda _: None)
    wait_until(lambda: told_of_changes() <= others)


def test_another_type_under_the_filters_key_is_left_to_the_policy(
    client: redis.Redis, valkey: str
) -> None:
    guard = Watched(connector(valkey))
    guard.start()
    for key in client.scan_iter():
        client.delete(key)
        client.lpush(key, "something else")
    assert [guard.check(b"a"), guard.check(b"a")] == [Verdict.ALLOWED, Verdict.SEEN]
    assert guard.counted == ["errors", "outages"]


@pytest.mark.parametrize(
    ("policy", "verdict"), [("allow", Verdict.ALLOWED), ("drop", Verdict.DROPPED)]
)
def test_a_full_filter_is_left_to_the_policy(
    policy: str, verdict: Verdict, client: redis.Redis, valkey: str
) -> None:
    del client
    guard = Watched(connector(valkey), capacity=100, on_full="raise", on_outage=policy)
    guard.start()
    answers = [guard.check(b"%d" % number) for number in range(400)]
    assert verdict in answers
    assert set(answers) <= {Verdict.NEW, Verdict.SEEN, verdict}
    assert guard.check(b"1") is Verdict.SEEN
    assert set(guard.counted) == {"full"}
    assert not guard.broken


def test_another_filter_under_the_name_stops_the_start(client: redis.Redis, valkey: str) -> None:
    BloomFilter(DEFAULTS.name, 5, client=client)
    with pytest.raises(FilterMismatchError):
        Watched(connector(valkey)).start()


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


def test_the_memory_forgets_the_oldest() -> None:
    memory = LocalMemory(limit=2)
    for key in (b"a", b"b", b"c"):
        memory.add(key, owed=True)
    assert [key in memory for key in (b"a", b"b", b"c")] == [False, True, True]
    assert memory.owed(1) == [b"b"]
    memory.settle([b"b"])
    assert memory.owed(5) == [b"c"]


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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"BLOOMLOCK_URL": "redis://a:1/2", "REDIS_URL": "redis://b"}, ("a", 1, 2)),
        ({"REDIS_URL": "redis://b:3"}, ("b", 3, 0)),
        ({"REDIS_HOST": "c", "REDIS_PORT": 4}, ("c", 4, 0)),
        ({"REDIS_PARAMS": {"host": "d", "db": 5, "retry_on_timeout": True}}, ("d", 6379, 5)),
        ({"REDIS_PARAMS": {"redis_cls": "redis.Redis"}, "REDIS_HOST": "e"}, ("e", 6379, 0)),
    ],
)
def test_the_server_is_found_where_scrapy_redis_finds_it(
    settings: dict[str, Any], expected: tuple[str, int, int]
) -> None:
    client = redis_client(Settings(settings), timeout=0.5)
    given = client.connection_pool.connection_kwargs
    assert (given["host"], given.get("port", 6379), int(given.get("db", 0))) == expected
    assert given["socket_timeout"] == given["socket_connect_timeout"] == 0.5


@pytest.mark.parametrize(
    "settings", [{"BLOOMLOCK_URL": "http://host"}, {"REDIS_PARAMS": {"redis_cls": "no.such"}}]
)
def test_settings_that_make_no_client_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="makes no Redis client"):
        redis_client(Settings(settings), timeout=0.5)
