"""Leases are renewed while the worker lives, all of a process together, and no longer."""

from __future__ import annotations

import asyncio
import gc
import re
import threading

import pytest
from claim_tools import script_calls
from servers import wait_until

from bloomlock import AsyncBloomFilter, ClaimState
from bloomlock.errors import ClaimLostError

NEW, SEEN, BUSY, FAILED = ClaimState
LEASE = 30.0


def ends_in(found):
    """Return the seconds that are left of the lease that ends first."""
    return min(claim.remaining for claim in found.open_claims())


def let_be_renewed(clock, found, held, lease=LEASE):
    """Let half of a lease pass, until all that is open is renewed, and its workers know it."""
    clock.go_on(int(lease / 2))
    wait_until(lambda: ends_in(found) > lease - 1)
    wait_until(lambda: min(one.remaining for one in held) > lease * 0.8)


def test_work_may_take_longer_than_the_lease(clock, mine, other):
    with mine.claim("a", LEASE) as held:
        for _ in range(3):
            let_be_renewed(clock, other, [held])
        held.check()
        assert other.claim("a").state is BUSY
        assert not list(other.expired())
    assert other.claim("a").state is SEEN


def test_asyncio(clock, other):
    async def main():
        async with (
            AsyncBloomFilter("pages", 1000, client=clock.url) as mine,
            await mine.claim("a", LEASE) as held,
        ):
            for _ in range(3):
                await asyncio.to_thread(let_be_renewed, clock, other, [held])
            held.check()
            assert other.claim("a").state is BUSY

    asyncio.run(main())
    assert other.claim("a").state is SEEN


def test_a_batch_may_wait_longer_than_its_lease(clock, make, proxy):
    """As items of a queue do that a worker fetches ahead; one script renews all of a shard."""
    mine, other = make(proxy.url, shards=4), make(shards=4)
    made = mine.claim_many([f"item {number}" for number in range(50)], LEASE)
    made[0].extend()  # now the server knows the script
    before = len(proxy.seen)
    let_be_renewed(clock, other, made)
    assert proxy.seen[before:] == ["EVALSHA"] * 4
    let_be_renewed(clock, other, made)
    assert not list(other.expired())
    assert mine.commit_many(made) == [True] * 50


def test_a_lease_that_was_extended_is_renewed_as_long(clock, mine, other):
    with mine.claim("a", LEASE) as held:
        held.extend(240.0)
        assert 200 < held.remaining <= 240
        let_be_renewed(clock, other, [held], 240)
        held.extend()
        assert ends_in(other) > 239


def test_a_renewal_after_the_loss_makes_no_claim(clock, mine, other):
    held = mine.claim("a", LEASE)
    other.clear()
    clock.go_on(15)
    wait_until(lambda: held.lost)
    with pytest.raises(ClaimLostError):
        held.check()
    assert not other.open_claims()


def test_who_closes_ends_no_claim_of_others(clock, make):
    """What is open is left to expire, and is not renewed; others' claims are."""
    one, two = make(), make()
    held, left = one.claim("a", LEASE), two.claim("b", LEASE)
    two.close()
    del left
    gc.collect()
    for _ in range(3):
        clock.go_on(15)
        wait_until(lambda: one.claim("a").remaining > LEASE - 1)
        wait_until(lambda: held.remaining > LEASE * 0.8)
    held.check()
    assert [claim.item for claim in make().expired()] == ["b"]


def test_claims_that_are_thrown_away_are_reported_together(clock, mine, caplog):
    mine.claim_many(map(str, range(50)), LEASE)
    gc.collect()
    clock.go_on(15)
    counts = lambda: re.findall(r"a claim and (\d+) more were dropped", caplog.text)  # noqa: E731
    # Those of an earlier test may be among them, and the watchdog may look in between.
    wait_until(lambda: sum(1 + int(more) for more in counts()) >= 49)
    assert len(counts()) < 10
    clock.go_on(31)
    assert mine.claim("7").state is NEW


@pytest.mark.parametrize("face", ["threads", "asyncio"])
@pytest.mark.parametrize(("end", "state"), [("commit", SEEN), ("abandon", NEW)])
def test_one_waits_for_the_outcome(clock, make, face, end, state):
    held, mine, answers = make().claim("a", 10_000.0), make(), []

    def wait():
        answers.append(mine.claim("a", wait=10_000.0).state)

    async def wait_in_a_task():
        async with AsyncBloomFilter("pages", 1000, client=clock.url) as its:
            answers.append((await its.claim("a", wait=10_000.0)).state)

    act = wait if face == "threads" else lambda: asyncio.run(wait_in_a_task())
    thread = threading.Thread(target=act)
    before = script_calls(clock.client)
    thread.start()
    wait_until(lambda: script_calls(clock.client) > before + 1)
    getattr(held, end)()
    thread.join()
    assert answers == [state]


def test_one_waits_no_longer_than_it_wants(mine, other):
    held = other.claim("a", renew=False)
    assert mine.claim("a", wait=0.05).state is BUSY
    held.check()
