"""The stored parameters: nothing is lost on the way, nothing wrong is believed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bloomlock import ConfigurationError, FilterMismatchError
from bloomlock.descriptor import READY, Descriptor, has_unknown_flags, header_of, is_header
from bloomlock.keys import FilterKeys, escape, meta_pattern, name_of, unescape
from bloomlock.parameters import Wanted
from bloomlock.sizing import MAX_SHARD_BITS, MAX_SHARDS, bits_needed
from bloomlock.stored_descriptor import FIELDS, decode, encode
from bloomlock.strategies.base import header_from_bytes

seeds = st.none() | st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9, unique=True)


def stored(fields: dict[str, str]) -> list[bytes | None]:
    return [fields[field].encode() if field in fields else None for field in FIELDS]


def described(**changes: str) -> list[bytes | None]:
    descriptor = Wanted.check(1000, 0.01).describe().with_generation(7, READY)
    return stored({**encode(descriptor), **changes})


@given(st.integers(1, 10**9), st.floats(1e-9, 0.9), seeds, st.integers(1, 2**48 - 1))
@example(4_910_485, 1e-5, [0], 1)
@example(65, 1.0000000000000003e-09, [0], 1)
def test_what_is_stored_is_read(capacity, error_rate, given_seeds, generation):
    num_hashes = len(given_seeds or range(20))
    # Far below 2^40: some shards get more than their part of few items that are large.
    assume(bits_needed(capacity, error_rate, num_hashes) < 2**36)
    wanted = Wanted.check(capacity, error_rate, given_seeds)
    assert_read_as_written(wanted, generation)


@given(st.integers(1, 10**9), st.floats(1e-9, 0.9), st.integers(1, 2**48 - 1))
def test_what_is_stored_of_a_blocked_filter_is_read(capacity, error_rate, generation):
    wanted = Wanted.check(capacity, error_rate, layout="blocked")
    read = assert_read_as_written(wanted, generation)
    assert Wanted.check(capacity, error_rate).differences(read) == [
        "layout: stored blocked, asked classic"
    ]


def assert_read_as_written(wanted: Wanted, generation: int) -> Descriptor:
    descriptor = wanted.describe().with_generation(generation, READY)
    read = decode("x", stored(encode(descriptor)))
    assert read == descriptor
    assert not wanted.differences(read)
    return read


def test_bad_layouts():
    with pytest.raises(ConfigurationError, match="layout must be 'classic' or 'blocked', not 'a'"):
        Wanted.check(1000, 0.01, layout="a")
    with pytest.raises(ConfigurationError, match="seeds must be None with layout='blocked'"):
        Wanted.check(1000, 0.01, [1, 2], layout="blocked")
    with pytest.raises(ConfigurationError, match="error_rate must be at least 1e-09 with layout"):
        Wanted.check(1000, 1e-10, layout="blocked")


@given(st.integers(1, 2**48 - 1))
def test_headers_fit_a_signed_integer_and_are_recognised(generation):
    header = header_of(generation)
    assert 0 < header < 2**63
    assert is_header(header)
    assert not has_unknown_flags(header)
    assert has_unknown_flags(header | 4 << 48)
    assert header_from_bytes(header.to_bytes(8, "big")) == header


@pytest.mark.parametrize("foreign", [0, 1, int.from_bytes(b"some str"), 2**63 - 1])
def test_other_strings_are_no_header(foreign):
    assert not is_header(foreign)


def test_a_short_string_has_no_header():
    assert header_from_bytes(b"B\0\0") == 0


def test_nothing_stored_is_nothing():
    assert decode("x", [None] * len(FIELDS)) is None


def test_a_newer_format_is_refused():
    with pytest.raises(FilterMismatchError, match="format 5.*formats up to 4; upgrade bloomlock"):
        decode("x", described(format="5"))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "zero"},
        {"capacity": "-3"},
        {"error_rate": "nan"},
        {"shard_bits": "0"},
        {"shard_bits": str(2**33)},
        {"num_hashes": "65"},
        {"shards": "1000"},
        {"seeds": "1,1,2,3,4,5"},
        {"seeds": "1"},
        {"layout": "blocked"},
        {"layout": "spiral"},
        {"layout": "blocked", "shard_bits": "9728", "seeds": "1,2,3,4,5,6"},
        {"generation": "0"},
        {"generation": str(2**48)},
        {"shard_bits": "9586"},
        {"num_hashes": "7"},
        {"capacity": "1001"},
        {"error_rate": "0.011"},
        {"error_rate": "1e-400"},
        {"state": "growing"},
        {"state": ""},
        {"capacity": "9" * 5000},
        {"format": "9" * 5000},
        {"seeds": "1," * 5000},
        {"capacity": "\u0661\u0662"},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_broken_descriptor_is_refused(changes):
    with pytest.raises(FilterMismatchError, match="'x'") as caught:
        decode("x", described(**changes))
    assert len(str(caught.value)) < 500


@given(
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.none()
        | st.binary(max_size=40)
        | st.integers().map(lambda number: str(number).encode())
        | st.floats().map(lambda number: repr(number).encode())
        | st.sampled_from([b"", b"blocked", b"classic", b"creating", b"9" * 5000, b"1,2,3,4,5,6"]),
    )
)
def test_any_descriptor_is_read_or_refused_with_one_sentence(changes):
    values = [changes.get(field, value) for field, value in zip(FIELDS, described(), strict=True)]
    try:
        read = decode("x", values)
    except FilterMismatchError as error:
        assert len(str(error)) < 500
    else:
        assert read is None or read.size == Wanted.of(read).describe().size


@given(st.integers(1, 10**400), st.floats(0, 1), seeds, st.none() | st.integers(1, 4096))
@example(10, 1 - 2**-53, list(range(64)), None)
@example(10**5000, 0.01, None, None)
def test_any_parameters_are_described_or_refused(capacity, error_rate, given_seeds, shards):
    for layout in ("classic", "blocked"):
        with contextlib.suppress(ConfigurationError):
            described = Wanted.check(capacity, error_rate, given_seeds, shards, layout).describe()
            assert described.size.shard_bits <= MAX_SHARD_BITS
            assert described.size.shards <= MAX_SHARDS


def test_a_missing_field_is_refused():
    values = described()
    values[FIELDS.index("shards")] = None
    with pytest.raises(FilterMismatchError):
        decode("x", values)


@pytest.mark.parametrize("capacity", [0, -1, 1.5, "10", None, True, float("nan")])
def test_bad_capacity(capacity):
    with pytest.raises(ConfigurationError, match="capacity must be .* not "):
        Wanted.check(capacity, 0.01)


@pytest.mark.parametrize("rate", [0, -0.1, 1.0, 2, float("nan"), float("inf"), "0.1", None, True])
def test_bad_error_rate(rate):
    with pytest.raises(ConfigurationError, match="error_rate must be .* not "):
        Wanted.check(1000, rate)


@pytest.mark.parametrize("shards", [0, 4097, 1.0, "2", True])
def test_bad_shards(shards):
    with pytest.raises(ConfigurationError, match="shards must be .* not "):
        Wanted.check(1000, 0.01, None, shards)


@given(st.text(min_size=1))
def test_names_survive_escaping(name):
    escaped = escape(name)
    assert not set(escaped) & set("{}/")
    assert unescape(escaped) == name


@given(st.text(min_size=1, max_size=50), st.integers(1, 255))
def test_no_name_reaches_another_filters_shard(name, shard):
    assert FilterKeys(f"{name}/{shard}").bits(0) != FilterKeys(name).bits(shard)


def test_names_are_found_again():
    assert name_of(FilterKeys("a {b}/c\n").meta) == "a {b}/c\n"
    assert name_of("bloomlock:{x}:bits") is None
    assert name_of("bloomlock:{%2g%25}:meta") is None
    assert name_of(f"bloomlock:{{{'x' * 1025}}}:meta") is None
    assert meta_pattern("my[app]:") == r"my\[app\]:{*}:meta"


@pytest.mark.parametrize("name", ["", None, 3, b"x", "x" * 1025, "\ud800"])
def test_bad_names(name):
    with pytest.raises(ConfigurationError, match="name must be"):
        FilterKeys(name)


@pytest.mark.parametrize("prefix", ["{", "a}", None])
def test_bad_prefixes(prefix):
    with pytest.raises(ConfigurationError, match="prefix must be"):
        FilterKeys("x", prefix)


def test_what_began_with_a_clear_is_stored_and_nothing_else_changes() -> None:
    made = Wanted.check(1000, 0.01).describe().with_generation(7, READY)
    cleared = made.with_generation(8, READY, cleared=True)
    assert [decode("x", stored(encode(each))) for each in (made, cleared)] == [made, cleared]
    assert encode(cleared).items() - encode(made).items() == {("cleared", "1"), ("generation", "8")}
    assert not cleared.with_generation(9, READY).cleared
