"""What happens between two commands of one operation, made to happen there."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from proxy import HANDSHAKE

from bloomlock import BloomFilter, LockStrategy
from bloomlock.errors import LockTimeoutError


def do_before(proxy, number, action):
    """Run `action` once, just before the command that is `number`th from now on."""
    state = {"left": number}

    def judge(name, _number):
        if name not in HANDSHAKE:
            if state["left"] == 0:
                action()
            state["left"] -= 1
        return "pass"

    proxy.judge = judge
    return state


def test_a_lock_lost_before_the_bits_are_set_keeps_them_from_being_set(r, proxy):
    def steal():
        for key in r.keys("*:lock:[0-9]*"):
            r.set(key, "somebody else")

    for number in range(10):
        r.flushall()
        proxy.judge = lambda _name, _number: "pass"
        strategy = LockStrategy(timeout=0)
        with BloomFilter("x", 2000, 1e-3, client=proxy.url, strategy=strategy) as made:
            made.add("warm")
            # Before one of the scripts that take the lock, update, and release the lock.
            state = do_before(proxy, number, steal)
            added = None
            with contextlib.suppress(LockTimeoutError):
                added = made.add("item")
            proxy.judge = lambda _name, _number: "pass"
            assert made.exists("item") is bool(added)
            stolen = r.keys("*:lock:[0-9]*")
            # The other's lock was not released by us.
            assert all(r.get(key) == b"somebody else" for key in stolen)
            if state["left"] >= 0:
                assert number == 3
                return
            assert stolen == [] or added is None or number == 2
    pytest.fail("an add of ten commands?")


def touch(r, names):
    """Write each key as it is, and create and delete each name that is not there."""
    for name in names:
        if not r.exists(name):
            r.set(name, "")
            r.delete(name)
    for key in r.scan_iter():
        left_ms, dumped = r.pttl(key), r.dump(key)
        if dumped is not None:
            r.restore(key, max(0, left_ms), dumped, replace=True)


def create(client, _tmp_path, shards):
    return BloomFilter("y", 2000, client=client, shards=shards)


def clear(client, _tmp_path, shards):
    made = BloomFilter("y", 2000, client=client, shards=shards)
    made.add("gone")
    made.clear()
    assert not made.exists("gone")
    return made


def delete(client, _tmp_path, shards):
    made = BloomFilter("y", 2000, client=client, shards=shards)
    assert made.delete()
    return BloomFilter("y", 2000, client=client, shards=shards)


def copy(client, _tmp_path, shards):
    made = BloomFilter("x", 2000, client=client, shards=shards)
    made.add("there")
    copied = made.copy("y")
    assert copied.exists("there")
    return copied


def copy_to(client, _tmp_path, shards):
    made = BloomFilter("x", 2000, client=client, shards=shards)
    made.add("there")
    copied = made.copy_to(client, "y")
    assert copied.exists("there")
    return copied


def bring(client, tmp_path, shards):
    made = BloomFilter("x", 2000, client=client, shards=shards)
    made.add("there")
    made.export_file(tmp_path / "x.bloom")
    brought = BloomFilter.import_file("y", tmp_path / "x.bloom", client=client)
    assert brought.exists("there")
    return brought


def replace(client, _tmp_path, shards):
    made = BloomFilter("y", 2000, client=client, shards=shards)
    made.update(["there"])
    made.rebuild(["there"], capacity=3000)
    assert made.exists("there")
    return made


def add_under_locks(client, _tmp_path, shards):
    made = BloomFilter("y", 2000, client=client, shards=shards, strategy="lock")
    assert made.add("one")
    assert made.add_many(["one", "two", "three"]) == [False, True, True]
    return made


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    "operate", [create, clear, delete, copy, copy_to, bring, replace, add_under_locks]
)
def test_a_transaction_that_is_refused_is_tried_again(r, proxy, tmp_path, operate, shards):
    refused = []
    tries = Counter()

    def judge(name, _number):
        if name == "EXEC":
            tries["now"] += 1
            # Every second one, so each of an operation's is refused at some time.
            if tries["now"] % 2:
                refused.append(name)
                touch(r, ["bloomlock:{y}:meta"])
        return "pass"

    proxy.judge = judge
    made = operate(proxy.url, tmp_path, shards)
    assert refused
    assert made.add("later")
    proxy.judge = lambda _name, _number: "pass"
    assert BloomFilter.open("y", client=r).exists("later")
    made.close()
