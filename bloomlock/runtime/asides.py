"""The steps of a core that are no requests, for threads: pauses, waiting, context managers."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bloomlock.effects import (
    Behind,
    Clock,
    Effect,
    EnterContext,
    ExitContext,
    FreeMemory,
    Pause,
    Subscribe,
)
from bloomlock.errors import ConfigurationError

from .clock import boot_clock
from .workers import run_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bloomlock.effects import Core

    from .listening import Listener


MEMORY_REPORT = Path("/proc/meminfo")
"""What sysconf calls available leaves out the file cache, most of which the system gives away."""


class Asides:
    """What one run of a core has besides its requests.

    Args:
        find_listener: Gives a listener, or None.
        connects_by: Gives the parameters of the connections to the server of a key.
        run: Runs another core.
    """

    def __init__(
        self,
        find_listener: Callable[[Subscribe], Listener | None],
        connects_by: Callable[[str], Mapping[str, Any]],
        run: Callable[[Core[None]], None],
    ) -> None:
        """Start with nothing."""
        self._run = run
        self._find_listener = find_listener
        self._connects_by = connects_by
        self._listener: Listener | None = None
        self._entered: list[Any] = []

    def carry_out(self, step: Effect) -> Any:
        """Carry out a step and return its answer."""
        if isinstance(step, (Pause, Behind)):
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                run_behind(step.line, partial(self._run, step.core), step.seconds)
        elif isinstance(step, Subscribe):
            self._listener = self._listener or self._find_listener(step)
            return self._listener.channel if self._listener else b""
        elif isinstance(step, (FreeMemory, Clock)):
            if isinstance(step, FreeMemory):
                answer: Any = free_memory(self._connects_by(step.key))
            else:
                answer = boot_clock
            return answer
        elif isinstance(step, (EnterContext, ExitContext)):
            return self._enter(step.manager) if isinstance(step, EnterContext) else self._leave()
        elif self._listener is not None:
            return self._listener.wait(step.addressee, step.seconds)
        return None

    def _enter(self, manager: Any) -> Exception | None:
        if not hasattr(type(manager), "__enter__"):
            return not_a_manager(manager, "a context manager")
        try:
            manager.__enter__()
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        self._entered.append(manager)
        return None

    def _leave(self) -> Exception | None:
        try:
            self._entered.pop().__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the core's to judge
            return error
        return None

    def close(self) -> Listener | None:
        """Leave what the core did not; return the listener, which is needed no more."""
        while self._entered:
            self._entered.pop().__exit__(*sys.exc_info())
        return self._listener


def free_memory(connection: Mapping[str, Any]) -> int | None:
    """Return the bytes of memory that programs on this machine can still have.

    Args:
        connection: Parameters of the connections to a server.

    Returns:
        None unless the server is reached by a unix socket and the system reports the number. A TCP
        connection to this machine may be a tunnel to another one.
    """
    if "path" not in connection:
        return None
    with suppress(OSError, UnicodeDecodeError):
        found = re.search(
            r"^MemAvailable:\s+(\d+) kB$", MEMORY_REPORT.read_text("ascii"), re.MULTILINE
        )
        return int(found[1]) * 1024 if found else None
    return None


def not_a_manager(manager: object, wanted: str) -> ConfigurationError:
    """Return the error for what is not the kind of context manager that is wanted."""
    return ConfigurationError(f"factory must return {wanted} for each name, not {manager!r:.80}")
