"""The stored parameters: nothing is lost on the way, nothing wrong is believed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bloomlock import Growth, Window
from bloomlock.errors import ConfigurationError, FilterMismatchError
from bloomlock.sizing import MAX_SHARD_BITS, MAX_SHARDS, bits_needed
from bloomlock.spec import FIELDS, RequestedSpec, decode, encode

seeds = st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9, unique=True)
generations = st.integers(1, 2**48 - 1)
MADE = RequestedSpec.check(1000, 0.01).describe().with_generation(7)


def stored(fields: dict[str, str]) -> list[bytes | None]:
    return [fields[field].encode() if field in fields else None for field in FIELDS]


def described(**changes: str) -> list[bytes | None]:
    return stored({**encode(MADE), **changes})


def assert_read_as_written(wanted: RequestedSpec, generation: int) -> None:
    descriptor = wanted.describe().with_generation(generation)
    read = decode("x", stored(encode(descriptor)))
    assert read == descriptor
    assert not wanted.differences(read)
    assert not RequestedSpec.of(read).differences(descriptor)


@given(st.integers(1, 10**9), st.floats(1e-9, 0.9), seeds, generations)
@example(4_910_485, 1e-5, [0], 1)
@example(65, 1.0000000000000003e-09, [0], 1)
def test_what_is_stored_is_read(capacity, error_rate, given_seeds, generation):
    num_hashes = len(given_seeds or range(20))
    # Far below 2^40: some shards get more than their part of few items that are large.
    assume(bits_needed(capacity, error_rate, num_hashes) < 2**36)
    assert_read_as_written(RequestedSpec.check(capacity, error_rate, seeds=given_seeds), generation)


KINDS = [
    {"key": b"k" * 16},
    {"key": True},
    {"optimize": "memory"},
    {"num_hashes": 9, "shards": 5},
    {"window": Window(3600, 6)},
    {"growth": Growth()},
    {"growth": Growth(2, 10**6), "shards": 2, "key": b"k" * 16},
    {"capacity": 1, "error_rate": 0.5},
    {"native": True},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("capacity", "error_rate"), [(1000, 0.01), (250_000, 1e-9)])
def test_what_is_stored_of_each_kind_is_read(capacity, error_rate, kind):
    asked = {"capacity": capacity, "error_rate": error_rate} | kind
    assert_read_as_written(RequestedSpec.check(**asked), 0xABC0)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"capacity": 1001}, "capacity: stored 1000, asked 1001"),
        ({"error_rate": 0.02}, "error_rate: stored 0.01, asked 0.02"),
        ({"seeds": [1, 2]}, "seeds: stored "),
        ({"shards": 2}, "shards: stored 1, asked 2"),
        ({"num_hashes": 9}, "num_hashes: stored 3, asked 9"),
        ({"optimize": "memory"}, "optimize: stored 3 hash functions, asked 6 by 'memory'"),
        ({"key": b"k" * 16}, "key: stored none, asked a secret one"),
        ({"window": 60}, "window: stored "),
    ],
    ids=str,
)
def test_what_differs_is_named_with_both_values(asked, says):
    wanted = RequestedSpec.check(**{"capacity": 1000, "error_rate": 0.01} | asked)
    found = wanted.differences(MADE)
    assert any(each.startswith(says) for each in found), found


def test_a_newer_format_is_refused():
    with pytest.raises(FilterMismatchError, match="format 99.*upgrade bloomlock"):
        decode("x", described(format="99"))


@given(
    st.sampled_from(KINDS),
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.none()
        | st.binary(max_size=40)
        | st.integers().map(lambda number: str(number).encode())
        | st.floats().map(lambda number: repr(number).encode())
        | st.sampled_from([b"", b"classic", b"creating", b"9" * 5000, b"1,2,3,4,5,6"]),
    ),
)
@example({"growth": Growth()}, {"slices": b"100/3,400/3"})
@example({"growth": Growth()}, {"growth": b"3"})
@example({"growth": Growth()}, {"up_to": b"7000"})
def test_any_descriptor_is_read_or_refused_with_one_sentence(kind, changes):
    asked = {"capacity": 1000, "error_rate": 0.01} | kind
    made = stored(encode(RequestedSpec.check(**asked).describe().with_generation(7)))
    values = [changes.get(field, value) for field, value in zip(FIELDS, made, strict=True)]
    try:
        read = decode("x", values)
    except FilterMismatchError as error:
        assert len(str(error)) < 500
    else:
        # Each field is as a writer writes it, so nothing is read that was not written.
        assert read is None or stored(encode(read)) == values


@given(st.integers(1, 10**400), st.floats(0, 1), seeds, st.none() | st.integers(1, 4096))
@example(10, 1 - 2**-53, list(range(64)), None)
@example(10**5000, 0.01, None, None)
def test_any_parameters_are_described_or_refused(capacity, error_rate, given_seeds, shards):
    with contextlib.suppress(ConfigurationError):
        made = RequestedSpec.check(
            capacity, error_rate, seeds=given_seeds, shards=shards
        ).describe()
        assert made.size.shard_bits <= MAX_SHARD_BITS
        assert made.size.shards <= MAX_SHARDS
