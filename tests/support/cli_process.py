"""The command line as a process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from typing import NamedTuple

from forks import PATIENCE, Forks

COMMAND = (sys.executable, "-m", "bloomlock.cli")


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


class CommandForks(Forks):
    """Runs command lines to their end, each in a process of its own."""

    def run(
        self, arguments: list[str], given: bytes, url: str | None, extra: dict[str, str]
    ) -> Done:
        """Run one with `given` on its standard input."""
        ends = [os.pipe() for _ in range(3)]
        files = [ends[0][0], ends[1][1], ends[2][1]]
        request = {"arguments": arguments, "environment": environment(url, extra)}
        _, status = self.start(request, files)
        for file in files:
            os.close(file)
        outputs: list[bytes] = [b"", b""]
        threads = [
            threading.Thread(target=_feed, args=(ends[0][1], given)),
            threading.Thread(target=_drain, args=(ends[1][0], outputs, 0)),
            threading.Thread(target=_drain, args=(ends[2][0], outputs, 1)),
        ]
        for thread in threads:
            thread.start()
        with os.fdopen(status) as pipe:
            code = int(pipe.readline())
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "its pipes are still open"
        return Done(code, *outputs)


def _feed(file: int, data: bytes) -> None:
    with os.fdopen(file, "wb", buffering=0) as pipe:
        left = memoryview(data)
        while left:
            try:
                left = left[pipe.write(left) :]
            except BrokenPipeError:
                return


def _drain(file: int, outputs: list[bytes], number: int) -> None:
    with os.fdopen(file, "rb") as pipe:
        outputs[number] = pipe.read()


def environment(url: str | None, extra: dict[str, str]) -> dict[str, str]:
    """Return that of this process, with a server to use, or none."""
    found = {k: v for k, v in os.environ.items() if k not in ("BLOOMLOCK_URL", "REDIS_URL")}
    return found | ({} if url is None else {"BLOOMLOCK_URL": url}) | extra


def send(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write to its standard input, at once."""
    assert process.stdin is not None
    os.write(process.stdin.fileno(), data)


def answer(process: subprocess.Popen[bytes]) -> bytes:
    """Read what it has written, without waiting for its end."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    assert ready, "no answer"
    return os.read(process.stdout.fileno(), 1 << 16)


def read_until(terminal: int, text: bytes) -> bytes:
    """Read from a terminal until it has shown a text; return all that it showed."""
    seen = b""
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], PATIENCE)
        assert ready, f"not shown; only {seen!r}"
        seen += os.read(terminal, 1 << 16)
    return seen


def children_of(pid: int) -> set[int]:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True, timeout=PATIENCE
    )
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return {int(child) for child, parent in pairs if int(parent) == pid}
