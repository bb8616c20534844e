"""Creating, attaching, losing: never a silent no."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from functools import partial

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import FORKS
from strategies import BITMAPS, STRATEGIES, in_pairs, maker_of

from bloomlock import (
    BloomFilter,
    BloomlockError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
    delete_filter,
    list_filters,
)
from bloomlock.descriptor import READY
from bloomlock.filters import transfer
from bloomlock.keys import FilterKeys
from bloomlock.parameters import Wanted
from bloomlock.stored_descriptor import FIELDS, encode

BITS = "bloomlock:{x}:bits"
META = "bloomlock:{x}:meta"


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return request.param


def test_open_needs_a_filter(client):
    with pytest.raises(FilterNotFoundError, match="no filter named 'x'"):
        BloomFilter.open("x", client=client)
    assert client.keys("*") == []


def test_open_reads_every_parameter(client):
    made = BloomFilter("x", 12_345, 1e-4, client=client, seeds=[5, 6, 7], shards=2)
    opened = BloomFilter.open("x", client=client)
    for what in ("capacity", "error_rate", "num_bits", "num_hashes", "seeds", "shards"):
        assert getattr(opened, what) == getattr(made, what)
    assert opened.generation == made.generation


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"capacity": 2000}, "capacity: stored 1000, asked 2000"),
        ({"error_rate": 0.5}, "error_rate: stored 0.01, asked 0.5"),
        ({"seeds": [1]}, "seeds: stored None, asked"),
        ({"shards": 3}, "shards: stored 1, asked 3"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_other_parameters_are_refused(client, changes, says):
    BloomFilter("x", 1000, 0.01, client=client).add("a")
    before = client.hgetall(META), client.get(BITS)
    for on_lost in ("raise", "recreate"):
        with pytest.raises(FilterMismatchError, match=says):
            BloomFilter("x", **{"capacity": 1000, "error_rate": 0.01, **changes}, client=client,
                        on_lost=on_lost)  # fmt: skip
    assert (client.hgetall(META), client.get(BITS)) == before


@pytest.mark.parametrize("key", [META, BITS])
@pytest.mark.parametrize("kind", ["list", "string", "set"])
def test_foreign_keys_are_left_alone(client, key, kind):
    if kind == "string":
        client.set(key, "something else")
    else:
        {"list": client.rpush, "set": client.sadd}[kind](key, "a")
    before = client.dump(key)
    for on_lost in ("raise", "recreate"):
        with pytest.raises(FilterMismatchError, match="is no filter"):
            BloomFilter("x", 1000, client=client, on_lost=on_lost)
    with pytest.raises(FilterMismatchError, match="is no filter"):
        BloomFilter.open("x", client=client)
    assert client.dump(key) == before
    assert client.dbsize() == 1


def test_a_newer_descriptor_is_refused(client):
    BloomFilter("x", 1000, client=client)
    client.hset(META, "format", 4)
    with pytest.raises(FilterMismatchError, match="format 4"):
        BloomFilter("x", 1000, client=client)


def test_a_header_flag_of_a_newer_version_is_refused(client, strategy):
    made = BloomFilter("x", 1000, client=client, strategy=strategy)
    client.setbit(BITS, 9, 1)
    with pytest.raises(FilterMismatchError, match="newer version"):
        made.exists("a")


def shard_key(shard, shards=3):
    return FilterKeys("x").spread(shards).bits(shard)


def test_a_filter_of_other_shards_than_usual_is_attached_to_and_made_anew_with_its_own(client):
    """A version that took one shard for it left them; their keys must not stay behind."""
    made = BloomFilter("x", 2_000_000, 1e-6, client=client, shards=1)
    made.add("a")
    usual = BloomFilter("x", 2_000_000, 1e-6, client=client, on_lost="recreate")
    assert usual.exists("a")
    assert (usual.shards, Wanted.check(2_000_000, 1e-6).describe().size.shards > 1) == (1, True)
    client.delete(shard_key(0))
    assert usual.add("b")
    assert usual.shards == 1
    usual.delete()
    assert BloomFilter("x", 2_000_000, 1e-6, client=client).shards > 1
    assert BloomFilter("x", 2_000_000, 1e-6, client=client).info().shards > 1


@pytest.mark.parametrize("shard", [0, 2])
@pytest.mark.parametrize("on_lost", ["raise", "recreate"])
def test_a_header_flag_of_a_newer_version_never_empties_a_filter(client, shard, on_lost):
    made = BloomFilter("x", 1000, client=client, shards=3, on_lost=on_lost)
    made.update(map(str, range(100)))
    client.setbit(shard_key(shard), 9, 1)
    before = contents(client)
    ways = {
        "class": lambda: BloomFilter("x", 1000, client=client, shards=3, on_lost=on_lost),
        "open": lambda: BloomFilter.open("x", client=client, on_lost=on_lost),
        "add_many": lambda: made.add_many(map(str, range(1000, 1100))),
        "exists_many": lambda: made.exists_many(map(str, range(100))),
        "reattach": made.reattach,
    }
    if shard == 0:
        ways |= {
            "count": made.count,
            "info": made.info,
            "clear": made.clear,
            "delete": made.delete,
            "delete_filter": lambda: delete_filter("x", client=client),
        }
    for way, attempt in ways.items():
        with pytest.raises(FilterMismatchError, match="newer version"):
            attempt()
        if way != "add_many":
            assert contents(client) == before, way
        before = contents(client)


def test_a_shard_with_a_flag_is_not_emptied_by_a_creation(client, without_scripts):
    BloomFilter("x", 1000, client=client, shards=3).update(map(str, range(100)))
    client.setbit(shard_key(1), 9, 1)
    client.hset(META, "state", "creating")
    before = client.get(shard_key(1))
    for allowed in (client, without_scripts):
        with pytest.raises(FilterMismatchError, match="newer version"):
            BloomFilter.open("x", client=allowed, on_lost="recreate")
        assert client.get(shard_key(1)) == before


@pytest.fixture
def without_scripts(client, server_url):
    client.acl_setuser("careful", enabled=True, nopass=True, keys="*", channels="*",
                       commands=["+@all", "-@scripting"])  # fmt: skip
    with redis.Redis.from_url(server_url, username="careful", password="any") as made:  # noqa: S106
        yield made
    client.acl_deluser("careful")


def contents(client):
    return {key: client.dump(key) for key in client.scan_iter()}


def test_a_hash_or_short_string_of_others_is_left_alone(client):
    for set_up in (lambda: client.hset(META, "color", "red"), lambda: client.set(BITS, "abc")):
        client.flushall()
        set_up()
        before = contents(client)
        for attempt in (
            lambda: BloomFilter("x", 1000, client=client, on_lost="recreate"),
            lambda: BloomFilter.open("x", client=client),
            lambda: delete_filter("x", client=client),
        ):
            with pytest.raises(FilterMismatchError, match="is no filter"):
                attempt()
            assert contents(client) == before


# Each gives other bits for the same item, which would be a silent no.
TAMPERED = {
    "num_hashes": lambda client: client.hset(META, "num_hashes", 5),
    "shard_bits": lambda client: client.hset(META, "shard_bits", 35_000),
    "shards": lambda client: client.hset(META, "shards", 2),
    "capacity": lambda client: client.hset(META, mapping=encode(other_descriptor(client))),
    "state": lambda client: client.hset(META, "state", "growing"),
    "cut": lambda client: client.set(BITS, client.get(BITS)[:-1]),
    "longer": lambda client: client.append(BITS, b"\0"),
    "a cut shard": lambda client: client.set(shard_key(2), client.get(shard_key(2))[:-1]),
    "a list": lambda client: (client.delete(shard_key(2)), client.rpush(shard_key(2), "a")),
}


def other_descriptor(client):
    """A descriptor that does not contradict itself, of the same generation."""
    generation = int(client.hget(META, "generation"))
    return Wanted.check(9000, 0.01, shards=3).describe().with_generation(generation, READY)


@pytest.mark.parametrize("tampered", TAMPERED)
def test_tampering_is_refused_and_can_be_deleted(client, tampered):
    BloomFilter("other", 10, client=client).add("a")
    made = BloomFilter("x", 10_000, 0.01, client=client, shards=3)
    made.update(map(str, range(100)))
    TAMPERED[tampered](client)
    before = contents(client)
    for on_lost in ("raise", "recreate"):
        with pytest.raises(FilterMismatchError, match="filter 'x'"):
            BloomFilter("x", 10_000, 0.01, client=client, shards=3, on_lost=on_lost)
        with pytest.raises(FilterMismatchError, match="filter 'x'"):
            BloomFilter.open("x", client=client, on_lost=on_lost)
        assert contents(client) == before
    assert list_filters(client=client) == ["other", "x"]
    assert delete_filter("x", client=client) is True
    assert set(client.scan_iter()) == {b"bloomlock:{other}:bits", b"bloomlock:{other}:meta"}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=40,
)
@given(
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.none()
        | st.binary(max_size=30)
        | st.integers(-(10**20), 10**20).map(str)
        | st.sampled_from(["9" * 5000, "nan", "inf", "1e-9", "creating", "copying", "blocked"]),
        max_size=4,
    ),
    st.binary(max_size=20),
)
def test_no_descriptor_gets_through_but_as_one_sentence(r, changes, start):
    r.flushall()
    BloomFilter("good", 10, client=r)
    BloomFilter("x", 1000, 0.01, client=r).add("a")
    for field, value in changes.items():
        r.hdel(META, field) if value is None else r.hset(META, field, value)
    if start:
        r.setrange(BITS, 0, start)
    ways = [
        lambda: BloomFilter("x", 1000, 0.01, client=r).info(),
        lambda: BloomFilter.open("x", client=r).info(),
        lambda: BloomFilter.open("x", client=r, on_lost="recreate").add("b"),
        lambda: BloomFilter.open("good", client=r).copy("x"),
        lambda: delete_filter("x", client=r),
    ]
    for way in ways:
        try:
            way()
        except BloomlockError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 600
    assert list_filters(client=r) in (["good"], ["good", "x"])


# Each of these takes the filter away; afterwards no answer may be a plain False.
LOSSES = {
    "flushall": lambda client, _: client.flushall(),
    "both keys": lambda client, _: client.delete(BITS, META),
    "bitmap": lambda client, _: client.delete(BITS),
    "expired": lambda client, _: client.pexpire(BITS, 0),
    "overwritten": lambda client, _: client.set(BITS, b"\0" * 4000),
    "contents": lambda client, _: client.delete(*client.keys(f"{BITS}:native:*") or [BITS]),
    "deleted": lambda client, how: BloomFilter.open("x", client=client, strategy=how).delete(),
    "cleared": lambda client, how: BloomFilter.open("x", client=client, strategy=how).clear(),
    "replaced": lambda client, how: (
        client.flushall(),
        BloomFilter("x", 1000, client=client, strategy=how),
    ),
}
"""The second argument is the strategy of the one who takes it away."""

OPERATIONS = {
    "exists": lambda made: made.exists("a"),
    "contains": lambda made: "a" in made,
    "exists_many": lambda made: made.exists_many(["a", "b"]),
    "add": lambda made: made.add("a"),
    "add_many": lambda made: made.add_many(["a", "b"]),
    "update": lambda made: made.update(["a", "b"]),
    "count": lambda made: made.count(),
    "info": lambda made: made.info(),
}


@pytest.mark.parametrize(("strategy", "loss", "operation"), in_pairs([*LOSSES], [*OPERATIONS]))
def test_a_lost_filter_is_noticed_by_every_operation(client, strategy, loss, operation):
    made = BloomFilter("x", 1000, client=client, strategy=strategy)
    made.add("a")
    LOSSES[loss](client, maker_of(strategy))
    for _ in range(2):
        with pytest.raises(FilterLostError, match=r"reattach\(\)"):
            OPERATIONS[operation](made)


@pytest.mark.parametrize(("strategy", "loss", "operation"), in_pairs([*LOSSES], [*OPERATIONS]))
def test_recreate_goes_on_with_an_empty_filter(client, strategy, loss, operation, caplog):
    made = BloomFilter("x", 1000, client=client, strategy=strategy, on_lost="recreate")
    made.add_many(["a", "before"])
    LOSSES[loss](client, maker_of(strategy))
    with caplog.at_level(logging.WARNING, "bloomlock"):
        answer = OPERATIONS[operation](made)
    expected = {
        "exists": False,
        "contains": False,
        "exists_many": [False, False],
        "add": True,
        "add_many": [True, True],
        "update": None,
        "count": 0,
    }
    assert answer == expected.get(operation, answer)
    assert not made.exists("before")
    assert made.add("after")
    assert made.exists("after")
    assert BloomFilter("x", 1000, client=client, strategy=maker_of(strategy)).exists("after")
    if operation not in {"count", "info"}:
        assert "cleared or lost" in caplog.text


@pytest.mark.parametrize("loss", LOSSES)
def test_an_add_that_raised_is_new_when_repeated(client, strategy, loss):
    made = BloomFilter("x", 1000, client=client, strategy=strategy)
    how = maker_of(strategy)
    other = BloomFilter("x", 1000, client=client, strategy=how)
    LOSSES[loss](client, maker_of(strategy))
    with pytest.raises(FilterLostError):
        made.add("a")
    if loss in {"bitmap", "expired", "overwritten", "contents"}:
        # Half a filter is only started anew by somebody who asks for that.
        BloomFilter("x", 1000, client=client, on_lost="recreate", strategy=how)
    made.reattach()
    assert made.add("a") is True
    assert made.add("a") is False
    other.reattach()
    assert other.exists("a")


def test_a_batch_that_raised_is_new_when_repeated(client, strategy):
    made = BloomFilter("x", 5000, client=client, strategy=strategy)
    batch = [str(number) for number in range(2000)]
    BloomFilter.open("x", client=client, strategy=maker_of(strategy)).clear()
    with pytest.raises(FilterLostError):
        made.add_many(batch)
    made.reattach()
    assert made.add_many(batch) == [True] * 2000


def test_a_lost_bitmap_is_noticed_at_attaching(client):
    BloomFilter("x", 1000, client=client).add("a")
    client.delete(BITS)
    with pytest.raises(FilterLostError, match="lost its bitmap"):
        BloomFilter("x", 1000, client=client)
    with pytest.raises(FilterLostError, match="lost its bitmap"):
        BloomFilter.open("x", client=client)
    assert BloomFilter("x", 1000, client=client, on_lost="recreate").add("a")


def test_open_recreates_from_the_descriptor_where_asked(client):
    BloomFilter("x", 1000, 0.01, client=client, seeds=[1, 2, 3], shards=2).add("a")
    client.delete(BITS)
    made = BloomFilter.open("x", client=client, on_lost="recreate")
    assert (made.capacity, made.seeds, made.shards) == (1000, (1, 2, 3), 2)
    assert made.add("a")


def test_a_lost_descriptor_is_noticed_at_attaching(client):
    BloomFilter("x", 1000, client=client).add("a")
    client.delete(META)
    with pytest.raises(FilterLostError, match="lost its descriptor"):
        BloomFilter("x", 1000, client=client)
    assert BloomFilter("x", 1000, client=client, on_lost="recreate").add("a")


def test_a_lost_shard_is_noticed(client):
    made = BloomFilter("x", 1000, client=client, shards=3)
    made.update(map(str, range(50)))
    client.delete(shard_key(2))
    with pytest.raises(FilterLostError):
        made.exists_many(map(str, range(50)))
    with pytest.raises(FilterLostError, match="one of its shards"):
        BloomFilter("x", 1000, client=client)
    made = BloomFilter("x", 1000, client=client, on_lost="recreate")
    assert not any(made.exists_many(map(str, range(50))))


@pytest.mark.parametrize(("shards", "stored"), [(5, "1"), (256, "1"), (5, "3"), (1500, "3")])
def test_a_damaged_filter_is_deleted_with_all_its_shards(client, shards, stored):
    made = BloomFilter("x", 1000, client=client, shards=shards)
    if stored == "1":
        for shard in range(1, shards):
            client.rename(shard_key(shard, shards), FilterKeys("x").bits(shard))
    client.hset(META, "shards", "many")
    assert made.delete()
    assert client.keys() == []


def test_a_creation_that_stopped_half_way_is_finished_by_the_next(client):
    BloomFilter("x", 1000, client=client, shards=4)
    client.hset(META, "state", "creating")
    client.delete(shard_key(2, 4), shard_key(3, 4))
    made = BloomFilter.open("x", client=client)
    assert sum(made.add_many(map(str, range(100)))) == 100
    assert client.hget(META, "state") in (b"ready", "ready")


def test_a_copy_that_stopped_half_way_is_no_filter(client):
    BloomFilter("x", 1000, client=client).add("a")
    client.hset(META, "state", "copying")
    client.delete(BITS)
    for attach in (lambda: BloomFilter("x", 1000, client=client),
                   lambda: BloomFilter.open("x", client=client)):  # fmt: skip
        with pytest.raises(FilterMismatchError, match="copy was interrupted"):
            attach()


def _create(url, barrier, results):
    client = redis.Redis.from_url(url)
    for number in range(20):
        barrier.wait(30)
        made = BloomFilter(f"race {number}", 1000, client=client, shards=1 + number % 3)
        results.put((number, made.generation, made.add("the same")))


@pytest.mark.processes
def test_processes_that_create_at_once_agree(valkey):
    barrier, results = FORKS.Barrier(4), FORKS.Queue()
    redis.Redis.from_url(valkey).flushall()
    workers = [FORKS.Process(target=_create, args=(valkey, barrier, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    answers = [results.get(timeout=60) for _ in range(80)]
    for worker in workers:
        worker.join(300)
        assert worker.exitcode == 0
    for number in range(20):
        mine = [answer[1:] for answer in answers if answer[0] == number]
        assert len({generation for generation, _ in mine}) == 1
        assert sorted(new for _, new in mine) == [False, False, False, True]


def test_threads_that_share_one_object(client, strategy, seed):
    made = BloomFilter("x", 5000, client=client, strategy=strategy)
    wins: list[list[str]] = [[] for _ in range(4)]
    items = [str(number) for number in range(300)]

    def offer(mine: list[str], order: list[str]) -> None:
        for item in order:
            if made.add(item):
                mine.append(item)
            assert made.exists(item)

    threads = [
        threading.Thread(
            target=offer, args=(mine, random.Random(seed + index).sample(items, len(items)))
        )
        for index, mine in enumerate(wins)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    won = [item for mine in wins for item in mine]
    if strategy != "pipeline":
        assert sorted(won) == sorted(items)
    assert all(made.exists_many(items))


@pytest.mark.parametrize("strategy", BITMAPS)
def test_a_copy_takes_nothing_of_an_object_attached_to_what_was_there(r, strategy):
    client, shards = r, 2
    items = [str(number) for number in range(40)]
    for number in range(60):
        client.flushall()
        source = BloomFilter("x", 2000, client=client, shards=shards)
        source.update(items[:10])
        late = BloomFilter("y", 2000, client=client, shards=shards, strategy=strategy)
        late.delete()
        steps = transfer.copy(source._state, FilterKeys("y"))
        done = source._runtime.run(interrupted(steps, number, partial(add_late, late, items[10:])))
        copied = BloomFilter.open("y", client=client)
        assert copied.exists_many(items[:10]) == [True] * 10
        late.reattach()
        assert late.add_many(items[10:]) == [True] * 30
        assert not client.keys("*:prepared:*")
        if not done:
            assert number > 5 * shards
            return
    pytest.fail("a copy of so many steps?")


def add_late(late, items):
    with pytest.raises(FilterLostError):
        late.add_many(items)


def interrupted(core, number, act):
    """Carry out a core, and something else before its step of that number; False: it ended."""
    answer = None
    acted = False
    count = 0
    with contextlib.suppress(StopIteration):
        while True:
            step = core.send(answer)
            if count == number:
                act()
                acted = True
            count += 1
            answer = yield step
    if not acted:
        act()
    return acted


@pytest.mark.parametrize("on_lost", ["raise", "recreate"])
@pytest.mark.parametrize("shards", [1, 3])
def test_an_object_of_a_larger_filter_does_not_make_a_smaller_one_longer(r, on_lost, shards):
    """Its update carries the old places, and is answered after they were written."""
    old = BloomFilter("x", 100_000, client=r, on_lost=on_lost, shards=shards)
    old.add("a")
    old.delete()
    made = BloomFilter("x", 1000, client=r, shards=shards)
    made.add("b")
    lengths = {key: r.strlen(key) for key in r.scan_iter("*:bits*")}
    with pytest.raises((FilterLostError, FilterMismatchError)):
        old.update(str(one) for one in range(100))
    assert {key: r.strlen(key) for key in r.scan_iter("*:bits*")} == lengths
    again = BloomFilter.open("x", client=r)
    assert "b" in again
    assert again.add("c")


def test_nor_one_with_a_time_out_or_forgotten_items(r):
    old = BloomFilter("x", 100_000, client=r)
    old.delete()
    made = BloomFilter("x", 1000, client=r, idle_ttl=500)
    made.update(["b", "c"])
    assert made.discard("b")
    length = r.strlen("bloomlock:{x}:bits")
    with pytest.raises(FilterLostError):
        old.update(str(one) for one in range(100))
    assert r.strlen("bloomlock:{x}:bits") == length
    assert 0 < r.ttl("bloomlock:{x}:bits") <= 600
    assert BloomFilter.open("x", client=r).exists_many(["b", "c"]) == [False, True]
