"""A proxy that stops, cuts or deafens a client at a chosen command: no race needs luck."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING, TypeVar

import redis
from proxy import Proxy, deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proxy import Verdict

T = TypeVar("T")
U = TypeVar("U")

LONG = 60.0
"""Bound against hanging, in seconds; nothing here takes a hundredth of it."""


class Gate(Proxy):
    """A proxy that neither judges nor counts the commands of the handshake."""

    def __init__(self, url: str, judge: Callable[[str, int], Verdict] = deliver) -> None:
        super().__init__(url, judge, handshake=False)


class Hold:
    """A judge that holds back command number `at`, or the first of name `name`, until `let_go`."""

    def __init__(self, at: int | None = None, name: str | None = None) -> None:
        self.at = at
        self.name = name
        self.reached = threading.Event()
        self._gone_on = threading.Event()

    def __call__(self, name: str, number: int) -> Verdict:
        if (number == self.at or name == self.name) and not self.reached.is_set():
            self.reached.set()
            self._gone_on.wait(LONG)
        return "pass"

    def let_go(self) -> None:
        self._gone_on.set()


def every_preemption(
    url: str, first: Callable[[redis.Redis], Callable[[], T]], second: Callable[[], U]
) -> Iterator[tuple[T, U]]:
    """Let `second` run whole before each command of `first`, one place after the other.

    `first` gets a client and gives what is to be run with it; what it sends before that is not
    stopped. Yields both results for each place, while the server still is as they left it.
    """
    at = 0
    while True:
        hold = Hold()
        with Gate(url, hold) as gate, gate.client() as client, ThreadPoolExecutor(1) as pool:
            run = first(client)
            hold.at = len(gate.seen) + at
            running = pool.submit(run)
            try:
                while not hold.reached.wait(0.005) and not running.done():
                    pass
                if not hold.reached.is_set():
                    running.result()
                    return
                came_between = second()
            finally:
                hold.let_go()
            yield running.result(LONG), came_between
        at += 1


def every_crash(
    url: str, run: Callable[[redis.Redis], object], *, verdict: Verdict
) -> Iterator[int]:
    """Let a client die at each of its commands, before or after the server carried it out.

    Yields the number of the command, while the server still is as the client left it.
    """
    at = 0
    while True:
        dead = threading.Event()

        def judge(_name: str, number: int, at: int = at, dead: threading.Event = dead) -> Verdict:
            if number == at:
                dead.set()
                return verdict
            return "before" if dead.is_set() else "pass"

        with Gate(url, judge) as gate, gate.client() as client:
            with contextlib.suppress(redis.RedisError):
                run(client)
            if not dead.is_set():
                return
            yield at
        at += 1


def together(*works: Callable[[], T]) -> list[T]:
    """Run functions at once, each in its own thread, and return their results."""
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work) for work in works]
        if wait(running, LONG).not_done:
            raise Late
        return [one.result() for one in running]
