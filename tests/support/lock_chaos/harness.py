"""Runs workers against a server, hurts them, and judges the history they wrote."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import redis

from bloomlock.keys import LockKeys
from lock_chaos import history
from lock_chaos.hand import PATIENCE, Hand
from lock_chaos.history import Hold, Violation, Wipe
from lock_chaos.locks import NAME
from lock_chaos.register import Register
from lock_chaos.worker import Config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bloomlock.server import PrivateServer
    from lock_chaos.forks import ForkServer

KEYS = LockKeys.of(NAME)
NO_SCRIPTS = {"user": ["default", "on", "nopass", "~*", "&*", "+@all", "-eval", "-evalsha"]}
"""Configuration of a server that runs no scripts."""
DISTURBED = 300.0
"""Seconds in which workers are done though each wipe of a busy server costs them what they did."""
SLICE = 2.0
"""Seconds by which a grant to a waiter outlives its lease."""


class Chaos:
    """One run of several workers around one lock.

    Args:
        forks: What starts them.
        url: The server, as the run itself sees it.
        directory: Of the run's files.
        ttl: Lease of all locks in seconds.
        seed: Of all choices.
    """

    def __init__(self, forks: ForkServer, url: str, directory: Path, ttl: float, seed: int) -> None:
        self._forks = forks
        self.url = url
        self._directory = directory
        self.ttl = ttl
        self.longest_lease = ttl + SLICE
        self.seed = seed
        self.random = random.Random(seed)
        self.register = Register(str(directory / "register"))
        self.hands: list[Hand] = []
        self.wipes: list[Wipe] = []
        self.server = redis.Redis.from_url(url)

    def __enter__(self) -> Self:
        self.server.flushall()
        self.server.script_flush()
        return self

    def __exit__(self, *_: object) -> None:
        for hand in self.hands:
            if not hand.gone:
                hand.kill()
        self.server.close()

    def worker(self, *kinds: str, url: str | None = None, **options: Any) -> Hand:
        """Start a worker with locks of these kinds, all of one name."""
        number = len(self.hands)
        config = Config(
            worker=number,
            kinds=list(kinds),
            url=url or self.url,
            ttl=self.ttl,
            seed=self.random.randrange(2**32),
            log=str(self._directory / f"events-{number}"),
            register=str(self._directory / "register"),
            options=options,
        )
        self.hands.append(Hand(self._forks, config))
        return self.hands[-1]

    def workers(self, number: int, *kinds: str, **options: Any) -> list[Hand]:
        return [self.worker(*kinds, **options) for _ in range(number)]

    def alive(self) -> list[Hand]:
        return [hand for hand in self.hands if not hand.gone]

    def stop_one(self, state: str) -> Hand | None:
        """Stop any worker that is in this state and return it; None if all have done all first."""
        deadline = time.monotonic() + DISTURBED
        while self.busy():
            for hand in self.random.sample(self.alive(), len(self.alive())):
                if hand.state == state:
                    hand.stop()
                    if hand.state == state:
                        return hand
                    hand.go_on()
            assert time.monotonic() < deadline, f"no worker is {state} in {DISTURBED:.0f} s"
            time.sleep(0.002)
        return None

    def outlast(self, hand: Hand) -> None:
        """Wait until a stopped holder's lease is over by all it knew, and by a renewal more."""
        known = max(event["until"] for event in hand.events() if "until" in event)
        while time.monotonic_ns() < known + self.ttl * 1e9:
            time.sleep(0.01)

    def busy(self) -> bool:
        """Tell whether any living worker still has something to do."""
        return any(hand.state != "done" for hand in self.alive())

    def every(self, shortest: float, longest: float) -> Iterator[None]:
        """Yield again and again after a random pause in seconds, while anybody is busy."""
        deadline = time.monotonic() + DISTURBED
        while self.busy():
            assert time.monotonic() < deadline, f"still busy after {DISTURBED:.0f} s"
            yield
            time.sleep(self.random.uniform(shortest, longest))

    def end(self) -> None:
        """Wait until all living workers have done what they were told, and let them end.

        A lock that is lost calls `on_lost`, once.
        """
        for hand in self.alive():
            hand.await_done()
            hand.await_told()
        for hand in self.alive():
            hand.end()
            assert hand.count("told") == hand.lost_holds()

    def holds(self) -> list[Hold]:
        return history.holds_of(event for hand in self.hands for event in hand.events())

    def counts(self) -> Counter[str]:
        """How many events of each kind all workers wrote."""
        return Counter(event["kind"] for hand in self.hands for event in hand.events())

    def errors(self, kind: str) -> Counter[str]:
        """What was said in all events of this kind."""
        events = [event for hand in self.hands for event in hand.events()]
        return Counter(str(event["error"]) for event in events if event["kind"] == kind)

    def violations(self) -> list[Violation]:
        """Judge what has been written so far."""
        return history.check(self.holds(), bound=PATIENCE, ttl=self.longest_lease, wipes=self.wipes)

    def judge(self) -> None:
        """Let all end; fail on any broken promise, lost count or thing left behind for ever."""
        self.end()
        found = self.violations()
        assert not found, f"{len(found)} violations, the first: {found[0]}"
        state, counts = self.register.state(), self.counts()
        # A worker killed between its write and its word about it has written one more.
        unsaid = sum(hand.count("killed") for hand in self.hands)
        assert counts["wrote"] <= state.writes <= counts["wrote"] + unsaid
        assert state.value == state.writes
        self.check_leftovers()

    def check_leftovers(self) -> None:
        """Fail if the lock does not become free, or if a key stays for ever."""
        for key in self.server.scan_iter():
            assert self.server.pttl(key) != -1, f"{key!r} has no expiry"

    def flush(self) -> None:
        """Let the server forget everything, in one step with the question what it knew."""
        start = time.monotonic_ns()
        with self.server.pipeline(transaction=True) as pipe:
            self._ask_tokens(pipe)
            pipe.flushall()
            *answers, _ = pipe.execute()
        self._note_wipe(start, answers)

    def restart(self, server: PrivateServer, *, forgets: bool) -> None:
        """Restart the server; one that `forgets` is asked what it knew when nothing changes it."""
        start = time.monotonic_ns()
        with self.server.pipeline(transaction=False) as pipe:
            pipe.client_pause(20_000, all=False)
            self._ask_tokens(pipe)
            _, *answers = pipe.execute()
        server.restart()
        if forgets:
            self._note_wipe(start, answers)

    @staticmethod
    def _ask_tokens(pipe: redis.client.Pipeline) -> None:
        for key in (KEYS.lock, f"lock:{NAME}", NAME):
            pipe.get(key)
        pipe.zrange(KEYS.holders, 0, -1)

    def _note_wipe(self, start: int, answers: list[Any]) -> None:
        *tokens, holders = answers
        known = frozenset(token.decode() for token in (*tokens, *holders) if token)
        self.wipes.append(Wipe(start, time.monotonic_ns(), known))
