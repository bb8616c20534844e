"""Claims whose answer did not arrive: what the next try of the same process finds."""

from __future__ import annotations

import pytest
import redis
from claim_tools import let_expire

from bloomlock import BloomFilter, ClaimState

NEW, SEEN, BUSY = ClaimState.NEW, ClaimState.SEEN, ClaimState.BUSY
LONG = 600.0
SHAPES = {"bitmap": {}, "window": {"window": 86_400}, "grows": {"on_full": "grow"}}


@pytest.fixture(params=SHAPES)
def mine(request, r, proxy):
    """A filter of which "a" was claimed with a payload, and the answer was lost."""
    with BloomFilter("pages", 1000, client=proxy.url, **SHAPES[request.param]) as made:
        made.claim("warm").commit()
        proxy.judge = lambda *_: "after"
        with pytest.raises(redis.ConnectionError):
            made.claim("a", LONG, payload="first", renew=False)
        proxy.judge = lambda *_: "pass"
        assert made.count_claims().open == 1
        yield made


def test_an_item_that_was_added_since_is_seen(mine):
    assert mine.add("a") is True
    assert mine.claim("a", LONG).state is SEEN


def test_an_item_that_was_added_since_is_not_offered(r, mine):
    assert mine.add("a") is True
    let_expire(r)
    assert list(mine.expired()) == []
    counts = mine.count_claims()
    assert (counts.open, counts.claimed, counts.committed, counts.expired) == (0, 2, 1, 1)


def test_the_payload_is_that_of_the_try_that_was_answered(r, mine):
    assert mine.claim("a", LONG, payload="second", renew=False).state is NEW
    assert mine.claim("a", payload="third").payload == "second"
    let_expire(r)
    [claim] = mine.expired()
    assert (claim.payload, claim.attempts) == ("second", 2)


def test_what_expired_gives_keeps_its_payload(r, proxy, mine):
    let_expire(r)
    proxy.judge = lambda name, _: "after" if name.startswith("EVAL") else "pass"
    with pytest.raises(redis.ConnectionError):
        list(mine.expired(LONG, renew=False))
    proxy.judge = lambda *_: "pass"
    let_expire(r)
    [claim] = mine.expired()
    assert claim.payload == "first"
