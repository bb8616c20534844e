"""Imports that are stopped, met by another client or spoilt: the old filter, or the new one."""

from __future__ import annotations

import contextlib
import random

import pytest
from exports import ITEMS, Pipe, filled, small_parts
from stepped import Stepped

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter
from bloomlock.errors import (
    BloomlockError,
    ConfigurationError,
    FilterNotFoundError,
)

THEIRS = [f"theirs {number}" for number in range(600)]


def lasting(client):
    return [key for key in client.scan_iter() if client.ttl(key) == -1]


# -- stopped -------------------------------------------------------------------------------------


# -- met by another client -----------------------------------------------------------------------


def take(client, _path):
    """The name is deleted, and taken by another client."""
    delete_filter("y", client=client)
    filled(client, "seeds", "y", THEIRS)


OTHERS = {
    "import": lambda c, path: BloomFilter.import_file("y", path, client=c),
    "replace": lambda c, path: BloomFilter.import_file("y", path, client=c, replace=True),
    "create": lambda c, _: BloomFilter("y", 20_000, 1e-9, client=c, shards=2),
    "delete": lambda c, _: BloomFilter.open("y", client=c).delete(),
    "clear": lambda c, _: BloomFilter.open("y", client=c).clear(),
    "copy": lambda c, _: BloomFilter.open("b", client=c).copy("y"),
    "look": lambda c, _: BloomFilter.open("y", client=c).count(),
    "take": take,
}


def check_one(made, other, replace, acted, failed):
    """See that there is all of one filter, or nothing, and that the right client has the name."""
    there = made.exists_many([*ITEMS, *THEIRS, "old"])
    contents = [set(there[:600]), set(there[600:-1]), {there[-1]}]
    assert all(len(answers) == 1 for answers in contents), contents
    assert sum(answers == {True} for answers in contents) <= 1, contents
    if other == "take" and "done" in acted:
        assert made.exists(THEIRS[0]) or (replace and failed is None)
    if other in {"import", "copy"} and "done" in acted:
        assert failed is not None, "only one of them finds the name free"
    if failed is None and other in {"look", "create"}:
        assert contents[0] == {True}


@pytest.mark.parametrize(
    ("other", "replace"),
    [
        ("import", False), ("create", False), ("copy", False), ("look", False), ("take", False),
        ("replace", True), ("delete", True), ("clear", True), ("take", True),
    ],
)  # fmt: skip
def test_what_another_client_does_at_any_step_mixes_no_filters(r, path, other, replace):
    filled(r).export_file(path)
    filled(r, "seeds", "b", THEIRS).export_file(path.with_name("b"))
    whole = {key: r.dump(key) for key in r.scan_iter("*{b*")}
    number, acted = 0, [None]
    while acted:
        r.flushall()
        for key, value in whole.items():
            r.restore(key, 0, value)
        if replace:
            filled(r, "grown", "y", ["old"])
        acted = []

        def act(acted=acted):
            acted.append("tried")
            with contextlib.suppress(BloomlockError):
                OTHERS[other](r, path.with_name("b"))
                acted.append("done")

        failed = None
        try:
            Stepped.before(number, act).import_file("y", path, client=r, replace=replace)
        except BloomlockError as error:
            failed = error
        try:
            made = BloomFilter.open("y", client=r)
        except FilterNotFoundError:
            assert failed or (acted and other == "delete")
        else:
            check_one(made, other, replace, acted, failed)
            assert made.add("goes on")
        assert not [key for key in lasting(r) if b":prepared:" in key]
        assert acted or failed is None
        number += 1
    assert number > 8


# -- spoilt --------------------------------------------------------------------------------------


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
