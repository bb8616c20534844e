"""Processes that begin as forks of one that has imported what they need; see fork_end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

SUPPORT = Path(__file__).parent
PATIENCE = 300.0
"""Seconds; only a process that hangs takes as long, however busy the machine is."""


class Forks:
    """Starts them.

    Args:
        program: Of this folder; it ends in `fork_end.serve`.
        environment: Of that.
    """

    def __init__(self, program: str, **environment: str) -> None:
        self._ours, theirs = socket.socketpair()
        self._server = subprocess.Popen(
            [sys.executable, str(SUPPORT / program), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | environment,
        )
        theirs.close()
        self._ours.settimeout(PATIENCE)

    def start(self, request: dict[str, Any], files: list[int]) -> tuple[int, int]:
        """Start one with these files; return its id, and the end of a pipe for its exit status."""
        status, writing = os.pipe()
        socket.send_fds(self._ours, [json.dumps(request).encode() + b"\n"], [*files, writing])
        os.close(writing)
        return int(self._ours.recv(100)), status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._server.wait(PATIENCE)
