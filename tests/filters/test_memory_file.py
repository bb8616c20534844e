"""The file of a MemoryBloomFilter: whole or not there, never trusted."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest

from bloomlock import MemoryBloomFilter
from bloomlock.errors import ConfigurationError


@pytest.fixture
def path(tmp_path):
    made = MemoryBloomFilter(1_000, 0.01, shards=2)
    made.update(["a", "b", "c"])
    made.save(tmp_path / "seen")
    return tmp_path / "seen"


@pytest.mark.parametrize("shape", [{"shards": 3}, {"seeds": range(1, 65)}, {"error_rate": 0.5}])
def test_what_was_saved_is_loaded(tmp_path, shape):
    made = MemoryBloomFilter(5_000, **shape)
    made.update(map(str, range(3_000)))
    made.save(str(tmp_path / "x"))
    read = MemoryBloomFilter.load(tmp_path / "x")
    assert repr(read) == repr(made)
    assert read.info() == made.info()
    assert all(map(np.array_equal, read.images(), made.images()))
    assert all(read.exists_many(map(str, range(3_000))))
    # What it adds is its own.
    read.update(f"later {number}" for number in range(100))
    again = MemoryBloomFilter.load(tmp_path / "x")
    assert again.info() == made.info() != read.info()


def test_saving_replaces_the_file_as_a_whole(path, monkeypatch):
    old = MemoryBloomFilter.load(path)
    before = path.read_bytes()
    new = MemoryBloomFilter(10)

    def fail(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        new.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    link = path.with_name("link")
    link.symlink_to(path)
    new.save(link)
    assert {entry.name for entry in path.parent.iterdir()} == {"link", "seen"}
    assert link.is_symlink()
    assert MemoryBloomFilter.load(path).capacity == 10
    assert "a" in old


def signed(fields: object) -> bytes:
    lines = b"bloomlock bitmap 1\n%s\n" % json.dumps(fields).encode()
    header = lines + hashlib.sha256(lines).hexdigest().encode() + b"\n"
    return header.ljust(4096, b"\0")


def changed(data: bytes, **fields: object) -> bytes:
    return signed({**json.loads(data.split(b"\n")[1]), **fields}) + data[4096:]


DAMAGES = {
    "empty": (lambda data: data[:0], "no file of a filter"),
    "foreign": (lambda data: b"PK\x03\x04" + data, "no file of a filter"),
    "short header": (lambda data: data[:100], "checksum"),
    "flipped": (lambda data: data.replace(b'"1000"', b'"1001"'), "checksum"),
    "newer": (lambda data: data.replace(b"bitmap 1", b"bitmap 5"), "upgrade bloomlock"),
    "cut": (lambda data: data[:-1], "cut short"),
    "longer": (lambda data: data + b"\0", "more bytes"),
    "only a header": (lambda data: data[:4096], "cut short"),
    "a list": (lambda data: signed([1]) + data[4096:], "no use"),
    "newer fields": (lambda data: changed(data, format="5"), "upgrade bloomlock"),
    "the server's own": (lambda data: changed(data, native="1"), "no use"),
    "more hashes": (lambda data: changed(data, num_hashes="65"), "no use.*num_hashes must"),
    "no whole number": (lambda data: changed(data, discarded=0.0), "no use"),
    "a long version": (lambda data: data.replace(b"p 1", b"p " + b"9" * 4000), "no file of"),
    "a flipped bit": (lambda data: data[:5000] + b"\xff" + data[5001:], "another checksum"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_with_one_sentence(path, damage):
    make, said = DAMAGES[damage]
    path.write_bytes(make(path.read_bytes()))
    with pytest.raises(ConfigurationError, match=said) as caught:
        MemoryBloomFilter.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        MemoryBloomFilter.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        MemoryBloomFilter.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        MemoryBloomFilter(10).save(tmp_path / "none" / "x")
