"""A proxy on a unix socket that cuts connections: also those on which the server speaks first.

`loss_proxy` relays one reply for each command, so nothing published would ever pass through it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

import hiredis

if TYPE_CHECKING:
    from collections.abc import Callable

Verdict = Literal["pass", "before", "after"]
"""Deliver; cut before the command reaches the server; cut before what the server says after it."""

PUSH = "push"
"""Under this name the judge is asked about what the server says without having been asked."""


class CuttingProxy:
    """Relays both directions at any time and asks `judge` about every command and push.

    Args:
        url: unix:// URL of the server.
        judge: Gets the upper-case name of the command, or `PUSH`, one thread at a time.
    """

    def __init__(self, url: str, judge: Callable[[str], Verdict]) -> None:
        self._server = urlsplit(url).path
        self.judge = judge
        self.cuts = {"before": 0, "after": 0}
        self._directory = tempfile.mkdtemp(prefix="cut-")
        self._path = os.path.join(self._directory, "s")  # noqa: PTH118 - a socket's path is short
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._open: list[socket.socket] = [self._listener]

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def __enter__(self) -> Self:
        self._listener.bind(self._path)
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._open:
            _cut(opened)
            opened.close()
        shutil.rmtree(self._directory)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                self._open += [near, far]
                try:
                    far.connect(self._server)
                except OSError:  # it is being restarted
                    _cut(near)
                    continue
                relay = _Relay(self, near, far)
                for side in (relay.commands, relay.replies):
                    threading.Thread(target=side, daemon=True).start()

    def ask(self, name: str) -> Verdict:
        with self._lock:
            verdict = self.judge(name)
            if verdict != "pass":
                self.cuts[verdict] += 1
            return verdict


class _Relay:
    def __init__(self, proxy: CuttingProxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy = proxy
        self._near = near
        self._far = far
        self._doomed = False
        self._unanswered = 0

    def commands(self) -> None:
        reader = hiredis.Reader()
        with contextlib.suppress(OSError):
            while data := self._near.recv(65536):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    verdict = self._proxy.ask(command[0].decode().upper())
                    if verdict == "before":
                        self._end()
                        return
                    self._doomed |= verdict == "after"
                    self._unanswered += 1
                    self._far.sendall(hiredis.pack_command(tuple(command)))
        self._end()

    def replies(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._far.recv(65536):
                pushed = not self._unanswered
                if self._doomed or (pushed and self._proxy.ask(PUSH) != "pass"):
                    break
                # Counted roughly: how many replies one piece holds matters to nobody here.
                self._unanswered = 0
                self._near.sendall(data)
        self._end()

    def _end(self) -> None:
        _cut(self._near)
        _cut(self._far)


def _cut(opened: socket.socket) -> None:
    # Closing alone would not wake whoever reads from it.
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
