"""What the tests of the lock objects look at: the server's state, connections, tasks, threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bloomlock.runtime._async.driver import AsyncDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    import redis

NAME = "tested"
LONG = 60.0
"""Seconds that something may take before a test gives up; nothing takes that long."""


def queue_of(r: redis.Redis, lock: Any) -> int:
    return int(r.zcard(f"{lock.key}:queue"))


def is_free(r: redis.Redis, lock: Any) -> bool:
    return not r.exists(lock.key, f"{lock.key}:queue", f"{lock.key}:alive", f"{lock.key}:holders")


def connections(r: redis.Redis) -> int:
    """Return how many connections the server has of clients that call themselves NAME."""
    return sum(client["name"] == NAME for client in r.client_list())


def commands_so_far(r: redis.Redis, *names: str) -> int:
    """Return how often the server was asked one of some commands."""
    stats = r.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)


def other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]  # there is one


async def happened(condition: Callable[[], object]) -> None:
    """Let the loop run until something is so; fail if it never is."""
    async with asyncio.timeout(LONG):
        while not condition():  # noqa: ASYNC110 - it is so on the server, which sets no event
            await asyncio.sleep(0.001)


def in_use(client: Any) -> bool:
    """Tell whether requests use connections of a client; the runtime keeps an idle one."""
    kept = {connection for connection, _, _ in AsyncDriver.of(client)._idle}
    return client.connection_pool._in_use_connections != kept


class CancelledAt:
    """Awaits something and cancels the task at its n-th suspension.

    Args:
        work: What is awaited.
        number: Which suspension, from 0 on.
        late: Whether what is waited for there has happened when the cancellation comes.

    Attributes:
        reached: Whether there were so many suspensions.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, *, late: bool = False) -> None:
        self.reached = False
        self._work = work
        self._number = number
        self._late = late

    def __await__(self) -> Generator[Any, Any, Any]:
        step, argument = self._work.send, None
        count = 0
        while True:
            try:
                future = step(argument)
            except StopIteration as stop:
                return stop.value
            if count == self._number:
                self.reached = True
                self._cancel(future)
            count += 1
            try:
                argument = yield future
                step = self._work.send
            except BaseException as error:  # noqa: BLE001 - the coroutine's to judge
                step, argument = self._work.throw, error

    def _cancel(self, future: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not self._late:
            task.cancel()
        elif future is None:
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            future.add_done_callback(lambda _: task.cancel())
