"""What a filter answers about items: one at a time, in batches, in streams, and bad ones."""

from __future__ import annotations

from itertools import count, islice

import pytest
from contract.needs import needs

from bloomlock import BloomFilter
from bloomlock.errors import BatchError, ConfigurationError, FilterMismatchError

ITEMS = [f"item {number}" for number in range(300)]
BATCHES = ("add_many", "exists_many", "update")
SECRET = "correct horse battery staple"  # noqa: S105 - of these tests only


class StreamEndedError(Exception):
    """What a caller's own iterable raises."""


def ending_after(items):
    yield from items
    raise StreamEndedError


def spoiled(items, bad):
    """Items of which a bad one is the last."""
    yield from items
    yield bad


def collect(stream, pairs):
    for pair in stream:
        pairs.append(pair)


class ItemsContract:
    def test_an_item_is_new_once_and_then_seen(self, place):
        made = place.make()
        assert made.exists("a") is False
        assert made.add("a") is True
        assert made.add(b"a") is False
        assert made.exists("a") is True
        assert "a" in made
        assert "b" not in made
        assert made.exists("b") is False

    def test_batches_answer_in_order_and_update_answers_nothing(self, place):
        made = place.make()
        assert made.add_many([*ITEMS, "a", *ITEMS[:3]]) == [True] * 301 + [False] * 3
        assert made.exists_many(iter([*ITEMS, "no", "a"])) == [True] * 300 + [False, True]
        assert made.update(iter([*ITEMS, "one", "two", "one"])) is None
        assert made.exists_many(["one", "two", "three"]) == [True, True, False]
        for none in ([], (), iter([]), set()):
            assert made.add_many(none) == made.exists_many(none) == []
            assert made.update(none) is None
        assert len(made) == made.count() == pytest.approx(303, rel=0.1)

    def test_of_an_item_that_a_batch_repeats_the_first_is_new(self, place):
        made = place.make()
        batch = ["a", "b", b"a", "a", "ä", "c", "ä".encode(), *["b"] * 300]
        made.add("c")
        new = [True, True, False, False, True, False, False, *[False] * 300]
        assert made.add_many(batch) == new
        assert made.add_many(batch) == [False] * len(batch)
        assert made.exists_many(["no", *batch, "no"]) == [False, *[True] * len(batch), False]

    def test_add_each_yields_every_answer_before_what_ends_the_stream(self, place):
        made = place.make()
        pairs = []
        with pytest.raises(StreamEndedError):
            collect(made.add_each(ending_after([*ITEMS, "item 0"]), batch_size=64), pairs)
        assert pairs == [*((item, True) for item in ITEMS), ("item 0", False)]
        assert made.exists_many(ITEMS) == [True] * 300

    def test_add_each_reads_no_more_than_a_batch_ahead(self, place):
        read = []

        def numbers():
            for number in count():
                read.append(number)
                yield f"n{number}"

        made = place.make()
        stream = made.add_each(numbers(), batch_size=10)
        assert read == []
        assert [new for _, new in islice(stream, 25)] == [True] * 25
        # In the process nothing is gained by reading ahead.
        assert len(read) == 25 if place.r is None else 30
        for bad in (0, -1, 1.5, "10", True):
            with pytest.raises(ConfigurationError, match="batch_size must be a whole number"):
                made.add_each(["a"], batch_size=bad)

    def test_items_are_any_bytes_and_text_counts_as_its_utf8(self, place):
        made = place.make()
        long = "x" * 1_000_000
        items = [
            "ä",
            "ä".encode(),
            b"\xff",
            "",
            b"",
            "a\0",
            b"a\0\0",
            "a",
            b"\r\n",
            long,
            long + "y",
        ]
        new = [True, False, True, True, False, *[True] * 6]
        assert made.add_many(items) == new
        assert [made.add(item) for item in items] == [False] * len(items)
        assert [made.exists(item) for item in items] == [True] * len(items)
        assert made.exists_many(["\0", long + "z", "y"]) == [False] * 3

    def test_an_item_of_another_type_is_named_and_nothing_is_added(self, place):
        made = place.make()
        before = made.count()
        for wrong in (None, 5, ["a"], bytearray(b"a")):
            for call in (made.add, made.exists):
                with pytest.raises(TypeError, match="item must be str or bytes"):
                    call(wrong)
            for name in BATCHES:
                with pytest.raises(TypeError, match=r"items\[3\].*str or bytes") as caught:
                    getattr(made, name)(["a", b"b", "c", wrong, "d", 8])
                assert "\n" not in str(caught.value)
                assert not getattr(caught.value, "results", [])
        for name in BATCHES:
            with pytest.raises(ConfigurationError, match=r"items\[1\].*surrogate"):
                getattr(made, name)(["a", "a\udc80"])
        assert made.count() == before
        assert made.add_many(["a", "b", "c", "d"]) == [True] * 4

    def test_one_text_is_no_batch(self, place):
        made = place.make()
        before = made.count()
        for call in (made.add_many, made.exists_many, made.update, made.add_each):
            for one in ("text", b"bytes", ""):
                with pytest.raises(TypeError, match="items must be an iterable of str or bytes"):
                    call(one)
            for none in (None, 5):
                with pytest.raises(TypeError, match=type(none).__name__):
                    call(none)
        assert made.count() == before

    def test_what_an_iterable_raises_passes_through_as_it_is(self, place):
        made = place.make()
        for call in (made.exists_many, made.add_many):
            with pytest.raises(StreamEndedError) as caught:
                call(ending_after(ITEMS))
            assert not vars(caught.value)
        # What is added and reported to nobody would be lost to all, so none of its chunk is.
        assert not any(made.exists_many(ITEMS))
        with pytest.raises(StreamEndedError) as caught:
            made.update(ending_after(ITEMS))
        assert not vars(caught.value)
        assert all(made.exists_many(ITEMS))

    @pytest.mark.parametrize("good", [50, 11_000])
    def test_a_batch_that_goes_bad_tells_what_was_added(self, place, good):
        if self.backend in ("pipeline", "transaction", "lock"):
            # They send several commands for an item, and their chunks are smaller.
            good = min(good, 1500)
        elif self.backend not in ("atomic", "lua", "native", "memory"):
            # Their chunks are those of strategy atomic.
            good = min(good, 400)
        # The more hash functions an item has, the smaller is a chunk.
        options = {} if place.backend.strategy == "native" else {"num_hashes": 24}
        options |= {"capacity": 20_000, "error_rate": 1e-9} | place.backend.options
        made = place.make(**options)
        items = [str(number) for number in range(good)]
        # The route by which a chunk is smallest.
        route = {} if place.r is None else {"route": "items"}
        with pytest.raises(TypeError, match=rf"items\[{good}\]") as caught:
            made.add_many(spoiled(items, 7), **route)
        results = getattr(caught.value, "results", [])
        if results:
            assert isinstance(caught.value, BatchError)
            assert type(caught.value.__cause__) is TypeError
        assert results or good <= 400 or place.backend.server == "memory"
        known = len(results)
        assert results == [True] * known
        assert made.exists_many(items) == [True] * known + [False] * (good - known)
        more = [f"more {item}" for item in items[:1500]]
        with pytest.raises(TypeError):
            made.update(spoiled(more, 7))
        assert made.add_many(items[known : known + 50]) == [True] * len(items[known : known + 50])

    @needs("server")
    def test_a_server_that_forgot_its_scripts_is_told_them_again(self, place):
        made = place.make()
        for number in (1, 100, 300):
            items = [f"{number} {item}" for item in ITEMS[:number]]
            place.r.script_flush()
            assert made.add_many(items) == [True] * number
            place.r.script_flush()
            assert made.exists_many(items) == [True] * number
        place.r.script_flush()
        assert made.add("single") is True

    @needs("server")
    def test_a_route_that_is_none_is_refused(self, place):
        made = place.make()
        for name in BATCHES:
            for route in ("nonsense", "", None, 1, ["items"]):
                with pytest.raises(ConfigurationError, match="route must be 'auto'") as caught:
                    getattr(made, name)(["a"], route=route)
                assert repr(route) in str(caught.value)
        assert made.exists("a") is False

    def test_the_error_rate_at_capacity_is_the_one_asked_for(self, place):
        made = place.make(error_rate=0.01)
        made.update(f"in {number}" for number in range(2000))
        assert all(made.exists_many(f"in {number}" for number in range(2000)))
        false = sum(made.exists_many(f"out {number}" for number in range(5000)))
        # 50 are expected at the rate asked for, with a deviation of 7.
        assert false < 50 + 5 * 7
        assert sum(made.exists(f"single {number}") for number in range(100)) < 1 + 5 * 1
        assert made.info().current_error_rate < 0.0125
        assert made.count() == pytest.approx(2000, rel=0.05)

    def test_info_tells_what_the_filter_is_and_holds(self, place):
        made = place.make()
        made.update(ITEMS)
        info = made.info()
        assert info.estimated_count == pytest.approx(300, rel=0.1)
        assert (info.capacity, info.error_rate) == (made.capacity, made.error_rate)
        assert info.memory_bytes >= info.num_bits / 8
        assert info.fill_ratio == info.bits_set / info.num_bits
        assert 0 <= info.current_error_rate < made.error_rate
        assert type(made).__name__ == "Awaited" or str(made.capacity) in repr(made)

    @needs("seeds")
    def test_seeds_give_the_hash_functions(self, place):
        made = place.make(seeds=[3, 1, 2])
        assert (made.num_hashes, made.seeds) == (3, (3, 1, 2))
        assert sum(made.add_many(ITEMS)) > 290
        assert all(made.exists_many(ITEMS))
        if place.r is not None:
            assert all(place.open().exists_many(ITEMS))
        for bad in ([1, 1], [], [-1], ["1"]):
            with pytest.raises(ConfigurationError, match="seeds must be"):
                place.make("y", seeds=bad)

    @needs("num_hashes")
    def test_the_number_of_hash_functions_is_given_or_chosen(self, place):
        five = place.make(num_hashes=5)
        assert five.num_hashes == 5
        assert five.add_many(ITEMS) == [True] * 300
        words = ("memory", "balanced", "speed")
        made = [place.make(word, optimize=word) if place.r else place.make(optimize=word)
                for word in words]  # fmt: skip
        assert made[0].num_hashes > made[1].num_hashes > made[2].num_hashes
        if place.backend.options.get("on_full") != "grow":
            # Later slices of one that grows share out the rest of a string.
            assert made[0].num_bits < made[1].num_bits < made[2].num_bits
        if place.r is not None:
            assert place.make().num_hashes == 5, "an existing filter is taken as it is"
            with pytest.raises(FilterMismatchError, match="num_hashes: stored 5, asked 4"):
                place.make(num_hashes=4)
        for bad in ({"num_hashes": 65}, {"num_hashes": True}, {"optimize": "size"}):
            with pytest.raises(ConfigurationError, match=f"{next(iter(bad))} must be .* not"):
                place.make("y", **bad)

    @needs("key", "server")
    def test_only_who_brings_the_key_uses_the_filter(self, place):
        made = place.make(key=SECRET)
        assert made.add_many(ITEMS) == [True] * 300
        opened = place.open(key=SECRET.encode())
        assert opened.add_many([*ITEMS, "new"]) == [False] * 300 + [True]
        assert opened.info().key_kind == "secret"
        before = place.contents()
        for key in (None, True, b"\x00\xff another secret \x00"):
            for attach in (place.make, place.open):
                with pytest.raises(FilterMismatchError, match="key: stored"):
                    attach(key=key)
        assert place.contents() == before
        random = place.make("random", key=True)
        assert random.add("a") is True
        assert place.open("random").add("a") is False

    @needs("server")
    def test_names_and_prefixes_are_apart(self, place):
        names = ["a", "{a}", "a}{b", "ü \n", "%7B*"]
        for name in names:
            assert place.make(name).add(name)
        for name in names:
            assert [one for one in names if place.open(name).exists(one)] == [name]
        other = place.make("a", prefix="mine:")
        assert not other.exists("a")
        other.add("b")
        assert not place.open("a").exists("b")

    @needs("server")
    def test_what_one_strategy_adds_the_others_see(self, place):
        made = place.make()
        made.update(ITEMS)
        assert place.other().exists_many([*ITEMS, "no"]) == [True] * 300 + [False]
        if place.backend.options.keys() <= {"strategy"} and place.backend.strategy != "native":
            for strategy in ("lua", "transaction", "pipeline", "lock"):
                other = BloomFilter.open("x", client=place.r, strategy=strategy)
                assert other.add_many([*ITEMS, strategy]) == [False] * 300 + [True]
                assert made.exists(strategy)
