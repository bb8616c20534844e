"""What other clients do between two commands of an operation; the proxy fixes the order."""

from __future__ import annotations

from contract.gaps import gaps
from contract.needs import needs
from flat_options import given

from bloomlock import BloomFilter, LockStrategy
from bloomlock.errors import FilterLostError, LockTimeoutError


def impatient(place):
    """The strategy of a client that does not wait for those whose commands are held back."""
    return LockStrategy(timeout=0) if place.backend.strategy == "lock" else place.backend.strategy


class RacesContract:
    @needs("proxy", "one winner")
    def test_of_two_adds_of_one_item_one_is_new(self, place, proxy):
        made, other = place.make(at=proxy.url), place.other(strategy=impatient(place))
        made.add("warm"), other.add("warm")
        for gap in gaps(proxy):
            item, theirs = f"item {gap.number}", []

            def add():
                try:
                    theirs.append(other.add(item))  # noqa: B023 - it is called in this round
                except LockTimeoutError:
                    return
                assert other.exists(item)  # noqa: B023

            with gap.before(add):
                mine = made.add(item)
            assert [mine, *theirs].count(True) == 1, gap.number
            assert made.exists(item)

    @needs("proxy", "one winner")
    def test_of_two_batches_each_item_is_new_in_one(self, place, proxy):
        made, other = place.make(at=proxy.url), place.other(strategy=impatient(place))
        made.add_many(["warm", "up"]), other.add_many(["warm", "up"])
        for gap in gaps(proxy):
            items, others = ([f"{gap.number} {one}" for one in names] for names in ("abca", "cbdb"))
            theirs = []

            def add():
                try:
                    told = other.add_many(others)  # noqa: B023 - it is called in this round
                except LockTimeoutError as error:
                    told = getattr(error, "results", [])
                theirs.extend(zip(others, told, strict=False))  # noqa: B023

            with gap.before(add):
                mine = [*zip(items, made.add_many(items), strict=True)]
            won = [item for item, new in (*mine, *theirs) if new]
            answered = {item for item, new in (*mine, *theirs) if new is not None}
            assert sorted(won) == sorted(answered), gap.number
            assert all(made.exists_many(won))

    @needs("proxy")
    def test_a_loss_in_the_middle_of_a_read_is_never_a_no(self, place, proxy):
        made = place.make(at=proxy.url)
        for gap in gaps(proxy):
            made.reattach()
            made.add("there")
            with gap.before(place.r.flushall):
                try:
                    assert made.exists_many(["there", "never"]) == [True, False]
                except FilterLostError:
                    assert gap.reached

    @needs("proxy")
    def test_an_add_that_meets_a_clear_is_whole_where_it_says_new(self, place, proxy):
        made = place.make(at=proxy.url, on_lost="recreate")
        other = place.other(on_lost="recreate")
        made.add("warm")
        for gap in gaps(proxy):
            with gap.before(other.clear):
                assert made.add(f"item {gap.number}") is True
            # It was wiped rightly if the clear came after its last bit.
            wiped = made.generation != other.generation
            assert wiped or other.exists(f"item {gap.number}")

    @needs("proxy", "changes")
    def test_clients_that_create_a_filter_at_once_agree(self, place, proxy):
        options = {"capacity": 2000} | place.backend.options
        options |= {"strategy": place.backend.plain_strategy, "client": place.r}
        for gap in gaps(proxy):
            place.r.flushall()
            others = []

            def create():
                others.append(BloomFilter("x", **given(options)))  # noqa: B023 - in this round
                assert others[0].add("a") is True  # noqa: B023

            with gap.before(create):
                made = place.make(at=proxy.url)
            if others:
                assert made.generation == others[0].generation
            assert made.add("a") is not bool(others)
            assert made.add("b") is True

    @needs("proxy", "changes")
    def test_who_attaches_while_another_clears_finds_no_loss(self, place, proxy):
        place.make()
        other = place.other(on_lost="recreate")
        for gap in gaps(proxy):
            with gap.before(other.clear):
                place.open(at=proxy.url)
