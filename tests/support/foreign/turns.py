"""What the processes of these tests do with a lock, and how they are started and ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

from foreign.factories import open_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

PROCESSES = multiprocessing.get_context("spawn")
PATIENCE = 90


@contextlib.contextmanager
def started(target: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    """Run a function in a process of its own, which does not outlive the context."""
    process = PROCESSES.Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def count_up(
    lock: tuple[str, Any], number: Any, rounds: int, patience: float, inside: Any, met: Any
) -> None:
    """Raise a shared number, round by round, slowly enough to be disturbed.

    Waits each time for another process to be inside as well, which `met` tells for good, at most
    `patience` seconds.
    """
    with open_factory(*lock) as factory:
        for _ in range(rounds):
            with factory("a/b {c} ü"):
                seen = number.value
                with inside.get_lock():
                    inside.value += 1
                    if inside.value > 1:
                        met.set()
                met.wait(patience)
                number.value = seen + 1
                with inside.get_lock():
                    inside.value -= 1


def hold(lock: tuple[str, Any], ttl: float, entered: Any, leave: Any, told: Any) -> None:
    """Hold the lock until told to leave; tell how leaving went."""
    with open_factory(*lock, ttl) as factory:
        try:
            with factory("one"):
                entered.set()
                leave.wait(PATIENCE)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            told.put(type(error).__name__)
        else:
            told.put("left")


def be_interrupted(lock: tuple[str, Any], asking: Any, leave: Any, told: Any) -> None:
    """Wait for the lock until Ctrl-C, then live on."""
    with open_factory(*lock) as factory:
        try:
            asking.set()
            with factory("one"):
                told.put("entered")
        except KeyboardInterrupt:
            told.put("interrupted")
        leave.wait(PATIENCE)


def wait_asking(asking: Any) -> None:
    """Wait until a process is about to ask for the lock, and give it time to do so."""
    assert asking.wait(PATIENCE)
    time.sleep(0.3)
