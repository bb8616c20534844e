"""What claims take on the server follows the open ones, whatever came before."""

from __future__ import annotations

import pytest
from claim_tools import let_expire

from bloomlock import BloomFilter

BATCH = 1000


def kept(r):
    """Return what the keys of claims take, by key; all but the bitmap."""
    return {
        key: r.memory_usage(key, samples=0) for key in r.scan_iter() if not key.endswith(b":bits")
    }


def live(pages, r, batches, name="live"):
    """Let items be claimed and committed, a few of them given back or left to expire."""
    for number in range(batches):
        made = pages.claim_many([f"{name} {number}.{item}" for item in range(BATCH)], ttl=600)
        pages.abandon_many(made[:5], "why")
        pages.commit_many(made[10:])
        if number % 10 == 0:
            let_expire(r)
            for claim in pages.expired():
                claim.commit()


@pytest.mark.parametrize(
    "batches", [20, pytest.param(1000, marks=pytest.mark.long)], ids=["20,000", "a million"]
)
def test_what_is_over_leaves_nothing(r, valkey, batches):
    with BloomFilter("pages", BATCH * batches, client=valkey, error_rate=1e-9) as pages:
        live(pages, r, 1, "first")
        let_expire(r)
        for claim in pages.expired():
            claim.commit()
        before = kept(r)
        live(pages, r, batches)
        let_expire(r)
        for claim in pages.expired():
            claim.commit()
        after = kept(r)
        counts = pages.info().claims
    print(before, after, counts)
    assert (counts.open, counts.failed_items) == (0, 0)
    assert counts.claimed == counts.committed + counts.failed + counts.expired
    # Which claims were taken over is remembered for a day, and nothing else.
    lost = {key for key in after if key.endswith(b":lost")}
    assert after.keys() - lost == before.keys() - lost
    assert all(after[key] <= before[key] + 32 for key in after.keys() - lost)
    assert sum(r.zcard(key) for key in lost) == counts.expired
