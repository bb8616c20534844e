"""`union_update`: a filter gets all bits of another one, while both are in use, or says why not."""

from __future__ import annotations

import numpy as np
import pytest
from stepped import Crash, Stepped, crash

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.errors import ConfigurationError, FilterLostError
from bloomlock.filters import files
from bloomlock.sizing import FIRST_BYTE

WAYS = ("one server", "another database", "another server")


def filled(name, url, first, last, face=BloomFilter, **shape):
    made = face(name, 3000, 1e-6, client=url, **shape)
    made.update(str(number) for number in range(first, last))
    return made


def bits(made):
    return [image[FIRST_BYTE:].tobytes() for image in made.to_memory().images()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "shape", [{"shards": 3}, {"key": b"a secret of 16 bytes or more"}], ids=str
)
@pytest.mark.usefixtures("r")
def test_bits_are_those_of_both(valkey, second, monkeypatch, way, shape):
    monkeypatch.setattr(files, "PIECE_BYTES", 3000)
    databases = {"another server": second, "another database": valkey.replace("db=0", "db=3")}
    a = filled("a", valkey, 0, 2000, **shape)
    b = filled("b", databases.get(way, valkey), 1500, 3000, **shape)
    theirs = bits(b)
    images = zip(a.to_memory().images(), b.to_memory().images(), strict=True)
    either = [np.bitwise_or(*pair)[FIRST_BYTE:].tobytes() for pair in images]
    a.union_update(b)
    assert bits(a) == either
    assert bits(b) == theirs
    a.update(b)
    assert bits(a) == either
    b.delete()


@pytest.mark.parametrize(
    "other",
    [
        {"capacity": 4000},
        {"num_hashes": 5},
        {"shards": 2},
        {"seeds": range(7)},
        {"key": b"a secret of 16 bytes or more"},
    ],
    ids=lambda value: str(value)[:20],
)
def test_unequal_filters_are_refused_and_nothing_is_changed(r, other):
    a = filled("a", r, 0, 100)
    b = BloomFilter("b", **({"capacity": 3000} | other), client=r)
    before = {key: r.dump(key) for key in r.scan_iter()}
    for act in (a.union_update, a.update):
        with pytest.raises(ConfigurationError, match="merged only if"):
            act(b)
    assert before == {key: r.dump(key) for key in r.scan_iter()}
    for wrong in (MemoryBloomFilter(3000), ["1"], None):
        with pytest.raises(ConfigurationError, match="other must be a BloomFilter, not"):
            a.union_update(wrong)


def test_random_keys_differ(r):
    a, b = (BloomFilter(name, 3000, client=r, key=True) for name in "ab")
    with pytest.raises(ConfigurationError, match="the random one of .* the random one of"):
        a.union_update(b)


def test_what_others_do_at_any_step_is_kept_or_noticed(r, monkeypatch):
    """An add to either stays, a clear is found or comes after, a crash leaves what was there."""
    monkeypatch.setattr(files, "PIECE_BYTES", 3000)
    mine, theirs = list(map(str, range(200))), list(map(str, range(100, 300)))
    for event in ("add", "clear", "clear theirs", "crash"):
        number, done = 0, False
        while not done:
            r.flushall()
            filled("a", r, 0, 200, shards=2)
            b, other = filled("b", r, 100, 300, shards=2), BloomFilter.open("a", client=r)
            acts = {
                "add": lambda other=other, b=b: (other.add("late"), b.add("late, too")),
                "clear": other.clear,
                "clear theirs": lambda: BloomFilter.open("b", client=r).clear(),
                "crash": crash,
            }
            a = Stepped.opened("a", number, acts[event], r)
            try:
                a.union_update(b)
            except FilterLostError:
                assert event.startswith("clear")
                if event == "clear":
                    assert other.count() == 0, "bits of an earlier generation"
            except Crash:
                assert other.exists_many(mine) == [True] * 200
            else:
                done = a.done <= number
                if event == "clear" and not done:
                    assert other.count() == 0
                elif event == "add" and not done:
                    assert other.exists_many([*mine, *theirs, "late"]) == [True] * 401
                elif not event.startswith("clear"):
                    assert other.exists_many([*mine, *theirs]) == [True] * 400
            assert not [key for key in r.keys("*:part*") + r.keys("*:merge*") if r.ttl(key) == -1]
            number += 1
        assert number > 3


def test_a_discard_before_the_last_bits_is_refused_whenever_it_comes(r):
    refused = 0
    while True:
        r.flushall()
        filled("a", r, 0, 200, shards=2)
        b, other = filled("b", r, 100, 300, shards=2), BloomFilter.open("a", client=r)
        a = Stepped.opened("a", refused, lambda other=other: other.discard("150"), r)
        try:
            a.union_update(b)
        except ConfigurationError as error:
            assert "is not possible with a filter with discarded items" in str(error)
            refused += 1
            continue
        assert other.exists("150") is False
        assert other.exists("250") is True
        assert refused > 2
        return
