"""Replies that are lost, and errors of the server: nothing is lost, and nothing is invented."""

from __future__ import annotations

import contextlib

import pytest
import redis
from contract.backends import REFUSES
from contract.gaps import gaps
from contract.needs import needs
from proxy import Proxy

from bloomlock.errors import BatchError, BloomlockError, OutcomeUnknownError
from bloomlock.strategies.lock import UPDATE

ITEMS = [f"item {number}" for number in range(40)]
LATE = ("before", "after")
"""The connection is cut before a command reaches the server, or after it was carried out."""


def passing(_name, _number):
    return "pass"


def refuses_adds(made, says):
    """See that adds raise what the server says, in redis-py's own words."""
    for call in (
        lambda: made.add("a"),
        lambda: made.add_many(["a", "b"]),
        lambda: made.update(["a", "c"]),
    ):
        with pytest.raises(redis.RedisError, match=says) as caught:
            call()
        assert not isinstance(caught.value, BloomlockError)
        assert not hasattr(caught.value, "results")


def has_added_nothing(made):
    assert made.exists_many(["warm", "a", "b", "c"]) == [True, False, False, False]
    assert made.add_many(["a", "b", "c"]) == [True] * 3


class FaultsContract:
    @needs("proxy")
    @pytest.mark.parametrize("verdict", LATE)
    def test_an_add_whose_reply_is_lost_is_new_or_unknown(self, place, proxy, verdict):
        made = place.make(at=proxy.url)
        made.add("warm")
        unknown = 0
        for gap in gaps(proxy):
            item = f"item {gap.number}"
            with gap.lost(verdict):
                try:
                    told = made.add(item)
                except OutcomeUnknownError as error:
                    told, unknown = None, unknown + 1
                    assert error.results == [None]
                    assert isinstance(error.__cause__, redis.ConnectionError)
            place.drop_locks()
            # "Seen" would be the lie: nobody else has offered it.
            assert told in (True, None)
            assert made.exists(item) or told is None
        assert unknown

    @needs("proxy")
    @pytest.mark.parametrize("verdict", LATE)
    def test_an_unknown_outcome_counts_as_new_where_asked(self, place, proxy, verdict):
        made = place.make(at=proxy.url, on_unknown="new")
        made.add_many(["warm", "up"])
        for gap in gaps(proxy):
            with gap.lost(verdict):
                assert made.add(f"item {gap.number}") is True
            place.drop_locks()
        for gap in gaps(proxy):
            batch = [f"{gap.number} {one}" for one in "abcb"]
            with gap.lost(verdict):
                told = made.add_many(batch)
            place.drop_locks()
            assert told[:3] == [True] * 3
            # A filter that grows may ask for the repeat by itself, and count it as new too.
            assert told[3] is False or place.backend.options.get("on_full") == "grow"

    @needs("proxy")
    @pytest.mark.parametrize("verdict", LATE)
    def test_a_read_whose_reply_is_lost_is_repeated(self, place, proxy, verdict):
        made = place.make(at=proxy.url)
        made.add("there")
        for read in (
            lambda: made.exists("there") and not made.exists("not there"),
            lambda: made.exists_many(["there", "not", "there"]) == [True, False, True],
            lambda: made.count() == 1 == made.info().estimated_count,
        ):
            for gap in gaps(proxy):
                with gap.lost(verdict):
                    assert read()

    @needs("proxy")
    @pytest.mark.parametrize("verdict", LATE)
    def test_what_is_known_of_a_batch_is_told(self, place, proxy, verdict):
        made, other = place.make(at=proxy.url), place.other()
        made.add_many(["warm", "up"])
        for gap in gaps(proxy):
            other.add(f"{gap.number} there")
            batch = [f"{gap.number} {one}" for one in ("there", "a", "b", "a", "c")]
            with gap.lost(verdict):
                try:
                    told = made.add_many(batch)
                except OutcomeUnknownError as error:
                    told = error.results
                    assert None in told
                    assert "reply was lost" in str(error)
            place.drop_locks()
            told += [None] * (5 - len(told))
            for answer, expected in zip(told, [False, True, True, False, True], strict=True):
                assert answer in (expected, None)
            known = [item for item, new in zip(batch, told, strict=True) if new is not None]
            assert made.exists_many(known) == [True] * len(known)

    @needs("proxy")
    @pytest.mark.parametrize("verdict", LATE)
    def test_an_update_whose_reply_is_lost_is_repeated(self, place, proxy, verdict):
        made = place.make(at=proxy.url)
        routes = ["items", "bitmap"]
        for route in routes[: 1 if "route" in REFUSES.get(self.backend, ()) else None]:
            made.update(["warm", "up"], route=route)
            for gap in gaps(proxy):
                batch = [f"{route} {gap.number} {one}" for one in "abc"]
                with gap.lost(verdict):
                    assert made.update(batch, route=route) is None
                place.drop_locks()
                assert made.exists_many(batch) == [True] * 3

    @needs("proxy", "three tries")
    def test_an_update_that_brings_nothing_three_times_says_so(self, place, proxy):
        made = place.make(at=proxy.url)
        made.update(["warm", "up"])
        if place.backend.strategy == "lock":
            # The locks are had, and the update is lost.
            update = UPDATE.digest.encode()
            proxy.judge = lambda *_: "before" if update in proxy.command else "pass"
        else:
            proxy.judge = lambda _name, _number: "before"
        before = proxy.cuts["before"]
        with pytest.raises(OutcomeUnknownError, match="harmless") as caught:
            made.update(ITEMS)
        assert (caught.value.added, caught.value.results) == (0, [])
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
        assert proxy.cuts["before"] - before >= 3
        proxy.judge = passing
        place.drop_locks()
        made.update(ITEMS)
        assert made.exists_many(ITEMS) == [True] * 40

    @needs("proxy", "discard")
    @pytest.mark.parametrize("verdict", LATE)
    def test_a_discard_whose_reply_is_lost_is_of_unknown_outcome(self, place, proxy, verdict):
        made, other = place.make(at=proxy.url), place.other()
        made.update(["warm", "other", "up"])
        made.discard("warm")
        for gap in gaps(proxy):
            item = f"item {gap.number}"
            other.add(item)
            with gap.lost(verdict):
                try:
                    answers = [made.discard(item)]
                except OutcomeUnknownError as error:
                    answers = error.results
            assert answers == [None if gap.reached else True]
            is_there = gap.reached and verdict == "before"
            assert other.exists_many([item, "other"]) == [is_there, True]
        proxy.judge = lambda _name, _number: verdict
        with pytest.raises(OutcomeUnknownError, match="harmless") as caught:
            made.discard_many(["other", "up"])
        assert caught.value.results == [None, None]
        proxy.judge = passing
        assert made.discard("other") is (verdict == "before")

    @needs("proxy", "changes", "lost changes")
    @pytest.mark.parametrize("verdict", LATE)
    @pytest.mark.parametrize("action", ["create", "clear", "delete", "copy", "recreate"])
    def test_a_change_of_the_whole_filter_survives_a_lost_reply(
        self, place, proxy, action, verdict
    ):
        """It succeeds, or it raises and can be repeated."""
        for gap in gaps(proxy):
            place.r.flushall()
            made = place.make("x" if action == "create" else "y")
            made.update(ITEMS[:5])
            mine = None if action == "create" else place.open("y", at=proxy.url)

            def act():
                if action == "create":
                    return place.make("y", at=proxy.url)
                if action == "copy":
                    return mine.copy("copied")  # noqa: B023 - it is called in this round
                if action == "recreate":
                    place.r.delete("bloomlock:{y}:meta")
                    return place.make("y", at=proxy.url, on_lost="recreate")
                getattr(mine, action)()  # noqa: B023
                return mine  # noqa: B023

            with gap.lost(verdict):
                try:
                    done = act()
                except (redis.ConnectionError, OutcomeUnknownError):
                    proxy.judge = passing
                    with contextlib.suppress(ValueError):
                        # (A copy that was made says that the name is taken.)
                        done = act()
            if action == "copy":
                done = place.open("copied")
            if action == "delete":
                done.reattach()
            assert done.exists_many(ITEMS[:5]) == [action == "copy"] * 5
            assert done.add(f"new after {gap.number}") is True
            name = "copied" if action == "copy" else "y"
            assert place.other(name).exists(f"new after {gap.number}")

    @needs("server")
    @pytest.mark.parametrize("on_unknown", ["raise", "new"])
    def test_what_a_server_without_memory_refuses_is_not_done(self, place, on_unknown):
        made = place.make(on_unknown=on_unknown)
        made.add("warm")
        place.configure("maxmemory", 1)
        try:
            refuses_adds(made, "OOM|memory")
        finally:
            place.configure("maxmemory", 0)
        has_added_nothing(made)

    @needs("server", "read-only")
    @pytest.mark.parametrize("on_unknown", ["raise", "new"])
    def test_what_a_replica_refuses_is_not_done(self, place, on_unknown):
        made = place.make(on_unknown=on_unknown)
        made.add("warm")
        place.r.replicaof("127.0.0.1", 1)
        try:
            refuses_adds(made, "(?i)read.?only|replica")
        finally:
            place.r.replicaof("NO", "ONE")
        has_added_nothing(made)

    @needs("proxy", "loading")
    @pytest.mark.parametrize("on_unknown", ["raise", "new"])
    @pytest.mark.parametrize(
        "answer",
        ["LOADING Redis is loading the dataset in memory", "NOAUTH Authentication required."],
    )
    def test_what_is_answered_with_an_error_is_not_done(self, place, proxy, answer, on_unknown):
        made = place.make(at=proxy.url, on_unknown=on_unknown)
        made.add("warm")
        proxy.judge = lambda _name, _number: f"-{answer}\r\n".encode()
        refuses_adds(made, "oading|wants a password")
        proxy.judge = passing
        has_added_nothing(made)

    @needs("proxy")
    def test_of_a_batch_that_is_refused_half_way_the_answers_are_told(self, place, proxy):
        # The chunks of some have fewer items, as an item is several commands.
        sizes = {"pipeline": 100, "transaction": 100, "lock": 100, "native": 4500, "growth": 1500}
        items = [str(number) for number in range(sizes.get(self.backend, 700))]
        options = {} if place.backend.strategy == "native" else {"num_hashes": 16}
        made = place.make(at=proxy.url, **({"capacity": 20_000} | place.backend.options | options))
        made.add_many(["warm", "up"], route="items")
        before = len(proxy.seen)
        made.add_many([f"warm {item}" for item in items], route="items")
        sent = len(proxy.seen) - before
        half = sent // 2 if sent > 10 else 1
        seen = []

        def judge(name, _number):
            seen.append(name)
            if len(seen) == half + 1:
                place.configure("maxmemory", 1)
            return "pass"

        proxy.judge = judge
        try:
            with pytest.raises(redis.ResponseError, match="OOM|memory") as caught:
                made.add_many(items, route="items")
        finally:
            proxy.judge = passing
            place.configure("maxmemory", 0)
        results = getattr(caught.value, "results", [])
        # Where all of it is one request that was refused, there is nothing to tell.
        assert isinstance(caught.value, BatchError) or not results
        results += [None] * (len(items) - len(results))
        known = results.count(True)
        assert known < len(items)
        assert False not in results
        there = made.exists_many(items)
        assert [answer for answer, new in zip(there, results, strict=True) if new] == [True] * known
        if place.backend.strategy != "pipeline":
            # (Of one item a pipeline may have set some bits.)
            assert there.count(True) == known
            left = [item for item, new in zip(items, results, strict=True) if new is None]
            assert made.add_many(left) == [True] * len(left)

    @needs("proxy")
    def test_what_was_never_sent_is_not_unknown(self, place):
        with Proxy(place.address) as gone:
            made = place.make(at=gone.url, on_unknown="new")
            made.add("a")
        for call in (
            # (The first may find an open connection closed; reads are repeated.)
            lambda: made.exists("a"),
            lambda: made.add("b"),
            lambda: made.add_many(["b", "c"]),
            lambda: made.update(["b"]),
            made.count,
            made.clear,
        ):
            with pytest.raises(redis.ConnectionError) as caught:
                call()
            assert not isinstance(caught.value, BloomlockError)
