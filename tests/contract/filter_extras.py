"""What a filter offers beyond items: discards, claims, scripts, copies, files, names and expiry."""

from __future__ import annotations

import contextlib

import pytest
import redis
from contract.backends import REFUSES
from contract.needs import needs

from bloomlock import BloomFilter, MemoryBloomFilter
from bloomlock.errors import (
    ClaimError,
    ClaimLostError,
    ConfigurationError,
    FilterLostError,
    FilterMismatchError,
)

ITEMS = [f"item {number}" for number in range(60)]
PUSH_NEW = """
local new = {}
for item = 1, #ARGV do
    if add(item) then
        redis.call('RPUSH', KEYS[1], ARGV[item])
        new[#new + 1] = item
    end
end
return new
"""


def keys_of(place):
    """The keys of filter x, without the fence of its locks, which goes by itself."""
    return [key for key in place.r.scan_iter("*{x*") if not key.endswith(b":fence")]


class ExtrasContract:
    @needs("discard")
    def test_a_discarded_item_is_new_again_and_no_other(self, place):
        made, other = place.make(), place.other()
        made.update(ITEMS)
        gone = ITEMS[:20]
        assert made.discard("never") is False
        assert made.discard(gone[0]) is True
        assert other.discard(gone[0]) is False
        assert made.discard_many([*gone, gone[1], "never"]) == [False, *[True] * 19, False, False]
        late = place.open()
        for one in (made, other, late):
            assert one.exists_many(ITEMS) == [False] * 20 + [True] * 40
            assert one.exists(gone[3]) is False
        assert made.add_many([*gone[:5], *gone[:5]]) == [True] * 5 + [False] * 5
        assert other.add(gone[5]) is True
        assert late.add(gone[5]) is False
        late.update(gone[6:9])
        assert made.exists_many(gone) == [True] * 9 + [False] * 11
        assert [made.discard(gone[0]), other.discard(gone[0])] == [True, False]
        assert made.info().discarded > 0
        for bad in (5, None):
            with pytest.raises(TypeError, match="item must be str or bytes"):
                made.discard(bad)
        with pytest.raises(TypeError, match=r"items\[1\]"):
            made.discard_many(["item 40", 5])
        assert made.exists("item 40")

    @needs("discard")
    def test_after_a_clear_nothing_is_left_of_discards(self, place):
        made, other = place.make(), place.other(on_lost="recreate")
        made.update(ITEMS)
        made.discard_many(ITEMS[:20])
        other.clear()
        with pytest.raises(FilterLostError):
            made.discard("item 30")
        made.reattach()
        assert made.add_many(ITEMS) == [True] * 60
        assert other.discard_many(["item 1", "never"]) == [True, False]
        assert made.exists_many(ITEMS[:3]) == [True, False, True]
        assert made.delete() is True
        assert place.contents() == {}

    @needs("claims")
    def test_a_claim_has_an_item_until_it_is_committed(self, place):
        made, other = place.make(), place.other()
        made.add("there")
        claim = made.claim("a", ttl=3600, renew=False)
        assert claim.state.name == "NEW"
        assert claim
        assert claim.fence > 0
        busy = other.claim("a")
        assert busy.state.name == "BUSY"
        assert not busy
        assert 0 < busy.remaining <= 3600
        assert made.claim("there").state.name == "SEEN"
        assert made.exists("a") is False
        assert made.info().claims.open == 1
        claim.commit()
        claim.commit()
        assert other.exists("a") is True
        assert other.claim("a").state.name == "SEEN"
        with pytest.raises(ClaimError):
            busy.commit()
        assert made.info().claims.open == 0

    @needs("claims")
    def test_leaving_the_block_commits_and_an_exception_gives_back(self, place):
        made, other = place.make(), place.other()
        with made.claim("a", ttl=3600, renew=False) as claim:
            assert claim
        assert made.exists("a")
        with pytest.raises(ValueError, match="no"), made.claim("b", ttl=3600, renew=False):
            raise ValueError("no")
        assert made.exists("b") is False
        again = other.claim("b", ttl=3600, renew=False)
        assert again.state.name == "NEW"
        again.abandon()
        assert made.add("b") is True

    @needs("claims")
    def test_many_claims_are_taken_committed_and_handed_over(self, place):
        made, other = place.make(), place.other()
        claims = made.claim_many(["a", "b", "a", "c"], ttl=3600, renew=False)
        assert [claim.state.name for claim in claims] == ["NEW", "NEW", "BUSY", "NEW"]
        assert made.commit_many([claims[0], claims[1]]) == [True, True]
        assert other.exists_many(["a", "b", "c"]) == [True, True, False]
        assert sorted(claim.item for claim in other.open_claims()) == ["c"]
        more = made.claim_many(["d"], payloads=["more of d"], ttl=3600, renew=False)
        made.abandon_many(more, offer=True)
        given = other.claim_expired(renew=False)
        assert [(claim.item, claim.payload) for claim in given] == [("d", "more of d")]
        assert other.commit_many(given) == [True]
        assert made.exists("d")

    @needs("claims", "clock")
    def test_a_claim_that_is_over_goes_to_exactly_one_other_worker(self, timed):
        made, other = timed.make(), timed.other()
        late = made.claim("a", ttl=30, renew=False, payload="what to do")
        kept = made.claim("b", ttl=600, renew=False)
        timed.at(29)
        assert other.claim_expired(renew=False) == []
        timed.at(31)
        given = [*other.expired(renew=False), *made.expired(renew=False)]
        assert [(claim.item, claim.payload) for claim in given] == [("a", "what to do")]
        with pytest.raises(ClaimLostError):
            late.commit()
        assert made.exists("a") is False
        given[0].commit()
        kept.commit()
        assert made.exists_many(["a", "b"]) == [True, True]

    @needs("claims")
    def test_an_item_that_fails_too_often_is_given_to_nobody(self, place):
        made = place.make()
        for _ in range(2):
            claim = made.claim("a", max_attempts=2, ttl=3600, renew=False)
            assert claim.state.name == "NEW"
            claim.abandon("the bank is closed")
        assert made.claim("a").state.name == "FAILED"
        assert [(one.item, one.error) for one in made.failed()] == [("a", "the bank is closed")]
        assert made.retry_failed(["a", "b"]) == [True, False]
        claim = made.claim("a", ttl=3600, renew=False)
        assert claim.state.name == "NEW"
        claim.commit()
        assert made.failed() == []

    @needs("claims", "discard")
    def test_a_committed_item_that_is_discarded_can_be_claimed_again(self, place):
        made, other = place.make(), place.other()
        with made.claim("a", ttl=3600, renew=False):
            pass
        assert other.discard("a") is True
        with made.claim("a", ttl=3600, renew=False) as claim:
            assert claim.state.name == "NEW"
            assert other.claim("a").state.name == "BUSY"
        assert other.claim("a").state.name == "SEEN"
        assert made.exists("a") is True

    @needs("run_script")
    def test_a_script_adds_and_tests_items_in_one_step(self, place):
        made, late = place.make(), place.open()
        queue = made.hash_tag + ":queue"
        made.update(ITEMS[::2])
        assert made.run_script(PUSH_NEW, ITEMS, [queue], ITEMS) == list(range(2, 61, 2))
        assert place.r.lrange(queue, 0, -1) == [item.encode() for item in ITEMS[1::2]]
        assert late.run_script(PUSH_NEW, ["a", b"a", "b"], [queue], ["a", "a", "b"]) == [1, 3]
        script = "return {tostring(exists(1)), tostring(exists(2))} -- no line after it"
        assert late.run_script(script, ["a", "never"]) == [b"true", b"false"]
        assert made.exists_many([*ITEMS, "a", "b", "never"]) == [True] * 62 + [False]
        if "discard" in dir(made):
            late.discard("a")
            assert made.run_script(script, ["a", "b"]) == [b"false", b"true"]
            assert made.run_script(PUSH_NEW, ["a"], [queue], ["a"]) == [1]
        place.other().clear()
        before = place.r.llen(queue)
        with pytest.raises(FilterLostError):
            made.run_script(PUSH_NEW, ["new"], [queue], ["new"])
        assert place.r.llen(queue) == before
        with pytest.raises(ConfigurationError, match="script must be a text, not ''"):
            made.run_script("")
        with pytest.raises(ConfigurationError, match="a key must be a text, not b'k'"):
            made.run_script("return 1", [], [b"k"])
        made.reattach()
        with pytest.raises(redis.ResponseError, match="(?i)compil"):
            made.run_script("return (")

    @needs("copy")
    def test_a_copy_is_a_filter_of_its_own(self, place):
        made = place.make()
        made.update(ITEMS)
        copied = made.copy("copied")
        assert copied.name == "copied"
        assert copied.exists_many([*ITEMS, "no"]) == [True] * 60 + [False]
        assert copied.add("only there") is True
        assert made.exists("only there") is False
        assert copied.generation != made.generation
        with pytest.raises(ValueError, match="'copied' is taken"):
            made.copy("copied")
        assert copied.delete() is True
        assert made.exists_many(ITEMS) == [True] * 60

    @needs("export")
    def test_a_file_makes_the_filter_again_and_replaces_one_only_where_asked(self, place, tmp_path):
        made = place.make()
        made.update(ITEMS)
        made.export_file(tmp_path / "x.bloom")
        again = BloomFilter.import_file("again", tmp_path / "x.bloom", client=place.r)
        assert again.exists_many([*ITEMS, "no"]) == [True] * 60 + [False]
        assert (again.capacity, again.window) == (made.capacity, made.window)
        made.add("later")
        with pytest.raises(ValueError, match="taken|exists"):
            BloomFilter.import_file("x", tmp_path / "x.bloom", client=place.r)
        assert made.exists("later")
        new = BloomFilter.import_file("x", tmp_path / "x.bloom", client=place.r, replace=True)
        assert new.exists_many(["item 1", "later"]) == [True, False]
        with pytest.raises(FilterLostError):
            made.exists("later")
        with contextlib.suppress(OSError):
            (tmp_path / "x.bloom").write_bytes((tmp_path / "x.bloom").read_bytes()[:-5])
        with pytest.raises(ConfigurationError):
            BloomFilter.import_file("cut", tmp_path / "x.bloom", client=place.r)
        assert not place.r.keys("*{cut*")

    @needs("rename")
    def test_a_renamed_filter_is_found_under_the_new_name_alone(self, place):
        made, other = place.make(), place.make()
        made.update(ITEMS)
        place.make("taken")
        with pytest.raises(ValueError, match="'taken' is taken"):
            made.rename("taken")
        has_claims = "claims" not in REFUSES.get(self.backend, ())
        if has_claims:
            made.claim("claimed", renew=False)
        moved = made.rename("y")
        if has_claims:
            assert [claim.item for claim in moved.open_claims()] == ["claimed"]
        assert moved.exists_many([*ITEMS, "no"]) == [True] * 60 + [False]
        assert moved.add("later") is True
        assert place.other("y").exists("later")
        for old in (made, other):
            with pytest.raises(FilterLostError):
                old.exists("item 1")
        assert not keys_of(place)

    @needs("expire")
    def test_a_filter_that_expires_goes_whole(self, place):
        made = place.make(shards=2)
        made.update(ITEMS)
        assert made.ttl() is None
        made.expire(1000)
        assert 900 < made.ttl() <= 1000
        assert all(900 < place.r.ttl(key) <= 1020 for key in keys_of(place))
        made.persist()
        assert made.ttl() is None
        assert {place.r.ttl(key) for key in keys_of(place)} == {-1}
        made.expire(5000)
        made.clear()
        assert made.ttl() is None, "a clear takes an expiry back"
        for bad in (0, -1, "1", True):
            with pytest.raises(ConfigurationError, match="ttl must be"):
                made.expire(bad)

    @needs("to_memory")
    def test_a_filter_moves_to_the_memory_of_a_process_and_back(self, place):
        made = place.make()
        made.update(ITEMS[:30])
        memory = made.to_memory()
        assert memory.exists_many(ITEMS) == [True] * 30 + [False] * 30
        memory.update(ITEMS)
        assert made.exists_many(ITEMS[30:]) == [False] * 30
        made.update(memory)
        assert made.exists_many([*ITEMS, "no"]) == [True] * 60 + [False]
        with pytest.raises(ConfigurationError, match="merged only if"):
            made.update(MemoryBloomFilter(555))

    @needs("rebuild")
    def test_a_rebuilt_filter_has_other_parameters_and_all_items(self, place):
        made, other = place.make(), place.other()
        made.update(ITEMS)

        def journal():
            yield from ITEMS
            other.add("meanwhile")

        made.rebuild(journal(), capacity=50_000, late=lambda: ["meanwhile"])
        assert made.capacity == 50_000
        assert made.exists_many([*ITEMS, "meanwhile", "no"]) == [True] * 61 + [False]
        assert other.exists_many([*ITEMS, "meanwhile"]) == [True] * 61
        assert other.add("new") is True
        assert made.exists("new")
        with pytest.raises(FilterMismatchError, match="capacity"):
            place.make()
