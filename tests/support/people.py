"""Threads, or tasks of a loop, that do what a test tells them, one thing after the other.

A hold belongs to a thread or a task. A test of several holders gives each a `Person`, and looks
the same for both.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 300.0
"""Seconds that something may take before a test gives up; nothing takes a tenth of it."""


def is_lost(lock: Any) -> bool:
    return bool(lock.lost.is_set())


class Person:
    """A thread that carries out what it is given."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __call__(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function there and return its answer, awaited if need be."""
        return self.start(function, *args, **options).result(LONG)

    def start(self, function: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given.put((lambda: function(*args, **options), future))
        return future

    def enter(self, lock: Any) -> Any:
        return self(lock.__enter__)

    def leave(self, lock: Any, error: BaseException | None = None) -> Any:
        return self(lock.__exit__, type(error) if error else None, error, None)

    def end(self) -> None:
        self._given.put(None)
        self._thread.join(LONG)

    def _run(self) -> None:
        while (given := self._given.get()) is not None:
            function, future = given
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the test's to judge
                future.set_exception(error)


class AsyncPerson(Person):
    """The same as a task."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.run_coroutine_threadsafe(self._live(), loop)

    def start(self, function: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        call = (lambda: function(*args, **options), future)
        self._loop.call_soon_threadsafe(self._calls.put_nowait, call)
        return future

    def enter(self, lock: Any) -> Any:
        return self(lock.__aenter__)

    def leave(self, lock: Any, error: BaseException | None = None) -> Any:
        return self(lock.__aexit__, type(error) if error else None, error, None)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._calls.put_nowait, None)
        self._task.result(LONG)

    def cancel(self) -> None:
        """Cancel what the task does now; the task lives on."""
        self._loop.call_soon_threadsafe(self._alive.cancel)

    async def _live(self) -> None:
        self._alive: Any = asyncio.current_task()
        while (given := await self._calls.get()) is not None:
            function, future = given
            try:
                answer = function()
                future.set_result(await answer if inspect.isawaitable(answer) else answer)
            except asyncio.CancelledError as error:
                self._alive.uncancel()
                future.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - the test's to judge
                future.set_exception(error)


class Loop:
    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LONG)
        self.loop.close()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LONG)
