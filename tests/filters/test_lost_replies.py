"""Lost replies: what was on its way is unknown, and no more. What a server refuses was not done."""

from __future__ import annotations

import pytest
import redis
import redis.asyncio
from proxy import HANDSHAKE

from bloomlock import BloomFilter
from bloomlock.errors import OutcomeUnknownError
from bloomlock.refusals import is_refusal

PATIENCE = 60
"""Seconds that no test waits for."""


@pytest.fixture
def through(proxy):
    """A client as users have it: redis-py's own default retries are on.

    Only its time-out is longer: the proxy reads ten thousand commands of a batch.
    """
    with redis.Redis.from_url(proxy.url, socket_timeout=PATIENCE) as made:
        made.ping()
        yield made


def lose_once(proxy, verdict, skip):
    """Lose the first BITFIELD from now on, after `skip` of them."""
    lost = proxy.seen.count("BITFIELD") + skip + 1

    def judge(name, _number):
        is_lost = name == "BITFIELD" and proxy.seen.count(name) == lost
        return verdict if is_lost else "pass"

    proxy.judge = judge


@pytest.mark.parametrize("verdict", ["before", "after"])
def test_what_was_on_its_way_is_unknown_and_no_more(r, proxy, through, verdict):
    made = BloomFilter("x", 20_000, client=through, num_hashes=16)
    batch = [str(number) for number in range(10_000)]
    lose_once(proxy, verdict, skip=20)
    with pytest.raises(OutcomeUnknownError) as caught:
        made.add_many(batch, route="items")
    results = caught.value.results
    known = results.index(None)
    assert results[:known] == [True] * 20 * 62
    assert set(results[known:]) == {None}
    # A dozen commands may be on their way, of 62 items each.
    assert 62 <= len(results) - known <= 62 * 12
    assert not any(made.exists_many(batch[len(results) :]))
    assert made.add_many(batch[len(results) :]) == [True] * (len(batch) - len(results))


def test_repeats_of_what_was_never_sent_are_not_known(r, proxy, through):
    made = BloomFilter("x", 20_000, client=through, num_hashes=16)
    lose_once(proxy, "after", skip=20)
    with pytest.raises(OutcomeUnknownError) as caught:
        made.add_many([str(number // 2) for number in range(20_000)], route="items")
    results = caught.value.results
    assert results[: 2 * 20 * 62] == [True, False] * 20 * 62
    assert set(results[2 * 20 * 62 :]) == {None}
    assert len(results) <= 2 * 62 * 32
    assert not any(made.exists_many(map(str, range(len(results) // 2, 10_000))))


@pytest.mark.parametrize("options", [{}, {"window": 60}, {"on_full": "grow"}], ids=str)
def test_an_update_whose_every_reply_is_lost_is_of_unknown_outcome(r, proxy, through, options):
    """A filter that grows looks at its fill between the tries, and that fails too."""
    made = BloomFilter("x", 5000, client=through, **options)
    made.update(["a", "b"])
    begun = []

    def judge(name, _number):
        if name in {"BITFIELD", "EVALSHA"}:
            begun.append(name)
            made._state.fill._stale_at = 0.0
        return "after" if begun and name not in HANDSHAKE else "pass"

    proxy.judge = judge
    with pytest.raises(OutcomeUnknownError):
        made.update(["c", "d"])
    proxy.judge = lambda _name, _number: "pass"
    assert all(made.exists_many(["c", "d"]))


def test_a_bad_network_does_not_stop_an_update_that_gets_on(r, proxy, through):
    """A third of a batch gets through each time, so more than three replies may be lost."""
    made = BloomFilter("x", 50_000, client=through, num_hashes=16)
    batch = [str(number) for number in range(6000)]
    commands = []

    def judge(name, _number):
        commands.append(name)
        return "after" if name == "BITFIELD" and commands.count("BITFIELD") % 20 == 0 else "pass"

    proxy.judge = judge
    made.update(batch, route="items")
    assert proxy.lost > 4
    assert all(made.exists_many(batch))


# -- refused --------------------------------------------------------------------------------------

ITEMS = [str(number) for number in range(700)]


def full(r):
    r.config_set("maxmemory", 1)


def not_full(r):
    r.config_set("maxmemory", 0)


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
