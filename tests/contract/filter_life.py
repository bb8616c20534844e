"""Creating, attaching, clearing, losing and deleting a filter: never a silent no."""

from __future__ import annotations

import logging

import pytest
from contract.backends import FILTERS
from contract.filter_items import collect
from contract.needs import needs
from flat_options import given

from bloomlock import BloomFilter
from bloomlock.catalog import delete_filter, list_filters
from bloomlock.errors import (
    CapacityError,
    FilterLostError,
    FilterMismatchError,
    FilterNotFoundError,
)

META = "bloomlock:{x}:meta"

OPERATIONS = {
    "exists": lambda made: made.exists("a"),
    "exists_many": lambda made: made.exists_many(["a", "b"]),
    "add": lambda made: made.add("a"),
    "add_many": lambda made: made.add_many(["a", "b"]),
    "update": lambda made: made.update(["a", "b"]),
    "count": lambda made: made.count(),
    "info": lambda made: made.info(),
}
ANSWERS = {"exists": False, "exists_many": [False] * 2, "add": True, "add_many": [True] * 2}
"""What the operations answer of an empty filter."""


def bits(place):
    """The keys that have the headers and bits of a filter."""
    return list(place.r.scan_iter("bloomlock:*:bits"))


def own_filters(place):
    """The keys that hold the server's own filters, with strategy native."""
    return list(place.r.scan_iter("bloomlock:*:bits:native*"))


def replace(place):
    place.other().delete()
    other = place.backend.options | {"strategy": place.backend.plain_strategy}
    BloomFilter("x", **given({"capacity": 2000} | other), client=place.r)


LOSSES = {
    "flushed": lambda place: place.r.flushall(),
    "bits evicted": lambda place: [place.r.delete(key) for key in bits(place)],
    "bits expired": lambda place: [place.r.pexpire(key, 0) for key in bits(place)],
    "bits overwritten": lambda place: [place.r.set(key, b"\0" * 4000) for key in bits(place)],
    "bits of native evicted": lambda place: [
        place.r.delete(key) for key in own_filters(place) or bits(place)
    ],
    "cleared": lambda place: place.other().clear(),
    "deleted": lambda place: place.other().delete(),
    "replaced": replace,
}


