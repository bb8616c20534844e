"""What filters with a time window, and filters that grow, promise beside the rest."""

from __future__ import annotations

import pytest
from contract.backends import DAY, WINDOW

from bloomlock.errors import CapacityError

SLICE = DAY
ITEMS = [f"item {number}" for number in range(40)]


class WindowContract:
    """Six slices of a day; each moment is asked for by a new object, as clients keep the time."""

    @staticmethod
    def look(timed, **options):
        return timed.open(**options)

    def test_an_item_is_remembered_for_the_window_and_a_slice_more_at_most(self, timed):
        made = timed.make()
        assert made.add_many(ITEMS) == [True] * 40
        timed.at(3 * SLICE)
        self.look(timed).update(["later"])
        # An add of what is there does not renew it.
        assert self.look(timed).add_many(ITEMS[:5]) == [False] * 5
        timed.at(WINDOW["window"] - 2)
        assert self.look(timed).exists_many(ITEMS) == [True] * 40
        assert self.look(timed).add("item 7") is False
        timed.at(WINDOW["window"] + SLICE + 2)
        assert self.look(timed).exists_many([*ITEMS, "later"]) == [False] * 40 + [True]
        assert self.look(timed).add_many([*ITEMS, "item 7"]) == [True] * 40 + [False]
        timed.at(WINDOW["window"] + 4 * SLICE + 2)
        assert self.look(timed).exists_many([*ITEMS, "later"]) == [True] * 40 + [False]
        timed.at(40 * SLICE)
        assert self.look(timed).exists_many(ITEMS) == [False] * 40

    def test_claims_and_scripts_go_by_the_window(self, timed):
        made = timed.make()
        made.claim("a", ttl=30, renew=False).commit()
        add = "return add(1) and 1 or 0"
        assert made.run_script(add, ["b"]) == 1
        timed.at(5 * SLICE)
        late = self.look(timed)
        assert late.claim("a").state.name == "SEEN"
        assert late.run_script(add, ["b"]) == 0
        timed.at(7 * SLICE + 2)
        late = self.look(timed)
        assert late.claim("a", ttl=30, renew=False).state.name == "NEW"
        assert late.run_script(add, ["b"]) == 1


class AsyncContract:
    def test_calls_of_one_object_at_once_have_one_winner(self, place):
        made = place.make()
        asked = [*ITEMS, *ITEMS, "a", "a"]
        told = made.together("add", asked)
        assert [item for item, new in zip(asked, told, strict=True) if new] == [*ITEMS, "a"]
        assert made.together("exists", [*ITEMS, "no"]) == [True] * 40 + [False]


class GrowthContract:
    """A filter for 20 items at first."""

    def test_it_takes_more_items_than_its_capacity_at_its_error_rate(self, place):
        made, late = place.make(error_rate=0.01), place.open()
        for start in range(0, 2000, 100):
            items = [f"item {number}" for number in range(start, start + 100)]
            assert made.add_many(items).count(True) >= 93
            assert late.exists_many(items) == [True] * 100
        assert late.info().slices == made.info().slices >= 4
        assert made.exists_many(f"item {number}" for number in range(2000)) == [True] * 2000
        false = sum(made.exists_many(f"out {number}" for number in range(5000)))
        assert false < 50 + 5 * 7
        assert made.info().current_error_rate <= 0.01
        assert made.count() == pytest.approx(2000, rel=0.05)

    def test_up_to_its_end_nothing_is_lost_and_then_new_items_are_refused(self, place):
        made = place.make(up_to=400)
        items = [f"item {number}" for number in range(9000)]
        with pytest.raises(CapacityError) as caught:
            made.add_many(items)
        added = len(caught.value.results)
        assert added >= 400
        assert caught.value.results == [True] * added
        assert made.exists_many(items[:added]) == [True] * added
        assert made.add(items[3]) is False
        with pytest.raises(CapacityError):
            place.open().add("new")
        made.clear()
        assert made.info().slices == 1
        assert made.add("new") is True

    def test_open_grows_on_and_the_class_asks_for_the_same_parameters(self, place):
        made = place.make(growth=2, up_to=5000)
        opened = place.open()
        for one in (made, opened):
            assert (one.info().growth, one.info().up_to) == (2, 5000)
        opened.update(f"item {number}" for number in range(500))
        assert opened.info().slices > 3
        assert made.exists_many(f"item {number}" for number in range(500)) == [True] * 500
        copied = made.copy("copied")
        copied.update(f"more {number}" for number in range(1500))
        assert copied.info().slices > opened.info().slices
        assert copied.exists_many(f"item {number}" for number in range(500)) == [True] * 500
