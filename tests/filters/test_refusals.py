"""What a server refuses was not done: it is never taken for unknown, in no place of a batch."""

from __future__ import annotations

import pytest
import redis
import redis.asyncio

from bloomlock import BloomFilter
from bloomlock.errors import OutcomeUnknownError
from bloomlock.refusals import is_refusal

ITEMS = [str(number) for number in range(700)]


def full(r):
    r.config_set("maxmemory", 1)


def not_full(r):
    r.config_set("maxmemory", 0)


@pytest.mark.parametrize("many", [False, True])
def test_who_is_not_logged_in_adds_nothing(r, valkey, many):
    made = BloomFilter("x", 2000, client=r, on_unknown="new")
    r.config_set("requirepass", "secret")
    try:
        # Without a handshake the answer to the add itself is the refusal.
        options = {"protocol": 2, "lib_name": None, "lib_version": None}
        with redis.Redis.from_url(valkey, **options) as stranger:
            theirs = BloomFilter.__new__(BloomFilter)
            theirs._state = made._state
            theirs._runtime = type(made._runtime)(stranger)
            theirs._run = theirs._runtime.run
            for _ in range(3):
                # Of a command with many arguments an unknown client gets another answer.
                with pytest.raises(redis.RedisError, match="uthenticat"):
                    theirs.add_many(["a", "b"]) if many else theirs.add("a")
    finally:
        r.config_set("requirepass", "")
    assert made.exists_many(["a", "b"]) == [False, False]


def test_redis_pys_errors_are_told_apart():
    parse = redis.connection.Connection()._parser.parse_error
    for answer in ("LOADING Redis is loading", "NOAUTH Authentication required.", "NOPERM no",
                   "ERR max number of clients reached", "READONLY You", "OOM command", "MISCONF a",
                   "CLUSTERDOWN Hash slot", "MASTERDOWN link", "TRYAGAIN a", "BUSY script",
                   "WRONGPASS invalid", "NOREPLICAS Not", "WRONGTYPE a", "EXECABORT a",
                   "ERR unknown command", "NOSCRIPT a"):  # fmt: skip
        assert is_refusal(parse(answer)), answer
    for lost in (redis.ConnectionError("Connection closed by server."), redis.TimeoutError("a"),
                 ConnectionResetError(), redis.exceptions.InvalidResponse("x")):  # fmt: skip
        assert not is_refusal(lost)


def test_refused_and_lost_in_one_batch(r, proxy):
    """The unknown items are said to be unknown, whatever else went wrong."""
    with BloomFilter("x", 20_000, client=proxy.url, shards=2) as made:
        made.add("warm")
        batch = ITEMS[:400]
        commands = []

        def judge(name, _number):
            if name == "BITFIELD":
                commands.append(name)
                if len(commands) == 2:
                    full(r)
                if len(commands) == 4:
                    return "after"
            return "pass"

        proxy.judge = judge
        try:
            with pytest.raises(OutcomeUnknownError) as caught:
                made.add_many(batch, route="items")
        finally:
            proxy.judge = lambda _name, _number: "pass"
            not_full(r)
        known = [item for item, new in zip(batch, caught.value.results, strict=False) if new]
        assert known
        assert sorted(known) == sorted(item for item in batch if made.exists(item))