class LifeContract:
    def some(self, loss):
        """The operations that are tried with a loss: all, or in turn a third of them.

        Each loss meets each operation on several backends all the same.
        """
        if self.backend in ("atomic", "native", "window"):
            return OPERATIONS
        turn = [*LOSSES].index(loss) + [*FILTERS].index(self.backend)
        return dict([*OPERATIONS.items()][turn % 3 :: 3])

    @needs("server")
    def test_objects_of_one_name_are_one_filter(self, place):
        made = place.make()
        same, opened = place.make(), place.open()
        assert made.add("a") is True
        assert same.add("a") is False
        assert opened.exists("a") is True
        for what in ("capacity", "error_rate", "num_bits", "shards", "window", "generation"):
            assert getattr(made, what) == getattr(same, what) == getattr(opened, what)
        assert list_filters(client=place.r) == ["x"]

    @needs("server")
    def test_open_makes_no_filter(self, place):
        with pytest.raises(FilterNotFoundError, match="no filter named 'x'"):
            place.open()
        assert place.contents() == {}

    @needs("server")
    def test_other_parameters_are_refused_and_change_nothing(self, place):
        place.make().add("a")
        before = place.contents()
        for changes in ({"capacity": 777}, {"error_rate": 0.5}, {"shards": 7}):
            ((name, asked),) = changes.items()
            for on_lost in ("raise", "recreate"):
                with pytest.raises(FilterMismatchError, match=f"{name}: stored .*, asked {asked}"):
                    place.make(on_lost=on_lost, **changes)
        assert place.contents() == before

    def test_clear_empties_the_filter(self, place):
        made = place.make()
        made.add_many(["a", "b"])
        made.clear()
        assert made.exists_many(["a", "b"]) == [False, False]
        assert made.count() == 0
        assert made.add_many(["a", "c"]) == [True, True]
        if place.r is not None:
            assert place.open().exists_many(["a", "b"]) == [True, False]

    @needs("server")
    def test_a_clear_of_a_filter_that_was_deleted_creates_it(self, place):
        made = place.make()
        place.other().delete()
        made.clear()
        assert made.add("a") is True
        assert place.open().exists("a") is True

    @needs("server")
    def test_delete_leaves_no_key(self, place):
        made = place.make()
        made.update(map(str, range(200)))
        other = place.make()
        assert made.delete() is True
        assert place.contents() == {}
        assert made.delete() is False
        with pytest.raises(FilterLostError):
            other.exists("a")
        place.make().add("a")
        assert delete_filter("x", client=place.r) is True
        assert delete_filter("x", client=place.r) is False
        assert place.contents() == {}

    @needs("server")
    @pytest.mark.parametrize("loss", LOSSES)
    def test_a_loss_is_told_by_every_operation_until_reattach(self, place, loss):
        for operate in self.some(loss).values():
            place.r.flushall()
            made = place.make()
            made.add_many(["a", "before"])
            LOSSES[loss](place)
            for _ in range(2):
                with pytest.raises(FilterLostError, match=r"reattach\(\)"):
                    operate(made)
        if "bits" in loss:
            # Half a filter is only started anew by somebody who asks for that.
            with pytest.raises(FilterLostError, match="lost"):
                place.make()
            with pytest.raises(FilterLostError):
                made.reattach()
            place.make(on_lost="recreate")
        made.reattach()
        assert made.exists("before") is False
        assert made.add("another") is True
        assert made.add("another") is False

    @needs("server")
    @pytest.mark.parametrize("loss", LOSSES)
    def test_with_recreate_an_object_goes_on_with_an_empty_filter(self, place, loss, caplog):
        for name, operate in self.some(loss).items():
            place.r.flushall()
            caplog.clear()
            made = place.make(on_lost="recreate")
            made.add_many(["a", "before"])
            LOSSES[loss](place)
            with caplog.at_level(logging.WARNING, "bloomlock"):
                assert operate(made) in (ANSWERS.get(name), 0) or name == "info"
            if name not in {"count", "info"}:
                assert "cleared or lost" in caplog.text
            assert made.exists("before") is False
            assert made.add("after") is True
            assert place.other().exists("after")

    @needs("server")
    def test_a_shard_that_is_gone_is_told(self, place):
        items = [f"item {number}" for number in range(50)]
        for number in range(3):
            for operate in (
                lambda made: made.exists_many(items),
                lambda made: made.add_many(items),
                lambda made: made.update(items),
            ):
                place.r.flushall()
                made = place.make(shards=3)
                made.update(items)
                place.r.delete(sorted(own_filters(place) or bits(place))[number])
                with pytest.raises(FilterLostError):
                    operate(made)
                with pytest.raises(FilterLostError, match="one of its shards|lost"):
                    place.make(shards=3)
                again = place.make(shards=3, on_lost="recreate")
                assert again.add_many(items) == [True] * 50

    @needs("server")
    def test_a_descriptor_that_is_gone_is_told_at_attaching(self, place):
        made = place.make()
        made.add("a")
        place.r.delete(META)
        with pytest.raises(FilterLostError, match="lost its descriptor"):
            place.make()
        again = place.make(on_lost="recreate")
        assert again.add("a") is True
        with pytest.raises(FilterLostError):
            made.exists("a")

    @needs("server")
    def test_what_is_stored_by_others_is_no_filter_and_stays(self, place):
        for store in (
            lambda: place.r.rpush(META, "theirs"),
            lambda: place.r.hset(META, "theirs", 1),
            lambda: place.r.sadd("bloomlock:{x}:bits", "theirs"),
            lambda: place.r.set("bloomlock:{x}:bits", "a string"),
        ):
            place.r.flushall()
            store()
            before = place.contents()
            for attempt in (
                lambda: place.make(shards=1, on_lost="recreate"),
                place.open,
                lambda: delete_filter("x", client=place.r),
            ):
                with pytest.raises(FilterMismatchError, match="is no filter"):
                    attempt()
            assert place.contents() == before

    @needs("server")
    def test_a_filter_of_a_newer_version_is_refused_and_never_emptied(self, place):
        made = place.make(shards=1, on_lost="recreate")
        made.add("a")
        # A flag of the header that no version knows yet.
        place.r.setbit("bloomlock:{x}:bits", 9, 1)
        before = place.contents()
        for attempt in (
            lambda: place.make(shards=1, on_lost="recreate"),
            lambda: place.open(on_lost="recreate"),
            lambda: made.exists("a"),
            made.count,
            made.clear,
            made.delete,
            lambda: delete_filter("x", client=place.r),
        ):
            with pytest.raises(FilterMismatchError, match="newer version"):
                attempt()
            assert place.contents() == before

    @needs("raise")
    def test_a_full_filter_refuses_new_items_and_loses_none(self, place):
        made = place.make(capacity=300, on_full="raise")
        items = [f"item {number}" for number in range(900)]
        with pytest.raises(CapacityError, match="full") as caught:
            made.add_many(items)
        added = len(caught.value.results)
        # In filters as small as this the server's own takes one or two items for seen ones.
        assert caught.value.results.count(False) <= (place.backend.strategy == "native") * 3
        assert 300 <= added <= 330
        assert made.exists_many(items[:added]) == [True] * added
        assert made.exists_many(items[added:]).count(True) <= 3
        assert made.add(items[0]) is False
        with pytest.raises(CapacityError) as caught:
            made.add("new")
        assert caught.value.results == []
        with pytest.raises(CapacityError) as caught:
            made.add_many([*items[:5], "new", items[6]])
        assert caught.value.results == [False] * 5
        pairs = []
        with pytest.raises(CapacityError):
            collect(made.add_each([*items[:5], "new"]), pairs)
        assert pairs == [(item, False) for item in items[:5]]
        assert not made.exists("new")
        if place.r is not None:
            with pytest.raises(CapacityError):
                place.make(capacity=300, on_full="raise").add("new")
        made.clear()
        assert made.add("new") is True

    @needs("warn")
    def test_a_filter_says_once_each_that_it_is_nearly_full_and_full(self, place, caplog):
        made = place.make(capacity=500)
        with caplog.at_level(logging.WARNING, "bloomlock"):
            for number in range(0, 950, 5):
                made.update(f"item {number + each}" for each in range(5))
        messages = [record.getMessage() for record in caplog.records]
        assert ["nearly full" in message for message in messages] == [True, False]
        assert "full" in messages[1]
        assert made.count() > 850
        assert made.exists_many(f"item {number}" for number in range(950)) == [True] * 950
