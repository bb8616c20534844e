"""Filters and files of formats 1 and 2, as they were written, are attached to and read for ever."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest
import redis

from bloomlock import BloomFilter, FilterMismatchError, MemoryBloomFilter

STORED = json.loads(Path(__file__).with_name("stored_formats.json").read_text("utf-8"))
"""What version 0.1 wrote for 100 items: the descriptor, the strings, and the file."""

ITEMS = [f"item {number}" for number in range(100)]
META = "bloomlock:{old}:meta"


def unpacked(text):
    return zlib.decompress(base64.b64decode(text))


@pytest.fixture(params=STORED, ids=lambda case: case["name"])
def case(request):
    return request.param


@pytest.fixture
def r(valkey, case):
    client = redis.Redis.from_url(valkey)
    client.flushall()
    client.hset(META, mapping=case["descriptor"])
    for key, value in case["strings"].items():
        client.set(key, unpacked(value))
    return client


def holds_the_items(found):
    assert found.exists_many(ITEMS) == [True] * len(ITEMS)
    assert found.add_many(ITEMS) == [False] * len(ITEMS)
    assert found.exists_many(f"other {number}" for number in range(100)).count(True) == 0


def test_it_is_attached_to_with_its_parameters_and_opened_without(r, case):
    before = r.hgetall(META)
    secret = {} if case["name"] != "secret" else {"key": case["options"]["key"]}
    attached = BloomFilter("old", client=r, **case["options"])
    for number, found in enumerate((attached, BloomFilter.open("old", client=r, **secret))):
        holds_the_items(found)
        assert found.num_hashes == int(case["descriptor"]["num_hashes"])
        assert found.num_bits == int(case["descriptor"]["shard_bits"]) * found.shards
        assert found.add(f"new {number}") is True
    assert r.hgetall(META) == before


def test_a_clear_and_a_copy_keep_its_format(r, case):
    made = BloomFilter("old", client=r, **case["options"])
    kept = ("format", "shard_bits", "num_hashes", "shards")
    copied = made.copy("new")
    holds_the_items(copied)
    made.clear()
    assert made.add_many(ITEMS) == [True] * len(ITEMS)
    for name in ("old", "new"):
        stored = r.hmget(f"bloomlock:{{{name}}}:meta", kept)
        assert stored == [case["descriptor"][field].encode() for field in kept]


def test_started_anew_it_has_the_shape_it_had(r, case):
    made = BloomFilter("old", client=r, on_lost="recreate", **case["options"])
    r.delete("bloomlock:{old}:bits")
    # Both shards of one that has two.
    assert made.add_many(f"new {number}" for number in range(9)) == [True] * 9
    assert r.hget(META, "num_hashes") == case["descriptor"]["num_hashes"].encode()
    again = BloomFilter("old", client=r, **case["options"])
    assert again.num_hashes == int(case["descriptor"]["num_hashes"])


def test_explicit_numbers_are_compared_with_what_is_stored(r, case):
    stored = int(case["descriptor"]["num_hashes"])
    if "seeds" in case["options"]:
        return
    for same in ({"num_hashes": stored}, {"optimize": "memory"}):
        assert BloomFilter("old", client=r, **case["options"], **same).num_hashes == stored
    with pytest.raises(FilterMismatchError, match=f"num_hashes: stored {stored}, asked 9"):
        BloomFilter("old", client=r, **case["options"], num_hashes=9)
    with pytest.raises(FilterMismatchError, match=f"optimize: stored {stored} hash functions"):
        BloomFilter("old", client=r, **case["options"], optimize="balanced")


def test_other_numbers_than_the_formats_own_are_refused(r, case):
    larger = MemoryBloomFilter(3_000_000, 1e-3, num_hashes=5)
    fields = {"capacity": 3_000_000, "error_rate": 1e-3, "shards": 1, "layout": "classic"}
    r.hset(META, mapping={**fields, "num_hashes": 5, "shard_bits": larger.num_bits, "seeds": ""})
    secret = {"key": case["options"]["key"]} if case["name"] == "secret" else {}
    with pytest.raises(FilterMismatchError, match=r"damaged.*shard_bits \d+ and num_hashes 5"):
        BloomFilter.open("old", client=r, **secret)


def test_its_file_is_loaded_and_saved_in_its_format(case, tmp_path):
    path = tmp_path / "old"
    path.write_bytes(unpacked(case["file"]))
    secret = {"key": case["options"]["key"]} if case["name"] == "secret" else {}
    loaded = MemoryBloomFilter.load(path, **secret)
    holds_the_items(loaded)
    loaded.save(tmp_path / "new")
    written = [
        json.loads((tmp_path / name).read_bytes().split(b"\n")[1]) for name in ("old", "new")
    ]
    assert written[0]["format"] == written[1]["format"] == case["descriptor"]["format"]
    holds_the_items(MemoryBloomFilter.load(tmp_path / "new", **secret))


def test_a_filter_like_it_is_merged_into_it(r, case):
    made = BloomFilter("old", client=r, **case["options"])
    beside = MemoryBloomFilter.like(made)
    beside.add("beside")
    made.update(beside)
    assert made.exists("beside")
    holds_the_items(made)
