"""The command line as a process."""

from __future__ import annotations

import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

COMMAND = (sys.executable, "-m", "bloomlock.cli")
PATIENCE = 20.0


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
