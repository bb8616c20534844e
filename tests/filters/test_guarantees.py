"""The cells of the README's guarantee table that are about what is sent."""

from __future__ import annotations

import pytest
import redis

from bloomlock import BloomFilter
from bloomlock.effects import Pipeline, Request
from bloomlock.errors import ConfigurationError
from bloomlock.filters import answers

STRATEGIES = ("atomic", "lua", "transaction", "pipeline", "lock", "native")


@pytest.fixture
def restricted(r):
    """A client that may do everything but what is named; `restricted("-eval")`."""
    made = []

    def make(*rules):
        r.execute_command("ACL", "SETUSER", "some", "on", ">pw", "~*", "&*", "+@all", *rules)
        options = r.connection_pool.connection_kwargs
        other = redis.Redis(unix_socket_path=options["path"], username="some", password="pw")  # noqa: S106
        made.append(other)
        return other

    yield make
    for other in made:
        other.close()
    r.execute_command("ACL", "DELUSER", "some")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_where_eval_is_forbidden(restricted, strategy):
    limited = restricted("-@scripting")
    made = BloomFilter("x", 1000, client=limited, strategy=strategy)
    if strategy in ("lua", "lock"):
        with pytest.raises((redis.exceptions.NoPermissionError, ConfigurationError), match="eval"):
            made.add("a")
        return
    assert made.add("a") is True
    assert made.add_many(["a", "b", "b"]) == [False, True, False]
    assert made.exists("a")
    made.clear()
    assert not made.exists("a")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_where_bitfield_is_forbidden(restricted, strategy):
    limited = restricted("-bitfield", "-bitfield_ro")
    made = BloomFilter("x", 1000, client=limited, strategy=strategy)
    if strategy == "atomic":
        with pytest.raises(redis.exceptions.NoPermissionError):
            made.add("a")
        return
    assert made.add("a") is True
    assert made.add_many(["a", "b", "b"]) == [False, True, False]
    assert made.exists("b")


def test_locks_are_released_where_delifeq_is_forbidden(r, restricted):
    rules = ["-delifeq"] if _knows(r, "DELIFEQ") else []
    made = BloomFilter("x", 1000, client=restricted(*rules), strategy="lock")
    assert made.add_many(map(str, range(50))) == [True] * 50
    assert no_lock_is_left(r)
    made.delete()
    assert r.keys("*") == []


def no_lock_is_left(r):
    """Only the last fence of all stripes of a shard, for a while."""
    assert not r.keys("*:lock:*")
    left = r.keys("*:bits:*")
    return all(key.endswith(b":bits:fence") and 0 < r.pttl(key) <= 60_000 for key in left)


def _knows(r, command):
    try:
        r.execute_command(command)
    except redis.ResponseError as error:
        return "unknown command" not in str(error)
    return True


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_round_trips_of_one_add(r, strategy):
    made = BloomFilter("x", 1000, client=r, strategy=strategy)
    made.add("warm: the script is loaded, the way to release is known")
    expected = 3 if strategy == "lock" else 1
    assert trips(made, answers.add(made._state, "a")) == expected
    assert trips(made, answers.exists(made._state, "a")) == 1
    if strategy != "lock":
        # One more looks at the fill.
        batch = [str(number) for number in range(10_000 // made.num_hashes)]
        assert trips(made, answers.add_many(made._state, batch, "items")) == 1 + 1
        if strategy not in ("atomic", "lua"):
            return
        made.update(["warm"], route="bitmap")
        assert trips(made, answers.add_many(made._state, batch, "bitmap")) == 2
        assert trips(made, answers.exists_many(made._state, batch, "bitmap")) == 1


def trips(made, core):
    """Drive a core by hand, request by request, and count them."""

    def one(step):
        replies = yield step
        return replies

    count = 0
    try:
        step = next(core)
        while True:
            count += isinstance(step, (Request, Pipeline))
            step = core.send(made._runtime.run(one(step)))
    except StopIteration:
        return count
