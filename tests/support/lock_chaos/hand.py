"""The test's hand on one worker process."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from servers import wait_until

if TYPE_CHECKING:
    from lock_chaos.forks import ForkServer
    from lock_chaos.worker import Config

PATIENCE = 40.0
"""Seconds in which anything must have happened: a bound against hanging, no measure."""


class Hand:
    """Holds one worker process: tells it what to do, reads what it wrote, stops and kills it."""

    def __init__(self, forks: ForkServer, config: Config) -> None:
        self._forks = forks
        self.config = config
        self._read = 0
        self._events: list[dict[str, Any]] = []
        self._told = 0
        self.gone = False
        Path(config.log).touch()
        self.pid, self._control = forks.fork(config)
        self.await_event("ready")

    def tell(self, step: str, **options: Any) -> None:
        """Let it do a step when it has done all that it was told before."""
        self._told += 1
        self._control.sendall(json.dumps([step, options]).encode() + b"\n")

    def do(self, step: str, **options: Any) -> None:
        """Let it do a step and wait until that is done."""
        self.tell(step, **options)
        self.await_done()

    def await_done(self) -> None:
        """Wait until it has done all it was told."""
        wait_until(
            lambda: self.count("done") == self._told, what=f"worker {self.config.worker}: a step"
        )

    def await_told(self) -> None:
        """Wait until `on_lost` has been called for each hold that was lost."""
        wait_until(lambda: self.count("told") >= self.lost_holds(), what="a call of on_lost")

    def await_event(self, kind: str, number: int = 1) -> dict[str, Any]:
        """Wait for so many events of a kind, and return the last of them."""
        what = f"worker {self.config.worker}: {kind}"
        wait_until(lambda: self.count(kind) >= number, what=what)
        return [event for event in self.events() if event["kind"] == kind][number - 1]

    def events(self) -> list[dict[str, Any]]:
        """Return all it has written so far."""
        with Path(self.config.log).open("rb") as log:
            log.seek(self._read)
            data = log.read()
        lines = data[: data.rfind(b"\n") + 1]
        self._read += len(lines)
        self._events += map(json.loads, lines.splitlines())
        for event in self._events[-1:]:
            if event["kind"] == "crashed":
                pytest.fail(f"worker {self.config.worker} crashed: {event['trace']}")
        return self._events

    def lost_holds(self) -> int:
        """How many of its releases said that the lock had been lost."""
        said = [event.get("error") for event in self.events() if event["kind"] == "released"]
        return said.count("LockLostError")

    def count(self, kind: str) -> int:
        return sum(event["kind"] == kind for event in self.events())

    @property
    def state(self) -> str:
        """What it is at by its last word: `asked`, `acquired` (or valid), `releasing`, ..."""
        kind = str(self.events()[-1]["kind"])
        return "acquired" if kind == "valid" else kind

    def stop(self) -> None:
        """Stop it by SIGSTOP; returns when it stands."""
        os.kill(self.pid, signal.SIGSTOP)
        self._forks.await_stop(self.pid)

    def go_on(self) -> None:
        """Let it go on after `stop`."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it by SIGKILL; returns when it is dead."""
        os.kill(self.pid, signal.SIGKILL)
        self.gone = True
        self._forks.bury(self.pid)
        self._control.close()
        killed = {"time": time.monotonic_ns(), "worker": self.config.worker, "kind": "killed"}
        self.events().append(killed)

    def end(self) -> None:
        """Let it end by itself, after all it was told."""
        self.tell("end")
        self.gone = True
        assert self._forks.bury(self.pid) == 0
        self._control.close()
        self.events()
