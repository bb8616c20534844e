"""The compiled core: bit for bit the Python code, whatever is put into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bloomlock
from bloomlock import MemoryBloomFilter
from bloomlock.compiled import check_version, core
from bloomlock.filters.memory_bits import PythonBits
from bloomlock.hashing import Hasher
from bloomlock.sizing import MAX_SHARD_BITS
from bloomlock.slices import SliceState
from bloomlock.spec import RequestedSpec
from bloomlock.strategies import Shard
from bloomlock.strategies.bits import Bitfields, _segment, encode_offsets

ROOT = Path(bloomlock.__file__).parent
needs_core = pytest.mark.skipif(core is None, reason="the compiled core is not there or not wanted")


def in_python(made):
    made.compiled = made.places = None
    return made


def both(shape, shards, key):
    bits, num_hashes, seeds = shape
    key = key if seeds is None else None
    one, two = (Hasher(bits, num_hashes, shards, seeds, key=key) for _ in range(2))
    return one, in_python(two)


shapes = st.one_of(
    st.tuples(
        st.one_of(st.integers(1, 200), st.integers(8192, MAX_SHARD_BITS)),
        st.integers(1, 64),
        st.none(),
    ),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64, unique=True).flatmap(
        lambda seeds: st.tuples(
            st.integers(8192, MAX_SHARD_BITS), st.just(len(seeds)), st.just(tuple(seeds))
        )
    ),
)
texts = st.one_of(st.text(max_size=40), st.binary(max_size=70))
keys = st.one_of(st.none(), st.binary(min_size=16, max_size=64))


@needs_core
@pytest.mark.parametrize("key", [None, bytes(16)])
def test_an_item_of_a_growing_filter_is_packed_slice_by_slice_as_python_has_it(key):
    further = [(1192, 4000, 3), (5192, 16000, 4)]
    one, two = (Hasher(1000, 2, 3, key=key, further=further) for _ in range(2))
    items = [b"%d" % number for number in range(30)]
    for count in (1, 2, 3):
        for some in ([], items[:1], items):
            assert one.packed(some, count) == in_python(two).packed(some, count)


@needs_core
@settings(deadline=None)
@given(shapes, st.integers(1, 4096), keys, st.lists(texts, max_size=20), st.booleans())
@example((MAX_SHARD_BITS, 64, None), 256, None, [b"\xff" * size for size in range(49)], False)
@example((8192, 64, None), 1, None, ["a", "é", "", "\0"], True)
@example((67, 64, None), 2, None, [b"%d" % number for number in range(50)], True)
def test_items_lie_and_commands_are_as_python_has_them(shape, shards, key, items, write):
    one, two = both(shape, shards, key)
    assert one.places is not None
    data = [item.encode() if isinstance(item, str) else item for item in items]
    assert [one.locate(item) for item in data] == [two.locate(item) for item in data]
    assert one.words(data) == two.words(data)
    assert one.packed(data) == two.packed(data)
    digests = one.digests(data)
    assert np.array_equal(one.place(digests), two.place(digests))
    commands = []
    for hasher in (one, two):
        shard = Shard("bloomlock:{é}:bits", 7, shape[0], SliceState(hasher, 0, ()))
        commands.append([*chain.from_iterable(Bitfields(shard, data, write).writes())])
    assert commands[0] == commands[1]
    reply = [7, *(min(offset % 9, 1) for item in data for offset in one.locate(item)[1])]
    assert _segment(reply, len(data), one) == _segment(reply, len(data), two)
    for item in data[:1]:
        number, offsets = one.locate(item)
        operations = encode_offsets(offsets, write)
        assert one.places.operations(one.words([item]), write) == (number, operations)


@needs_core
@given(st.integers(1, 4096), st.lists(st.integers(0, 2**64 - 1), max_size=4))
@example(3, [])
def test_digests_between_two_shards_go_to_one_of_them(shards, others):
    some = range(1, shards, max(1, shards // 20))
    edges = [-(-number * 2**64 // shards) for number in some]
    firsts = [0, 2**64 - 1, *others, *edges, *(edge - 1 for edge in edges)]
    digests = np.array([[first, 7] for first in firsts], np.uint64)
    hasher, expected = Hasher(8192, 3, shards), [first * shards >> 64 for first in firsts]
    found = [hasher.places.operations(digest, True)[0] for digest in digests]
    by_shard = hasher.by_shard(digests)
    assert found == expected
    assert list(by_shard) == sorted(set(expected))
    assert all((np.array(expected)[at] == number).all() for number, at in by_shard.items())


SHAPES = [
    {"error_rate": 0.3},
    {"error_rate": 0.3, "shards": 3},
    {"error_rate": 1e-6, "seeds": (3, 2, 1)},
    {"error_rate": 1e-6, "seeds": (7,), "shards": 2},
    {"error_rate": 1e-15},
]
numbers = st.lists(st.integers(0, 12_000), max_size=60)


@pytest.mark.thorough
@needs_core
@settings(deadline=None, max_examples=10)
@given(
    st.sampled_from(SHAPES),
    st.lists(st.tuples(st.sampled_from(["add_many", "add", "exists_many"]), numbers)),
    st.integers(0, 2**32 - 1),
)
@example(SHAPES[0], [("add_many", [*range(9000), *range(4000)]), ("exists_many", [5, 12_000])], 0)
@example(SHAPES[1], [("add_many", [1, 1, 2, 1]), ("add", [1, 3, 3])], 0)
def test_answers_and_bits_are_those_of_python(shape, steps, fill):
    descriptor = RequestedSpec.check(300, **shape).describe()
    # Half full, so that answers depend on each bit.
    random = np.random.default_rng(fill)
    images = [np.zeros(descriptor.string_bytes(), np.uint8) for _ in range(descriptor.size.shards)]
    for image in images:
        image[24:] = random.integers(0, 256, len(image) - 24, np.uint8)
    one, two = (MemoryBloomFilter.of(descriptor, [*map(np.copy, images)]) for _ in range(2))
    two._engine = PythonBits(in_python(descriptor.hasher()), two.images())
    two._add, two._exists = two._engine.add, two._engine.exists
    assert isinstance(one._engine, core.Places)
    for name, chosen in steps:
        items = [f"item {number}" for number in chosen]
        if name == "add":
            assert [*map(one.add, items)] == [*map(two.add, items)]
            assert [*map(one.exists, items)] == [*map(two.exists, items)] == [True] * len(items)
        else:
            assert getattr(one, name)(items) == getattr(two, name)(items)
        assert one._others + one._engine.added == two._others + two._engine.added
        assert all(map(np.array_equal, one.images(), two.images()))
    half = [image & np.uint8(0x5A) for image in images[::-1]]
    one._engine.combine(MemoryBloomFilter.of(descriptor, half)._engine)
    two._engine.combine(PythonBits(descriptor.hasher(), half))
    assert all(map(np.array_equal, one.images(), two.images()))
    for made in (one, two):
        made.clear()
        assert not any(image.any() for image in made.images())


anything = st.one_of(
    st.none(),
    st.integers(),
    st.integers(-2, 70),
    st.sampled_from([2**32, 2**63, 2**64, -(2**63), 512, 8192, 0.5, True, "\ud800"]),
    st.text(),
    st.binary(max_size=80),
    st.lists(st.one_of(st.integers(), st.text(), st.binary(), st.none()), max_size=70),
    st.lists(st.integers(0, 2**32 - 1), max_size=70).map(tuple),
    st.integers(0, 300).map(lambda size: np.zeros(size, np.uint64)),
    st.integers(0, 300).map(bytearray),
    st.sampled_from(
        [
            lambda: np.zeros(2096, np.uint8)[::2],
            lambda: np.zeros((8, 9), np.uint64)[:, ::2],
            lambda: memoryview(bytes(2048))[::-2],
            lambda: memoryview(bytearray(1049))[1:],
            lambda: (np.zeros(1048, np.uint8),),
            lambda: (bytearray(1048), bytearray(1048)),
        ]
    ).map(lambda make: make()),
)
REFUSALS = (TypeError, ValueError, OverflowError, BufferError, MemoryError)


@pytest.mark.thorough
@needs_core
@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 40), st.lists(anything, max_size=5)), max_size=6))
def test_no_input_does_more_than_raise(calls):
    places = Hasher(8192, 7).places
    made = (places, places.over((bytearray(1048),)))
    names = [name for name in dir(places) if name[0] != "_"]
    functions = [*(getattr(one, name) for one in made for name in names), core.Places]
    functions.append(lambda *images: places.over(tuple(images)))
    for number, arguments in calls:
        try:
            functions[number % len(functions)](*arguments)
        except REFUSALS:
            continue


@needs_core
@pytest.mark.parametrize(
    "shape",
    [
        *((bits, 1, 1) for bits in (0, MAX_SHARD_BITS + 1, 2**64, -1)),
        *((8192, num_hashes, 1) for num_hashes in (0, 65)),
        *((8192, 1, shards) for shards in (0, 4097)),
        (8192, 2, 1, (1,)),
        (8192, 1, 1, (2**32,)),
    ],
)
def test_shapes_that_no_filter_has_are_refused(shape):
    with pytest.raises((ValueError, OverflowError)):
        Hasher(*shape)


@needs_core
def test_buffers_of_another_length_are_refused():
    places = Hasher(8192, 7, 2).places
    for images in [(bytearray(1048),), (bytearray(1048), bytearray(1047)), ()]:
        with pytest.raises(ValueError, match="image"):
            places.over(images)
    with pytest.raises(BufferError):
        places.over((bytes(1048), bytes(1048)))
    for digests in [bytes(8), bytes(17), np.zeros(3, np.uint64)]:
        steps = (
            places.add_many,
            lambda digests: places.operations(digests, True),
            lambda digests: places.packed(digests, 0),
        )
        for place in steps:
            with pytest.raises(ValueError, match="length"):
                place(digests)
    held = bytearray(1048)
    bits = Hasher(8192, 7).places.over((held,))
    with pytest.raises(BufferError):
        held.clear()
    del bits
    held.clear()


@needs_core
def test_without_images_there_are_no_bits():
    places = Hasher(8192, 7).places
    places.limit = 10
    assert (places.add("a"), places.exists("a")) == (None, None)
    for step in (places.add_many, places.exists_many):
        with pytest.raises(ValueError, match="images"):
            step(places.digests(["a"]))
    places.clear()
    with pytest.raises(ValueError, match="shape"):
        places.over((bytearray(1048),)).combine(places)


@pytest.mark.free_running
@needs_core
def test_of_one_item_added_by_many_threads_one_is_new():
    bits = Hasher(2**22, 64).places.over((np.zeros(2**19 + 24, np.uint8),))
    bits.limit = 10**9
    items = [b"%d" % number for number in range(300)]
    won: Counter[bytes] = Counter()
    together = threading.Barrier(4)

    def offer():
        for item in items:
            together.wait()
            if bits.add(item):
                won[item] += 1

    threads = [threading.Thread(target=offer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == Counter(items)
    assert bits.added == len(items)


@needs_core
def test_no_more_items_are_added_than_are_allowed():
    bits = Hasher(2**20, 7).places.over((bytearray(2**17 + 24),))
    assert bits.add("a") is None
    bits.limit = 2
    assert [bits.add(item) for item in "aabcc"] == [True, False, True, None, None]
    assert bits.exists("c") is False
    assert bits.added == 2
    bits.limit = 1
    assert bits.add("c") is None


def run(code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_an_environment_variable_leaves_it_out():
    code = "import bloomlock; print(bloomlock.__speed__)"
    assert run(code, BLOOMLOCK_PURE="1").stdout == "python\n"
    if core is not None:
        assert run(code, BLOOMLOCK_PURE="0").stdout == "compiled\n"


@pytest.mark.thorough
def test_a_core_of_another_version_is_refused():
    code = (
        "import sys, types; other = types.ModuleType('x'); other.VERSION = '0.0.9'; "
        "sys.modules['bloomlock._speed'] = other; from bloomlock import MemoryBloomFilter"
    )
    said = run(code, BLOOMLOCK_PURE="0").stderr.splitlines()[-1]
    assert said == (
        f"ImportError: bloomlock._speed is of version 0.0.9 and bloomlock of "
        f"{bloomlock.__version__}; reinstall bloomlock, or set BLOOMLOCK_PURE=1 to do without it"
    )
    assert run(code, BLOOMLOCK_PURE="1").returncode == 0
    check_version("1", "1")


COMPILER = shutil.which("gcc") or shutil.which("clang")
INCLUDE = sysconfig.get_paths()["include"]


@pytest.mark.thorough
@pytest.mark.skipif(
    COMPILER is None or not Path(INCLUDE, "Python.h").exists(), reason="no C compiler"
)
def test_it_compiles_without_a_warning():
    strict = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    macros = ["-DPy_LIMITED_API=0x030b0000", '-DBLOOMLOCK_VERSION="0"']
    subprocess.run(
        [COMPILER, *strict, *macros, f"-I{INCLUDE}", ROOT / "_speed.c"], check=True, timeout=120
    )
