"""One process that asks for locks, does what it is told on a socket, and writes down all it sees.

Each event is one line, written by one write: a process killed by -9 leaves whole lines, and a hold
that is open.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

from lock_chaos import locks
from lock_chaos.register import Register

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


BEAT = 0.005
PAUSE_AFTER_ERROR = 0.01
EXPECTED: tuple[type[Exception], ...] = (redis.RedisError, OSError, locks.ForeignError)
"""What a lock may raise when the server or the network is at fault; anything else is a crash."""


@dataclass(frozen=True)
class Config:
    """What a worker is made of.

    Attributes:
        worker: Its number.
        kinds: Of the locks it uses, all of one name.
        url: Where it sees the server.
        ttl: Lease in seconds.
        seed: Of its choices.
        log: File of its events.
        register: File of the register its exclusive holds write to.
        options: Further arguments of the locks.
    """

    worker: int
    kinds: list[str]
    url: str
    ttl: float
    seed: int
    log: str
    register: str
    options: dict[str, Any]


class Worker:
    """Carries out the steps of one worker, in one task of one thread."""

    def __init__(self, config: Config, control: socket.socket) -> None:
        self._config = config
        self._control = control
        self._log = os.open(config.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._random = random.Random(config.seed)
        self._register = Register(config.register)
        self._hold = -1
        self._adapters = {
            kind: locks.make(kind, config.url, config.ttl, self._told, dict(config.options))
            for kind in config.kinds
        }
        self._adapter = self._adapters[config.kinds[0]]

    def note(self, kind: str, moment: int | None = None, **more: Any) -> None:
        event = {
            "time": time.monotonic_ns() if moment is None else moment,
            "worker": self._config.worker,
            "hold": self._hold,
            "kind": kind,
        }
        os.write(self._log, json.dumps(event | more).encode() + b"\n")

    def _told(self) -> None:
        self.note("told")

    async def serve(self) -> None:
        """Do what is told until the other side says "end" or is gone."""
        loop = asyncio.get_running_loop()
        self._control.setblocking(False)
        data = b""
        self.note("ready")
        while not data.startswith(b'["end"'):
            line, newline, rest = data.partition(b"\n")
            if newline:
                name, options = json.loads(line)
                await getattr(self, f"do_{name}")(**options)
                self.note("done", step=name)
                data = rest
            elif received := await loop.sock_recv(self._control, 65536):
                data += received
            else:
                return
        self.note("end")

    async def do_acquire(
        self, kind: str | None = None, within: float = -1, cancel: float | None = None
    ) -> bool:
        """Ask for the lock; with `cancel`, as a task that is cancelled after so many seconds."""
        self._adapter = self._adapters[kind or self._config.kinds[0]]
        self._hold += 1
        self.note("asked", shared=self._adapter.shared)
        try:
            async with asyncio.timeout(cancel):
                acquired = await self._adapter.acquire(within)
            error = "timeout"
        except TimeoutError as late:
            acquired, error = False, "cancelled" if cancel is not None else repr(late)
        except EXPECTED as failure:
            acquired, error = False, name_of(failure)
        if not acquired:
            self.note("failed", error=error)
            return False
        moment = time.monotonic_ns()
        until, fence = self._adapter.until(), self._adapter.fence
        self.note("acquired", moment, fence=fence, token=self._adapter.token, until=until)
        return True

    async def do_hold(self, seconds: float, interrupt: bool = False) -> bool:
        """Hold it so long, or until it is lost; with `interrupt`, or until the next step comes."""
        end = time.monotonic() + seconds
        while self._believe():
            left = end - time.monotonic()
            if left <= 0 or (interrupt and self._waiting()):
                return True
            await asyncio.sleep(min(BEAT, left))
        return False

    def _waiting(self) -> bool:
        try:
            return bool(self._control.recv(1, 2))  # 2: MSG_PEEK
        except BlockingIOError:
            return False

    def _believe(self) -> bool:
        """Ask the lock whether it is still held, without a round trip."""
        try:
            self._adapter.check()
        except redis.exceptions.LockNotOwnedError as error:
            self.note("lost", error=type(error).__name__)
            return False
        self.note("valid", until=self._adapter.until())
        return True

    async def do_release(self) -> None:
        self.note("releasing")
        try:
            await self._adapter.release()
            error = None
        except EXPECTED as failure:
            error = name_of(failure)
        self.note("released", error=error)

    async def do_loop(
        self,
        holds: int,
        shortest: float = 0.0,
        longest: float = 0.01,
        pause: float = 0.005,
        impatient: float = 0.0,
    ) -> None:
        """Hold it and count in the register until so many holds were whole.

        Args:
            holds: How many.
            shortest: Seconds of the shortest of them.
            longest: Seconds of the longest of them.
            pause: Seconds of the longest rest after one.
            impatient: Share of attempts that give up, or are cancelled, within 20 ms.
        """
        whole = 0
        while whole < holds:
            hurry = self._random.random() < impatient
            limits: dict[str, Any] = {}
            if hurry:
                limit = self._random.uniform(0.0, 0.02)
                limits = {"cancel" if self._config.kinds == ["async"] else "within": limit}
            if not await self.do_acquire(self._random.choice(self._config.kinds), **limits):
                await asyncio.sleep(0.0 if hurry else PAUSE_AFTER_ERROR)
                continue
            whole += await self._count(self._random.uniform(shortest, longest))
            await self.do_release()
            await asyncio.sleep(self._random.uniform(0.0, pause))

    async def _count(self, seconds: float) -> bool:
        fence = self._adapter.fence
        if self._adapter.shared:
            whole = await self.do_hold(seconds)
            self.note("read" if whole else "refused")
            return whole
        value = self._register.read(fence)
        if not await self.do_hold(seconds):
            return False
        written = value is not None and self._register.write(fence, value + 1)
        self.note("wrote" if written else "refused")
        return written

    async def do_extend(self, ttl: float) -> None:
        await self._adapter.extend(ttl)

    async def do_fork(self, tries: list[str]) -> None:
        """Fork while holding; the child tries what only a holder may do, and ends."""
        child = os.fork()
        if child == 0:
            self._as_child(tries)
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)

    def _as_child(self, tries: list[str]) -> None:
        lock = self._adapter
        actions: dict[str, Callable[[], Any]] = {
            "check": lock.check,
            "extend": lambda: lock.extend(30.0),
            "release": lock.release,
            "fence": lambda: lock.fence,
            "token": lambda: lock.token,
            "remaining": lambda: max(0, lock.until() - time.monotonic_ns()),
        }
        found = {}
        try:
            for name in tries:
                try:
                    # A fork's child has no running loop, but may well have one of its own.
                    found[name] = asyncio.run(answer_of(actions[name]))
                except redis.RedisError as error:
                    found[name] = type(error).__name__
            self.note("child", found=found)
        except BaseException:  # noqa: BLE001 - the child must not go on as a second worker
            self.note("crashed", trace=traceback.format_exc())


async def answer_of(action: Callable[[], Any]) -> Any:
    """Do something that may have to be awaited."""
    answer = action()
    return await answer if inspect.isawaitable(answer) else answer


def run(config: Config, control: socket.socket) -> None:
    """Be a worker until told to end; a crash is written down."""
    worker: Worker | None = None

    async def main() -> None:
        nonlocal worker
        worker = Worker(config, control)
        await worker.serve()

    try:
        asyncio.run(main())
    except BaseException:
        if worker is not None:
            worker.note("crashed", trace=traceback.format_exc())
        raise


def name_of(error: Exception) -> str:
    """Return how the history calls an error."""
    return str(error) if isinstance(error, locks.ForeignError) else type(error).__name__
