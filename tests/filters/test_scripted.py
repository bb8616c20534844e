"""A script of the caller's in which items are tested and added."""

from __future__ import annotations

import pytest
from contract.filter_extras import PUSH_NEW

from bloomlock import BloomFilter
from bloomlock.errors import CapacityError, ConfigurationError


def test_a_filter_grows_by_what_scripts_add(r, valkey):
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
    assert r.llen("{pages}:q") == 1200
    assert pages.exists_many(items) == [True] * 1200
    assert not any(pages.exists_many(f"no {number}" for number in range(1200)))


def test_a_script_whose_reply_is_lost_is_sent_again(r, proxy):
    pages = BloomFilter("pages", 1000, client=proxy.client())
    pages.run_script(PUSH_NEW, ["z"], ["queue"], ["z"])
    first = proxy.seen.count("EVALSHA")

    def judge(name, _number):
        return "after" if name == "EVALSHA" and proxy.seen.count(name) == first + 1 else "pass"

    proxy.judge = judge
    assert pages.run_script(PUSH_NEW, ["a"], ["queue"], ["a"]) == []
    assert r.lrange("queue", 0, -1) == [b"z", b"a"]
    assert proxy.cuts["after"] == 1


def test_a_full_filter_takes_no_new_items_from_a_script(r, valkey):
    pages = BloomFilter("pages", 100, client=valkey, on_full="raise")
    items = [str(number) for number in range(120)]
    with pytest.raises(CapacityError):
        for item in items:
            pages.run_script(PUSH_NEW, [item], ["queue"], [item])
    assert 90 < r.llen("queue") < 110


@pytest.mark.parametrize(
    ("keys", "args", "sentence"),
    [
        ("queue", (), "keys must be a list, not 'queue'"),
        ([], b"queue", "args must be a list, not b'queue'"),
        (["queue"] * 5001, (), "keys must be 5000 at most, not 5001"),
        ([], ["a"] * 5001, "args must be 5000 at most, not 5001"),
        ([], [None], "an argument must be str, bytes or a number, not None"),
        ([], [bytearray(b"a")], "an argument must be str, bytes or a number, not bytearray"),
    ],
)
def test_keys_and_arguments_that_no_script_takes(valkey, keys, args, sentence):
    pages = BloomFilter("refusals", 1000, client=valkey)
    with pytest.raises(ConfigurationError, match=sentence):
        pages.run_script("return #KEYS + #ARGV", [], keys, args)
    assert pages.run_script("return #ARGV", [], ["a"], iter([1] * 5000)) == 5000
