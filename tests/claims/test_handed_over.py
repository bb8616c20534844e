"""Items that a worker gives back with their payloads, and that the next worker is given at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from claim_tools import let_expire

from bloomlock import AsyncBloomFilter, BloomFilter, ClaimState, ConfigurationError

NEW, SEEN, BUSY, FAILED = ClaimState
LONG = 600.0


class MadeWhenRead(Sequence):
    """Payloads that note which of them were read."""

    def __init__(self, number):
        self.number, self.read = number, []

    def __len__(self):
        return self.number

    def __getitem__(self, position):
        self.read.append(position)
        return b"%d" % position


def pages(url, **options):
    return BloomFilter("pages", 1000, client=url, **options)


def test_each_of_a_batch_has_its_payload(r, valkey):
    items = [f"item {number}" for number in range(150)]
    payloads = [None if number % 3 == 0 else f"payload {number}" for number in range(150)]
    payloads[1] = b"\xff"
    with pages(valkey, shards=3) as mine, pages(valkey, shards=3) as other:
        mine.claim_many(items, renew=False, payloads=payloads)
        assert [claim.payload for claim in other.claim_many(items, payloads=["other"] * 150)] == (
            payloads
        ), "BUSY: that of the claim there is"
        let_expire(r)
        taken = {claim.item: claim.payload for claim in other.expired()}
        assert taken == dict(zip(items, payloads, strict=True))


def test_payloads_of_items_that_are_near_are_not_read(r, valkey):
    with pages(valkey, near_cache=100, max_staleness=LONG) as mine:
        mine.commit_many(mine.claim_many(["a", "c"]))
        payloads = MadeWhenRead(4)
        made = mine.claim_many(["a", "b", "c", "d"], payloads=payloads)
        assert [claim.state for claim in made] == [SEEN, NEW, SEEN, NEW]
        assert payloads.read == [1, 3]


def test_what_is_handed_over_is_offered_at_once_and_once(r, valkey):
    items = [f"item {number}" for number in range(100)]
    with pages(valkey, shards=3) as mine, pages(valkey, shards=3) as other:
        made = mine.claim_many(items, ttl=LONG, payloads=items)
        mine.commit_many(made[:20])
        mine.abandon_many(made[20:40])
        assert not list(other.expired()), "given back, but not offered"
        mine.abandon_many(made[40:], offer=True)
        mine.abandon_many(made[40:], offer=True)  # repeating it is harmless
        taken = list(other.expired(ttl=LONG))
        assert {claim.item: claim.payload for claim in taken} == {item: item for item in items[40:]}
        assert {claim.attempts for claim in taken} == {1}, "an attempt without an error is none"
        assert not list(mine.expired())
        assert mine.count_claims() == mine.info().claims
        assert (mine.count_claims().open, mine.count_claims().abandoned) == (60, 80)
        taken[0].abandon(offer=True)
        assert [claim.item for claim in mine.expired()] == [taken[0].item], "not after its lease"


def test_what_failed_too_often_is_not_offered(r, valkey):
    with pages(valkey) as mine:
        mine.claim("a", max_attempts=2).abandon("why", offer=True)
        [again] = mine.expired()
        again.abandon("why", offer=True)
        assert not list(mine.expired())
        assert mine.claim("a").state is FAILED


def test_what_expired_gave_is_not_offered_again_on_request(r, valkey):
    with pages(valkey) as mine:
        mine.claim("a", payload="1", max_attempts=9).abandon(offer=True)
        [taken] = mine.expired()
        taken.abandon("why", offer=False)
        assert [(one.item, one.payload, one.error) for one in mine.failed()] == [("a", "1", "why")]
        assert mine.count_claims().open == 0
        let_expire(r)
        assert not list(mine.expired())
        assert mine.claim("a").attempts == 2


def test_asyncio(r, valkey):
    async def work():
        async with AsyncBloomFilter("pages", 1000, client=valkey) as mine:
            one, two = await mine.claim_many(["a", "b"], payloads=["1", None])
            await one.abandon(offer=True)
            await mine.abandon_many([two], offer=True)
            taken = {claim.item: claim.payload async for claim in mine.expired()}
            assert taken == {"a": "1", "b": None}
            assert (await mine.count_claims()).open == 2

    asyncio.run(work())


@pytest.mark.parametrize(
    ("payloads", "sentence"),
    [
        (["one"], "payloads must be one for each item, not 1 for 2 items"),
        (["one", 2], "payload must be str, bytes or None, not int"),
    ],
)
def test_bad_payloads(r, valkey, payloads, sentence):
    with pages(valkey) as mine:
        with pytest.raises(ConfigurationError, match=sentence):
            mine.claim_many(["a", "b"], payloads=payloads)
        with pytest.raises(ConfigurationError, match="offer must be True or False"):
            mine.claim("a").abandon(offer=2)
        assert mine.count_claims().claimed == 1
