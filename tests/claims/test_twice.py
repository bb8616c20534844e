"""When work runs twice and when it does not: rows of the guarantees page (docs/reference)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading

import pytest
import redis
from private import PrivateServer
from proxy import deliver
from servers import require_server

from bloomlock import AsyncBloomFilter, BloomFilter, ClaimState
from bloomlock.errors import ClaimError, ClaimLostError, OutcomeUnknownError

NEW, SEEN, BUSY, FAILED = ClaimState
LEASE = 30.0
DAY = 86_400


@pytest.mark.parametrize("moment", ["before the work", "before the commit", "after the commit"])
def test_a_worker_that_is_killed(clock, mine, moment):
    if not (child := os.fork()):
        with BloomFilter("pages", 1000, client=clock.url) as its:
            claim = its.claim("a", LEASE, payload="more")
            if moment != "before the work":
                redis.Redis.from_url(clock.url).rpush("worked", "child")
            if moment == "after the commit":
                claim.commit()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert not list(mine.expired()), "not before its lease is over"
    clock.go_on(31)
    for claim in mine.expired():
        with claim:
            assert (claim.item, claim.payload, claim.attempts) == ("a", "more", 2)
            clock.client.rpush("worked", "parent")
    assert (
        clock.client.lrange("worked", 0, -1)
        == {
            "before the work": [b"parent"],
            "before the commit": [b"child", b"parent"],
            "after the commit": [b"child"],
        }[moment]
    )
    assert mine.claim("a").state is SEEN


def test_what_one_shard_refuses_changes_nothing_of_what_others_committed(make, proxy):
    mine, other = make(proxy.client(), shards=4), make(shards=4)
    items = [str(number) for number in range(8)]
    made = mine.claim_many(items)
    third = proxy.seen.count("EVALSHA") + 3

    def judge(name, _number):
        is_third = name == "EVALSHA" and proxy.seen.count(name) == third
        return b"-OOM command not allowed when used memory\r\n" if is_third else "pass"

    proxy.judge = judge
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        mine.commit_many(made)
    are_done = other.exists_many(items)
    assert 0 < are_done.count(False) < len(items)
    assert [not claim.remaining for claim in made] == are_done
    # A second commit would come after the discard.
    assert other.discard_many(items) == are_done
    assert mine.commit_many(made) == [True] * len(items)
    assert other.exists_many(items) == [not was_done for was_done in are_done]


def test_a_worker_that_is_slower_than_its_lease(clock, mine, other):
    """Both work, and only a fence keeps the effect of the first out."""
    held = mine.claim("a", LEASE, renew=False)
    held.check()
    clock.go_on(31)
    taken = other.claim("a", LEASE)
    assert taken.fence > held.fence
    assert held.lost
    for end in (held.check, held.commit, held.check, held.extend):
        with pytest.raises(ClaimLostError):
            end()
    taken.check()


def test_a_commit_after_a_clear_is_refused(mine, other):
    held, again = mine.claim_many(["a", "b"])
    other.clear()
    with pytest.raises(ClaimLostError, match="cleared"):
        held.commit()
    assert mine.commit_many([again]) == [False]
    assert not other.exists("a")
    assert other.claim("a").state is NEW


@pytest.mark.parametrize("call", ["commit", "commit_many", "commit twice"])
def test_a_commit_that_is_sent_again_undoes_no_discard(make, proxy, other, call):
    """The first one was carried out, and its reply lost; the item was discarded meanwhile."""
    mine = make(proxy.url)
    with mine.claim("the server has the scripts from here on"):
        pass
    claim, second = mine.claim_many(["a", "b"])
    losses = iter(["after"])

    def lose_one(name, _number):
        verdict = next(losses, "pass") if name.startswith("EVAL") else "pass"
        if name.startswith("EVAL") and verdict == "pass":
            assert other.discard("a") is True
        return verdict

    proxy.judge = lose_one
    if call == "commit twice":
        proxy.judge = lambda name, _number: "after" if name.startswith("EVAL") else "pass"
        with pytest.raises(redis.exceptions.ConnectionError):
            claim.commit()
        proxy.judge = deliver
        assert other.discard("a") is True
    with pytest.raises(OutcomeUnknownError, match="may or may not have been committed") as caught:
        mine.commit_many([claim, second]) if call == "commit_many" else claim.commit()
    proxy.judge = deliver
    assert caught.value.results == ([None, True] if call == "commit_many" else [None])
    assert other.exists("a") is False
    assert other.claim("a").state is NEW
    with pytest.raises(OutcomeUnknownError):
        claim.commit()
    claim.abandon()


def test_fences_rise_though_claims_go_and_clocks_are_set_back(clock, mine):
    first = mine.claim("a")
    first.commit()
    clock.go_on(-3600)
    try:
        one, two = mine.claim_many(["b", "c"])
        mine.clear()
        last = mine.claim("d")
    finally:
        clock.go_on(3600)
    fences = [claim.fence for claim in (first, one, two, last)]
    assert fences == sorted(set(fences))


def test_the_client_s_clock_does_not_count(clock, mine, other):
    held = mine.claim("a", renew=False)
    clock.advance(1e6)
    assert other.claim("a").state is BUSY
    assert not list(other.expired())
    held.commit()


@pytest.mark.parametrize("granted", [None, 0, 1, 2])
def test_of_claims_at_a_time_without_a_reply_each_is_had_by_the_next_try(
    make, proxy, other, granted
):
    """Three tasks claim an item, and the server carries one request out, or none."""

    async def main():
        async with AsyncBloomFilter("pages", 1000, client=proxy.url) as mine:
            await (await mine.claim("warm")).commit()
            first, all_have_asked = len(proxy.seen), threading.Barrier(3)

            def judge(_name, number):
                if number - first < 3:
                    all_have_asked.wait(300)
                return "after" if number - first == granted else "before"

            proxy.judge = judge
            answers = await asyncio.gather(
                *(mine.claim("a") for _ in range(3)), return_exceptions=True
            )
            proxy.judge = deliver
            assert all(isinstance(answer, redis.ConnectionError) for answer in answers)
            if granted is not None:
                assert other.claim("a").state is BUSY, "the server has it"
            claims = await mine.claim_many(["a", "b"])
            assert [claim.state for claim in claims] == [NEW, NEW]
            assert (await mine.count_claims()).claimed == 3

    asyncio.run(main())


def test_a_takeover_is_remembered_for_a_day(clock, mine, other):
    late = mine.claim("late", renew=False)
    clock.go_on(61)
    other.claim("late").abandon()
    clock.go_on(DAY - 600)
    later = mine.claim("later", renew=False)
    clock.go_on(61)
    other.claim("later").abandon()
    with pytest.raises(ClaimLostError):
        late.commit()
    again = mine.claim("late", renew=False)
    clock.go_on(1000)
    assert other.claim("late").state is NEW, "a takeover forgets what is older than a day"
    for claim in (later, again):
        with pytest.raises(ClaimLostError):
            claim.commit()


@pytest.mark.parametrize("error", [ValueError("why"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_gives_the_item_back(mine, other, error):
    """Only what is a fault of the item counts as an attempt."""
    with pytest.raises(type(error)), mine.claim("a", max_attempts=3):
        raise error
    assert not mine.exists("a")
    failed = isinstance(error, ValueError)
    assert [one.error for one in mine.failed()] == ["ValueError: why"] * failed
    again = other.claim("a")
    assert (again.state, again.attempts) == (NEW, 1 + failed)


def test_a_task_that_is_cancelled_gives_the_item_back(clock):
    async def main():
        async with AsyncBloomFilter("pages", 1000, client=clock.url) as mine:
            has_begun = asyncio.Event()

            async def work():
                async with await mine.claim("a", max_attempts=3):
                    has_begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await has_begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await mine.exists("a")
            async with await mine.claim("a") as claim:
                assert (claim.state, claim.attempts) == (NEW, 1)
            assert (await mine.claim("a")).state is SEEN

    asyncio.run(main())


def test_a_child_of_fork_ends_no_claim_of_its_parent(mine):
    with mine.claim("a") as held:
        if not (child := os.fork()):
            with contextlib.suppress(BaseException):
                for end in (held.commit, held.abandon, held.extend, held.check):
                    with contextlib.suppress(ClaimError):
                        end()
                        os._exit(1)
                held.__exit__(None, None, None)
                os._exit(0)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert mine.claim("a").state is BUSY
    assert mine.claim("a").state is SEEN


def test_a_claim_whose_deadline_is_missing_is_not_reclaimed(clock, mine, other):
    held = mine.claim("a", renew=False)
    deadlines = [key for key in clock.client.scan_iter() if clock.client.type(key) == b"zset"]
    assert clock.client.delete(*deadlines) == 1
    assert other.claim("a", LEASE).state is BUSY
    assert other.drop_failed(["a"]) == [False]
    assert not list(other.expired())
    held.commit()
    assert other.claim("a").state is SEEN


def test_a_server_that_goes_back_to_an_earlier_state(clock, mine):
    """As after a failover to a replica that had not received the commit."""
    claim = mine.claim("a", renew=False)
    earlier = {key: clock.client.dump(key) for key in clock.client.scan_iter()}
    claim.commit()
    for key, data in earlier.items():
        clock.client.restore(key, 0, data, replace=True)
    assert mine.claim("a").state is BUSY
    clock.go_on(61)
    assert [taken.item for taken in mine.expired()] == ["a"]


def test_the_server_restarts():
    """What was claimed is claimed still, and what was committed is in the filter."""
    config = {"appendonly": True, "appendfsync": "always"}
    with (
        PrivateServer(binary=require_server("valkey"), config=config) as server,
        BloomFilter("pages", 1000, client=server.url) as mine,
    ):
        held, left = mine.claim_many(["held", "left"], ttl=600)
        mine.claim("done").commit()
        server.kill()
        server.start()
        states = [claim.state for claim in mine.claim_many(["done", "held", "left"])]
        assert states == [SEEN, BUSY, BUSY]
        held.commit()
        left.abandon()
        again = mine.claim("left")
        assert again.state is NEW
        assert again.fence > held.fence


def test_another_spelling_is_another_item(mine):
    states = [claim.state for claim in mine.claim_many(["a", b"a", "A", "a "])]
    assert states == [NEW, BUSY, NEW, NEW]
