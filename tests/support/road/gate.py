"""A proxy that stops, cuts or deafens a client at a chosen command: no race needs luck."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING, TypeVar

import hiredis
import redis
from loss_proxy import HANDSHAKE, LossProxy
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loss_proxy import Verdict

T = TypeVar("T")
U = TypeVar("U")

LONG = 60.0
"""Bound against hanging, in seconds; nothing here takes a hundredth of it."""


class Gate(LossProxy):
    """A loss proxy that also lets through what the server sends unasked, and can hold a command.

    Commands of the handshake are neither judged nor counted. The judge may block: it runs in the
    thread of the one connection whose command it judges.

    Attributes:
        packets: How often a client sent something; what goes out in one piece counts once.
        answers: How often the server did.
    """

    def __init__(
        self, url: str, judge: Callable[[str, int], Verdict] = lambda _name, _number: "pass"
    ) -> None:
        super().__init__(url, judge)
        self.answers = 0
        self.packets = 0

    def client(self, retries: int = 0) -> redis.Redis:
        """Return a client through the gate that repeats a command `retries` times by itself."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), retries))

    def _serve(self, near: socket.socket) -> None:
        far = socket.socket(socket.AF_UNIX)
        deaf = threading.Event()
        with contextlib.suppress(OSError):
            far.connect(self._server)
            threading.Thread(target=self._back, args=(far, near, deaf), daemon=True).start()
            self._forward(near, far, deaf)
        for end in (near, far):  # closing alone would not wake the other thread
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _forward(self, near: socket.socket, far: socket.socket, deaf: threading.Event) -> None:
        commands = hiredis.Reader()
        while data := near.recv(65536):
            self.packets += 1
            commands.feed(data)
            while (command := commands.gets()) is not False:
                verdict = self._judged(command[0].decode().upper())
                if verdict == "before":
                    return
                if verdict == "after":
                    deaf.set()
                far.sendall(hiredis.pack_command(tuple(command)))

    def _judged(self, name: str) -> Verdict:
        if name in HANDSHAKE:
            return "pass"
        with self._lock:
            number = len(self.seen)
            self.seen.append(name)
        verdict = self.judge(name, number)
        self.lost += verdict != "pass"
        return verdict

    def _back(self, far: socket.socket, near: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                self.answers += 1
                if deaf.is_set():
                    break
                near.sendall(data)
        with contextlib.suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)

    def cut(self, count: int) -> None:
        """Cut the connections of the next commands, before they arrive."""
        end = len(self.seen) + count
        self.judge = lambda _name, number: "before" if number < end else "pass"

    def deafen(self, at: int = 0) -> None:
        """Lose the reply of the next command, or of one after it."""
        only = len(self.seen) + at
        self.judge = lambda _name, number: "after" if number == only else "pass"


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
