"""Imports that are met by another client or spoilt: the old filter, or the new one."""

from __future__ import annotations

import contextlib
import random

import pytest
from exports import ITEMS, Pipe, filled, small_parts
from stepped import Stepped

from bloomlock import BloomFilter
from bloomlock.errors import BloomlockError, ConfigurationError, FilterLostError

THEIRS = [f"theirs {number}" for number in range(600)]
OTHERS = {
    "import": lambda c, path: BloomFilter.import_file("y", path, client=c),
    "create": lambda c, _: filled(c, "seeds", "y", THEIRS),
    "copy": lambda c, _: BloomFilter.open("b", client=c).copy("y"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_of_two_that_find_a_name_free_one_gets_it_whole(r, path, other):
    filled(r).export_file(path)
    filled(r, "seeds", "b", THEIRS).export_file(path.with_name("b"))
    number, is_over = 0, False
    while not is_over:
        done = []

        def act(done=done):
            with contextlib.suppress(BloomlockError):
                OTHERS[other](r, path.with_name("b"))
                done.append("theirs")

        made = Stepped.before(number, act)
        with contextlib.suppress(BloomlockError):
            made.import_file("y", path, client=r)
            done.append("mine")
        there = BloomFilter.open("y", client=r)
        mine = done == ["mine"]
        assert len(done) == 1, number
        assert there.exists_many([*ITEMS, *THEIRS]) == [mine] * 600 + [not mine] * 600, number
        assert not [key for key in r.scan_iter("*:prepared:*") if r.ttl(key) == -1]
        there.delete()
        number, is_over = number + 1, made.done <= number
    assert number > 8


@pytest.mark.parametrize("kind", ["discards", "window, discards"])
def test_tombstones_that_the_server_loses_at_any_step_are_noticed(r, path, monkeypatch, kind):
    """Also if later ones make another set of the same name."""
    small_parts(monkeypatch)
    filled(r, kind).export_file(path)
    counts: list[tuple[int, int]] = []
    told = lambda *count: counts.append(count)  # noqa: E731
    BloomFilter.import_file("y", path, client=r, progress=told).delete()
    for at in counts[::5]:

        def lose(*count, at=at):
            if count == at:
                r.delete(*r.keys("*:prepared:*:discarded"))

        with pytest.raises(FilterLostError, match="had prepared is gone"):
            BloomFilter.import_file("y", path, client=r, progress=lose)
        assert not r.keys("*{y*")


@pytest.mark.parametrize("kind", ["plain", "window", "grown", "discards"])
def test_a_file_that_was_cut_or_changed_anywhere_is_refused(r, path, monkeypatch, kind, seed):
    small_parts(monkeypatch, 9_001)
    rng = random.Random(seed)
    filled(r, kind).export_file(path)
    whole = path.read_bytes()
    keep = {key: r.dump(key) for key in r.scan_iter()}
    places = [0, 20, 200, 4095, 4096, len(whole) - 1, len(whole) - 33]
    places += [rng.randrange(len(whole)) for _ in range(12)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        for damaged in (whole[:place], bytes(flipped), whole + whole[:1]):
            path.write_bytes(damaged)
            for source in (path, Pipe(damaged)):
                with pytest.raises(ConfigurationError) as caught:
                    BloomFilter.import_file("y", source, client=r)
                assert "\n" not in str(caught.value)
    assert {key: r.dump(key) for key in r.scan_iter()} == keep
    assert BloomFilter.import_file("y", Pipe(whole), client=r).exists_many(ITEMS) == [True] * 600
