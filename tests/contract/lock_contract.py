"""What every lock promises, whatever its kind, its server and its client."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import redis
from contract.lock_backends import TTL
from people import is_lost
from proxy import Proxy
from servers import wait_until

from bloomlock.errors import (
    ConfigurationError,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    QuorumError,
)
from bloomlock.locks.protocol import waiting

if TYPE_CHECKING:
    from concurrent.futures import Future

    from contract.lock_backends import World
    from people import Person

MOMENT = 0.02
"""Seconds that a caller waits for what does not come."""


def kinds(events: list[Any]) -> list[str]:
    return [event.kind for event in list(events)]


class LockContract:
    """Inherit it, and give a fixture `world`."""

    @pytest.fixture
    def ann(self, world: World) -> Person:
        return world.person()

    @pytest.fixture
    def bob(self, world: World) -> Person:
        return world.person()

    def wait_in_queue(
        self, world: World, person: Person, lock: Any, place: int = 1, **options: Any
    ) -> Future[Any]:
        """Let somebody wait for a lock that is held; returns when he stands in the queue."""
        future = person.start(lock.acquire, **options)
        if world.backend.refuses("queue") is None:
            wait_until(lambda: world.waiting(lock) == place)
        return future

    # -- one holder at a time --------------------------------------------------------------------

    def test_one_holder_at_a_time(self, world, ann, bob):
        lock, rival = world.lock(), world.rival()
        assert ann(lock.locked) is False
        assert ann(lock.owned) is False
        assert ann(lock.acquire) is True
        assert ann(lock.owned) is True
        assert (bob(rival.owned), bob(rival.locked)) == (False, True)
        for refused in (
            {"blocking": False},
            {"timeout": 0},
            {"timeout": MOMENT},
            {"blocking_timeout": MOMENT},
        ):
            assert bob(rival.acquire, **refused) is False
        assert ann(lock.release) is None
        world.wait_until_free(lock)
        assert bob(rival.acquire, timeout=TTL) is True
        assert ann(lock.acquire, blocking=False) is False
        bob(rival.release)
        world.wait_until_free(lock)

    def test_a_lock_object_is_of_one_thread_or_task(self, world, ann, bob):
        lock = world.lock()
        with pytest.raises(LockNotOwnedError, match="'job' is not held by this thread or task"):
            ann(lock.release)
        ann(lock.acquire)
        wait_until(lambda: all(world.held(lock)))
        held = world.held(lock)
        for method in (lock.release, lock.check, lock.extend, lock.reacquire):
            with pytest.raises(LockNotOwnedError):
                bob(method)
        assert bob(lambda: (lock.token, lock.fence, lock.remaining())) == (None, None, 0.0)
        assert bob(is_lost, lock) is False
        assert bob(lock.owned) is False
        assert world.held(lock) == held
        ann(lock.check)
        ann(lock.release)
        with pytest.raises(LockNotOwnedError):
            ann(lock.release)

    def test_who_holds_it_counts_or_is_told_that_he_would_wait_for_himself(self, world, ann, bob):
        lock, rival = world.lock(), world.rival()
        ann(lock.acquire)
        token, fence = ann(lambda: (lock.token, lock.fence))
        if (sentence := world.backend.refuses("again")) is not None:
            for wait in ({}, {"timeout": TTL}):
                with pytest.raises(LockError, match=sentence):
                    ann(lock.acquire, **wait)
            assert ann(lock.acquire, blocking=False) is False
        else:
            assert ann(lock.acquire) is True
            assert ann(lock.acquire, blocking=False) is True
            assert ann(lambda: (lock.token, lock.fence)) == (token, fence)
            ann(lock.release)
            ann(lock.release)
        assert ann(lock.owned) is True
        assert bob(rival.acquire, blocking=False) is False
        ann(lock.release)
        world.wait_until_free(lock)

    def test_other_readers_share_it_and_nobody_else(self, world, ann, bob):
        lock, other, rival = world.lock(), world.lock(), world.rival()
        ann(lock.acquire)
        if world.backend.refuses("share") is not None:
            assert bob(other.acquire, blocking=False) is False
            ann(lock.release)
            return
        assert bob(other.acquire, blocking=False) is True
        assert ann(lambda: lock.token) != bob(lambda: other.token)
        assert ann(lambda: lock.fence) < bob(lambda: other.fence)
        ann(lock.release)
        # The lease of one is not that of the other.
        bob(other.check)
        assert bob(other.owned) is True
        assert ann(lock.owned) is False
        assert ann(rival.acquire, blocking=False) is False
        bob(other.release)
        assert world.is_free(lock)

    def test_without_thread_local_anybody_may_release_it(self, world, ann, bob):
        if (sentence := world.backend.refuses("any owner")) is not None:
            with pytest.raises(ConfigurationError, match=sentence):
                world.lock(thread_local=False)
            return
        lock = world.lock(thread_local=False)
        ann(lock.acquire)
        assert bob(lock.owned) is True
        assert bob(lambda: lock.token) == ann(lambda: lock.token)
        bob(lock.release)
        assert ann(lambda: lock.token) is None
        world.wait_until_free(lock)

    # -- with ------------------------------------------------------------------------------------

    def test_with(self, world, ann):
        lock = world.lock()
        assert ann.enter(lock) is lock
        assert ann(lock.owned) is True
        assert not ann.leave(lock)
        world.wait_until_free(lock)
        ann.enter(lock)
        assert not ann.leave(lock, KeyError("it passes through"))
        world.wait_until_free(lock)

    def test_a_with_that_is_not_obtained_says_why(self, world, ann, bob):
        rival = world.rival()
        bob(rival.acquire)
        for options, why in (
            ({"blocking_timeout": MOMENT}, "'job' was not obtained within 0.02 s"),
            ({"blocking": False}, "'job' is held by another client"),
        ):
            lock = world.lock(**options)
            with pytest.raises(LockTimeoutError, match=why):
                ann.enter(lock)
            assert ann(lock.acquire) is False
        bob(rival.release)
        world.wait_until_free(rival)

    def test_leaving_a_with_whose_lock_was_lost(self, world, ann):
        loud = world.lock()
        ann.enter(loud)
        world.wipe(loud)
        with pytest.raises(LockLostError, match="'job' was lost: its key was gone when it was re"):
            ann.leave(loud)
        ann.enter(loud)
        world.wipe(loud)
        error = KeyError("the body's own")
        assert not ann.leave(loud, error)
        assert "its key was gone" in error.__notes__[0]

    # -- waiting ---------------------------------------------------------------------------------

    def test_a_release_hands_it_to_the_next_waiter(self, world, ann, bob):
        rival, lock = world.rival(), world.lock()
        ann(rival.acquire)
        waiting = self.wait_in_queue(world, bob, lock)
        sent = [server.info("stats")["total_commands_processed"] for server in world.servers]
        ann(rival.release)
        granted = world.holders(lock)
        assert waiting.result(TTL) is True
        bob(lock.check)
        if world.backend.refuses("queue") is None:
            # The release has granted it.
            assert granted == {bob(lambda: lock.token)}
            assert world.waiting(lock) == 0
            # The grant is pushed: a poller asks again and again, and a newcomer may be first.
            now = world.servers[0].info("stats")["total_commands_processed"]
            assert now - sent[0] < 40
        bob(lock.release)
        world.wait_until_free(lock)

    def test_it_is_granted_in_the_order_of_asking(self, world, ann):
        holder, order, waiting = world.rival(), [], []
        ann(holder.acquire)
        if world.backend.refuses("order") is not None:
            ann(holder.release)
            return
        locks = [world.rival() for _ in range(4)]
        people = [world.person() for _ in locks]
        for number, (person, lock) in enumerate(zip(people, locks, strict=True)):
            future = self.wait_in_queue(world, person, lock, number + 1)
            future.add_done_callback(lambda _, number=number: order.append(number))
            waiting.append(future)
        ann(holder.release)
        for person, lock, future in zip(people, locks, waiting, strict=True):
            assert future.result(TTL) is True
            person(lock.release)
        assert order == [0, 1, 2, 3]
        assert world.is_free(holder)

    def test_who_shares_it_goes_together_and_after_who_waited_first(
        self, world, ann, bob, monkeypatch
    ):
        monkeypatch.setattr(waiting, "SLICE_MS", 50)
        if world.backend.refuses("share") is not None:
            return
        first, writer, second, third = world.lock(), world.rival(), world.lock(), world.lock()
        ann(first.acquire)
        writing = self.wait_in_queue(world, bob, writer)
        people = [world.person(), world.person()]
        readings = [
            self.wait_in_queue(world, person, lock, number + 2)
            for number, (person, lock) in enumerate(zip(people, (second, third), strict=True))
        ]
        assert world.person()(world.lock().acquire, blocking=False) is False
        ann(first.release)
        assert writing.result(TTL) is True
        assert not any(reading.done() for reading in readings)
        bob(writer.release)
        assert [reading.result(TTL) for reading in readings] == [True, True]
        for person, lock in zip(people, (second, third), strict=True):
            person(lock.check)
            person(lock.release)
        assert world.is_free(first)

    def test_a_time_out_leaves_no_place_in_the_queue(self, world, ann, bob):
        rival, lock = world.rival(), world.lock()
        ann(rival.acquire)
        # A Redlock has it with the majority, and the grant of another server may be on its way.
        wait_until(lambda: all(world.held(lock)))
        held = world.held(lock)
        assert bob(lock.acquire, timeout=5 * MOMENT) is False
        assert world.waiting(lock) == 0
        assert not world.servers[0].exists(f"{lock.key}:alive")
        assert world.held(lock) == held
        ann(rival.release)
        world.wait_until_free(lock)

    def test_a_waiter_gets_it_when_the_lease_of_its_holder_ends(self, world, ann, bob, monkeypatch):
        monkeypatch.setattr(waiting, "SLICE_MS", 50)
        rival, lock = world.rival(renew=False), world.lock()
        ann(rival.acquire)
        future = self.wait_in_queue(world, bob, lock)
        world.wipe(lock)
        assert future.result(TTL) is True
        bob(lock.release)

    def test_a_waiter_that_died_is_passed_by(self, world, ann, bob, clock):
        if world.backend.refuses("queue") is not None:
            return
        holder, second, dead = world.rival(), world.lock(), world.person()
        server = world.servers[0]
        ann(holder.acquire)
        with Proxy(world.urls[0]) as proxy:
            lost = self.wait_in_queue(world, dead, world.lock(urls=[proxy.url]))
            [channel] = server.pubsub_channels()
            future = self.wait_in_queue(world, bob, second, 2)
        # The network is gone with the proxy, and the server has noticed.
        wait_until(lambda: not server.pubsub_numsub(channel)[0][1])
        ann(holder.release)
        granted = world.holders(second)
        assert future.result(TTL) is True
        assert granted == {bob(lambda: second.token)}
        bob(second.release)
        # Who is cut off gives up when the server was away for longer than the lease.
        clock.advance(2 * TTL)
        with pytest.raises(redis.ConnectionError):
            lost.result(TTL)

    # -- losing ----------------------------------------------------------------------------------

    def test_a_loss_is_reported(self, world, ann, clock):
        told, events = [], []
        lock = world.lock(on_lost=told.append, observer=events.append)
        ann(lock.acquire)
        lost = ann(lambda: lock.lost)
        world.wipe(lock)
        ann(lock.check)  # which sends nothing, so it does not know yet
        clock.advance(TTL / 3)
        wait_until(lost.is_set)
        assert ann(lock.remaining) == 0.0
        for method in (lock.check, lock.extend, lock.release):
            with pytest.raises(LockLostError, match="'job' was lost: its key was gone when it was"):
                ann(method)
        with pytest.raises(LockNotOwnedError):
            ann(lock.check)
        wait_until(lambda: told == [lock])
        wait_until(lambda: kinds(events) == ["acquired", "lost"])
        assert "gone" in events[-1].error
        assert events[-1].fence == events[0].fence
        ann(lock.acquire)
        assert ann(is_lost, lock) is False
        ann(lock.release)

    @pytest.mark.parametrize("options", [{"renew": False}, {"max_hold": 2 * TTL}])
    def test_a_lease_that_is_over_is_a_loss_by_the_holders_own_clock(
        self, world, ann, clock, options
    ):
        told = []
        lock = world.lock(on_lost=told.append, **options)
        ann(lock.acquire)
        lost = ann(lambda: lock.lost)
        assert 0.98 * TTL < ann(lock.remaining) + 1 < TTL + 1
        clock.advance(2 * TTL)
        with pytest.raises(LockLostError, match="its lease ran out before it could be renewed"):
            ann(lock.check)
        assert lost.is_set()
        wait_until(lambda: told == [lock])
        with pytest.raises(LockLostError, match="its lease ran out"):
            ann(lock.release)

    def test_it_promises_less_than_the_server_keeps(self, world, ann):
        lock = world.lock(renew=False)
        ann(lock.acquire)
        for step in (lambda: None, lambda: ann(lock.extend)):
            step()
            kept = min(server.pttl(lock.key) for server in world.servers if server.get(lock.key))
            # A clock may be 1 % too fast or slow.
            assert 0 < ann(lock.remaining) < kept / 1000 - 0.009 * TTL
        ann(lock.release)

    def test_a_release_that_is_late_takes_nothing_from_the_next_holder(self, world, ann, bob):
        lock, rival, third = world.lock(renew=False), world.rival(renew=False), world.person()
        ann(lock.acquire)
        world.wipe(lock)
        bob(rival.acquire)
        wait_until(lambda: all(world.held(lock)))
        held = world.held(lock)
        # Also where somebody waits, to whom a release would hand it on.
        waiting = self.wait_in_queue(world, third, world.lock())
        with pytest.raises(LockLostError):
            ann(lock.release)
        assert world.held(lock) == held
        bob(rival.extend)
        assert not waiting.done()
        bob(rival.release)
        assert waiting.result(TTL) is True

    def test_it_is_renewed_until_it_is_released(self, world, ann, clock):
        events = []
        lock = world.lock(observer=events.append)
        ann(lock.acquire)
        for count in (1, 2, 3, 4):
            for server in world.servers:
                server.pexpire(lock.key, 30_000)
            clock.advance(0.4 * TTL)
            wait_until(lambda count=count: kinds(events).count("renewed") >= count)
            wait_until(lambda: all(s.pttl(lock.key) > 40_000 for s in world.servers))
            ann(lock.check)
        ann(lock.release)
        wait_until(lambda: kinds(events)[-1] == "released")
        clock.advance(TTL)
        world.wait_until_free(lock)
        assert set(kinds(events)) == {"acquired", "renewed", "released"}

    def test_who_holds_it_and_ends_has_lost_it(self, world, ann, clock, caplog):
        told = []
        lock = world.lock(on_lost=told.append)
        ann(lock.acquire)
        ann.end()
        world._people.remove(ann)
        clock.advance(TTL / 3)
        wait_until(lambda: told == [lock])
        wait_until(lambda: "was lost: the thread or task that held it has ended" in caplog.text)
        # Left to expire: the work may go on elsewhere. A Redlock has it with any majority.
        assert any(server.exists(lock.key) for server in world.servers)

    def test_extend_is_a_new_lease_from_now_on(self, world, ann, clock):
        lock = world.lock(longest_ttl=0) if world.backend.kind == "Redlock" else world.lock()
        ann(lock.acquire)
        for ttl, at_server in ((2 * TTL, 2 * TTL), (TTL / 2, 2 * TTL), (3 * TTL, 3 * TTL)):
            assert ann(lock.extend, ttl) is True
            assert 0.9 * ttl < ann(lock.remaining) < ttl
            wait_until(
                lambda at_server=at_server: all(
                    0.9 * at_server < server.pttl(lock.key) / 1000 <= at_server
                    for server in world.servers
                )
            )
        assert ann(lock.reacquire) is True
        clock.advance(TTL)
        ann(lock.check)
        ann(lock.release)

    def test_no_renewal_and_no_extension_goes_beyond_max_hold(self, world, ann):
        lock = world.lock(max_hold=1.5 * TTL)
        ann(lock.acquire)
        ann(lock.extend, 10 * TTL)
        assert TTL < ann(lock.remaining) <= 1.5 * TTL
        assert all(server.pttl(lock.key) <= 1500 * TTL for server in world.servers)
        ann(lock.release)

    # -- the network and the server --------------------------------------------------------------

    @pytest.mark.parametrize("verdict", ["before", "after"])
    def test_a_lost_reply_leaves_nothing_behind(self, world, ann, bob, verdict):
        proxies = world.proxies()
        lock, rival = world.lock(urls=[proxy.url for proxy in proxies]), world.rival()
        ann(lock.acquire)
        ann(lock.release)  # from now on the server has the scripts
        for step in ("acquire", "extend", "release"):
            for at in range(2):
                ann(lock.acquire) if step != "acquire" else None
                for proxy in proxies:
                    only = len(proxy.seen) + at
                    proxy.judge = lambda _, number, only=only: verdict if number == only else "pass"
                assert ann(getattr(lock, step)) in {True, None}
                for proxy in proxies:
                    proxy.judge = lambda _name, _number: "pass"
                if step != "release":
                    ann(lock.check)
                    assert ann(lock.owned) is True
                    assert bob(rival.acquire, blocking=False) is False
                    ann(lock.release)
                world.wait_until_free(lock)
        assert any(proxy.lost for proxy in proxies)

    def test_an_error_of_the_server_means_that_it_is_not_held(self, world, ann):
        lock = world.lock()
        try:
            for server in world.servers:
                server.replicaof("127.0.0.1", "1")
            for how in ({"blocking": False}, {"timeout": MOMENT}):
                with pytest.raises((redis.ResponseError, QuorumError), match="(?i)read.?only"):
                    ann(lock.acquire, **how)
        finally:
            for server in world.servers:
                server.replicaof("no", "one")
        assert ann(lambda: lock.token) is None
        world.wait_until_free(lock)
        assert ann(lock.acquire, timeout=TTL) is True
        ann(lock.release)

    def test_a_release_that_does_not_arrive_is_an_error_and_in_a_with_a_warning(
        self, world, ann, caplog
    ):
        proxies = world.proxies()
        lock = world.lock(urls=[proxy.url for proxy in proxies])
        for leave in (ann.leave, lambda lock: ann(lock.release)):
            ann.enter(lock)
            for proxy in proxies:
                proxy.judge = lambda _name, _number: "before"
            if leave == ann.leave:
                leave(lock)
                wait_until(
                    lambda: "lock 'job' was not released and is left to expire" in caplog.text
                )
            else:
                with pytest.raises((redis.RedisError, QuorumError)):
                    leave(lock)
            for proxy in proxies:
                proxy.judge = lambda _name, _number: "pass"
            assert ann(lambda: lock.token) is None
            world.wipe(lock)

    # -- what it tells ---------------------------------------------------------------------------

    def test_the_fence_rises_whatever_becomes_of_the_key(self, world, ann, bob):
        lock, rival, fences = world.lock(), world.rival(), []
        if world.backend.refuses("fence") is not None:
            ann(lock.acquire)
            assert ann(lambda: lock.fence) is None
            ann(lock.release)
            return
        for number in range(12):
            person, one = ((ann, lock), (bob, rival))[number % 2]
            person(one.acquire)
            fences.append(person(lambda one=one: one.fence))
            if number % 3 == 0:
                world.wipe(lock)
                with pytest.raises(LockLostError):
                    person(one.release)
            else:
                person(one.extend)
                assert person(lambda one=one: one.fence) == fences[-1]
                person(one.release)
        assert fences == sorted(set(fences))
        [key] = world.servers[0].keys()
        assert 0 < world.servers[0].pttl(key) <= 2000 * TTL

    def test_an_observer_is_told_of_each_thing_once(self, world, ann, bob):
        events, rival = [], world.rival()
        lock = world.lock(observer=events.append)
        for _ in range(2):
            ann(lock.acquire)
            ann(lock.release)
            bob(rival.acquire, timeout=TTL)
            assert ann(lock.acquire, timeout=MOMENT) is False
            bob(rival.release)
            world.wait_until_free(lock)
        assert kinds(events) == ["acquired", "released", "timeout"] * 2
        assert {event.name for event in events} == {"job"}
        assert events[0].fence == events[1].fence
        assert events[2].fence is None
        assert events[2].seconds >= MOMENT
        assert not any(event.error for event in events)

    def test_it_says_what_it_knows_without_asking(self, world, ann):
        lock = world.lock()
        kind = type(lock).__name__
        assert ann(repr, lock) == f"<{kind} 'job': not held here>"
        ann(lock.acquire)
        world.wipe(lock)
        assert ann(repr, lock) == f"<{kind} 'job': held>"
        with pytest.raises(LockLostError):
            ann(lock.extend)
        assert "lost: its key was gone when it was extended" in ann(repr, lock)
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            pickle.dumps(lock)

    def test_a_closed_object_can_be_used_again(self, world, ann):
        lock = world.lock()
        for _ in range(2):
            ann(lock.acquire)
            ann(lock.release)
            ann(lock.close)
        world.wait_until_free(lock)
